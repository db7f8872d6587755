//! The control socket: HTTP with JSON over a Unix socket.
//!
//! A thread of its own serves the socket; no reactor waits for it. Write permission on the
//! socket's file is permission for every change.

mod ha;
mod openapi;
mod queue;
mod reservations;
mod routes;
#[cfg(test)]
mod tests;

use std::io;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use nix::unistd::{Gid, chown};
use nvmeof_rdma::explain;
use nvmeof_socket_file::SocketFile;
use socket2::{Domain, Socket, Type};

pub use openapi::text as openapi;
pub use queue::ChangeQueue;

use crate::changes::{ChangeError, Keeper};
use crate::http::{Bounds, Fault, HttpServer, may_succeed_later};
use crate::watch::Watch;
use nvmeof_target_config::{Config, ConfigError, ControlConfig};

/// What request handlers share.
#[derive(Clone)]
pub struct Shared {
    /// The served configuration and its changes.
    pub keeper: Arc<Keeper>,
    /// Metrics and health.
    pub watch: Arc<Watch>,
    /// Notifies the service manager of the status after every change.
    pub notify_status: fn(&str),
    /// Orders the requests that change something.
    pub queue: ChangeQueue,
}

/// A listening control socket that does not serve requests yet.
pub struct Bound {
    listener: UnixListener,
    file: SocketFile,
}

/// Serves the control socket until it is dropped.
pub struct Control {
    _server: HttpServer,
    /// Removed when it is dropped.
    _file: SocketFile,
}

/// Connections waiting to be accepted; the kernel limits them too (net.core.somaxconn).
const BACKLOG: i32 = 1024;

impl Bound {
    /// The error if another process listens on the socket.
    pub const IN_USE: &str = "another process listens there; stop it or choose another path";

    /// Listens on `control.socket` of `config`; `None` if it is not set.
    ///
    /// # Errors
    /// [`ConfigError`] names the key.
    pub fn new(config: &Config) -> Result<Option<Self>, ConfigError> {
        let control = config.control();
        if control.socket.is_none() {
            if !config.is_from_command_line() {
                tracing::info!(
                    "control socket disabled: set control.socket or $RUNTIME_DIRECTORY to enable it"
                );
            }
            return Ok(None);
        }
        bind(control).map(Some).map_err(|error| {
            let what = match error.kind() {
                io::ErrorKind::AddrInUse => Self::IN_USE.to_owned(),
                _ => explain(&error),
            };
            config
                .table_error("control", "socket", &what)
                .passing(may_succeed_later(&error))
        })
    }

    /// Starts serving requests.
    ///
    /// # Errors
    /// If the thread or its runtime cannot be created.
    pub fn serve(self, shared: &Shared) -> io::Result<Control> {
        let router: Router = routes::router(shared);
        let listener = self.listener;
        let listen = move || tokio::net::UnixListener::from_std(listener);
        let server = HttpServer::start("control", listen, router, Bounds::managing())?;
        tracing::info!("control socket listening on {}", self.file.path().display());
        Ok(Control {
            _server: server,
            _file: self.file,
        })
    }
}

fn bind(config: &ControlConfig) -> io::Result<Bound> {
    let path = config.socket.as_deref().unwrap_or_else(|| "".as_ref());
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    let file = SocketFile::bind(&socket, path, config.mode)?;
    if let Some(group) = config.group {
        // Before it listens, so that nothing connects with the old group.
        chown(path, None, Some(Gid::from_raw(group))).map_err(|error| {
            let text = format!(
                "{}: its group cannot be set to {group} (control.group): {error}; add the \
                 target's user to that group",
                path.display()
            );
            // A process gets new groups only when it is restarted, so a retry is useless.
            io::Error::new(io::ErrorKind::InvalidInput, text)
        })?;
    }
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(Bound {
        listener: socket.into(),
        file,
    })
}

impl From<ChangeError> for Fault {
    fn from(error: ChangeError) -> Self {
        let message = error.to_string();
        match error {
            ChangeError::Config(error) => error.into(),
            ChangeError::Edit { refusal, .. } => {
                let mut fault = Self::new(StatusCode::UNPROCESSABLE_ENTITY, message);
                fault.error.key = Some(refusal.key.to_owned());
                fault
            }
            ChangeError::Refused(_) => Self::refused(message),
            ChangeError::Unsaved(_) | ChangeError::StillUnsaved(_) => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, message)
            }
        }
    }
}
