//! The Commands Supported and Effects log page, 05h (NVMe Base 2.0, figure 210).

use core::mem::offset_of;

use bitflags::bitflags;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::opcode::Opcode;

/// Length in bytes of the page.
pub const EFFECTS_LEN: usize = 4096;

bitflags! {
    /// Effects of a command. Bits 18:16 restrict what may run at the same time: 0 is no
    /// restriction.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Effects: u32 {
        /// The command is supported.
        const CSUPP = 1 << 0;
        /// Logical block content may change.
        const LBCC = 1 << 1;
        /// Capabilities of a namespace may change.
        const NCC = 1 << 2;
        /// The inventory of namespaces may change.
        const NIC = 1 << 3;
        /// Capabilities of the controller may change.
        const CCC = 1 << 4;
        /// Submission and execution: alone in its namespace (001b).
        const CSE_NAMESPACE = 0b001 << 16;
        /// Submission and execution: alone in all namespaces (010b).
        const CSE_ALL = 0b010 << 16;
        /// A UUID can be selected.
        const USS = 1 << 19;
    }
}

/// The page: an entry for each opcode.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CommandEffects {
    acs: [U32; 256],
    iocs: [U32; 256],
    rsvd2048: [u8; 2048],
}

const _: () = {
    assert!(size_of::<CommandEffects>() == EFFECTS_LEN);
    assert!(offset_of!(CommandEffects, iocs) == 1024);
    assert!(offset_of!(CommandEffects, rsvd2048) == 2048);
};

impl CommandEffects {
    /// A page without any supported command.
    #[must_use]
    pub fn zeroed() -> Self {
        Self::new_zeroed()
    }

    /// Reports an admin command as supported, with `effects`.
    pub fn set_admin(&mut self, opcode: Opcode, effects: Effects) {
        set(&mut self.acs, opcode, effects);
    }

    /// Reports an I/O command as supported, with `effects`.
    pub fn set_io(&mut self, opcode: Opcode, effects: Effects) {
        set(&mut self.iocs, opcode, effects);
    }

    /// Effects of an admin command; `None` if it is not supported.
    #[must_use]
    pub fn admin(&self, opcode: Opcode) -> Option<Effects> {
        get(&self.acs, opcode)
    }

    /// Effects of an I/O command; `None` if it is not supported.
    #[must_use]
    pub fn io(&self, opcode: Opcode) -> Option<Effects> {
        get(&self.iocs, opcode)
    }
}

fn set(entries: &mut [U32; 256], opcode: Opcode, effects: Effects) {
    if let Some(entry) = entries.get_mut(usize::from(opcode.0)) {
        entry.set((effects | Effects::CSUPP).bits());
    }
}

fn get(entries: &[U32; 256], opcode: Opcode) -> Option<Effects> {
    let entry = entries.get(usize::from(opcode.0))?;
    Some(Effects::from_bits_retain(entry.get())).filter(|found| found.contains(Effects::CSUPP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_page() {
        let mut page = CommandEffects::zeroed();
        page.set_admin(Opcode(0x06), Effects::empty());
        page.set_io(Opcode(0x01), Effects::LBCC);
        let bytes = page.as_bytes();
        assert_eq!(bytes[24..28], [1, 0, 0, 0]);
        assert_eq!(bytes[1028..1032], [3, 0, 0, 0]);
        assert_eq!(page.io(Opcode(0x01)), Some(Effects::CSUPP | Effects::LBCC));
        assert_eq!(page.admin(Opcode(0x06)), Some(Effects::CSUPP));
        assert_eq!(page.admin(Opcode(0x01)), None);
        assert_eq!(page.io(Opcode(0xff)), None);
    }
}
