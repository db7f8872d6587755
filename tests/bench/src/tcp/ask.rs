//! The initiator side, which measures.

use std::io::{self, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nvmeof_initiator::Address;
use serde_json::Value;
use socket2::Socket;

use super::inbox::Inbox;
use super::outbox::Outbox;
use super::{Shape, broken, places, prepare, report_copies};
use crate::asking::{self, Medium};

/// A measurement.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Address of the other side.
    pub addr: Address,
    /// Size, depth and direction.
    pub shape: Shape,
    /// Run time.
    pub runtime: Duration,
}

/// Measures for the run time; operations in flight at its end count as well.
///
/// # Errors
/// When connecting fails, or the connection is lost.
pub fn ask(ask: &Ask) -> io::Result<Value> {
    let shape = ask.shape;
    let mut stream = connect(ask.addr)?;
    stream.write_all(&shape.to_hello())?;
    prepare(&stream, &shape)?;
    let mut medium = Tcp {
        stream,
        places: places(&shape),
        outbox: Outbox::new(shape.request(), shape.depth, shape.zerocopy),
        inbox: Inbox::new(shape.reply(), shape.depth),
    };
    let report = asking::measure(&mut medium, shape, ask.runtime)?;
    report_copies(&medium.outbox);
    Ok(report)
}

fn connect(addr: Address) -> io::Result<Socket> {
    match addr {
        Address::Ip(addr) => TcpStream::connect(addr).map(Socket::from),
        Address::Unix(path) => UnixStream::connect(path.as_path()).map(Socket::from),
    }
}

struct Tcp {
    stream: Socket,
    places: Vec<Vec<u8>>,
    outbox: Outbox,
    inbox: Inbox,
}

impl Medium for Tcp {
    fn push(&mut self, slot: u16) {
        self.outbox.push(slot);
    }

    fn poll_once(&mut self, whole: &mut Vec<u16>) -> io::Result<bool> {
        let mut ended = false;
        let sent = self.outbox.flush(&self.stream, &self.places)?;
        let came = self
            .inbox
            .fill(&self.stream, &mut self.places, &mut ended)?;
        if ended {
            return Err(broken("the other side closed the connection"));
        }
        whole.append(&mut self.inbox.whole);
        Ok(sent || came)
    }
}
