//! The discovery log: which subsystems a host can reach, and where.

use nvmeof_wire::log::discovery::{
    AddressFamily, CNTLID_DYNAMIC, DISCOVERY_ENTRY_LEN, DISCOVERY_HEADER_LEN, RdmaProviderType,
    RdmaTsas, SubsystemType, TransportType, Treq,
};
use nvmeof_wire::log::{DiscoveryEntry, DiscoveryHeader};
use nvmeof_wire::{Ascii, Nqn};

use crate::admin::Window;
use crate::{Fabric, Limits, Model, Port, Subsystem};

/// The model never changes while it is served, so the log has one generation.
const GENERATION: u64 = 1;

/// Writes the log page that the host of that name sees.
pub(crate) fn write(model: &Model, hostnqn: &Nqn, window: &mut Window<'_>) {
    let mut count: u64 = 0;
    let header_len = DISCOVERY_HEADER_LEN as u64;
    let entry_len = DISCOVERY_ENTRY_LEN as u64;
    for subsystem in model.subsystems() {
        if !subsystem.allows(hostnqn) {
            continue;
        }
        for port in model.ports() {
            let at = header_len + count * entry_len;
            if window.shows(at, entry_len) {
                window.put(at, &entry(subsystem, port));
            }
            count += 1;
        }
    }
    window.put(0, &DiscoveryHeader::new(GENERATION, count));
}

fn entry(subsystem: &Subsystem, port: &Port) -> DiscoveryEntry {
    DiscoveryEntry {
        trtype: TransportType::RDMA,
        adrfam: if port.traddr.is_ipv4() {
            AddressFamily::IPV4
        } else {
            AddressFamily::IPV6
        },
        subtype: SubsystemType::NVM,
        treq: Treq::DISABLE_SQFC.bits(),
        portid: port.id.into(),
        cntlid: CNTLID_DYNAMIC.into(),
        asqsz: Limits::ADMIN_DEPTH.into(),
        trsvcid: Ascii::new(&port.trsvcid.to_string()),
        subnqn: subsystem.nqn.to_field(),
        traddr: Ascii::new(&port.traddr.to_string()),
        tsas: RdmaTsas::connected(match port.fabric {
            Fabric::Iwarp => RdmaProviderType::IWARP,
            Fabric::RoceV2 => RdmaProviderType::ROCE_V2,
            Fabric::InfiniBand => RdmaProviderType::IB,
            Fabric::Unspecified => RdmaProviderType::NOT_SPECIFIED,
        }),
        ..DiscoveryEntry::zeroed()
    }
}
