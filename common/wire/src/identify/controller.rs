//! The Identify Controller structure, CNS 01h (NVMe Base 2.0, figure 275).

use core::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::IDENTIFY_LEN;
use super::capabilities::{Cmic, Ctratt, Fcattr, Fuses, Lpa, Oacs, Oaes, Ofcs, Oncs, Sgls, Vwc};
use crate::ascii::Ascii;

/// CNTRLTYPE: controller type.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(transparent)]
pub struct ControllerType(pub u8);

impl ControllerType {
    /// Not reported: a controller older than NVMe 1.4.
    pub const NOT_REPORTED: Self = Self(0);
    /// I/O controller.
    pub const IO: Self = Self(1);
    /// Discovery controller.
    pub const DISCOVERY: Self = Self(2);
    /// Administrative controller.
    pub const ADMIN: Self = Self(3);
}

/// A power state descriptor (NVMe Base 2.0, figure 276).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct PowerState {
    /// Maximum power in centiwatts, or in 0.0001 W with bit 0 of `flags`.
    pub mp: U16,
    #[doc(hidden)]
    pub rsvd2: u8,
    /// Bit 0 max power scale (MXPS), bit 1 non-operational state (NOPS).
    pub flags: u8,
    /// Entry latency in microseconds.
    pub enlat: U32,
    /// Exit latency in microseconds.
    pub exlat: U32,
    /// Relative read throughput, lower is better.
    pub rrt: u8,
    /// Relative read latency, lower is better.
    pub rrl: u8,
    /// Relative write throughput, lower is better.
    pub rwt: u8,
    /// Relative write latency, lower is better.
    pub rwl: u8,
    /// Idle power in units of `ips`.
    pub idlp: U16,
    /// Idle power scale in bits 7:6.
    pub ips: u8,
    #[doc(hidden)]
    pub rsvd19: u8,
    /// Active power in units of `apw`.
    pub actp: U16,
    /// Active power workload in bits 2:0, active power scale in bits 7:6.
    pub apw: u8,
    /// Emergency power fail recovery time (NVMe Base 2.2).
    pub epfrt: u8,
    /// Forced quiescence vault time.
    pub fqvt: u8,
    /// Emergency power fail vault time.
    pub epfvt: u8,
    /// Scale of `epfrt` in bits 3:0, of `fqvt` in bits 7:4.
    pub epfr_fqv_ts: u8,
    /// Scale of `epfvt` in bits 3:0.
    pub epfvts: u8,
    #[doc(hidden)]
    pub rsvd28: [u8; 4],
}

