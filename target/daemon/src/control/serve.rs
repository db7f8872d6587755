//! Serving HTTP to those who may be slow, or up to no good.
//!
//! One request comes over a connection. Its head and its body have to be there
//! within a time, its answer has to be taken within a time, and of all this only
//! so many go on at once: when one more comes, the oldest whose request is not
//! there yet gives way.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Request, StatusCode};
use axum::response::IntoResponse;
use axum::serve::Listener;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::fault::Fault;

/// What a peer may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Connections at once.
    pub(crate) connections: usize,
    /// Bytes of a body.
    pub(crate) body: usize,
    /// How long a head may take, and then the body.
    pub(crate) read: Duration,
    /// How long the answer may take from when it is there.
    pub(crate) write: Duration,
    /// How long a connection without a request has before it may have to give
    /// way.
    pub(crate) grace: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: 64,
            body: 8 << 20,
            read: Duration::from_secs(10),
            write: Duration::from_secs(10),
            grace: Duration::from_millis(200),
        }
    }
}

/// A connection that is open.
struct Open {
    task: AbortHandle,
    /// Whether its request is being worked on.
    busy: Arc<AtomicBool>,
    since: Instant,
}

/// Answers requests with `router` until the future is dropped.
pub(crate) async fn serve<L: Listener>(mut listener: L, router: Router, bounds: Bounds) {
    let ended = Arc::new(Notify::new());
    let mut open: Vec<Open> = Vec::new();
    loop {
        let (stream, _) = listener.accept().await;
        make_room(&mut open, &ended, bounds).await;
        let busy = Arc::new(AtomicBool::new(false));
        let connection = connection(TokioIo::new(stream), router.clone(), bounds, busy.clone());
        let ended = Arc::clone(&ended);
        let task = tokio::spawn(async move {
            connection.await;
            ended.notify_one();
        });
        let task = task.abort_handle();
        let since = Instant::now();
        open.push(Open { task, busy, since });
    }
}

/// Waits until one more may be open. The oldest whose request is not there yet
/// gives way.
async fn make_room(open: &mut Vec<Open>, ended: &Notify, bounds: Bounds) {
    loop {
        open.retain(|one| !one.task.is_finished());
        if open.len() < bounds.connections {
            return;
        }
        let idle = |one: &Open| !one.busy.load(Ordering::Acquire);
        let Some(at) = open.iter().position(idle) else {
            ended.notified().await;
            continue;
        };
        // Who connected just now is about to say what it wants.
        let due = open.get(at).map(|one| one.since + bounds.grace);
        match due.filter(|due| Instant::now() < *due) {
            Some(due) => tokio::select! {
                () = ended.notified() => {}
                () = sleep_until(due) => {}
            },
            None => {
                tracing::debug!("a connection without a request gives way to another");
                open.remove(at).task.abort();
            }
        }
    }
}

async fn connection<T>(stream: TokioIo<T>, router: Router, bounds: Bounds, busy: Arc<AtomicBool>)
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let answered = Arc::new(Notify::new());
    let service = {
        let (answered, router) = (Arc::clone(&answered), TowerToHyperService::new(router));
        service_fn(move |request: Request<Incoming>| {
            let (answered, router, busy) = (answered.clone(), router.clone(), busy.clone());
            async move {
                let response = match whole(request, bounds).await {
                    Ok(request) => {
                        busy.store(true, Ordering::Release);
                        router
                            .call(request)
                            .await
                            .unwrap_or_else(|never| match never {})
                    }
                    Err(fault) => fault.into_response(),
                };
                answered.notify_one();
                Ok::<_, Infallible>(response)
            }
        })
    };
    let http = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.read)
        .keep_alive(false)
        .serve_connection(stream, service);
    let too_long = async {
        answered.notified().await;
        sleep(bounds.write).await;
    };
    tokio::select! {
        ended = http => if let Err(error) = ended {
            tracing::debug!("a control connection ended: {error}");
        },
        () = too_long => tracing::debug!("a peer did not take its answer in time"),
    }
}

/// The request with all of its body.
async fn whole(request: Request<Incoming>, bounds: Bounds) -> Result<Request<Body>, Fault> {
    let (head, body) = request.into_parts();
    match timeout(bounds.read, take(body, bounds.body)).await {
        Ok(Ok(Some(bytes))) => Ok(Request::from_parts(head, Body::from(bytes))),
        Ok(Ok(None)) => Err(Fault::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!(
                "the body is longer than the {} bytes it may have",
                bounds.body
            ),
        )),
        Ok(Err(error)) => Err(Fault::new(
            StatusCode::BAD_REQUEST,
            format!("the body could not be read: {error}"),
        )),
        Err(_) => Err(Fault::new(
            StatusCode::REQUEST_TIMEOUT,
            format!("the body did not come within {:?}", bounds.read),
        )),
    }
}

/// How many times more than it may have of a body is thrown away, so that a
/// peer which sends first and listens then hears that it is too long.
const THROWN_AWAY: usize = 8;

/// The body; `None` when it is longer than `most`.
async fn take(mut body: Incoming, most: usize) -> Result<Option<Bytes>, hyper::Error> {
    let (mut bytes, mut len) = (Vec::new(), 0_usize);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        len = len.saturating_add(data.len());
        if len <= most {
            bytes.extend_from_slice(&data);
        } else {
            bytes = Vec::new();
        }
        if len > most.saturating_mul(THROWN_AWAY) {
            break;
        }
    }
    Ok((len <= most).then(|| bytes.into()))
}
