//! Asking a daemon over its socket.

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

/// Asks the daemon at one socket.
#[derive(Clone, Debug)]
pub struct Caller {
    socket: PathBuf,
    patience: Duration,
}

/// What came of asking.
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: StatusCode,
    /// What it says.
    pub body: Bytes,
}

/// Why there is no answer that helps.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Nobody answers.
    #[error("{}: {why}", .socket.display())]
    Unreachable {
        /// Where the daemon was asked.
        socket: PathBuf,
        /// What went wrong.
        why: String,
    },
    /// It says no.
    #[error("{}", .1.error.message)]
    Refused(StatusCode, ErrorBody),
}

/// The longest answer that is taken.
const LONGEST: usize = 256 << 20;

impl Caller {
    /// Asks at `socket`, and waits so long for an answer.
    #[must_use]
    pub fn new(socket: &Path, patience: Duration) -> Self {
        Self {
            socket: socket.to_path_buf(),
            patience,
        }
    }

    /// Asks for JSON.
    ///
    /// # Errors
    /// When nobody answers, or with what was refused.
    pub fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, CallError> {
        let answer = self.call(method, path, body)?;
        if answer.status.is_success() {
            let parsed = serde_json::from_slice(&answer.body);
            return parsed.map_err(|error| self.unreachable(format!("no JSON: {error}")));
        }
        let refused = serde_json::from_slice(&answer.body);
        Err(refused.map_or_else(
            |_| self.unreachable(format!("answers {}", answer.status)),
            |body| CallError::Refused(answer.status, body),
        ))
    }

    /// Asks for whatever is there.
    ///
    /// # Errors
    /// When nobody answers.
    pub fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer, CallError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(|error| self.unreachable(error.to_string()))?;
        // The time-out belongs to the runtime.
        let exchange = async { timeout(self.patience, self.exchange(method, path, body)).await };
        match runtime.block_on(exchange) {
            Ok(answer) => answer.map_err(|error| self.unreachable(error)),
            Err(_) => Err(self.unreachable(format!("no answer within {:?}", self.patience))),
        }
    }

    /// Where more wait to be let in than the kernel keeps, it says so at once to
    /// who does not block.
    async fn connect(&self) -> io::Result<UnixStream> {
        let until = Instant::now() + CROWDED;
        loop {
            match UnixStream::connect(&self.socket).await {
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until =>
                {
                    sleep(AGAIN).await;
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
    ) -> Result<Answer, String> {
        let stream = self.connect().await.map_err(|error| cause(&error))?;
        let text = |error: hyper::Error| error.to_string();
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
            .map_err(|error| error.to_string())?;
        let talking = tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(text)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), LONGEST).collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        talking.abort();
        Ok(Answer { status, body })
    }

    fn unreachable(&self, why: String) -> CallError {
        CallError::Unreachable {
            socket: self.socket.clone(),
            why,
        }
    }
}

/// How long to try where many wait to be let in; those that say nothing give way.
const CROWDED: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(20);

/// What to do when there is no connection.
fn cause(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "there is no such socket; does the target run? Its log names the socket \
             (\"control socket listening on\"); pass it with --socket"
                .to_owned()
        }
        io::ErrorKind::ConnectionRefused => {
            "nothing listens there; start the target, then try again".to_owned()
        }
        io::ErrorKind::PermissionDenied => "permission denied; become the target's user, root, or \
             one of the group of control.group"
            .to_owned(),
        _ => explain(error),
    }
}
