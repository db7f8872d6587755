//! Misuse of the control socket and the metrics port: each client gets a proper response or
//! none, and delays no other client.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use nvmeof_e2e::{
    Setup, TIMEOUT, Target, assert_io_continues, binary, pattern, same_bytes, start_io,
};

const MIB: usize = 1 << 20;

/// One of both HTTP listeners.
#[derive(Clone, Debug)]
enum Listener {
    Control(PathBuf),
    Metrics(SocketAddr),
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

impl Listener {
    fn connect(&self) -> Box<dyn Stream> {
        match self {
            Self::Control(path) => {
                let stream = UnixStream::connect(path).unwrap();
                stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                Box::new(stream)
            }
            Self::Metrics(address) => {
                let stream = TcpStream::connect(address).unwrap();
                stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                Box::new(stream)
            }
        }
    }

    /// The complete response to `bytes`.
    fn says(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        // The target may close the connection while the client still sends.
        let _ = stream.write_all(bytes);
        let mut response = Vec::new();
        let _ = stream.read_to_end(&mut response);
        String::from_utf8_lossy(&response).into_owned()
    }

    fn must_answer(&self) {
        let response = self.says(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n");
        assert!(
            response.starts_with("HTTP/1.1 200 "),
            "{self:?}: {response}"
        );
    }
}

fn served() -> (Setup, Target, [Listener; 2]) {
    let setup = configured();
    let mut target = setup.start();
    let listeners = listeners(&setup, &mut target);
    (setup, target, listeners)
}

fn configured() -> Setup {
    let setup = Setup::new();
    let socket = setup.path("control.sock");
    let head = format!(
        "[control]\nsocket = '{}'\nstate = \"\"\n[metrics]\nlisten = \"127.0.0.1:0\"\n",
        socket.display()
    );
    setup.head(&head).file(MIB)
}

fn listeners(setup: &Setup, target: &mut Target) -> [Listener; 2] {
    let line = target.wait_for_log("metrics listening on http://");
    let (_, rest) = line.split_once("http://").unwrap();
    let address = rest.split('/').next().unwrap().parse().unwrap();
    [
        Listener::Control(setup.path("control.sock")),
        Listener::Metrics(address),
    ]
}

/// A request with a head of these lines and a body.
fn request(first: &str, lines: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("{first} HTTP/1.1\r\nhost: a\r\n{lines}\r\n");
    [head.as_bytes(), body].concat()
}

#[test]
fn http_errors_have_their_status() {
    let (_setup, mut target, listeners) = served();
    let long = format!("x: {}\r\n", "y".repeat(300 << 10));
    let one = "content-length: 1\r\n";
    for listener in &listeners {
        let (of_control, body) = match listener {
            Listener::Control(_) => (true, "400"),
            Listener::Metrics(_) => (false, "413"),
        };
        let plan = if of_control {
            "POST /v1/plan"
        } else {
            "GET /metrics"
        };
        for (what, status) in [
            (b"what is this?\r\n\r\n".to_vec(), "400"),
            (b"GET / HTTP/9.9\r\n\r\n".to_vec(), "400"),
            (request("GET /nothing", "", b""), "404"),
            (request("DELETE /metrics", "", b""), "405"),
            (request("POST /metrics", "", b""), "405"),
            (request("GET /metrics", &long, b""), "431"),
            (request("GET /metrics", &"x: y\r\n".repeat(200), b""), "431"),
            (request(plan, one, b"{"), body),
            (
                request(
                    plan,
                    "transfer-encoding: chunked\r\n",
                    b"1\r\n{\r\n0\r\n\r\n",
                ),
                body,
            ),
            (
                request(
                    plan,
                    "content-length: 99999999999\r\nexpect: 100-continue\r\n",
                    b"",
                ),
                "413",
            ),
        ] {
            let response = listener.says(&what);
            let shown = String::from_utf8_lossy(what.get(..what.len().min(200)).unwrap());
            let expected = format!("HTTP/1.1 {status} ");
            let answered = response.lines().next().unwrap_or_default();
            assert!(
                response.starts_with(&expected),
                "{listener:?} {shown:?}: {answered}"
            );
        }
        listener.must_answer();
    }
    // Only the control socket accepts changes.
    let [_, metrics] = &listeners;
    for path in ["POST /v1/drain", "GET /v1/status", "GET /openapi.json"] {
        let response = metrics.says(&request(path, "", b""));
        assert!(response.starts_with("HTTP/1.1 404 "), "{path}: {response}");
    }
    target.assert_healthy();
    target.stop();
}

#[test]
fn request_bodies_are_bounded() {
    let (_setup, mut target, listeners) = served();
    for listener in &listeners {
        let (first, len) = match listener {
            Listener::Control(_) => ("POST /v1/apply", 9 * MIB),
            Listener::Metrics(_) => ("GET /metrics", 32 << 10),
        };
        let head = format!("content-length: {len}\r\n");
        let response = listener.says(&request(first, &head, &vec![b'x'; len]));
        assert!(
            response.starts_with("HTTP/1.1 413 "),
            "{listener:?}: {response}"
        );
        // An endless one is refused.
        let mut stream = listener.connect();
        let head = "transfer-encoding: chunked\r\n";
        let _ = stream.write_all(&request(first, head, b""));
        let chunk = [b"10000\r\n".as_slice(), &[b'x'; 0x10000], b"\r\n"].concat();
        let taken = (0..4096).take_while(|_| stream.write_all(&chunk).is_ok());
        assert!(taken.count() < 4096, "{listener:?} takes everything");
        listener.must_answer();
    }
    target.assert_healthy();
    target.stop();
}

#[test]
fn pipelined_requests_get_one_response() {
    let (_setup, target, listeners) = served();
    for listener in &listeners {
        let one = request("GET /healthz", "connection: keep-alive\r\n", b"");
        let response = listener.says(&one.repeat(3)).to_lowercase();
        assert_eq!(
            response.matches("http/1.1 200 ").count(),
            1,
            "{listener:?}: {response}"
        );
        assert!(
            response.contains("connection: close"),
            "{listener:?}: {response}"
        );
    }
    target.stop();
}

#[test]
fn slow_clients_do_not_block_others() {
    let (_setup, mut target, listeners) = served();
    let mut bench = start_io(&target);
    for listener in &listeners {
        let mut slow: Vec<_> = (0..150).map(|_| listener.connect()).collect();
        // Single bytes of a head or a body, slowly.
        let head = request("POST /v1/apply", "content-length: 100\r\n", b"");
        for (at, stream) in slow.iter_mut().enumerate() {
            let part = head.get(..head.len().min(at)).unwrap();
            let _ = stream.write_all(part);
        }
        for byte in &head {
            for stream in &mut slow {
                let _ = stream.write_all(&[*byte]);
            }
            if byte == &b'\n' {
                listener.must_answer();
                assert_io_continues(&target, &mut bench);
            }
        }
        // A client that does not read its response does not block others either.
        let mut deaf: Vec<_> = (0..20).map(|_| listener.connect()).collect();
        for stream in &mut deaf {
            let _ = stream.write_all(&request("GET /metrics", "", b""));
        }
        listener.must_answer();
        std::thread::sleep(Duration::from_millis(10));
    }
    bench.kill();
    target.assert_healthy();
    target.stop();
}

#[test]
fn http_clients_leave_descriptors_for_hosts_and_stores() {
    let setup = configured();
    let mut command = Command::new("prlimit");
    command.arg("--nofile=64:64").arg(binary("nvmeof-target"));
    command.arg("serve").arg("--config").arg(setup.config());
    let mut target = setup.start_as(&mut command);
    let listeners = listeners(&setup, &mut target);
    let mut silent: Vec<_> = listeners
        .iter()
        .flat_map(|listener| (0..40).map(|_| listener.connect()))
        .collect();
    same_bytes(&target.read(1, 0, None), &pattern(1, MIB));
    for stream in &mut silent {
        let _ = stream.write_all(b"GET ");
    }
    listeners.iter().for_each(Listener::must_answer);
    same_bytes(&target.read(1, 0, None), &pattern(1, MIB));
    assert!(target.lines(&["EMFILE"]).is_empty(), "{}", target.log());
    target.assert_healthy();
    target.stop();
}
