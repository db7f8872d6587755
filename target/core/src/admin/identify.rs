//! Identify (Base 2.1, 5.1.13; NVM 1.0, 4.1.5).

use nvmeof_target_reservations::Accesses;
use nvmeof_wire::admin::{CSI_NVM, Cns, Identify, NSID_ALL};
use nvmeof_wire::identify::capabilities::{Frmw, Fuses, Nwpc, Oacs};
use nvmeof_wire::identify::controller::entry_sizes;
use nvmeof_wire::identify::independent::{CommonFeatures, NamespaceStatus};
use nvmeof_wire::identify::namespace::{Dlfeat, Nmic, Nsattr, Nsfeat, Rescap};
use nvmeof_wire::identify::{
    Cmic, ControllerList, ControllerType, Ctratt, Fcattr, IdentifyController,
    IdentifyControllerNvm, IdentifyNamespace, IdentifyNamespaceIndependent, IdentifyNamespaceNvm,
    Lpa, NamespaceIdentifiers, NamespaceList, Oaes, Ofcs, Oncs, Sgls, Vwc,
};
use nvmeof_wire::log::ana::AnaState;
use nvmeof_wire::registers::Vs;
use nvmeof_wire::{Ascii, Nqn, Status};
use zerocopy::little_endian::U64;

use super::{Admin, CDW10, NSID, access};
use crate::controller::notices::MAX_REQUESTS;
use crate::controller::warnings::{CRITICAL_TEMPERATURE, WARNING_TEMPERATURE};
use crate::controller::{aborts, errors, resets};
use crate::model::{FIRMWARE, NO_NGUID};
use crate::namespace_view::{NamespaceView, VisibleNamespace};
use crate::request::Failure;
use crate::window::Window;
use crate::{Limits, Namespace};

/// KAS: granularity of the keep alive timer, in units of 100 ms.
const KAS: u16 = 10;
const _: () = assert!(KAS as u32 * 100 == crate::controller::KEEP_ALIVE_GRANULARITY_MS);

/// Bits 31:24 of dword 11.
const CSI: u16 = 47;

/// The last namespace id that a list may start after.
const NSID_MAX: u32 = 0xffff_fffd;

