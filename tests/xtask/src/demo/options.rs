//! The command line of the demo.

use std::net::{Ipv4Addr, TcpListener};

use crate::profile::Profile;
use crate::run::{Failure, Outcome};
use crate::stage::Folder;

/// The port number that IANA assigned to NVMe over Fabrics.
pub(super) const DISK_PORT: u16 = 4420;
/// Of the first gateway; the second one has the next number.
const GATEWAY_PORT: u16 = 4421;

/// What is shown.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Options {
    Disk { port: u16 },
    Ceph(OfGateways),
}

/// Options of `--ceph`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OfGateways {
    /// Of each gateway.
    pub(super) ports: [u16; 2],
    pub(super) folder: Folder,
    pub(super) profile: Profile,
}

/// `[--port N]`, or `--ceph [--port N] [--keep] [--profile NAME]`.
pub(super) fn parse(arguments: &[String]) -> Outcome<Options> {
    let (mut is_ceph, mut port, mut folder) = (false, None, Folder::Remove);
    let mut profile = None;
    let mut arguments = arguments.iter().map(String::as_str);
    while let Some(argument) = arguments.next() {
        match argument {
            "--ceph" => is_ceph = true,
            "--keep" => folder = Folder::Keep,
            "--port" => port = Some(number(arguments.next())?),
            "--profile" => profile = Some(Profile::parse(arguments.next().unwrap_or_default())?),
            extra => return Err(Failure::unexpected(extra)),
        }
    }
    if is_ceph {
        let first = port.unwrap_or(GATEWAY_PORT);
        let second = first.checked_add(1).ok_or_else(|| {
            let what = "--port: must be at most 65534: the second gateway uses the next port";
            Failure::Usage(what.to_owned())
        })?;
        return Ok(Options::Ceph(OfGateways {
            ports: [first, second],
            folder,
            profile: profile.unwrap_or_default(),
        }));
    }
    if folder == Folder::Keep || profile.is_some() {
        let what = "--keep and --profile require --ceph; see `cargo xtask help`";
        return Err(Failure::Usage(what.to_owned()));
    }
    let port = port.unwrap_or(DISK_PORT);
    Ok(Options::Disk { port })
}

/// Two free ports, and programs of a profile.
pub(super) fn for_tests(profile: Profile) -> Outcome<OfGateways> {
    let free = || {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        Ok((listener.local_addr()?.port(), listener))
    };
    let none = |error: std::io::Error| Failure::Failed(format!("no port is free: {error}"));
    // Both listeners exist at the same time, so that the ports differ.
    let ((first, _one), (second, _other)) = (free().map_err(none)?, free().map_err(none)?);
    Ok(OfGateways {
        ports: [first, second],
        folder: Folder::Remove,
        profile,
    })
}

fn number(text: Option<&str>) -> Outcome<u16> {
    let Some(text) = text else {
        return Err(Failure::Usage("--port: no number given".to_owned()));
    };
    let port = text.parse().ok().filter(|port| *port != 0);
    port.ok_or_else(|| Failure::Usage("--port: must be a number from 1 to 65535".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Outcome<Options> {
        let words: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
        super::parse(&words)
    }

    #[test]
    fn arguments_of_the_disk() {
        for (line, port) in [("", DISK_PORT), ("--port 5000", 5000)] {
            assert_eq!(parse(line).unwrap(), Options::Disk { port });
        }
        for line in [
            "--port",
            "--port 0",
            "--port 65536",
            "--port 1 2",
            "now",
            "--keep",
            "--profile dev",
        ] {
            assert!(matches!(parse(line), Err(Failure::Usage(_))), "{line}");
        }
    }

    #[test]
    fn arguments_of_gateways() {
        let expected = OfGateways {
            ports: [4421, 4422],
            folder: Folder::Remove,
            profile: Profile::Release,
        };
        assert_eq!(parse("--ceph").unwrap(), Options::Ceph(expected));
        let expected = OfGateways {
            ports: [9, 10],
            folder: Folder::Keep,
            profile: Profile::Dev,
        };
        let all = parse("--port 9 --keep --profile dev --ceph").unwrap();
        assert_eq!(all, Options::Ceph(expected));
        for line in ["--ceph --port 65535", "--ceph --profile", "--ceph up"] {
            assert!(matches!(parse(line), Err(Failure::Usage(_))), "{line}");
        }
    }

    #[test]
    fn ports_for_tests_are_free() {
        let [first, second] = for_tests(Profile::Dev).unwrap().ports;
        assert!(first != second && TcpListener::bind((Ipv4Addr::LOCALHOST, first)).is_ok());
    }
}
