//! `host.key_file` and the like: files with keys of hosts and controllers, who may access them,
//! and reading them.
//!
//! No message contains any part of such a file.

use std::fmt;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use nvmeof_dhchap::{Key, KeyError, Secret};
use nvmeof_rdma::explain;

/// Prefix of the name of a service credential, in place of a path.
pub const CREDENTIAL: &str = "credential:";
/// Longest file in bytes. A key has at most 107 characters.
const LONGEST: usize = 4096;
/// Longest name of a file (`NAME_MAX`).
const LONGEST_NAME: usize = 255;
/// Permissions of the group and of others.
const OF_OTHERS: u32 = 0o077;

/// Where a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyFile<'a> {
    /// A file.
    Path(&'a Path),
    /// A credential that the service manager passes (systemd.exec(5), `LoadCredential=`).
    Credential(&'a str),
}

impl<'a> KeyFile<'a> {
    /// # Errors
    /// The rule that `text` violates. If it is a key, the message does not contain it.
    pub(crate) fn parse(text: &'a str) -> Result<Self, String> {
        if text.contains(Key::PREFIX) {
            return Err(
                "must be the path of a file, but is a key; store the key in a file that only the \
                 user of the target can read, replace it by another one if others could read this \
                 configuration, and name the file"
                    .to_owned(),
            );
        }
        let Some(name) = text.strip_prefix(CREDENTIAL) else {
            return match text {
                "" => Err("is empty; must be the path of a file, or credential:NAME".to_owned()),
                path => Ok(Self::Path(Path::new(path))),
            };
        };
        // As systemd requires: a name of a file, printable ASCII, without a colon.
        let printable = name
            .bytes()
            .all(|byte| byte.is_ascii_graphic() || byte == b' ');
        let is_name = !name.contains(['/', ':']) && !["", ".", ".."].contains(&name);
        if printable && is_name && name.len() <= LONGEST_NAME {
            return Ok(Self::Credential(name));
        }
        Err(format!(
            "{text:?}: must be credential:NAME with the name of a LoadCredential= setting: 1 to \
             {LONGEST_NAME} printable ASCII characters without / and :"
        ))
    }

    /// Whether it is a path that depends on the working directory.
    pub(crate) fn is_relative(self) -> bool {
        matches!(self, Self::Path(path) if path.is_relative())
    }

    /// Reads the key. `credentials` is the folder of service credentials, if there is one.
    ///
    /// # Errors
    /// The rule that the file violates.
    pub(crate) fn read(self, credentials: Option<&Path>) -> Result<Key, String> {
        match self {
            Self::Path(path) => {
                let file = open(path)?;
                check_access(&metadata(&file)?, geteuid().as_raw())?;
                read_key(file)
            }
            Self::Credential(name) => {
                let folder = credentials.ok_or(
                    "$CREDENTIALS_DIRECTORY is not set; set LoadCredential= in the unit of the \
                     service, and start the target as this service",
                )?;
                // The service manager sets owner, mode and ACL of a credential. With an ACL, the
                // permissions of the group are those of its mask (acl(5)).
                let file = open(&folder.join(name))?;
                check_kind(&metadata(&file)?)?;
                read_key(file)
            }
        }
    }
}

impl fmt::Display for KeyFile<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{path:?}"),
            Self::Credential(name) => write!(f, "{CREDENTIAL}{name}"),
        }
    }
}

/// The folder of service credentials, `$CREDENTIALS_DIRECTORY` of systemd.exec(5).
pub(crate) fn credentials() -> Option<PathBuf> {
    let folder = std::env::var_os("CREDENTIALS_DIRECTORY")?;
    (!folder.is_empty()).then(|| PathBuf::from(folder))
}

/// Opens a file, also through symbolic links, with which secret stores replace several files at
/// once. Owner and mode are checked of the open file, so that no link can be changed in between.
fn open(path: &Path) -> Result<File, String> {
    // A FIFO without a writer would block.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let mut options = OpenOptions::new();
    let opened = options.read(true).custom_flags(flags.bits()).open(path);
    opened.map_err(|error| unreadable(&error))
}

