//! The control socket under misuse and load.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod bursts;
mod strict;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::Method;
use axum::routing::{get, post};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::{Value, json};

use super::routes::{Body, NoBody, drain, edits, resume, status};
use super::*;
use crate::changes::LoadedConfig;
use crate::http::{finished, serve, work};
use nvmeof_target_api::{Caller, Edit, EditsIn, HaGatewayIn, NamespaceAdd, OutcomeOut};
use nvmeof_target_manage::Server;
use tokio::sync::oneshot;

/// A server with a router of its own, on a thread of its own.
struct Scene {
    folder: tempfile::TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

const FEW: Bounds = Bounds {
    connections: 4,
    head: 8 << 10,
    body: 1 << 20,
    bodies: 4 << 20,
    read: Duration::from_secs(60),
    write: Duration::from_secs(60),
    grace: Duration::from_millis(100),
};

/// For clients that are too slow; others need far less time, also on a busy machine.
const BRIEF: Bounds = Bounds {
    read: Duration::from_secs(2),
    write: Duration::from_secs(2),
    ..FEW
};

/// Duration of a slow request.
const NAP: Duration = Duration::from_millis(2500);

impl Scene {
    fn new(bounds: Bounds) -> Self {
        Self::with(bounds, router())
    }

    fn with(bounds: Bounds, router: Router) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = ControlConfig {
            socket: Some(folder.path().join("control.sock")),
            mode: 0o600,
            ..ControlConfig::default()
        };
        let Bound { listener, file } = bind(&config).unwrap();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let _file = file;
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let listener = tokio::net::UnixListener::from_std(listener).unwrap();
                tokio::select! {
                    () = serve(listener, router, bounds) => {}
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        });
        Self {
            folder,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("control.sock")
    }

    fn caller(&self) -> Caller {
        Caller::new(&self.socket(), Duration::from_secs(60))
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream
    }

    /// Sends bytes and returns the whole response.
    fn response(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        let _ = stream.write_all(bytes);
        read_all(&mut stream)
    }
}

fn read_all(stream: &mut UnixStream) -> String {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
        self.thread.take().unwrap().join().unwrap();
    }
}

fn router() -> Router {
    let router = Router::new()
        .route("/echo", post(async |Body(value): Body<Value>| Json(value)))
        .route("/large", get(async || "x".repeat(32 << 20)))
        .route(
            "/slow",
            get(async || {
                let nap = || {
                    std::thread::sleep(NAP);
                    Ok("done")
                };
                work(nap).await
            }),
        );
    finished(router, "see the sources")
}

fn ask(scene: &Scene, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let method = method.parse().unwrap();
    let reply = scene.caller().call(method, path, Some(body)).unwrap();
    let body = serde_json::from_slice(&reply.body).unwrap();
    (reply.status.as_u16(), body)
}