impl Admin<'_> {
    pub(super) fn check_identify(&self, command: &Identify) -> Result<(), Failure> {
        let cns = command.cns;
        // Base 2.1, 3.1.3.3: a discovery controller has no namespaces.
        let Some(namespace_view) = self.controller.namespace_view() else {
            return match cns {
                Cns::CONTROLLER => Ok(()),
                _ => Err(Failure::field(CDW10)),
            };
        };
        // Base 2.1, 5.1.13.2.5 and 5.1.13.2.18, of a structure that the namespace's command
        // set does not have: "the controller shall abort the command with a status code of
        // Invalid Field in Command", and so it is with command sets that the controller does
        // not have (5.1.13.2.17, CNS 06h). Invalid I/O Command Set is for values of CNS that
        // the namespace's command set does not have (5.1.13): it has all of these.
        let csi_matters = matches!(
            cns,
            Cns::CSI_NAMESPACE
                | Cns::CSI_CONTROLLER
                | Cns::CSI_ACTIVE_NAMESPACES
                | Cns::CSI_ALLOCATED_NAMESPACES
                | Cns::CSI_ALLOCATED_NAMESPACE
        );
        if csi_matters && command.csi != CSI_NVM {
            return Err(Failure::field(CSI));
        }
        let invalid = Failure::from(Status::INVALID_NAMESPACE).at(NSID);
        match cns {
            Cns::CONTROLLER | Cns::CSI_CONTROLLER | Cns::CONTROLLERS | Cns::COMMAND_SETS => Ok(()),
            // A valid and inactive NSID returns zeroes. Without Namespace Management,
            // FFFFFFFFh is not valid here.
            Cns::NAMESPACE
            | Cns::CSI_NAMESPACE
            | Cns::INDEPENDENT_NAMESPACE
            | Cns::ALLOCATED_NAMESPACE
            | Cns::CSI_ALLOCATED_NAMESPACE => {
                let valid = (1..=namespace_view.highest()).contains(&command.nsid);
                if valid { Ok(()) } else { Err(invalid) }
            }
            Cns::DESCRIPTORS => namespace_view.get(command.nsid).map(|_| ()).ok_or(invalid),
            // Base 2.1, 5.1.13.2.11: it is about allocated namespaces, active or
            // not; "if the NSID field is set to FFFFFFFFh, then ... Invalid Field in
            // Command".
            Cns::ATTACHED_CONTROLLERS if command.nsid == NSID_ALL => Err(Failure::field(NSID)),
            Cns::ATTACHED_CONTROLLERS => {
                let its = |one: VisibleNamespace| one.namespace.nsid == command.nsid;
                let there = namespace_view.get(command.nsid).is_some()
                    || self.disabled(&namespace_view).any(its);
                if there {
                    Ok(())
                } else {
                    Err(Failure::no_namespace(&namespace_view, command.nsid))
                }
            }
            Cns::ACTIVE_NAMESPACES
            | Cns::CSI_ACTIVE_NAMESPACES
            | Cns::ALLOCATED_NAMESPACES
            | Cns::CSI_ALLOCATED_NAMESPACES => {
                if command.nsid <= NSID_MAX {
                    Ok(())
                } else {
                    Err(invalid)
                }
            }
            _ => Err(Failure::field(CDW10)),
        }
    }

    pub(super) fn write_identify(&self, command: &Identify, window: &mut Window<'_>) {
        let limits = &self.shared.limits;
        let Some(namespace_view) = self.controller.namespace_view() else {
            return window.put(0, &self.discovery_controller(limits));
        };
        let seen = namespace_view.get(command.nsid);
        let nsids = namespace_view.list().iter().map(|one| one.namespace.nsid);
        // The disabled namespaces of this host.
        let disabled: Vec<_> = self.disabled(&namespace_view).collect();
        match command.cns {
            Cns::CONTROLLER => window.put(0, &self.io_controller(&namespace_view, limits)),
            // All zero for namespaces without protection information.
            Cns::CSI_NAMESPACE | Cns::CSI_ALLOCATED_NAMESPACE => {
                window.put(0, &IdentifyNamespaceNvm::zeroed());
            }
            Cns::CSI_CONTROLLER => window.put(0, &nvm_controller()),
            Cns::NAMESPACE => {
                if let Some(seen) = seen {
                    window.put(0, &nvm_namespace(seen, limits, self.keeps()));
                }
            }
            Cns::ALLOCATED_NAMESPACE => {
                let mut disabled = disabled.iter();
                let its = |one: &&VisibleNamespace| one.namespace.nsid == command.nsid;
                if let Some(seen) = seen.or_else(|| disabled.find(its)) {
                    window.put(0, &nvm_namespace(seen, limits, self.keeps()));
                }
            }
            Cns::INDEPENDENT_NAMESPACE => {
                if let Some(seen) = seen {
                    window.put(0, &independent_namespace(seen, limits, self.keeps()));
                }
            }
            Cns::DESCRIPTORS => {
                if let Some(seen) = seen {
                    window.put(0, &identifiers(&seen.namespace).to_list());
                }
            }
            Cns::ACTIVE_NAMESPACES | Cns::CSI_ACTIVE_NAMESPACES => {
                window.put(0, &NamespaceList::after(command.nsid, nsids));
            }
            Cns::ALLOCATED_NAMESPACES | Cns::CSI_ALLOCATED_NAMESPACES => {
                let disabled = disabled.iter().map(|one| one.namespace.nsid);
                let mut all: Vec<_> = nsids.chain(disabled).collect();
                all.sort_unstable();
                window.put(0, &NamespaceList::after(command.nsid, all));
            }
            Cns::ATTACHED_CONTROLLERS | Cns::CONTROLLERS => {
                let subsystem = namespace_view.subsystem();
                // For a namespace, the controllers whose host can access it: none, if it is
                // disabled.
                let namespace = subsystem.namespace(command.nsid);
                let of_all = command.cns == Cns::CONTROLLERS;
                let has = |host| of_all || namespace.is_some_and(|one| one.is_for(host));
                let all = self.shared.registry.all();
                let ours = all
                    .iter()
                    .filter(|one| one.subnqn() == subsystem.nqn)
                    .filter(|one| has(&one.hostnqn))
                    .map(|one| one.cntlid);
                window.put(0, &ControllerList::from_id(command.cntid, ours));
            }
            // I/O Command Set data structure: combinations of command sets, one bit for
            // each. There is one combination: the NVM command set.
            Cns::COMMAND_SETS => window.put(0, &U64::new(1 << CSI_NVM)),
            _ => {}
        }
    }

    /// Disabled namespaces of this host.
    fn disabled(&self, namespace_view: &NamespaceView) -> impl Iterator<Item = VisibleNamespace> {
        let its = namespace_view.disabled(&self.controller.viewer.hostnqn);
        its.map(|one| VisibleNamespace {
            namespace: one.clone(),
            state: AnaState::OPTIMIZED,
            accesses: Accesses::ALL,
        })
    }

    /// The fields that all controllers have in common.
    fn common(&self, limits: &Limits) -> IdentifyController {
        let mut ctratt = Ctratt::HIDS;
        if limits.traffic_keep_alive {
            ctratt |= Ctratt::TBKAS;
        }
        IdentifyController {
            sn: Ascii::new("discovery"),
            mn: Ascii::new("nvmeof"),
            fr: Ascii::new(FIRMWARE),
            mdts: mdts(limits.max_transfer),
            cntlid: self.controller.cntlid.into(),
            ver: Vs::V2_0.0.into(),
            ctratt: ctratt.bits().into(),
            oacs: Oacs::empty().bits().into(),
            aerl: zero_based(MAX_REQUESTS),
            elpe: zero_based(errors::CAPACITY),
            kas: KAS.into(),
            maxcmd: self.controller.queue_depth.into(),
            // A host over RDMA needs keyed descriptors, and offsets to use
            // in-capsule data.
            sgls: (Sgls::SUPPORTED | Sgls::KSDBDS | Sgls::OFFSET)
                .bits()
                .into(),
            subnqn: self.controller.subnqn().to_field(),
            ioccsz: (self.capsule_len / 16).into(),
            iorcsz: 1.into(),
            icdoff: 0.into(),
            fcattr: Fcattr::empty().bits(),
            msdbd: limits.max_descriptors,
            ..IdentifyController::zeroed()
        }
    }

    fn discovery_controller(&self, limits: &Limits) -> IdentifyController {
        let served = self.shared.served();
        // The unique NQN, whichever NQN the host connected to.
        let nqn = served.model.discovery().nqn().copied();
        IdentifyController {
            subnqn: nqn.unwrap_or_else(Nqn::discovery).to_field(),
            cntrltype: ControllerType::DISCOVERY,
            oaes: Oaes::DLPCN.bits().into(),
            lpa: (Lpa::CSES | Lpa::LPEDS).bits(),
            // DCTYPE: a direct discovery controller.
            dctype: 1,
            ..self.common(limits)
        }
    }

    fn io_controller(&self, namespace_view: &NamespaceView, limits: &Limits) -> IdentifyController {
        let subsystem = namespace_view.subsystem();
        let nn = namespace_view.highest();
        let instance = self.controller.lock().instances.current();
        let mut id = IdentifyController {
            sn: subsystem.serial,
            mn: subsystem.model_number,
            fr: subsystem.firmware_revision,
            ieee: subsystem.ieee_oui,
            // "May contain more than one" port: ports are added and removed, and hosts read
            // this once.
            cmic: (Cmic::MPORTS | Cmic::MCTRS | Cmic::ANARS).bits(),
            cntrltype: ControllerType::IO,
            oaes: (Oaes::NSAN | Oaes::ANACN | Oaes::CCRCN | Oaes::LHCN)
                .bits()
                .into(),
            ciu: instance.map_or(0, |instance| instance.ciu),
            cirn: instance.map_or(0, |instance| instance.cirn).into(),
            ccrl: resets::LIMIT,
            cqt: limits.quiesce_time_ms().into(),
            acl: zero_based(aborts::LIMIT),
            // One firmware slot, which is read only.
            frmw: Frmw::FFSRO.bits() | 1 << 1,
            // Not MLPS: it promises the scope of each command in log page 05h.
            lpa: (Lpa::SMARTS | Lpa::CSES | Lpa::LPEDS).bits(),
            wctemp: WARNING_TEMPERATURE.into(),
            cctemp: CRITICAL_TEMPERATURE.into(),
            sqes: entry_sizes(6, 6),
            cqes: entry_sizes(4, 4),
            nn: nn.into(),
            oncs: match self.keeps() {
                true => OPTIONAL | Oncs::RESERVS,
                false => OPTIONAL,
            }
            .bits()
            .into(),
            fuses: Fuses::FCWS.bits().into(),
            // A namespace with a cache may be added at any time, and a host would not flush
            // it if this said that there is none. VWCNP reports namespaces without a cache.
            vwc: (Vwc::FLUSH_ALL | Vwc::VWCP).bits(),
            // One block (0's based), the minimum, and all that holds for every backing
            // store: a file system does not guarantee that a write is atomic for readers
            // or on power loss.
            awun: 0.into(),
            awupf: 0.into(),
            nwpc: match self.keeps() {
                true => (Nwpc::NWPWPS | Nwpc::WPUPCS).bits(),
                false => 0,
            },
            acwu: 0.into(),
            // Copy descriptor format 0h.
            cdfs: 1.into(),
            ofcs: Ofcs::DCS.bits().into(),
            ..self.common(limits)
        };
        access::describe(&mut id, namespace_view, nn, limits);
        id
    }
}

