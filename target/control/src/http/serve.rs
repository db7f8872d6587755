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
use axum::http::{Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::serve::Listener;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use nvmeof_wire::text;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::fault::Fault;
use nvmeof_target_manage::files;

/// What a peer may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Connections at once.
    pub(crate) connections: usize,
    /// Bytes of a head, 8192 at least.
    pub(crate) head: usize,
    /// Bytes of a body; 0: there is none.
    pub(crate) body: usize,
    /// Bytes of the bodies of all requests together.
    pub(crate) bodies: usize,
    /// How long a head may take, and then the body.
    pub(crate) read: Duration,
    /// How long the answer may take from when it is there.
    pub(crate) write: Duration,
    /// How long a connection without a request has before it may have to give
    /// way.
    pub(crate) grace: Duration,
}

impl Bounds {
    /// Of those who manage the target: they send whole configurations.
    pub(crate) fn managing() -> Self {
        Self {
            connections: files::managing(),
            head: 64 << 10,
            body: 8 << 20,
            bodies: 64 << 20,
            read: Duration::from_secs(10),
            write: Duration::from_secs(10),
            grace: Duration::from_millis(200),
        }
    }

    /// Of those who only ask how it is, who may be anybody.
    pub(crate) fn watching() -> Self {
        Self {
            connections: files::watching(),
            head: LEAST_HEAD,
            body: 0,
            read: Duration::from_secs(5),
            ..Self::managing()
        }
    }
}

/// What hyper takes of a head at least.
const LEAST_HEAD: usize = 8 << 10;
/// Fields of a head, at most.
const FIELDS: usize = 64;

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
    let bodies = Arc::new(Semaphore::new(bounds.bodies));
    let mut open: Vec<Open> = Vec::new();
    loop {
        let (stream, _) = listener.accept().await;
        make_room(&mut open, &ended, bounds).await;
        let busy = Arc::new(AtomicBool::new(false));
        let with = With {
            router: router.clone(),
            bounds,
            bodies: Arc::clone(&bodies),
        };
        let connection = connection(TokioIo::new(stream), with, busy.clone());
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

/// What requests of a connection are answered with.
#[derive(Clone)]
struct With {
    router: Router,
    bounds: Bounds,
    /// Bytes that bodies may still take.
    bodies: Arc<Semaphore>,
}

async fn connection<T>(stream: TokioIo<T>, with: With, busy: Arc<AtomicBool>)
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let answered = Arc::new(Notify::new());
    let bounds = with.bounds;
    let service = {
        let answered = Arc::clone(&answered);
        service_fn(move |request: Request<Incoming>| {
            let (answered, with, busy) = (answered.clone(), with.clone(), busy.clone());
            let router = TowerToHyperService::new(with.router.clone());
            async move {
                let response = match whole(request, &with).await {
                    // The room of the body is taken until the request is answered.
                    Ok((request, _room)) => {
                        busy.store(true, Ordering::Release);
                        router
                            .call(request)
                            .await
                            .unwrap_or_else(|never| match never {})
                    }
                    Err(fault) => fault.into_response(),
                };
                answered.notify_one();
                Ok::<_, Infallible>(visible(response).await)
            }
        })
    };
    let http = http1::Builder::new()
        .timer(TokioTimer::new())
        .max_buf_size(bounds.head.max(LEAST_HEAD))
        .max_headers(FIELDS)
        .header_read_timeout(bounds.read)
        .keep_alive(false)
        .serve_connection(stream, service);
    let too_long = async {
        answered.notified().await;
        sleep(bounds.write).await;
    };
    tokio::select! {
        ended = http => if let Err(error) = ended {
            tracing::debug!("a connection ended: {error}");
        },
        () = too_long => tracing::debug!("a peer did not take its answer in time"),
    }
}

/// The response, with what a terminal obeys or hides escaped if it is JSON: it may be shown as
/// it is.
async fn visible(response: Response) -> Response {
    let kind = response.headers().get(header::CONTENT_TYPE);
    if kind.is_none_or(|kind| kind != "application/json") {
        return response;
    }
    let (mut head, body) = response.into_parts();
    // It becomes longer.
    head.headers.remove(header::CONTENT_LENGTH);
    // All bodies of JSON are made in memory.
    let bytes = axum::body::to_bytes(body, usize::MAX).await;
    let bytes = bytes.unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    Response::from_parts(head, Body::from(text::Json(&text).to_string()))
}

/// The request with all of its body, and the room that this takes.
async fn whole(
    request: Request<Incoming>,
    with: &With,
) -> Result<(Request<Body>, OwnedSemaphorePermit), Fault> {
    let bounds = with.bounds;
    let (head, body) = request.into_parts();
    if head.uri.path().starts_with("/v1/") && head.uri.query().is_some() {
        let what = format!("{}: takes no query; leave out what follows the ?", head.uri);
        return Err(Fault::new(StatusCode::BAD_REQUEST, what));
    }
    // RFC 9110, "Expect": who asks first hears at once that it is too long, and
    // sends nothing.
    let asks = head.headers.contains_key(header::EXPECT);
    if asks && body.size_hint().lower() > u64::try_from(bounds.body).unwrap_or(u64::MAX) {
        return Err(too_long(bounds.body));
    }
    let room = room(&body, with).await?;
    match timeout(bounds.read, take(body, bounds.body)).await {
        Ok(Ok(Some(bytes))) => Ok((Request::from_parts(head, Body::from(bytes)), room)),
        Ok(Ok(None)) => Err(too_long(bounds.body)),
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

/// Waits until the bodies of all requests leave room for this one.
async fn room(body: &Incoming, with: &With) -> Result<OwnedSemaphorePermit, Fault> {
    let bounds = with.bounds;
    let most = body
        .size_hint()
        .upper()
        .and_then(|most| usize::try_from(most).ok());
    let most = most.map_or(bounds.body, |most| most.min(bounds.body));
    let bytes = u32::try_from(most).unwrap_or(u32::MAX);
    let room = Arc::clone(&with.bodies).acquire_many_owned(bytes);
    match timeout(bounds.read, room).await {
        Ok(Ok(room)) => Ok(room),
        _ => Err(Fault::new(
            StatusCode::SERVICE_UNAVAILABLE,
            format!(
                "the bodies of requests in progress take all of the {} bytes that they may; try \
                 again when some are done",
                bounds.bodies
            ),
        )),
    }
}

fn too_long(most: usize) -> Fault {
    let what = match most {
        0 => "nothing here takes a body: send the request without one".to_owned(),
        _ => format!("the body is longer than the {most} bytes it may have"),
    };
    Fault::new(StatusCode::PAYLOAD_TOO_LARGE, what)
}

/// How many times more than it may have of a body is thrown away, so that a
/// peer which sends first and listens then hears that it is too long; and where
/// there is none at all, so many bytes.
const THROWN_AWAY: usize = 8;
const THROWN_AWAY_AT_LEAST: usize = 64 << 10;

/// The body; `None` when it is longer than `most`.
async fn take(mut body: Incoming, most: usize) -> Result<Option<Bytes>, hyper::Error> {
    let (mut bytes, mut len) = (Vec::new(), 0_usize);
    let thrown_away = most.saturating_mul(THROWN_AWAY).max(THROWN_AWAY_AT_LEAST);
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
        if len > thrown_away {
            break;
        }
    }
    Ok((len <= most).then(|| bytes.into()))
}
