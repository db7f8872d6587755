//! Responses of a hostile target for the initiator's core: response capsules, Identify data,
//! discovery log pages and private data.
#![no_main]

use std::sync::Arc;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use nvmeof_fuzz::{HOST, SUBSYSTEM, Script};
use nvmeof_initiator_core::dhchap::{HostKeys, Key, Secret, SystemRandom};
use nvmeof_initiator_core::{
    Blocks, Cid, CommandCompletion, DiscoveryReader, IoLimits, Names, Next, Operation, Payload,
    Queue, QueueShape, Response, Setup, SetupConfig, Shutdown, cm,
};
use nvmeof_wire::{Nqn, Status};

fuzz_target!(|input: &[u8]| {
    let mut script = Script::new(input);
    match script.byte() % 5 {
        0 => setup(&mut script),
        1 => queue(&mut script),
        2 => discovery(&mut script),
        3 => shutdown(&mut script),
        _ => {
            let private_data = script.rest();
            let _ = cm::check_accept(private_data);
            if let Some(status) = cm::reject_status(private_data) {
                assert!(!cm::reject_remedy(status).is_empty());
            }
        }
    }
});

fn reply(script: &mut Script<'_>) -> CommandCompletion {
    // Most responses are successful, so that later steps are reached.
    let status = match script.byte() {
        0..16 => Status::from_field(script.u16()),
        _ => Status::SUCCESS,
    };
    let result = match script.byte() & 3 {
        0 => script.u64(),
        1 => script.byte().into(),
        2 => script.u16().into(),
        // A usual CAP, and CSTS ready.
        _ => 0x0000_2001_0f03_03ff,
    };
    CommandCompletion { status, result }
}

fn setup(script: &mut Script<'_>) {
    let nqn = |name| Nqn::new(name).expect("a good name");
    let discovery = script.byte() & 1 == 1;
    let mut setup = Setup::new(SetupConfig {
        names: Names {
            hostid: [7; 16],
            hostnqn: nqn(HOST),
            subnqn: if discovery {
                Nqn::discovery()
            } else {
                nqn(SUBSYSTEM)
            },
            keys: (script.byte() & 1 == 1).then(keys),
        },
        queue: QueueShape {
            qid: 0,
            size: 32,
            flow_control: script.byte() & 1 == 1,
        },
        keep_alive: Duration::from_secs(script.byte().into()),
        io_queues: if discovery { 0 } else { script.byte().into() },
        in_capsule: script.u32(),
    });
    let mut now = Duration::ZERO;
    for _ in 0..300 {
        let next = match setup.poll(now) {
            Ok(next) => next,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                return;
            }
        };
        match next {
            Next::Send(ask) => {
                assert_eq!(ask.command.capsule(Cid(1), Payload::None).len(), 64);
                let reply = reply(script);
                let data = match ask.command.name() {
                    "Authentication Receive" => script.bytes(200).to_vec(),
                    _ => identify(script),
                };
                if let Err(error) = setup.handle_completion(now, reply, &data) {
                    assert!(!error.to_string().is_empty());
                    let _ = error.remedy();
                    return;
                }
            }
            Next::Run(work) => setup.handle_result(work.run(&mut SystemRandom)),
            Next::Wait(until) => {
                assert!(until > now);
                // CAP.TO is at most 128 s.
                now = until + Duration::from_secs(2);
            }
            Next::Pending => unreachable!("the completion was passed"),
            Next::Done => {
                let info = setup.into_info().expect("it is done");
                return cut(script, &info.limits);
            }
        }
    }
    panic!("the set-up does not end");
}

/// Keys of a host that authenticates the controller as well, without key exchange.
fn keys() -> Arc<HostKeys> {
    let [host, controller] = [1, 2].map(|byte| {
        let secret = Secret::take(&mut [byte; 32]).expect("memory");
        Arc::new(Key::of(secret, None).expect("a valid key"))
    });
    let mut keys = HostKeys::new(host, Some(controller));
    keys.groups.truncate(1);
    Arc::new(keys)
}

/// Identify data: bytes of the script, with some fields of a valid controller.
fn identify(script: &mut Script<'_>) -> Vec<u8> {
    if script.byte() & 7 == 0 {
        let len = script.u16();
        return script.filled(len.into());
    }
    let mut page = vec![0; 4096];
    // CNTLID, MDTS, KAS, SGLS, IOCCSZ and IORCSZ.
    let fields: [(usize, &[u8]); 5] = [
        (78, &script.array::<2>()),
        (77, &script.array::<1>()),
        (320, &script.array::<2>()),
        (536, &[4, 0, 0x10, 0]),
        (1792, &script.array::<12>()),
    ];
    for (at, bytes) in fields {
        page[at..at + bytes.len()].copy_from_slice(bytes);
    }
    page
}