/// Optional commands (ONCS). They do not depend on the namespaces, because hosts read this
/// once and namespaces change while they are connected. A backing store that cannot
/// deallocate ignores Dataset Management, which is "advisory" (NVM 1.0, 3.2.3), and writes
/// zeroes itself.
const OPTIONAL: Oncs = Oncs::NVMCMPS
    .union(Oncs::NVMDSMSV)
    .union(Oncs::NVMWZSV)
    .union(Oncs::SSFS)
    .union(Oncs::TSS)
    .union(Oncs::NVMVFYS)
    .union(Oncs::NVMCPYS);

/// Maximum data transfer size: "a power of two in units of the minimum memory
/// page size", 4 KiB.
fn mdts(max_transfer: u32) -> u8 {
    u8::try_from((max_transfer / 4096).ilog2()).unwrap_or(u8::MAX)
}

/// Limits of commands without data transfer (NVM 1.0, 4.1.5.4). They are recommendations,
/// because the bits of both commands are set in ONCS.
fn nvm_controller() -> IdentifyControllerNvm {
    IdentifyControllerNvm {
        vsl: const { pages(Limits::LONG_VERIFY) },
        wzsl: const { pages(Limits::LONG_WRITE_ZEROES) },
        // Write Uncorrectable is not supported.
        wusl: 0,
        // DMRL, DMRSL and DMSL are zero. NVM 1.0, 3.2.3.1: "the controller shall set all
        // three processing limit fields ... to non-zero values or shall clear all three",
        // and with NVMDSMSV zero is that it "does not report any processing limits".
        // DMRL is 1's based, so that 255 would leave out the last of 256 ranges.
        ..IdentifyControllerNvm::zeroed()
    }
}

