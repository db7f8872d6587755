//! The thread that answers requests at one listener, which nobody waits for.

use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use nvmeof_rdma::explain;
use tokio::sync::oneshot;

use super::serve::{Bounds, serve};

/// Answers requests until it is dropped.
pub struct Answering {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Threads that work on requests.
pub(crate) const WORKERS: usize = 8;
/// How long requests in flight may take when the daemon ends.
const LAST: Duration = Duration::from_secs(2);

impl Answering {
    /// Answers with `router` whoever comes to what `listen` gives and keeps to
    /// `bounds`, on a thread of that name.
    ///
    /// # Errors
    /// When there is no thread or runtime for that.
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
                        Err(error) => tracing::error!("the {name} socket: {}", explain(&error)),
                    }
                });
                runtime.shutdown_timeout(LAST);
            })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!(
                "a thread that answers requests ended unexpectedly; please report this"
            );
        }
    }
}
