//! Managing the daemon while it runs: HTTP with JSON over a Unix socket.
//!
//! The socket is served by a thread of its own, which no reactor waits for.
//! Whoever may write the socket's file may do everything.

mod openapi;
mod queue;
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
use crate::http::{Answering, Bounds, Fault, may_pass};
use crate::watch::Watch;
use nvmeof_target_config::{Config, ConfigError, ControlConfig};

/// What requests are answered from.
#[derive(Clone)]
pub struct Shared {
    /// What is served, and the way to change it.
    pub keeper: Arc<Keeper>,
    /// What tells how it is.
    pub watch: Arc<Watch>,
    /// Tells the service manager what is served, after every change.
    pub tell: fn(&str),
    /// Whose turn it is to change something.
    pub queue: ChangeQueue,
}

/// The socket, which listens; nobody is answered yet.
pub struct Bound {
    listener: UnixListener,
    file: SocketFile,
}

/// Answers requests until it is dropped.
pub struct Control {
    _answering: Answering,
    /// Goes with it.
    _file: SocketFile,
}

/// Requests that wait to be accepted; the kernel has a limit of its own (net.core.somaxconn).
const BACKLOG: i32 = 1024;

impl Bound {
    /// What is said of a socket at which another process listens.
    pub const IN_USE: &str = "another process listens there; stop it or choose another path";

    /// Listens where `config` says; `None` where it says nothing.
    ///
    /// # Errors
    /// [`ConfigError`] names the key.
    pub fn new(config: &Config) -> Result<Option<Self>, ConfigError> {
        let control = config.control();
        if control.socket.is_none() {
            if !config.is_from_command_line() {
                tracing::info!(
                    "no control socket: set control.socket, or $RUNTIME_DIRECTORY, to have one"
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
                .passing(may_pass(&error))
        })
    }

    /// Answers requests from now on.
    ///
    /// # Errors
    /// When there is no thread or runtime for that.
    pub fn serve(self, shared: &Shared) -> io::Result<Control> {
        let router: Router = routes::router(shared);
        let listener = self.listener;
        let listen = move || tokio::net::UnixListener::from_std(listener);
        let answering = Answering::start("control", listen, router, Bounds::managing())?;
        tracing::info!("control socket listening on {}", self.file.path().display());
        Ok(Control {
            _answering: answering,
            _file: self.file,
        })
    }
}

fn bind(config: &ControlConfig) -> io::Result<Bound> {
    let path = config.socket.as_deref().unwrap_or_else(|| "".as_ref());
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    let file = SocketFile::bind(&socket, path, config.mode)?;
    if let Some(group) = config.group {
        // Before it listens: nobody else came by it meanwhile.
        chown(path, None, Some(Gid::from_raw(group))).map_err(|error| {
            let text = format!(
                "{}: the file cannot be given to the group {group} of control.group: {error}; the \
                 target's user has to be in that group",
                path.display()
            );
            // A process gets another group only when it is started again.
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
