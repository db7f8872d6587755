//! The side that asks, and measures.

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::inbox::Inbox;
use super::outbox::Outbox;
use super::{Shape, Spins, broken, places, prepare};
use crate::tally::Tally;

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Where the other side listens.
    pub addr: SocketAddr,
    /// What is exchanged.
    pub shape: Shape,
    /// How long.
    pub runtime: Duration,
}

/// Measures for as long as said; what is in flight then still counts.
///
/// # Errors
/// When there is no connection, or it breaks.
pub fn ask(ask: &Ask) -> io::Result<Value> {
    let shape = ask.shape;
    let mut stream = TcpStream::connect(ask.addr)?;
    stream.write_all(&shape.to_hello())?;
    prepare(&stream, shape.block)?;
    let mut places = places(&shape);
    let mut outbox = Outbox::new(shape.request(), shape.depth);
    let mut inbox = Inbox::new(shape.answer(), shape.depth);
    let mut begun = vec![Duration::ZERO; usize::from(shape.depth)];
    let mut idle: Vec<u16> = (0..shape.depth).collect();
    let mut tally = Tally::default();
    let mut spins = Spins::default();
    let start = Instant::now();
    let mut now = Duration::ZERO;
    let mut ended = false;
    loop {
        if now < ask.runtime {
            for slot in idle.drain(..) {
                outbox.push(slot);
                if let Some(begun) = begun.get_mut(usize::from(slot)) {
                    *begun = now;
                }
            }
        } else if idle.len() == begun.len() {
            break;
        }
        let sent = outbox.flush(&stream, &places)?;
        let came = inbox.fill(&stream, &mut places, &mut ended)?;
        if ended {
            return Err(broken("the other side closed the connection"));
        }
        now = start.elapsed();
        for slot in inbox.whole.drain(..) {
            let begun = begun.get(usize::from(slot)).copied().unwrap_or(now);
            tally.record(now.saturating_sub(begun));
            idle.push(slot);
        }
        spins.turn(sent || came);
    }
    Ok(tally.report(shape.bytes, now))
}
