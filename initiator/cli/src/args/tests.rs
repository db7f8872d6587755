//! Valid and invalid command lines.

use nvmeof_wire::admin::Select;

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
        "nvmeof discover -a ::1 --watch".to_owned(),
        "nvmeof connect-all -a 127.0.0.1 -k 10 -o json".to_owned(),
        format!("nvmeof id-ctrl -t rdma -a 127.0.0.1 -s 4420 -n {nqn} -o json"),
        format!("nvmeof id-ns -t rdma -a ::1 -n {nqn} --namespace-id 1"),
        format!("nvmeof id-ctrl -a unix:/run/nvmeof/nvmeof.sock -n {nqn}"),
        format!("nvmeof list-ns -t rdma -a host -n {nqn} -q {nqn}"),
        format!("nvmeof smart-log -a ::1 -n {nqn} -k 0"),
        format!("nvmeof error-log -a ::1 -n {nqn} -e 8"),
        format!("nvmeof get-log -a ::1 -n {nqn} --log-id 0x70 --log-len 1024 -b"),
        format!("nvmeof get-log -a ::1 -n {nqn} -i 0x70 -l 1024"),
        format!("nvmeof ana-log -a ::1 -n {nqn} -g"),
        format!("nvmeof get-feature -a ::1 -n {nqn}"),
        format!("nvmeof get-feature -a ::1 -n {nqn} -f 0xe --sel 1 -c 0 -l 8 -b"),
        format!("nvmeof get-feature -a ::1 -n {nqn} -f 0x84 --namespace-id 1 -H"),
        format!("nvmeof set-feature -a ::1 -n {nqn} -f 6 -V 0 -c 0 --save"),
        format!("nvmeof set-feature -a ::1 -n {nqn} -f 0x16 -d - -l 512"),
        format!("nvmeof read -a ::1 -n {nqn} --namespace-id 1 -c 0 -z 512 -d -"),
        format!("nvmeof write -a ::1 -n {nqn} --namespace-id 1 -z 4KiB -d f -f"),
        format!("nvmeof verify -a ::1 -n {nqn} --namespace-id 1 -c 7"),
        format!("nvmeof write-zeroes -a ::1 -n {nqn} --namespace-id 1 --start-block 8 -c 7 -d -f"),
        format!("nvmeof dsm -a ::1 -n {nqn} --namespace-id 1 --start-block 0,8 -b 1,1 -d"),
        format!("nvmeof copy -a ::1 -n {nqn} --namespace-id 1 --start-block 0 -b 7 -d 64 -f"),
        format!("nvmeof read -a ::1 -n {nqn} --namespace-id 1 --start-block 0 --data -"),
        format!("nvmeof write -a ::1 -n {nqn} --namespace-id 1 --data f -i 2 -Q 33"),
        format!("nvmeof compare -a ::1 -n {nqn} --namespace-id 1 --data f"),
        format!("nvmeof flush -a ::1 -n {nqn} --namespace-id 1"),
        format!("nvmeof verify -a ::1 -n {nqn} --namespace-id 1"),
        format!("nvmeof copy -a ::1 -n {nqn} --namespace-id 1 --slbs 0 -b 7 --sdlba 64"),
        format!(
            "nvmeof write -a ::1,unix:/run/a -a [::1]:4421 -n {nqn} --namespace-id 1 -d f \
             --reconnect-delay 2 --ctrl-loss-tmo -1 --fast_io_fail_tmo 5 --iopolicy queue-depth"
        ),
        format!(
            "nvmeof compare-write -a ::1 -n {nqn} --namespace-id 1 --start-block 8 \
             --compare old --data -"
        ),
        format!(
            "nvmeof write-zeroes -a ::1 -n {nqn} --namespace-id 1 \
             --start-block 0 --block-count 8"
        ),
        format!("nvmeof dsm -a ::1 -n {nqn} --namespace-id 1 --slbs 0,8 --blocks 1,1 --ad"),
        format!("nvmeof resv-register -a ::1 -n {nqn} --namespace-id 1 --nrkey 1 -p set"),
        format!("nvmeof resv-register -a ::1 -n {nqn} --namespace-id 1 -r 1 -c 1"),
        format!("nvmeof resv-acquire -a ::1,::2 -n {nqn} --namespace-id 1 -c 1 --rtype 1"),
        format!("nvmeof resv-release -a ::1 -n {nqn} --namespace-id 1 -c 1 --rrela clear"),
        format!("nvmeof resv-report -a ::1 -n {nqn} --namespace-id 1 -d 3 -e -o json"),
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
        "nvmeof discover -a ::1 -p",
        "nvmeof connect-all -a ::1 -k 0",
        &too_long,
        "nvmeof read -a ::1 -n nqn.2026-11.org.example:disk --data -",
        "nvmeof discover -a ::1 -I 00000000-0000-0000-0000-000000000000",
        "nvmeof id-ctrl -a ::1 -a ::2 -n x",
        "nvmeof flush -a ::1 -n x --namespace-id 1 -k 0",
        "nvmeof flush -a ::1 -n x --namespace-id 1 --ctrl-loss-tmo -2",
        "nvmeof flush -a ::1 -n x --namespace-id 1 --reconnect-delay 0",
        "nvmeof flush -a ::1 -n x --namespace-id 1 --iopolicy fastest",
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
        "discover" | "connect-all" => "",
        "id-ctrl" | "list-ns" | "smart-log" | "error-log" | "ana-log" => "-n x",
        "get-feature" => "-n x -f 1",
        "set-feature" => "-n x -f 1 --data f",
        "get-log" => "-n x --log-id 1 --log-len 4",
        "read" | "write" | "compare" => "-n x --namespace-id 1 --data -",
        "compare-write" => "-n x --namespace-id 1 --start-block 1 --compare a --data -",
        "copy" => "-n x --namespace-id 1 --start-block 1 --block-count 1 --to 9",
        "resv-acquire" => "-n x --namespace-id 1 --crkey 1 --rtype 1",
        "resv-release" => "-n x --namespace-id 1 --crkey 1",
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
            // It excludes the number of blocks that is counted from 1.
            let required = match option {
                "nlb" => required_options(name).replace("--block-count 1", ""),
                _ => required_options(name).to_owned(),
            };
            let line = format!("nvmeof {name} -a ::1 {required} --{option} 0x10");
            let parsed = cli.try_get_matches_from(line.split_whitespace());
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
            found += 1;
        }
    }
    assert!(found > 80, "{found}");
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

