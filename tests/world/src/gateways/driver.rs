//! The driver of a gateway: executes the actions of its machine, and commands of hosts.

use std::collections::BTreeMap;
use std::time::Duration;

use nvmeof_rdma_layers::Dice;
use nvmeof_target_ha::{
    Action, Config, ControllerIds, Facts, GroupConfig, Incarnation, LostController, LostState,
    Machine, Number, Standing, Time, Timing, Written,
};

use super::Mechanism;
use super::ceph::{ClientId, Op, Order, Reply, ReplyTo, Request};
use super::hosts::{Ask, Command, KEEP_ALIVE, Response};
use super::scene::{Event, Message, Node, Scene};

/// Actions of a machine at one time, at most.
const MOST_ACTIONS: u32 = 1000;

/// How long an unplanned `Close` waits for commands in flight.
const PATIENCE: Duration = Duration::from_secs(1);

/// A timer of a process.
#[derive(Clone, Copy, Debug)]
pub(super) enum Timer {
    /// The machine is polled. The number of the last wake-up counts.
    Poll(u64),
    /// A command that has been received is started.
    Submit(Command, u64),
    /// A call to the cluster is given up, although it may take effect later.
    GiveUp(u64),
    /// Commands of that group are not waited for any longer by that `Close`.
    EndClose(u32, Number),
}

/// The images of a group.
#[derive(Debug, Default)]
struct Images {
    /// The action in progress.
    number: Number,
    client: Option<ClientId>,
    epoch: u64,
    is_serving: bool,
    is_closing: bool,
    /// Counts the times that the group was served: a command that waits is for one of them.
    generation: u64,
    outstanding: u64,
}

/// A call to the cluster that has no reply yet.
#[derive(Clone, Debug)]
enum Call {
    Record { number: Number, is_write: bool },
    Connect(Step, Vec<ClientId>),
    Blocklist(Step),
    LatestMap(Step),
    EarlyLock(Step),
    Lock(Step),
    Unlock(Step),
    Data(Command, ClientId),
}

/// A step of an action.
#[derive(Clone, Copy, Debug)]
struct Step {
    group: u32,
    number: Number,
    client: ClientId,
}

/// A gateway: its process, and what it has received while it is suspended.
#[derive(Debug, Default)]
pub(super) struct GatewayNode {
    machine: Option<Machine>,
    process: u64,
    /// Its clock at the beginning.
    offset: Duration,
    pub(super) is_suspended: bool,
    pub(super) held: Vec<Event>,
    control: ClientId,
    images: BTreeMap<u32, Images>,
    calls: BTreeMap<u64, Call>,
    last_token: u64,
    last_poll: u64,
    last_submit: Duration,
    /// The first connection of each host that is open.
    open: BTreeMap<usize, u64>,
    /// Questions of hosts that have no answer yet.
    asked: Vec<(Ask, LostController)>,
    pub(super) open_fails: bool,
    /// When it starts again after it has stopped.
    restart: Option<Duration>,
}

impl GatewayNode {
    pub(super) fn new(dice: &mut Dice) -> Self {
        Self {
            offset: Duration::from_millis(dice.roll() % 100_000),
            ..Self::default()
        }
    }

    pub(super) fn may_suspend(&self) -> bool {
        self.machine.is_some() && !self.is_suspended
    }

    /// Whether a command arrives on a connection that is open.
    pub(super) fn accepts(&self, host: usize, command: &Command, now: Duration) -> bool {
        let first = self.open.get(&host).copied().unwrap_or(0);
        command.connection >= first && now < command.sent + KEEP_ALIVE
    }

    pub(super) fn is_serving(&self, group: u32) -> bool {
        self.images.get(&group).is_some_and(|it| it.is_serving)
    }
}

fn name(gateway: usize) -> String {
    format!("g{gateway}")
}

/// The time that the clock of a gateway shows.
fn time(scene: &Scene, gateway: usize) -> Time {
    let rate = u32::try_from(1000 + scene.plan.drift[gateway]).unwrap();
    Time {
        monotonic: scene.gateways[gateway].offset + scene.now * rate / 1000,
        unix_s: scene.now.as_secs(),
    }
}

