//! One path: connects, notices its loss, and connects again.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Weak};
use std::time::Duration;

use nvmeof_initiator_core::FenceMethod;
use nvmeof_initiator_core::multipath::{Reconnect, ReconnectOptions, ReconnectStep};
use nvmeof_wire::aer::AsyncEvent;

use super::connection::Connection;
use super::fencing::Fencing;
use super::{Inner, PathStatus};
use crate::error::{Error, SetupFault};
use crate::options::ConnectOptions;
use nvmeof_initiator_core::SetupError;

/// A path of a subsystem.
pub(super) struct PathSlot {
    pub(super) options: ConnectOptions,
    pub(super) reconnect: Reconnect,
    connection: Option<Arc<Connection>>,
    pub(super) last_error: Option<Error>,
    losses: u64,
    fenced: Vec<(FenceMethod, u64)>,
    pub(super) is_ended: bool,
}

/// How often a path looks for events and outdated ANA states.
const CHECK: Duration = Duration::from_millis(100);

/// How often the states of a path with an inaccessible group are read again.
const AGAIN: Duration = Duration::from_secs(1);

impl PathSlot {
    pub(super) fn new(options: &ConnectOptions, reconnect: ReconnectOptions, at: u64) -> Self {
        // Hosts must differ, paths of one host as well.
        let seed = RandomState::new().hash_one(at);
        Self {
            options: options.clone(),
            reconnect: Reconnect::new(reconnect, seed, Duration::ZERO),
            connection: None,
            last_error: None,
            losses: 0,
            fenced: Vec::new(),
            is_ended: false,
        }
    }

    /// Its connection, if that takes commands.
    pub(super) fn live(&self) -> Option<&Arc<Connection>> {
        self.connection.as_ref().filter(|live| !live.is_lost())
    }

    /// Whether calls may wait for it at `now`.
    pub(super) fn may_wait(&self, now: Duration) -> bool {
        !self.is_ended && self.reconnect.may_wait(now)
    }

    /// It is not connected again. Returns its connection.
    pub(super) fn end(&mut self) -> Option<Arc<Connection>> {
        self.is_ended = true;
        self.connection.take()
    }

    /// A lost controller of it was fenced.
    pub(super) fn fenced(&mut self, method: FenceMethod) {
        match self.fenced.iter_mut().find(|(known, _)| *known == method) {
            Some((_, count)) => *count += 1,
            None => self.fenced.push((method, 1)),
        }
    }

    pub(super) fn status(&self) -> PathStatus {
        PathStatus {
            addr: self.options.addr,
            is_live: self.live().is_some(),
            is_given_up: self.reconnect.is_given_up(),
            losses: self.losses,
            last_error: self.last_error.clone(),
            fenced: self.fenced.clone(),
        }
    }
}

/// Keeps path `at` connected until it is given up or ended.
pub(super) async fn run(inner: Weak<Inner>, at: usize) {
    let _end = EndOnDrop {
        inner: Weak::clone(&inner),
        at,
    };
    loop {
        let Some(this) = inner.upgrade() else { return };
        let now = this.now();
        let (step, next, options) = {
            let mut paths = this.lock();
            let Some(path) = paths.get_mut(at).filter(|path| !path.is_ended) else {
                return;
            };
            let step = path.reconnect.poll(now);
            (step, path.reconnect.next_deadline(), path.options.clone())
        };
        match step {
            ReconnectStep::GiveUp => {
                let error = this
                    .lock()
                    .get(at)
                    .and_then(|path| path.last_error.as_ref().map(Error::cause));
                tracing::error!(addr = %options.addr, error, "path given up; not reconnecting");
                this.changed();
                return;
            }
            ReconnectStep::Wait => {
                drop(this);
                let wait = next.map_or(CHECK, |next| next.saturating_sub(now));
                tokio::time::sleep(wait.min(CHECK)).await;
            }
            ReconnectStep::Connect => {
                let connected = connect(&this, at, &options).await;
                let weak = Arc::downgrade(&this);
                drop(this);
                if let Some(connection) = connected {
                    watch(&weak, at, &connection).await;
                }
            }
        }
    }
}

/// Connects path `at`. `None` if that failed or the path was ended meanwhile.
async fn connect(inner: &Inner, at: usize, options: &ConnectOptions) -> Option<Arc<Connection>> {
    let connected = match inner.host.connect(options.clone()).await {
        Ok(controller) => {
            let new = Connection::new(at, controller);
            bounded(options, new).await
        }
        Err(error) => Err(error),
    };
    let now = inner.now();
    let connection = {
        let mut paths = inner.lock();
        let path = paths.get_mut(at)?;
        match connected {
            // It is shut down when it is dropped.
            Ok(_) if path.is_ended => None,
            Ok(connection) => {
                let connection = Arc::new(connection);
                path.reconnect.connected(now);
                path.last_error = None;
                path.connection = Some(Arc::clone(&connection));
                Some(connection)
            }
            Err(error) => {
                path.reconnect.failed(now, is_final(&error));
                path.last_error = Some(error);
                None
            }
        }
    };
    inner.changed();
    connection
}

