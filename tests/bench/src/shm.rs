//! Yardstick `shm`: upper bound of two processes that share memory.
//!
//! The initiator side creates the memory: a ring of commands of 64 bytes, a ring of
//! responses of 16 bytes, each with one writer and one reader, and a slot for the
//! payload of each operation in flight. The other side copies each payload once: for a
//! read from its own memory to that slot, for a write from the slot. It checks nothing
//! and never sleeps. The number of operations in flight keeps the rings from
//! overflowing.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nvmeof_memory::{OutOfBounds, Shared, receive_passed};
use serde_json::Value;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::asking::{self, Medium, Spins};
use crate::tcp::{Direction, HELLO, Shape};

const COMMAND: usize = 64;
const RESPONSE: usize = 16;
const PAGE: usize = 4096;
/// The counters of commands and responses, each on a cache line of its own.
const COMMANDS: usize = 0;
const RESPONSES: usize = 128;
/// Polls without progress after which the server checks the connection.
const LOOKS: u32 = 1 << 14;

/// A measurement.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The socket of the other side.
    pub path: PathBuf,
    /// Size, depth and direction.
    pub shape: Shape,
    /// Run time.
    pub runtime: Duration,
}

/// The shared memory, and the progress of this side.
struct Rings {
    memory: Shared,
    shape: Shape,
    commands: u64,
    responses: u64,
}

/// Measures for the run time; operations in flight at its end count as well.
///
/// # Errors
/// When nothing listens there, or memory is short.
pub fn ask(ask: &Ask) -> io::Result<Value> {
    let shape = ask.shape;
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
    socket.connect(&SockAddr::unix(&ask.path)?)?;
    let (memory, fd) = Shared::create(total(&shape)).map_err(io::Error::other)?;
    let mut rings = Rings::new(memory, shape);
    rings.touch()?;
    let (numbers, hello) = ([fd.as_raw_fd()], shape.to_hello());
    let control = [ControlMessage::ScmRights(&numbers)];
    let (pieces, flags) = ([IoSlice::new(&hello)], MsgFlags::MSG_NOSIGNAL);
    sendmsg::<()>(socket.as_raw_fd(), &pieces, &control, flags, None)?;
    asking::measure(&mut rings, shape, ask.runtime)
}

/// A socket at `path` for [`serve`]; replaces an existing file.
///
/// # Errors
/// Errors of the kernel.
pub fn listen(path: &Path) -> io::Result<Socket> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(1)?;
    Ok(socket)
}

/// Serves connections one after the other, up to a number or without end. An error is
/// printed and closes its connection.
///
/// # Errors
/// When connections cannot be accepted.
pub fn serve(listener: &Socket, connections: Option<usize>) -> io::Result<()> {
    for _ in 0..connections.unwrap_or(usize::MAX) {
        let (socket, _) = listener.accept()?;
        if let Err(error) = reply(&socket) {
            eprintln!("yardstick: connection closed: {error}");
        }
    }
    Ok(())
}

fn reply(socket: &Socket) -> io::Result<()> {
    let mut hello = [0; HELLO + 1];
    let fd = loop {
        match receive_passed(socket.as_fd(), &mut hello) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
            other => break other?.1,
        }
    };
    let fd = fd.ok_or_else(|| io::Error::other("the peer sent no shared memory"))?;
    let hello = hello.first_chunk().copied().unwrap_or_default();
    let shape = Shape::of_hello(hello)?;
    let memory = Shared::open(fd.as_fd(), total(&shape)).map_err(io::Error::other)?;
    let mut rings = Rings::new(memory, shape);
    let mut places = vec![vec![0xa5; bytes(&shape)]; usize::from(shape.depth)];
    socket.set_nonblocking(true)?;
    let mut spins = Spins::new(shape);
    let mut idle = 0u32;
    loop {
        let progress = rings.reply(&mut places)?;
        spins.spin(progress);
        idle = if progress { 0 } else { idle.wrapping_add(1) };
        let end = &mut [0; 1];
        // The other side sends nothing more: readable means closed.
        if idle.is_multiple_of(LOOKS) && idle > 0 && receive_passed(socket.as_fd(), end).is_ok() {
            return Ok(());
        }
    }
}

impl Rings {
    fn new(memory: Shared, shape: Shape) -> Self {
        Self {
            memory,
            shape,
            commands: 0,
            responses: 0,
        }
    }

    /// Touches every page of the slots before the measurement.
    fn touch(&self) -> io::Result<()> {
        for slot in 0..self.shape.depth {
            let filling = vec![0xa5; bytes(&self.shape)];
            let place = place(&self.shape, slot);
            self.memory.copy_in(place, &filling).map_err(outside)?;
        }
        Ok(())
    }

    fn count(&self, word: usize) -> io::Result<u64> {
        let word = self.memory.word(word).map_err(outside)?;
        Ok(word.load(Ordering::Acquire))
    }

    fn publish(&self, word: usize, count: u64) -> io::Result<()> {
        let word = self.memory.word(word).map_err(outside)?;
        word.store(count, Ordering::Release);
        Ok(())
    }

    /// Offset of entry `number` of a ring.
    fn entry(&self, ring: usize, len: usize, number: u64) -> usize {
        let at = number % u64::from(self.shape.depth).max(1);
        ring + usize::try_from(at).unwrap_or(0) * len
    }