impl Scene {
    pub(super) fn start_gateway(&mut self, at: usize) {
        if self.gateways[at].machine.is_some() {
            return;
        }
        let first = 1000 * u16::try_from(at).unwrap() + 1;
        let count = self.plan.gateways;
        let groups = (1..=self.plan.groups).map(|id| {
            let preferred = usize::try_from(id).unwrap();
            let order = (0..count).map(|next| name((preferred + next) % count));
            let gateways = order.collect();
            GroupConfig { id, gateways }
        });
        let config = Config {
            name: name(at),
            facts: Facts {
                controller_ids: ControllerIds {
                    first,
                    last: first + 999,
                },
                shared: BTreeMap::from([("serial".to_owned(), "S1".to_owned())]),
                has_others: false,
            },
            groups: groups.collect(),
            timing: Timing {
                action_timeout: Duration::from_secs(6),
                ..Timing::default()
            },
            failback: self.plan.failback,
        };
        let incarnation = Incarnation(self.dice.roll().into());
        let machine = Machine::new(config, incarnation, time(self, at)).unwrap();
        let Reply::Client(control) = self.ceph.order(&Order::Connect(0)) else {
            return;
        };
        let node = &mut self.gateways[at];
        node.process += 1;
        node.machine = Some(machine);
        node.control = control;
        let process = node.process;
        self.say(format_args!("gateway {at} starts as process {process}"));
        self.poll_machine(at);
    }

    pub(super) fn crash(&mut self, at: usize, time: Duration) {
        if self.gateways[at].machine.is_some() {
            self.end_process(at);
            self.after(time, Event::Start(at));
        }
    }

    /// What it has sent still arrives.
    fn end_process(&mut self, at: usize) {
        self.disconnect(at);
        let node = &mut self.gateways[at];
        node.machine = None;
        node.asked.clear();
        node.process += 1;
        node.images.clear();
        node.calls.clear();
        node.held.clear();
        node.is_suspended = false;
        node.restart = None;
    }

    /// Closes all connections of hosts.
    fn disconnect(&mut self, at: usize) {
        for host in 0..self.plan.hosts {
            self.connections[host][at] += 1;
            let first = self.connections[host][at];
            self.gateways[at].open.insert(host, first);
        }
    }

    pub(super) fn handle_ask(&mut self, at: usize, ask: Ask) {
        let now = time(self, at);
        let node = &mut self.gateways[at];
        let Some(machine) = &node.machine else {
            return;
        };
        let cntlid = 1000 * u16::try_from(ask.gateway).unwrap() + 1;
        match machine.ask_lost(now, cntlid) {
            Some(lost) => node.asked.push((ask, lost)),
            None => self.answer(at, ask, LostState::Unknown),
        }
    }

    fn answer(&mut self, at: usize, ask: Ask, state: LostState) {
        let host = Node::Host(self.tasks[ask.task].host);
        let message = Message::Answer(ask, state);
        self.send(Node::Gateway(at), host, u64::MAX - ask.attempt, message);
    }

    fn answer_hosts(&mut self, at: usize) {
        let now = time(self, at);
        let node = &mut self.gateways[at];
        let (Some(machine), mut asked) = (&node.machine, std::mem::take(&mut node.asked)) else {
            return;
        };
        let mut answers = Vec::new();
        asked.retain_mut(|(ask, lost)| {
            let state = machine.judge_lost(now, lost);
            let is_known = state != LostState::Pending;
            if is_known {
                answers.push((*ask, state));
            }
            !is_known
        });
        node.asked = asked;
        for (ask, state) in answers {
            self.say(format_args!("gateway {at}: {ask:?}: {state:?}"));
            self.answer(at, ask, state);
        }
    }

    pub(super) fn stop(&mut self, at: usize, restart: Duration) {
        let now = time(self, at);
        let node = &mut self.gateways[at];
        let Some(machine) = &mut node.machine else {
            return;
        };
        if node.restart.is_none() && !node.is_suspended {
            machine.stop(now);
            node.restart = Some(restart);
            self.poll_machine(at);
        }
    }