/// VSL, WZSL: "a power of two (2^n) in units of the minimum memory page size".
const fn pages(bytes: u64) -> u8 {
    let pages = bytes / 4096;
    assert!(pages.is_power_of_two(), "it cannot be represented");
    let [exponent, ..] = pages.ilog2().to_le_bytes();
    exponent
}

fn zero_based(count: usize) -> u8 {
    u8::try_from(count - 1).unwrap_or(u8::MAX)
}

fn nvm_namespace(seen: &VisibleNamespace, limits: &Limits, reserves: bool) -> IdentifyNamespace {
    let namespace = &seen.namespace;
    let mut dlfeat = Dlfeat::empty();
    if namespace.deallocate {
        dlfeat |= Dlfeat::READS_ZEROES | Dlfeat::WZDS;
    }
    let (mssrl, mcl) = Limits::copy_blocks(namespace.block_shift);
    let bytes = u128::from(namespace.blocks) << namespace.block_shift;
    // Length of a fused Compare and Write, 0's based. NAWUN and NAWUPF are those of the
    // backing store, or 0: as for the controller.
    let nacwu = (Limits::MAX_FUSED >> namespace.block_shift).saturating_sub(1);
    let mut id = IdentifyNamespace {
        nsfeat: Nsfeat::NSABP.bits(),
        nacwu: u16::try_from(nacwu).unwrap_or(0).into(),
        nmic: Nmic::SHRNS.bits(),
        rescap: match reserves {
            true => Rescap::all().bits(),
            false => 0,
        },
        dlfeat: dlfeat.bits(),
        nvmcap: bytes.into(),
        mssrl: mssrl.into(),
        mcl: mcl.into(),
        msrc: zero_based(usize::from(Limits::COPY_RANGES)),
        nsattr: attributes(namespace).bits(),
        nguid: namespace.nguid,
        eui64: namespace.eui64.unwrap_or_default(),
        ..IdentifyNamespace::with_format(namespace.blocks, namespace.block_shift)
    };
    let preferred = &namespace.preferred;
    preferred.describe(&mut id, namespace.block_shift, limits.max_transfer);
    access::describe_namespace(&mut id, namespace.ana_group, seen.state);
    id
}

fn independent_namespace(
    seen: &VisibleNamespace,
    limits: &Limits,
    reserves: bool,
) -> IdentifyNamespaceIndependent {
    let mut independent = IdentifyNamespaceIndependent::of(&nvm_namespace(seen, limits, reserves));
    if !seen.namespace.volatile_cache {
        independent.nsfeat |= CommonFeatures::VWCNP.bits();
    }
    if !seen.namespace.is_ready() {
        independent.nstat &= !NamespaceStatus::NRDY.bits();
    }
    independent
}

fn attributes(namespace: &Namespace) -> Nsattr {
    if namespace.readonly {
        Nsattr::CWP
    } else {
        Nsattr::empty()
    }
}

fn identifiers(namespace: &Namespace) -> NamespaceIdentifiers {
    NamespaceIdentifiers {
        eui64: namespace.eui64,
        nguid: Some(namespace.nguid).filter(|nguid| *nguid != NO_NGUID),
        uuid: Some(namespace.uuid),
        csi: Some(CSI_NVM),
    }
}

const _: () = assert!(NSID_MAX < NSID_ALL);
