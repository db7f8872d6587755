//! One host: connects, detects when its association is lost, connects again.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_initiator::dhchap::{HostKeys, Refusal};
use nvmeof_initiator::polled::{AdminConfig, AdminQueue, Call, Done, IoConfig, IoQueue};
use nvmeof_initiator::polled::{SubmitError, Work};
use nvmeof_initiator::{Error, SetupFault};
use nvmeof_initiator_core::{ControllerInfo, Names, QueueShape, SetupConfig, SetupError};
use nvmeof_memory::{Buf, ClassSpec, Classes};
use nvmeof_rdma::{Address, Provider, Refused};
use nvmeof_rdma_layers::{Dice, Faults, Faulty};
use nvmeof_wire::Nqn;
use nvmeof_wire::auth::Explanation;

use crate::medium::Medium;
use crate::plan::{HostShape, LONGEST_BUFFER};

/// One host. Its buffers outlive its connections.
pub(crate) struct Host {
    pub(crate) shape: HostShape,
    pub(crate) ip: IpAddr,
    /// The number of its address.
    number: usize,
    /// The number of its NQN.
    name: usize,
    pub(crate) target: Address,
    medium: Medium,
    pub(crate) buffers: Classes,
    pub(crate) dice: Dice,
    state: State,
    /// Providers have no faults from now on.
    well_behaved: bool,
    /// It is not polled until then.
    pub(crate) stalled_until: Duration,
    /// Reason of the last close of its queues.
    pub(crate) why: String,
    /// Counts the changes of state.
    pub(crate) changes: u64,
    /// The keys of new connections.
    keys: Option<Arc<HostKeys>>,
    /// Queues that are being authenticated again.
    authenticating: usize,
    /// Whether its key changed while it was connecting: queues may have used the former one.
    is_stale: bool,
    /// Why the target did not accept the key of this host, which it has.
    pub(crate) refusal: Option<String>,
}

enum State {
    /// Not connected until that time.
    Down { until: Duration },
    /// The admin queue is being set up.
    Admin(Box<AdminQueue>),
    /// I/O queues are being set up, or in use.
    Io {
        admin: Box<AdminQueue>,
        queues: Vec<IoQueue>,
    },
    /// Something failed, or it leaves: all queues are being closed.
    Closing {
        admin: Box<AdminQueue>,
        queues: Vec<IoQueue>,
        since: Duration,
    },
    /// It has left permanently.
    Left,
}

/// Buffers of a host.
pub(crate) const BUFFERS: [ClassSpec; 2] = [
    ClassSpec {
        len: 4096,
        count: 32,
    },
    ClassSpec {
        len: LONGEST_BUFFER,
        count: 16,
    },
];

/// The subsystem that all hosts use.
pub(crate) const SUBNQN: &str = "nqn.2026-11.org.example:world";

/// How long closing may take: the provider's linger, and some more.
const CLOSING: Duration = Duration::from_secs(30);

/// The NQN of host number `number`.
pub(crate) fn name_of(number: usize) -> Nqn {
    Nqn::new(&format!("nqn.2026-11.org.example:host{number}")).unwrap()
}

/// How the target refused to authenticate a queue; `None` for any other error, such as a lost
/// connection.
pub(crate) fn authentication_refusal(error: &Error) -> Option<&Refusal> {
    let Error::Setup(setup) = error else {
        return None;
    };
    match &setup.why {
        SetupFault::Nvme(SetupError::Authentication(refusal)) if **refusal != Refusal::Closed => {
            Some(refusal)
        }
        _ => None,
    }
}

/// Whether the provider of a host may have refused a message, so that the next transaction begins
/// in the middle of one.
fn is_own_fault(shape: &HostShape, refusal: &Refusal) -> bool {
    let in_the_middle = *refusal == Refusal::ByController(Explanation::INCORRECT_MESSAGE);
    in_the_middle && shape.faults != Faults::default()
}

impl Host {
    pub(crate) fn new(
        number: usize,
        shape: HostShape,
        medium: &Medium,
        target: Address,
        seed: u64,
    ) -> Self {
        Self {
            shape,
            ip: IpAddr::from([127, 0, 0, u8::try_from(2 + number).unwrap()]),
            number,
            name: number,
            target,
            medium: medium.clone(),
            buffers: Classes::new(&BUFFERS, medium.pages()).unwrap(),
            dice: Dice::new(seed),
            state: State::Down {
                until: Duration::ZERO,
            },
            well_behaved: false,
            stalled_until: Duration::ZERO,
            why: String::new(),
            changes: 0,
            keys: None,
            authenticating: 0,
            is_stale: false,
            refusal: None,
        }
    }