    /// Executes an order of an administrator, unless the gateway cannot.
    fn administer(&mut self, via: usize, order: impl FnOnce(&mut Machine, Time) -> bool) -> bool {
        let now = time(self, via);
        let node = &mut self.gateways[via];
        let is_done = match &mut node.machine {
            Some(machine) if !node.is_suspended => order(machine, now),
            _ => false,
        };
        self.poll_machine(via);
        is_done
    }

    pub(super) fn order_move(&mut self, via: usize, group: u32, to: usize) {
        self.administer(via, |machine, now| {
            machine.move_group(now, group, &name(to)).is_ok()
        });
    }

    pub(super) fn order_drain(&mut self, via: usize, gateway: usize) {
        self.administer(via, |machine, _| machine.drain(&name(gateway)).is_ok());
    }

    pub(super) fn end_drain(&mut self, via: usize, gateway: usize) {
        if !self.administer(via, |machine, _| machine.resume(&name(gateway)).is_ok()) {
            // The administrator repeats it at another gateway.
            let via = (via + 1) % self.plan.gateways;
            self.after(Duration::from_millis(700), Event::EndDrain(via, gateway));
        }
    }

    pub(super) fn explain(&mut self, at: usize, group: u32) {
        let now = time(self, at);
        let Some(machine) = &self.gateways[at].machine else {
            return;
        };
        let why = machine.why(now, group).map(|why| why.to_string());
        let standing = machine.standing().clone();
        self.say(format_args!("gateway {at}: {standing:?}: {why:?}"));
    }

    pub(super) fn handle_timer(&mut self, at: usize, process: u64, timer: Timer) {
        if self.gateways[at].process != process {
            return;
        }
        match timer {
            Timer::Poll(number) => {
                if self.gateways[at].last_poll == number {
                    self.poll_machine(at);
                }
            }
            Timer::Submit(command, generation) => self.submit(at, command, generation),
            Timer::EndClose(group, number) => self.end_close(at, group, number),
            Timer::GiveUp(token) => {
                if let Some(Call::Record { number, is_write }) =
                    self.gateways[at].calls.remove(&token)
                {
                    let error = "timed out".to_owned();
                    let now = time(self, at);
                    if let Some(machine) = &mut self.gateways[at].machine {
                        match is_write {
                            true => machine.handle_written(now, number, Written::Unknown(error)),
                            false => machine.handle_record(now, number, Err(error)),
                        }
                    }
                    self.poll_machine(at);
                }
            }
        }
    }

    /// Executes all actions, and sets the timer.
    fn poll_machine(&mut self, at: usize) {
        if self.gateways[at].is_suspended {
            return;
        }
        for round in 0.. {
            let now = time(self, at);
            let Some(machine) = &mut self.gateways[at].machine else {
                return;
            };
            if round == MOST_ACTIONS {
                return self.fail(format!("gateway {at} acts without end"));
            }
            let Some(action) = machine.poll(now) else {
                break;
            };
            self.act(at, action);
        }
        let now = time(self, at).monotonic;
        let node = &mut self.gateways[at];
        let Some(machine) = &node.machine else {
            return;
        };
        if *machine.standing() == Standing::Stopped {
            let restart = node.restart.unwrap_or_default();
            self.say(format_args!("gateway {at} has stopped"));
            self.end_process(at);
            return self.after(restart, Event::Start(at));
        }
        if let Some(wakeup) = machine.next_wakeup() {
            node.last_poll += 1;
            let timer = Timer::Poll(node.last_poll);
            let rate = u32::try_from(1000 + self.plan.drift[at]).unwrap();
            let delay = wakeup.saturating_sub(now) * 1000 / rate + Duration::from_micros(1);
            self.set_timer(at, delay, timer);
        }
    }

