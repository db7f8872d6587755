//! The world: a target, and one host with two paths to it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::ops::Range;
use std::time::Duration;

use nvmeof_initiator::Error;
use nvmeof_initiator::polled::{Done, SubmitError, Work};
use nvmeof_initiator_core::{Blocks, ControllerEvent, LostController, Operation, blocks};
use nvmeof_memory::{Buf, ClassSpec, Classes, Pages};
use nvmeof_rdma::Address;
use nvmeof_rdma_layers::{Dice, OneIn};
use nvmeof_rdma_sim::{NetworkFault, SimNet};
use nvmeof_target_core::{
    AnaGroup, DEFAULT_ANA_GROUP, Fabric, IncarnationKey, Model, NamespaceSpec, PortSpec,
    SubsystemSpec, Target,
};
use nvmeof_target_engine::{Mail, ReactorConfig};
use nvmeof_wire::log::ana::AnaState;

use super::fencing::{ADMIN, Lost};
use super::initiator::Initiator;
use super::plan::{Fault, PATHS, Plan};
use super::{Failure, HostKind, Mechanism, Report};
use crate::content;
use crate::disk::{Disks, Temper};
use crate::host::{Host, SUBNQN};
use crate::medium::Medium;
use crate::oracle::{Ending, OpId, Oracle};
use crate::trace::Trace;
use crate::world::Reactors;

/// A connection of a path. Each has its own controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Connection {
    pub(super) path: usize,
    number: u64,
}

/// Why a run failed.
#[derive(Debug)]
pub(super) enum Wrong {
    /// A read returned what no correct block device returns.
    Violation(String),
    /// Anything else.
    Broken(String),
}

impl From<crate::oracle::Wrong> for Wrong {
    fn from(wrong: crate::oracle::Wrong) -> Self {
        Self::Broken(wrong.0)
    }
}

/// The state of one run.
pub(super) struct Multipath {
    pub(super) plan: Plan,
    net: SimNet,
    medium: Medium,
    disks: Disks,
    target: Target,
    /// Powers on of the machine, and processes of the target since the last one.
    boots: u64,
    processes: u16,
    /// Empty between two runs of the target.
    reactors: Reactors,
    /// The host; for the initiator, its addresses and options only.
    pub(super) paths: Vec<Host>,
    initiator: Option<Initiator>,
    /// The last connection of each path.
    links: Vec<Link>,
    /// Lost controllers, by number.
    pub(super) lost: BTreeMap<u64, Lost>,
    calls: BTreeMap<OpId, Call>,
    oracle: Oracle,
    trace: Trace,
    pub(super) dice: Dice,
    pub(super) report: Report,
    phase: Phase,
    next_fault: usize,
    next_call: Duration,
    next_lost: u64,
    /// When the network of each path heals.
    cuts: [Option<Duration>; PATHS],
    /// The ANA state of the namespace on each path.
    ana: [AnaState; PATHS],
    /// When the target starts, at the earliest.
    restart: Option<Duration>,
    draining: bool,
    /// Blocks of writes that were given up, to be read.
    suspects: Vec<Range<u64>>,
    /// Turns since time advanced.
    still: u64,
    done: Vec<Done>,
}

/// The last connection of a path.
#[derive(Clone, Default)]
struct Link {
    number: u64,
    /// Its controller.
    identity: Option<LostController>,
    is_up: bool,
}

/// A call of the user, which is sent until it completes.
#[derive(Clone, Debug)]
struct Call {
    kind: Kind,
    range: Range<u64>,
    since: Duration,
    state: State,
    /// The path on which it was lost.
    avoid: Option<usize>,
    was_sent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write { fua: bool },
    Flush,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is sent as soon as a path is up.
    Queued,
    Sent(Connection),
    /// The initiator has it, until it ends.
    Accepted,
    /// The controller that may have it is not fenced yet.
    Held,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Work,
    /// No more calls and faults, until nothing is in flight.
    Calm,
    /// Everything is read.
    Verify,
    Leave,
    Over,
}

