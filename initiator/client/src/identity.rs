//! The identity of a host: NQN and identifier, the same after each restart.

use std::fs;
use std::io;
use std::path::Path;

use nvmeof_wire::Nqn;
use nvmeof_wire::nqn::UUID_PREFIX;
use uuid::Uuid;

use crate::error::{Error, MachineError};

/// The NQN and identifier of a host. Targets permit hosts by NQN, and distinguish them by
/// identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Host NQN.
    pub hostnqn: Nqn,
    /// Identifier, not all zero.
    pub hostid: [u8; 16],
}

/// Namespace of UUIDs that are derived from properties of a machine.
const NAMESPACE: Uuid = Uuid::from_u128(0x6d5a_1f0b_3a52_4c0e_9a0e_7a4d_9e0c_51b3);

impl Identity {
    /// This machine's identity: from `/etc/nvme/hostnqn` and
    /// `/etc/nvme/hostid`, as nvme-cli writes them. A missing one is derived from
    /// `/etc/machine-id`, or from the host name.
    ///
    /// # Errors
    /// When the contents of a file are invalid.
    pub fn of_this_machine() -> Result<Self, Error> {
        Ok(Self::from_root(Path::new("/"))?.0)
    }

    /// The same, unless the host identifier is derived from the host name, which can change. A
    /// registration for reservations belongs to the host identifier
    /// ([`ReservationRegister`](crate::ReservationRegister)): a host with another identifier can
    /// neither use nor end it.
    ///
    /// # Errors
    /// The same, and [`MachineError::NoLastingHostId`].
    pub fn lasting() -> Result<Self, Error> {
        Self::lasting_from_root(Path::new("/"))
    }

    fn lasting_from_root(root: &Path) -> Result<Self, Error> {
        match Self::from_root(root)? {
            (identity, true) => Ok(identity),
            (_, false) => Err(MachineError::NoLastingHostId.into()),
        }
    }

    /// The identity, and whether its identifier does not depend on the host name.
    fn from_root(root: &Path) -> Result<(Self, bool), Error> {
        let hostnqn = match line_of(root, "etc/nvme/hostnqn")? {
            Some((path, text)) => Some(Nqn::new(&text).map_err(|error| bad(&path, &error))?),
            None => None,
        };
        let hostid = match line_of(root, "etc/nvme/hostid")? {
            Some((path, text)) => Some(parse_hostid(&text).map_err(|error| bad(&path, &error))?),
            None => None,
        };
        let (hostnqn, lasts) = match hostnqn {
            Some(hostnqn) => (hostnqn, true),
            None => {
                let (uuid, lasts) = machine_uuid(root)?;
                (named(uuid)?, lasts || hostid.is_some())
            }
        };
        let hostid = hostid.unwrap_or_else(|| hostid_of(&hostnqn));
        Ok((Self { hostnqn, hostid }, lasts))
    }

    /// The identity of host `hostnqn`, with an identifier derived from its NQN.
    #[must_use]
    pub fn of_name(hostnqn: Nqn) -> Self {
        let hostid = hostid_of(&hostnqn);
        Self { hostnqn, hostid }
    }
}

/// Reads a host identifier as nvme-cli writes it, a UUID.
///
/// # Errors
/// The reason, as text.
pub fn parse_hostid(text: &str) -> Result<[u8; 16], String> {
    let uuid = Uuid::try_parse(text.trim())
        .map_err(|error| format!("`{text}` is not a UUID ({error})"))?;
    if uuid.is_nil() {
        return Err("the host identifier must not be zero".to_owned());
    }
    Ok(uuid.into_bytes())
}

/// The UUID in the NQN, or one that is derived from it: hosts with different NQNs have
/// different identifiers.
fn hostid_of(hostnqn: &Nqn) -> [u8; 16] {
    let in_name = hostnqn.as_str().strip_prefix(UUID_PREFIX);
    let uuid = in_name.and_then(|uuid| Uuid::try_parse(uuid).ok());
    uuid.filter(|uuid| !uuid.is_nil())
        .unwrap_or_else(|| Uuid::new_v5(&NAMESPACE, hostnqn.as_str().as_bytes()))
        .into_bytes()
}

fn named(uuid: Uuid) -> Result<Nqn, Error> {
    let name = format!("{UUID_PREFIX}{uuid}");
    Ok(Nqn::new(&name).map_err(MachineError::internal)?)
}

/// A UUID derived from the machine ID, or else from the host name, and whether it is the former.
/// systemd requires that the machine ID itself is not sent to the network.
fn machine_uuid(root: &Path) -> Result<(Uuid, bool), Error> {
    for (file, lasts) in [
        ("etc/machine-id", true),
        ("proc/sys/kernel/hostname", false),
    ] {
        if let Some((_, text)) = line_of(root, file)? {
            return Ok((Uuid::new_v5(&NAMESPACE, text.as_bytes()), lasts));
        }
    }
    Err(MachineError::NoHostNqn.into())
}

