//! Admin and Fabrics commands of a host.

use std::sync::Arc;

use nvmeof_dhchap::HostKeys;
use nvmeof_wire::admin::{
    Cns, CrossControllerReset, GetFeatures, GetLogPage, IDENTIFY_LEN, Identify, LogId, NSID_ALL,
    SetFeatures,
};
use nvmeof_wire::fabrics::{
    CATTR_NO_SQ_FLOW, CONNECT_DATA_LEN, Connect, ConnectData, FcType, PropertyAccess,
};
use nvmeof_wire::features::FeatureId;
use nvmeof_wire::log::ana::RETURN_GROUPS_ONLY;
use nvmeof_wire::log::controllers::REMOVE_COMPLETED;
use nvmeof_wire::opcode::{Direction, admin};
use nvmeof_wire::registers::{Property, PropertyValue};
use nvmeof_wire::{Nqn, Sqe};
use zerocopy::IntoBytes;

use crate::command::Command;

/// The identity of a host, and the subsystem to connect to.
#[derive(Clone, Debug)]
pub struct Names {
    /// Host identifier, not all zero.
    pub hostid: [u8; 16],
    /// Name of the host.
    pub hostnqn: Nqn,
    /// Name of the subsystem.
    pub subnqn: Nqn,
    /// Keys to authenticate with, if the host has any.
    pub keys: Option<Arc<HostKeys>>,
}

/// A command, with its payload if the host sends one.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The command.
    pub command: Command,
    /// Payload to the controller, [`Command::len`] bytes; empty without payload, or if
    /// the controller sends it.
    pub payload: Vec<u8>,
}

impl From<Command> for Ask {
    fn from(command: Command) -> Self {
        Self {
            command,
            payload: Vec::new(),
        }
    }
}

/// The queue a Connect command is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueShape {
    /// Queue identifier; 0 is the admin queue.
    pub qid: u16,
    /// Entries.
    pub size: u16,
    /// Whether to request SQ flow control.
    pub flow_control: bool,
}

/// Connect (NVMe Base 2.0, section 6.3).
#[must_use]
pub fn connect(names: &Names, queue: QueueShape, cntlid: u16, kato_ms: u32) -> Ask {
    let mut connect = Connect::new(queue.qid, queue.size, kato_ms);
    if !queue.flow_control {
        connect.cattr |= CATTR_NO_SQ_FLOW;
    }
    let data = ConnectData::new(names.hostid, cntlid, &names.subnqn, &names.hostnqn);
    const LEN: u32 = 1024;
    const _: () = assert!(LEN as usize == CONNECT_DATA_LEN);
    Ask {
        command: Command::new(
            connect.to_sqe(),
            FcType::CONNECT.name(),
            Direction::ToController,
            LEN,
        ),
        payload: data.as_bytes().to_vec(),
    }
}

/// Property Get of a property of 4 or 8 bytes.
#[must_use]
pub fn property_get(property: Property, eight_bytes: bool) -> Command {
    let sqe = PropertyAccess::get(property, eight_bytes);
    no_payload(sqe, FcType::PROPERTY_GET.name())
}

/// Property Set.
#[must_use]
pub fn property_set(property: Property, value: PropertyValue) -> Command {
    let sqe = PropertyAccess::set(property, value);
    no_payload(sqe, FcType::PROPERTY_SET.name())
}

/// Identify: 4096 bytes.
#[must_use]
pub fn identify(cns: Cns, nsid: u32) -> Command {
    let sqe = Identify::new(cns, nsid).to_sqe();
    Command::new(sqe, cns.name(), Direction::ToHost, IDENTIFY_LEN)
}

/// Get Log Page: `len` bytes, a multiple of 4, from byte `offset`.
#[must_use]
pub fn log_page(lid: LogId, nsid: u32, offset: u64, len: u32) -> Command {
    let len = len.next_multiple_of(4).max(4);
    get_log_page(GetLogPage::new(lid, nsid, offset, len))
}

/// The Asymmetric Namespace Access log page: `len` bytes, a multiple of 4, from byte
/// `offset`. With `groups_only` its groups have no namespaces. A command from byte 0 enables the
/// next event about the page; the further ones of the page retain that event.
#[must_use]
pub fn ana_log(groups_only: bool, offset: u64, len: u32) -> Command {
    let mut get = GetLogPage::new(LogId::ANA, NSID_ALL, offset, len);
    get.retain_event = offset > 0;
    if groups_only {
        get.lsp |= RETURN_GROUPS_ONLY;
    }
    get_log_page(get)
}