/// The Identify Controller structure. Fields have the names of the specification. Those
/// of newer versions are zero ("not reported") in older ones. Read bit groups with the
/// method of the same name, and write them as `Oacs::NMS.bits().into()`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct IdentifyController {
    /// PCI vendor identifier.
    pub vid: U16,
    /// PCI subsystem vendor identifier.
    pub ssvid: U16,
    /// Serial number.
    pub sn: Ascii<20>,
    /// Model number.
    pub mn: Ascii<40>,
    /// Firmware revision.
    pub fr: Ascii<8>,
    /// Recommended arbitration burst, 2^n commands.
    pub rab: u8,
    /// IEEE OUI identifier, least significant byte first.
    pub ieee: [u8; 3],
    /// Multi-path and sharing capabilities: [`Cmic`].
    pub cmic: u8,
    /// Maximum data transfer size, 2^n pages of CAP.MPSMIN; 0 is no limit.
    pub mdts: u8,
    /// Controller identifier.
    pub cntlid: U16,
    /// Version, as in the VS property.
    pub ver: U32,
    /// RTD3 resume latency in microseconds.
    pub rtd3r: U32,
    /// RTD3 entry latency in microseconds.
    pub rtd3e: U32,
    /// Optional asynchronous events supported: [`Oaes`].
    pub oaes: U32,
    /// Controller attributes: [`Ctratt`].
    pub ctratt: U32,
    /// Read recovery levels supported, one bit each.
    pub rrls: U16,
    /// Boot partition capabilities (NVMe Base 2.1).
    pub bpcap: u8,
    #[doc(hidden)]
    pub rsvd103: u8,
    /// NVM subsystem shutdown latency in microseconds (NVMe Base 2.1).
    pub nssl: U32,
    #[doc(hidden)]
    pub rsvd108: [u8; 2],
    /// Power loss signaling information (NVMe Base 2.1).
    pub plsi: u8,
    /// Controller type.
    pub cntrltype: ControllerType,
    /// FRU globally unique identifier, most significant byte first.
    pub fguid: [u8; 16],
    /// Command retry delay time 1, in units of 100 ms.
    pub crdt1: U16,
    /// Command retry delay time 2, in units of 100 ms.
    pub crdt2: U16,
    /// Command retry delay time 3, in units of 100 ms.
    pub crdt3: U16,
    /// Controller reachability capabilities (NVMe Base 2.1).
    pub crcap: u8,
    /// Controller instance uniquifier (NVMe Base 2.3); 0 is not reported.
    pub ciu: u8,
    /// Controller instance random number (NVMe Base 2.3).
    pub cirn: U64,
    #[doc(hidden)]
    pub rsvd144: [u8; 109],
    /// NVM subsystem report (NVMe Management Interface).
    pub nvmsr: u8,
    /// VPD write cycle information (NVMe Management Interface).
    pub vwci: u8,
    /// Management endpoint capabilities (NVMe Management Interface).
    pub mec: u8,
    /// Optional admin command support: [`Oacs`].
    pub oacs: U16,
    /// Abort command limit, 0's based.
    pub acl: u8,
    /// Asynchronous event request limit, 0's based.
    pub aerl: u8,
    /// Firmware updates: [`super::capabilities::Frmw`] and, in bits 3:1, slots.
    pub frmw: u8,
    /// Log page attributes: [`Lpa`].
    pub lpa: u8,
    /// Error log page entries, 0's based.
    pub elpe: u8,
    /// Number of power states, 0's based.
    pub npss: u8,
    /// Admin vendor specific command configuration.
    pub avscc: u8,
    /// Autonomous power state transition attributes.
    pub apsta: u8,
    /// Warning composite temperature threshold in kelvins.
    pub wctemp: U16,
    /// Critical composite temperature threshold in kelvins.
    pub cctemp: U16,
    /// Maximum time for firmware activation, in units of 100 ms.
    pub mtfa: U16,
    /// Host memory buffer preferred size, in units of 4 KiB.
    pub hmpre: U32,
    /// Host memory buffer minimum size, in units of 4 KiB.
    pub hmmin: U32,
    /// Total NVM capacity in bytes.
    pub tnvmcap: U128,
    /// Unallocated NVM capacity in bytes.
    pub unvmcap: U128,
    /// Replay protected memory block support.
    pub rpmbs: U32,
    /// Extended device self-test time in minutes.
    pub edstt: U16,
    /// Device self-test options.
    pub dsto: u8,
    /// Firmware update granularity, in units of 4 KiB; FFh is none.
    pub fwug: u8,
    /// Keep alive support: granularity of the timer in units of 100 ms; 0 is
    /// no support.
    pub kas: U16,
    /// Host controlled thermal management attributes.
    pub hctma: U16,
    /// Minimum thermal management temperature in kelvins.
    pub mntmt: U16,
    /// Maximum thermal management temperature in kelvins.
    pub mxtmt: U16,
    /// Sanitize capabilities.
    pub sanicap: U32,
    /// Host memory buffer minimum descriptor entry size, in units of 4 KiB.
    pub hmminds: U32,
    /// Host memory maximum descriptors entries.
    pub hmmaxd: U16,
    /// NVM set identifier maximum.
    pub nsetidmax: U16,
    /// Endurance group identifier maximum.
    pub endgidmax: U16,
    /// ANA transition time in seconds.
    pub anatt: u8,
    /// ANA capabilities: [`super::capabilities::Anacap`].
    pub anacap: u8,
    /// ANA group identifier maximum.
    pub anagrpmax: U32,
    /// Number of ANA group identifiers.
    pub nanagrpid: U32,
    /// Persistent event log size, in units of 64 KiB.
    pub pels: U32,
    /// Domain identifier.
    pub domainid: U16,
    /// Key per I/O capabilities (NVMe Base 2.1).
    pub kpioc: u8,
    #[doc(hidden)]
    pub rsvd359: u8,
    /// Maximum processing time for firmware activation without reset, in units
    /// of 100 ms (NVMe Base 2.1).
    pub mptfawr: U16,
    #[doc(hidden)]
    pub rsvd362: [u8; 6],
    /// Max endurance group capacity in bytes.
    pub megcap: U128,
    /// Temperature threshold hysteresis attributes (NVMe Base 2.1).
    pub tmpthha: u8,
    #[doc(hidden)]
    pub rsvd385: u8,
    /// Command quiesce time in milliseconds (NVMe Base 2.1).
    pub cqt: U16,
    #[doc(hidden)]
    pub rsvd388: [u8; 124],
    /// Submission queue entry size: [`entry_sizes`].
    pub sqes: u8,
    /// Completion queue entry size: [`entry_sizes`].
    pub cqes: u8,
    /// Maximum outstanding commands of an I/O queue.
    pub maxcmd: U16,
    /// Number of namespaces: the largest valid NSID.
    pub nn: U32,
    /// Optional NVM command support: [`Oncs`].
    pub oncs: U16,
    /// Fused operation support: [`Fuses`].
    pub fuses: U16,
    /// Format NVM attributes: [`super::capabilities::Fna`].
    pub fna: u8,
    /// Volatile write cache: [`Vwc`].
    pub vwc: u8,
    /// Atomic write unit normal in blocks, 0's based.
    pub awun: U16,
    /// Atomic write unit power fail in blocks, 0's based.
    pub awupf: U16,
    /// I/O command set vendor specific command configuration.
    pub icsvscc: u8,
    /// Namespace write protection capabilities: [`super::capabilities::Nwpc`].
    pub nwpc: u8,
    /// Atomic compare and write unit in blocks, 0's based.
    pub acwu: U16,
    /// Copy descriptor formats supported, one bit each.
    pub cdfs: U16,
    /// SGL support: [`Sgls`].
    pub sgls: U32,
    /// Maximum number of allowed namespaces; 0 says `nn`.
    pub mnan: U32,
    /// Maximum domain namespace attachments.
    pub maxdna: U128,
    /// Maximum I/O controller namespace attachments.
    pub maxcna: U32,
    /// Optimal aggregated queue depth (NVMe Base 2.1).
    pub oaqd: U32,
    /// Recommended host-initiated refresh interval (NVMe Base 2.2), days.
    pub rhiri: u8,
    /// Host-initiated refresh time, minutes.
    pub hirt: u8,
    /// Controller maximum memory range tracking descriptors.
    pub cmmrtd: U16,
    /// NVM subsystem maximum memory range tracking descriptors.
    pub nmmrtd: U16,
    /// Minimum memory range tracking granularity.
    pub minmrtg: u8,
    /// Maximum memory range tracking granularity.
    pub maxmrtg: u8,
    /// Tracking attributes.
    pub trattr: u8,
    #[doc(hidden)]
    pub rsvd577: u8,
    /// Maximum controller user data migration queues.
    pub mcudmq: U16,
    /// Maximum NVM subsystem user data migration queues.
    pub mnsudmq: U16,
    /// Maximum CDQ memory ranges.
    pub mcmr: U16,
    /// NVM subsystem maximum CDQ memory ranges.
    pub nmcmr: U16,
    /// Maximum controller data queue (CDQ) PRP count.
    pub mcdqpc: U16,
    #[doc(hidden)]
    pub rsvd588: [u8; 180],
    /// NVM subsystem NQN, UTF-8, null terminated.
    pub subnqn: [u8; 256],
    #[doc(hidden)]
    pub rsvd1024: [u8; 768],
    /// I/O queue command capsule supported size, in units of 16 bytes.
    pub ioccsz: U32,
    /// I/O queue response capsule supported size, in units of 16 bytes.
    pub iorcsz: U32,
    /// In-capsule data offset after the command, in units of 16 bytes.
    pub icdoff: U16,
    /// Fabrics controller attributes: [`Fcattr`].
    pub fcattr: u8,
    /// Maximum SGL data block descriptors of a command; 0 is no limit.
    pub msdbd: u8,
    /// Optional fabrics commands support: [`Ofcs`].
    pub ofcs: U16,
    /// Discovery controller type: 0 not reported, 1 direct, 2 central.
    pub dctype: u8,
    /// Cross-Controller Reset limit (NVMe Base 2.3): resets in progress at a time.
    pub ccrl: u8,
    #[doc(hidden)]
    pub rsvd1808: [u8; 240],
    /// Power state descriptors.
    pub psd: [PowerState; 32],
    /// Vendor specific.
    pub vs: [u8; 1024],
}

