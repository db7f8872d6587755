//! Reservations by the commands of `nvmeof`: what each type excludes, preemption, several paths,
//! and a target that is killed.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use nvmeof_e2e::{HOST, NQN, Run, Setup, Target, ctl, eventually, free_port, managed};
use serde_json::Value;

/// Host identifiers of three hosts; the first two have the keys 1 and 2.
const HOSTS: [&str; 3] = [
    "2f4ab6fc-0f33-4d0e-a7ad-5b6f5c1c7e11",
    "2f4ab6fc-0f33-4d0e-a7ad-5b6f5c1c7e12",
    "2f4ab6fc-0f33-4d0e-a7ad-5b6f5c1c7e13",
];
const CONFLICT: &str = "Reservation Conflict (status 0x083, do not retry)";

fn setup() -> Setup {
    managed().file(1 << 20)
}

/// `nvmeof COMMAND` of one of the hosts.
fn by(target: &Target, host: usize, command: &str) -> Run {
    target.on(1, command).args(&format!("-I {}", HOSTS[host]))
}

fn ok(target: &Target, host: usize, command: &str) {
    by(target, host, command).ok();
}

fn read(target: &Target, host: usize) -> Run {
    by(target, host, "read --block-count 1 --data /dev/null")
}

fn write(target: &Target, host: usize) -> Run {
    by(target, host, "write --data -").stdin(&[7; 512])
}

fn report(target: &Target) -> Value {
    by(target, 2, "resv-report").json()
}

/// Keys, and whether each holds the reservation.
fn registrants(report: &Value) -> Vec<(u64, u64)> {
    let entries = report["regctlext"].as_array().unwrap().iter();
    let number = |entry: &Value, key: &str| entry[key].as_u64().unwrap();
    let mut all: Vec<_> = entries
        .map(|entry| (number(entry, "rkey"), number(entry, "rcsts")))
        .collect();
    all.sort_unstable();
    all
}

/// NVMe Base 2.1, 8.1.22: hosts 0, 1 and 2 are the holder, a registrant and another host.
#[test]
fn each_type_excludes_the_hosts_of_the_specification() {
    let target = setup().start();
    ok(&target, 0, "resv-register --nrkey 1");
    ok(&target, 1, "resv-register --nrkey 2");
    // Of each host: may it read, may it write?
    let (both, one, none) = ((true, true), (true, false), (false, false));
    for (rtype, permitted) in [
        (1, [both, one, one]),
        (2, [both, none, none]),
        (3, [both, both, one]),
        (4, [both, both, none]),
        (5, [both, both, one]),
        (6, [both, both, none]),
    ] {
        ok(&target, 0, &format!("resv-acquire -c 1 --rtype {rtype}"));
        for (host, (reads, writes)) in permitted.into_iter().enumerate() {
            for (access, is_permitted) in
                [(read(&target, host), reads), (write(&target, host), writes)]
            {
                match is_permitted {
                    true => drop(access.ok()),
                    false => drop(access.fails(1, &[CONFLICT, "nvmeof resv-report"])),
                }
            }
        }
        ok(&target, 0, &format!("resv-release -c 1 --rtype {rtype}"));
        write(&target, 2).ok();
    }
    target.stop();
}

