//! Arbitrary capsules on the queues of a target. Each command completes at most once; no
//! request exceeds the limits; no command accesses a backing store that the host may not access or
//! whose group is inaccessible on the port, or writes to a read-only one. The served model
//! changes meanwhile.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use nvmeof_dhchap::SystemRandom;
use nvmeof_fuzz::{CLOSED, HIDDEN, HOST, READ_ONLY, SUBSYSTEM, Script, other, port, served};
use nvmeof_target_core::{
    Action, Event, Executed, IoKind, IoOp, Order, Queue, Request, Response, SettingsSave, Target,
};
use nvmeof_wire::auth::GroupId;
use nvmeof_wire::cm;
use nvmeof_wire::fabrics::{Connect, ConnectData, PropertyAccess};
use nvmeof_wire::opcode::Opcode;
use nvmeof_wire::registers::{Cc, Property, PropertyValue};
use nvmeof_wire::{Nqn, Sgl, Sqe};
use zerocopy::IntoBytes;

/// Maximum bytes of a log page or Identify data structure.
const MAX_PAGE: u32 = 1 << 20;

fuzz_target!(|input: &[u8]| {
    let mut script = Script::new(input);
    let mut host = Host {
        target: served(),
        now: Duration::from_secs(1),
        lanes: Vec::new(),
        changed: None,
        in_work: None,
    };
    if !script.byte().is_multiple_of(4) {
        host.connect();
    }
    for _ in 0..64 {
        if script.is_empty() {
            break;
        }
        host.run_step(&mut script);
    }
    let target = host.target.clone();
    for lane in host.lanes {
        let _ = lane.queue.close();
    }
    assert_eq!(target.controllers(), 0, "a controller outlives its queues");
});

struct Host {
    target: Target,
    now: Duration,
    lanes: Vec<Lane>,
    /// Whether the administrator's change is in effect.
    changed: Option<bool>,
    /// Write protection by hosts that is being saved.
    in_work: Option<SettingsSave>,
}

/// One queue and its commands in flight.
struct Lane {
    queue: Queue,
    /// Commands in progress that wait for the caller.
    pending: Vec<(Request, Action)>,
    /// Identifiers of commands that wait for an action.
    held: Vec<u16>,
}

impl Host {
    /// An admin queue with a controller that is ready, and an I/O queue.
    fn connect(&mut self) {
        let nqn = |name| Nqn::new(name).expect("a good name");
        for qid in [0, 1] {
            self.open(cm::Request::new(qid, 32).as_bytes());
            let cntlid = if qid == 0 { 0xffff } else { 1 };
            let data = ConnectData::new([7; 16], cntlid, &nqn(SUBSYSTEM), &nqn(HOST));
            let mut sqe = Connect::new(qid, 32, 5000).to_sqe();
            sqe.dptr = Sgl::InCapsule {
                offset: 0,
                len: 1024,
            }
            .to_descriptor();
            let mut capsule = sqe.to_bytes().to_vec();
            capsule.extend_from_slice(data.as_bytes());
            self.begin(usize::from(qid), &capsule);
            if qid == 0 {
                let enable = PropertyAccess::set(Property::CC, PropertyValue::Dword(Cc::ENABLE.0));
                self.begin(0, &enable.to_bytes());
            }
        }
        assert!(
            self.lanes
                .iter()
                .all(|lane| lane.queue.association().is_some()),
            "the valid set-up is refused"
        );
    }

    fn open(&mut self, private_data: &[u8]) {
        if self.lanes.len() < 6
            && let Ok((mut queue, _accept)) = self.target.queue(private_data, self.now)
        {
            queue.set_port(port());
            let (pending, held) = (Vec::new(), Vec::new());
            self.lanes.push(Lane {
                queue,
                pending,
                held,
            });
        }
    }