const TARGET_IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
const PORT: u16 = 4420;
/// Maximum duration of a call, with any faults.
const LONGEST_CALL: Duration = Duration::from_secs(90);
const LONGEST_RUN: Duration = Duration::from_secs(300);
const MAX_ITERATIONS: u64 = 3_000_000;
/// Maximum number of iterations without progress and without time passing.
const MOST_STILL: u64 = 10_000;

impl Multipath {
    pub(super) fn new(plan: Plan, print: bool) -> Self {
        let mut dice = Dice::new(plan.seed);
        let net = SimNet::new(dice.roll(), plan.net.clone());
        let medium = Medium::Net {
            net: net.clone(),
            crc: false,
        };
        let shapes = std::slice::from_ref(&plan.disk);
        let disks = Disks::new(net.clone(), dice.roll(), shapes, plan.temper.clone());
        if plan.mode.lacks(Mechanism::RangeLocks) {
            disks.disable_range_locks();
        }
        let paths: Vec<Host> = (0..)
            .zip(&plan.paths)
            .map(|(at, shape)| {
                let addr = address(at);
                Host::new(at, shape.clone(), &medium, addr, dice.roll()).path()
            })
            .collect();
        let initiator = (plan.mode.host == HostKind::Initiator)
            .then(|| Initiator::new(&paths, &plan, &medium, dice.roll()));
        let mut world = Self {
            oracle: Oracle::new([plan.disk.blocks]),
            target: Target::new(model(&plan, OPTIMIZED)),
            boots: 0,
            processes: 0,
            plan,
            net,
            medium,
            disks,
            reactors: Reactors::default(),
            links: vec![Link::default(); paths.len()],
            initiator,
            paths,
            lost: BTreeMap::new(),
            calls: BTreeMap::new(),
            trace: Trace::new(print),
            dice,
            report: Report::default(),
            phase: Phase::Work,
            next_fault: 0,
            next_call: Duration::ZERO,
            next_lost: 0,
            cuts: [None; PATHS],
            ana: OPTIMIZED,
            restart: None,
            draining: false,
            suspects: Vec::new(),
            still: 0,
            done: Vec::new(),
        };
        world.say(format_args!("{:?}", world.plan.clone()));
        world.oracle.sent_by(Some(0));
        world.start_target();
        world
    }

    pub(super) fn run(mut self) -> Result<Report, Box<Failure>> {
        let mut iterations = 0u64;
        let wrong = loop {
            iterations += 1;
            if iterations > MAX_ITERATIONS {
                break Wrong::Broken(format!("no end after {iterations} iterations"));
            }
            match self.step() {
                Ok(()) if self.phase == Phase::Over => {
                    self.report.hash = self.trace.hash();
                    return Ok(self.report);
                }
                Ok(()) => {}
                Err(wrong) => break wrong,
            }
        };
        for at in 0..self.paths.len() {
            let state = match &self.initiator {
                Some(initiator) => initiator.state(at),
                None => self.paths[at].state(),
            };
            self.say(format_args!("path {at}: {state}"));
        }
        let (is_violation, what) = match wrong {
            Wrong::Violation(what) => (true, what),
            Wrong::Broken(what) => (false, what),
        };
        Err(Box::new(Failure {
            seed: self.plan.seed,
            mode: self.plan.mode,
            is_violation,
            what,
            trace: self.trace.tail(),
        }))
    }

    pub(super) fn say(&mut self, what: std::fmt::Arguments<'_>) {
        self.trace.say(self.net.now(), what);
    }

