//! What two processes say to each other over a link: its bytes.

use std::net::SocketAddr;

use crate::ids::{CmMessage, Params};
use crate::memory::Remote;

/// A message between the two ends of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// The first message: a request for a connection.
    Connect(Connect),
    Cm(CmMessage),
    /// A request of a queue pair, and its number.
    Request(u64, Request),
    /// The answer to the request of this number, and of it alone.
    Answer(u64, Answer),
    /// A receive was posted after an answer [`Answer::NotReady`].
    Ready,
}

/// REQ of connection management.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Connect {
    pub(crate) to: SocketAddr,
    pub(crate) from: Option<SocketAddr>,
    pub(crate) iwarp: bool,
    /// As the receiver sees them.
    pub(crate) params: Params,
    pub(crate) private_data: Vec<u8>,
}

/// A request of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Send {
        data: Vec<u8>,
        invalidate: Option<u32>,
        solicited: bool,
    },
    Write {
        data: Vec<u8>,
        remote: Remote,
    },
    Read {
        remote: Remote,
        len: u64,
        /// Reads in flight before this one.
        reading: u32,
    },
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    /// Of a Read.
    Data(Vec<u8>),
    /// There is no receive. This request and all later ones were not executed.
    NotReady,
    /// With this status for the requester.
    Refused(u32),
}

/// The length of a message is in front of it.
pub(crate) const HEADER: usize = 4;
/// Longest message: the data of the longest Send or Write, and what describes them.
pub(crate) const LONGEST: usize = (1 << 30) + 1024;

/// A message that is written.
struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.u64(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    fn params(&mut self, params: Params) -> &mut Self {
        self.u8(params.reads_in)
            .u8(params.reads_out)
            .u8(params.rnr_retry)
    }

    fn remote(&mut self, remote: Remote) -> &mut Self {
        self.u64(remote.addr).u32(remote.key)
    }

    fn addr(&mut self, addr: Option<SocketAddr>) -> &mut Self {
        let text = addr.map(|addr| addr.to_string()).unwrap_or_default();
        self.bytes(text.as_bytes())
    }
}

impl Message {
    /// The message with its length in front.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut to = Writer(vec![0; HEADER]);
        match self {
            Self::Connect(connect) => {
                to.u8(0).addr(Some(connect.to)).addr(connect.from);
                to.u8(u8::from(connect.iwarp)).params(connect.params);
                to.bytes(&connect.private_data);
            }
            Self::Cm(message) => write_cm(to.u8(1), message),
            Self::Request(number, request) => write_request(to.u8(2).u64(*number), request),
            Self::Answer(number, answer) => write_answer(to.u8(3).u64(*number), answer),
            Self::Ready => {
                to.u8(4);
            }
        }
        let len = u32::try_from(to.0.len() - HEADER).unwrap_or(u32::MAX);
        to.0[..HEADER].copy_from_slice(&len.to_le_bytes());
        to.0
    }

    /// The message of these bytes, without its length. `None` if they are none.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(bytes);
        let message = match from.u8()? {
            0 => Self::Connect(Connect {
                to: from.addr()?,
                from: from.addr(),
                iwarp: from.u8()? != 0,
                params: from.params()?,
                private_data: from.bytes()?,
            }),
            1 => Self::Cm(from.cm()?),
            2 => Self::Request(from.u64()?, from.request()?),
            3 => Self::Answer(from.u64()?, from.answer()?),
            4 => Self::Ready,
            _ => return None,
        };
        from.0.is_empty().then_some(message)
    }
}

fn write_cm(to: &mut Writer, message: &CmMessage) {
    match message {
        CmMessage::Reply {
            params,
            private_data,
        } => to.u8(0).params(*params).bytes(private_data),
        CmMessage::ReadyToUse => to.u8(1),
        CmMessage::Reject {
            status,
            private_data,
        } => to.u8(2).u32(status.cast_unsigned()).bytes(private_data),
        CmMessage::Cancel => to.u8(3),
        CmMessage::DisconnectRequest => to.u8(4),
        CmMessage::DisconnectReply => to.u8(5),
        CmMessage::StreamEnd => to.u8(6),
    };
}

fn write_request(to: &mut Writer, request: &Request) {
    match request {
        Request::Send {
            data,
            invalidate,
            solicited,
        } => to
            .u8(0)
            .bytes(data)
            .u8(u8::from(invalidate.is_some()))
            .u32(invalidate.unwrap_or_default())
            .u8(u8::from(*solicited)),
        Request::Write { data, remote } => to.u8(1).bytes(data).remote(*remote),
        Request::Read {
            remote,
            len,
            reading,
        } => to.u8(2).remote(*remote).u64(*len).u32(*reading),
    };
}

