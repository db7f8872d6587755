//! Properties of the record: what is written can be read, and nothing that is read panics.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use nvmeof_target_ha::{
    Change, ControllerIds, Facts, Failure, Gateway, Group, Incarnation, MAX_CLIENTS, Owner, Phase,
    Record, Wish, WishReason,
};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

fn name() -> impl Strategy<Value = String> {
    let letters = "abcXYZ019-_.".chars().collect::<Vec<_>>();
    vec(prop::sample::select(letters), 1..=64).prop_map(String::from_iter)
}

fn text() -> impl Strategy<Value = String> {
    let letters = "a 9:/[]\u{e9}{}'".chars().collect::<Vec<_>>();
    vec(prop::sample::select(letters), 0..=60).prop_map(String::from_iter)
}

fn counter() -> impl Strategy<Value = u64> {
    0..=1_u64 << 53
}

fn gateway() -> impl Strategy<Value = Gateway> {
    let shared = btree_map(text(), text(), 0..4);
    let ids = (any::<u16>(), any::<u16>());
    (any::<u128>(), counter(), shared, ids, any::<[bool; 4]>()).prop_map(
        |(incarnation, heartbeat, shared, (one, two), bits)| Gateway {
            incarnation: Incarnation(incarnation),
            heartbeat,
            facts: Facts {
                controller_ids: ControllerIds {
                    first: one.min(two),
                    last: one.max(two),
                },
                shared,
                has_others: bits[0],
            },
            drained: bits[1],
            stopped: bits[2],
            expired: bits[3],
        },
    )
}

fn group() -> impl Strategy<Value = Group> {
    let owner = option::of((name(), any::<u128>()));
    let phase = prop::sample::select(vec![Phase::Taking, Phase::Serving, Phase::Releasing]);
    let reasons = vec![WishReason::Move, WishReason::Drain, WishReason::GaveUp];
    let wish = option::of((name(), prop::sample::select(reasons)));
    let clients = || vec(text(), 0..MAX_CLIENTS);
    let failures = btree_map(name(), (any::<u128>(), any::<u32>(), text()), 0..4);
    let last = option::of((option::of(name()), text(), clients(), option::of(counter())));
    let numbers = (counter(), counter(), any::<bool>());
    let rest = (
        wish,
        clients(),
        clients(),
        failures,
        last,
        option::of(text()),
    );
    (owner, phase, numbers, rest).prop_map(|(owner, phase, numbers, rest)| {
        let (wish, clients, to_fence, failures, last, note) = rest;
        Group {
            phase: owner.as_ref().map_or(Phase::Free, |_| phase),
            owner: owner.map(|(gateway, number)| Owner {
                gateway,
                incarnation: Incarnation(number),
            }),
            epoch: numbers.0,
            since_s: numbers.1,
            wish: wish.map(|(gateway, reason)| Wish { gateway, reason }),
            pinned: numbers.2,
            clients,
            to_fence,
            failures: BTreeMap::from_iter(failures.into_iter().map(|(name, failure)| {
                let (number, times, reason) = failure;
                let incarnation = Incarnation(number);
                let failure = Failure {
                    incarnation,
                    times,
                    reason,
                };
                (name, failure)
            })),
            last: last.map(|(from, why, fenced, fenced_at_s)| Change {
                from,
                why,
                fenced,
                fenced_at_s,
            }),
            note,
        }
    })
}

proptest! {
    #[test]
    fn written_record_is_read_again(
        gateways in btree_map(name(), gateway(), 0..4),
        groups in btree_map(any::<u32>(), group(), 0..4),
    ) {
        let mut record = Record::default();
        record.gateways = gateways;
        record.groups = groups;
        let bytes = record.to_bytes().unwrap();
        prop_assert_eq!(Record::parse(&bytes), Ok(record));
    }

    #[test]
    fn any_bytes_are_a_record_or_an_error(bytes in vec(any::<u8>(), 0..400)) {
        let _ = Record::parse(&bytes);
    }

    /// A record with changed bytes is an error, or a record that can be written again.
    #[test]
    fn changed_record_is_an_error_or_valid(
        groups in btree_map(any::<u32>(), group(), 1..3),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut record = Record::default();
        record.groups = groups;
        let mut bytes = record.to_bytes().unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        if let Ok(record) = Record::parse(&bytes) {
            prop_assert!(record.to_bytes().is_ok());
        }
    }
}
