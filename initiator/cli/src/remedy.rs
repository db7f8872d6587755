//! Remedies for errors of the library, with options and commands of this program: the
//! library names settings, and this module maps them to names of the command line.

use nvmeof_initiator::{Address, Error, Setting};

/// The remedy for `error` with this program's names.
pub(crate) fn remedy(error: &Error) -> Option<String> {
    let remedy = error.remedy_naming(|setting| setting_remedy(setting).map(str::to_owned))?;
    // The error has the address of the target.
    match error {
        Error::Setup(setup) if error.settings().contains(&Setting::Subsystem) => Some(format!(
            "{remedy}:\n  nvmeof discover -t rdma {}",
            options_of(setup.addr)
        )),
        _ => Some(remedy),
    }
}

/// The options of a setting, or the command that shows its possible values.
fn setting_remedy(setting: Setting) -> Option<&'static str> {
    Some(match setting {
        Setting::Address => "--traddr, --trsvcid",
        Setting::SocketPath => "--traddr",
        Setting::HostNqn => "--hostnqn",
        Setting::HostId => "--hostid",
        Setting::Keys => "--dhchap-secret, --dhchap-ctrl-secret",
        Setting::IoQueues => "--nr-io-queues",
        Setting::QueueSize => "--queue-size, of bench --iodepth",
        Setting::KeepAlive => "--keep-alive-tmo",
        Setting::CommandTimeout => "--command-timeout",
        Setting::SoftwareIwarp => "--provider iwarp",
        Setting::ShmFolder => "--shm-folder",
        Setting::Namespace => "nvmeof list-ns",
        Setting::Blocks => "nvmeof id-ns: nsze",
        Setting::CompareAndWrite => "nvmeof id-ns: nacwu, nvmeof id-ctrl: acwu",
        Setting::Field => "nvmeof error-log",
        Setting::Reservations => "nvmeof resv-report",
        // For a subsystem `remedy` adds a complete command.
        _ => return None,
    })
}

/// The options that give `addr`.
fn options_of(addr: Address) -> String {
    match addr {
        Address::Ip(std::net::SocketAddr::V6(addr)) if addr.scope_id() != 0 => {
            format!("-a {}%{} -s {}", addr.ip(), addr.scope_id(), addr.port())
        }
        Address::Ip(addr) => format!("-a {} -s {}", addr.ip(), addr.port()),
        Address::Unix(_) => format!("-a {addr}"),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use clap::CommandFactory as _;
    use nvmeof_initiator::rdma::CloseReason;
    use nvmeof_initiator::{BlockRange, CommandError, Lost, LostCause, MachineError, Status};

    use super::*;
    use crate::args::Cli;

    fn command(status: Status) -> Error {
        let place = Some(BlockRange {
            nsid: 1,
            slba: 0,
            count: 8,
        });
        CommandError {
            command: "Read",
            status,
            result: 0,
            place,
        }
        .into()
    }

    fn refused(provider: &'static str) -> Error {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        Lost {
            addr: "192.0.2.1:4420".parse().unwrap(),
            qid: 0,
            provider,
            established: false,
            cause: LostCause::Network(CloseReason::network(&refused)),
        }
        .into()
    }

    #[test]
    fn remedies_name_options_of_this_program() {
        let no_target = MachineError::NoLocalTarget("nobody".to_owned());
        for (error, option) in [
            (refused("iwarp"), "(--traddr, --trsvcid)"),
            (refused("verbs"), "--provider iwarp"),
            (no_target.into(), "(--shm-folder)"),
            (MachineError::NoHostNqn.into(), "(--hostnqn)"),
            (MachineError::NoLastingHostId.into(), "(--hostid)"),
            (
                command(Status::RESERVATION_CONFLICT),
                "(nvmeof resv-report)",
            ),
            (command(Status::INVALID_NAMESPACE), "(nvmeof list-ns)"),
            (command(Status::LBA_OUT_OF_RANGE), "(nvmeof id-ns: nsze)"),
        ] {
            let text = remedy(&error).unwrap();
            assert!(text.contains(option), "{text}");
            let plain = error.to_string();
            assert!(
                !plain.contains("--") && !plain.contains("nvmeof "),
                "{plain}"
            );
        }
        assert_eq!(remedy(&command(Status::DATA_TRANSFER_ERROR)), None);
    }

    /// Named options and commands exist.
    #[test]
    fn named_options_and_commands_exist() {
        let cli = Cli::command();
        let long: Vec<&str> = cli
            .get_subcommands()
            .flat_map(clap::Command::get_arguments)
            .filter_map(clap::Arg::get_long)
            .collect();
        for setting in [
            Setting::Address,
            Setting::SocketPath,
            Setting::HostNqn,
            Setting::HostId,
            Setting::IoQueues,
            Setting::QueueSize,
            Setting::KeepAlive,
            Setting::CommandTimeout,
            Setting::SoftwareIwarp,
            Setting::ShmFolder,
            Setting::Namespace,
            Setting::Blocks,
            Setting::CompareAndWrite,
            Setting::Field,
            Setting::Reservations,
        ] {
            let words = setting_remedy(setting).unwrap().split([' ', ',']);
            for option in words.filter_map(|word| word.strip_prefix("--")) {
                assert!(long.contains(&option), "--{option}");
            }
            let commands = setting_remedy(setting).unwrap().split("nvmeof ").skip(1);
            for command in commands.filter_map(|rest| rest.split([':', ',']).next()) {
                assert!(cli.find_subcommand(command).is_some(), "{command}");
            }
        }
    }
}