fn write_answer(to: &mut Writer, answer: &Answer) {
    match answer {
        Answer::Done => to.u8(0),
        Answer::Data(data) => to.u8(1).bytes(data),
        Answer::NotReady => to.u8(2),
        Answer::Refused(status) => to.u8(3).u32(*status),
    };
}

/// A message that is read.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn u8(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn u32(&mut self) -> Option<u32> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*first))
    }

    fn u64(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*first))
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let len = usize::try_from(self.u64()?).ok()?;
        let (first, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(first.to_vec())
    }

    fn addr(&mut self) -> Option<SocketAddr> {
        String::from_utf8(self.bytes()?).ok()?.parse().ok()
    }

    fn params(&mut self) -> Option<Params> {
        Some(Params {
            reads_in: self.u8()?,
            reads_out: self.u8()?,
            rnr_retry: self.u8()?,
        })
    }

    fn remote(&mut self) -> Option<Remote> {
        Some(Remote {
            addr: self.u64()?,
            key: self.u32()?,
        })
    }

    fn cm(&mut self) -> Option<CmMessage> {
        Some(match self.u8()? {
            0 => CmMessage::Reply {
                params: self.params()?,
                private_data: self.bytes()?,
            },
            1 => CmMessage::ReadyToUse,
            2 => CmMessage::Reject {
                status: self.u32()?.cast_signed(),
                private_data: self.bytes()?,
            },
            3 => CmMessage::Cancel,
            4 => CmMessage::DisconnectRequest,
            5 => CmMessage::DisconnectReply,
            6 => CmMessage::StreamEnd,
            _ => return None,
        })
    }

    fn request(&mut self) -> Option<Request> {
        Some(match self.u8()? {
            0 => {
                let data = self.bytes()?;
                let (present, key) = (self.u8()? != 0, self.u32()?);
                Request::Send {
                    data,
                    invalidate: present.then_some(key),
                    solicited: self.u8()? != 0,
                }
            }
            1 => Request::Write {
                data: self.bytes()?,
                remote: self.remote()?,
            },
            2 => Request::Read {
                remote: self.remote()?,
                len: self.u64()?,
                reading: self.u32()?,
            },
            _ => return None,
        })
    }

    fn answer(&mut self) -> Option<Answer> {
        Some(match self.u8()? {
            0 => Answer::Done,
            1 => Answer::Data(self.bytes()?),
            2 => Answer::NotReady,
            3 => Answer::Refused(self.u32()?),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Message> {
        let params = Params {
            reads_in: 1,
            reads_out: 2,
            rnr_retry: 7,
        };
        let remote = Remote {
            addr: 1 << 40,
            key: 0x1234_5678,
        };
        let cm = [
            CmMessage::Reply {
                params,
                private_data: vec![1, 2],
            },
            CmMessage::ReadyToUse,
            CmMessage::Reject {
                status: -111,
                private_data: vec![3],
            },
            CmMessage::Cancel,
            CmMessage::DisconnectRequest,
            CmMessage::DisconnectReply,
            CmMessage::StreamEnd,
        ];
        let requests = [Some(5), None].map(|invalidate| Request::Send {
            data: vec![7; 300],
            invalidate,
            solicited: invalidate.is_none(),
        });
        let write = Request::Write {
            data: Vec::new(),
            remote,
        };
        let read = Request::Read {
            remote,
            len: 4096,
            reading: 3,
        };
        let answers = [
            Answer::Done,
            Answer::Data(vec![9; 5]),
            Answer::NotReady,
            Answer::Refused(10),
        ];
        let connects = [Some("10.77.0.2:40000".parse().unwrap()), None].map(|from| Connect {
            to: "[::1]:4420".parse().unwrap(),
            from,
            iwarp: from.is_none(),
            params,
            private_data: vec![0; 56],
        });
        let requests = requests.into_iter().chain([write, read]);
        let mut all = vec![Message::Ready];
        all.extend(connects.map(Message::Connect));
        all.extend(cm.map(Message::Cm));
        all.extend(requests.map(|request| Message::Request(u64::MAX, request)));
        all.extend(answers.map(|answer| Message::Answer(1, answer)));
        all
    }

    #[test]
    fn messages_are_read_as_written() {
        for message in all() {
            let bytes = message.to_bytes();
            let (header, body) = bytes.split_at(HEADER);
            assert_eq!(header, u32::try_from(body.len()).unwrap().to_le_bytes());
            assert_eq!(Message::parse(body), Some(message));
        }
    }

    #[test]
    fn other_bytes_are_no_message() {
        for message in all() {
            let bytes = message.to_bytes();
            let body = &bytes[HEADER..];
            for len in 0..body.len() {
                assert_eq!(Message::parse(&body[..len]), None, "{message:?}");
            }
            assert_eq!(Message::parse(&[body, &[0]].concat()), None, "{message:?}");
        }
    }
}