#[test]
fn preemption_takes_the_reservation_and_the_registration() {
    let target = setup().start();
    ok(&target, 0, "resv-register --nrkey 1");
    ok(&target, 0, "resv-acquire -c 1 --rtype exclusive-access");
    let preempt =
        "resv-acquire -c 2 -p 1 --rtype write-exclusive-reg-only --racqa preempt-and-abort";
    by(&target, 1, preempt).fails(1, &["current key 0x2, key to preempt 0x1", CONFLICT]);
    ok(&target, 1, "resv-register --nrkey 2");
    assert_eq!(registrants(&report(&target)), [(1, 1), (2, 0)]);
    ok(&target, 1, preempt);
    let after = report(&target);
    assert_eq!((&after["rtype"], &after["regctl"]), (&3.into(), &1.into()));
    let hostid = HOSTS[1].replace('-', "");
    assert_eq!(after["regctlext"][0]["hostid"], hostid);
    let text = by(&target, 1, "resv-report").ok().text();
    assert!(
        text.contains(&format!("{} (this host)", HOSTS[1])),
        "{text}"
    );
    write(&target, 0).fails(1, &[CONFLICT]);
    by(&target, 0, "resv-release -c 1 --rtype 3").fails(1, &[CONFLICT]);
    write(&target, 1).ok();
    // A new key of the holder, then the end of its registration.
    ok(&target, 1, "resv-register -r replace -c 2 --nrkey 0x20");
    assert_eq!(registrants(&report(&target)), [(0x20, 1)]);
    ok(&target, 1, "resv-register -r unregister -c 0x20");
    assert_eq!(report(&target)["rtype"], 0);
    write(&target, 0).ok();
    target.stop();
}

#[test]
fn acknowledged_reservation_persists_if_requested_when_the_target_is_killed() {
    let setup = setup();
    for (change, persists) in [("set", true), ("clear", false)] {
        let mut target = setup.start();
        ok(
            &target,
            0,
            &format!("resv-register --nrkey 1 --cptpl {change}"),
        );
        ok(&target, 0, "resv-acquire -c 1 --rtype exclusive-access");
        target.kill();
        target = setup.start();
        let after = report(&target);
        match persists {
            true => {
                assert_eq!(registrants(&after), [(1, 1)]);
                assert_eq!((&after["rtype"], &after["ptpls"]), (&2.into(), &1.into()));
                read(&target, 1).fails(1, &[CONFLICT]);
                write(&target, 0).ok();
                ok(&target, 0, "resv-release -c 1 --rrela clear");
            }
            false => {
                assert_eq!((&after["rtype"], &after["regctl"]), (&0.into(), &0.into()));
                write(&target, 1).ok();
            }
        }
        target.stop();
    }
}

/// A registration belongs to the host, on whatever path.
#[test]
fn registration_is_valid_on_all_paths_of_the_host() {
    let ports = [free_port(), free_port()];
    let second = format!(
        "[[port]]\nid = 7\ntraddr = \"127.0.0.1\"\ntrsvcid = {}\nprovider = \"iwarp\"\n",
        ports[1]
    );
    let setup = managed().head(&second).port(ports[0]).file(1 << 20);
    let target = setup.start();
    let over = |ports: &[u16], host: usize, command: &str| {
        let addrs = ports.iter().map(|port| format!("127.0.0.1:{port}"));
        let addrs: Vec<String> = addrs.collect();
        Run::nvmeof(&format!("{command} -a {} -n {NQN}", addrs.join(",")))
            .args("--provider iwarp --namespace-id 1")
            .args(&format!("-q {HOST} -I {}", HOSTS[host]))
    };
    over(&ports[..1], 0, "resv-register --nrkey 1").ok();
    over(&ports[1..], 0, "resv-acquire -c 1 --rtype 2").ok();
    for ports in [&ports[..1], &ports[1..], &ports[..]] {
        over(ports, 0, "flush").ok();
        over(ports, 0, "write-zeroes --start-block 0 --block-count 8").ok();
        over(ports, 1, "write-zeroes --start-block 0 --block-count 8").fails(1, &[CONFLICT]);
        let report = over(ports, 1, "resv-report").json();
        assert_eq!(registrants(&report), [(1, 1)]);
    }
    target.stop();
}

#[test]
fn target_without_a_state_file_refuses_reservations() {
    let target = Setup::new().file(1 << 20).start();
    let register = by(&target, 0, "resv-register --nrkey 1");
    register.fails(1, &["Reservation Register failed", "control.state"]);
    write(&target, 0).ok();
    target.stop();
}