const _: () = {
    assert!(size_of::<PowerState>() == 32);
    assert!(offset_of!(PowerState, idlp) == 16);
    assert!(offset_of!(PowerState, actp) == 20);
    assert!(size_of::<IdentifyController>() == IDENTIFY_LEN);
    assert!(offset_of!(IdentifyController, sn) == 4);
    assert!(offset_of!(IdentifyController, mn) == 24);
    assert!(offset_of!(IdentifyController, fr) == 64);
    assert!(offset_of!(IdentifyController, cmic) == 76);
    assert!(offset_of!(IdentifyController, mdts) == 77);
    assert!(offset_of!(IdentifyController, cntlid) == 78);
    assert!(offset_of!(IdentifyController, ver) == 80);
    assert!(offset_of!(IdentifyController, oaes) == 92);
    assert!(offset_of!(IdentifyController, ctratt) == 96);
    assert!(offset_of!(IdentifyController, cntrltype) == 111);
    assert!(offset_of!(IdentifyController, fguid) == 112);
    assert!(offset_of!(IdentifyController, crdt1) == 128);
    assert!(offset_of!(IdentifyController, ciu) == 135);
    assert!(offset_of!(IdentifyController, cirn) == 136);
    assert!(offset_of!(IdentifyController, nvmsr) == 253);
    assert!(offset_of!(IdentifyController, oacs) == 256);
    assert!(offset_of!(IdentifyController, aerl) == 259);
    assert!(offset_of!(IdentifyController, lpa) == 261);
    assert!(offset_of!(IdentifyController, wctemp) == 266);
    assert!(offset_of!(IdentifyController, tnvmcap) == 280);
    assert!(offset_of!(IdentifyController, rpmbs) == 312);
    assert!(offset_of!(IdentifyController, kas) == 320);
    assert!(offset_of!(IdentifyController, sanicap) == 328);
    assert!(offset_of!(IdentifyController, anatt) == 342);
    assert!(offset_of!(IdentifyController, anagrpmax) == 344);
    assert!(offset_of!(IdentifyController, pels) == 352);
    assert!(offset_of!(IdentifyController, megcap) == 368);
    assert!(offset_of!(IdentifyController, cqt) == 386);
    assert!(offset_of!(IdentifyController, sqes) == 512);
    assert!(offset_of!(IdentifyController, maxcmd) == 514);
    assert!(offset_of!(IdentifyController, nn) == 516);
    assert!(offset_of!(IdentifyController, oncs) == 520);
    assert!(offset_of!(IdentifyController, vwc) == 525);
    assert!(offset_of!(IdentifyController, nwpc) == 531);
    assert!(offset_of!(IdentifyController, sgls) == 536);
    assert!(offset_of!(IdentifyController, mnan) == 540);
    assert!(offset_of!(IdentifyController, maxcna) == 560);
    assert!(offset_of!(IdentifyController, cmmrtd) == 570);
    assert!(offset_of!(IdentifyController, mcudmq) == 578);
    assert!(offset_of!(IdentifyController, mcdqpc) == 586);
    assert!(offset_of!(IdentifyController, subnqn) == 768);
    assert!(offset_of!(IdentifyController, ioccsz) == 1792);
    assert!(offset_of!(IdentifyController, iorcsz) == 1796);
    assert!(offset_of!(IdentifyController, icdoff) == 1800);
    assert!(offset_of!(IdentifyController, fcattr) == 1802);
    assert!(offset_of!(IdentifyController, msdbd) == 1803);
    assert!(offset_of!(IdentifyController, ofcs) == 1804);
    assert!(offset_of!(IdentifyController, ccrl) == 1807);
    assert!(offset_of!(IdentifyController, psd) == 2048);
    assert!(offset_of!(IdentifyController, vs) == 3072);
};

