//! The Discovery log page, 70h (NVMe Base 2.0, 5.16.1.23; addresses of the
//! RDMA transport).

use core::mem::offset_of;

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ascii::Ascii;

/// Length in bytes of the header.
pub const DISCOVERY_HEADER_LEN: usize = 1024;
/// Length in bytes of an entry.
pub const DISCOVERY_ENTRY_LEN: usize = 1024;

/// CNTLID of an entry: the subsystem allocates a controller at Connect.
pub const CNTLID_DYNAMIC: u16 = 0xffff;
/// CNTLID of an entry: any static controller of the subsystem may be requested.
pub const CNTLID_STATIC: u16 = 0xfffe;

/// A byte of a discovery entry with named values.
macro_rules! entry_byte {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$value_doc:meta])* $value:ident = $number:literal $text:literal;)*
    }) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
            Unaligned,
        )]
        #[repr(transparent)]
        pub struct $name(pub u8);

        impl $name {
            $($(#[$value_doc])* pub const $value: Self = Self($number);)*

            /// The name, as nvme-cli prints it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $text,)*
                    _ => "unrecognized",
                }
            }
        }
    };
}

entry_byte! {
    /// TRTYPE: the transport.
    TransportType {
        /// RDMA.
        RDMA = 1 "rdma";
        /// Fibre Channel.
        FC = 2 "fc";
        /// TCP.
        TCP = 3 "tcp";
        /// Within the host; reserved for the host's use.
        LOOP = 254 "loop";
    }
}

entry_byte! {
    /// ADRFAM: the address family.
    AddressFamily {
        /// IPv4.
        IPV4 = 1 "ipv4";
        /// IPv6.
        IPV6 = 2 "ipv6";
        /// InfiniBand.
        IB = 3 "infiniband";
        /// Fibre Channel.
        FC = 4 "fibre-channel";
        /// Within the host; reserved for the host's use.
        LOOP = 254 "loop";
    }
}

entry_byte! {
    /// SUBTYPE: subsystem type.
    SubsystemType {
        /// A discovery subsystem with other entries.
        REFERRAL = 1 "discovery subsystem referral";
        /// A subsystem with namespaces.
        NVM = 2 "nvme subsystem";
        /// The discovery subsystem that returned the page.
        CURRENT_DISCOVERY = 3 "current discovery subsystem";
    }
}

entry_byte! {
    /// RDMA_QPTYPE: the queue pair type.
    RdmaQpType {
        /// Reliable connected.
        CONNECTED = 1 "connected";
        /// Reliable datagram.
        DATAGRAM = 2 "datagram";
    }
}

entry_byte! {
    /// RDMA_PRTYPE: the RDMA provider type.
    RdmaProviderType {
        /// Not specified.
        NOT_SPECIFIED = 1 "not specified";
        /// InfiniBand.
        IB = 2 "infiniband";
        /// RoCE.
        ROCE = 3 "roce";
        /// RoCEv2.
        ROCE_V2 = 4 "roce-v2";
        /// iWARP.
        IWARP = 5 "iwarp";
    }
}

entry_byte! {
    /// RDMA_CMS: the connection management service.
    RdmaCms {
        /// The RDMA IP connection manager.
        RDMA_CM = 1 "rdma-cm";
    }
}

bitflags! {
    /// TREQ: Transport Requirements. Bits 1:0 concern secure channels; 00b is not
    /// specified.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Treq: u8 {
        /// A secure channel is required (01b).
        const SECURE_REQUIRED = 0b01;
        /// A secure channel is not required (10b).
        const SECURE_NOT_REQUIRED = 0b10;
        /// Submission queue flow control may be disabled.
        const DISABLE_SQFC = 1 << 2;
    }

    /// Log Specific Parameter of Get Log Page: which entries to return. Bits 18:16 of the
    /// entry in the Supported Log Pages report what the controller supports.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct DiscoveryLsp: u8 {
        /// Extended Discovery Log Page Entries.
        const EXTDLPE = 1 << 0;
        /// Port Local Entries Only.
        const PLEO = 1 << 1;
        /// All NVM Subsystem Entries, regardless of access rights.
        const ALLSUBE = 1 << 2;
    }

    /// DLPF: Discovery Log Page Flags, the parts of [`DiscoveryLsp`] that apply.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct DiscoveryFlags: u8 {
        /// Entries are extended.
        const EXTEND = 1 << 0;
        /// The page has only entries of the port on which it was requested.
        const PORTLCL = 1 << 1;
        /// The page has entries of all subsystems, regardless of access rights.
        const ALLSUB = 1 << 2;
    }

    /// EFLAGS: Entry Flags.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct EntryFlags: u16 {
        /// Another port of this subsystem returns the same information.
        const DUPRETINFO = 1 << 0;
        /// Explicit persistent connections to the discovery controller.
        const EPCSD = 1 << 1;
        /// No connectivity to a central discovery controller.
        const NCC = 1 << 2;
    }
}

