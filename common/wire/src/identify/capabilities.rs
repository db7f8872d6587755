//! Bit groups of the Identify Controller structure (NVMe Base 2.0, figure 275;
//! names of NVMe Base 2.1, figure 312).

use bitflags::bitflags;

bitflags! {
    /// Controller Multi-Path I/O and Namespace Sharing Capabilities.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Cmic: u8 {
        /// The subsystem may have more than one port.
        const MPORTS = 1 << 0;
        /// The subsystem may have more than one controller.
        const MCTRS = 1 << 1;
        /// The controller belongs to an SR-IOV virtual function.
        const FT = 1 << 2;
        /// Asymmetric namespace access reporting is supported.
        const ANARS = 1 << 3;
    }

    /// Optional Asynchronous Events Supported. The bits are those of
    /// [`crate::features::AsyncEventConfig`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Oaes: u32 {
        /// Attached namespace attribute notices.
        const NSAN = 1 << 8;
        /// Firmware activation notices.
        const FAN = 1 << 9;
        /// Asymmetric namespace access change notices.
        const ANACN = 1 << 11;
        /// Predictable latency event aggregate log change notices.
        const PLEALCN = 1 << 12;
        /// LBA status information alert notices.
        const LSIAN = 1 << 13;
        /// Endurance group event aggregate log page change notices.
        const EGEALPCN = 1 << 14;
        /// Normal NVM subsystem shutdown.
        const NNSS = 1 << 15;
        /// Cross-Controller Reset completed notices (NVMe Base 2.3).
        const CCRCN = 1 << 20;
        /// Lost host communication notices (NVMe Base 2.3).
        const LHCN = 1 << 21;
        /// Zone descriptor changed notices.
        const ZDCN = 1 << 27;
        /// Discovery log page change notification.
        const DLPCN = 1 << 31;
    }

    /// Controller Attributes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Ctratt: u32 {
        /// 128-bit host identifier.
        const HIDS = 1 << 0;
        /// Non-operational power state permissive mode.
        const NOPSPM = 1 << 1;
        /// NVM sets.
        const NSETS = 1 << 2;
        /// Read recovery levels.
        const RRLVLS = 1 << 3;
        /// Endurance groups.
        const EGS = 1 << 4;
        /// Predictable latency mode.
        const PLM = 1 << 5;
        /// Traffic based keep alive: any command resets the timer.
        const TBKAS = 1 << 6;
        /// Namespace granularity.
        const NSG = 1 << 7;
        /// Submission queue associations.
        const SQA = 1 << 8;
        /// UUID list.
        const ULIST = 1 << 9;
        /// Multi-domain subsystem.
        const MDS = 1 << 10;
        /// Fixed capacity management.
        const FCM = 1 << 11;
        /// Variable capacity management.
        const VCM = 1 << 12;
        /// Delete endurance group.
        const DEG = 1 << 13;
        /// Delete NVM set.
        const DNVMS = 1 << 14;
        /// Extended LBA formats.
        const ELBAS = 1 << 15;
        /// MDTS and size limits exclude metadata (NVMe Base 2.1).
        const MEM = 1 << 16;
        /// Host memory buffer restricted to non-operational states (NVMe Base 2.1).
        const HMBR = 1 << 17;
        /// Reservations and host identifier interaction (NVMe Base 2.1).
        const RHII = 1 << 18;
        /// Flexible data placement (NVMe Base 2.1).
        const FDPS = 1 << 19;
    }

    /// Optional Admin Command Support.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Oacs: u16 {
        /// Security Send and Security Receive.
        const SSRS = 1 << 0;
        /// Format NVM.
        const FNVMS = 1 << 1;
        /// Firmware Commit and Firmware Image Download.
        const FWDS = 1 << 2;
        /// Namespace Management and Namespace Attachment.
        const NMS = 1 << 3;
        /// Device Self-test.
        const DSTS = 1 << 4;
        /// Directives.
        const DIRS = 1 << 5;
        /// NVMe-MI Send and NVMe-MI Receive.
        const NSRS = 1 << 6;
        /// Virtualization Management.
        const VMS = 1 << 7;
        /// Doorbell Buffer Config.
        const DBCS = 1 << 8;
        /// Get LBA Status.
        const GLSS = 1 << 9;
        /// Command and feature lockdown.
        const CFLS = 1 << 10;
    }

    /// Firmware Updates. Bits 3:1 are the number of slots.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Frmw: u8 {
        /// Slot 1 is read only.
        const FFSRO = 1 << 0;
        /// Activation without a reset.
        const FAWR = 1 << 4;
        /// Overlapping updates are detected.
        const SMUD = 1 << 5;
    }

    /// Log Page Attributes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Lpa: u8 {
        /// SMART / Health Information log page for each namespace.
        const SMARTS = 1 << 0;
        /// Commands Supported and Effects log page.
        const CSES = 1 << 1;
        /// Extended data of Get Log Page: 32-bit NUMD and the offset.
        const LPEDS = 1 << 2;
        /// Telemetry log pages and notices.
        const TS = 1 << 3;
        /// Persistent Event log page.
        const PES = 1 << 4;
        /// Supported Log Pages log page (00h) and the pages that describe
        /// the effects of features and management commands.
        const MLPS = 1 << 5;
        /// Data area 4 of telemetry.
        const DA4S = 1 << 6;
    }

    /// Asymmetric Namespace Access Capabilities.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Anacap: u8 {
        /// Reports the optimized state.
        const OPTIMIZED = 1 << 0;
        /// Reports the non-optimized state.
        const NON_OPTIMIZED = 1 << 1;
        /// Reports the inaccessible state.
        const INACCESSIBLE = 1 << 2;
        /// Reports the persistent loss state.
        const PERSISTENT_LOSS = 1 << 3;
        /// Reports the change state.
        const CHANGE = 1 << 4;
        /// ANAGRPID of an attached namespace does not change.
        const ANAGRPID_FIXED = 1 << 6;
        /// Namespace Management takes a non-zero ANAGRPID.
        const ANAGRPID_MANAGED = 1 << 7;
    }

    /// Optional NVM Command Support.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Oncs: u16 {
        /// Compare.
        const NVMCMPS = 1 << 0;
        /// Write Uncorrectable.
        const NVMWUSV = 1 << 1;
        /// Dataset Management.
        const NVMDSMSV = 1 << 2;
        /// Write Zeroes.
        const NVMWZSV = 1 << 3;
        /// Save field of Set Features and Select field of Get Features.
        const SSFS = 1 << 4;
        /// Reservations.
        const RESERVS = 1 << 5;
        /// Timestamp feature.
        const TSS = 1 << 6;
        /// Verify.
        const NVMVFYS = 1 << 7;
        /// Copy.
        const NVMCPYS = 1 << 8;
        /// Copy is one atomic write (NVMe Base 2.1).
        const NVMCSA = 1 << 9;
        /// All copies are fast copies (NVMe Base 2.1).
        const NVMAFC = 1 << 10;
        /// Write Zeroes with Deallocate has its own limit (NVMe Base 2.1).
        const MAXWZD = 1 << 11;
        /// Write Zeroes of a whole namespace (NVMe Base 2.1).
        const NSZS = 1 << 12;
    }

    /// Fused Operation Support.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Fuses: u16 {
        /// Compare and Write.
        const FCWS = 1 << 0;
    }

    /// Format NVM Attributes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Fna: u8 {
        /// Format concerns all namespaces.
        const FNS = 1 << 0;
        /// Secure erase concerns all namespaces.
        const SENS = 1 << 1;
        /// Cryptographic erase.
        const CRYES = 1 << 2;
        /// Format of NSID FFFFFFFFh is not supported.
        const FNVMBS = 1 << 3;
    }

    /// Volatile Write Cache.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Vwc: u8 {
        /// A volatile write cache is present.
        const VWCP = 1 << 0;
        /// Flush behaviour 10b: NSID FFFFFFFFh is not supported.
        const FLUSH_ALL_REFUSED = 0b10 << 1;
        /// Flush behaviour 11b: NSID FFFFFFFFh flushes all namespaces.
        const FLUSH_ALL = 0b11 << 1;
    }

    /// Namespace Write Protection Capabilities.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Nwpc: u8 {
        /// No Write Protect and Write Protect.
        const NWPWPS = 1 << 0;
        /// Write Protect Until Power Cycle.
        const WPUPCS = 1 << 1;
        /// Permanent Write Protect.
        const PWPS = 1 << 2;
    }

    /// SGL Support.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Sgls: u32 {
        /// SGLs are supported, without alignment or granularity.
        const SUPPORTED = 0b01;
        /// SGLs are supported for dword aligned data.
        const SUPPORTED_DWORD = 0b10;
        /// Keyed SGL data block descriptor. A host over RDMA needs it.
        const KSDBDS = 1 << 2;
        /// Bit bucket descriptor.
        const BBDS = 1 << 16;
        /// Byte aligned contiguous metadata buffer.
        const MBA = 1 << 17;
        /// An SGL longer than the data is allowed.
        const LENGTH_LARGER = 1 << 18;
        /// MPTR may hold an SGL descriptor.
        const MPTR_SGL = 1 << 19;
        /// The address field may be an offset: in-capsule data.
        const OFFSET = 1 << 20;
        /// Transport SGL data block descriptor.
        const TRANSPORT = 1 << 21;
    }

    /// Fabrics Controller Attributes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Fcattr: u8 {
        /// Static controller model. Clear: dynamic.
        const STATIC = 1 << 0;
    }

    /// Optional Fabrics Commands Support.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Ofcs: u16 {
        /// Disconnect.
        const DCS = 1 << 0;
    }
}

impl Vwc {
    /// Whether a Flush of NSID FFFFFFFFh flushes all namespaces; `None` if the controller
    /// is older than NVMe 1.4 and does not report it. The two values share a bit: do not
    /// test them with `contains`.
    #[must_use]
    pub fn flushes_all(self) -> Option<bool> {
        match self.intersection(Self::FLUSH_ALL) {
            Self::FLUSH_ALL => Some(true),
            Self::FLUSH_ALL_REFUSED => Some(false),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flush_behaviour_is_a_value_of_two_bits() {
        for (bits, expected) in [
            (0b001, None),
            (0b011, None),
            (0b101, Some(false)),
            (0b110, Some(true)),
            (0b111, Some(true)),
        ] {
            assert_eq!(
                Vwc::from_bits_retain(bits).flushes_all(),
                expected,
                "{bits:#b}"
            );
        }
    }
}
