//! HTTP for those who manage the target and for those who watch it: how requests are taken,
//! and what is answered when one cannot be done.

mod answering;
mod fault;
mod serve;

use std::io;

use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use nix::errno::Errno;

pub use answering::Answering;
pub(crate) use answering::WORKERS;
pub(crate) use fault::{Fault, Refusals};
pub(crate) use serve::Bounds;
#[cfg(test)]
pub(crate) use serve::serve;

/// The router with an answer for every path and method it does not have; `paths` says which
/// paths it has.
pub(crate) fn finished(router: Router, paths: &'static str) -> Router {
    router
        .fallback(async move |uri: Uri| no_path(&uri, paths))
        .method_not_allowed_fallback(no_method)
}

fn no_path(uri: &Uri, paths: &str) -> Fault {
    let what = format!("there is nothing at {}; {paths}", uri.path());
    Fault::new(StatusCode::NOT_FOUND, what)
}

async fn no_method(method: Method, uri: Uri) -> Fault {
    let what = format!(
        "{method} is nothing that {} does; see the header Allow",
        uri.path()
    );
    Fault::new(StatusCode::METHOD_NOT_ALLOWED, what)
}

/// Does on a thread of its own what may take a while.
pub(crate) async fn work<T: Send + 'static>(
    job: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let done = tokio::task::spawn_blocking(job).await;
    done.unwrap_or_else(|_| Err(unfinished()))
}

/// What happens when an answer ends by a panic.
pub(crate) fn unfinished() -> Fault {
    let what = "the request could not be finished; please report this with the log";
    Fault::new(StatusCode::INTERNAL_SERVER_ERROR, what)
}

/// Whether a listener that failed so may succeed later: its address, interface or folder is
/// not there yet, or somebody else has it.
pub(crate) fn may_pass(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AddrInUse
            | io::ErrorKind::AddrNotAvailable
            | io::ErrorKind::NotFound
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::StorageFull
    ) || error.raw_os_error() == Some(Errno::ENODEV as i32)
}
