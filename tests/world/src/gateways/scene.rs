//! One run: virtual time, the network, faults, and the end.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;
use std::time::Duration;

use nvmeof_rdma_layers::{Dice, OneIn};
use nvmeof_target_ha::LostState;

use super::ceph::{Ceph, ObjectId, Order, Reply, ReplyTo, Request};
use super::driver::{GatewayNode, Timer};
use super::hosts::{Ask, Command, Response, Task};
use super::oracle::Oracle;
use super::plan::{Fault, Part, Plan};
use super::{Failure, Mechanism, Report};
use crate::trace::Trace;

/// After this time without faults, all groups must be served and all calls end.
const RECOVERY: Duration = Duration::from_secs(40);
/// How long calls are observed after that.
const OBSERVATION: Duration = Duration::from_secs(5);

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Node {
    Host(usize),
    Gateway(usize),
    Monitor,
    Osd(usize),
}

/// What the network carries.
#[derive(Clone, Debug)]
pub(super) enum Message {
    Command(Command),
    Response(Command, Response),
    /// Has the controller at another gateway ended?
    Ask(Ask),
    Answer(Ask, LostState),
    Request(Request),
    Order(Order, ReplyTo),
    /// A reply with the epoch of the map of its sender.
    Reply(ReplyTo, Reply, u64),
}

/// What happens at a time.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Deliver {
        from: Node,
        to: Node,
        session: u64,
        message: Message,
    },
    /// An OSD executes a request.
    Execute {
        osd: usize,
        request: Request,
    },
    /// An OSD gets a map.
    Map {
        osd: usize,
        epoch: u64,
    },
    /// At a process of a gateway.
    Timer {
        gateway: usize,
        process: u64,
        timer: Timer,
    },
    /// A task begins a call, or sends it again.
    Task(usize),
    Timeout {
        task: usize,
        attempt: u64,
    },
    /// A task continues to fence the controllers that it has lost.
    Fencing {
        task: usize,
        attempt: u64,
    },
    Fault(usize),
    /// A fault of a gateway that has begun an action.
    FaultOf(usize, Fault),
    /// A suspended gateway continues.
    Resume(usize),
    Start(usize),
    OpenWorks(usize),
    FastOsd(usize),
    EndDrain(usize, usize),
}

struct Scheduled(Duration, u64, Event);

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.1 == other.1
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// The state of a run.
pub(super) struct Scene {
    pub(super) plan: Plan,
    pub(super) dice: Dice,
    pub(super) now: Duration,
    trace: Trace,
    events: BinaryHeap<Reverse<Scheduled>>,
    sequence: u64,
    /// When the last message of each connection arrives.
    arrivals: BTreeMap<(Node, Node, u64), Duration>,
    /// Until when nothing passes between a gateway and another node.
    cuts: BTreeMap<(usize, Node), Duration>,
    pub(super) ceph: Ceph,
    /// When each OSD executes its last request.
    executions: Vec<Duration>,
    is_slow: Vec<bool>,
    pub(super) gateways: Vec<GatewayNode>,
    pub(super) tasks: Vec<Task>,
    /// The number of the connection of each host to each gateway.
    pub(super) connections: Vec<Vec<u64>>,
    pub(super) oracle: Oracle,
    pub(super) report: Report,
    failure: Option<String>,
    /// A fault of the next gateway that acts.
    pub(super) pending_fault: Option<Fault>,
}

impl Scene {
    pub(super) fn new(plan: Plan, print: bool) -> Self {
        let mut dice = Dice::new(plan.seed ^ 0x7363_656e);
        let mut ceph = Ceph::new(plan.osds);
        ceph.breaks_locks = plan.mode.lacks(Mechanism::Fence);
        let gateways = (0..plan.gateways).map(|_| GatewayNode::new(&mut dice));
        let mut scene = Self {
            gateways: gateways.collect(),
            now: Duration::ZERO,
            trace: Trace::new(print),
            events: BinaryHeap::new(),
            sequence: 0,
            arrivals: BTreeMap::new(),
            cuts: BTreeMap::new(),
            executions: vec![Duration::ZERO; plan.osds],
            is_slow: vec![false; plan.osds],
            ceph,
            tasks: Vec::new(),
            connections: vec![vec![0; plan.gateways]; plan.hosts],
            oracle: Oracle::default(),
            report: Report::default(),
            failure: None,
            pending_fault: None,
            dice,
            plan,
        };
        scene.schedule();
        scene
    }

