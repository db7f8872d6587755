//! Log pages of supported commands and features.

use nvmeof_wire::admin::CSI_NVM;
use nvmeof_wire::features::FeatureId;
use nvmeof_wire::log::CommandEffects;
use nvmeof_wire::log::effects::Effects;
use nvmeof_wire::opcode::{FABRICS, admin, io};
use nvmeof_wire::reservation;
use zerocopy::little_endian::U32;

use super::OF_DISCOVERY;
use super::features::is_of_namespaces;
use crate::window::Window;

/// Commands Supported and Effects, 05h (Base 2.1, 5.1.12.1.6). No command reports a scope
/// (CSP is 0): Linux hosts take any bit of an I/O command but the first two for an unknown
/// effect, and print a warning.
///
/// The page is for one I/O command set. For an unsupported one it has no commands: if
/// CAP.CSS has IOCSS, nvme-cli requests the page of the Zoned Namespace Command Set in any
/// case, and shows nothing at all if it is refused.
pub(super) fn commands(discovery: bool, reserves: bool, csi: u8) -> CommandEffects {
    let mut page = CommandEffects::zeroed();
    for opcode in OF_DISCOVERY.into_iter().chain([FABRICS]) {
        page.set_admin(opcode, Effects::empty());
    }
    if discovery {
        return page;
    }
    page.set_admin(admin::ABORT, Effects::empty());
    page.set_admin(admin::CROSS_CONTROLLER_RESET, Effects::empty());
    if csi != CSI_NVM {
        return page;
    }
    for opcode in [io::FLUSH, io::READ, io::COMPARE, io::VERIFY, FABRICS] {
        page.set_io(opcode, Effects::empty());
    }
    for opcode in [
        io::WRITE,
        io::WRITE_ZEROES,
        io::DATASET_MANAGEMENT,
        io::COPY,
    ] {
        page.set_io(opcode, Effects::LBCC);
    }
    if reserves {
        for opcode in reservation::COMMANDS {
            page.set_io(opcode, Effects::empty());
        }
    }
    page
}

/// Feature Identifiers Supported and Effects, 12h: 4 bytes each. Bit 0 says
/// "supported" (FSUPP).
const ENTRY_LEN: u64 = 4;
const SUPPORTED: u32 = 1;
/// Bit 2: the capabilities of a namespace change (NCC).
const CHANGES_NAMESPACE: u32 = 1 << 2;
/// Bit 4: the capabilities of the controller change (CCC).
const CHANGES_CONTROLLER: u32 = 1 << 4;
/// Bits 31:20: scope (FSP), of which one bit is set: a namespace's or the
/// controller's.
const SCOPE_NAMESPACE: u32 = 1 << 20;
const SCOPE_CONTROLLER: u32 = 1 << 21;

/// Feature Identifiers Supported and Effects, 12h (Base 2.1, 5.1.12.1.18).
pub(super) fn write_features(features: &[FeatureId], window: &mut Window<'_>) {
    for fid in features {
        let changes = match *fid {
            FeatureId::NUMBER_OF_QUEUES => CHANGES_CONTROLLER,
            // NSATTR of Identify Namespace follows it.
            FeatureId::NAMESPACE_WRITE_PROTECTION => CHANGES_NAMESPACE,
            _ => 0,
        };
        let scope = match is_of_namespaces(*fid) {
            true => SCOPE_NAMESPACE,
            false => SCOPE_CONTROLLER,
        };
        let entry = SUPPORTED | scope | changes;
        window.put(u64::from(fid.0) * ENTRY_LEN, &U32::new(entry));
    }
}
