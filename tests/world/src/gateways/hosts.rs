//! Model hosts: each call is sent to one gateway, and again to the next one if that fails.

use std::time::Duration;

use nvmeof_target_ha::LostState;

use super::ceph::ObjectId;
use super::scene::{Event, Message, Node, Scene};

/// A command that has no response for this time is sent again over another connection.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(1);
/// Delay before a command that was refused is sent again.
const RETRY: Duration = Duration::from_millis(50);

/// A controller that a host has lost is quiet after this time: the gateway has found that the host
/// is silent.
const QUIET: Duration = Duration::from_secs(30);
/// A gateway closes a connection on which nothing has arrived for this time.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(25);
/// How long a host waits for an answer of a gateway about a lost controller.
const ANSWER: Duration = Duration::from_secs(6);

/// The question of a task whether the controller that it has lost at `gateway` has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) task: usize,
    pub(super) attempt: u64,
    pub(super) gateway: usize,
}

/// A controller that a task has lost.
#[derive(Clone, Copy, Debug)]
struct Lost {
    gateway: usize,
    since: Duration,
    /// No gateway knows whether it has ended.
    is_unknown: bool,
}

/// A command of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) task: usize,
    /// Number of the attempt, over all calls of the task.
    pub(super) attempt: u64,
    /// The connection between host and gateway.
    pub(super) connection: u64,
    pub(super) object: ObjectId,
    /// The number to write; `None`: read.
    pub(super) write: Option<u64>,
    /// When it was sent.
    pub(super) sent: Duration,
}

/// The response to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Response {
    Done,
    Value(u64),
    /// The gateway does not serve the group, or its clients failed.
    Inaccessible,
}

/// Calls of a host, one after the other. One task writes each object, others read any object.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) host: usize,
    /// The object of a writer.
    object: Option<ObjectId>,
    path: usize,
    attempt: u64,
    current: Option<Call>,
    /// Controllers that may still have a command of the current call.
    lost: Vec<Lost>,
    pub(super) last_end: Duration,
    /// Longest time between two calls.
    pub(super) pause: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Call {
    object: ObjectId,
    write: Option<u64>,
    /// What a read returns at least.
    known: u64,
    /// The connection of the last attempt.
    connection: u64,
}

impl Task {
    pub(super) fn new(host: usize, object: Option<ObjectId>, pause: Duration) -> Self {
        Self {
            host,
            object,
            path: 0,
            attempt: 0,
            current: None,
            lost: Vec::new(),
            last_end: Duration::ZERO,
            pause,
        }
    }
}

impl Scene {
    /// Begins a call, or sends the current one again.
    pub(super) fn run_task(&mut self, at: usize) {
        if self.tasks[at].current.is_none() {
            let object = self.tasks[at].object.unwrap_or_else(|| self.any_object());
            let is_writer = self.tasks[at].object.is_some();
            let write = is_writer.then(|| self.oracle.next(object));
            let known = self.oracle.known(object);
            self.tasks[at].current = Some(Call {
                object,
                write,
                known,
                connection: 0,
            });
        } else {
            self.report.resent += 1;
        }
        let task = &mut self.tasks[at];
        task.attempt += 1;
        let (host, path, attempt) = (task.host, task.path, task.attempt);
        let connection = self.connections[host][path];
        let Some(call) = &mut task.current else {
            return;
        };
        call.connection = connection;
        let command = Command {
            task: at,
            attempt,
            connection,
            object: call.object,
            write: call.write,
            sent: self.now,
        };
        let to = Node::Gateway(path);
        self.send(Node::Host(host), to, connection, Message::Command(command));
        self.after(COMMAND_TIMEOUT, Event::Timeout { task: at, attempt });
    }

    fn any_object(&mut self) -> ObjectId {
        let group = 1 + u32::try_from(self.dice.roll() % u64::from(self.plan.groups)).unwrap();
        let number = self.dice.roll() % self.plan.objects;
        ObjectId { group, number }
    }

    pub(super) fn handle_timeout(&mut self, at: usize, attempt: u64) {
        let task = &mut self.tasks[at];
        let Some(call) = task.current.filter(|_| task.attempt == attempt) else {
            return;
        };
        let (host, path) = (task.host, task.path);
        task.path = (path + 1) % self.plan.gateways;
        // A closed connection delivers nothing more. Others of the host may have closed it.
        if self.connections[host][path] == call.connection {
            self.connections[host][path] += 1;
        }
        // Only a write can do harm.
        if self.plan.has_late_commands && call.write.is_some() {
            let lost = Lost {
                gateway: path,
                since: self.now,
                is_unknown: false,
            };
            self.tasks[at].lost.push(lost);
        }
        self.fence(at);
    }

    /// Sends the current call again when all controllers that may have it are quiet.
    fn fence(&mut self, at: usize) {
        let (now, count) = (self.now, self.plan.gateways);
        let task = &mut self.tasks[at];
        task.lost.retain(|lost| now < lost.since + QUIET);
        task.attempt += 1;
        let Some(lost) = task.lost.first().copied() else {
            return self.run_task(at);
        };
        let attempt = task.attempt;
        let event = Event::Fencing { task: at, attempt };
        if lost.is_unknown {
            return self.after(lost.since + QUIET - now, event);
        }
        if task.path == lost.gateway {
            task.path = (task.path + 1) % count;
        }
        let (host, path) = (task.host, task.path);
        let ask = Ask {
            task: at,
            attempt,
            gateway: lost.gateway,
        };
        // As of another connection: it overtakes commands.
        let session = u64::MAX - attempt;
        self.send(
            Node::Host(host),
            Node::Gateway(path),
            session,
            Message::Ask(ask),
        );
        self.after(ANSWER, event);
    }

    pub(super) fn handle_fencing(&mut self, at: usize, attempt: u64) {
        if self.tasks[at].attempt == attempt {
            let task = &mut self.tasks[at];
            task.path = (task.path + 1) % self.plan.gateways;
            self.fence(at);
        }
    }

    pub(super) fn handle_answer(&mut self, ask: Ask, state: LostState) {
        let task = &mut self.tasks[ask.task];
        if task.attempt != ask.attempt {
            return;
        }
        match state {
            LostState::Ended => {
                self.report.ended += 1;
                task.lost.retain(|lost| lost.gateway != ask.gateway);
            }
            _ => {
                let its = task.lost.iter_mut();
                its.filter(|lost| lost.gateway == ask.gateway)
                    .for_each(|lost| lost.is_unknown = true);
            }
        }
        self.fence(ask.task);
    }

    pub(super) fn handle_response(&mut self, command: Command, response: Response) {
        let task = &mut self.tasks[command.task];
        if task.attempt != command.attempt {
            return;
        }
        let Some(call) = task.current else {
            self.fail(format!("{command:?} completed twice"));
            return;
        };
        // A response without a timeout for this attempt: the timeout finds another attempt.
        if response == Response::Inaccessible {
            task.attempt += 1;
            task.path = (task.path + 1) % self.plan.gateways;
            self.after(RETRY, Event::Task(command.task));
            return;
        }
        task.current = None;
        task.attempt += 1;
        task.last_end = self.now;
        let longest = task.pause;
        self.report.calls += 1;
        match (response, call.write) {
            (Response::Value(value), _) => self.oracle.read(call.object, value, call.known),
            (_, Some(value)) => self.oracle.acknowledged(call.object, value),
            _ => self.fail(format!("{command:?}: a read without a value")),
        }
        let pause = self.some_time(longest);
        self.after(pause, Event::Task(command.task));
    }
}
