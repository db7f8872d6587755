//! Admin commands, parsed and built.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Sqe;
use crate::features::FeatureId;
use crate::number::numbers;
use crate::opcode::{Opcode, admin};

/// Namespace identifier that means all namespaces.
pub const NSID_ALL: u32 = 0xffff_ffff;

numbers! {
    /// What an Identify command requests: Controller or Namespace Structure.
    Cns {
        NAMESPACE = 0x00, "Identify Namespace";
        CONTROLLER = 0x01, "Identify Controller";
        ACTIVE_NAMESPACES = 0x02, "Active Namespace ID list";
        DESCRIPTORS = 0x03, "Namespace Identification Descriptor list";
        NVM_SETS = 0x04, "NVM Set List";
        CSI_NAMESPACE = 0x05, "I/O Command Set specific Identify Namespace";
        CSI_CONTROLLER = 0x06, "I/O Command Set specific Identify Controller";
        CSI_ACTIVE_NAMESPACES = 0x07, "I/O Command Set specific Active Namespace ID list";
        INDEPENDENT_NAMESPACE = 0x08, "I/O Command Set Independent Identify Namespace";
        ALLOCATED_NAMESPACES = 0x10, "Allocated Namespace ID list";
        ALLOCATED_NAMESPACE = 0x11, "Identify Namespace of an allocated namespace";
        ATTACHED_CONTROLLERS = 0x12, "list of controllers attached to a namespace";
        CONTROLLERS = 0x13, "Controller list of the NVM subsystem";
        PRIMARY_CONTROLLER = 0x14, "Primary Controller Capabilities";
        SECONDARY_CONTROLLERS = 0x15, "Secondary Controller list";
        CSI_ALLOCATED_NAMESPACES = 0x1a,
            "I/O Command Set specific Allocated Namespace ID list";
        CSI_ALLOCATED_NAMESPACE = 0x1b,
            "I/O Command Set specific Identify Namespace of an allocated namespace";
        COMMAND_SETS = 0x1c, "Identify I/O Command Set";
    }
}

numbers! {
    /// Log page identifier.
    LogId {
        SUPPORTED = 0x00, "Supported Log Pages";
        ERROR = 0x01, "Error Information";
        SMART = 0x02, "SMART / Health Information";
        FIRMWARE = 0x03, "Firmware Slot Information";
        CHANGED_NAMESPACES = 0x04, "Changed Namespace List";
        EFFECTS = 0x05, "Commands Supported and Effects";
        ANA = 0x0c, "Asymmetric Namespace Access";
        FEATURE_EFFECTS = 0x12, "Feature Identifiers Supported and Effects";
        CROSS_CONTROLLER_RESET = 0x1e, "Cross-Controller Reset";
        LOST_HOST_COMMUNICATION = 0x1f, "Lost Host Communication";
        DISCOVERY = 0x70, "Discovery";
        RESERVATION = 0x80, "Reservation Notification";
    }
}

/// Command set identifier of the NVM command set.
pub const CSI_NVM: u8 = 0;

/// An Identify command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identify {
    /// The data structure to return.
    pub cns: Cns,
    /// Controller identifier to start from.
    pub cntid: u16,
    /// Command set identifier.
    pub csi: u8,
    /// Namespace identifier.
    pub nsid: u32,
}

/// Length of every Identify data structure in bytes.
pub const IDENTIFY_LEN: u32 = 4096;

impl Identify {
    /// Requests `cns` of namespace `nsid`.
    #[must_use]
    pub fn new(cns: Cns, nsid: u32) -> Self {
        Self {
            cns,
            cntid: 0,
            csi: CSI_NVM,
            nsid,
        }
    }

    /// From an Identify command.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let [cns, _, c0, c1] = sqe.cdw10.to_bytes();
        let [_, _, _, csi] = sqe.cdw11.to_bytes();
        Self {
            cns: Cns(cns),
            cntid: u16::from_le_bytes([c0, c1]),
            csi,
            nsid: sqe.nsid.get(),
        }
    }

    /// Builds the command without data pointer and command identifier.
    #[must_use]
    pub fn to_sqe(self) -> Sqe {
        let mut sqe = Sqe::new(admin::IDENTIFY);
        let [c0, c1] = self.cntid.to_le_bytes();
        sqe.nsid = U32::new(self.nsid);
        sqe.cdw10 = U32::from_bytes([self.cns.0, 0, c0, c1]);
        sqe.cdw11 = U32::from_bytes([0, 0, 0, self.csi]);
        sqe
    }
}

