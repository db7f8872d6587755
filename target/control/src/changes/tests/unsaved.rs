//! Changes in effect whose save fails at its last step.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use nvmeof_atomic_file::{Files, ReadAccess, Real};

/// A file system on which the last steps of a save fail on request.
#[derive(Clone, Debug, Default)]
struct Failing {
    rename: Arc<AtomicBool>,
    sync_folder: Arc<AtomicBool>,
}

fn unless(failing: &AtomicBool) -> io::Result<()> {
    if failing.load(Ordering::SeqCst) {
        return Err(io::Error::other("the file system is full"));
    }
    Ok(())
}

impl Files for Failing {
    fn write(&self, path: &Path, bytes: &[u8], old: &Path, readers: ReadAccess) -> io::Result<()> {
        Real.write(path, bytes, old, readers)
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        Real.sync(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        unless(&self.rename)?;
        Real.rename(from, to)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        unless(&self.sync_folder)?;
        Real.sync_folder(folder)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        Real.remove(path)
    }
}

/// The files in the folder of the state file.
fn kept(scene: &Scene) -> Vec<String> {
    let names = std::fs::read_dir(scene.path("kept")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    names
}

#[test]
fn unsaved_changes_are_reported_until_saved() {
    let state = "kept/state.json";
    for (by_save, renames) in [(true, false), (true, true), (false, false), (false, true)] {
        let scene = Scene::new();
        let mut daemon = scene.start();
        let failing = Failing::default();
        daemon.keeper.save_on(failing.clone());
        let (fails, named) = match renames {
            true => (&failing.rename, scene.path(state)),
            false => (&failing.sync_folder, scene.path("kept")),
        };
        fails.store(true, Ordering::SeqCst);
        let outcome = daemon.edit(add("ram:2M")).unwrap();
        let named = format!("{}: the file system is full", named.display());
        let warning = format!("in effect, but not saved: {named}; `ctl save` retries");
        assert_eq!((outcome.saved, outcome.warnings), (false, vec![warning]));
        // It is served, and never reported as saved, also not after a refused change.
        let unsaved = |daemon: &Daemon| {
            assert!(!daemon.keeper.show().saved);
            assert_eq!(daemon.nsids(), [1, 2]);
        };
        unsaved(&daemon);
        let error = daemon.keeper.save().unwrap_err();
        assert!(matches!(error, ChangeError::StillUnsaved(_)));
        let error = error.to_string();
        let message = error.contains(&named) && error.contains("until the target ends");
        assert!(message, "{error}");
        assert!(daemon.edit(add("ram:what")).is_err());
        unsaved(&daemon);
        let saved = std::fs::read(scene.path(state)).is_ok();
        assert_eq!(saved, !renames);
        // The new file replaced the old one or was removed.
        let always = ["state.json.incarnations", "state.json.lock"];
        let mut left = always.map(str::to_owned).to_vec();
        left.splice(0..0, saved.then(|| "state.json".to_owned()));
        assert_eq!(kept(&scene), left);
        // The next change or `save` saves everything.
        fails.store(false, Ordering::SeqCst);
        if by_save {
            assert_eq!(daemon.keeper.save().unwrap(), scene.path(state));
        } else {
            let outcome = daemon.edit(add("ram:3M")).unwrap();
            assert!(outcome.saved && outcome.warnings.is_empty());
        }
        assert!(daemon.keeper.show().saved);
        let nsids = daemon.nsids();
        drop(daemon);
        assert_eq!(scene.start().nsids(), nsids);
    }
}

/// After a failed save, the next start finds the old state or the new one.
#[test]
fn unsaved_change_is_undone_or_as_reported() {
    for (renames, expected) in [(true, vec![1]), (false, vec![1, 2])] {
        let scene = Scene::new();
        let mut daemon = scene.start();
        let failing = Failing::default();
        daemon.keeper.save_on(failing.clone());
        let fails = if renames {
            &failing.rename
        } else {
            &failing.sync_folder
        };
        fails.store(true, Ordering::SeqCst);
        assert!(!daemon.edit(add("ram:2M")).unwrap().saved);
        drop(daemon);
        assert_eq!(scene.start().nsids(), expected);
    }
}