    /// Completes all new commands. Returns whether there were any.
    fn reply(&mut self, places: &mut [Vec<u8>]) -> io::Result<bool> {
        let asked = self.count(COMMANDS)?;
        if asked == self.commands {
            return Ok(false);
        }
        while self.commands < asked {
            let mut command = [0; COMMAND];
            let at = self.entry(PAGE, COMMAND, self.commands);
            self.memory.copy_out(at, &mut command).map_err(outside)?;
            let [low, high, ..] = command;
            let slot = u16::from_le_bytes([low, high]);
            if let Some(own) = places.get_mut(usize::from(slot)) {
                let place = place(&self.shape, slot);
                let copied = match self.shape.direction {
                    Direction::Read => self.memory.copy_in(place, own),
                    Direction::Write => self.memory.copy_out(place, own),
                };
                copied.map_err(outside)?;
            }
            let mut response = [0; RESPONSE];
            response[..2].copy_from_slice(&[low, high]);
            let at = self.entry(responses(&self.shape), RESPONSE, self.responses);
            self.memory.copy_in(at, &response).map_err(outside)?;
            self.commands += 1;
            self.responses += 1;
        }
        self.publish(RESPONSES, self.responses)?;
        Ok(true)
    }
}

impl Medium for Rings {
    fn push(&mut self, slot: u16) {
        let mut command = [0; COMMAND];
        command[..2].copy_from_slice(&slot.to_le_bytes());
        let at = self.entry(PAGE, COMMAND, self.commands);
        // In bounds: the memory has this many slots.
        let _ = self.memory.copy_in(at, &command);
        self.commands += 1;
    }

    fn poll_once(&mut self, whole: &mut Vec<u16>) -> io::Result<bool> {
        self.publish(COMMANDS, self.commands)?;
        let answered = self.count(RESPONSES)?;
        let progress = answered != self.responses;
        while self.responses < answered {
            let mut response = [0; RESPONSE];
            let at = self.entry(responses(&self.shape), RESPONSE, self.responses);
            self.memory.copy_out(at, &mut response).map_err(outside)?;
            let [low, high, ..] = response;
            whole.push(u16::from_le_bytes([low, high]));
            self.responses += 1;
        }
        Ok(progress)
    }
}

#[allow(clippy::needless_pass_by_value, reason = "what `map_err` gives")]
fn outside(error: OutOfBounds) -> io::Error {
    io::Error::other(error)
}

fn bytes(shape: &Shape) -> usize {
    usize::try_from(shape.bytes).unwrap_or(0)
}

/// Offset of the responses.
fn responses(shape: &Shape) -> usize {
    PAGE + usize::from(shape.depth) * COMMAND
}

/// Offset of the payload of an operation.
fn place(shape: &Shape, slot: u16) -> usize {
    let first = responses(shape) + usize::from(shape.depth) * RESPONSE;
    first.next_multiple_of(PAGE) + usize::from(slot) * bytes(shape).next_multiple_of(PAGE)
}

fn total(shape: &Shape) -> usize {
    place(shape, shape.depth)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_completes() {
        let path = std::env::temp_dir().join(format!("bench-{}-shm.sock", std::process::id()));
        let listener = listen(&path).unwrap();
        let shapes = [(4096, 1), (4096, 128), (512, 16), (131_072, 32)];
        let count = shapes.len() * 2;
        let server = std::thread::spawn(move || serve(&listener, Some(count)).unwrap());
        for direction in [Direction::Read, Direction::Write] {
            for (bytes, depth) in shapes {
                let shape = Shape {
                    direction,
                    bytes,
                    depth,
                    block: depth == 1,
                    zerocopy: false,
                };
                let runtime = Duration::from_millis(50);
                let path = path.clone();
                let report = ask(&Ask {
                    path,
                    shape,
                    runtime,
                })
                .unwrap();
                assert_eq!(report["bs"], bytes);
                let count = report["operations"].as_u64().unwrap();
                assert!(count >= u64::from(depth), "{shape:?}: {count}");
            }
        }
        server.join().unwrap();
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn payloads_move() {
        let shape = |direction| Shape {
            direction,
            bytes: 5000,
            depth: 2,
            block: false,
            zerocopy: false,
        };
        for direction in [Direction::Read, Direction::Write] {
            let shape = shape(direction);
            let (ours, fd) = Shared::create(total(&shape)).unwrap();
            let theirs = Shared::open(fd.as_fd(), total(&shape)).unwrap();
            let (mut asks, mut answers) = (Rings::new(ours, shape), Rings::new(theirs, shape));
            let mut places = vec![vec![7; 5000], vec![8; 5000]];
            asks.memory.copy_in(place(&shape, 1), &[9; 5000]).unwrap();
            asks.push(1);
            let mut whole = Vec::new();
            assert!(!asks.poll_once(&mut whole).unwrap());
            assert!(answers.reply(&mut places).unwrap());
            assert!(asks.poll_once(&mut whole).unwrap());
            assert_eq!(whole, [1]);
            let mut there = vec![0; 5000];
            asks.memory.copy_out(place(&shape, 1), &mut there).unwrap();
            match direction {
                Direction::Read => assert_eq!(there, [8; 5000]),
                Direction::Write => assert_eq!(places, [[7; 5000], [9; 5000]]),
            }
        }
    }
}
