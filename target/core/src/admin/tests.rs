//! Admin commands, by area.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

pub(crate) mod access;
mod discovery_log;
pub(crate) mod events;
mod features;
mod identify;
mod log_page;
mod protection;
mod reset;
mod smart;

use nvmeof_wire::Nqn;
use nvmeof_wire::opcode::Opcode;
use nvmeof_wire::{Sqe, Status};

use crate::Target;
use crate::testing::{Host, connect_data, target};

/// The admin queue of a discovery controller.
pub(crate) fn discovery(target: &Target) -> Host {
    let mut data = connect_data(0xffff);
    data.subnqn = Nqn::discovery().to_field();
    Host::admin_with(target, 0, &data).0
}

#[test]
fn unknown_commands_are_refused() {
    let (mut host, _) = Host::admin(&target());
    for opcode in [0x00, 0x01, 0x04, 0x05, 0x0d, 0x10, 0x80, 0xff] {
        let completion = host.plain(Sqe::new(Opcode(opcode)));
        assert_eq!(completion.status(), Status::INVALID_OPCODE, "{opcode:#x}");
    }
}

#[test]
fn abort_of_unknown_command_aborts_nothing() {
    let (mut host, _) = Host::admin(&target());
    let completion = host.plain(nvmeof_wire::admin::Abort { sqid: 1, cid: 1 }.to_sqe());
    assert_eq!(
        (completion.status(), completion.result()),
        (Status::SUCCESS, 1)
    );
}

#[test]
fn a_discovery_controller_has_few_commands() {
    let mut host = discovery(&target());
    let completion = host.plain(nvmeof_wire::admin::Abort { sqid: 1, cid: 1 }.to_sqe());
    assert_eq!(completion.status(), Status::INVALID_OPCODE);
}
