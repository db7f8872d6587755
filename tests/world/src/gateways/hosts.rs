//! Model hosts: each call is sent to one gateway, and again to the next one if that fails.

use std::time::Duration;

use super::ceph::ObjectId;
use super::scene::{Event, Message, Node, Scene};

/// A command that has no response for this time is sent again over another connection.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(1);
/// Delay before a command that was refused is sent again.
const RETRY: Duration = Duration::from_millis(50);

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
        self.run_task(at);
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
