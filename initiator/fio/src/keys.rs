//! The keys of in-band authentication of a job: from files that its options name, or from the
//! environment. fio prints the options of a job with its results, and a job file is copied, so that
//! no option is a key itself.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use nix::errno::Errno;
use nvmeof_initiator::dhchap::{HostKeys, Key, Secret};

use crate::failure::Failure;

/// An option of a job, and the variable that has the same without it.
#[derive(Clone, Copy)]
struct Source<'a> {
    option: &'static str,
    given: Option<&'a str>,
    variable: &'static str,
}

/// Longest file of a key in bytes: a key has at most 107 characters.
const MAX_FILE: usize = 4096;

/// The keys, if there are any. `host` and `controller` are the options of the job, and `variable`
/// returns the value of an environment variable.
pub(crate) fn read(
    host: Option<&str>,
    controller: Option<&str>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Option<Arc<HostKeys>>, Failure> {
    let host = Source {
        option: "dhchap_secret",
        given: host,
        variable: "NVMEOF_DHCHAP_SECRET",
    };
    let controller = Source {
        option: "dhchap_ctrl_secret",
        given: controller,
        variable: "NVMEOF_DHCHAP_CTRL_SECRET",
    };
    match (host.key(&variable)?, controller.key(&variable)?) {
        (None, None) => Ok(None),
        (Some(host), controller) => Ok(Some(Arc::new(HostKeys::new(host, controller)))),
        (None, Some(_)) => Err(wrong(
            "dhchap_ctrl_secret=: the controller proves its key only to a host that proves one; \
             add dhchap_secret=@FILE",
        )),
    }
}

impl Source<'_> {
    fn key(self, variable: impl Fn(&str) -> Option<OsString>) -> Result<Option<Arc<Key>>, Failure> {
        let Self { option, given, .. } = self;
        // A value that is not a file is not repeated: it may be a key.
        let (name, secret) = match given.map(|given| given.strip_prefix('@')) {
            Some(Some(path)) => (format!("{option}=@{path}"), read_file(path)),
            Some(None) => {
                return Err(wrong(format!(
                    "{option}=: must be @FILE, a file with the key, because fio prints the \
                     options of a job; or set {} instead",
                    self.variable
                )));
            }
            None => match variable(self.variable).map(OsStringExt::into_vec) {
                None => return Ok(None),
                Some(mut value) => {
                    // An empty variable is refused: without a key that was meant to be there, an
                    // unauthenticated controller would be used.
                    value.push(b' ');
                    let file = match value.strip_prefix(b"@").map(str::from_utf8) {
                        Some(Ok(path)) => Some(read_file(path.trim_end())),
                        Some(Err(error)) => Some(Err(io::Error::other(error))),
                        None => None,
                    };
                    let secret = file.unwrap_or_else(|| keep(&mut value).map(Some));
                    (self.variable.to_owned(), secret)
                }
            },
        };
        let secret = secret.map_err(|error| {
            let why = nvmeof_rdma::explain(&error);
            wrong(format!("{name}: cannot read the key: {why}"))
        })?;
        let bytes = secret.as_ref().map(Secret::expose).unwrap_or_default();
        let text = str::from_utf8(bytes).unwrap_or_default();
        let key = Key::parse(text).map_err(|error| wrong(format!("{name}: {error}")))?;
        Ok(Some(Arc::new(key)))
    }
}

/// The start of a file, which is `None` if it is empty.
fn read_file(path: &str) -> io::Result<Option<Secret>> {
    Secret::read(File::open(path)?, MAX_FILE)
}

/// Moves `text` to memory that core dumps omit, and erases it.
fn keep(text: &mut [u8]) -> io::Result<Secret> {
    Secret::take(text).map_err(io::Error::other)
}

fn wrong(text: impl Into<String>) -> Failure {
    Failure::new(text, Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Bytes 00h to 1Fh.
    const KNOWN: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

    fn nothing(_: &str) -> Option<OsString> {
        None
    }

    #[test]
    fn keys_come_from_files_and_the_environment() {
        let path = std::env::temp_dir().join(format!("nvmeof-fio-key-{}", std::process::id()));
        fs::write(&path, format!("{KNOWN}\n")).unwrap();
        let named = format!("@{}", path.display());
        let text = |keys: Option<Arc<HostKeys>>| keys.unwrap().key.to_text().to_string();

        assert!(read(None, None, nothing).unwrap().is_none());
        let keys = read(Some(&named), Some(&named), nothing).unwrap();
        assert!(keys.as_ref().unwrap().controller_key.is_some());
        assert_eq!(text(keys), KNOWN);
        for value in [KNOWN, &named] {
            let variable = |name: &str| (name == "NVMEOF_DHCHAP_SECRET").then(|| value.into());
            assert_eq!(text(read(None, None, variable).unwrap()), KNOWN);
        }
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn refusals_name_the_option_and_not_the_key() {
        let changed = KNOWN.replace("AAEC", "AAED");
        let variable = move |_: &str| Some(OsString::from(&changed));
        let empty = |_: &str| Some(OsString::new());
        let controller = |name: &str| name.contains("CTRL").then(|| KNOWN.into());
        for (refused, words) in [
            (
                read(Some(KNOWN), None, nothing),
                "dhchap_secret=: must be @FILE",
            ),
            (
                read(None, Some(KNOWN), nothing),
                "dhchap_ctrl_secret=: must be @FILE",
            ),
            (
                read(Some("@/nonexistent"), None, nothing),
                "dhchap_secret=@/nonexistent: cannot read",
            ),
            (
                read(Some("@/proc/self/maps"), None, nothing),
                "dhchap_secret=@/proc/self/maps: the text is not of the form",
            ),
            (
                read(None, None, variable),
                "NVMEOF_DHCHAP_SECRET: the CRC-32 of the key is wrong",
            ),
            (read(None, None, controller), "add dhchap_secret=@FILE"),
            (
                read(None, None, empty),
                "NVMEOF_DHCHAP_SECRET: the text is not",
            ),
            (
                read(Some(""), None, nothing),
                "dhchap_secret=: must be @FILE",
            ),
        ] {
            let failure = refused.unwrap_err();
            let text = failure.to_string();
            assert!(text.contains(words), "{text}");
            assert!(
                !text.contains("AAE") && !text.contains("DHHC-1:00:A"),
                "{text}"
            );
            assert_eq!(failure.errno(), Errno::EINVAL);
        }
    }
}
