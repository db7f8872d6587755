//! The reservation commands while they are in progress.

use nvmeof_wire::Sqe;
use nvmeof_wire::opcode::io;
use nvmeof_wire::reservation::{KEYS_LEN, RELEASE_LEN, Register, Reserve};

/// A command that changes reservations.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReservationCommand {
    Register(Register),
    Acquire(Reserve),
    Release(Reserve),
}

/// A command that changes reservations, in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reserving {
    pub(crate) nsid: u32,
    /// The backing store of the namespace.
    pub(crate) store: u32,
    pub(crate) step: ReservingStep,
}

/// What it waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReservingStep {
    /// Its data.
    Data(ReservationCommand),
    /// The save. Afterwards for commands that began before: that `writes`, or `reads` as well.
    Save { reads: bool, writes: bool },
    /// These commands.
    Commands,
}

impl ReservationCommand {
    pub(crate) fn parse(sqe: &Sqe) -> Option<Self> {
        Some(match sqe.opcode {
            io::RESERVATION_REGISTER => Self::Register(Register::parse(sqe)),
            io::RESERVATION_ACQUIRE => Self::Acquire(Reserve::parse(sqe)),
            io::RESERVATION_RELEASE => Self::Release(Reserve::parse(sqe)),
            _ => return None,
        })
    }

    /// Length of its data in bytes.
    pub(crate) fn data_len(self) -> usize {
        match self {
            Self::Register(_) | Self::Acquire(_) => KEYS_LEN,
            Self::Release(_) => RELEASE_LEN,
        }
    }
}