/// SQES or CQES: required (`min`) and maximum entry size, each a power of two.
#[must_use]
pub const fn entry_sizes(min: u8, max: u8) -> u8 {
    (max << 4) | (min & 0x0f)
}

impl IdentifyController {
    /// A structure of zeros, with the three text fields left to the caller.
    #[must_use]
    pub fn zeroed() -> Self {
        Self::new_zeroed()
    }

    /// Multi-path and sharing capabilities.
    #[must_use]
    pub fn cmic(&self) -> Cmic {
        Cmic::from_bits_retain(self.cmic)
    }

    /// Optional asynchronous events supported.
    #[must_use]
    pub fn oaes(&self) -> Oaes {
        Oaes::from_bits_retain(self.oaes.get())
    }

    /// Controller attributes.
    #[must_use]
    pub fn ctratt(&self) -> Ctratt {
        Ctratt::from_bits_retain(self.ctratt.get())
    }

    /// Optional admin command support.
    #[must_use]
    pub fn oacs(&self) -> Oacs {
        Oacs::from_bits_retain(self.oacs.get())
    }

    /// Log page attributes.
    #[must_use]
    pub fn lpa(&self) -> Lpa {
        Lpa::from_bits_retain(self.lpa)
    }

    /// Optional NVM command support.
    #[must_use]
    pub fn oncs(&self) -> Oncs {
        Oncs::from_bits_retain(self.oncs.get())
    }

