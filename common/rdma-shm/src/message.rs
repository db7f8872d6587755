//! Messages on the socket and their encoding. Numbers are little-endian.

use std::net::{IpAddr, Ipv6Addr};

use nvmeof_rdma::{Fault, PrivateData};

use crate::fault::{LAYER, codes, fault};

/// Buffer for the longest message, and one byte more to detect longer ones.
pub(crate) const ROOM: usize = 256 + 1;
/// Start of a request: kind, and protocol identifier.
const REQUEST: [u8; 8] = *b"\x01nvmshm2";
const ACCEPT: u8 = 2;
const REJECT: u8 = 3;
const WAKE: u8 = 4;
/// The bytes of [`Message::Wake`].
pub(crate) const WAKE_UP: [u8; 1] = [WAKE];
const BYE: u8 = 5;
const FAULT: u8 = 6;
const PROBE: u8 = 7;
const REGION: u8 = 8;
/// Maximum text of a fault, in bytes.
const TEXT: usize = 200;

/// Text for an invalid request.
pub(crate) const BAD_REQUEST: &str = "its first message is not a request of this protocol";

/// Messages between the two sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// The passive side accepts.
    Accept {
        parameters: ConnectionParameters,
        /// Maximum number of regions of the active side that it maps.
        regions: u32,
    },
    /// The passive side rejects.
    Reject(PrivateData),
    /// Wake-up: there is something in the rings.
    Wake,
    /// Orderly close by the sender; records in its ring are valid.
    Bye,
    /// The receiver of this message violated the protocol.
    Fault(Fault),
    /// Instead of a request: asks whether the target would accept a connection. The response
    /// is the same message.
    Probe,
    /// A region for the peer to map; its file descriptor is passed with the message.
    Region {
        /// Its number in grants.
        number: u32,
        /// Bytes.
        len: u64,
    },
}

/// Parameters of one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionParameters {
    /// RDMA Reads that it processes at once.
    pub(crate) reads_in: u32,
    /// RDMA Reads it wants in flight.
    pub(crate) reads_out: u32,
    /// Private data of its user.
    pub(crate) private_data: PrivateData,
}

impl ConnectionParameters {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.reads_in.to_le_bytes());
        out.extend_from_slice(&self.reads_out.to_le_bytes());
        out.extend_from_slice(&self.private_data);
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (reads_in, bytes) = bytes.split_first_chunk()?;
        let (reads_out, bytes) = bytes.split_first_chunk()?;
        Some(Self {
            reads_in: u32::from_le_bytes(*reads_in),
            reads_out: u32::from_le_bytes(*reads_out),
            private_data: PrivateData::new(bytes).ok()?,
        })
    }
}

/// The first message of the active side; the file descriptor of the memory is passed with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Bytes of each ring in that memory.
    pub(crate) ring: u64,
    /// Room for grants in that memory: 0, or the number that this protocol defines.
    pub(crate) grants: u32,
    /// The address that it connected to.
    pub(crate) sought: IpAddr,
    pub(crate) parameters: ConnectionParameters,
}

impl Request {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = REQUEST.to_vec();
        out.extend_from_slice(&self.ring.to_le_bytes());
        out.extend_from_slice(&self.grants.to_le_bytes());
        let sought = match self.sought {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        out.extend_from_slice(&sought.octets());
        self.parameters.write(&mut out);
        out
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.strip_prefix(&REQUEST)?;
        let (ring, bytes) = bytes.split_first_chunk()?;
        let (grants, bytes) = bytes.split_first_chunk()?;
        let (sought, bytes) = bytes.split_first_chunk::<16>()?;
        Some(Self {
            ring: u64::from_le_bytes(*ring),
            grants: u32::from_le_bytes(*grants),
            sought: Ipv6Addr::from(*sought).to_canonical(),
            parameters: ConnectionParameters::parse(bytes)?,
        })
    }
}