/// Whether a later attempt would be refused as well.
fn is_final(error: &Error) -> bool {
    match error {
        Error::Setup(setup) => match &setup.why {
            SetupFault::Nvme(SetupError::Refused(refusal)) => refusal.status.dnr(),
            SetupFault::Nvme(SetupError::Unsupported { .. }) => true,
            SetupFault::Nvme(_) | SetupFault::Rejected(_) => false,
        },
        Error::Usage(_) => true,
        _ => false,
    }
}

/// Admin commands within the time that connecting may take. A target that completes them slowly,
/// or requests more and more of them, does not keep the path from noticing its loss.
async fn bounded<T>(
    options: &ConnectOptions,
    commands: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let ended = tokio::time::timeout(options.connect_timeout, commands).await;
    ended.unwrap_or_else(|_| {
        let text = format!(
            "the controller did not complete admin commands within {} s",
            options.connect_timeout.as_secs_f32()
        );
        Err(Error::setup(
            options.addr,
            0,
            SetupError::InvalidResponse(text),
        ))
    })
}

/// Watches the connection of path `at` until it is lost; then it is to be fenced.
async fn watch(inner: &Weak<Inner>, at: usize, connection: &Arc<Connection>) {
    let now = tokio::time::Instant::now;
    // When states that end by themselves are read again, and checks may be made after a failure.
    let (mut poll_at, mut checks_at) = (now(), now());
    let lost = connection.controller.lost();
    tokio::pin!(lost);
    let why = loop {
        let Some(this) = inner.upgrade() else { return };
        if this.lock().get(at).is_none_or(|path| path.is_ended) {
            return;
        }
        events(&this, connection);
        if now() >= poll_at && !connection.is_all_accessible() {
            connection.outdate();
            poll_at = now() + AGAIN;
        }
        if now() >= checks_at {
            let refreshed = bounded(connection.controller.options(), refresh(&this, connection));
            let refreshed = tokio::select! {
                biased;
                why = &mut lost => break why,
                refreshed = refreshed => refreshed,
            };
            if let Err(error) = refreshed {
                tracing::warn!(%error, "path not checked; trying again");
                connection.outdate();
                connection.check_again();
                checks_at = now() + AGAIN;
            }
        }
        drop(this);
        tokio::select! {
            biased;
            why = &mut lost => break why,
            () = connection.wake.notified(), if now() >= checks_at => {}
            () = tokio::time::sleep(CHECK) => {}
        }
    };
    connection.lose();
    let Some(this) = inner.upgrade() else { return };
    let now = this.now();
    {
        let mut paths = this.lock();
        let Some(path) = paths.get_mut(at).filter(|path| !path.is_ended) else {
            return;
        };
        path.connection = None;
        path.reconnect.lost(now);
        path.losses += 1;
        let (addr, error) = (path.options.addr, why.cause());
        tracing::warn!(%addr, error, "path lost; reconnecting");
        path.last_error = Some(why);
    }
    this.clear_choices();
    // The receiver lives as long as `this`.
    let _ = this.lost.send(Fencing::new(&this, connection));
    this.changed();
}

/// Asynchronous events of the connection.
fn events(inner: &Inner, connection: &Connection) {
    while let Some(event) = connection.controller.take_event() {
        match AsyncEvent::from_dword(event) {
            AsyncEvent::ANA_CHANGED => connection.outdate(),
            AsyncEvent::NAMESPACE_CHANGED => {
                connection.forget();
                inner.changed();
            }
            AsyncEvent::CROSS_CONTROLLER_RESET => {
                connection.notify_reset();
                inner.changed();
            }
            _ => {}
        }
    }
}

/// Reads ANA states that may have changed, and checks namespaces that were not.
///
/// # Errors
/// That of a command, after which it is to be tried again.
async fn refresh(inner: &Inner, connection: &Connection) -> Result<(), Error> {
    if connection.take_outdated() {
        connection.read_ana().await?;
        inner.changed();
    }
    if connection.take_unchecked() {
        let heads = inner.heads();
        let ids: Vec<_> = heads.iter().map(|head| head.id()).collect();
        connection.retain(&ids);
        for head in heads {
            if connection.known(head.id()).is_none() {
                head.check(connection).await?;
                inner.changed();
            }
        }
    }
    Ok(())
}

/// Ends a path whose task ends, for whatever reason: calls do not wait for it.
struct EndOnDrop {
    inner: Weak<Inner>,
    at: usize,
}

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        let Some(inner) = self.inner.upgrade() else {
            return;
        };
        if let Some(path) = inner.lock().get_mut(self.at) {
            path.is_ended = true;
        }
        inner.changed();
    }
}