    fn set_timer(&mut self, gateway: usize, delay: Duration, timer: Timer) {
        let process = self.gateways[gateway].process;
        let event = Event::Timer {
            gateway,
            process,
            timer,
        };
        self.after(delay, event);
    }

    fn act(&mut self, at: usize, action: Action) {
        match &action {
            Action::Read { .. } => {}
            Action::Write { number, .. } => self.say(format_args!("gateway {at}: Write {number}")),
            other => self.say(format_args!("gateway {at}: {other:?}")),
        }
        let has_begun = matches!(
            action,
            Action::Fence { .. } | Action::Open { .. } | Action::Close { .. }
        );
        if has_begun && let Some(fault) = self.pending_fault.take() {
            let delay = self.some_time(Duration::from_millis(40));
            self.after(delay, Event::FaultOf(at, fault));
        }
        match action {
            Action::Read { number } => self.call_record(at, number, Op::ReadRecord),
            Action::Write {
                number,
                expected,
                bytes,
            } => self.call_record(at, number, Op::WriteRecord(expected, bytes)),
            Action::Fence {
                group,
                number,
                clients,
            } => {
                let clients = clients.iter().map(|it| it.parse().unwrap()).collect();
                let step = self.begin(at, group, number, true);
                // A monitor that is late knows an earlier map.
                let late = [0, 0, 1, 3][self.dice.below(4)];
                self.call_monitor(at, Call::Connect(step, clients), Order::Connect(late));
            }
            Action::Disconnect { number } => {
                if !self.plan.mode.lacks(Mechanism::Disconnect) {
                    self.disconnect(at);
                }
                if let Some(machine) = &mut self.gateways[at].machine {
                    machine.handle_disconnected(number);
                }
            }
            Action::Open { group, number } => {
                let step = self.begin(at, group, number, false);
                self.call_osd(at, step.client, Call::Lock(step), Op::Lock(group));
            }
            Action::Serve { group, epoch } => {
                let images = self.images(at, group);
                (images.is_serving, images.epoch) = (true, epoch);
            }
            Action::StopServing { group } => {
                let images = self.images(at, group);
                images.is_serving = false;
                images.generation += 1;
            }
            Action::Close {
                group,
                number,
                is_planned,
            } => {
                self.begin(at, group, number, false);
                self.images(at, group).is_closing = true;
                self.continue_close(at, group);
                if !is_planned {
                    let timer = Timer::EndClose(group, number);
                    self.set_timer(at, PATIENCE, timer);
                }
            }
        }
    }

    fn images(&mut self, at: usize, group: u32) -> &mut Images {
        self.gateways[at].images.entry(group).or_default()
    }

    /// Begins an action, with new clients or with the present ones.
    fn begin(&mut self, at: usize, group: u32, number: Number, is_new: bool) -> Step {
        let images = self.images(at, group);
        if is_new {
            let generation = images.generation + 1;
            *images = Images {
                generation,
                ..Images::default()
            };
        }
        images.number = number;
        let client = images.client.unwrap_or(0);
        Step {
            group,
            number,
            client,
        }
    }

    fn call(&mut self, at: usize, call: Call) -> ReplyTo {
        let node = &mut self.gateways[at];
        node.last_token += 1;
        node.calls.insert(node.last_token, call);
        ReplyTo {
            gateway: at,
            process: node.process,
            token: node.last_token,
        }
    }

    fn call_record(&mut self, at: usize, number: Number, op: Op) {
        let is_write = matches!(op, Op::WriteRecord(..));
        let control = self.gateways[at].control;
        let token = self.call_osd(at, control, Call::Record { number, is_write }, op);
        if self.dice.happens(self.plan.given_up) {
            let delay = self.some_time(Duration::from_millis(5));
            self.set_timer(at, delay, Timer::GiveUp(token));
        }
    }

    fn call_osd(&mut self, at: usize, client: ClientId, call: Call, op: Op) -> u64 {
        let reply_to = self.call(at, call);
        let request = Request {
            client,
            epoch: self.ceph.client_epoch(client),
            op,
            reply_to,
        };
        let osd = Node::Osd(self.ceph.place(&request.op));
        self.send(Node::Gateway(at), osd, client, Message::Request(request));
        reply_to.token
    }

