//! Many concurrent changes, as a volume driver makes them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use nvmeof_e2e::{ask, ctl, managed};

/// Number of concurrent clients.
const CLIENTS: usize = 40;
const MIB: usize = 1 << 20;

fn volume(number: usize) -> String {
    format!("nqn.2026-11.org.example:volume-{number}")
}

#[test]
fn concurrent_clients_add_subsystems_and_namespaces() {
    let setup = managed().file(4 * MIB);
    let target = setup.start();
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let setup = &setup;
            scope.spawn(move || {
                let nqn = volume(number);
                ctl(setup, &format!("subsystem add {nqn} --host any")).ok();
                ctl(setup, &format!("namespace add null:1M --subsystem {nqn}")).ok();
            });
        }
    });
    let status = ask(&setup, "status");
    let all = status["subsystems"].as_array().unwrap();
    assert_eq!(all.len(), CLIENTS + 1, "{status}");
    for one in all {
        assert_eq!(one["namespaces"].as_array().unwrap().len(), 1, "{one}");
    }
    assert_eq!(status["saved"], true);
    target.stop();
}

#[test]
fn subsystem_is_added_with_all_namespaces_or_not_at_all() {
    let setup = managed().file(4 * MIB);
    let target = setup.start();
    let nqn = volume(1);
    let missing = setup.path("missing.img");
    let half = format!(
        "subsystem add {nqn} --host any --namespace path=null:1M --namespace path={}",
        missing.display()
    );
    ctl(&setup, &half).fails(2, &["missing.img"]);
    let subsystems = || {
        ask(&setup, "status")["subsystems"]
            .as_array()
            .unwrap()
            .len()
    };
    assert_eq!(subsystems(), 1);
    let whole = format!(
        "subsystem add {nqn} --host any --namespace path=null:1M,nsid=7 --namespace \
         path=ram:1M,block_size=4096,readonly=true"
    );
    let added = ask(&setup, &whole);
    assert_eq!(added["edits"].as_array().unwrap().len(), 3, "{added}");
    let status = ask(&setup, "status");
    let its = status["subsystems"].as_array().unwrap().iter();
    let its = its.clone().find(|one| one["nqn"] == *nqn).unwrap();
    assert_eq!(its["namespaces"][0]["nsid"], 1, "{its}");
    assert_eq!(its["namespaces"][0]["block_size"], 4096, "{its}");
    assert_eq!(its["namespaces"][1]["nsid"], 7, "{its}");
    // A driver that lost the response repeats its request.
    let again = ask(&setup, &whole);
    assert_eq!(again["changes"].as_array().unwrap().len(), 0, "{again}");
    let output = ctl(&setup, &whole).ok().text();
    assert!(output.contains("exists already as requested"), "{output}");
    assert_eq!(subsystems(), 2);
    ctl(&setup, &format!("subsystem add {nqn}")).fails(2, &["already"]);
    ctl(
        &setup,
        "subsystem add nqn.2026-11.org.example:x --namespace size=1M",
    )
    .fails(2, &["size", "unknown key"]);
    target.stop();
}