    fn run_step(&mut self, script: &mut Script<'_>) {
        let at = script.index(self.lanes.len());
        let what = script.byte();
        match what {
            0xf0.. => return self.change(),
            0xe0..0xf0 => return self.keep(what),
            _ => {}
        }
        match what % 8 {
            0 => self.open(cm::Request::new(script.byte().into(), 8).as_bytes()),
            1 => {
                self.now += Duration::from_millis(script.u16().into());
                (0..self.lanes.len()).for_each(|at| self.poll(at));
            }
            2 if at < self.lanes.len() => {
                let _ = self.lanes.swap_remove(at).queue.close();
            }
            3 => {
                let mut capsule = script.array::<64>().to_vec();
                capsule.extend_from_slice(script.short());
                self.begin(at, &capsule);
            }
            4 => {
                let len = script.u16().into();
                let capsule = script.bytes(len);
                self.begin(at, capsule);
            }
            5 => self.begin(at, &likely(script)),
            _ => self.step(at, script),
        }
    }

    /// An administrator changes the served model, or reverts it.
    fn change(&mut self) {
        let changed = !self.changed.unwrap_or(false);
        self.changed = Some(changed);
        let applied = self.target.apply(other(changed));
        let _ = applied.expect("the limits stay");
        (0..self.lanes.len()).for_each(|at| self.poll(at));
    }

    /// Saves write protection: takes the pending data, or reports success or failure.
    fn keep(&mut self, how: u8) {
        let full = || Err(std::io::ErrorKind::StorageFull.into());
        match self.in_work.take() {
            Some(to_keep) if how.is_multiple_of(4) => to_keep.end(&full()),
            Some(to_keep) => to_keep.end(&Ok(())),
            None => self.in_work = self.target.next_save(),
        }
        (0..self.lanes.len()).for_each(|at| self.poll(at));
    }

    fn begin(&mut self, at: usize, capsule: &[u8]) {
        let Some(lane) = self.lanes.get_mut(at) else {
            return;
        };
        // The caller posts one receive for each entry of the queue.
        if lane.pending.len() + lane.held.len() >= usize::from(lane.queue.entries()) {
            return;
        }
        let mut request = Request::default();
        let action = lane.queue.begin(self.now, capsule, &mut request);
        self.handle(at, request, action);
    }

    /// An event for a waiting request.
    fn step(&mut self, at: usize, script: &mut Script<'_>) {
        let Some(lane) = self
            .lanes
            .get_mut(at)
            .filter(|lane| !lane.pending.is_empty())
        else {
            return;
        };
        let which = script.index(lane.pending.len());
        let (mut request, action) = lane.pending.swap_remove(which);
        let action = match action {
            Action::Compute(work) => {
                // Exponentiations take too long.
                let result = match work.group() {
                    GroupId::NULL => work.run(&mut SystemRandom),
                    _ => work.not_run("a fuzz target exponentiates nothing"),
                };
                let event = Event::Computed(result);
                let action = lane.queue.step(self.now, &mut request, event);
                return self.handle(at, request, action);
            }
            action => action,
        };
        let mut buffer;
        let event = match &action {
            Action::AwaitSave(keeping) => match keeping.outcome() {
                Some(outcome) => Event::Saved {
                    saved: outcome.is_ok(),
                },
                None => return lane.pending.push((request, action)),
            },
            Action::Fuse => Event::Execute,
            Action::Pull { remote, .. } | Action::PullBehind { remote } => {
                buffer = script.filled(remote.len as usize);
                Event::Pulled(&buffer)
            }
            Action::Execute(_) => {
                let len = usize::from(script.byte()) * 16;
                buffer = script.filled(len);
                let outcome = match script.byte() {
                    0 => Executed::Miscompare,
                    1 => Executed::NoSpace,
                    2 => Executed::ReadOnly,
                    3 => Executed::Unsupported,
                    4 => Executed::Failed,
                    5 => Executed::Gone,
                    _ => Executed::Ok,
                };
                Event::Executed {
                    outcome,
                    data: &buffer,
                }
            }
            Action::Produce { len } => {
                buffer = vec![0; *len as usize];
                Event::Buffer(&mut buffer)
            }
            other => unreachable!("{other:?} is waiting"),
        };
        let action = lane.queue.step(self.now, &mut request, event);
        self.handle(at, request, action);
    }

