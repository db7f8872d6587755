//! Connecting a host to a controller.

use std::time::{Duration, Instant};

use crate::controller::Controller;
use crate::drive::Shared;
use crate::error::{Error, MachineError};
use crate::host::Host;
use crate::options::ConnectOptions;
use crate::polled::AdminQueue;

impl Host {
    /// Connects to a subsystem: initializes a controller and connects its I/O queues. Must
    /// be called inside a tokio runtime, which drives the queues. When the runtime ends, the
    /// queues are closed, and their calls fail.
    ///
    /// # Errors
    /// The connection fails or is refused; the message has the remedy.
    pub async fn connect(&self, options: ConnectOptions) -> Result<Controller, Error> {
        let start = Instant::now();
        let config = options.admin_config(&self.config().identity);
        let (host, addr) = (self.clone(), options.addr);
        let route = tokio::task::spawn_blocking(move || host.config().route(addr));
        let route = route.await.map_err(MachineError::internal)??;
        let admin = AdminQueue::connect(route.provider()?, addr, config, Duration::ZERO)?;
        let admin = Shared::start(admin, start, Duration::ZERO)?;
        Controller::set_up(self.clone(), options, &route, admin, start).await
    }
}