    /// Does all work that is due now, then advances time.
    fn step(&mut self) -> Result<(), Wrong> {
        let now = self.net.now();
        let mut progress = self.heal(now);
        progress |= self.make_trouble(now);
        progress |= self.restart(now);
        progress |= self.step_target(now)?;
        progress |= self.poll_host(now)?;
        progress |= self.make_calls(now);
        progress |= self.send_calls(now)?;
        progress |= self.advance_phase(now)?;
        self.watch(now)?;
        if progress {
            return Ok(());
        }
        let until = self.next_at(now);
        if !self.net.advance_to_next(until) {
            return Err(Wrong::Broken("deadlock: no event is pending".to_owned()));
        }
        self.still = if self.net.now() > now {
            0
        } else {
            self.still + 1
        };
        if self.still > MOST_STILL {
            return Err(Wrong::Broken(
                "livelock: immediate wake-ups without progress".to_owned(),
            ));
        }
        Ok(())
    }

    /// Time of the next event that is not an event of the network.
    fn next_at(&mut self, now: Duration) -> Option<Duration> {
        let faults = self.plan.faults.get(self.next_fault);
        let faults = faults.map(|(at, _)| *at).filter(|at| *at > now);
        let call = Some(self.next_call).filter(|_| self.phase == Phase::Work);
        let restart = self.restart.filter(|at| *at > now);
        let paths = self.paths.iter();
        let paths = paths.filter(|_| self.initiator.is_none());
        let paths = paths.filter_map(|path| path.next_deadline(now));
        let initiator = self.initiator.as_ref();
        let initiator = initiator.and_then(|initiator| initiator.next_deadline(now));
        let fences = self.lost.values();
        let fences = fences.filter_map(Lost::next_deadline);
        let cuts = self.cuts.iter().copied().flatten();
        let one = [faults, call, restart, initiator, self.disks.next_at()];
        let one = one.into_iter().flatten();
        let all = one.chain(paths).chain(fences).chain(cuts);
        all.chain(self.reactors.next_at(now)).min()
    }

    fn watch(&mut self, now: Duration) -> Result<(), Wrong> {
        if let Some(wrong) = self.disks.wrong() {
            return Err(Wrong::Broken(wrong));
        }
        let late = |call: &&Call| now > call.since + LONGEST_CALL;
        if let Some(call) = self.calls.values().find(late) {
            return Err(Wrong::Broken(format!("a call does not complete: {call:?}")));
        }
        if now > LONGEST_RUN {
            return Err(Wrong::Broken(format!("no end after {LONGEST_RUN:?}")));
        }
        Ok(())
    }

    /// The connections that are up.
    pub(super) fn connections(&self) -> impl Iterator<Item = Connection> {
        let links = self.links.iter().enumerate();
        links.filter(|(_, link)| link.is_up).map(|(path, link)| {
            let number = link.number;
            Connection { path, number }
        })
    }
}

/// The target.
impl Multipath {
    fn start_target(&mut self) {
        // The incarnations file: each process follows the ones before it since the boot.
        self.processes += 1;
        let process = NonZeroU16::new(self.processes).unwrap();
        let key = IncarnationKey::new([0; 16], &self.boots.to_le_bytes(), process);
        self.target = Target::with_incarnations(model(&self.plan, self.ana), Some(key));
        let data = vec![ClassSpec {
            len: 8192,
            count: 16,
        }];
        let config = ReactorConfig {
            shared_receives: 0,
            capsules: 700,
            data,
            pages: Pages::Normal,
            stall: Duration::from_secs(3),
            drain: Duration::from_secs(2),
        };
        let providers = self.medium.providers(TARGET_IP, self.plan.reactors);
        let addrs: Vec<_> = (0..PATHS).map(address).collect();
        let (target, now) = (&self.target, self.net.now());
        self.reactors = Reactors::start(&config, target, &self.disks, providers, &addrs, now);
        self.report.starts += 1;
        self.say(format_args!("target starts"));
    }

    fn step_target(&mut self, now: Duration) -> Result<bool, Wrong> {
        self.disks.advance();
        let polled = self.reactors.poll_once(now, &self.disks)?;
        if polled.drained {
            self.say(format_args!("target drained"));
            self.end_target(false, now);
        }
        Ok(polled.worked)
    }

