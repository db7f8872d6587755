//! Opcodes: numbers with names.

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Opcode of a command. Its meaning depends on the queue: see [`admin`] and [`io`].
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(transparent)]
pub struct Opcode(pub u8);

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opcode({:#04x})", self.0)
    }
}

/// Fabrics commands, on admin and I/O queues alike (Base 2.0, 3.1.2.2).
pub const FABRICS: Opcode = Opcode(0x7f);

/// Direction of data transfer: bits 1:0 of an opcode or Fabrics command type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// No data.
    None,
    /// From host to controller.
    ToController,
    /// From controller to host.
    ToHost,
    /// Both, which no command of ours does.
    Both,
}

impl Direction {
    /// From the two low bits of `number`.
    #[must_use]
    pub fn of(number: u8) -> Self {
        match number & 0x3 {
            0 => Self::None,
            1 => Self::ToController,
            2 => Self::ToHost,
            _ => Self::Both,
        }
    }
}

macro_rules! opcodes {
    ($(#[$doc:meta])* $module:ident { $($name:ident = $value:literal, $words:literal;)* }) => {
        $(#[$doc])*
        pub mod $module {
            use super::Opcode;
            $(
                #[doc = $words]
                pub const $name: Opcode = Opcode($value);
            )*

            /// The opcodes of this set.
            pub const ALL: &[Opcode] = &[$($name),*];

            /// The name of an opcode of this set, as in the specification.
            #[must_use]
            pub fn name(opcode: Opcode) -> &'static str {
                match opcode {
                    $($name => $words,)*
                    super::FABRICS => "Fabrics",
                    _ => "unknown",
                }
            }
        }
    };
}

opcodes! {
    /// Admin commands (Base 2.0, figure 138).
    admin {
        GET_LOG_PAGE = 0x02, "Get Log Page";
        IDENTIFY = 0x06, "Identify";
        ABORT = 0x08, "Abort";
        SET_FEATURES = 0x09, "Set Features";
        GET_FEATURES = 0x0a, "Get Features";
        ASYNC_EVENT_REQUEST = 0x0c, "Asynchronous Event Request";
        KEEP_ALIVE = 0x18, "Keep Alive";
        CROSS_CONTROLLER_RESET = 0x38, "Cross-Controller Reset";
    }
}

opcodes! {
    /// I/O commands of the NVM command set (NVM 1.0, figure 13).
    io {
        FLUSH = 0x00, "Flush";
        WRITE = 0x01, "Write";
        READ = 0x02, "Read";
        WRITE_UNCORRECTABLE = 0x04, "Write Uncorrectable";
        COMPARE = 0x05, "Compare";
        WRITE_ZEROES = 0x08, "Write Zeroes";
        DATASET_MANAGEMENT = 0x09, "Dataset Management";
        VERIFY = 0x0c, "Verify";
        RESERVATION_REGISTER = 0x0d, "Reservation Register";
        RESERVATION_REPORT = 0x0e, "Reservation Report";
        RESERVATION_ACQUIRE = 0x11, "Reservation Acquire";
        RESERVATION_RELEASE = 0x15, "Reservation Release";
        COPY = 0x19, "Copy";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direction_is_in_the_low_bits() {
        assert_eq!(Direction::of(io::WRITE.0), Direction::ToController);
        assert_eq!(Direction::of(io::READ.0), Direction::ToHost);
        assert_eq!(Direction::of(io::FLUSH.0), Direction::None);
        assert_eq!(Direction::of(admin::IDENTIFY.0), Direction::ToHost);
        assert_eq!(
            (io::name(io::READ), admin::name(Opcode(0xee))),
            ("Read", "unknown")
        );
    }
}