    /// Fused operation support.
    #[must_use]
    pub fn fuses(&self) -> Fuses {
        Fuses::from_bits_retain(self.fuses.get())
    }

    /// Volatile write cache.
    #[must_use]
    pub fn vwc(&self) -> Vwc {
        Vwc::from_bits_retain(self.vwc)
    }

    /// SGL support.
    #[must_use]
    pub fn sgls(&self) -> Sgls {
        Sgls::from_bits_retain(self.sgls.get())
    }

    /// Fabrics controller attributes.
    #[must_use]
    pub fn fcattr(&self) -> Fcattr {
        Fcattr::from_bits_retain(self.fcattr)
    }

    /// Optional fabrics commands support.
    #[must_use]
    pub fn ofcs(&self) -> Ofcs {
        Ofcs::from_bits_retain(self.ofcs.get())
    }

    /// Maximum data transfer of a command in bytes, with pages of `min_page_len` bytes
    /// (from CAP.MPSMIN); `None` if there is no limit, or if it exceeds 64 bits.
    #[must_use]
    pub fn max_transfer_len(&self, min_page_len: u64) -> Option<u64> {
        if self.mdts == 0 {
            return None;
        }
        1u64.checked_shl(self.mdts.into())?
            .checked_mul(min_page_len)
    }

    /// Largest command capsule of an I/O queue in bytes, with in-capsule data.
    #[must_use]
    pub fn command_capsule_len(&self) -> u64 {
        u64::from(self.ioccsz.get()) * 16
    }

    /// Maximum in-capsule data of an I/O queue in bytes: the capsule without the command
    /// and the offset ICDOFF.
    #[must_use]
    pub fn in_capsule_data_len(&self) -> u64 {
        let before = 64 + u64::from(self.icdoff.get()) * 16;
        self.command_capsule_len().saturating_sub(before)
    }

    /// Number of Asynchronous Event Requests that may be outstanding.
    #[must_use]
    pub fn async_event_limit(&self) -> u16 {
        u16::from(self.aerl) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_fields_of_a_target() {
        let mut id = IdentifyController::zeroed();
        id.sn = Ascii::new("0123456789");
        id.cntlid = U16::new(0x0102);
        id.sgls = (Sgls::SUPPORTED | Sgls::KSDBDS | Sgls::OFFSET)
            .bits()
            .into();
        id.sqes = entry_sizes(6, 6);
        id.cqes = entry_sizes(4, 4);
        id.kas = U16::new(10);
        id.ioccsz = U32::new((64 + 8192) / 16);
        id.iorcsz = U32::new(1);
        id.msdbd = 1;
        id.ofcs = Ofcs::DCS.bits().into();
        let bytes = id.as_bytes();
        assert_eq!(bytes[4..24], *b"0123456789          ");
        assert_eq!(bytes[78..80], [2, 1]);
        assert_eq!(bytes[320..322], [10, 0]);
        assert_eq!(bytes[512..514], [0x66, 0x44]);
        assert_eq!(bytes[536..540], [0x05, 0, 0x10, 0]);
        assert_eq!(
            bytes[1792..1806],
            [0x04, 0x02, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0]
        );
        let back = IdentifyController::read_from_bytes(bytes).unwrap();
        assert!(back.sgls().contains(Sgls::KSDBDS | Sgls::OFFSET));
        assert_eq!(back.ofcs(), Ofcs::DCS);
        assert_eq!(back.in_capsule_data_len(), 8192);
    }

    #[test]
    fn limits_of_any_value_do_not_overflow() {
        let mut id = IdentifyController::zeroed();
        assert_eq!(id.max_transfer_len(4096), None);
        assert_eq!(id.in_capsule_data_len(), 0);
        for (mdts, len) in [
            (1, Some(8192)),
            (5, Some(131_072)),
            (52, None),
            (64, None),
            (255, None),
        ] {
            id.mdts = mdts;
            assert_eq!(id.max_transfer_len(4096), len, "{mdts}");
        }
        id.ioccsz = U32::new(u32::MAX);
        id.icdoff = U16::new(u16::MAX);
        assert!(id.in_capsule_data_len() < id.command_capsule_len());
        id.aerl = 255;
        assert_eq!(id.async_event_limit(), 256);
    }
}