    /// The process of the target ends, with its backing stores or without.
    fn end_target(&mut self, power_loss: bool, now: Duration) {
        self.reactors = Reactors::default();
        self.draining = false;
        if power_loss {
            self.disks.crash();
            self.oracle.crash();
            if self.initiator.is_some() {
                self.oracle.resend_unseen();
            }
            self.boots += 1;
            self.processes = 0;
        } else {
            self.disks.end_process();
        }
        let pause = [0, 1, 100][self.dice.below(3)];
        self.restart = Some(now + Duration::from_millis(pause));
    }

    /// Starts the target when it is due and has the locks of its backing stores and of its
    /// incarnations file. The kernel releases those of a dead process when its last operation is
    /// complete.
    fn restart(&mut self, now: Duration) -> bool {
        let waits = self.plan.mode.without != Some(Mechanism::PredecessorLock);
        let is_locked = waits && self.disks.oldest().is_some();
        if is_locked || self.restart.is_none_or(|at| at > now) {
            return false;
        }
        self.restart = None;
        self.start_target();
        true
    }

    /// Starts the faults that are due.
    fn make_trouble(&mut self, now: Duration) -> bool {
        let mut any = false;
        while let Some((at, fault)) = self.plan.faults.get(self.next_fault).copied()
            && at <= now
        {
            self.next_fault += 1;
            any = true;
            self.say(format_args!("fault: {fault:?}"));
            match fault {
                Fault::Cut(path, how_long) => self.cut(path, now + how_long),
                Fault::CutAll(how_long) => {
                    for path in 0..PATHS {
                        self.cut(path, now + how_long);
                    }
                }
                Fault::Reset(path) => {
                    let ip = self.paths[path].ip;
                    self.net.inject(NetworkFault::Reset(ip, TARGET_IP));
                }
                Fault::Ana(path, state) => {
                    let mut states = OPTIMIZED;
                    states[path] = state;
                    self.set_ana(states);
                }
                // It is not running.
                _ if self.restart.is_some() => {}
                Fault::Drain => {
                    self.draining = true;
                    self.reactors.send(Mail::DRAIN);
                }
                Fault::Death => self.end_target(false, now),
                Fault::PowerLoss => self.end_target(true, now),
            }
        }
        any
    }

    fn set_ana(&mut self, states: [AnaState; PATHS]) {
        self.ana = states;
        let _ = self.target.apply(model(&self.plan, states)).unwrap();
        self.reactors.send(Mail::POLL);
    }

    fn cut(&mut self, path: usize, until: Duration) {
        self.cuts[path] = self.cuts[path].max(Some(until));
        let ip = self.paths[path].ip;
        self.net.inject(NetworkFault::Cut(ip, TARGET_IP));
    }

    fn heal(&mut self, now: Duration) -> bool {
        let mut any = false;
        for path in 0..PATHS {
            if self.cuts[path].take_if(|until| *until <= now).is_some() {
                let ip = self.paths[path].ip;
                self.net.inject(NetworkFault::Heal(ip, TARGET_IP));
                self.say(format_args!("path {path} heals"));
                any = true;
            }
        }
        any
    }
}

/// The host.
impl Multipath {
    fn poll_host(&mut self, now: Duration) -> Result<bool, Wrong> {
        if self.initiator.is_some() {
            return self.poll_initiator(now);
        }
        let mut progress = false;
        for at in 0..self.paths.len() {
            progress |= self.poll_path(at, now)?;
        }
        Ok(progress | self.poll_fences(now)?)
    }

    /// Polls the initiator, which ends each call once and hides all losses.
    fn poll_initiator(&mut self, now: Duration) -> Result<bool, Wrong> {
        let Some(initiator) = &mut self.initiator else {
            return Ok(false);
        };
        let mut done = std::mem::take(&mut self.done);
        let progress = initiator.poll(now, &mut done);
        while let Some(change) = initiator.take_change(&mut self.report) {
            self.trace.say(now, format_args!("{change}"));
        }
        for one in done.drain(..) {
            let id = one.user;
            match &one.result {
                _ if !self.calls.contains_key(&id) => {
                    return Err(Wrong::Broken(format!("call {id} ended twice")));
                }
                Ok(_) => self.completed(id, &one)?,
                Err(error) => {
                    return Err(Wrong::Broken(format!("call {id} failed: {error}")));
                }
            }
        }
        self.done = done;
        Ok(progress)
    }