    fn schedule(&mut self) {
        for group in 1..=self.plan.groups {
            for number in 0..self.plan.objects {
                let host = self.tasks.len() % self.plan.hosts;
                let object = ObjectId { group, number };
                let pause = self.any_pause();
                self.tasks.push(Task::new(host, Some(object), pause));
            }
        }
        for host in 0..self.plan.hosts {
            let pause = self.any_pause();
            self.tasks.push(Task::new(host, None, pause));
        }
        for task in 0..self.tasks.len() {
            self.after(Duration::ZERO, Event::Task(task));
        }
        for gateway in 0..self.plan.gateways {
            let at = Duration::from_micros(self.dice.below(500_000) as u64);
            self.after(at, Event::Start(gateway));
        }
        for at in 0..self.plan.faults.len() {
            self.after(self.plan.faults[at].0, Event::Fault(at));
        }
    }

    fn any_pause(&mut self) -> Duration {
        let at = self.dice.below(self.plan.pauses.len());
        self.plan.pauses[at]
    }

    pub(super) fn run(mut self) -> Result<Report, Box<Failure>> {
        // Faults last for at most 9 s.
        let healed = self.plan.time + Duration::from_secs(11);
        let end = healed + RECOVERY;
        self.run_until(healed);
        self.pending_fault = None;
        (self.plan.lost, self.plan.given_up, self.plan.late) = (OneIn(0), OneIn(0), OneIn(0));
        for task in &mut self.tasks {
            task.pause = Duration::from_millis(500);
        }
        self.run_until(end);
        self.check_served();
        self.run_until(end + OBSERVATION);
        for task in 0..self.tasks.len() {
            if self.tasks[task].last_end < end {
                self.fail(format!("task {task}: no call ended after the recovery"));
            }
        }
        let fenced = self.ceph.fenced();
        if self.plan.mode.faults == super::Faults::Planned && fenced > 0 {
            self.fail(format!("{fenced} clients were fenced without a fault"));
        }
        let violation = self.oracle.violation().map(str::to_owned);
        let is_violation = violation.is_some();
        if let Some(what) = violation.or(self.failure) {
            return Err(Box::new(Failure {
                seed: self.plan.seed,
                mode: self.plan.mode,
                is_violation,
                what,
                trace: self.trace.tail(),
            }));
        }
        Ok(Report {
            takeovers: self.oracle.takeovers,
            given_up: self.oracle.given_up,
            fenced,
            refused: self.ceph.refused,
            hash: self.trace.hash(),
            ..self.report
        })
    }

    fn run_until(&mut self, end: Duration) {
        while self.failure.is_none() && self.oracle.violation().is_none() {
            let is_due = |next: &Reverse<Scheduled>| next.0.0 <= end;
            if !self.events.peek().is_some_and(is_due) {
                self.now = end;
                return;
            }
            if let Some(Reverse(Scheduled(at, _, event))) = self.events.pop() {
                self.now = at;
                self.handle(event);
            }
        }
    }

    fn check_served(&mut self) {
        for group in 1..=self.plan.groups {
            let serving = self.gateways.iter().filter(|it| it.is_serving(group));
            let count = serving.count();
            if count != 1 {
                let now = self.now;
                self.fail(format!(
                    "group {group}: {count} gateways serve it at {now:?}"
                ));
                for gateway in 0..self.plan.gateways {
                    self.explain(gateway, group);
                }
            }
        }
    }

    pub(super) fn fail(&mut self, what: String) {
        self.say(format_args!("failed: {what}"));
        self.failure.get_or_insert(what);
    }

    pub(super) fn say(&mut self, what: fmt::Arguments<'_>) {
        self.trace.say(self.now, what);
    }

    pub(super) fn after(&mut self, delay: Duration, event: Event) {
        self.sequence += 1;
        let at = self.now + delay;
        self.events
            .push(Reverse(Scheduled(at, self.sequence, event)));
    }

    /// A random time up to `most`.
    pub(super) fn some_time(&mut self, most: Duration) -> Duration {
        let most = usize::try_from(most.as_micros()).unwrap();
        Duration::from_micros(20 + self.dice.below(most) as u64)
    }

    /// Sends a message. Those of one connection arrive in order.
    pub(super) fn send(&mut self, from: Node, to: Node, session: u64, message: Message) {
        let mut delay = self.some_time(self.plan.latency);
        if self.dice.happens(self.plan.late) {
            delay = self.some_time(Duration::from_millis(300));
        }
        self.deliver_at(self.now + delay, from, to, session, message);
    }

    fn deliver_at(&mut self, at: Duration, from: Node, to: Node, session: u64, message: Message) {
        let last = self.arrivals.entry((from, to, session)).or_default();
        let at = at.max(*last + Duration::from_nanos(1));
        *last = at;
        let event = Event::Deliver {
            from,
            to,
            session,
            message,
        };
        self.after(at - self.now, event);
    }

