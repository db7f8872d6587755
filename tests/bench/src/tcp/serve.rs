//! The target side.

use std::io::{self, Read as _};

use socket2::Socket;

use super::frame::HELLO;
use super::inbox::Inbox;
use super::outbox::Outbox;
use super::{Shape, places, prepare, report_copies};
use crate::asking::Spins;

/// Serves connections of a listener one after the other, up to a number or without end. An
/// error is printed and closes its connection.
///
/// # Errors
/// When connections cannot be accepted.
pub fn serve<S: Into<Socket>>(
    incoming: impl Iterator<Item = io::Result<S>>,
    connections: Option<usize>,
) -> io::Result<()> {
    for stream in incoming.take(connections.unwrap_or(usize::MAX)) {
        if let Err(error) = reply(stream?.into()) {
            eprintln!("yardstick: connection closed: {error}");
        }
    }
    Ok(())
}

fn reply(mut stream: Socket) -> io::Result<()> {
    let mut hello = [0; HELLO];
    stream.read_exact(&mut hello)?;
    let shape = Shape::of_hello(hello)?;
    prepare(&stream, &shape)?;
    let mut places = places(&shape);
    let mut outbox = Outbox::new(shape.reply(), shape.depth, shape.zerocopy);
    let mut inbox = Inbox::new(shape.request(), shape.depth);
    let mut spins = Spins::new(shape);
    let mut ended = false;
    while !ended {
        let came = inbox.fill(&stream, &mut places, &mut ended)?;
        for slot in inbox.whole.drain(..) {
            outbox.push(slot);
        }
        spins.spin(came | outbox.flush(&stream, &places)?);
    }
    report_copies(&outbox);
    Ok(())
}