    /// Polls one path: handles results, detects that it is lost or up again.
    fn poll_path(&mut self, at: usize, now: Duration) -> Result<bool, Wrong> {
        let connection = Connection {
            path: at,
            number: self.links[at].number,
        };
        let mut done = std::mem::take(&mut self.done);
        let progress = self.paths[at].poll(now, &mut done);
        let is_up = self.paths[at].is_up();
        if self.links[at].is_up && !is_up {
            self.links[at].is_up = false;
            self.report.losses += 1;
            let why = std::mem::take(&mut self.paths[at].why);
            self.say(format_args!("path {at} is lost: {why}"));
            for lost in self.lost.values_mut() {
                lost.path_lost(connection, now);
            }
        }
        for one in done.drain(..) {
            match one.user & ADMIN {
                0 => self.call_done(connection, &one, now)?,
                _ => self.admin_done(connection, &one, now),
            }
        }
        self.done = done;
        let progress = progress.map_err(Wrong::Broken)?;
        if is_up && !self.links[at].is_up {
            self.path_up(at);
        }
        self.take_events(at, now);
        Ok(progress)
    }

    fn path_up(&mut self, at: usize) {
        let path = &mut self.paths[at];
        let keep_alive = path.shape.keep_alive;
        let info = path.admin().and_then(|admin| admin.info().cloned());
        let link = &mut self.links[at];
        link.is_up = true;
        link.number += 1;
        link.identity = info.map(|info| LostController::of(&info, keep_alive));
        let number = link.number;
        self.say(format_args!("path {at} is up, connection {number}"));
    }

    fn take_events(&mut self, at: usize, now: Duration) {
        let number = self.links[at].number;
        let Some(admin) = self.paths[at].admin() else {
            return;
        };
        while let Some(event) = admin.take_event() {
            if event == ControllerEvent::CrossControllerReset {
                for lost in self.lost.values_mut() {
                    lost.notified(Connection { path: at, number }, now);
                }
            }
        }
    }

    fn call_done(&mut self, at: Connection, done: &Done, now: Duration) -> Result<(), Wrong> {
        let id = done.user;
        let Some(call) = self.calls.get_mut(&id) else {
            return Err(Wrong::Broken(format!("call {id} completed twice")));
        };
        match &done.result {
            Ok(_) => self.completed(id, done),
            Err(Error::Lost(_)) => {
                call.avoid = Some(at.path);
                call.state = match self.plan.mode.host {
                    HostKind::Resend => State::Queued,
                    HostKind::Fence | HostKind::Initiator => State::Held,
                };
                if call.state == State::Held {
                    self.hold(at, id, now)?;
                }
                self.say(format_args!("call {id} is lost on path {}", at.path));
                Ok(())
            }
            Err(error) => Err(Wrong::Broken(format!("call {id} failed: {error}"))),
        }
    }

    /// A call waits until the controller of a lost connection is fenced.
    fn hold(&mut self, at: Connection, id: OpId, now: Duration) -> Result<(), Wrong> {
        if let Some(lost) = self.lost.values_mut().find(|lost| lost.at == at) {
            lost.calls.push(id);
            return Ok(());
        }
        let identity = self.links[at.path].identity;
        let identity = identity.ok_or(Wrong::Broken("a controller is unknown".to_owned()))?;
        let mut lost = Lost::new(at, &identity, now);
        lost.calls.push(id);
        self.next_lost += 1;
        self.lost.insert(self.next_lost, lost);
        Ok(())
    }