/// The first `len` bytes of the Cross-Controller Reset log page (NVMe Base 2.3), which removes
/// completed entries. It enables the next event about the page.
#[must_use]
pub fn cross_resets(len: u32) -> Command {
    let mut get = GetLogPage::new(LogId::CROSS_CONTROLLER_RESET, NSID_ALL, 0, len);
    get.lsp |= REMOVE_COMPLETED;
    get_log_page(get)
}

/// Cross-Controller Reset (NVMe Base 2.3): ends another controller of this host.
#[must_use]
pub fn cross_controller_reset(reset: CrossControllerReset) -> Command {
    let name = admin::name(admin::CROSS_CONTROLLER_RESET);
    no_payload(reset.to_sqe(), name)
}

fn get_log_page(get: GetLogPage) -> Command {
    let len = u32::try_from(get.len).unwrap_or(u32::MAX);
    let name = admin::name(admin::GET_LOG_PAGE);
    Command::new(get.to_sqe(), name, Direction::ToHost, len)
}

/// Get Features with `len` bytes of data, 0 for a feature that is only a value.
#[must_use]
pub fn get_feature(get: GetFeatures, len: u32) -> Command {
    let name = admin::name(admin::GET_FEATURES);
    match len {
        0 => no_payload(get.to_sqe(), name),
        len => Command::new(get.to_sqe(), name, Direction::ToHost, len),
    }
}

/// Set Features with `len` bytes of data, 0 for a feature that is only a value.
#[must_use]
pub fn set_feature(set: SetFeatures, len: u32) -> Command {
    let name = admin::name(admin::SET_FEATURES);
    match len {
        0 => no_payload(set.to_sqe(), name),
        len => Command::new(set.to_sqe(), name, Direction::ToController, len),
    }
}

/// Set Features of a feature without payload.
#[must_use]
pub fn set_features(fid: FeatureId, cdw11: u32) -> Command {
    set_feature(SetFeatures::new(fid, cdw11), 0)
}

/// Keep Alive.
#[must_use]
pub fn keep_alive() -> Command {
    bare(admin::KEEP_ALIVE)
}

/// Asynchronous Event Request.
#[must_use]
pub fn async_event_request() -> Command {
    bare(admin::ASYNC_EVENT_REQUEST)
}

fn bare(opcode: nvmeof_wire::opcode::Opcode) -> Command {
    no_payload(nvmeof_wire::admin::bare(opcode), admin::name(opcode))
}

fn no_payload(sqe: Sqe, name: &'static str) -> Command {
    Command::new(sqe, name, Direction::None, 0)
}

#[cfg(test)]
mod tests {
    use nvmeof_wire::admin::Select;

    use super::*;

    #[test]
    fn features_have_a_payload_in_one_direction_or_none() {
        let get = GetFeatures {
            fid: FeatureId::TIMESTAMP,
            select: Select::Default,
            cdw11: 5,
            nsid: 1,
        };
        let command = get_feature(get, 8);
        assert_eq!((command.direction(), command.len()), (Direction::ToHost, 8));
        assert_eq!(GetFeatures::parse(&command.sqe()), get);
        assert_eq!(get_feature(get, 0).direction(), Direction::None);

        let set = SetFeatures {
            save: true,
            cdw12: 7,
            nsid: 2,
            ..SetFeatures::new(FeatureId::HOST_BEHAVIOR, 3)
        };
        let command = set_feature(set, 512);
        let expected = (Direction::ToController, 512);
        assert_eq!((command.direction(), command.len()), expected);
        assert_eq!(SetFeatures::parse(&command.sqe()), set);
        assert_eq!(set_feature(set, 0).direction(), Direction::None);
    }

    #[test]
    fn ana_log_retains_the_event_after_its_start_and_omits_namespaces_on_request() {
        for (groups_only, lsp) in [(false, 0), (true, 1)] {
            let command = ana_log(groups_only, 4096, 18);
            let get = GetLogPage::parse(&command.sqe());
            assert_eq!((get.lid, get.lsp), (LogId::ANA, lsp));
            assert_eq!((get.offset, get.len, command.len()), (4096, 20, 20));
            assert!(get.retain_event && get.nsid == NSID_ALL);
            let first = GetLogPage::parse(&ana_log(groups_only, 0, 16).sqe());
            assert!(!first.retain_event);
        }
    }
}