/// A Get Log Page command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLogPage {
    /// The page.
    pub lid: LogId,
    /// Log specific parameter (LSP), 7 bits.
    pub lsp: u8,
    /// Retain asynchronous event (RAE).
    pub retain_event: bool,
    /// Number of bytes requested: NUMD plus one, in bytes.
    pub len: u64,
    /// Offset in bytes, or an index when `index_offset` is set.
    pub offset: u64,
    /// Offset type (OT): the offset is an index.
    pub index_offset: bool,
    /// Log specific identifier (LSI).
    pub lsi: u16,
    /// Command set identifier.
    pub csi: u8,
    /// Namespace identifier.
    pub nsid: u32,
}

impl GetLogPage {
    /// Requests `len` bytes of page `lid` from `offset`; `len` is rounded up to whole
    /// dwords, at least one.
    #[must_use]
    pub fn new(lid: LogId, nsid: u32, offset: u64, len: u32) -> Self {
        Self {
            lid,
            lsp: 0,
            retain_event: false,
            len: u64::from(len).next_multiple_of(4).max(4),
            offset,
            index_offset: false,
            lsi: 0,
            csi: CSI_NVM,
            nsid,
        }
    }

    /// From a Get Log Page command.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let [lid, lsp, l0, l1] = sqe.cdw10.to_bytes();
        let [u0, u1, i0, i1] = sqe.cdw11.to_bytes();
        let [_, _, ot, csi] = sqe.cdw14.to_bytes();
        let numd = u32::from_le_bytes([l0, l1, u0, u1]);
        Self {
            lid: LogId(lid),
            lsp: lsp & 0x7f,
            retain_event: lsp & 0x80 != 0,
            len: (u64::from(numd) + 1) * 4,
            offset: u64::from(sqe.cdw12.get()) | (u64::from(sqe.cdw13.get()) << 32),
            index_offset: ot & 0x80 != 0,
            lsi: u16::from_le_bytes([i0, i1]),
            csi,
            nsid: sqe.nsid.get(),
        }
    }

    /// Builds the command without data pointer and command identifier.
    #[must_use]
    pub fn to_sqe(self) -> Sqe {
        let mut sqe = Sqe::new(admin::GET_LOG_PAGE);
        let numd = (self.len / 4).saturating_sub(1);
        let numd = u32::try_from(numd).unwrap_or(u32::MAX);
        let [l0, l1, u0, u1] = numd.to_le_bytes();
        let [i0, i1] = self.lsi.to_le_bytes();
        let [a, b, c, d, e, f, g, h] = self.offset.to_le_bytes();
        let rae = u8::from(self.retain_event) << 7;
        sqe.nsid = U32::new(self.nsid);
        sqe.cdw10 = U32::from_bytes([self.lid.0, (self.lsp & 0x7f) | rae, l0, l1]);
        sqe.cdw11 = U32::from_bytes([u0, u1, i0, i1]);
        sqe.cdw12 = U32::from_bytes([a, b, c, d]);
        sqe.cdw13 = U32::from_bytes([e, f, g, h]);
        sqe.cdw14 = U32::from_bytes([0, 0, u8::from(self.index_offset) << 7, self.csi]);
        sqe
    }
}

/// The value of a feature that Get Features requests (SEL).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Select {
    /// Current.
    Current,
    /// Default.
    Default,
    /// Saved.
    Saved,
    /// Supported capabilities.
    Capabilities,
    /// Reserved.
    Reserved(u8),
}

impl Select {
    fn parse(bits: u8) -> Self {
        match bits & 0x7 {
            0 => Self::Current,
            1 => Self::Default,
            2 => Self::Saved,
            3 => Self::Capabilities,
            other => Self::Reserved(other),
        }
    }