    fn call_monitor(&mut self, at: usize, call: Call, order: Order) {
        let reply_to = self.call(at, call);
        let process = reply_to.process;
        let message = Message::Order(order, reply_to);
        self.send(Node::Gateway(at), Node::Monitor, process, message);
    }

    pub(super) fn handle_reply(&mut self, to: ReplyTo, reply: Reply, epoch: u64) {
        let at = to.gateway;
        let node = &mut self.gateways[at];
        if node.process != to.process {
            return;
        }
        let Some(call) = node.calls.remove(&to.token) else {
            return;
        };
        match call {
            Call::Record { number, .. } => self.handle_record(at, number, reply),
            Call::Data(command, client) => self.handle_data(at, command, client, &reply, epoch),
            Call::Connect(step, _)
            | Call::Blocklist(step)
            | Call::LatestMap(step)
            | Call::EarlyLock(step)
            | Call::Lock(step)
            | Call::Unlock(step) => {
                if self.images(at, step.group).number == step.number {
                    self.handle_step(at, call, step, &reply, epoch);
                }
            }
        }
    }

    fn handle_record(&mut self, at: usize, number: Number, reply: Reply) {
        let now = time(self, at);
        if let Some(machine) = &mut self.gateways[at].machine {
            match reply {
                Reply::Record(record) => machine.handle_record(now, number, Ok(record)),
                Reply::Version(version) => {
                    machine.handle_written(now, number, Written::Done(version));
                }
                _ => machine.handle_written(now, number, Written::Conflict),
            }
        }
        self.answer_hosts(at);
        self.poll_machine(at);
    }

    /// The next step of an action.
    fn handle_step(&mut self, at: usize, call: Call, step: Step, reply: &Reply, epoch: u64) {
        let Step { group, client, .. } = step;
        let mode = self.plan.mode;
        match (call, reply) {
            (Call::Connect(mut step, clients), Reply::Client(client)) => {
                step.client = *client;
                self.images(at, group).client = Some(*client);
                if clients.is_empty() || mode.lacks(Mechanism::Fence) {
                    let waits = !mode.lacks(Mechanism::MapWaitWithoutFence);
                    return self.wait_for_map(at, step, waits);
                }
                // The command takes its time before it takes effect.
                let delay = self.some_time(self.plan.fence_delay);
                let reply_to = self.call(at, Call::Blocklist(step));
                let event = Event::Deliver {
                    from: Node::Gateway(at),
                    to: Node::Monitor,
                    session: reply_to.process,
                    message: Message::Order(Order::Blocklist(clients), reply_to),
                };
                self.after(delay, event);
            }
            (Call::Blocklist(step), _) => self.wait_for_map(at, step, true),
            (Call::LatestMap(step), _) => {
                self.ceph.learn(client, epoch);
                self.connected(at, step);
            }
            (Call::EarlyLock(step), Reply::Done) => self.fenced(at, step),
            (Call::EarlyLock(step), _) => {
                let error = Err("image is locked".to_owned());
                self.tell(at, |machine, now| {
                    machine.handle_fenced(now, group, step.number, error);
                });
            }
            (Call::Lock(step), reply) => {
                let result = match reply {
                    Reply::Done if self.gateways[at].open_fails => Err("no such pool".to_owned()),
                    Reply::Done => Ok(()),
                    other => Err(format!("{other:?}")),
                };
                self.tell(at, |machine, now| {
                    machine.handle_opened(now, group, step.number, result);
                });
            }
            (Call::Unlock(step), _) => {
                self.images(at, group).client = None;
                self.tell(at, |machine, _| {
                    machine.handle_closed(group, step.number, &Ok(()));
                });
            }
            _ => {}
        }
    }

    fn wait_for_map(&mut self, at: usize, step: Step, waits: bool) {
        if waits && !self.plan.mode.lacks(Mechanism::MapWait) {
            self.call_monitor(at, Call::LatestMap(step), Order::LatestMap);
        } else {
            self.connected(at, step);
        }
    }