impl Message {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Accept {
                parameters,
                regions,
            } => {
                let mut out = vec![ACCEPT];
                out.extend_from_slice(&regions.to_le_bytes());
                parameters.write(&mut out);
                out
            }
            Self::Reject(private_data) => [&[REJECT][..], private_data].concat(),
            Self::Wake => WAKE_UP.to_vec(),
            Self::Bye => vec![BYE],
            Self::Probe => vec![PROBE],
            Self::Region { number, len } => {
                [&[REGION], &number.to_le_bytes()[..], &len.to_le_bytes()].concat()
            }
            Self::Fault(fault) => {
                let text = fault.text.as_bytes();
                let text = text.get(..TEXT).unwrap_or(text);
                [&[FAULT], &fault.code.to_le_bytes()[..], text].concat()
            }
        }
    }

    /// Parses a message of a peer.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Fault> {
        let parsed = match bytes.split_first() {
            Some((&ACCEPT, rest)) => accept(rest),
            Some((&REGION, rest)) => region(rest),
            Some((&REJECT, rest)) => PrivateData::new(rest).ok().map(Self::Reject),
            Some((&WAKE, [])) => Some(Self::Wake),
            Some((&BYE, [])) => Some(Self::Bye),
            Some((&PROBE, [])) => Some(Self::Probe),
            Some((&FAULT, rest)) => rest.split_first_chunk().map(|(code, text)| {
                Self::Fault(Fault {
                    layer: LAYER,
                    code: u16::from_le_bytes(*code),
                    text: printable(text),
                })
            }),
            _ => None,
        };
        parsed.ok_or_else(|| {
            let kind = bytes.first().copied().unwrap_or(0);
            let len = bytes.len();
            let text = format!("a message of kind {kind} and {len} bytes is unknown");
            fault(codes::MESSAGE, text)
        })
    }
}

fn accept(bytes: &[u8]) -> Option<Message> {
    let (regions, bytes) = bytes.split_first_chunk()?;
    Some(Message::Accept {
        parameters: ConnectionParameters::parse(bytes)?,
        regions: u32::from_le_bytes(*regions),
    })
}

fn region(bytes: &[u8]) -> Option<Message> {
    let (number, bytes) = bytes.split_first_chunk()?;
    Some(Message::Region {
        number: u32::from_le_bytes(*number),
        len: u64::from_le_bytes(bytes.try_into().ok()?),
    })
}

/// A peer's text without control characters, for the log.
fn printable(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text.get(..TEXT).unwrap_or(text));
    let shown = |letter: char| if letter.is_control() { '?' } else { letter };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters() -> ConnectionParameters {
        ConnectionParameters {
            reads_in: 7,
            reads_out: u32::MAX,
            private_data: PrivateData::new(&[9; 196]).unwrap(),
        }
    }

    fn request(sought: &str) -> Request {
        Request {
            ring: 4096,
            grants: 2048,
            sought: sought.parse().unwrap(),
            parameters: parameters(),
        }
    }

    #[test]
    fn messages_round_trip() {
        let messages = [
            Message::Accept {
                parameters: parameters(),
                regions: 16,
            },
            Message::Region {
                number: 3,
                len: 1 << 40,
            },
            Message::Reject(PrivateData::new(b"no").unwrap()),
            Message::Reject(PrivateData::empty()),
            Message::Wake,
            Message::Bye,
            Message::Probe,
            Message::Fault(fault(0x1234, "so it is")),
        ];
        for message in messages {
            let bytes = message.to_bytes();
            assert!(bytes.len() < ROOM);
            assert_eq!(Message::parse(&bytes), Ok(message));
        }
        for sought in ["10.1.2.3", "fd00::1"] {
            let request = request(sought);
            let bytes = request.to_bytes();
            assert!(bytes.len() < ROOM);
            assert_eq!(Request::parse(&bytes), Some(request));
        }
    }

    #[test]
    fn invalid_message_is_a_fault() {
        let long = [&[REJECT][..], &[0; 197]].concat();
        for bytes in [
            &[][..],
            &[0],
            &[9],
            &[REGION; 12],
            &[REGION; 14],
            &[PROBE, 0],
            &[WAKE, 0],
            &[BYE, 0],
            &[FAULT, 0],
            &[ACCEPT; 12],
            &long,
        ] {
            let refused = Message::parse(bytes).unwrap_err();
            assert_eq!(refused.code, codes::MESSAGE);
        }
        let whole = request("::1").to_bytes();
        for len in 0..44 {
            assert_eq!(Request::parse(&whole[..len]), None, "{len}");
        }
        assert_eq!(Request::parse(&[&whole[..], &[0]].concat()), None);
        assert_eq!(
            Request::parse(&[b"\x01nvmshm1", &whole[8..]].concat()),
            None
        );
    }

    #[test]
    fn fault_text_is_bounded_and_printable() {
        let text = "é".repeat(150) + "\x1b[2J\n";
        let message = Message::Fault(fault(1, text));
        let Ok(Message::Fault(parsed)) = Message::parse(&message.to_bytes()) else {
            panic!("a fault")
        };
        assert_eq!(parsed.text, "é".repeat(100));
        let escape = [&[FAULT, 0, 0][..], b"\x1b[2J\n\xff"].concat();
        let Ok(Message::Fault(parsed)) = Message::parse(&escape) else {
            panic!("a fault")
        };
        assert_eq!(parsed.text, "?[2J?\u{fffd}");
    }
}
