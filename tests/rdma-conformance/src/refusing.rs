//! Cases: refused calls change nothing and return their arguments.

use nvmeof_memory::{Pages, Pool, PoolLayout};

use crate::Endpoint::{A, B};
use crate::pattern::check;
use crate::rig::{Rig, private};
use nvmeof_rdma::{
    ConnectError, ExposeError, Inline, Limits, Outcome, PostError, QpConfig, Rights, Work,
};

/// A full queue refuses; an entry is free again when a request has returned.
pub fn full_queues_refuse_and_recover(rig: &mut Rig<'_>) {
    let config = QpConfig {
        recvs: 4,
        sends: 3,
        ..rig.config()
    };
    let link = rig.link_with(&config, &config);
    for round in 0..3 {
        for tag in 0..4 {
            rig[B].recv(link.b, tag, 64);
        }
        let buf = rig[B].buf(64);
        let refused = rig[B].try_recv(link.b, 9, buf).unwrap_err();
        assert_eq!(refused.why, PostError::QueueFull { depth: 4 });
        for tag in 0..3 {
            rig[A].send(link.a, tag, 64);
        }
        let full = Some(PostError::QueueFull { depth: 3 });
        assert_eq!(rig[A].refusal(link.a), full, "round {round}");
        for tag in 0..3 {
            rig.success(A, link.a, tag);
            rig.message(B, link.b, tag, 64);
        }
        rig[A].send(link.a, 3, 64);
        rig.success(A, link.a, 3);
        rig.message(B, link.b, 3, 64);
    }
}

/// Buffers of an unregistered region are refused by all calls.
pub fn unregistered_memory_is_refused(rig: &mut Rig<'_>) {
    let link = rig.link();
    let layout = PoolLayout {
        count: 1,
        stride: 4096,
        lead: 0,
    };
    let pool = Pool::new(layout, Pages::Normal).unwrap();
    let remote = rig[B].buf(4096);
    let remote = rig[B].expose(link.b, remote, Rights::all());
    let refused = rig[A].try_recv(link.a, 1, pool.take().unwrap());
    let refused = refused.unwrap_err();
    assert_eq!(refused.why, PostError::NotRegistered);
    let refused = rig[A]
        .provider()
        .expose(link.a, refused.back, Rights::all());
    let refused = refused.unwrap_err();
    assert_eq!(refused.why, ExposeError::NotRegistered);
    let mut local = refused.back;
    for kind in 0..3 {
        let work = match kind {
            0 => Work::Send {
                head: Inline::empty(),
                body: Some(local),
                invalidate: None,
                solicited: false,
            },
            1 => Work::Write { local, remote },
            _ => Work::Read { local, remote },
        };
        let refused = rig[A].try_post(link.a, 1, work).unwrap_err();
        assert_eq!(refused.why, PostError::NotRegistered);
        local = refused.back.into_buf().unwrap();
    }
    rig.assert_alive(link);
    // Late registration works.
    rig[A].provider().register(pool.region()).unwrap();
    rig[A].post(link.a, 5, Work::Write { local, remote });
    rig.success(A, link.a, 5);
}

fn assert_wrong_state(result: impl Into<Option<PostError>>) {
    let result = result.into();
    let expected = matches!(result, Some(PostError::WrongState { .. }));
    assert!(expected, "{result:?}");
}

/// Only receives may be posted while connecting.
pub fn work_before_establishment_is_refused(rig: &mut Rig<'_>) {
    let config = rig.config();
    let a = rig.call();
    assert_wrong_state(rig[A].refusal(a));
    rig[A].recv(a, 1, 64);
    let b = rig.request(B).qp;
    assert_wrong_state(rig[B].refusal(b));
    let buf = rig[B].buf(64);
    let early = rig[B].try_recv(b, 1, buf).unwrap_err();
    assert_wrong_state(early.why);
    rig[B].prepare(b, &config);
    rig[B].try_recv(b, 1, early.back).unwrap();
    assert_wrong_state(rig[B].refusal(b));
    assert_wrong_state(rig[A].refusal(a));
    rig[B].provider().accept(b, &private("")).unwrap();
    rig.established(A, a);
    rig.established(B, b);
    rig[A].send(a, 3, 64);
    rig.message(B, b, 3, 64);
}

/// `accept` before `prepare` is refused; the request stays.
pub fn accept_without_prepare_is_refused(rig: &mut Rig<'_>) {
    let config = rig.config();
    let a = rig.call();
    let b = rig.request(B).qp;
    assert_wrong_state(rig[B].provider().accept(b, &private("")).err());
    rig.accept(B, b, &config, "");
    rig.established(A, a);
    rig.established(B, b);
}

/// A request gets one response, and only from the passive side.
pub fn second_response_to_request_is_refused(rig: &mut Rig<'_>) {
    let config = rig.config();
    let a = rig.call();
    for _ in 0..2 {
        let active = rig[A].provider();
        assert_wrong_state(active.prepare(a, &config).err());
        assert_wrong_state(active.accept(a, &private("")).err());
        assert_wrong_state(active.reject(a, &private("")).err());
        rig.step();
    }
    let b = rig.request(B).qp;
    rig.accept(B, b, &config, "");
    for _ in 0..2 {
        let passive = rig[B].provider();
        assert_wrong_state(passive.prepare(b, &config).err());
        assert_wrong_state(passive.accept(b, &private("")).err());
        assert_wrong_state(passive.reject(b, &private("")).err());
        rig.settle();
    }
    rig.established(A, a);
    rig.established(B, b);
    let rejected = rig.call();
    let b = rig.request(B).qp;
    rig[B].provider().reject(b, &private("")).unwrap();
    assert!(rig[B].provider().reject(b, &private("")).is_err());
    assert!(rig[B].provider().prepare(b, &config).is_err());
    rig.closed(A, rejected);
}