    /// A controller is quiet: its calls are sent again, or given up.
    pub(super) fn fenced(&mut self, lost: Lost) -> Result<(), Wrong> {
        for id in lost.calls {
            let give_up = self.phase == Phase::Work && self.dice.happens(OneIn(3));
            let Some(call) = self.calls.get_mut(&id) else {
                continue;
            };
            if !give_up || !matches!(call.kind, Kind::Write { .. }) {
                call.state = State::Queued;
                continue;
            }
            self.suspects.push(call.range.clone());
            self.calls.remove(&id);
            self.oracle.end(id, Ending::Failed)?;
            self.report.given_up += 1;
            self.say(format_args!("call {id} is given up"));
        }
        Ok(())
    }

    fn completed(&mut self, id: OpId, done: &Done) -> Result<(), Wrong> {
        let Some(call) = self.calls.remove(&id) else {
            return Ok(());
        };
        self.report.calls += 1;
        if call.kind != Kind::Read {
            self.oracle.end(id, Ending::Done)?;
            self.say(format_args!("call {id} completed"));
            return Ok(());
        }
        let bytes = done.buf.as_deref().unwrap_or_default();
        let block = usize::try_from(self.plan.disk.block_size).unwrap();
        let mut seen = Vec::new();
        for (lba, bytes) in call.range.zip(bytes.chunks_exact(block)) {
            let value = content::read(bytes, NSID, lba);
            let value = value.ok_or(Wrong::Violation(format!(
                "call {id} read garbage at block {lba}"
            )))?;
            seen.push(value);
        }
        self.say(format_args!("call {id} read {seen:?}"));
        let checked = self.oracle.end_read(id, &seen);
        checked.map_err(|wrong| Wrong::Violation(format!("call {id}: {}", wrong.0)))
    }
}

impl Call {
    /// The operation, and a buffer for it. `None` while there is no buffer.
    fn prepare(&self, id: OpId, block: u64, buffers: &mut Classes) -> Option<(Work, Option<Buf>)> {
        let count = self.range.end - self.range.start;
        let of_blocks = |operation, fua| Blocks {
            operation,
            nsid: NSID,
            block_shift: u8::try_from(block.trailing_zeros()).unwrap(),
            slba: self.range.start,
            count,
            fua,
        };
        let work = match self.kind {
            Kind::Flush => return Some((blocks::flush(NSID).into(), None)),
            Kind::Read => of_blocks(Operation::Read, false),
            Kind::Write { fua } => of_blocks(Operation::Write, fua),
        };
        let mut buf = buffers.take(usize::try_from(count * block).unwrap())?;
        buf.fill(0xee);
        if let Kind::Write { .. } = self.kind {
            let blocks = buf.chunks_exact_mut(usize::try_from(block).unwrap());
            for (lba, bytes) in self.range.clone().zip(blocks) {
                content::fill(bytes, id, NSID, lba);
            }
        }
        Some((work.into(), Some(buf)))
    }
}

/// Calls.
impl Multipath {
    fn make_calls(&mut self, now: Duration) -> bool {
        if self.phase != Phase::Work || now < self.next_call {
            return false;
        }
        let pause = u64::try_from(self.plan.pause.as_nanos()).unwrap();
        self.next_call = now + Duration::from_nanos(1 + self.dice.roll() % pause);
        for suspect in std::mem::take(&mut self.suspects) {
            self.make_call(Kind::Read, suspect, now);
        }
        if self.calls.len() >= self.plan.at_once {
            return true;
        }
        let count = 1 + self.dice.roll() % 3;
        let start = self.dice.roll() % (self.plan.disk.blocks - count + 1);
        let range = start..start + count;
        let kind = match self.dice.below(20) {
            0..9 => Kind::Read,
            9..19 => Kind::Write {
                fua: self.dice.happens(OneIn(6)),
            },
            _ => Kind::Flush,
        };
        // Like a file system: a block has seldom two outstanding writes.
        let is_writing = |call: &Call| {
            let overlaps = call.range.start < range.end && range.start < call.range.end;
            overlaps && matches!(call.kind, Kind::Write { .. })
        };
        let conflicts = matches!(kind, Kind::Write { .. }) && self.calls.values().any(is_writing);
        if !conflicts || self.dice.happens(OneIn(8)) {
            self.make_call(kind, range, now);
        }
        true
    }