    /// Uses `keys` for new connections.
    pub(crate) fn set_keys(&mut self, keys: Option<Arc<HostKeys>>) {
        self.keys = keys;
    }

    /// Authenticates all queues again, as soon as they are connected.
    pub(crate) fn reauthenticate(&mut self) {
        self.is_stale = !self.is_up();
        if self.is_stale {
            return;
        }
        let State::Io { admin, queues } = &mut self.state else {
            return;
        };
        let begun = queues
            .iter_mut()
            .map(|queue| queue.reauthenticate(self.keys.clone()));
        let begun = begun.chain([admin.reauthenticate(self.keys.clone())]);
        self.authenticating = begun.filter(Result::is_ok).count();
    }

    /// Whether one of its queues may be using an earlier key.
    pub(crate) fn may_use_old_key(&self) -> bool {
        match &self.state {
            State::Down { .. } | State::Left => false,
            _ => !self.is_up() || self.is_stale || self.authenticating > 0,
        }
    }

    /// What it knows of its controller, if calls can be made.
    pub(crate) fn info(&self) -> Option<Arc<ControllerInfo>> {
        match &self.state {
            State::Io { admin, .. } if self.is_up() => admin.info().cloned(),
            _ => None,
        }
    }

    /// Notes the results of authentications.
    fn note_authentications(&mut self) {
        if self.is_stale && self.is_up() {
            self.reauthenticate();
        }
        let State::Io { admin, queues } = &mut self.state else {
            self.authenticating = 0;
            return;
        };
        let results = queues.iter_mut().filter_map(IoQueue::take_reauthentication);
        for result in results.chain(admin.take_reauthentication()) {
            self.authenticating = self.authenticating.saturating_sub(1);
            let refusal = result
                .err()
                .as_ref()
                .and_then(authentication_refusal)
                .filter(|refusal| !is_own_fault(&self.shape, refusal))
                .map(ToString::to_string);
            self.refusal = refusal.or(self.refusal.take());
        }
    }

    /// A path of host 0: with its NQN, and an address of its own.
    pub(crate) fn path(mut self) -> Self {
        self.name = 0;
        self
    }

    /// Its admin queue, if calls can be made.
    pub(crate) fn admin(&mut self) -> Option<&mut AdminQueue> {
        if !self.is_up() {
            return None;
        }
        match &mut self.state {
            State::Io { admin, .. } => Some(admin),
            _ => None,
        }
    }

    fn provider(&mut self) -> Box<dyn Provider> {
        let endpoint = self.medium.provider(self.ip);
        if self.well_behaved || self.shape.faults == Faults::default() {
            return endpoint;
        }
        let seed = self.dice.roll();
        Box::new(Faulty::new(
            endpoint,
            Faults {
                seed,
                ..self.shape.faults.clone()
            },
        ))
    }

    /// Its names and keys.
    pub(crate) fn names(&self) -> Names {
        let name = u8::try_from(self.name).unwrap();
        Names {
            hostid: [name + 1; 16],
            hostnqn: name_of(self.name),
            subnqn: Nqn::new(SUBNQN).unwrap(),
            keys: self.keys.clone(),
        }
    }

    fn change(&mut self, state: State) {
        self.state = state;
        self.changes += 1;
    }

    /// Whether calls can be made.
    pub(crate) fn is_up(&self) -> bool {
        let State::Io { admin, queues } = &self.state else {
            return false;
        };
        admin.error().is_none() && queues.iter().all(IoQueue::is_ready)
    }

    /// Queue pairs it has, when it is neither connecting nor closing.
    pub(crate) fn settled_queue_pairs(&self) -> Option<usize> {
        match &self.state {
            State::Down { .. } | State::Left => Some(0),
            State::Io { queues, .. } if self.is_up() => Some(1 + queues.len()),
            _ => None,
        }
    }

    pub(crate) fn queues(&self) -> usize {
        match &self.state {
            State::Io { queues, .. } => queues.len(),
            _ => 0,
        }
    }

    pub(crate) fn has_left(&self) -> bool {
        matches!(self.state, State::Left)
    }