/// Sizes above the limits of the provider are refused on both sides.
pub fn sizes_beyond_the_limits_are_refused(rig: &mut Rig<'_>) {
    let (addr, good) = (rig.listening(), rig.config());
    let limits = rig[A].provider().limits().clone();
    let bad = senseless(&good, &limits);
    for config in &bad {
        let now = rig.now();
        let refused = rig[A].provider().connect(addr, config, &private(""), now);
        let size = matches!(refused, Err(ConnectError::Config(PostError::Size { .. })));
        assert!(size, "{config:?}: {refused:?}");
    }
    let a = rig.call();
    let b = rig.request(B).qp;
    for config in &bad {
        let refused = rig[B].provider().prepare(b, config);
        let size = matches!(refused, Err(PostError::Size { .. }));
        assert!(size, "{config:?}: {refused:?}");
    }
    rig.accept(B, b, &good, "");
    rig.established(A, a);
    rig.established(B, b);
}

fn senseless(good: &QpConfig, limits: &Limits) -> Vec<QpConfig> {
    let mut bad = vec![
        QpConfig { recvs: 0, ..*good },
        QpConfig { sends: 0, ..*good },
    ];
    let beyond = |limit: u32| limit.checked_add(1);
    bad.extend(beyond(limits.max_recvs).map(|recvs| QpConfig { recvs, ..*good }));
    bad.extend(beyond(limits.max_sends).map(|sends| QpConfig { sends, ..*good }));
    bad.extend(beyond(limits.max_reads).map(|reads| QpConfig {
        reads_out: reads,
        ..*good
    }));
    bad.extend(beyond(limits.max_reads).map(|reads| QpConfig {
        reads_in: reads,
        ..*good
    }));
    bad
}

/// Work that is longer than its remote memory, or than the longest message, is refused.
pub fn work_longer_than_remote_memory_is_refused(rig: &mut Rig<'_>) {
    let link = rig.link();
    let window = rig[B].buf(100);
    let remote = rig[B].expose(link.b, window, Rights::all());
    let locals = (rig[A].buf(101), rig[A].buf(101));
    let too_long = PostError::TooLong { len: 101, max: 100 };
    let (write, read) = (
        Work::Write {
            local: locals.0,
            remote,
        },
        Work::Read {
            local: locals.1,
            remote,
        },
    );
    for work in [write, read] {
        let refused = rig[A].try_post(link.a, 1, work).unwrap_err();
        assert_eq!(refused.why, too_long);
    }
    let most = rig[A].provider().limits().max_message as usize;
    if most < 6 << 20 {
        let work = rig[A].message(1, most + 1);
        let refused = rig[A].try_post(link.a, 1, work).unwrap_err();
        assert!(matches!(refused.why, PostError::TooLong { .. }));
    }
    rig.assert_alive(link);
    assert_eq!(rig[B].outstanding_recvs(link.b), 0);
}

/// A queue pair with no keys refuses to expose memory, and supports everything else.
pub fn expose_without_reserved_keys_is_refused(rig: &mut Rig<'_>) {
    let none = QpConfig {
        exposes: 0,
        ..rig.config()
    };
    let some = rig.config();
    for (a, b) in [(&some, &none), (&none, &some)] {
        let link = rig.link_with(a, b);
        rig.assert_alive(link);
        for (end, config) in [(A, a), (B, b)] {
            let buf = rig[end].filled(100, 7);
            let exposed = rig[end].try_expose(link.at(end), buf, Rights::all());
            assert_eq!(exposed.is_ok(), config.exposes > 0, "{end:?}");
            match exposed {
                Ok(slice) => {
                    check(&rig[end].withdraw(slice.key), 7);
                }
                Err(refused) => {
                    assert_eq!(refused.why, ExposeError::Full { max: 0 });
                    check(&refused.back, 7);
                }
            }
        }
        rig.assert_alive(link);
    }
}

/// As many keys as the limit allows, then `Full`, then one for each withdrawn.
pub fn key_table_is_bounded(rig: &mut Rig<'_>) {
    let link = rig.link();
    let most = rig[B].provider().limits().max_exposed as usize;
    if most > 1 << 20 {
        // Too many to try.
        return;
    }
    let layout = PoolLayout {
        count: most + 1,
        stride: 8,
        lead: 0,
    };
    let pool = Pool::new(layout, Pages::Normal).unwrap();
    rig[B].provider().register(pool.region()).unwrap();
    let mut first = None;
    for _ in 0..most {
        let slice = rig[B].expose(link.b, pool.take().unwrap(), Rights::all());
        first = first.or(Some(slice));
    }
    let last = pool.take().unwrap();
    let refused = rig[B].provider().expose(link.b, last, Rights::all());
    let refused = refused.unwrap_err();
    assert!(matches!(refused.why, ExposeError::Full { .. }));
    let first = first.unwrap();
    rig[B].withdraw(first.key);
    let last = rig[B].expose(link.b, refused.back, Rights::all());
    assert_ne!(last.key, first.key);
    rig[A].write(link.a, 1, 8, last);
    let outcome = rig.completion(A, link.a).outcome;
    assert_eq!(outcome, Outcome::Success);
    rig.assert_alive(link);
}
