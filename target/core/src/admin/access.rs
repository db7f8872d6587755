//! Asymmetric namespace access as admin commands see it: the log page, and which
//! commands fail (Base 2.2, 8.1.1; NVM 1.2, 5.1).

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use nvmeof_wire::admin::{GetLogPage, NSID_ALL};
use nvmeof_wire::features::FeatureId;
use nvmeof_wire::identify::capabilities::Anacap;
use nvmeof_wire::identify::{IdentifyController, IdentifyNamespace};
use nvmeof_wire::log::ana::{
    ANA_GROUP_LEN, ANA_HEADER_LEN, AnaGroup, AnaHeader, AnaState, RETURN_GROUPS_ONLY,
};
use zerocopy::little_endian::U32;

use super::Admin;
use crate::Limits;
use crate::model::ABSENT_GROUP;
use crate::namespace_view::NamespaceView;
use crate::request::Failure;
use crate::window::Window;

/// Maximum time of a transition in seconds (ANATT): hosts wait this long in state Change,
/// or for an accessible path. The administrator determines the actual time; Linux' target
/// reports the same value.
const TRANSITION_S: u8 = 10;

/// Bytes of a namespace identifier in the page.
const NSID_LEN: u64 = 4;

impl Admin<'_> {
    /// Length in bytes of the requested page.
    pub(super) fn access_len(&self, command: &GetLogPage) -> u64 {
        let Some(namespace_view) = self.controller.namespace_view() else {
            return 0;
        };
        let groups = namespace_view.groups().count() as u64;
        let nsids = if groups_only(command) {
            0
        } else {
            namespace_view.list().len() as u64
        };
        ANA_HEADER_LEN as u64 + groups * ANA_GROUP_LEN as u64 + nsids * NSID_LEN
    }

    /// The page (Base 2.1, 5.1.12.1.13).
    pub(super) fn write_access(&self, command: &GetLogPage, window: &mut Window<'_>) {
        // The counts first: the host is notified again of changes meanwhile.
        let counts = self.controller.lock().access.clone();
        let Some(namespace_view) = self.controller.namespace_view() else {
            return;
        };
        let mut members: BTreeMap<u32, Vec<U32>> = BTreeMap::new();
        if !groups_only(command) {
            for seen in namespace_view.list() {
                let nsid = U32::new(seen.namespace.nsid);
                members
                    .entry(seen.namespace.ana_group)
                    .or_default()
                    .push(nsid);
            }
        }
        let mut at = ANA_HEADER_LEN as u64;
        let mut groups = 0u16;
        let stops = self.shared.stops.load(Ordering::Acquire);
        for (group, state) in namespace_view.groups() {
            let state = if stops { AnaState::CHANGE } else { state };
            let members = members.remove(&group).unwrap_or_default();
            let count = u32::try_from(members.len()).unwrap_or(u32::MAX);
            let descriptor = AnaGroup::new(group, count, counts.group(group), state);
            window.put(at, &descriptor);
            at += ANA_GROUP_LEN as u64;
            window.put(at, members.as_slice());
            at += u64::from(count) * NSID_LEN;
            groups = groups.saturating_add(1);
        }
        window.put(0, &AnaHeader::new(counts.page(), groups));
    }

    /// Whether a feature can be read or set for a namespace. Error Recovery is the only
    /// supported feature that is "not available" in states without access (NVM 1.2,
    /// figure 133). Base 2.2, figure 589: with NSID FFFFFFFFh, Set Features fails "if any
    /// namespace that is attached to the controller is in an ANA Group" of such a state,
    /// and in state Persistent Loss for any feature.
    pub(super) fn check_access(
        &self,
        fid: FeatureId,
        nsid: u32,
        sets: bool,
    ) -> Result<(), Failure> {
        let Some(namespace_view) = self.controller.namespace_view() else {
            return Ok(());
        };
        let concerned = namespace_view.list().iter().filter(|seen| {
            let lost = sets && seen.state == AnaState::PERSISTENT_LOSS;
            let concerns = lost || fid == FeatureId::ERROR_RECOVERY;
            match nsid {
                NSID_ALL => sets,
                _ => seen.namespace.nsid == nsid && concerns,
            }
        });
        let refusal = concerned.filter_map(|seen| seen.state.refusal()).next();
        refusal.map_or(Ok(()), |status| Err(Failure::transient(status)))
    }
}

/// Whether the page is requested without namespaces (RGO).
fn groups_only(command: &GetLogPage) -> bool {
    command.lsp & RETURN_GROUPS_ONLY != 0
}

/// Sets the ANA fields of an I/O controller. `nn` is the highest valid namespace
/// port.
pub(super) fn describe(
    id: &mut IdentifyController,
    namespace_view: &NamespaceView,
    nn: u32,
    limits: &Limits,
) {
    let states = Anacap::OPTIMIZED
        | Anacap::NON_OPTIMIZED
        | Anacap::INACCESSIBLE
        | Anacap::PERSISTENT_LOSS
        | Anacap::CHANGE;
    id.anatt = TRANSITION_S;
    id.anacap = states.bits();
    // The highest group, and the number of groups: the last one is that of waiting
    // namespaces.
    id.anagrpmax = ABSENT_GROUP.into();
    id.nanagrpid = ABSENT_GROUP.into();
    // Linux allocates a page for this many groups and namespaces, and disables ANA if its
    // length exceeds MDTS.
    let groups = ANA_HEADER_LEN as u64 + u64::from(ABSENT_GROUP) * ANA_GROUP_LEN as u64;
    let room = u64::from(limits.max_transfer).saturating_sub(groups) / NSID_LEN;
    let room = u32::try_from(room).unwrap_or(u32::MAX);
    let there = namespace_view.list().len();
    let there = u32::try_from(there).unwrap_or(u32::MAX);
    id.mnan = room.max(there).min(nn).into();
}

/// Sets the ANA fields of a namespace. Base 2.2, 8.1.1.6 and 8.1.1.7: capacities (NUSE
/// and NVMCAP) "are cleared to 0h" in states in which they may be unknown.
pub(super) fn describe_namespace(id: &mut IdentifyNamespace, group: u32, state: AnaState) {
    id.anagrpid = group.into();
    if matches!(state, AnaState::INACCESSIBLE | AnaState::PERSISTENT_LOSS) {
        id.nuse = 0.into();
        id.nvmcap = 0.into();
    }
}