    fn to_bits(self) -> u8 {
        match self {
            Self::Current => 0,
            Self::Default => 1,
            Self::Saved => 2,
            Self::Capabilities => 3,
            Self::Reserved(other) => other & 0x7,
        }
    }
}

/// A Get Features command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetFeatures {
    /// The feature.
    pub fid: FeatureId,
    /// The value.
    pub select: Select,
    /// Dword 11, whose meaning depends on the feature.
    pub cdw11: u32,
    /// Namespace identifier.
    pub nsid: u32,
}

impl GetFeatures {
    /// From a Get Features command.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let [fid, select, _, _] = sqe.cdw10.to_bytes();
        Self {
            fid: FeatureId(fid),
            select: Select::parse(select),
            cdw11: sqe.cdw11.get(),
            nsid: sqe.nsid.get(),
        }
    }

    /// Builds the command without data pointer and command identifier.
    #[must_use]
    pub fn to_sqe(self) -> Sqe {
        let mut sqe = Sqe::new(admin::GET_FEATURES);
        sqe.nsid = U32::new(self.nsid);
        sqe.cdw10 = U32::from_bytes([self.fid.0, self.select.to_bits(), 0, 0]);
        sqe.cdw11 = U32::new(self.cdw11);
        sqe
    }
}

/// A Set Features command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetFeatures {
    /// The feature.
    pub fid: FeatureId,
    /// Whether the value persists across resets (SV).
    pub save: bool,
    /// Dword 11, whose meaning depends on the feature.
    pub cdw11: u32,
    /// Dword 12, likewise.
    pub cdw12: u32,
    /// Namespace identifier.
    pub nsid: u32,
}

impl SetFeatures {
    /// Sets feature `fid` of the controller to `cdw11`.
    #[must_use]
    pub fn new(fid: FeatureId, cdw11: u32) -> Self {
        Self {
            fid,
            save: false,
            cdw11,
            cdw12: 0,
            nsid: 0,
        }
    }

    /// From a Set Features command.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let [fid, _, _, save] = sqe.cdw10.to_bytes();
        Self {
            fid: FeatureId(fid),
            save: save & 0x80 != 0,
            cdw11: sqe.cdw11.get(),
            cdw12: sqe.cdw12.get(),
            nsid: sqe.nsid.get(),
        }
    }

    /// Builds the command without data pointer and command identifier.
    #[must_use]
    pub fn to_sqe(self) -> Sqe {
        let mut sqe = Sqe::new(admin::SET_FEATURES);
        sqe.nsid = U32::new(self.nsid);
        sqe.cdw10 = U32::from_bytes([self.fid.0, 0, 0, u8::from(self.save) << 7]);
        sqe.cdw11 = U32::new(self.cdw11);
        sqe.cdw12 = U32::new(self.cdw12);
        sqe
    }
}

/// An Abort command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort {
    /// Submission queue of the command to abort.
    pub sqid: u16,
    /// Its command identifier.
    pub cid: u16,
}

impl Abort {
    /// From an Abort command.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let [s0, s1, c0, c1] = sqe.cdw10.to_bytes();
        Self {
            sqid: u16::from_le_bytes([s0, s1]),
            cid: u16::from_le_bytes([c0, c1]),
        }
    }

    /// Builds the command without command identifier.
    #[must_use]
    pub fn to_sqe(self) -> Sqe {
        let mut sqe = Sqe::new(admin::ABORT);
        let [s0, s1] = self.sqid.to_le_bytes();
        let [c0, c1] = self.cid.to_le_bytes();
        sqe.cdw10 = U32::from_bytes([s0, s1, c0, c1]);
        sqe
    }
}

/// A Cross-Controller Reset command (NVMe Base 2.3, 5.4.3): it names an incarnation of
/// another controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrossControllerReset {
    /// Identifier of the impacted controller (ICID).
    pub icid: u16,
    /// Its instance uniquifier (CIU).
    pub ciu: u8,
    /// Its instance random number (CIRN).
    pub cirn: u64,
}

impl CrossControllerReset {
    /// Dword 0 of the completion: Immediate Reset Successful. The bit is an assumption: the
    /// text of NVMe Base 2.3 was not available, and Linux's proposal uses this one.
    pub const IMMEDIATE: u32 = 1;