/// Its reservations are unknown: nobody may use it, and the others are served.
#[test]
fn namespace_waits_for_its_damaged_record() {
    let setup = setup().file(1 << 20);
    let target = setup.start();
    for nsid in [1, 2] {
        let register = target.on(nsid, "resv-register --nrkey 1 --cptpl set");
        register.args(&format!("-I {}", HOSTS[0])).ok();
    }
    target.stop();
    let folder = setup.path("state.json.namespaces");
    let mut records = std::fs::read_dir(&folder).unwrap();
    let record = records.find_map(|entry| {
        let path = entry.unwrap().path();
        path.to_str().unwrap().ends_with(".1").then_some(path)
    });
    let record = record.unwrap();
    let text = std::fs::read(&record).unwrap();
    std::fs::write(&record, &text[1..]).unwrap();
    let target = setup.start();
    write(&target, 1).fails(1, &["Asymmetric Access Inaccessible"]);
    target.on(2, "read --block-count 1 --data /dev/null").ok();
    let words = [
        "waiting for namespace 1",
        "is damaged",
        "move this file away",
    ];
    assert!(!target.lines(&words).is_empty(), "{}", target.log());
    let shown = ctl(&setup, "reservations").ok().text();
    assert!(shown.contains("UNKNOWN: namespace 1"), "{shown}");
    std::fs::write(&record, &text).unwrap();
    let served = eventually(|| {
        let run = by(&target, 0, "resv-report").end();
        (run.status == Some(0)).then_some(())
    });
    assert!(served.is_some(), "{}", target.log());
    assert_eq!(registrants(&report(&target)), [(1, 0)]);
    target.stop();
}

#[test]
fn reservations_are_exported_cleared_and_imported() {
    let setup = setup();
    let target = setup.start();
    let of_it = |verb: &str| format!("reservations {verb} --subsystem {NQN} 1");
    let none = ctl(&setup, &of_it("clear"));
    none.fails(2, &["no host is registered with namespace 1"]);
    ok(&target, 0, "resv-register --nrkey 1 --cptpl set");
    ok(&target, 1, "resv-register --nrkey 2 --cptpl set");
    ok(&target, 0, "resv-acquire -c 1 --rtype 3");
    let exported = ctl(&setup, &of_it("export")).ok().text();
    let import = |text: &str| ctl(&setup, &format!("{} -", of_it("import"))).stdin(text.as_bytes());
    import(&exported).fails(1, &["hosts are registered already"]);
    ctl(&setup, &of_it("clear")).ok();
    write(&target, 2).ok();
    import("{}").fails(1, &["is not what `ctl reservations export` prints"]);
    let text = exported.replace("0x0000000000000001", "1");
    import(&text).fails(2, &["is not 0x and up to 16 hexadecimal digits"]);
    import(&exported).ok();
    assert_eq!(registrants(&report(&target)), [(1, 1), (2, 0)]);
    write(&target, 2).fails(1, &[CONFLICT]);
    write(&target, 1).ok();
    // Also of a namespace that is not served.
    ctl(&setup, "namespace disable 1").ok();
    ctl(&setup, &of_it("clear")).ok();
    ctl(&setup, "namespace enable 1").ok();
    write(&target, 2).ok();
    target.stop();
}

#[test]
fn hosts_with_one_identifier_are_named() {
    let setup = setup();
    let target = setup.start();
    let load = format!("bench --rw randread --bs 4k -n {NQN} --namespace-id 1 --runtime 600");
    let mut both = [HOST, "nqn.2026-11.org.example:other"].map(|host| {
        let addr = target.address();
        let at = format!(
            "-a {} -s {} -q {host} -I {}",
            addr.ip(),
            addr.port(),
            HOSTS[0]
        );
        Run::nvmeof(&load).args(&at).start()
    });
    let shown = eventually(|| {
        let status = ctl(&setup, "status").ok().text();
        status
            .contains("have the same host identifier")
            .then_some(status)
    });
    let shown = shown.unwrap_or_else(|| panic!("{}", target.log()));
    assert!(
        shown.contains("WARNING: hosts") && shown.contains("/etc/nvme/hostid"),
        "{shown}"
    );
    let words = ["which has the host identifier of"];
    assert!(!target.lines(&words).is_empty(), "{}", target.log());
    both.iter_mut().for_each(|one| assert!(one.runs()));
    drop(both);
    target.stop();
}
