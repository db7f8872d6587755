//! Admin and Fabrics commands of a host.

use nvmeof_wire::admin::{Cns, GetLogPage, IDENTIFY_LEN, Identify, LogId, SetFeatures};
use nvmeof_wire::fabrics::{
    CATTR_NO_SQ_FLOW, CONNECT_DATA_LEN, Connect, ConnectData, FcType, PropertyAccess,
};
use nvmeof_wire::features::FeatureId;
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
    let sqe = GetLogPage::new(lid, nsid, offset, len).to_sqe();
    let name = admin::name(admin::GET_LOG_PAGE);
    Command::new(sqe, name, Direction::ToHost, len)
}

/// Set Features of a feature without payload.
#[must_use]
pub fn set_features(fid: FeatureId, cdw11: u32) -> Command {
    let sqe = SetFeatures::new(fid, cdw11).to_sqe();
    no_payload(sqe, admin::name(admin::SET_FEATURES))
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
