//! The CC and CSTS properties: enable, reset, shutdown.
//!
//! ```text
//!              CC.EN 0→1, valid                  CC.SHN ≠ 0
//!  Disabled ───────────────────► Ready ───────────────────► ShutDown
//!   ▲  ▲  │                        │                           │
//!   │  │  └─ CC.EN 0→1, invalid ─► │ Fatal (CSTS.CFS)          │
//!   │  └─ CC.EN 1→0 ───────────────┴─────────┘                 │
//!   └─ CC.EN 1→0 ──────────────────────────────────────────────┘
//! ```

use nvmeof_wire::registers::{Cap, Cc, Csts, Shutdown};

/// CC and CSTS of a controller.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Registers {
    cc: Cc,
    csts: Csts,
}

/// How long a host waits until the controller is ready, in milliseconds. It is ready
/// immediately; the time covers a busy machine.
const READY_MS: u32 = 10_000;

/// The CAP property. CRMS.CRWMS "shall be set to '1' on controllers compliant with
/// NVM Express Base Specification, Revision 2.0 and later" (Base 2.1, 3.1.4).
/// CAP.MQES is that of a queue with `entries`. CAP.CSS: an I/O controller supports the NVM
/// command set (NCSS) and Identify with CNS 1Ch (IOCSS): "Controllers that only support the
/// NVM Command Set may set this bit to '1'".
pub(crate) fn cap(entries: u16, discovery: bool) -> Cap {
    let css = match discovery {
        true => Cap::CSS_NVM,
        false => Cap::CSS_NVM | Cap::CSS_IOCS,
    };
    Cap::new(entries, READY_MS, css).ready_with_media()
}

/// The CRTO property: the time of CAP.TO, in units of 500 ms (CRWMT).
pub(crate) const CRTO: u32 = READY_MS / 500;

impl Registers {
    pub(crate) fn cc(&self) -> Cc {
        self.cc
    }

    pub(crate) fn csts(&self) -> Csts {
        self.csts
    }

    /// Whether CC.EN is set.
    pub(crate) fn is_enabled(&self) -> bool {
        self.cc.enabled()
    }

    /// Whether commands are served.
    pub(crate) fn is_serving(&self) -> bool {
        self.csts == Csts::RDY
    }

    /// A fatal error, from which only a reset recovers.
    pub(crate) fn fatal(&mut self) {
        self.csts |= Csts::CFS;
    }

    /// Whether writing `cc` starts a normal shutdown, for which data must be
    /// made stable first.
    pub(crate) fn starts_shutdown(&self, cc: u32) -> bool {
        Cc(cc).shutdown() == Shutdown::Normal && !self.csts.contains(Csts::SHST_COMPLETE)
    }

    /// Property Set of CC.
    pub(crate) fn write_cc(&mut self, cc: u32, discovery: bool) {
        let was_enabled = self.cc.enabled();
        self.cc = Cc(cc);
        match (was_enabled, self.cc.enabled()) {
            (false, true) if is_valid(self.cc, discovery) => self.csts = Csts::RDY,
            (false, true) => self.csts = Csts::CFS,
            (true, false) => self.csts = Csts::empty(),
            (true, true) | (false, false) => {}
        }
        // Base 2.1, 3.6: the shutdown status is complete after the shutdown; the stores
        // have been flushed before.
        if matches!(self.cc.shutdown(), Shutdown::Normal | Shutdown::Abrupt) {
            self.csts |= Csts::SHST_COMPLETE;
        }
    }
}

/// Whether the controller can run with this configuration.
fn is_valid(cc: Cc, discovery: bool) -> bool {
    // CAP.MPSMIN and MPSMAX are 4 KiB, CAP.AMS is round robin.
    let common = cc.page_shift() == 12 && cc.ams() == 0;
    // Controller Configuration (CC), CSS: with CAP.CSS.NCSS set "the NVM Command Set", with
    // IOCSS "All Supported I/O Command Sets"; 111b is of controllers without any
    // (CAP.CSS.NOIOCSS).
    let command_sets = cc.css() == Cc::CSS_NVM || (cc.css() == Cc::CSS_ALL && !discovery);
    // Controller Configuration (CC): IOSQES and IOCQES do not apply to a controller without
    // I/O queues.
    let sizes = (cc.iosqes(), cc.iocqes()) == (6, 4);
    common && command_sets && (sizes || discovery)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON: u32 = Cc::ENABLE.0;

    /// Each row: CC written one after the other, CSTS at the end.
    #[test]
    fn csts_follows_cc() {
        let rows: [(&[u32], Csts); 16] = [
            (&[0], Csts::empty()),
            (&[ON], Csts::RDY),
            (&[ON, ON], Csts::RDY),
            (&[ON, 0], Csts::empty()),
            (&[ON, ON | 1 << 14], Csts::RDY.union(Csts::SHST_COMPLETE)),
            (&[ON, ON | 2 << 14], Csts::RDY.union(Csts::SHST_COMPLETE)),
            (&[ON, ON | 3 << 14], Csts::RDY),
            (&[ON, ON | 1 << 14, 0], Csts::empty()),
            (&[ON, ON | 1 << 14, 0, ON], Csts::RDY),
            (&[1], Csts::CFS),
            // All supported command sets, a reserved value, the admin command set only.
            (&[ON | 6 << 4], Csts::RDY),
            (&[ON | 1 << 4], Csts::CFS),
            (&[ON | 5 << 4], Csts::CFS),
            (&[ON | 7 << 4], Csts::CFS),
            (&[ON | 1 << 7], Csts::CFS),
            (&[ON | 1 << 11, 0, ON], Csts::RDY),
        ];
        for (writes, expected) in rows {
            let mut registers = Registers::default();
            for cc in writes {
                registers.write_cc(*cc, false);
            }
            assert_eq!(registers.csts(), expected, "{writes:x?}");
        }
    }

    #[test]
    fn a_discovery_controller_has_no_io_entry_sizes() {
        let mut registers = Registers::default();
        registers.write_cc(1, true);
        assert!(registers.is_serving());
        assert_eq!(cap(128, true).css(), Cap::CSS_NVM);
        registers.write_cc(0, true);
        registers.write_cc(1 | 6 << 4, true);
        assert!(!registers.is_serving(), "CAP.CSS does not offer that");
    }

    #[test]
    fn only_a_first_normal_shutdown_flushes() {
        let mut registers = Registers::default();
        registers.write_cc(ON, false);
        assert!(registers.starts_shutdown(ON | 1 << 14));
        assert!(!registers.starts_shutdown(ON | 2 << 14));
        registers.write_cc(ON | 1 << 14, false);
        assert!(!registers.starts_shutdown(ON | 1 << 14));
    }
}