/// Any operation is split into commands within the limits.
fn cut(script: &mut Script<'_>, limits: &IoLimits) {
    let blocks = Blocks {
        operation: match script.byte() & 3 {
            0 => Operation::Read,
            1 => Operation::Write,
            2 => Operation::Compare,
            _ => Operation::WriteZeroes { deallocate: true },
        },
        nsid: script.u32(),
        block_shift: 9 + script.byte() % 8,
        slba: script.u64(),
        count: script.u16().max(1).into(),
        fua: true,
    };
    let step = blocks.step(limits).min(blocks.count);
    assert!(step > 0);
    let _ = blocks.sqe(0, step);
    assert!(blocks.bytes_of(step) <= blocks.bytes());
}

fn queue(script: &mut Script<'_>) {
    let size = 2 + u16::from(script.byte() & 15);
    let mut queue = Queue::new(size, script.byte() & 1 == 1).expect("a good size");
    let mut now = Duration::ZERO;
    // Commands in flight, and whether they have their response.
    let mut flying: Vec<(Cid, bool)> = Vec::new();
    let place = |flying: &[(Cid, bool)], cid| flying.iter().position(|(known, _)| *known == cid);
    for number in 0..64_u64 {
        if script.is_empty() {
            break;
        }
        match script.byte() % 4 {
            0 => {
                let deadline = now + Duration::from_millis(script.byte().into());
                if let Ok(cid) = queue.begin(number, Some(deadline)) {
                    assert_eq!(place(&flying, cid), None, "{cid:?} is in flight twice");
                    flying.push((cid, false));
                }
            }
            1 => {
                let capsule = response_capsule(script, &flying);
                let response = Response::parse(&capsule).expect("16 bytes");
                let known = place(&flying, response.cid);
                if let Err(fault) = queue.record_response(response.cid, response.sqhd) {
                    // The connection ends.
                    return assert!(!fault.to_string().is_empty());
                }
                let known = known.expect("a response without a command was accepted");
                assert!(!flying[known].1, "a second response was accepted");
                flying[known].1 = true;
                if script.byte() & 1 == 1 {
                    queue.release(response.cid).expect("it is in flight");
                    flying.swap_remove(known);
                }
            }
            2 => {
                let capsule = script.short();
                assert_eq!(Response::parse(capsule).is_ok(), capsule.len() == 16);
            }
            _ => {
                now += Duration::from_millis(script.byte().into());
                if let Some(cid) = queue.expired(now) {
                    assert!(place(&flying, cid).is_some());
                }
            }
        }
        assert_eq!(queue.in_flight(), flying.len());
        assert!(queue.room() + flying.len() < usize::from(size));
    }
}

/// A response, in half of the cases to a command in flight.
fn response_capsule(script: &mut Script<'_>, flying: &[(Cid, bool)]) -> [u8; 16] {
    let mut capsule = script.array::<16>();
    if script.byte() & 1 == 1 && !flying.is_empty() {
        let (cid, _) = flying[script.index(flying.len())];
        capsule[12..14].copy_from_slice(&cid.0.to_le_bytes());
        capsule[8..10].copy_from_slice(&u16::from(script.byte()).to_le_bytes());
    }
    capsule
}

fn discovery(script: &mut Script<'_>) {
    let mut reader = DiscoveryReader::new();
    for _ in 0..32 {
        let Some(command) = reader.poll_command() else {
            let _ = (reader.generation(), reader.entries().len());
            return;
        };
        // The caller passes the requested number of bytes.
        let mut data = script.array::<24>().to_vec();
        if script.byte() & 1 == 1 {
            data[9..16].fill(0);
            data[16..18].fill(0);
        }
        data.resize(command.len() as usize, script.byte());
        if let Err(error) = reader.handle_data(&data) {
            return assert!(!error.to_string().is_empty());
        }
    }
}

fn shutdown(script: &mut Script<'_>) {
    let timeout = Duration::from_secs(1);
    let mut now = Duration::ZERO;
    let mut shutdown = Shutdown::new(nvmeof_wire::registers::Cc::ENABLE, now, timeout);
    for _ in 0..200 {
        match shutdown.poll(now) {
            Next::Send(_) => {
                now += Duration::from_millis(script.byte().into());
                let result = (script.byte() & 15 != 0).then(|| script.u32().into());
                shutdown.handle_completion(now, result);
            }
            Next::Wait(until) => now = until,
            Next::Run(_) | Next::Pending => unreachable!("the completion was passed"),
            Next::Done => return,
        }
    }
    panic!("the shutdown does not end");
}
