//! Messages of a hostile host for the controller's side of an authentication, in any order, and
//! the texts of keys. There is no exponentiation: the group is NULL.
#![no_main]

use std::sync::Arc;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use nvmeof_dhchap::{ControllerAuth, Expected, Key, Policy, Random, RandomError, Secret, Work};
use nvmeof_fuzz::{HOST, SUBSYSTEM, Script};
use nvmeof_wire::Nqn;
use nvmeof_wire::auth::{GroupId, HashId, MAX_MESSAGE, Message};

/// Bytes that a peer does not know, so that it cannot compute the response.
struct Numbers(u64);

impl Random for Numbers {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), RandomError> {
        for byte in bytes {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            *byte = self.0.to_be_bytes()[0];
        }
        Ok(())
    }
}

fn key(byte: u8) -> Arc<Key> {
    let secret = Secret::take(&mut [byte; 32]).expect("memory");
    Arc::new(Key::of(secret, Some(HashId::SHA256)).expect("a valid key"))
}

fuzz_target!(|input: &[u8]| {
    let mut script = Script::new(input);
    if script.byte() & 3 == 0 {
        if let Ok(text) = std::str::from_utf8(script.rest())
            && let Ok(key) = Key::parse(text)
        {
            let again = Key::parse(&key.to_text()).expect("its own text");
            assert_eq!(*again.to_text(), *key.to_text());
        }
        return;
    }
    let nqn = |name| Nqn::new(name).expect("a good name");
    let policy = Policy {
        first_is_old: false,
        unknown: Default::default(),
        keys: vec![key(1), key(2)],
        controller_key: (script.byte() & 1 == 1).then(|| key(3)),
        hashes: vec![HashId::SHA256, HashId::SHA512],
        groups: vec![GroupId::NULL],
    };
    let keep_alive = Duration::from_secs(5);
    let mut now = Duration::ZERO;
    let mut auth =
        ControllerAuth::new(nqn(HOST), nqn(SUBSYSTEM), Arc::new(policy), keep_alive, now);
    let mut random = Numbers(3);
    let mut works: Vec<Work> = Vec::new();
    while !script.is_empty() {
        match script.byte() % 5 {
            0 | 1 => {
                let len = script.index(MAX_MESSAGE);
                let bytes = script.bytes(len);
                let _ = Message::parse(bytes).map(|message| message.name());
                works.extend(auth.send(now, bytes).ok().flatten());
            }
            2 => {
                let mut buf = vec![0; script.index(256)];
                let _ = auth.receive(now, &mut buf);
            }
            3 => {
                if let Some(work) = works.pop() {
                    let _ = auth.finish(now, work.run(&mut random));
                }
            }
            _ => {
                now += Duration::from_secs(script.byte().into());
                let _ = auth.expire(now);
            }
        }
        assert!(!auth.is_authenticated(), "nobody proved a key");
        let waits = matches!(auth.expected(), Expected::Host | Expected::Work);
        assert!(!waits || auth.next_deadline().is_some());
    }
});
