//! HTTP for clients that may be slow or hostile.
//!
//! A connection carries one request. The head, the body and the response each have a time
//! limit, and the number of connections is limited: a further connection replaces the oldest
//! one that has not sent its request yet.

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

/// Limits of a listener and its clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Concurrent connections.
    pub(crate) connections: usize,
    /// Bytes of a request head, at least 8192.
    pub(crate) head: usize,
    /// Bytes of a request body; 0: no body is accepted.
    pub(crate) body: usize,
    /// Bytes of the bodies of all requests together.
    pub(crate) bodies: usize,
    /// Time limit for the head, and then for the body.
    pub(crate) read: Duration,
    /// Time limit for sending the response, from when it is ready.
    pub(crate) write: Duration,
    /// A connection without a request is not replaced before this time.
    pub(crate) grace: Duration,
}

impl Bounds {
    /// Of the control socket, whose clients send whole configurations.
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

    /// Of the metrics port, whose clients are not trusted.
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

/// The least limit of a head that hyper accepts.
const LEAST_HEAD: usize = 8 << 10;
/// The most fields of a head.
const FIELDS: usize = 64;

/// A connection that is open.
struct Open {
    task: AbortHandle,
    /// Whether its request is being processed.
    busy: Arc<AtomicBool>,
    since: Instant,
}

/// Serves requests with `router` until the future is dropped.
pub(crate) async fn serve<L: Listener>(mut listener: L, router: Router, bounds: Bounds) {
    let ended = Arc::new(Notify::new());
    let bodies = Arc::new(Semaphore::new(bounds.bodies));
    let mut open: Vec<Open> = Vec::new();
    loop {
        let (stream, _) = listener.accept().await;
        admit_one(&mut open, &ended, bounds).await;
        let busy = Arc::new(AtomicBool::new(false));
        let context = Context {
            router: router.clone(),
            bounds,
            bodies: Arc::clone(&bodies),
        };
        let connection = connection(TokioIo::new(stream), context, busy.clone());
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

/// Waits until the limit admits one more connection, or closes the oldest one without a request.
async fn admit_one(open: &mut Vec<Open>, ended: &Notify, bounds: Bounds) {
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
        // One that connected just now is about to send its request.
        let due = open.get(at).map(|one| one.since + bounds.grace);
        match due.filter(|due| Instant::now() < *due) {
            Some(due) => tokio::select! {
                () = ended.notified() => {}
                () = sleep_until(due) => {}
            },
            None => {
                tracing::debug!(
                    "connection closed: no request yet, and the limit of connections is reached"
                );
                open.remove(at).task.abort();
            }
        }
    }
}

/// What the requests of a connection are processed with.
#[derive(Clone)]
struct Context {
    router: Router,
    bounds: Bounds,
    /// Bytes that further bodies may have.
    bodies: Arc<Semaphore>,
}

async fn connection<T>(stream: TokioIo<T>, context: Context, busy: Arc<AtomicBool>)
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let answered = Arc::new(Notify::new());
    let bounds = context.bounds;
    let service = {
        let answered = Arc::clone(&answered);
        service_fn(move |request: Request<Incoming>| {
            let (answered, context, busy) = (answered.clone(), context.clone(), busy.clone());
            let router = TowerToHyperService::new(context.router.clone());
            async move {
                let response = match whole(request, &context).await {
                    // The memory of the body is accounted until the response is ready.
                    Ok((request, _reserved)) => {
                        busy.store(true, Ordering::Release);
                        router
                            .call(request)
                            .await
                            .unwrap_or_else(|never| match never {})
                    }
                    Err(fault) => fault.into_response(),
                };
                answered.notify_one();
                Ok::<_, Infallible>(printable(response).await)
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
            tracing::debug!("connection ended: {error}");
        },
        () = too_long => tracing::debug!(
            "connection closed: the client did not read the response within {:?}",
            bounds.write
        ),
    }
}

/// The response; if it is JSON, with control and hidden characters escaped, so that it is safe
/// to print.
async fn printable(response: Response) -> Response {
    let kind = response.headers().get(header::CONTENT_TYPE);
    if kind.is_none_or(|kind| kind != "application/json") {
        return response;
    }
    let (mut head, body) = response.into_parts();
    // Escaping changes the length.
    head.headers.remove(header::CONTENT_LENGTH);
    // JSON bodies are in memory already.
    let bytes = axum::body::to_bytes(body, usize::MAX).await;
    let bytes = bytes.unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    Response::from_parts(head, Body::from(text::Json(&text).to_string()))
}

/// The request with its whole body, and the memory reserved for that.
async fn whole(
    request: Request<Incoming>,
    context: &Context,
) -> Result<(Request<Body>, OwnedSemaphorePermit), Fault> {
    let bounds = context.bounds;
    let (head, body) = request.into_parts();
    if head.uri.path().starts_with("/v1/") && head.uri.query().is_some() {
        let what = format!(
            "{}: queries are not supported; omit the part from the question mark",
            head.uri
        );
        return Err(Fault::new(StatusCode::BAD_REQUEST, what));
    }
    // RFC 9110, 10.1.1 "Expect": a client that asks first is refused at once and sends no body.
    let asks = head.headers.contains_key(header::EXPECT);
    if asks && body.size_hint().lower() > u64::try_from(bounds.body).unwrap_or(u64::MAX) {
        return Err(too_long(bounds.body));
    }
    let reserved = reserve(&body, context).await?;
    match timeout(bounds.read, read_body(body, bounds.body)).await {
        Ok(Ok(Some(bytes))) => Ok((Request::from_parts(head, Body::from(bytes)), reserved)),
        Ok(Ok(None)) => Err(too_long(bounds.body)),
        Ok(Err(error)) => Err(Fault::new(
            StatusCode::BAD_REQUEST,
            format!("the body could not be read: {error}"),
        )),
        Err(_) => Err(Fault::new(
            StatusCode::REQUEST_TIMEOUT,
            format!("the body did not arrive within {:?}", bounds.read),
        )),
    }
}

/// Waits until the memory for the bodies of all requests suffices for this one.
async fn reserve(body: &Incoming, context: &Context) -> Result<OwnedSemaphorePermit, Fault> {
    let bounds = context.bounds;
    let most = body
        .size_hint()
        .upper()
        .and_then(|most| usize::try_from(most).ok());
    let most = most.map_or(bounds.body, |most| most.min(bounds.body));
    let bytes = u32::try_from(most).unwrap_or(u32::MAX);
    let reserved = Arc::clone(&context.bodies).acquire_many_owned(bytes);
    match timeout(bounds.read, reserved).await {
        Ok(Ok(reserved)) => Ok(reserved),
        _ => Err(Fault::new(
            StatusCode::SERVICE_UNAVAILABLE,
            format!(
                "the bodies of requests in progress use all of the {} bytes available for them; \
                 retry later",
                bounds.bodies
            ),
        )),
    }
}

fn too_long(most: usize) -> Fault {
    let what = match most {
        0 => "no request here has a body: send the request without one".to_owned(),
        _ => format!("the body exceeds the limit of {most} bytes"),
    };
    Fault::new(StatusCode::PAYLOAD_TOO_LARGE, what)
}

/// Of a body that is too long, this many times its limit is read and discarded, so that a client
/// that reads only after sending gets the error response.
const DISCARDED: usize = 8;
/// The least number of bytes that are discarded, also where no body is accepted.
const LEAST_DISCARDED: usize = 64 << 10;

/// The body; `None` if it is longer than `most`.
async fn read_body(mut body: Incoming, most: usize) -> Result<Option<Bytes>, hyper::Error> {
    let (mut bytes, mut len) = (Vec::new(), 0_usize);
    let discarded = most.saturating_mul(DISCARDED).max(LEAST_DISCARDED);
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
        if len > discarded {
            break;
        }
    }
    Ok((len <= most).then(|| bytes.into()))
}
