//! The images of one group: executes the actions of the machine in a thread.

use std::io;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nvmeof_backend::{CephAccess, RbdClients};
use nvmeof_target_ha::{Number, Timing};

use super::latest::Latest;
use crate::ha::Event;
use crate::served::Manager;

/// Images that share a client. Each client has threads and connections of its own, and one client
/// has limited throughput.
const IMAGES: usize = 32;
/// Clients of a group, at most: the record has room for so many.
const CLIENTS: usize = nvmeof_target_ha::MAX_CLIENTS;
/// How long commands in flight, and then the images, may take to close. Together less than the
/// machine waits for.
const CLOSING: Duration = Duration::from_secs(12);
/// The same if the cluster does not respond, or has fenced these clients.
const CLOSING_LOST: Duration = Duration::from_secs(1);

/// What is to be done with the images.
enum Job {
    Fence(Number, Vec<String>, Instant),
    Open(Number),
    Serve(u64),
    Suspend,
    Close(Number, Duration),
}

/// A group on this gateway.
pub(super) struct GroupDriver {
    worker: Latest<Job>,
    /// The clients of the last fence.
    clients: Arc<Mutex<Option<RbdClients>>>,
}

/// The state of the worker.
struct Worker {
    group: u32,
    access: CephAccess,
    manager: Arc<Manager>,
    clients: Arc<Mutex<Option<RbdClients>>>,
    events: Sender<Event>,
}

impl GroupDriver {
    pub(super) fn start(
        group: u32,
        access: &CephAccess,
        manager: &Arc<Manager>,
        events: Sender<Event>,
    ) -> io::Result<Self> {
        let clients: Arc<Mutex<_>> = Arc::default();
        let worker = Worker {
            group,
            access: access.clone(),
            manager: Arc::clone(manager),
            clients: Arc::clone(&clients),
            events,
        };
        Ok(Self {
            worker: Latest::start("ha-group", move |job| worker.execute(job))?,
            clients,
        })
    }

    pub(super) fn fence(&self, number: Number, former: Vec<String>) {
        let deadline = Instant::now() + Timing::default().action_timeout;
        self.worker.submit(Job::Fence(number, former, deadline));
    }

    pub(super) fn open(&self, number: Number) {
        self.worker.submit(Job::Open(number));
    }

    /// Operations may start from now on. Hosts learn of it soon.
    pub(super) fn serve(&self, epoch: u64) {
        if let Some(clients) = get(&self.clients) {
            clients.permit();
        }
        self.worker.submit(Job::Serve(epoch));
    }

    /// No operation starts from now on. Hosts learn of it soon.
    pub(super) fn suspend(&self) {
        self.forbid();
        self.worker.submit(Job::Suspend);
    }

    pub(super) fn close(&self, number: Number, is_planned: bool) {
        self.forbid();
        let timeout = if is_planned { CLOSING } else { CLOSING_LOST };
        self.worker.submit(Job::Close(number, timeout));
    }

    fn forbid(&self) {
        if let Some(clients) = get(&self.clients) {
            clients.forbid();
        }
    }
}

fn get(clients: &Mutex<Option<RbdClients>>) -> Option<RbdClients> {
    clients
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

fn replace(clients: &Mutex<Option<RbdClients>>, with: Option<RbdClients>) -> Option<RbdClients> {
    std::mem::replace(
        &mut *clients.lock().unwrap_or_else(PoisonError::into_inner),
        with,
    )
}

impl Worker {
    fn execute(&self, job: Job) {
        let group = self.group;
        let event = match job {
            Job::Fence(number, former, deadline) => {
                Event::Fenced(group, number, self.fence(&former, deadline))
            }
            Job::Open(number) => Event::Opened(group, number, self.open()),
            Job::Serve(epoch) => match self.serve(epoch) {
                Ok(()) => {
                    tracing::info!(group, epoch, "serving ANA group {group}");
                    return;
                }
                Err(why) => Event::NotServed(group, epoch, why),
            },
            Job::Suspend => {
                self.manager.suspend_group(group);
                tracing::warn!(group, "ANA group {group} is not served at present");
                return;
            }
            Job::Close(number, timeout) => {
                let closed = self.close(timeout);
                if let Err(why) = &closed {
                    tracing::warn!(
                        group,
                        "ANA group {group}: images not closed: {why}; the next owner fences this \
                         gateway"
                    );
                }
                Event::Closed(group, number, closed)
            }
        };
        // The driver has ended: the target has stopped.
        let _ = self.events.send(event);
    }

    fn fence(&self, former: &[String], deadline: Instant) -> Result<Vec<String>, String> {
        // A job that was replaced before it began.
        if get(&self.clients).is_some() {
            let _ = self.close(CLOSING);
        }
        let count = self.manager.images_in(self.group).div_ceil(IMAGES);
        let clients = RbdClients::connect(&self.access, count.clamp(1, CLIENTS), former);
        let clients = clients.map_err(|error| error.to_string())?;
        let addresses = clients.addresses();
        if !former.is_empty() {
            let group = self.group;
            let fenced = former.join(" ");
            tracing::info!(
                group,
                fenced,
                "ANA group {group}: former clients are blocklisted"
            );
        }
        // The machine has given it up, and nobody would disconnect them.
        if Instant::now() >= deadline {
            return Err("the cluster responded too late".to_owned());
        }
        replace(&self.clients, Some(clients));
        Ok(addresses)
    }

    fn open(&self) -> Result<(), String> {
        let clients = get(&self.clients).ok_or_else(|| "there is no client".to_owned())?;
        self.manager.open_group(self.group, &clients)
    }

    fn serve(&self, epoch: u64) -> Result<(), String> {
        let clients = get(&self.clients).ok_or_else(|| "there is no client".to_owned())?;
        self.manager.serve_group((self.group, epoch), &clients)
    }

    /// On success, no operation of the clients takes effect any more.
    fn close(&self, timeout: Duration) -> Result<(), String> {
        let closed = self.manager.close_group(self.group, timeout);
        let clients = replace(&self.clients, None);
        let disconnected = clients.map_or(Ok(()), |clients| clients.close(timeout));
        closed.and(disconnected)
    }
}
