//! The script that runs on this machine beside the guest of a scenario, such as
//! `outside/gateways.sh`: it starts what is too slow in an emulated machine.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use crate::Trouble;

/// Time limit of a command. The first one may download packages.
const LIMIT: Duration = Duration::from_secs(300);
/// Time limit for ending everything.
const END: Duration = Duration::from_secs(30);

/// What all scripts need.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    /// The folder of the scripts.
    pub(crate) scripts: PathBuf,
    /// The target, if there is one.
    pub(crate) target: Option<PathBuf>,
}

/// A running script. Dropping it ends all that it started.
#[derive(Debug)]
pub(crate) struct Outside {
    child: Child,
    commands: Option<ChildStdin>,
    responses: Receiver<String>,
}

impl Tools {
    pub(crate) fn new(scripts: PathBuf, programs: &[PathBuf]) -> Self {
        let is_target = |program: &&PathBuf| program.ends_with("nvmeof-target");
        let target = programs.iter().find(is_target);
        // Scripts run in another folder.
        let target = target.and_then(|target| std::path::absolute(target).ok());
        Self { scripts, target }
    }

    /// Starts a script in `folder`, where it leaves its files.
    pub(crate) fn start(&self, name: &str, folder: &Path) -> Result<Outside, Trouble> {
        std::fs::create_dir_all(folder).map_err(|error| Trouble::file("create", folder, &error))?;
        let script = self.scripts.join(format!("{name}.sh"));
        let mut command = Command::new(&script);
        command
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(target) = &self.target {
            command.env("NVMEOF_TARGET", target);
        }
        let start = command.spawn();
        let mut child = start.map_err(|error| Trouble::file("start", &script, &error))?;
        let (sender, responses) = mpsc::channel();
        if let Some(output) = child.stdout.take() {
            std::thread::spawn(move || {
                let mut lines = BufReader::new(output).lines().map_while(Result::ok);
                lines.try_for_each(|line| sender.send(line))
            });
        }
        let commands = child.stdin.take();
        Ok(Outside {
            child,
            commands,
            responses,
        })
    }
}

impl Outside {
    /// Executes a command. Returns the response for the guest.
    pub(crate) fn execute(&mut self, command: &str) -> String {
        let sent = self.commands.as_mut().map(|to| writeln!(to, "{command}"));
        if let Some(Ok(())) = sent
            && let Ok(response) = self.responses.recv_timeout(LIMIT)
        {
            return response;
        }
        format!("failed: {command}: the script does not respond")
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.commands = None;
        // Until it ends.
        while self.responses.recv_timeout(END).is_ok() {}
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(script: &str) -> (tempfile::TempDir, Tools) {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("it.sh");
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let tools = Tools::new(folder.path().to_owned(), &["/b/nvmeof-target".into()]);
        (folder, tools)
    }

    #[test]
    fn commands_have_responses_until_the_script_ends() {
        let (folder, tools) = tools(
            "#!/bin/bash\nread -r it; echo \"ok $it $NVMEOF_TARGET\"\n\
             read -r it; echo no; exit 1\n",
        );
        let mut outside = tools.start("it", &folder.path().join("case")).unwrap();
        assert_eq!(outside.execute("a b"), "ok a b /b/nvmeof-target");
        assert_eq!(outside.execute("c"), "no");
        assert!(outside.execute("d").starts_with("failed: d: "));
    }

    #[test]
    fn script_cleans_up_when_it_is_dropped() {
        let (folder, tools) =
            tools("#!/bin/bash\ntrap 'sleep 0.2; touch done' EXIT\nwhile read -r; do :; done\n");
        let case = folder.path().join("case");
        drop(tools.start("it", &case).unwrap());
        assert!(case.join("done").exists());
    }

    #[test]
    fn missing_script_is_an_error_with_its_path() {
        let (folder, tools) = tools("");
        let error = tools.start("other", folder.path()).unwrap_err();
        assert!(error.to_string().contains("other.sh"), "{error}");
    }
}
