//! The HTTP server of the control socket and of the metrics port: reading requests within
//! bounds, and error responses.

mod fault;
mod serve;
mod server;

use std::io;

use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use nix::errno::Errno;

pub(crate) use fault::{Fault, Refusals};
pub(crate) use serve::Bounds;
#[cfg(test)]
pub(crate) use serve::serve;
pub use server::HttpServer;
pub(crate) use server::WORKERS;

/// The router with error responses for unknown paths and methods; `paths` names the known ones.
pub(crate) fn finished(router: Router, paths: &'static str) -> Router {
    router
        .fallback(async move |uri: Uri| no_path(&uri, paths))
        .method_not_allowed_fallback(no_method)
}

fn no_path(uri: &Uri, paths: &str) -> Fault {
    let what = format!("{}: no such path; {paths}", uri.path());
    Fault::new(StatusCode::NOT_FOUND, what)
}

async fn no_method(method: Method, uri: Uri) -> Fault {
    let what = format!(
        "{}: method {method} is not allowed; the header Allow lists the allowed methods",
        uri.path()
    );
    Fault::new(StatusCode::METHOD_NOT_ALLOWED, what)
}

/// Executes a job that may block, on a thread of its own.
pub(crate) async fn work<T: Send + 'static>(
    job: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let done = tokio::task::spawn_blocking(job).await;
    done.unwrap_or_else(|_| Err(unfinished()))
}

/// The response if the handler of a request panicked.
pub(crate) fn unfinished() -> Fault {
    let what = "internal error: the request did not finish; report this as a bug with the log";
    Fault::new(StatusCode::INTERNAL_SERVER_ERROR, what)
}

/// Whether listening may succeed later after this error: the address, interface or folder does
/// not exist yet or is in use.
pub(crate) fn may_succeed_later(error: &io::Error) -> bool {
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