    fn connected(&mut self, at: usize, step: Step) {
        if self.plan.mode.lacks(Mechanism::RecordBeforeUse) {
            let op = Op::Lock(step.group);
            self.call_osd(at, step.client, Call::EarlyLock(step), op);
        } else {
            self.fenced(at, step);
        }
    }

    fn fenced(&mut self, at: usize, step: Step) {
        let clients = Ok(vec![step.client.to_string()]);
        self.tell(at, |machine, now| {
            machine.handle_fenced(now, step.group, step.number, clients);
        });
    }

    /// Passes a result to the machine.
    fn tell(&mut self, at: usize, result: impl FnOnce(&mut Machine, Time)) {
        let now = time(self, at);
        if let Some(machine) = &mut self.gateways[at].machine {
            result(machine, now);
        }
        self.poll_machine(at);
    }

    /// Closes images when no operation is outstanding.
    fn continue_close(&mut self, at: usize, group: u32) {
        let images = self.images(at, group);
        if !images.is_closing || images.outstanding > 0 {
            return;
        }
        images.is_closing = false;
        let client = images.client.unwrap_or(0);
        let step = Step {
            group,
            number: images.number,
            client,
        };
        self.call_osd(at, client, Call::Unlock(step), Op::Unlock(group));
    }

    /// Operations are outstanding. Hosts send their commands over another path.
    fn end_close(&mut self, at: usize, group: u32, number: Number) {
        let images = self.images(at, group);
        if images.number != number || !images.is_closing {
            return;
        }
        images.is_closing = false;
        let error = Err(format!("{} commands did not end", images.outstanding));
        self.tell(at, |machine, _| {
            machine.handle_closed(group, number, &error);
        });
    }

    pub(super) fn handle_command(&mut self, at: usize, command: Command) {
        if self.gateways[at].machine.is_none() {
            // It cannot connect.
            return self.respond(at, command, Response::Inaccessible);
        }
        let images = self.images(at, command.object.group);
        if !images.is_serving {
            return self.respond(at, command, Response::Inaccessible);
        }
        let generation = images.generation;
        let delay = self.some_time(Duration::from_millis(3));
        let due = (self.now + delay).max(self.gateways[at].last_submit + Duration::from_nanos(1));
        self.gateways[at].last_submit = due;
        self.set_timer(at, due - self.now, Timer::Submit(command, generation));
    }

    fn submit(&mut self, at: usize, command: Command, generation: u64) {
        let group = command.object.group;
        let images = self.images(at, group);
        let client = images.client.filter(|_| images.is_serving);
        let Some(client) = client.filter(|_| images.generation == generation) else {
            return self.respond(at, command, Response::Inaccessible);
        };
        images.outstanding += 1;
        let op = match command.write {
            Some(value) => Op::Write(command.object, value),
            None => Op::Read(command.object),
        };
        self.call_osd(at, client, Call::Data(command, client), op);
    }

    fn handle_data(
        &mut self,
        at: usize,
        command: Command,
        client: ClientId,
        reply: &Reply,
        epoch: u64,
    ) {
        // An OSD sends a newer map to a client.
        self.ceph.learn(client, epoch);
        let group = command.object.group;
        let images = self.images(at, group);
        let is_current = images.client == Some(client);
        let epoch = images.epoch;
        if is_current {
            images.outstanding -= 1;
        }
        let response = match reply {
            Reply::Done => Response::Done,
            Reply::Value(value) => Response::Value(*value),
            _ => Response::Inaccessible,
        };
        self.respond(at, command, response);
        if is_current && response == Response::Inaccessible {
            self.tell(at, |machine, now| {
                machine.handle_lost(now, group, epoch, "blocklisted");
            });
        }
        self.continue_close(at, group);
    }

    fn respond(&mut self, at: usize, command: Command, response: Response) {
        let host = Node::Host(self.tasks[command.task].host);
        let message = Message::Response(command, response);
        self.send(Node::Gateway(at), host, command.connection, message);
    }
}