    /// Until when nothing passes between two nodes.
    fn cut_until(&self, from: Node, to: Node) -> Option<Duration> {
        let key = match (from, to) {
            (Node::Gateway(gateway), other) | (other, Node::Gateway(gateway)) => (gateway, other),
            _ => return None,
        };
        self.cuts.get(&key).copied().filter(|end| *end > self.now)
    }

    fn handle(&mut self, event: Event) {
        let event = match event {
            Event::Deliver {
                from,
                to,
                session,
                message,
            } => match self.cut_until(from, to) {
                // The network sends it again after the partition.
                Some(end) => return self.deliver_at(end, from, to, session, message),
                None if self.is_closed(from, to, &message) => return,
                None => Event::Deliver {
                    from,
                    to,
                    session,
                    message,
                },
            },
            other => other,
        };
        let gateway = match &event {
            Event::Deliver {
                to: Node::Gateway(gateway),
                ..
            }
            | Event::Timer { gateway, .. } => Some(*gateway),
            _ => None,
        };
        match gateway.and_then(|at| self.gateways.get_mut(at)) {
            Some(gateway) if gateway.is_suspended => gateway.held.push(event),
            _ => self.happen(event),
        }
    }

    /// Whether the host has closed the connection, and the gateway if commands can be late.
    fn is_closed(&self, from: Node, to: Node, message: &Message) -> bool {
        match (from, to, message) {
            (Node::Host(host), Node::Gateway(gateway), Message::Command(command))
                if self.plan.has_late_commands =>
            {
                !self.gateways[gateway].accepts(host, command, self.now)
            }
            (Node::Host(host), Node::Gateway(gateway), Message::Command(command))
            | (Node::Gateway(gateway), Node::Host(host), Message::Response(command, _)) => {
                self.connections[host][gateway] != command.connection
            }
            _ => false,
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Deliver { to, message, .. } => self.deliver(to, message),
            Event::Execute { osd, request } => self.execute(osd, &request),
            Event::Map { osd, epoch } => {
                for request in self.ceph.handle_map(osd, epoch) {
                    self.start(osd, request);
                }
            }
            Event::Timer {
                gateway,
                process,
                timer,
            } => self.handle_timer(gateway, process, timer),
            Event::Task(task) => self.run_task(task),
            Event::Timeout { task, attempt } => self.handle_timeout(task, attempt),
            Event::Fencing { task, attempt } => self.handle_fencing(task, attempt),
            Event::Fault(at) => self.inject(self.plan.faults[at].1),
            Event::FaultOf(gateway, Fault::CrashActing(time)) => {
                self.inject(Fault::Crash(gateway, time));
            }
            Event::FaultOf(gateway, Fault::SuspendActing(time)) => {
                self.inject(Fault::Suspend(gateway, time));
            }
            Event::FaultOf(..) => {}
            Event::Resume(gateway) => self.resume(gateway),
            Event::Start(gateway) => self.start_gateway(gateway),
            Event::OpenWorks(gateway) => self.gateways[gateway].open_fails = false,
            Event::FastOsd(osd) => self.is_slow[osd] = false,
            Event::EndDrain(via, gateway) => self.end_drain(via, gateway),
        }
    }

    fn deliver(&mut self, to: Node, message: Message) {
        match (to, message) {
            (Node::Gateway(gateway), Message::Command(command)) => {
                self.handle_command(gateway, command);
            }
            (Node::Gateway(gateway), Message::Ask(ask)) => self.handle_ask(gateway, ask),
            (Node::Host(_), Message::Answer(ask, state)) => self.handle_answer(ask, state),
            (Node::Gateway(_), Message::Reply(to, reply, epoch)) => {
                self.handle_reply(to, reply, epoch);
            }
            (Node::Host(_), Message::Response(command, response)) => {
                self.handle_response(command, response);
            }
            (Node::Osd(osd), Message::Request(request)) => {
                let epoch = request.epoch;
                if let Some(request) = self.ceph.arrive(osd, request) {
                    self.start(osd, request);
                } else {
                    let delay = self.some_time(Duration::from_millis(30));
                    self.after(delay, Event::Map { osd, epoch });
                }
            }
            (Node::Monitor, Message::Order(order, to)) => self.execute_order(&order, to),
            _ => {}
        }
    }

    fn execute_order(&mut self, order: &Order, to: ReplyTo) {
        let reply = self.ceph.order(order);
        let epoch = self.ceph.epoch;
        self.say(format_args!("monitor: {order:?} epoch {epoch}: {reply:?}"));
        if matches!(order, Order::Blocklist(_)) {
            for osd in 0..self.plan.osds {
                let delay = self.some_time(self.plan.map_delay);
                self.after(delay, Event::Map { osd, epoch });
            }
        }
        let gateway = Node::Gateway(to.gateway);
        let message = Message::Reply(to, reply, epoch);
        self.send(Node::Monitor, gateway, to.process, message);
    }