    fn make_call(&mut self, kind: Kind, range: Range<u64>, now: Duration) {
        let id = match kind {
            Kind::Read => self.oracle.begin_read(NS, range.clone()),
            Kind::Write { fua } => {
                let stable = fua || !self.plan.disk.volatile;
                self.oracle.begin_write(NS, range.clone(), false, stable)
            }
            Kind::Flush => self.oracle.begin_flush(NS),
        };
        let call = Call {
            kind,
            range,
            since: now,
            state: State::Queued,
            avoid: None,
            was_sent: false,
        };
        self.calls.insert(id, call);
    }

    fn queued(&self) -> Vec<OpId> {
        let queued = self.calls.iter();
        let queued = queued.filter(|(_, call)| call.state == State::Queued);
        queued.map(|(id, _)| *id).collect()
    }

    /// Gives queued calls to the initiator, while it has room.
    fn submit_calls(&mut self, now: Duration) -> Result<bool, Wrong> {
        let block = self.plan.disk.block_size;
        let mut any = false;
        for id in self.queued() {
            let (Some(initiator), Some(call)) = (&mut self.initiator, self.calls.get_mut(&id))
            else {
                continue;
            };
            let Some((work, buf)) = call.prepare(id, block, &mut initiator.buffers) else {
                break;
            };
            match initiator.submit(work, buf, id, now) {
                Ok(()) => {}
                Err(refused) => match refused.why {
                    SubmitError::Full => break,
                    why => return Err(Wrong::Broken(format!("a call was refused: {why}"))),
                },
            }
            call.state = State::Accepted;
            let (kind, range) = (call.kind, &call.range);
            self.trace
                .say(now, format_args!("call {id}: {kind:?} {range:?}"));
            any = true;
        }
        Ok(any)
    }

    /// Sends queued calls over paths that are up.
    fn send_calls(&mut self, now: Duration) -> Result<bool, Wrong> {
        if self.initiator.is_some() {
            return self.submit_calls(now);
        }
        let up: Vec<Connection> = self.connections().collect();
        if up.is_empty() {
            return Ok(false);
        }
        let mut any = false;
        for id in self.queued() {
            let avoid = self.calls[&id].avoid;
            let others = up
                .iter()
                .find(|one| avoid.is_some_and(|path| path != one.path));
            let to = others.copied().unwrap_or(up[self.dice.below(up.len())]);
            any |= self.send(id, to, now)?;
        }
        Ok(any)
    }

    fn send(&mut self, id: OpId, to: Connection, now: Duration) -> Result<bool, Wrong> {
        let call = self.calls[&id].clone();
        let path = &mut self.paths[to.path];
        let block = self.plan.disk.block_size;
        let Some((work, buf)) = call.prepare(id, block, &mut path.buffers) else {
            return Ok(false);
        };
        let queue = path.dice.below(path.queues());
        match path.submit(queue, work, buf, id, now) {
            Ok(()) => {}
            Err(refused) => match refused.why {
                SubmitError::Full | SubmitError::NotConnected(_) => return Ok(false),
                why => return Err(Wrong::Broken(format!("a call was refused: {why}"))),
            },
        }
        self.oracle.resend(id);
        let again = if call.was_sent { " again" } else { "" };
        self.report.resent += u64::from(call.was_sent);
        let (kind, range, path) = (call.kind, &call.range, to.path);
        self.trace.say(
            now,
            format_args!("path {path} queue {queue} call {id}{again}: {kind:?} {range:?}"),
        );
        let call = self.calls.get_mut(&id).unwrap();
        call.state = State::Sent(to);
        call.was_sent = true;
        Ok(true)
    }
}

