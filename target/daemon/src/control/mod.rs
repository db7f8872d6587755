//! Managing the daemon while it runs: HTTP with JSON over a Unix socket.
//!
//! The socket is served by a thread of its own, which no reactor waits for.
//! Whoever may write the socket's file may do everything.

mod api;
mod client;
mod fault;
mod openapi;
mod routes;
mod serve;
#[cfg(test)]
mod tests;

use std::io;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use nix::unistd::{Gid, chown};
use nvmeof_socket_file::SocketFile;
use socket2::{Domain, Socket, Type};
use tokio::sync::oneshot;

pub(crate) use api::{
    DocumentIn, DocumentOut, EditsIn, HostIn, Lost, LostOut, OutcomeOut, SavedOut, StatusOut,
};
pub(crate) use client::{CallError, Caller};
pub(crate) use fault::Fault;
pub(crate) use serve::{Bounds, serve};

use crate::changes::Keeper;
use crate::config::{Config, ConfigError, ControlConfig};

/// What requests are answered from.
#[derive(Clone)]
pub(crate) struct Shared {
    /// What is served, and the way to change it.
    pub(crate) keeper: Arc<Keeper>,
}

/// The socket, which listens; nobody is answered yet.
pub(crate) struct Bound {
    listener: UnixListener,
    file: SocketFile,
}

/// Answers requests until it is dropped.
pub(crate) struct Control {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Goes with it.
    _file: SocketFile,
}

/// Requests that wait to be accepted.
const BACKLOG: i32 = 64;
/// Threads that work on requests.
const WORKERS: usize = 8;
/// How long requests in work may take when the daemon ends.
const LAST: Duration = Duration::from_secs(2);

impl Bound {
    /// Listens where `config` says; `None` where it says nothing.
    ///
    /// # Errors
    /// [`ConfigError`] names the key.
    pub(crate) fn new(config: &Config) -> Result<Option<Self>, ConfigError> {
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
                io::ErrorKind::AddrInUse => {
                    "another process listens there; stop it or choose another path".to_owned()
                }
                _ => error.to_string(),
            };
            config.table_error("control", "socket", &what)
        })
    }

    /// Answers requests from now on.
    ///
    /// # Errors
    /// When there is no thread or runtime for that.
    pub(crate) fn serve(self, shared: &Shared) -> io::Result<Control> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(WORKERS)
            .build()?;
        let router: Router = routes::router(shared);
        let (stop, stopped) = oneshot::channel();
        let path = self.file.path().display().to_string();
        let listener = self.listener;
        let thread = std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    match tokio::net::UnixListener::from_std(listener) {
                        Ok(listener) => tokio::select! {
                            () = serve(listener, router, Bounds::default()) => {}
                            _ = stopped => {}
                        },
                        Err(error) => tracing::error!("the control socket: {error}"),
                    }
                });
                runtime.shutdown_timeout(LAST);
            })?;
        tracing::info!("managed at {path}");
        Ok(Control {
            stop: Some(stop),
            thread: Some(thread),
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
            io::Error::new(io::Error::from(error).kind(), text)
        })?;
    }
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(Bound {
        listener: socket.into(),
        file,
    })
}

impl Drop for Control {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("the control thread ended unexpectedly; please report this");
        }
    }
}
