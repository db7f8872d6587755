//! One discovery service that is watched: its connection, and the reads of its log page.
//!
//! The controller is a persistent one: it has a Keep Alive Timeout, and notifies of changes (Base
//! 2.1, 3.1.3.3). A service that refuses the timeout is read at intervals instead. The flag EPCSD
//! of its entry is not needed to find out, and is often missing: nvmet has persistent discovery
//! controllers and sets no flag.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use nvmeof_initiator_core::discovery::{DiscoveryService, ReadPace};
use nvmeof_initiator_core::multipath::{Reconnect, ReconnectStep};
use nvmeof_initiator_core::{ControllerEvent, Setting, SetupError};
use nvmeof_rdma::Address;
use nvmeof_wire::Status;
use nvmeof_wire::identify::Oaes;
use tokio::sync::mpsc;

use super::{Discovery, DiscoveryOptions, read, read_once};
use crate::controller::Controller;
use crate::error::{Error, SetupFault};
use crate::host::Host;

/// What a session reports.
pub(super) struct Report {
    pub(super) session: u64,
    pub(super) addr: Address,
    pub(super) news: News,
}

pub(super) enum News {
    Read(Discovery),
    Lost(Error),
    GivenUp(Error),
}

/// Keeps a controller of one service connected, and reports each read of its log page.
pub(super) struct Session {
    pub(super) number: u64,
    pub(super) host: Host,
    pub(super) options: DiscoveryOptions,
    pub(super) service: DiscoveryService<Address>,
    pub(super) reports: mpsc::Sender<Report>,
    /// The time 0 of its state machines.
    pub(super) start: Instant,
}

impl Session {
    pub(super) async fn run(self) {
        // Hosts that lost a service together do not return to it together.
        let seed = RandomState::new().hash_one(self.number);
        let mut reconnect = Reconnect::new(self.options.reconnect, seed, self.now());
        let mut last = None;
        loop {
            match reconnect.poll(self.now()) {
                ReconnectStep::Wait => {
                    let next = reconnect.next_deadline().unwrap_or_default();
                    tokio::time::sleep(next.saturating_sub(self.now())).await;
                }
                ReconnectStep::GiveUp => {
                    if let Some(error) = last {
                        self.report(News::GivenUp(error)).await;
                    }
                    return;
                }
                ReconnectStep::Connect => {
                    let options = self
                        .options
                        .connection(&self.service, self.options.keep_alive);
                    let error = match self.host.connect(options).await {
                        Ok(controller) => {
                            reconnect.connected(self.now());
                            let why = self.follow(&controller).await;
                            reconnect.lost(self.now());
                            controller.disconnect().await;
                            why
                        }
                        Err(error) if refuses_keep_alive(&error) => {
                            self.read_at_intervals(&mut reconnect).await
                        }
                        Err(error) => {
                            reconnect.failed(self.now(), false);
                            error
                        }
                    };
                    let is_final = error.is_final();
                    self.report(News::Lost(error.clone())).await;
                    if is_final {
                        return self.report(News::GivenUp(error)).await;
                    }
                    last = Some(error);
                }
            }
        }
    }

    /// Reads the log page, and reads it again after each change. Returns why that ended.
    async fn follow(&self, controller: &Controller) -> Error {
        let oaes = controller.identify().oaes();
        let interval = (!oaes.contains(Oaes::DLPCN)).then_some(self.options.interval);
        let mut pace = ReadPace::new(interval, self.now());
        loop {
            if pace.poll(self.now()) {
                let read = read(controller, &self.service).await;
                if let Err(error) = self.take(read, &mut pace).await {
                    return error;
                }
            }
            let wait = self.until_next(&pace);
            tokio::select! {
                event = controller.event() => match event {
                    Ok(ControllerEvent::DiscoveryChanged | ControllerEvent::Lost) => {
                        pace.request();
                    }
                    Ok(_) => {}
                    Err(why) => return why,
                },
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Reads the log page at intervals, each time over a connection of its own without a Keep Alive
    /// Timeout. Returns why that ended.
    async fn read_at_intervals(&self, reconnect: &mut Reconnect) -> Error {
        let interval = self.options.interval;
        let mut pace = ReadPace::new(Some(interval), self.now());
        let mut is_connected = false;
        loop {
            if pace.poll(self.now()) {
                let read = read_once(&self.host, &self.service, &self.options).await;
                if read.is_ok() && !is_connected {
                    is_connected = true;
                    reconnect.connected(self.now());
                    let addr = self.service.addr;
                    tracing::warn!(
                        %addr,
                        ?interval,
                        "discovery service refuses a keep-alive time-out; reading its log page at \
                         intervals"
                    );
                }
                if let Err(error) = self.take(read, &mut pace).await {
                    match is_connected {
                        true => reconnect.lost(self.now()),
                        false => reconnect.failed(self.now(), false),
                    }
                    return error;
                }
            }
            tokio::time::sleep(self.until_next(&pace)).await;
        }
    }

    /// Reports the log page. One that changed during the read is read again later.
    async fn take(&self, read: Result<Discovery, Error>, pace: &mut ReadPace) -> Result<(), Error> {
        match read {
            Ok(discovery) => {
                self.report(News::Read(discovery)).await;
                pace.completed(self.now());
            }
            Err(error) if is_unstable(&error) => {
                if pace.changed(self.now()) {
                    let (addr, cause) = (self.service.addr, error.cause());
                    tracing::warn!(
                        %addr,
                        cause,
                        "discovery log page not read; reading it less often"
                    );
                }
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The time until the next read, if nothing happens before.
    fn until_next(&self, pace: &ReadPace) -> Duration {
        let next = pace.next_deadline();
        next.map_or(Duration::MAX, |next| next.saturating_sub(self.now()))
    }

    async fn report(&self, news: News) {
        let report = Report {
            session: self.number,
            addr: self.service.addr,
            news,
        };
        // Without a receiver, this session is being ended.
        let _ = self.reports.send(report).await;
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

/// Whether a service refuses its controller because of the Keep Alive Timeout: it names that
/// parameter of Connect, or completes it with Invalid Field, like nvmet of older kernels.
fn refuses_keep_alive(error: &Error) -> bool {
    match error {
        Error::Setup(setup) => match &setup.why {
            SetupFault::Nvme(SetupError::Refused(refusal)) => {
                refusal.status.is(Status::INVALID_FIELD)
                    || error.settings().contains(&Setting::KeepAlive)
            }
            _ => false,
        },
        _ => false,
    }
}

/// Whether the log page changed during each attempt to read it.
fn is_unstable(error: &Error) -> bool {
    match error {
        Error::Setup(setup) => {
            matches!(&setup.why, SetupFault::Nvme(SetupError::Unstable { .. }))
        }
        _ => false,
    }
}
