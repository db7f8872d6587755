//! Valid and invalid command lines.

use clap::CommandFactory;

use super::*;

fn parse(line: &str) -> Result<Command, clap::error::ErrorKind> {
    let cli = Cli::try_parse_from(line.split_whitespace());
    cli.map(|cli| cli.command).map_err(|error| error.kind())
}

#[test]
fn command_line_definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn documented_command_lines_parse() {
    let nqn = "nqn.2026-11.org.example:disk";
    for line in [
        "nvmeof discover -t rdma -a 127.0.0.1 -s 4420 -o json".to_owned(),
        format!("nvmeof id-ctrl -t rdma -a 127.0.0.1 -s 4420 -n {nqn} -o json"),
        format!("nvmeof id-ns -t rdma -a ::1 -n {nqn} --namespace-id 1"),
        format!("nvmeof id-ctrl -a unix:/run/nvmeof/nvmeof.sock -n {nqn}"),
        format!("nvmeof list-ns -t rdma -a host -n {nqn} -q {nqn}"),
        format!("nvmeof smart-log -a ::1 -n {nqn} -k 0"),
        format!("nvmeof error-log -a ::1 -n {nqn} -e 8"),
        format!("nvmeof get-log -a ::1 -n {nqn} --log-id 0x70 --log-len 1024 -b"),
        format!("nvmeof read -a ::1 -n {nqn} --namespace-id 1 --start-block 0 --data -"),
        format!("nvmeof write -a ::1 -n {nqn} --namespace-id 1 --data f -i 2 -Q 33"),
        format!("nvmeof compare -a ::1 -n {nqn} --namespace-id 1 --data f"),
        format!("nvmeof flush -a ::1 -n {nqn} --namespace-id 1"),
        format!("nvmeof verify -a ::1 -n {nqn} --namespace-id 1"),
        format!("nvmeof copy -a ::1 -n {nqn} --namespace-id 1 --slbs 0 --blocks 8 --sdlba 64"),
        format!(
            "nvmeof compare-write -a ::1 -n {nqn} --namespace-id 1 --start-block 8 \
             --compare old --data -"
        ),
        format!(
            "nvmeof write-zeroes -a ::1 -n {nqn} --namespace-id 1 \
             --start-block 0 --block-count 8"
        ),
        format!("nvmeof dsm -a ::1 -n {nqn} --namespace-id 1 --slbs 0,8 --blocks 1,1 --ad"),
        format!(
            "nvmeof bench -a ::1 -n {nqn} --namespace-id 1 --rw randread --bs 4k \
             --iodepth 32 --nr-io-queues 1 --runtime 10 --interface async -o json"
        ),
    ] {
        assert!(parse(&line).is_ok(), "{line}");
    }
}

#[test]
fn invalid_command_lines_are_refused() {
    let too_long = format!("nvmeof id-ctrl -a ::1 -n {}", "x".repeat(224));
    for line in [
        "nvmeof",
        "nvmeof discover -t rdma",
        "nvmeof discover -t tcp -a ::1",
        &too_long,
        "nvmeof read -a ::1 -n nqn.2026-11.org.example:disk --data -",
        "nvmeof discover -a ::1 -I 00000000-0000-0000-0000-000000000000",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
}

#[test]
fn copy_and_dsm_have_the_same_range_options() {
    let mut cli = Cli::command();
    let mut help = |name: &str| {
        let command = cli.find_subcommand_mut(name).unwrap();
        let args = command.get_arguments();
        let args =
            args.filter(|arg| ["start_block", "block_count"].contains(&arg.get_id().as_str()));
        let texts = args.map(|arg| arg.get_help().map(ToString::to_string).unwrap());
        texts.collect::<Vec<_>>()
    };
    assert_eq!(help("copy").len(), 2);
    assert_eq!(help("copy"), help("dsm"));
    for (count, pairs) in [("1,2", Some(2)), ("1", None)] {
        let line = format!(
            "nvmeof dsm -a ::1 -n nqn.2026-11.org.example:disk --namespace-id 1 \
             --start-block 8,0 --block-count {count}"
        );
        let Ok(Command::Dsm(dsm)) = parse(&line) else {
            panic!("{line}");
        };
        assert_eq!(dsm.ranges.pairs().ok().map(|pairs| pairs.len()), pairs);
    }
}

/// The required options of a command, besides those of a target.
fn required_options(command: &str) -> &'static str {
    match command {
        "discover" => "",
        "id-ctrl" | "list-ns" | "smart-log" | "error-log" => "-n x",
        "get-log" => "-n x --log-id 1 --log-len 4",
        "read" | "write" | "compare" => "-n x --namespace-id 1 --data -",
        "compare-write" => "-n x --namespace-id 1 --start-block 1 --compare a --data -",
        "copy" => "-n x --namespace-id 1 --start-block 1 --block-count 1 --to 9",
        "write-zeroes" | "dsm" => "-n x --namespace-id 1 --start-block 1 --block-count 1",
        _ => "-n x --namespace-id 1",
    }
}

#[test]
fn every_number_may_be_hexadecimal() {
    let numeric = [
        "N", "LBA", "LBA,..", "N,..", "PORT", "S", "SIZE", "ID", "PERCENT",
    ];
    let mut found = 0;
    for command in Cli::command().get_subcommands() {
        let name = command.get_name();
        for arg in command.get_arguments() {
            let values = arg.get_value_names().unwrap_or_default();
            if !values.iter().any(|value| numeric.contains(&value.as_str())) {
                continue;
            }
            let option = arg.get_long().unwrap();
            let mut cli = Cli::command();
            cli = cli.mut_subcommand(name, |one| one.args_override_self(true));
            let line = format!(
                "nvmeof {name} -a ::1 {} --{option} 0x10",
                required_options(name)
            );
            let parsed = cli.try_get_matches_from(line.split_whitespace());
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
            found += 1;
        }
    }
    assert!(found > 60, "{found}");
}

#[test]
fn commands_have_the_same_queue_option() {
    let mut cli = Cli::command();
    let mut help = |name: &str| {
        let command = cli.find_subcommand_mut(name).unwrap();
        let arg = command
            .get_arguments()
            .find(|arg| arg.get_short() == Some('i'));
        let arg = arg.unwrap();
        (
            arg.get_long().map(str::to_owned),
            arg.get_help().map(ToString::to_string),
        )
    };
    assert_eq!(help("read"), help("bench"));
    for command in ["read --data -", "bench"] {
        for (queues, taken) in [
            ("0", false),
            ("999", true),
            ("65535", true),
            ("65536", false),
        ] {
            let line = format!("nvmeof {command} -a ::1 -n x --namespace-id 1 -i {queues}");
            assert_eq!(parse(&line).is_ok(), taken, "{line}");
        }
    }
}

#[test]
fn help_describes_common_conventions() {
    let help = Cli::command().term_width(80).render_long_help().to_string();
    for word in ["NVMEOF_LOG", "NO_COLOR", "0x10", "KiB", "-o json", "130"] {
        assert!(help.contains(word), "{word}: {help}");
    }
    assert!(
        help.lines().all(|line| line.chars().count() <= 80),
        "{help}"
    );
}

#[test]
fn help_fits_eighty_columns() {
    let mut cli = Cli::command().term_width(80);
    cli.build();
    for command in cli.get_subcommands_mut() {
        let help = command.render_long_help().to_string();
        for line in help.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}
