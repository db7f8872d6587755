//! The address of the target on the command line.

use std::net::ToSocketAddrs;

use nvmeof_initiator::{Address, AddressError};

use crate::failure::Failure;

/// The default port of NVMe over RDMA (NVMe RDMA transport 1.0, section 3.1.1).
const DEFAULT_PORT: u16 = 4420;

/// The address that `--traddr` and `--trsvcid` give: an IP address, a name that
/// is looked up, or a Unix socket.
pub(crate) fn resolve(traddr: &str, trsvcid: Option<u16>) -> Result<Address, Failure> {
    if Address::is_unix_text(traddr) {
        return of_unix(traddr, trsvcid);
    }
    let (name, port) = split(traddr)?;
    let port = match (port, trsvcid) {
        (Some(port), Some(other)) if port != other => {
            return Err(Failure::usage(format!(
                "--traddr {traddr} has port {port}, --trsvcid has {other}"
            ))
            .with_remedy("give the port once"));
        }
        (port, trsvcid) => port.or(trsvcid).unwrap_or(DEFAULT_PORT),
    };
    let found = (name, port).to_socket_addrs();
    let found = found.map_err(|error| {
        Failure::new(format!("cannot find the address of `{name}`: {error}"))
            .with_remedy("give an IP address or a name that resolves with --traddr (-a)")
    })?;
    let found = found.into_iter().next().ok_or_else(|| {
        Failure::new(format!("`{name}` has no address"))
            .with_remedy("give an IP address with --traddr (-a)")
    })?;
    Ok(found.into())
}

/// The addresses of a list: commas separate them, and `\,` is a comma in the path of a Unix socket.
pub(crate) fn split_list(text: &str) -> Vec<String> {
    let mut addrs = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(next) = chars.next() {
        let is_escaped = next == '\\' && chars.next_if_eq(&',').is_some();
        match addrs.last_mut() {
            Some(last) if is_escaped => last.push(','),
            Some(last) if next != ',' => last.push(next),
            _ => addrs.push(String::new()),
        }
    }
    addrs
}

/// Splits a name or address from its port: `name:4420`, `[::1]:4420`. A value with several
/// colons and no brackets is an IPv6 address without a port.
fn split(traddr: &str) -> Result<(&str, Option<u16>), Failure> {
    let (name, port) = match traddr.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((name, "")) => return Ok((name, None)),
            Some((name, port)) => (name, port.strip_prefix(':')),
            None => (rest, None),
        },
        None => match traddr.split_once(':') {
            Some((name, port)) if !port.contains(':') => (name, Some(port)),
            _ => return Ok((traddr, None)),
        },
    };
    match port
        .and_then(|port| port.parse().ok())
        .filter(|port| *port > 0)
    {
        Some(port) => Ok((name, Some(port))),
        None => Err(Failure::usage(format!(
            "--traddr {traddr} is not an address with a port (1-65535)"
        ))
        .with_remedy("write 192.0.2.1:4420 or [2001:db8::1]:4420, or leave the port out")),
    }
}

fn of_unix(traddr: &str, trsvcid: Option<u16>) -> Result<Address, Failure> {
    if trsvcid.is_some() {
        return Err(Failure::usage("a Unix socket has no port")
            .with_remedy("leave --trsvcid (-s) out: the path is the complete address"));
    }
    let addr = traddr.parse();
    addr.map_err(|error: AddressError| Failure::usage(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_comma_does_not_separate_addresses() {
        for (list, addrs) in [
            ("::1", &["::1"][..]),
            ("::1,[::2]:4421", &["::1", "[::2]:4421"]),
            (r"unix:/a\,b,unix:/c", &["unix:/a,b", "unix:/c"]),
            (r"unix:/a\b\", &[r"unix:/a\b\"]),
            ("::1,", &["::1", ""]),
        ] {
            assert_eq!(split_list(list), addrs, "{list}");
        }
    }

    #[test]
    fn link_local_addresses_keep_their_interface() {
        let addr = resolve("fe80::1%lo", Some(4421)).unwrap();
        let text = addr.to_string();
        assert!(
            text.starts_with("[fe80::1%") && text.ends_with("]:4421"),
            "{text}"
        );
        assert_eq!(addr.check(), Ok(()));
    }

    #[test]
    fn addresses_are_of_ip_with_a_port_or_of_unix_without() {
        for (traddr, trsvcid, expected) in [
            ("127.0.0.1", None, "127.0.0.1:4420"),
            ("[::1]", Some(4421), "[::1]:4421"),
            ("::1", None, "[::1]:4420"),
            ("127.0.0.1:4500", None, "127.0.0.1:4500"),
            ("127.0.0.1:4500", Some(4500), "127.0.0.1:4500"),
            ("[::1]:4500", None, "[::1]:4500"),
            ("unix:/run/a.sock", None, "unix:/run/a.sock"),
        ] {
            let addr = resolve(traddr, trsvcid).unwrap();
            assert_eq!(addr, expected.parse().unwrap(), "{traddr}");
        }
        for (traddr, trsvcid, reason) in [
            ("unix:/run/a.sock", Some(4420), "has no port"),
            ("unix:run/a.sock", None, "absolute"),
            ("unix:@a", None, "abstract"),
            ("unix:", None, "missing"),
            ("127.0.0.1:4500", Some(4420), "has port 4500"),
            ("127.0.0.1:", None, "with a port (1-65535)"),
            ("127.0.0.1:0", None, "with a port (1-65535)"),
            ("127.0.0.1:70000", None, "with a port (1-65535)"),
            ("[::1]4500", None, "with a port (1-65535)"),
            ("[::1", None, "with a port (1-65535)"),
        ] {
            let refused = resolve(traddr, trsvcid).unwrap_err();
            assert!(format!("{refused:?}").contains(reason), "{refused:?}");
        }
    }
}