/// The end.
impl Multipath {
    fn advance_phase(&mut self, now: Duration) -> Result<bool, Wrong> {
        let next = match self.phase {
            Phase::Work if now >= self.plan.time => {
                self.disks.set_temper(Temper {
                    stalls: (OneIn(0), Duration::ZERO),
                    ..self.plan.temper.clone()
                });
                if self.initiator.is_some() {
                    self.set_ana(OPTIMIZED);
                }
                Phase::Calm
            }
            Phase::Calm if self.is_calm() => {
                self.make_call(Kind::Read, 0..self.plan.disk.blocks, now);
                Phase::Verify
            }
            Phase::Verify if self.calls.is_empty() => Phase::Leave,
            Phase::Leave => return self.leave(now),
            _ => return Ok(false),
        };
        self.phase = next;
        self.say(format_args!("phase: {next:?}"));
        Ok(true)
    }

    fn is_calm(&self) -> bool {
        let is_connected = match &self.initiator {
            Some(initiator) => initiator.is_calm(),
            None => self.lost.is_empty() && self.links.iter().all(|link| link.is_up),
        };
        is_connected
            && self.calls.is_empty()
            && self.cuts == [None; PATHS]
            && self.restart.is_none()
            && !self.draining
            && self.disks.oldest().is_none()
    }

    /// The next step of a disconnect. Returns whether there was one.
    fn disconnect(&mut self, now: Duration) -> bool {
        if let Some(initiator) = &mut self.initiator {
            return initiator.leave(now);
        }
        let mut changed = false;
        for path in &mut self.paths {
            let before = path.changes;
            path.leave(now);
            changed |= path.changes != before;
        }
        changed
    }

    /// Waits until the host has disconnected, and checks that all resources are free.
    fn leave(&mut self, now: Duration) -> Result<bool, Wrong> {
        if self.disconnect(now) {
            return Ok(true);
        }
        let left = match &self.initiator {
            Some(initiator) => initiator.has_left(),
            None => self.paths.iter().all(Host::has_left),
        };
        if !left || self.reactors.queue_pairs() > 0 {
            return Ok(false);
        }
        let controllers = self.target.controllers();
        if controllers > 0 {
            return Err(Wrong::Broken(format!(
                "the host disconnected, but the target still has {controllers} controllers"
            )));
        }
        // A call that was sent again over another path may be in progress on the lost one.
        if self.disks.oldest().is_some() {
            return Ok(false);
        }
        self.reactors.check_free()?;
        self.phase = Phase::Over;
        Ok(true)
    }
}

/// The namespace.
pub(super) const NSID: u32 = 1;
const NS: usize = 0;
const OPTIMIZED: [AnaState; PATHS] = [AnaState::OPTIMIZED; PATHS];

/// The address of the target on a path.
fn address(path: usize) -> Address {
    Address::from((TARGET_IP, PORT + u16::try_from(path).unwrap()))
}

fn model(plan: &Plan, ana: [AnaState; PATHS]) -> Model {
    let port = |path| {
        let port = PORT + u16::try_from(path).unwrap();
        let mut spec = PortSpec::new(TARGET_IP, port, vec![Fabric::Iwarp.into()]);
        spec.ana_groups = vec![AnaGroup {
            id: DEFAULT_ANA_GROUP,
            state: ana[path],
        }];
        spec
    };
    let ports: Vec<_> = (0..PATHS).map(port).collect();
    let namespace = NamespaceSpec {
        nsid: NSID,
        blocks: plan.disk.blocks,
        block_size: u32::try_from(plan.disk.block_size).unwrap(),
        store: 0,
        volatile_cache: plan.disk.volatile,
        ..NamespaceSpec::default()
    };
    let subsystem = SubsystemSpec {
        nqn: SUBNQN.to_owned(),
        allow_any_host: true,
        namespaces: vec![namespace],
        ..SubsystemSpec::default()
    };
    Model::build(plan.limits.clone(), &ports, &[subsystem]).unwrap()
}