    pub(crate) fn is_closing(&self) -> bool {
        matches!(self.state, State::Closing { .. })
    }

    /// A short form, for the trace.
    pub(crate) fn phase(&self) -> &'static str {
        match &self.state {
            State::Down { .. } => "down",
            State::Admin(_) => "setting up its controller",
            State::Io { .. } => "connecting its queues",
            State::Closing { .. } => "closing",
            State::Left => "gone",
        }
    }

    /// In detail, for a failure.
    pub(crate) fn state(&self) -> String {
        match &self.state {
            State::Down { .. } => "down".to_owned(),
            State::Admin(admin) => format!("setting up, {:?}", admin.connection()),
            State::Io { admin, queues } => {
                let queues: Vec<_> = queues.iter().map(IoQueue::connection).collect();
                format!("{:?}, {queues:?}", admin.connection())
            }
            State::Closing { admin, queues, .. } => {
                let queues: Vec<_> = queues.iter().map(IoQueue::connection).collect();
                format!("closing, {:?}, {queues:?}", admin.connection())
            }
            State::Left => "left".to_owned(),
        }
    }

    /// Makes a call on one of the queues.
    pub(crate) fn submit(
        &mut self,
        queue: usize,
        work: Work,
        buf: Option<Buf>,
        user: u64,
        now: Duration,
    ) -> Result<(), Refused<Call, SubmitError>> {
        let State::Io { queues, .. } = &mut self.state else {
            unreachable!("only hosts that are up make calls");
        };
        queues[queue].submit(work, buf, user, now)
    }

    /// Makes progress. Returns whether there was any.
    pub(crate) fn poll(&mut self, now: Duration, done: &mut Vec<Done>) -> Result<bool, String> {
        if now < self.stalled_until {
            return Ok(false);
        }
        let state = std::mem::replace(&mut self.state, State::Left);
        let before = self.changes;
        let (next, progress) = self.step(state, now, done)?;
        self.state = next;
        self.note_authentications();
        Ok(progress || self.changes != before)
    }

    fn step(
        &mut self,
        state: State,
        now: Duration,
        done: &mut Vec<Done>,
    ) -> Result<(State, bool), String> {
        match state {
            State::Left => Ok((State::Left, false)),
            State::Down { until } if now < until => Ok((State::Down { until }, false)),
            State::Down { .. } => {
                self.changes += 1;
                Ok((self.connect(now), true))
            }
            State::Admin(mut admin) => {
                let progress = admin.poll(now, done);
                if admin.error().is_some() {
                    return Ok((self.close(admin, Vec::new(), now), true));
                }
                if admin.info().is_none() {
                    return Ok((State::Admin(admin), progress));
                }
                self.changes += 1;
                let next = match self.connect_queues(&admin, now) {
                    Ok(queues) => State::Io { admin, queues },
                    Err(_) => self.close(admin, Vec::new(), now),
                };
                Ok((next, true))
            }
            State::Io {
                mut admin,
                mut queues,
            } => {
                let mut progress = admin.poll(now, done);
                for queue in &mut queues {
                    progress |= queue.poll(now, done);
                }
                let broken =
                    admin.error().is_some() || queues.iter().any(|it| it.error().is_some());
                if broken {
                    return Ok((self.close(admin, queues, now), true));
                }
                Ok((State::Io { admin, queues }, progress))
            }
            State::Closing {
                mut admin,
                mut queues,
                since,
            } => {
                let mut progress = admin.poll(now, done);
                for queue in &mut queues {
                    progress |= queue.poll(now, done);
                }
                if admin.is_closed() && queues.iter().all(IoQueue::is_closed) {
                    self.changes += 1;
                    return Ok((self.down(now), true));
                }
                if now > since + CLOSING {
                    return Err(format!(
                        "queues of host {} have not closed within {CLOSING:?}: \
                         {:?} {:?}",
                        self.number,
                        admin.connection(),
                        queues.iter().map(IoQueue::connection).collect::<Vec<_>>()
                    ));
                }
                let next = State::Closing {
                    admin,
                    queues,
                    since,
                };
                Ok((next, progress))
            }
        }
    }

    fn down(&mut self, now: Duration) -> State {
        let wait = [0, 1, 10, 80, 200][self.dice.below(5)];
        State::Down {
            until: now + Duration::from_millis(wait),
        }
    }

    fn close(
        &mut self,
        mut admin: Box<AdminQueue>,
        mut queues: Vec<IoQueue>,
        now: Duration,
    ) -> State {
        self.changes += 1;
        let mut errors = queues.iter().filter_map(IoQueue::error);
        let error = errors.next().or(admin.error());
        self.refusal = error
            .and_then(authentication_refusal)
            .filter(|refusal| !is_own_fault(&self.shape, refusal))
            .map(ToString::to_string);
        self.why = error.map(ToString::to_string).unwrap_or_default();
        admin.close();
        for queue in &mut queues {
            queue.close();
        }
        State::Closing {
            admin,
            queues,
            since: now,
        }
    }

    fn connect(&mut self, now: Duration) -> State {
        let provider = self.provider();
        let config = self.admin_config();
        match AdminQueue::connect(provider, self.target, config, now) {
            Ok(admin) => State::Admin(Box::new(admin)),
            Err(_) => self.down(now),
        }
    }

    /// How to set up its controller.
    pub(crate) fn admin_config(&self) -> AdminConfig {
        AdminConfig {
            setup: SetupConfig {
                names: self.names(),
                queue: QueueShape {
                    qid: 0,
                    size: 32,
                    flow_control: self.shape.flow_control,
                },
                keep_alive: self.shape.keep_alive,
                io_queues: u16::try_from(self.shape.queues.len()).unwrap(),
                in_capsule: self.shape.in_capsule,
            },
            command_timeout: self.shape.command_timeout,
            connect_timeout: Duration::from_secs(2),
        }
    }

    fn connect_queues(&mut self, admin: &AdminQueue, now: Duration) -> Result<Vec<IoQueue>, Error> {
        let info = admin.info().unwrap().clone();
        let granted = usize::from(info.io_queues);
        let sizes = self.shape.queues.clone();
        let mut queues = Vec::new();
        for (qid, size) in (1..).zip(sizes).take(granted) {
            let config = IoConfig {
                names: self.names(),
                queue: QueueShape {
                    qid,
                    size,
                    flow_control: self.shape.flow_control,
                },
                command_timeout: self.shape.command_timeout,
                connect_timeout: Duration::from_secs(2),
                trusts_target: false,
            };
            let provider = self.provider();
            let mut queue = IoQueue::connect(provider, self.target, &info, config, now)?;
            for region in self.buffers.regions() {
                queue.register(region)?;
            }
            queues.push(queue);
        }
        Ok(queues)
    }

    /// The time by which it must be polled.
    pub(crate) fn next_deadline(&self, now: Duration) -> Option<Duration> {
        if now < self.stalled_until {
            return Some(self.stalled_until);
        }
        match &self.state {
            State::Left => None,
            State::Down { until } => Some(*until),
            State::Admin(admin) => admin.next_deadline(),
            State::Io { admin, queues } => {
                let queues = queues.iter().filter_map(IoQueue::next_deadline);
                queues.chain(admin.next_deadline()).min()
            }
            State::Closing {
                admin,
                queues,
                since,
            } => {
                let queues = queues.iter().filter_map(IoQueue::next_deadline);
                let ours = [*since + CLOSING + Duration::from_millis(1)];
                queues.chain(admin.next_deadline()).chain(ours).min()
            }
        }
    }

    /// The process crashes: everything is gone immediately, including memory that the target
    /// may be using.
    pub(crate) fn crash(&mut self, now: Duration) {
        let down = self.down(now);
        self.change(down);
        self.buffers = Classes::new(&BUFFERS, self.medium.pages()).unwrap();
    }

    /// Providers have no faults from the next connection on.
    pub(crate) fn behave(&mut self) {
        self.well_behaved = true;
    }

    /// Leaves permanently, with a shutdown if connected. Call it until it has left.
    pub(crate) fn leave(&mut self, now: Duration) {
        if let State::Down { .. } = self.state {
            return self.change(State::Left);
        }
        if !self.is_up() {
            return;
        }
        let State::Io {
            mut admin,
            mut queues,
        } = std::mem::replace(&mut self.state, State::Left)
        else {
            return;
        };
        for queue in &mut queues {
            queue.close();
        }
        admin.shutdown(now, Duration::from_secs(5));
        self.change(State::Closing {
            admin,
            queues,
            since: now,
        });
    }
}