/// The first line of a file, unless it is empty.
fn line_of(root: &Path, file: &str) -> Result<Option<(String, String)>, Error> {
    let path = root.join(file);
    let name = path.display().to_string();
    match fs::read_to_string(&path) {
        Ok(text) => {
            let line = text.lines().next().unwrap_or_default().trim().to_owned();
            Ok((!line.is_empty()).then_some((name, line)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(bad(&name, &nvmeof_rdma::explain(&error))),
    }
}

fn bad(path: &str, error: &impl ToString) -> Error {
    MachineError::File {
        path: path.to_owned(),
        text: error.to_string(),
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(name: &str, files: &[(&str, &str)]) -> std::path::PathBuf {
        let root = std::env::temp_dir().join(format!("nvmeof-{name}-{}", std::process::id()));
        for (file, text) in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn identity(name: &str, files: &[(&str, &str)]) -> Result<Identity, Error> {
        let root = root(name, files);
        let identity = Identity::from_root(&root);
        let _ = fs::remove_dir_all(root);
        identity.map(|(identity, _)| identity)
    }

    #[test]
    fn files_count_first() {
        let uuid = "2f4ab6fc-0f33-4d0e-a7ad-5b6f5c1c7e11";
        let found = identity(
            "files",
            &[
                ("etc/nvme/hostnqn", "nqn.2026-11.org.example:me\n"),
                ("etc/nvme/hostid", &format!("{uuid}\n")),
            ],
        )
        .unwrap();
        assert_eq!(found.hostnqn.as_str(), "nqn.2026-11.org.example:me");
        assert_eq!(found.hostid, parse_hostid(uuid).unwrap());
    }

    #[test]
    fn names_that_linux_accepts_are_accepted() {
        let found = identity("linux", &[("etc/nvme/hostnqn", "hostnqn\n")]).unwrap();
        assert_eq!(found.hostnqn.as_str(), "hostnqn");
        assert_ne!(found.hostid, [0; 16]);
    }

    #[test]
    fn without_files_the_machine_gives_the_same_name_every_time() {
        let files = [("etc/machine-id", "0123456789abcdef0123456789abcdef\n")];
        let first = identity("machine", &files).unwrap();
        assert_eq!(identity("machine", &files).unwrap(), first);
        assert!(first.hostnqn.as_str().starts_with(UUID_PREFIX));
        assert!(!first.hostnqn.as_str().contains("0123456789ab"));
        let other = identity("machine2", &[("proc/sys/kernel/hostname", "box\n")]).unwrap();
        assert_ne!(first, other);
        assert!(identity("nothing", &[("etc/machine-id", "\n")]).is_err());
    }

    #[test]
    fn identifier_that_depends_on_the_host_name_is_not_lasting() {
        let uuid = "2f4ab6fc-0f33-4d0e-a7ad-5b6f5c1c7e11";
        let hostname = ("proc/sys/kernel/hostname", "box\n");
        for (other, lasts) in [
            (
                ("etc/machine-id", "0123456789abcdef0123456789abcdef\n"),
                true,
            ),
            (("etc/nvme/hostnqn", "nqn.2026-11.org.example:me\n"), true),
            (("etc/nvme/hostid", uuid), true),
            (("etc/nvme/hostid", "\n"), false),
        ] {
            let root = root("lasting", &[hostname, other]);
            let lasting = Identity::lasting_from_root(&root);
            let any = Identity::from_root(&root).unwrap().0;
            let _ = fs::remove_dir_all(root);
            match (lasting, lasts) {
                (Ok(identity), true) => assert_eq!(identity, any),
                (Err(error), false) => assert!(error.to_string().contains("host name"), "{error}"),
                (result, _) => panic!("{other:?}: {result:?}"),
            }
        }
    }

    #[test]
    fn identifier_is_derived_from_the_nqn() {
        let uuid = "2f4ab6fc-0f33-4d0e-a7ad-5b6f5c1c7e11";
        let name = Nqn::new(&format!("{UUID_PREFIX}{uuid}")).unwrap();
        assert_eq!(Identity::of_name(name).hostid, parse_hostid(uuid).unwrap());
        let [a, b] = ["nqn.2026-11.org.example:a", "nqn.2026-11.org.example:b"]
            .map(|name| Identity::of_name(Nqn::new(name).unwrap()).hostid);
        assert_ne!(a, b);
    }

    #[test]
    fn bad_files_are_named() {
        let long = "x".repeat(224);
        let error = identity("bad", &[("etc/nvme/hostnqn", &long)]).unwrap_err();
        assert!(error.to_string().contains("etc/nvme/hostnqn"), "{error}");
        assert!(parse_hostid("00000000-0000-0000-0000-000000000000").is_err());
        assert!(parse_hostid("x").is_err());
    }
}
