//! Properties of a device: its kind, its limits, and how it behaves.

/// Transport of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// InfiniBand semantics over Ethernet.
    Roce,
    /// RDMA over TCP.
    Iwarp,
}

/// Properties of a device. Every number can be changed by its name, see [`Profile::set`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Profile {
    pub(crate) transport: Transport,
    /// Whether the device has memory windows of type 2B.
    pub(crate) windows: bool,
    pub(crate) vendor_id: u32,
    pub(crate) max_qp: u32,
    pub(crate) max_qp_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
    pub(crate) max_cq: u32,
    pub(crate) max_cqe: u32,
    pub(crate) max_pd: u32,
    pub(crate) max_mr: u32,
    pub(crate) max_mw: u32,
    pub(crate) max_srq: u32,
    pub(crate) max_srq_wr: u32,
    /// RDMA Reads in flight, in each direction.
    pub(crate) max_reads: u32,
    pub(crate) max_message: u32,
    pub(crate) vectors: u32,
    /// Maximum private data of a request, an accept and a reject.
    pub(crate) private: [u32; 3],
    /// Polls of the device between posting and execution of a work request.
    pub(crate) delay: u32,
    /// Further polls until an RDMA Read is complete.
    pub(crate) read_delay: u32,
    /// Further polls until a bind or a local invalidation is complete.
    pub(crate) local_delay: u32,
    /// Polls until unacknowledged work fails; 0: never.
    pub(crate) retry_polls: u32,
    /// Whether sends complete before an earlier RDMA Read (RFC 5040, section 5.5).
    pub(crate) unordered_reads: bool,
}

const ROCE: Profile = Profile {
    transport: Transport::Roce,
    windows: true,
    vendor_id: 0x5747_414e,
    max_qp: 4096,
    max_qp_wr: 8192,
    max_sge: 16,
    max_inline: 256,
    max_cq: 4096,
    max_cqe: 1 << 20,
    max_pd: 8192,
    max_mr: 1 << 17,
    max_mw: 1 << 16,
    max_srq: 1024,
    max_srq_wr: 1 << 15,
    max_reads: 16,
    max_message: 1 << 30,
    vectors: 4,
    private: [56, 196, 148],
    delay: 0,
    read_delay: 0,
    local_delay: 0,
    retry_polls: 0,
    unordered_reads: false,
};

impl Profile {
    /// The profile of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let profile = match name {
            "roce" => ROCE,
            "no-windows" => Self {
                windows: false,
                max_mw: 0,
                ..ROCE
            },
            "iwarp" => Self {
                transport: Transport::Iwarp,
                windows: false,
                max_mw: 0,
                max_srq: 0,
                max_srq_wr: 0,
                max_inline: 64,
                private: [255; 3],
                unordered_reads: true,
                ..ROCE
            },
            // The least that a provider has to cope with.
            "small" => Self {
                max_qp: 128,
                max_qp_wr: 512,
                max_sge: 2,
                max_inline: 0,
                max_cqe: 4096,
                max_mr: 4096,
                max_mw: 1024,
                max_srq_wr: 256,
                max_reads: 1,
                max_message: 1 << 23,
                vectors: 1,
                ..ROCE
            },
            _ => return None,
        };
        Some(profile)
    }

    /// Changes the number called `name`.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn set(&mut self, name: &str, value: u32) -> Result<(), String> {
        let place = match name {
            "vendor_id" => &mut self.vendor_id,
            "max_qp" => &mut self.max_qp,
            "max_qp_wr" => &mut self.max_qp_wr,
            "max_sge" => &mut self.max_sge,
            "max_inline" => &mut self.max_inline,
            "max_cq" => &mut self.max_cq,
            "max_cqe" => &mut self.max_cqe,
            "max_pd" => &mut self.max_pd,
            "max_mr" => &mut self.max_mr,
            "max_mw" => &mut self.max_mw,
            "max_srq" => &mut self.max_srq,
            "max_srq_wr" => &mut self.max_srq_wr,
            "max_reads" => &mut self.max_reads,
            "max_message" => &mut self.max_message,
            "vectors" => &mut self.vectors,
            "delay" => &mut self.delay,
            "read_delay" => &mut self.read_delay,
            "local_delay" => &mut self.local_delay,
            "retry_polls" => &mut self.retry_polls,
            _ => return Err(format!("{name}: no such property of a device")),
        };
        *place = value;
        Ok(())
    }

    pub(crate) fn is_iwarp(&self) -> bool {
        self.transport == Transport::Iwarp
    }
}
