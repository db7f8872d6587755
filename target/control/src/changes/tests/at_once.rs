//! Concurrent changes from several threads.

use std::collections::BTreeMap;
use std::sync::Barrier;

use super::*;

/// Threads, each with a document of its own.
const THREADS: u32 = 6;
/// How often each applies it.
const ROUNDS: usize = 8;
/// Namespaces of a document; their NSIDs identify its author.
const NAMESPACES: u32 = 4;

/// The thread whose document has these namespaces, all of them and no other. 0 is the
/// configuration file.
fn author(nsids: &[u32]) -> u32 {
    let owner = nsids.first().map_or(0, |first| first / 100);
    assert_eq!(nsids, of(owner), "half of a document");
    owner
}

fn of(author: u32) -> Vec<u32> {
    match author {
        0 => vec![1],
        author => (0..NAMESPACES).map(|at| author * 100 + at).collect(),
    }
}

/// The authors of the old and the new document, by the namespaces that were removed and added.
fn step(outcome: &Outcome) -> Option<(u32, u32)> {
    let changes = outcome.report.to_json_list();
    let nsids = |end: &str| -> Vec<u32> {
        let texts = changes.iter().filter_map(|one| one["text"].as_str());
        let its = texts.filter_map(|text| text.split_once("namespace ")?.1.strip_suffix(end));
        let mut nsids: Vec<_> = its.map(|nsid| nsid.parse().unwrap()).collect();
        nsids.sort_unstable();
        nsids
    };
    let (gone, come) = (nsids(" is removed"), nsids(" is added"));
    if changes.is_empty() {
        return None;
    }
    Some((author(&gone), author(&come)))
}

#[test]
fn concurrent_applies_are_serialized() {
    let scene = Scene::new();
    let daemon = scene.start();
    let document = |author: u32| {
        let namespaces: Vec<_> = of(author).iter().map(|nsid| (*nsid, "ram:1M")).collect();
        scene.text(&namespaces, "allow_any_host = true")
    };
    let together = Barrier::new(usize::try_from(THREADS).unwrap());
    let outcomes: Vec<(u32, Outcome)> = std::thread::scope(|scope| {
        let threads = (1..=THREADS).map(|author| {
            let (daemon, document, together) = (&daemon, &document, &together);
            scope.spawn(move || {
                let text = document(author);
                let apply = |_| {
                    together.wait();
                    let name = format!("{author}.toml");
                    (author, daemon.keeper.apply(name, text.clone()).unwrap())
                };
                (0..ROUNDS).map(apply).collect::<Vec<_>>()
            })
        });
        let threads: Vec<_> = threads.collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    let last = author(&daemon.nsids());
    assert_ne!(last, 0, "one of them is served");
    // Each outcome has one whole document that was removed and its own that was added. All steps
    // together lead from the file to the last document: every other one was removed as often as
    // it was added.
    let mut balance = BTreeMap::<u32, i64>::new();
    for (author, outcome) in &outcomes {
        assert!(outcome.saved && outcome.warnings.is_empty(), "{outcome:?}");
        if let Some((from, to)) = step(outcome) {
            assert_eq!(to, *author, "{outcome:?}");
            *balance.entry(from).or_default() -= 1;
            *balance.entry(to).or_default() += 1;
        }
    }
    balance.retain(|_, sum| *sum != 0);
    assert_eq!(balance, [(0, -1), (last, 1)].into());
    // What is saved is what is served.
    let shown = daemon.keeper.show();
    assert_eq!(shown.text, document(last));
    assert_eq!(shown.applied, Some(format!("{last}.toml")));
    drop(daemon);
    let daemon = scene.start();
    assert_eq!(daemon.keeper.show().text, shown.text);
    assert_eq!(author(&daemon.nsids()), last);
}

#[test]
fn concurrent_changes_are_all_made() {
    let scene = Scene::new();
    let daemon = scene.start();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let made = daemon.edit(add("ram:1M")).unwrap();
                let Edit::NamespaceAdd(one) = &made.edits[0] else {
                    panic!("{made:?}");
                };
                let other = daemon.edit(add("null:1M")).unwrap();
                assert_eq!(other.edits.len(), 1);
                daemon.edit(remove(one.nsid.unwrap())).unwrap();
            });
        }
    });
    assert_eq!(daemon.nsids().len(), 9);
    assert_eq!(daemon.keeper.show().edits.len(), 8);
    let shown = daemon.keeper.show();
    drop(daemon);
    assert_eq!(scene.start().keeper.show().text, shown.text);
}