/// The header of the page: entries follow it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct DiscoveryHeader {
    /// Generation counter: changes with each change of an entry. A host that reads the
    /// page in pieces reads it again at the end and compares.
    pub genctr: U64,
    /// Number of entries of the page.
    pub numrec: U64,
    /// Record format: 0.
    pub recfmt: U16,
    /// Discovery log page flags: [`DiscoveryFlags`].
    pub dlpf: u8,
    #[doc(hidden)]
    pub rsvd19: u8,
    /// Total discovery log page length in bytes, if entries are extended.
    pub tdlpl: U32,
    #[doc(hidden)]
    pub rsvd24: [u8; 1000],
}

/// Transport specific address subtype of the RDMA transport.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct RdmaTsas {
    /// Queue pair type.
    pub qptype: RdmaQpType,
    /// Provider type.
    pub prtype: RdmaProviderType,
    /// Connection management service.
    pub cms: RdmaCms,
    #[doc(hidden)]
    pub rsvd3: [u8; 5],
    /// Partition key, for the InfiniBand address family.
    pub pkey: U16,
    #[doc(hidden)]
    pub rsvd10: [u8; 246],
}

impl RdmaTsas {
    /// Reliable connected queue pairs of a provider, set up with the RDMA
    /// connection manager.
    #[must_use]
    pub fn connected(prtype: RdmaProviderType) -> Self {
        Self {
            qptype: RdmaQpType::CONNECTED,
            prtype,
            cms: RdmaCms::RDMA_CM,
            ..Self::new_zeroed()
        }
    }
}

/// An entry: one address of one subsystem.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct DiscoveryEntry {
    /// Transport type.
    pub trtype: TransportType,
    /// Address family.
    pub adrfam: AddressFamily,
    /// Subsystem type.
    pub subtype: SubsystemType,
    /// Transport requirements: [`Treq`].
    pub treq: u8,
    /// Port identifier.
    pub portid: U16,
    /// Controller identifier, [`CNTLID_DYNAMIC`] or [`CNTLID_STATIC`].
    pub cntlid: U16,
    /// Admin maximum submission queue size in entries, at least 32.
    pub asqsz: U16,
    /// Entry flags: [`EntryFlags`].
    pub eflags: U16,
    #[doc(hidden)]
    pub rsvd12: [u8; 20],
    /// Transport service identifier: for IP the decimal port number.
    pub trsvcid: Ascii<32>,
    #[doc(hidden)]
    pub rsvd64: [u8; 192],
    /// NVM subsystem NQN, UTF-8, null terminated.
    pub subnqn: [u8; 256],
    /// Transport address: for IP the address in its usual text form.
    pub traddr: Ascii<256>,
    /// Transport specific address subtype.
    pub tsas: RdmaTsas,
}

/// The extension of an extended entry, after an ordinary one.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct EntryExtension {
    /// Total entry length in bytes, with the entry.
    pub tel: U32,
    /// Number of extended attributes that follow.
    pub numexat: U16,
    #[doc(hidden)]
    pub rsvd6: [u8; 2],
}

/// Length in bytes of an extended entry without attributes.
pub const EXTENDED_ENTRY_LEN: usize = DISCOVERY_ENTRY_LEN + size_of::<EntryExtension>();

const _: () = {
    assert!(EXTENDED_ENTRY_LEN == 1032);
    assert!(offset_of!(DiscoveryHeader, dlpf) == 18);
    assert!(offset_of!(DiscoveryHeader, tdlpl) == 20);
    assert!(size_of::<DiscoveryHeader>() == DISCOVERY_HEADER_LEN);
    assert!(offset_of!(DiscoveryHeader, numrec) == 8);
    assert!(offset_of!(DiscoveryHeader, recfmt) == 16);
    assert!(size_of::<RdmaTsas>() == 256);
    assert!(offset_of!(RdmaTsas, pkey) == 8);
    assert!(size_of::<DiscoveryEntry>() == DISCOVERY_ENTRY_LEN);
    assert!(offset_of!(DiscoveryEntry, treq) == 3);
    assert!(offset_of!(DiscoveryEntry, portid) == 4);
    assert!(offset_of!(DiscoveryEntry, cntlid) == 6);
    assert!(offset_of!(DiscoveryEntry, asqsz) == 8);
    assert!(offset_of!(DiscoveryEntry, eflags) == 10);
    assert!(offset_of!(DiscoveryEntry, trsvcid) == 32);
    assert!(offset_of!(DiscoveryEntry, subnqn) == 256);
    assert!(offset_of!(DiscoveryEntry, traddr) == 512);
    assert!(offset_of!(DiscoveryEntry, tsas) == 768);
};

impl DiscoveryHeader {
    /// The header of a page of `numrec` entries of format 0.
    #[must_use]
    pub fn new(genctr: u64, numrec: u64) -> Self {
        Self {
            genctr: U64::new(genctr),
            numrec: U64::new(numrec),
            ..Self::new_zeroed()
        }
    }
}