    fn handle(&mut self, at: usize, request: Request, action: Action) {
        let max_transfer = self.target.limits().max_transfer;
        let lane = &mut self.lanes[at];
        match action {
            Action::Fuse | Action::AwaitSave(_) | Action::Compute(_) => {
                lane.pending.push((request, action));
            }
            Action::PullBehind { remote } => {
                assert!(remote.len <= 4096, "{remote:?}");
                lane.pending.push((request, action));
            }
            Action::Pull { remote, .. } => {
                assert!(remote.len <= max_transfer, "{remote:?}");
                lane.pending.push((request, action));
            }
            Action::Produce { len } => {
                assert!(len <= max_transfer.max(MAX_PAGE), "{len} bytes");
                lane.pending.push((request, action));
            }
            Action::Execute(op) => {
                check(&op, self.changed.is_some());
                lane.pending.push((request, action));
            }
            Action::Respond(response) => respond(&response, request.cid()),
            Action::Hold => lane.held.push(request.cid()),
            Action::Close(cause) => assert!(!cause.to_string().is_empty()),
        }
        let _ = (lane.queue.take_follow_ups(), lane.queue.take_remark());
        let _ = lane.queue.take_unfused();
        self.poll(at);
    }

    fn poll(&mut self, at: usize) {
        let (lane, now) = (&mut self.lanes[at], self.now);
        while let Some(order) = lane.queue.poll(now) {
            match order {
                Order::Respond(response) => {
                    let cid = response.cqe.cid.get();
                    let held = lane.held.iter().position(|held| *held == cid);
                    let held = held.expect("a response to a command that was not held");
                    lane.held.swap_remove(held);
                }
                // As if all commands had started.
                Order::Abort { cid } => lane.queue.aborted(cid, false),
                // The caller closes the queue pair.
                Order::Close(_) => return,
            }
        }
        let _ = lane.queue.next_deadline();
    }
}

/// `changed`: whether the model was changed at any time. Commands that started before a
/// change complete with the former model. A shutdown flushes all stores that the host may
/// access. It may also write protect a namespace that it cannot access by this path, which settles
/// its writes: of the features that this target supports, only Error Recovery is then not available
/// (NVM 1.2, figure 133).
fn check(op: &IoOp, changed: bool) {
    assert_ne!(op.store, HIDDEN, "{op:?}");
    let flushes = matches!(op.kind, IoKind::Flush | IoKind::FlushOwn | IoKind::Settle);
    let reached = op.store == 1 || op.store == READ_ONLY || flushes;
    assert!(reached || changed, "{op:?}");
    assert!([1, READ_ONLY, CLOSED].contains(&op.store), "{op:?}");
    assert!(op.store != READ_ONLY || !op.changes(), "{op:?}");
    let block = if op.store == READ_ONLY { 4096 } else { 512 };
    let end = op.offset.checked_add(op.len).expect("a range that ends");
    assert!(end <= 1000 * block, "{op:?}");
}

fn respond(response: &Response, cid: u16) {
    assert_eq!(response.cqe.cid.get(), cid);
    if let Some(push) = response.push {
        assert!(push.len > 0, "{push:?}");
    }
}

/// A command with a valid format; often for a few blocks near the end of a namespace.
fn likely(script: &mut Script<'_>) -> Vec<u8> {
    let mut sqe = Sqe::new(Opcode(script.byte()));
    sqe.cid = script.u16().into();
    sqe.nsid = u32::from(script.byte() & 7).into();
    let flags = script.byte();
    let mut len = script.u32() % 0x2_0000;
    if flags & 1 == 0 {
        let blocks = u32::from(script.byte() & 15);
        sqe.cdw10 = (985 + u32::from(script.byte() & 31)).into();
        sqe.cdw12 = blocks.into();
        let block = if sqe.nsid.get() == 3 { 4096 } else { 512 };
        len = (blocks + 1) * block;
    } else {
        sqe.cdw10 = script.u32().into();
        sqe.cdw11 = script.u32().into();
        sqe.cdw12 = script.u32().into();
        sqe.cdw13 = script.u32().into();
    }
    let in_capsule = flags & 6 == 0 && len <= 4096;
    let sgl = if in_capsule {
        Sgl::InCapsule { offset: 0, len }
    } else {
        let (addr, key, invalidate) = (0x1000, 7, flags & 8 == 0);
        Sgl::Keyed {
            addr,
            len,
            key,
            invalidate,
        }
    };
    sqe.dptr = sgl.to_descriptor();
    let mut capsule = sqe.to_bytes().to_vec();
    if in_capsule {
        capsule.extend(script.filled(len as usize));
    }
    capsule
}
