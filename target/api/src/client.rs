//! The client of the control socket.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use nvmeof_rdma::explain;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

use crate::error::ErrorBody;

/// A client of one control socket.
#[derive(Clone, Debug)]
pub struct Caller {
    socket: PathBuf,
    timeout: Duration,
}

/// A response.
#[derive(Clone, Debug)]
pub struct HttpResponse {
    /// HTTP status.
    pub status: StatusCode,
    /// The body.
    pub body: Bytes,
}

/// A request failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The socket does not exist.
    #[error(
        "{}: there is no such socket; does the target run? Its log names the socket \
         (\"control socket listening on\")",
        .socket.display()
    )]
    NoSocket {
        /// The control socket.
        socket: PathBuf,
    },
    /// There is no response, or no valid one.
    #[error("{}: {why}", .socket.display())]
    Unreachable {
        /// The control socket.
        socket: PathBuf,
        /// The cause and the remedy.
        why: String,
    },
    /// The target refused the request.
    #[error("{}", .1.error.message)]
    Refused(StatusCode, ErrorBody),
}

/// The longest response that is accepted.
const LONGEST: usize = 256 << 20;

impl Caller {
    /// A client of `socket` that waits up to `timeout` for each response.
    #[must_use]
    pub fn new(socket: &Path, timeout: Duration) -> Self {
        Self {
            socket: socket.to_path_buf(),
            timeout,
        }
    }

    /// Sends a request and parses the response as JSON.
    ///
    /// # Errors
    /// If there is no response, or the target refuses the request.
    pub fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, CallError> {
        let reply = self.call(method, path, body)?;
        if reply.status.is_success() {
            let parsed = serde_json::from_slice(&reply.body);
            return parsed
                .map_err(|error| self.unreachable(format!("the response is not JSON: {error}")));
        }
        let refused = serde_json::from_slice(&reply.body);
        Err(refused.map_or_else(
            |_| self.unreachable(format!("the response has status {}", reply.status)),
            |body| CallError::Refused(reply.status, body),
        ))
    }

    /// Sends a request and returns the response, whatever its status.
    ///
    /// # Errors
    /// If there is no response.
    pub fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<HttpResponse, CallError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(|error| self.unreachable(error.to_string()))?;
        // A time-out is created inside the runtime.
        let exchange = async { timeout(self.timeout, self.exchange(method, path, body)).await };
        match runtime.block_on(exchange) {
            Ok(reply) => reply,
            Err(_) => Err(self.unreachable(format!("no response within {:?}", self.timeout))),
        }
    }

    /// Connects. A non-blocking connect fails at once if the backlog of the socket is full, so it
    /// is retried for a while.
    async fn connect(&self) -> io::Result<UnixStream> {
        let until = Instant::now() + RETRY_FOR;
        loop {
            match UnixStream::connect(&self.socket).await {
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until =>
                {
                    sleep(RETRY_INTERVAL).await;
                }
                other => return other,
            }
        }
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<HttpResponse, CallError> {
        let stream = self.connect().await;
        let stream = stream.map_err(|error| self.not_connected(&error))?;
        let text = |error: hyper::Error| self.unreachable(error.to_string());
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(text)?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::<Bytes>::from(
                // null stands for no body.
                body.filter(|body| !body.is_null())
                    .map(Value::to_string)
                    .unwrap_or_default(),
            ))
            .map_err(|error| self.unreachable(error.to_string()))?;
        let connection = tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(text)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), LONGEST).collect().await;
        let body = body.map_err(|error| self.unreachable(error.to_string()))?;
        let body = body.to_bytes();
        connection.abort();
        Ok(HttpResponse { status, body })
    }

    fn not_connected(&self, error: &io::Error) -> CallError {
        let why = match error.kind() {
            io::ErrorKind::NotFound => {
                let socket = self.socket.clone();
                return CallError::NoSocket { socket };
            }
            io::ErrorKind::ConnectionRefused => {
                "nothing listens there; start the target, then try again".to_owned()
            }
            io::ErrorKind::PermissionDenied => {
                "permission denied; become the target's user, root, \
                 or a member of control.group"
                    .to_owned()
            }
            _ => explain(error),
        };
        self.unreachable(why)
    }

    fn unreachable(&self, why: String) -> CallError {
        CallError::Unreachable {
            socket: self.socket.clone(),
            why,
        }
    }
}

/// How long to retry while the backlog is full; the target closes idle connections meanwhile.
const RETRY_FOR: Duration = Duration::from_secs(10);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
