//! The thread that serves the requests of one listener.

use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use nvmeof_rdma::explain;
use tokio::sync::oneshot;

use super::serve::{Bounds, serve};

/// Serves requests until it is dropped.
pub struct HttpServer {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Threads that execute requests.
pub(crate) const WORKERS: usize = 8;
/// How long requests in flight may take after the end of the listener.
const SHUTDOWN: Duration = Duration::from_secs(2);

impl HttpServer {
    /// Serves the requests that arrive at the listener of `listen` with `router`, within
    /// `bounds`, on a thread named `name`.
    ///
    /// # Errors
    /// If the thread or its runtime cannot be created.
    pub(crate) fn start<L: Listener>(
        name: &'static str,
        listen: impl FnOnce() -> io::Result<L> + Send + 'static,
        router: Router,
        bounds: Bounds,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(WORKERS)
            .build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    match listen() {
                        Ok(listener) => tokio::select! {
                            () = serve(listener, router, bounds) => {}
                            _ = stopped => {}
                        },
                        Err(error) => {
                            tracing::error!("{name} socket: cannot be served: {}", explain(&error));
                        }
                    }
                });
                runtime.shutdown_timeout(SHUTDOWN);
            })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("HTTP thread ended unexpectedly; report this as a bug with the log");
        }
    }
}
