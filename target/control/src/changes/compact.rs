//! A list of edits of bounded length: edits that a later one overrides are removed.

use super::document::Document;
use nvmeof_target_api::Deferred;
use nvmeof_target_api::Edit;

/// Adds `edit` to `edits`, which are applied to `base` in order. The result is the same as if it
/// were appended.
pub(super) fn add(base: &Document, edits: &mut Vec<Edit>, mut edit: Edit) {
    let before = edits.len();
    if edit.overrides() {
        let slot = edit.slot();
        edits.retain(|earlier| !slot.holds(&earlier.slot()));
    }
    // The object it removes may have come from an edit that was just dropped, and the value it
    // sets may be that of the base.
    let is_shorter = edits.len() < before;
    if is_shorter && edit.replaces_mut().is_some() {
        // It replaces what the edits before those that were just dropped leave.
        with(base, edits).record(&mut edit);
    }
    if !(edit.takes_away() || is_shorter) || has_effect(base, edits, &edit) {
        edits.push(edit);
    }
}

/// Removes and returns the `deferred` edits that only add something, with the deferred edits of
/// what they add. They are placed behind the edits in effect, so that they conflict with none of
/// these when they fit again.
///
/// An edit that removes something stays in place: behind a later edit it would remove what that
/// one added.
pub(super) fn take_late(edits: &mut Vec<Edit>, deferred: &[Deferred]) -> Vec<Edit> {
    let mut late: Vec<Edit> = Vec::new();
    edits.retain(|edit| {
        let follows = late.iter().any(|one| one.slot().holds(&edit.slot()));
        let is_late = (follows || edit.only_adds()) && deferred.iter().any(|one| one.edit == *edit);
        if is_late {
            late.push(edit.clone());
        }
        !is_late
    });
    late
}

/// Whether the edit fits after the others and changes anything.
fn has_effect(base: &Document, edits: &[Edit], edit: &Edit) -> bool {
    let mut document = with(base, edits);
    let before = document.text();
    document.make(edit).is_ok() && document.text() != before
}

/// The document with the edits.
fn with(base: &Document, edits: &[Edit]) -> Document {
    let mut document = base.clone();
    for edit in edits {
        // An edit that does not fit at present has no effect.
        let _ = document.make(edit);
    }
    document
}

#[cfg(test)]
mod tests {
    use toml::{Table, Value};

    use super::*;
    use nvmeof_target_api::{HostKeys, NamespaceAdd};

    const BASE: &str = "[[port]]\ntraddr = \"10.0.0.1\"\n\
        [[subsystem]]\nnqn = \"a\"\nallow_any_host = true\n\
        [[subsystem.namespace]]\nnsid = 1\npath = \"one\"\n\
        [[subsystem]]\nnqn = \"b\"\nallowed_hosts = [\"x\"]\n\
        [[host]]\nnqn = \"x\"\nkey_file = \"/p\"\nold_key_file = \"/q\"\n";

