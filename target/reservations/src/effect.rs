//! What each I/O command does to the namespaces that it names, for the check of reservations.

use nvmeof_wire::opcode::{FABRICS, Opcode, io};

use crate::Access;

/// What an I/O command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It has this access to its namespace. The halves of a fused command are checked each.
    One(Access),
    /// It writes its namespace, and reads those of its source ranges.
    Copies,
    /// It is checked by its own rules: a reservation command, or none of a namespace.
    Exempt,
}

/// The effect of an I/O command. A command without one is denied while a reservation is held by
/// another host: whoever adds an opcode has to add a row here.
#[must_use]
pub fn effect_of(opcode: Opcode) -> Option<Effect> {
    Some(match opcode {
        io::READ | io::COMPARE | io::VERIFY => Effect::One(Access::Read),
        io::WRITE
        | io::WRITE_UNCORRECTABLE
        | io::WRITE_ZEROES
        | io::DATASET_MANAGEMENT
        | io::FLUSH => Effect::One(Access::Write),
        io::COPY => Effect::Copies,
        io::RESERVATION_REGISTER
        | io::RESERVATION_REPORT
        | io::RESERVATION_ACQUIRE
        | io::RESERVATION_RELEASE
        | FABRICS => Effect::Exempt,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_opcode_has_an_effect() {
        for opcode in io::ALL {
            assert!(effect_of(*opcode).is_some(), "{}", io::name(*opcode));
        }
        let known = (0..=u8::MAX).filter(|number| effect_of(Opcode(*number)).is_some());
        assert_eq!(known.count(), io::ALL.len() + 1);
    }
}