fn metadata(file: &File) -> Result<Metadata, String> {
    file.metadata().map_err(|error| unreadable(&error))
}

fn unreadable(error: &io::Error) -> String {
    format!("cannot be read: {}", explain(error))
}

fn check_kind(metadata: &Metadata) -> Result<(), String> {
    if metadata.is_file() {
        return Ok(());
    }
    Err("is not a regular file; store each key in a file of its own".to_owned())
}

/// Checks that only root and the user `uid` can access a file.
fn check_access(metadata: &Metadata, uid: u32) -> Result<(), String> {
    check_kind(metadata)?;
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    if owner != 0 && owner != uid {
        return Err(format!(
            "belongs to user {owner}; must belong to root or to the user of this process, {uid}: \
             change the owner of the file, or run this program as user {owner}"
        ));
    }
    if mode & OF_OTHERS != 0 {
        return Err(format!(
            "has mode {mode:04o}; must give no permission to its group and others, as with \
             `chmod 600`"
        ));
    }
    Ok(())
}

fn read_key(file: File) -> Result<Key, String> {
    let read = Secret::read(file, LONGEST + 1).map_err(|error| unreadable(&error))?;
    let bytes = read.as_ref().map(Secret::expose).unwrap_or_default();
    let text = match bytes.trim_ascii_end() {
        _ if bytes.len() > LONGEST => {
            return Err(format!(
                "has more than {LONGEST} bytes; must be one line with a key"
            ));
        }
        [] => return Err("is empty; must be one line with a key".to_owned()),
        text if text.contains(&b'\n') => {
            return Err("has more than one line; must be one line with a key".to_owned());
        }
        text => text,
    };
    let text = std::str::from_utf8(text).map_err(|_| KeyError::Form);
    text.and_then(Key::parse).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use tempfile::TempDir;

    use super::*;

    /// Bytes 00h to 1Fh.
    const SECRET: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR";

    fn key() -> String {
        format!("DHHC-1:00:{SECRET}:")
    }

    /// A file with these contents that only its owner can access.
    fn file(folder: &TempDir, name: &str, contents: &[u8]) -> PathBuf {
        let path = folder.path().join(name);
        fs::write(&path, contents).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    fn read(path: &Path) -> Result<Key, String> {
        KeyFile::parse(path.to_str().unwrap()).unwrap().read(None)
    }

    #[test]
    fn key_with_white_space_at_its_end_is_read() {
        let folder = TempDir::new().unwrap();
        for end in ["", "\n", "\r\n", "  \n\n"] {
            let path = file(&folder, "key", format!("{}{end}", key()).as_bytes());
            assert_eq!(*read(&path).unwrap().to_text(), key(), "{end:?}");
        }
        let padded = format!("{:<4096}", key());
        assert!(read(&file(&folder, "key", padded.as_bytes())).is_ok());
    }

    #[test]
    fn wrong_contents_are_refused_without_echo() {
        let folder = TempDir::new().unwrap();
        let good = key();
        let short = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODw==:".to_owned();
        for (contents, words) in [
            (String::new(), "is empty"),
            (" \n".to_owned(), "is empty"),
            (good.replace("Hh+", "Hh6"), "CRC-32"),
            (good.replace("DHHC-1:00", "DHHC-1:09"), "transformation"),
            (good.replace("DHHC-1", "DHHC-2"), "form"),
            (good.replace("AAEC", "AA?C"), "Base64"),
            (short, "bytes; valid are 32, 48 and 64"),
            (format!("{good}\n{good}\n"), "more than one line"),
            (format!("# host\n{good}"), "more than one line"),
            (format!("{good:<4097}"), "more than 4096 bytes"),
            (format!("{good}x"), "form"),
        ] {
            let error = read(&file(&folder, "key", contents.as_bytes())).unwrap_err();
            assert!(error.contains(words), "{words}: {error}");
            for part in ["AAEC", "Hh", "fiaR"] {
                assert!(!error.contains(part), "{part}: {error}");
            }
        }
        let binary = file(&folder, "key", &[0xff, 0xfe, 0x00]);
        assert!(read(&binary).unwrap_err().contains("form"));
    }

    #[test]
    fn file_that_others_can_access_is_refused_with_its_mode() {
        let folder = TempDir::new().unwrap();
        let path = file(&folder, "key", key().as_bytes());
        for (mode, is_good) in [
            (0o600, true),
            (0o400, true),
            (0o640, false),
            (0o620, false),
            (0o604, false),
            (0o601, false),
            (0o666, false),
        ] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            match read(&path) {
                Ok(_) => assert!(is_good, "{mode:o}"),
                Err(error) => {
                    assert!(!is_good, "{mode:o}: {error}");
                    let words = format!("has mode {mode:04o}; must give no permission");
                    assert!(error.contains(&words), "{error}");
                }
            }
        }
    }

    #[test]
    fn file_of_another_user_is_refused() {
        let folder = TempDir::new().unwrap();
        let path = file(&folder, "key", key().as_bytes());
        let own = geteuid();
        // Files of root are accepted for every user.
        if own.is_root() {
            std::os::unix::fs::chown(&path, Some(54_321), None).unwrap();
            let error = read(&path).unwrap_err();
            assert!(error.contains("belongs to user 54321"), "{error}");
        }
        let metadata = fs::metadata(&path).unwrap();
        let owner = metadata.uid();
        assert_eq!(check_access(&metadata, owner), Ok(()));
        let error = check_access(&metadata, owner + 1).unwrap_err();
        let words = format!("belongs to user {owner}; must belong to root or to the user");
        assert!(error.starts_with(&words), "{error}");
    }

    #[test]
    fn other_kinds_of_files_are_refused() {
        let folder = TempDir::new().unwrap();
        let missing = read(&folder.path().join("missing")).unwrap_err();
        assert!(
            missing.starts_with("cannot be read: no such file"),
            "{missing}"
        );
        let fifo = folder.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).unwrap();
        for other in [folder.path(), &fifo, Path::new("/dev/null")] {
            let error = read(other).unwrap_err();
            assert!(error.starts_with("is not a regular file"), "{error}");
        }
    }

    /// The file at the end of the link decides.
    #[test]
    fn symbolic_link_is_followed_and_its_file_is_checked() {
        let folder = TempDir::new().unwrap();
        let path = file(&folder, "key", key().as_bytes());
        let link = folder.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(read(&link).is_ok());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(read(&link).unwrap_err().contains("has mode 0644"));
    }

    #[test]
    fn credential_is_read_from_the_folder_of_the_service() {
        let folder = TempDir::new().unwrap();
        let path = file(&folder, "host.key", key().as_bytes());
        // As with an ACL for the user of the service.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o440)).unwrap();
        let credential = KeyFile::parse("credential:host.key").unwrap();
        assert_eq!(credential, KeyFile::Credential("host.key"));
        assert!(credential.read(Some(folder.path())).is_ok());
        let error = credential.read(None).unwrap_err();
        assert!(
            error.contains("$CREDENTIALS_DIRECTORY is not set"),
            "{error}"
        );
        let other = KeyFile::parse("credential:other").unwrap();
        let error = other.read(Some(folder.path())).unwrap_err();
        assert!(error.starts_with("cannot be read"), "{error}");
    }

    #[test]
    fn names_are_checked_and_keys_are_not_echoed() {
        for bad in [
            "",
            ".",
            "..",
            "a/b",
            "../a",
            "a:b",
            "a\u{7f}",
            "é",
            &"a".repeat(256),
        ] {
            let text = format!("credential:{bad}");
            let error = KeyFile::parse(&text).unwrap_err();
            assert!(error.contains("must be credential:NAME"), "{error}");
        }
        assert!(KeyFile::parse("").unwrap_err().contains("is empty"));
        for text in [
            key(),
            format!("credential:{}", key()),
            format!("/keys/{}", key()),
        ] {
            let error = KeyFile::parse(&text).unwrap_err();
            assert!(
                error.contains("is a key") && !error.contains("AAEC"),
                "{error}"
            );
        }
    }
}