    /// Pseudo-random numbers with a fixed seed.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (self.0 >> 33) % end
        }

        fn one_of(&mut self, all: &[&str]) -> String {
            let at = self.below(all.len() as u64);
            all[usize::try_from(at).unwrap()].to_owned()
        }
    }

    fn random(numbers: &mut Numbers) -> Edit {
        let nqn = numbers.one_of(&["a", "b", "c"]);
        let subsystem = Some(nqn.clone());
        let nsid = u32::try_from(numbers.below(3)).unwrap() + 1;
        let host = numbers.one_of(&["x", "y", "any"]);
        let address = numbers.one_of(&["10.0.0.1:4420", "10.0.0.2:4420"]);
        let key_file = numbers.one_of(&["/p", "/q", "/r"]);
        match numbers.below(20) {
            0 => Edit::SubsystemAdd {
                nqn,
                serial: None,
                model: None,
                hosts: vec![host],
            },
            1 => Edit::SubsystemRemove { nqn },
            2 | 3 => Edit::NamespaceAdd(NamespaceAdd {
                subsystem,
                nsid: Some(nsid),
                path: numbers.one_of(&["p", "q"]),
                ..NamespaceAdd::default()
            }),
            4 => Edit::NamespaceRemove { subsystem, nsid },
            5 => Edit::NamespaceEnable {
                subsystem,
                nsid,
                enabled: numbers.below(2) == 0,
            },
            6 => Edit::HostAllow { subsystem, host },
            7 => Edit::HostDeny { subsystem, host },
            8 => Edit::PortAdd {
                address,
                provider: Vec::new(),
                id: None,
            },
            9 => Edit::PortRemove { address },
            10 => Edit::NamespaceSet {
                subsystem,
                nsid,
                key: numbers.one_of(&["path", "ana_group"]),
                value: Some(numbers.one_of(&["2", "3"])),
            },
            11 => Edit::SubsystemSet {
                nqn,
                key: numbers.one_of(&["model", "serial"]),
                value: (numbers.below(2) == 0).then(|| "m".to_owned()),
            },
            12 => Edit::PortSet {
                address,
                key: "id".to_owned(),
                value: Some(numbers.one_of(&["5", "6"])),
            },
            13 | 14 => Edit::HostSetKey(HostKeys {
                host,
                key_file,
                ..HostKeys::default()
            }),
            15 | 16 => Edit::HostRotateKey {
                host,
                key_file,
                old_key_file: None,
                old_key_until: (numbers.below(2) == 0).then(|| "2099-12-31".to_owned()),
                replaces: None,
            },
            17 => Edit::HostRemoveOldKey {
                host,
                replaces: None,
                force: false,
            },
            18 => Edit::HostRemoveKey {
                host,
                replaces: None,
            },
            _ => Edit::AnaSet {
                address: (numbers.below(2) == 0).then_some(address),
                group: 1,
                state: numbers.one_of(&["optimized", "inaccessible"]),
            },
        }
    }

    /// The document with sorted lists, and without empty ones.
    fn meaning(document: &Document) -> Table {
        let mut table: Table = document.text().parse().unwrap();
        sort(&mut table);
        table
    }

    fn sort(table: &mut Table) {
        for (_, value) in table.iter_mut() {
            let Value::Array(all) = value else { continue };
            for one in all.iter_mut() {
                if let Value::Table(one) = one {
                    sort(one);
                }
            }
            all.sort_by_key(ToString::to_string);
        }
        table.retain(|_, value| value.as_array().is_none_or(|all| !all.is_empty()));
    }

    #[test]
    fn compacted_edits_give_the_same_document() {
        let base = Document::parse(BASE).unwrap();
        for seed in 0..200 {
            let mut numbers = Numbers(seed);
            let (mut whole, mut edits) = (base.clone(), Vec::new());
            for step in 0..60 {
                let mut edit = random(&mut numbers);
                if whole.settle(&mut edit, &[]).is_err() || whole.make(&edit).is_err() {
                    continue;
                }
                add(&base, &mut edits, edit.clone());
                let mut short = base.clone();
                for edit in &edits {
                    let made = short.make(edit);
                    assert_eq!(
                        made,
                        Ok(()),
                        "seed {seed}, step {step}: {edit} of {edits:?}"
                    );
                }
                let equal = meaning(&short) == meaning(&whole);
                assert!(
                    equal,
                    "seed {seed}, step {step}, {edit}: {edits:?}\n{}",
                    whole.text()
                );
            }
            assert!(edits.len() < 30, "seed {seed}: {edits:?}");
        }
    }

    #[test]
    fn cancelling_edits_leave_nothing() {
        let base = Document::parse(BASE).unwrap();
        let subsystem = || Some("a".to_owned());
        let mut edits = Vec::new();
        for _ in 0..1000 {
            let nsid = Some(7);
            let new = NamespaceAdd {
                subsystem: subsystem(),
                nsid,
                ..NamespaceAdd::default()
            };
            add(&base, &mut edits, Edit::NamespaceAdd(new));
            let (subsystem, nsid) = (subsystem(), 7);
            add(&base, &mut edits, Edit::NamespaceRemove { subsystem, nsid });
        }
        assert_eq!(edits, []);
        let enable = |enabled| Edit::NamespaceEnable {
            subsystem: subsystem(),
            nsid: 1,
            enabled,
        };
        add(&base, &mut edits, enable(false));
        assert_eq!(edits.len(), 1);
        add(&base, &mut edits, enable(true));
        assert_eq!(edits, []);
        let set = |value: Option<&str>| Edit::SubsystemSet {
            nqn: "a".into(),
            key: "model".into(),
            value: value.map(str::to_owned),
        };
        add(&base, &mut edits, set(Some("m")));
        add(&base, &mut edits, set(None));
        assert_eq!(edits, []);
        add(&base, &mut edits, enable(false));
        add(&base, &mut edits, Edit::SubsystemRemove { nqn: "a".into() });
        assert_eq!(edits, [Edit::SubsystemRemove { nqn: "a".into() }]);
    }
}
