//! Metrics of a target (`/metrics`).

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use crate::{Setup, TIMEOUT};

/// The head, in lower case, and the body of the response.
#[must_use]
pub fn exchange(mut stream: impl Read + Write, path: &str) -> (String, String) {
    let request = format!("GET {path} HTTP/1.1\r\nhost: target\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_lowercase(), body.to_owned())
}

/// The same over the control socket of [`managed`](crate::managed).
#[must_use]
pub fn over_socket(setup: &Setup, path: &str) -> (String, String) {
    let stream = UnixStream::connect(setup.path("control.sock")).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    exchange(stream, path)
}

/// The value of the only sample with that name and these labels.
#[track_caller]
#[must_use]
pub fn sample(text: &str, name: &str, labels: &[&str]) -> f64 {
    let its = |line: &&str| {
        let mut words = line.split(['{', ' ']);
        words.next() == Some(name) && labels.iter().all(|label| line.contains(label))
    };
    let found: Vec<&str> = text.lines().filter(its).collect();
    let [line] = found[..] else {
        panic!("{name} {labels:?}: {found:?} in\n{text}");
    };
    line.rsplit(' ').next().unwrap().parse().unwrap()
}