    /// From a Cross-Controller Reset command.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let [i0, i1, ciu, _] = sqe.cdw10.to_bytes();
        Self {
            icid: u16::from_le_bytes([i0, i1]),
            ciu,
            cirn: u64::from(sqe.cdw12.get()) | (u64::from(sqe.cdw13.get()) << 32),
        }
    }

    /// The command; its identifier is the caller's.
    #[must_use]
    pub fn to_sqe(self) -> Sqe {
        let mut sqe = Sqe::new(admin::CROSS_CONTROLLER_RESET);
        let [i0, i1] = self.icid.to_le_bytes();
        let [a, b, c, d, e, f, g, h] = self.cirn.to_le_bytes();
        sqe.cdw10 = U32::from_bytes([i0, i1, self.ciu, 0]);
        sqe.cdw12 = U32::from_bytes([a, b, c, d]);
        sqe.cdw13 = U32::from_bytes([e, f, g, h]);
        sqe
    }
}

/// A command without parameters: Keep Alive, Asynchronous Event Request.
#[must_use]
pub fn bare(opcode: Opcode) -> Sqe {
    Sqe::new(opcode)
}

/// Sets the command identifier.
#[must_use]
pub fn with_cid(mut sqe: Sqe, cid: u16) -> Sqe {
    sqe.cid = U16::new(cid);
    sqe
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_get_log_page() {
        let mut log = GetLogPage::new(LogId::DISCOVERY, 0, 0x1_0000_0400, 0x2_0004);
        log.retain_event = true;
        let sqe = log.to_sqe();
        assert_eq!(sqe.cdw10.get(), 0x8000_8070);
        assert_eq!(
            (sqe.cdw11.get(), sqe.cdw12.get(), sqe.cdw13.get()),
            (0, 0x400, 1)
        );
        assert_eq!(GetLogPage::parse(&sqe), log);
        assert_eq!(GetLogPage::new(LogId::SMART, NSID_ALL, 0, 0).len, 4);
        // Base 2.0, figure 199: OT is bit 23, CSI above it.
        log.index_offset = true;
        log.csi = 2;
        assert_eq!(log.to_sqe().cdw14.get(), 0x0280_0000);
        // The maximum: NUMD FFFFFFFFh.
        log.len = 1 << 34;
        assert_eq!(GetLogPage::parse(&log.to_sqe()), log);
    }

    /// NVMe Base 2.3, figure 522.
    #[test]
    fn golden_cross_controller_reset() {
        let reset = CrossControllerReset {
            icid: 0x0102,
            ciu: 3,
            cirn: 0x1112_1314_1516_1718,
        };
        let sqe = reset.to_sqe();
        assert_eq!(sqe.opcode.0, 0x38);
        let dwords = [sqe.cdw10, sqe.cdw11, sqe.cdw12, sqe.cdw13].map(U32::get);
        assert_eq!(dwords, [0x0003_0102, 0, 0x1516_1718, 0x1112_1314]);
    }

    proptest! {
        #[test]
        fn parsed_values_round_trip(bytes: [[u8; 32]; 2]) {
            let bytes: [u8; 64] = zerocopy::transmute!(bytes);
            let sqe = Sqe::from_capsule(&bytes).unwrap();
            let identify = Identify::parse(&sqe);
            prop_assert_eq!(Identify::parse(&identify.to_sqe()), identify);
            let log = GetLogPage::parse(&sqe);
            prop_assert_eq!(GetLogPage::parse(&log.to_sqe()), log);
            let get = GetFeatures::parse(&sqe);
            prop_assert_eq!(GetFeatures::parse(&get.to_sqe()), get);
            let set = SetFeatures::parse(&sqe);
            prop_assert_eq!(SetFeatures::parse(&set.to_sqe()), set);
            let abort = Abort::parse(&sqe);
            prop_assert_eq!(Abort::parse(&abort.to_sqe()), abort);
            let reset = CrossControllerReset::parse(&sqe);
            prop_assert_eq!(CrossControllerReset::parse(&reset.to_sqe()), reset);
        }
    }
}