    /// An OSD starts a request, which it executes after those before it.
    fn start(&mut self, osd: usize, request: Request) {
        let most = if self.is_slow[osd] { 800 } else { 4 };
        let at = self.now + self.some_time(Duration::from_millis(most));
        let at = at.max(self.executions[osd] + Duration::from_nanos(1));
        self.executions[osd] = at;
        self.after(at - self.now, Event::Execute { osd, request });
    }

    fn execute(&mut self, osd: usize, request: &Request) {
        let reply = self.ceph.execute(osd, request, &mut self.oracle);
        let epoch = self.ceph.osd_epoch(osd);
        match &reply {
            Reply::Record(_) => {}
            reply => self.say(format_args!(
                "osd {osd} epoch {epoch}: client {} epoch {}: {}: {reply:?}",
                request.client,
                request.epoch,
                short(&request.op)
            )),
        }
        let to = request.reply_to;
        let is_record = matches!(reply, Reply::Record(_) | Reply::Version(_));
        if is_record && self.dice.happens(self.plan.lost) {
            return;
        }
        let message = Message::Reply(to, reply, epoch);
        let node = Node::Gateway(to.gateway);
        self.send(Node::Osd(osd), node, request.client, message);
    }

    fn inject(&mut self, fault: Fault) {
        self.say(format_args!("fault: {fault:?}"));
        match fault {
            Fault::Suspend(gateway, time) => {
                if self.gateways[gateway].may_suspend() {
                    self.gateways[gateway].is_suspended = true;
                    self.after(time, Event::Resume(gateway));
                }
            }
            Fault::Crash(gateway, time) => self.crash(gateway, time),
            Fault::SuspendActing(_) | Fault::CrashActing(_) => self.pending_fault = Some(fault),
            Fault::Cut(gateway, part, time) => self.cut(gateway, part, self.now + time),
            Fault::OpenFails(gateway, time) => {
                self.gateways[gateway].open_fails = true;
                self.after(time, Event::OpenWorks(gateway));
            }
            Fault::SlowOsd(osd, time) => {
                self.is_slow[osd] = true;
                self.after(time, Event::FastOsd(osd));
            }
            Fault::Move(via, group, to) => self.order_move(via, group, to),
            Fault::Drain(via, gateway, time) => {
                self.order_drain(via, gateway);
                self.after(time, Event::EndDrain(via, gateway));
            }
            Fault::Stop(gateway, time) => self.stop(gateway, time),
        }
    }

    fn cut(&mut self, gateway: usize, part: Part, end: Duration) {
        let osds = (0..self.plan.osds).map(Node::Osd);
        let nodes: Vec<Node> = match part {
            Part::Monitor => vec![Node::Monitor],
            Part::Osd(osd) => vec![Node::Osd(osd)],
            Part::Host(host) => vec![Node::Host(host)],
            Part::Ceph => osds.chain([Node::Monitor]).collect(),
        };
        for node in nodes {
            let until = self.cuts.entry((gateway, node)).or_default();
            *until = end.max(*until);
        }
    }

    /// A suspended process continues: with what has arrived, and with expired timers.
    fn resume(&mut self, gateway: usize) {
        self.say(format_args!("gateway {gateway} continues"));
        let node = &mut self.gateways[gateway];
        node.is_suspended = false;
        let mut held = std::mem::take(&mut node.held);
        // Its threads continue in any order: decisions before or after commands.
        let lag = match self.dice.happens(OneIn(3)) {
            true => Duration::ZERO,
            false => self.some_time(Duration::from_millis(200)),
        };
        if lag.is_zero() {
            held.sort_by_key(|event| !is_of_machine(event));
        }
        for event in held {
            match is_of_machine(&event) {
                true => self.after(lag, event),
                false => self.happen(event),
            }
        }
    }
}

/// Whether an event concerns decisions; others concern commands of hosts.
fn is_of_machine(event: &Event) -> bool {
    let poll = matches!(
        event,
        Event::Timer {
            timer: Timer::Poll(_) | Timer::GiveUp(_),
            ..
        }
    );
    let record = matches!(
        event,
        Event::Deliver {
            message: Message::Reply(_, Reply::Record(_) | Reply::Version(_) | Reply::Conflict, _),
            ..
        }
    );
    poll || record
}

fn short(op: &super::ceph::Op) -> String {
    match op {
        super::ceph::Op::WriteRecord(expected, _) => format!("WriteRecord({expected:?})"),
        other => format!("{other:?}"),
    }
}