/// The message about an invalid command line, in one line.
fn refusal(line: &str) -> String {
    let error = Cli::try_parse_from(line.split_whitespace()).unwrap_err();
    error
        .to_string()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn short_options_of_nvme_cli_with_another_meaning_are_refused() {
    for (line, said) in [
        ("read -n 1 --namespace-id 1 -d f", "--namespace-id"),
        ("read -n 0x1 -d f", "--namespace-id"),
        ("id-ns -n 1 --namespace-id 1", "a number is not an NQN"),
        ("write -n x --namespace-id 1 -d f -s 0", "--start-block"),
        ("get-feature -n x -f 6 -s 0", "--sel"),
        (
            "write -n x --namespace-id 1 -d f -s 100000",
            "-s is the port",
        ),
        ("read -n x --namespace-id 1 -d f -z 4k", "1000 in nvme-cli"),
        ("read -n x --namespace-id 1 -d f -c 65536", "(0-65535)"),
        (
            "read -n x --namespace-id 1 -d f -c 0 --block-count 1",
            "cannot be used with",
        ),
        (
            "copy -n x --namespace-id 1 --to 9 --start-block 0 -b 0 --block-count 1",
            "cannot be used with",
        ),
        (
            "copy -n x --namespace-id 1 --to 9 --start-block 0",
            "--block-count",
        ),
        (
            "copy -n x --namespace-id 1 --to 9 --start-block 0 --blocks 7",
            "--blocks of nvme copy counts from 0",
        ),
        ("get-feature -n x -f 0", "(1-255)"),
        ("get-feature -n x -f 6 --sel 4", "current, default, saved"),
        ("get-feature -n x -f 14 -l 4097", "(0-4096)"),
        ("get-feature -n x -b", "--feature-id"),
        ("set-feature -n x -V 1", "--feature-id"),
        ("set-feature -n x -f 22 -l 8", "--data"),
    ] {
        let error = refusal(&format!("nvmeof {line} -a ::1"));
        assert!(error.contains(said), "{line}: {error}");
    }
}

fn run(line: &str) -> (Run, Target) {
    match parse(&format!(
        "nvmeof read -a ::1 -n x --namespace-id 1 -d f {line}"
    )) {
        Ok(Command::Read(read)) => (read.run, read.io.subsystem.target),
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn blocks_are_counted_from_0_or_1_or_in_bytes() {
    for (line, count, option) in [
        ("", None, "--data-size"),
        ("--block-count 8", Some(8), "--block-count"),
        ("-c 0", Some(1), "--nlb"),
        ("--nlb 65535", Some(65536), "--nlb"),
        ("-z 4096", Some(8), "--data-size"),
        ("-z 4KiB -c 7", Some(8), "--nlb"),
        (
            "--data-size 0x1000 --block-count 8",
            Some(8),
            "--block-count",
        ),
    ] {
        let (run, _) = run(line);
        let extent = run.extent(512).unwrap();
        assert_eq!(
            (extent.start, extent.count, extent.option),
            (0, count, option)
        );
    }
    for (line, said) in [
        (
            "-z 4095",
            "--data-size 4095 is not a whole number of blocks of 512",
        ),
        ("-z 18446744073709551615", "not a whole number"),
        (
            "-z 4096 -c 8",
            "4096 is 8 blocks of 512 bytes, --nlb is 9 blocks",
        ),
        ("-z 4096 --block-count 7", "--block-count is 7 blocks"),
    ] {
        let error = format!("{:?}", run(line).0.extent(512).unwrap_err());
        assert!(error.contains(said), "{line}: {error}");
    }
}

#[test]
fn port_that_may_be_a_block_is_refused() {
    for (line, ambiguous) in [
        ("-s 4420", false),
        ("-s 4420 -c 0", true),
        ("-s 4420 -z 512", true),
        ("-s 4420 -z 512 --start-block 0", false),
        ("-s 4420 --block-count 1", false),
        ("-c 0 -z 512", false),
    ] {
        let (run, target) = run(line);
        let error = run.check(&target).map_err(|error| format!("{error:?}"));
        assert_eq!(error.is_err(), ambiguous, "{line}");
        if let Err(error) = error {
            assert!(
                error.contains("-s 4420 is the port (--trsvcid)")
                    && error.contains("--start-block"),
                "{error}"
            );
        }
    }
    for (line, ambiguous) in [
        ("-s 3", true),
        ("-s 3 --sel current", false),
        ("-s 4420", false),
        ("--sel 3", false),
    ] {
        let line = format!("nvmeof get-feature -a ::1 -n x -f 6 {line}");
        let Ok(Command::GetFeature(get)) = parse(&line) else {
            panic!("{line}");
        };
        let error = get.check().map_err(|error| format!("{error:?}"));
        assert_eq!(error.is_err(), ambiguous, "{line}");
        assert!(error.map_or_else(|text| text.contains("--sel"), |()| true));
    }
}

#[test]
fn selection_has_names_and_numbers_of_nvme_cli() {
    for (text, select) in [
        ("current 0", Select::Current),
        ("default 1", Select::Default),
        ("saved 2", Select::Saved),
        ("supported 0x3", Select::Capabilities),
    ] {
        for text in text.split(' ') {
            let line = format!("nvmeof get-feature -a ::1 -n x --sel {text}");
            let Ok(Command::GetFeature(get)) = parse(&line) else {
                panic!("{line}");
            };
            assert_eq!(get.select(), select, "{text}");
        }
    }
}

#[test]
fn ranges_of_copy_are_counted_from_0_or_1() {
    for (line, expected) in [
        ("--block-count 1,8", Ok([1, 8])),
        ("-b 0,7", Ok([1, 8])),
        ("--nlb 0", Err("--start-block has 2 values, --nlb has 1")),
    ] {
        let line =
            format!("nvmeof copy -a ::1 -n x --namespace-id 1 --start-block 0,9 --to 99 {line}");
        let Ok(Command::Copy(copy)) = parse(&line) else {
            panic!("{line}");
        };
        match (copy.from.pairs(), expected) {
            (Ok(pairs), Ok(counts)) => {
                assert!(pairs.iter().map(|range| range.count).eq(counts), "{line}");
            }
            (Err(error), Err(said)) => assert!(format!("{error:?}").contains(said)),
            (got, _) => panic!("{line}: {got:?}"),
        }
    }
    let line = "nvmeof write-zeroes -a ::1 -n x --namespace-id 1 --start-block 0";
    for (count, blocks) in [("-c 7", Some(8)), ("--block-count 8", Some(8)), ("", None)] {
        let Ok(Command::WriteZeroes(zeroes)) = parse(&format!("{line} {count}")) else {
            panic!("{count}");
        };
        assert_eq!(zeroes.count.required().ok(), blocks, "{count}");
    }
}

/// Target and options of `nvmeof flush` with the options in `line`.
fn flush(line: &str) -> Io {
    match parse(&format!("nvmeof flush -n x --namespace-id 1 {line}")) {
        Ok(Command::Flush(flush)) => flush.io,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn addresses_of_paths_are_separated_by_commas_or_repeated() {
    let expected = ["[::1]:4420", "127.0.0.1:4421", "unix:/run/a"];
    let expected = expected.map(|addr| addr.parse::<Address>().unwrap());
    for line in [
        "-a ::1,127.0.0.1:4421,unix:/run/a",
        "-a ::1 -a 127.0.0.1:4421 -a unix:/run/a",
        "-a ::1 -a 127.0.0.1:4421,unix:/run/a",
    ] {
        let paths = flush(line).paths().unwrap();
        let addrs: Vec<Address> = paths.iter().map(|path| path.addr).collect();
        assert_eq!(addrs, expected, "{line}");
        assert!(paths.iter().all(|path| path.io_queues == 1));
    }
    let refused = |io: &Io| format!("{:?}", io.paths().unwrap_err());
    let twice = refused(&flush("-a ::1,[::1]:4420"));
    assert!(
        twice.contains("::1,[::1]:4420 has [::1]:4420 twice"),
        "{twice}"
    );
    let port = refused(&flush("-a ::1,127.0.0.1:4421 -s 4420"));
    assert!(port.contains("has port 4421"), "{port}");
    // The path of a Unix socket may have a comma.
    let [comma, other] = ["unix:/run/a,b", "unix:/c"].map(|addr| addr.parse::<Address>().unwrap());
    let escaped = flush(r"-a unix:/run/a\,b,unix:/c").paths().unwrap();
    let addrs: Vec<Address> = escaped.iter().map(|path| path.addr).collect();
    assert_eq!(addrs, [comma, other]);
    let unescaped = refused(&flush("-a unix:/run/a,/b"));
    assert!(unescaped.contains("for a comma in the path"), "{unescaped}");
    for path in ["unix:/run/a,b", r"unix:/run/a\,b"] {
        let Ok(Command::IdCtrl(id)) = parse(&format!("nvmeof id-ctrl -a {path} -n x")) else {
            panic!("not parsed");
        };
        assert_eq!(id.subsystem.options().unwrap().addr, comma);
    }
    // Other commands use one path.
    let Ok(Command::IdCtrl(id)) = parse("nvmeof id-ctrl -a ::1,::2 -n x") else {
        panic!("not parsed");
    };
    let several = format!("{:?}", id.subsystem.options().unwrap_err());
    assert!(
        several.contains("::1,::2 has several addresses"),
        "{several}"
    );
}

#[test]
fn reconnect_options_have_meanings_of_nvme_connect() {
    let seconds = Duration::from_secs;
    for (line, delay, ctrl_loss, fast_io_fail) in [
        ("", 1, Some(600), None),
        ("--ctrl-loss-tmo=-1 --fast_io_fail_tmo -1", 1, None, None),
        (
            "--reconnect-delay 10 --ctrl-loss-tmo 0 --fast-io-fail-tmo 0x10",
            10,
            Some(0),
            Some(16),
        ),
    ] {
        let reconnects = flush(&format!("-a ::1 {line}")).reconnects;
        let options = reconnects.options().reconnect;
        assert_eq!(options.reconnect_delay, seconds(delay), "{line}");
        assert_eq!(options.ctrl_loss, ctrl_loss.map(seconds), "{line}");
        assert_eq!(options.fast_io_fail, fast_io_fail.map(seconds), "{line}");
        assert_eq!(reconnects.is_enabled(), ctrl_loss != Some(0), "{line}");
    }
}