impl DiscoveryEntry {
    /// An entry of zeros, with spaces in its text fields, for the caller to fill in.
    #[must_use]
    pub fn zeroed() -> Self {
        Self {
            trsvcid: Ascii::default(),
            traddr: Ascii::default(),
            ..Self::new_zeroed()
        }
    }

    /// Transport requirements.
    #[must_use]
    pub fn treq(&self) -> Treq {
        Treq::from_bits_retain(self.treq)
    }

    /// Entry flags.
    #[must_use]
    pub fn eflags(&self) -> EntryFlags {
        EntryFlags::from_bits_retain(self.eflags.get())
    }
}

/// The part of the page that a host has read, from its start.
#[derive(Clone, Copy, Debug)]
pub struct DiscoveryPage<'a> {
    /// The header.
    pub header: &'a DiscoveryHeader,
    /// Entries that `bytes` hold completely, at most `numrec`. If there are fewer, read
    /// more, or all again if the page has grown.
    pub entries: &'a [DiscoveryEntry],
}

impl<'a> DiscoveryPage<'a> {
    /// Parses `bytes`; `None` if they are shorter than a header, or if the record format
    /// is not 0.
    #[must_use]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (header, rest) = DiscoveryHeader::ref_from_prefix(bytes).ok()?;
        if header.recfmt.get() != 0 {
            return None;
        }
        let held = rest.len() / DISCOVERY_ENTRY_LEN;
        let count = usize::try_from(header.numrec.get()).map_or(held, |numrec| numrec.min(held));
        let (entries, _rest) = <[DiscoveryEntry]>::ref_from_prefix_with_elems(rest, count).ok()?;
        Some(Self { header, entries })
    }

    /// Whether all entries of the page are there.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        u64::try_from(self.entries.len()).is_ok_and(|held| held == self.header.numrec.get())
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;
    use std::vec;

    use proptest::prelude::*;

    use super::*;

    fn iwarp_entry() -> DiscoveryEntry {
        let mut entry = DiscoveryEntry::zeroed();
        entry.trtype = TransportType::RDMA;
        entry.adrfam = AddressFamily::IPV4;
        entry.subtype = SubsystemType::NVM;
        entry.treq = (Treq::SECURE_NOT_REQUIRED | Treq::DISABLE_SQFC).bits();
        entry.portid = U16::new(1);
        entry.cntlid = U16::new(CNTLID_DYNAMIC);
        entry.asqsz = U16::new(32);
        entry.trsvcid = Ascii::new("4420");
        entry.traddr = Ascii::new("127.0.0.1");
        entry.tsas = RdmaTsas::connected(RdmaProviderType::IWARP);
        entry
    }

    #[test]
    fn golden_entry_of_an_iwarp_port() {
        let entry = iwarp_entry();
        let bytes = entry.as_bytes();
        assert_eq!(bytes[..12], [1, 1, 2, 6, 1, 0, 0xff, 0xff, 32, 0, 0, 0]);
        assert_eq!(bytes[32..40], *b"4420    ");
        assert_eq!(bytes[512..522], *b"127.0.0.1 ");
        assert_eq!(bytes[768..778], [1, 5, 1, 0, 0, 0, 0, 0, 0, 0]);
        let back = DiscoveryEntry::read_from_bytes(bytes).unwrap();
        assert_eq!(back.traddr.to_string(), "127.0.0.1");
        assert_eq!(back.tsas.prtype.name(), "iwarp");
        assert_eq!(TransportType(77).name(), "unrecognized");
    }

    #[test]
    fn page_in_pieces() {
        let mut bytes = vec![0; 1024 * 3];
        bytes[..1024].copy_from_slice(DiscoveryHeader::new(9, 2).as_bytes());
        bytes[1024..2048].copy_from_slice(iwarp_entry().as_bytes());
        let held = |len: usize| DiscoveryPage::parse(&bytes[..len]).map(|page| page.entries.len());
        assert_eq!(held(1023), None);
        assert_eq!(held(1024), Some(0));
        assert_eq!(held(2048), Some(1));
        assert_eq!(held(3071), Some(1));
        let page = DiscoveryPage::parse(&bytes).unwrap();
        assert!(page.is_complete());
        assert_eq!(page.entries[0], iwarp_entry());
        bytes[16] = 1;
        assert!(
            DiscoveryPage::parse(&bytes).is_none(),
            "an unknown record format"
        );
    }

    proptest! {
        #[test]
        fn entries_are_limited_by_bytes_and_header(
            numrec in prop_oneof![0u64..6, any::<u64>()], len in 0usize..5000,
        ) {
            let mut bytes = vec![0; len];
            let header = DiscoveryHeader::new(0, numrec);
            let copied = len.min(1024);
            bytes[..copied].copy_from_slice(&header.as_bytes()[..copied]);
            match DiscoveryPage::parse(&bytes) {
                None => prop_assert!(len < 1024),
                Some(page) => {
                    let room = (len - 1024) / 1024;
                    prop_assert_eq!(page.entries.len() as u64, numrec.min(room as u64));
                    prop_assert_eq!(page.is_complete(), numrec <= room as u64);
                }
            }
        }
    }
}