#[test]
fn request_errors_are_json() {
    let scene = Scene::new(FEW);
    let good = json!({ "a": [1, 2] });
    assert_eq!(ask(&scene, "POST", "/echo", &good), (200, good.clone()));
    for (method, path, status, word) in [
        ("GET", "/echo", 405, "GET"),
        ("POST", "/nowhere", 404, "/nowhere"),
        ("DELETE", "/large", 405, "DELETE"),
    ] {
        let (answered, body) = ask(&scene, method, path, &good);
        let message = body["error"]["message"].as_str().unwrap();
        assert!(
            answered == status && message.contains(word),
            "{answered}: {message}"
        );
    }
    let bad = scene.response(b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n{\"a\":");
    assert!(
        bad.starts_with("HTTP/1.1 400 ") && bad.contains("line 1 column 5"),
        "{bad}"
    );
    let method = scene.response(b"PUT /echo HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(
        method.contains("405") && method.to_lowercase().contains("allow: post"),
        "{method}"
    );
    let noise = scene.response(b"\x00\x01\x02 what is this?\r\n\r\n");
    assert!(noise.starts_with("HTTP/1.1 400 "), "{noise}");
    assert_eq!(ask(&scene, "POST", "/echo", &good).0, 200);
}

#[test]
fn oversized_body_is_refused() {
    let scene = Scene::new(FEW);
    let long = json!("x".repeat(FEW.body));
    let (status, body) = ask(&scene, "POST", "/echo", &long);
    assert_eq!(status, 413, "{body}");
    assert!(
        body["error"]["message"]
            .as_str()
            .unwrap()
            .contains("1048576 bytes")
    );
    let fits = json!("x".repeat(FEW.body - 2));
    assert_eq!(ask(&scene, "POST", "/echo", &fits).0, 200);
}

#[test]
fn body_is_refused_where_none_is_expected() {
    let scene = Scene::new(Bounds { body: 0, ..FEW });
    let exchange = |head: &str, body: &[u8]| {
        let head = format!("POST /echo HTTP/1.1\r\nhost: a\r\n{head}\r\n\r\n");
        scene.response(&[head.as_bytes(), body].concat())
    };
    let long = vec![b'x'; 60 << 10];
    for reply in [
        exchange("content-length: 1", b"1"),
        exchange("content-length: 61440", &long),
        exchange("transfer-encoding: chunked", b"1\r\n1\r\n0\r\n\r\n"),
        // Nothing is sent after that, and nothing is awaited.
        exchange("expect: 100-continue\r\ncontent-length: 9", b""),
    ] {
        assert!(reply.starts_with("HTTP/1.1 413 "), "{reply}");
        assert!(reply.contains("without one"), "{reply}");
    }
    // A body of 0 bytes is no body.
    let nothing = exchange("content-length: 0", b"");
    assert!(nothing.starts_with("HTTP/1.1 400 "), "{nothing}");
}

#[test]
fn oversized_head_is_refused() {
    let scene = Scene::new(FEW);
    let long = format!("x: {}\r\n", "y".repeat(FEW.head));
    let many = "x: y\r\n".repeat(100);
    for head in [long, many] {
        let text = scene.response(format!("GET /slow HTTP/1.1\r\n{head}\r\n").as_bytes());
        assert!(text.starts_with("HTTP/1.1 431 "), "{text}");
    }
}

#[test]
fn connection_carries_one_request() {
    let scene = Scene::new(FEW);
    let one = "POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\n";
    let text = scene.response(format!("{one}1{one}2{one}3").as_bytes());
    assert_eq!(text.matches("HTTP/1.1 200 ").count(), 1, "{text}");
    assert!(text.to_lowercase().contains("connection: close"), "{text}");
    assert!(text.ends_with("\r\n\r\n1"), "{text}");
}

#[test]
fn trickling_client_does_not_block_others_and_times_out() {
    let scene = Scene::new(BRIEF);
    let mut slow: Vec<_> = (0..3).map(|_| scene.connect()).collect();
    let mut ended = false;
    // The time limit ends it before the length limit.
    let head = b"POST /echo HTTP/1.1\r\nhost: a\r\n".iter().cycle();
    for byte in head.take(FEW.head / 2) {
        for stream in &mut slow {
            ended |= stream.write_all(&[*byte]).is_err();
        }
        assert_eq!(ask(&scene, "POST", "/echo", &json!(1)).0, 200);
        if ended {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("a request may take forever");
}

#[test]
fn slow_client_is_notified_and_closed() {
    let scene = Scene::new(BRIEF);
    assert_eq!(scene.response(b"GET /slow HT").find("200"), None);
    let half = scene.response(b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n[1");
    assert!(half.starts_with("HTTP/1.1 408 "), "{half}");
    // A client that does not read its response gets a part of it.
    let mut lazy = scene.connect();
    lazy.write_all(b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n")
        .unwrap();
    let mut closed = [PollFd::new(lazy.as_fd(), PollFlags::empty())];
    poll(&mut closed, PollTimeout::from(60_000u16)).unwrap();
    assert_eq!(closed[0].revents(), Some(PollFlags::POLLHUP));
    assert!(read_all(&mut lazy).len() < 32 << 20);
    // A request that takes longer on the target's side is not limited.
    let reply = scene.caller().call(Method::GET, "/slow", None).unwrap();
    assert_eq!(&reply.body[..], b"done");
}

#[test]
fn silent_clients_do_not_block_others() {
    let scene = Scene::new(Bounds {
        read: Duration::from_secs(3600),
        ..FEW
    });
    let mut silent: Vec<_> = (0..20).map(|_| scene.connect()).collect();
    for (at, one) in silent.iter_mut().enumerate() {
        // Some send a part of a request.
        let _ = one.write_all(&b"POST /echo HTTP/1.1\r\ncontent-length: 9\r\n\r\n"[..at * 2]);
    }
    for at in 0..10 {
        assert_eq!(ask(&scene, "POST", "/echo", &json!(at)).0, 200);
    }
    // Requests in progress are not replaced: further ones wait.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let reply = scene.caller().call(Method::GET, "/slow", None).unwrap();
                assert_eq!(&reply.body[..], b"done");
            });
        }
    });
}

#[test]
fn socket_is_private_and_removed_at_the_end() {
    use std::os::unix::fs::PermissionsExt;
    let scene = Scene::new(FEW);
    let socket = scene.socket();
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let config = ControlConfig {
        socket: Some(socket.clone()),
        mode: 0o600,
        ..ControlConfig::default()
    };
    let second = bind(&config).err().unwrap();
    assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
    let folder = socket.parent().unwrap().to_path_buf();
    assert_eq!(ask(&scene, "POST", "/echo", &json!(1)).0, 200);
    drop(scene);
    assert!(!folder.exists());
    let caller = Caller::new(&socket, Duration::from_secs(1));
    let error = caller.ask(Method::GET, "/", None).unwrap_err().to_string();
    assert!(error.contains("does the target run?"), "{error}");
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .max_blocking_threads(8)
        .build()
        .unwrap()
}

/// A target without namespaces, and what its request handlers share.
fn served(folder: &tempfile::TempDir, notify_status: fn(&str)) -> (Server, Shared) {
    let file = folder.path().join("target.toml");
    let text = "[[port]]\ntraddr = \"127.0.0.1\"\ntrsvcid = 0\nprovider = \"iwarp\"\n\
                [[subsystem]]\nnqn = \"nqn.2026-11.org.example:disk\"\nallow_any_host = true\n";
    std::fs::write(&file, text).unwrap();
    let (server, keeper) = LoadedConfig::read(&file).unwrap().serve().unwrap();
    let shared = Shared {
        keeper: Arc::new(keeper),
        watch: Arc::new(Watch::of(&server)),
        notify_status,
        queue: ChangeQueue::default(),
    };
    (server, shared)
}

/// A backing store may stall, and with it each change that opens or closes it.
#[test]
fn pending_changes_leave_capacity_for_reads() {
    let folder = tempfile::tempdir().unwrap();
    let (server, mut shared) = served(&folder, |_| {});
    shared.queue = ChangeQueue::with_most(8);
    let planned = || {
        let body = EditsIn {
            edits: Vec::new(),
            plan: true,
        };
        edits(State(shared.clone()), Body(body))
    };
    runtime().block_on(async {
        let mut stalled = Vec::new();
        for _ in 0..4 {
            stalled.push(shared.queue.enter().unwrap().acquire().await);
        }
        let waiting: Vec<_> = (0..4).map(|_| tokio::spawn(planned())).collect();
        tokio::task::yield_now().await;
        let busy = planned().await.map(drop).unwrap_err();
        assert_eq!(busy.status.as_u16(), 503, "{busy:?}");
        assert!(busy.error.message.starts_with("8 requests"), "{busy:?}");
        assert!(waiting.iter().all(|one| !one.is_finished()));
        status(State(shared.clone()), NoBody)
            .await
            .map(drop)
            .unwrap();
        drop(stalled);
        for one in waiting {
            one.await.unwrap().map(drop).unwrap();
        }
        planned().await.map(drop).unwrap();
    });
    server.stop();
    server.join().unwrap();
}

/// An order may be the remedy for what stalls the changes.
#[test]
fn orders_of_high_availability_do_not_wait_for_changes() {
    let folder = tempfile::tempdir().unwrap();
    let (server, shared) = served(&folder, |_| {});
    runtime().block_on(async {
        let mut stalled = Vec::new();
        for _ in 0..4 {
            stalled.push(shared.queue.enter().unwrap().acquire().await);
        }
        let gateway = "gw1".to_owned();
        let body = Body(HaGatewayIn { gateway });
        let drained = ha::ha_drain(State(shared.clone()), body).await;
        let fault = drained.map(drop).unwrap_err();
        // This target is no gateway.
        assert_eq!(fault.status.as_u16(), 404, "{fault:?}");
        assert!(fault.error.message.contains("add [ha]"), "{fault:?}");
        let shown = ha::ha(State(shared.clone()), NoBody).await;
        assert_eq!(shown.map(drop).unwrap_err(), fault);
    });
    server.stop();
    server.join().unwrap();
}

#[test]
fn service_manager_is_notified_of_every_change() {
    static NOTIFIED: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());
    let folder = tempfile::tempdir().unwrap();
    let notify_status = |status: &str| NOTIFIED.lock().unwrap().push(status.to_owned());
    let (server, shared) = served(&folder, notify_status);
    let shared = || State(shared.clone());
    let notified = || std::mem::take(&mut *NOTIFIED.lock().unwrap());
    let add = |plan| {
        let add = NamespaceAdd {
            path: "ram:1M".into(),
            ..NamespaceAdd::default()
        };
        let edits = vec![Edit::NamespaceAdd(add)];
        Body(EditsIn { edits, plan })
    };
    runtime().block_on(async {
        status(shared(), NoBody).await.map(drop).unwrap();
        edits(shared(), add(true)).await.map(drop).unwrap();
        assert_eq!(notified(), Vec::<String>::new());
        edits(shared(), add(false)).await.map(drop).unwrap();
        let notifications = notified().concat();
        assert!(
            notifications.starts_with("serving 1 namespace on 127.0.0.1:"),
            "{notifications}"
        );
        drain(shared(), NoBody).await.map(drop).unwrap();
        let notifications = notified().concat();
        assert!(notifications.contains("drained"), "{notifications}");
        edits(shared(), add(false)).await.map(drop).unwrap_err();
        resume(shared(), NoBody).await.map(drop).unwrap();
        let notifications = notified();
        assert_eq!(notifications.len(), 2);
        assert!(!notifications[1].contains("drained"), "{notifications:?}");
    });
    server.stop();
    server.join().unwrap();
}
