//! Cases: peers that never respond. Their connections wait, others do not.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use nvmeof_rdma::{CloseReason, Event, Limits, PrivateData, Provider, QpConfig, QpId};
use nvmeof_rdma_conformance::{Endpoint::A, Rig, run};
use nvmeof_rdma_verbs::{DeviceKind, Verbs, VerbsConfig};

use super::device;

/// Messages over another connection while one is closed: hundreds if nothing blocks, none
/// otherwise.
const MESSAGES: u32 = 50;

/// An address without a host.
fn nobody() -> IpAddr {
    let Ok(silent) = std::env::var("NVMEOF_VERBS_SILENT") else {
        panic!(
            "set NVMEOF_VERBS_SILENT to an address on the route of the device where no host \
             is, with an entry in the table of neighbours (`ip neighbour add`)"
        );
    };
    silent.parse().unwrap()
}

/// A peer whose machine does not respond, with its own time-out.
#[test]
fn silent_machine_delays_no_other_connection() {
    run([device()], |rig| {
        let link = rig.link();
        let config = rig.config();
        let a = rig.connect(A, SocketAddr::new(nobody(), 4420).into(), &config, "");
        rig[A].recv(a, 1, 64);
        let mut messages = 0;
        while !rig[A].is_closed(a) {
            rig.assert_alive(link);
            messages += 1;
        }
        assert!(messages > MESSAGES, "only {messages} messages meanwhile");
        let reason = rig.closed(A, a);
        let late = matches!(&reason, CloseReason::Timeout { waiting_for } if
            *waiting_for == "the peer's response");
        assert!(late, "{reason}");
        rig.assert_alive(link);
    });
}

/// A peer that accepts a TCP connection and sends nothing.
struct Mute {
    listener: TcpListener,
    stream: Option<TcpStream>,
}

impl Mute {
    /// `None` if connections do not use TCP.
    fn new() -> Option<Self> {
        let device = device();
        if device.kind != DeviceKind::Iwarp {
            return None;
        }
        let listener = TcpListener::bind((device.addr, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        Some(Self {
            listener,
            stream: None,
        })
    }

    /// Connects A to it, until it has read the whole request.
    fn called(&mut self, rig: &mut Rig<'_>) -> QpId {
        let (addr, config) = (self.listener.local_addr().unwrap(), rig.config());
        let a = rig.connect(A, addr.into(), &config, "hello");
        rig[A].recv(a, 1, 64);
        let stream = rig.wait("a TCP connection", |_| self.listener.accept().ok());
        stream.0.set_nonblocking(true).unwrap();
        self.stream = Some(stream.0);
        // RFC 5044, section 7.1: 20 bytes and the private data; RFC 6581,
        // section 4: 4 bytes more in front of that.
        let mut got = 0;
        rig.wait("the request", |_| {
            got += self.read().unwrap_or(0);
            (got >= 20 + 4 + 5).then_some(())
        });
        a
    }

    fn read(&mut self) -> std::io::Result<usize> {
        self.stream.as_ref().unwrap().read(&mut [0; 256])
    }

    /// The other side did not close it.
    fn assert_open(&mut self) {
        let kind = self.read().map_err(|error| error.kind());
        assert_eq!(kind, Err(ErrorKind::WouldBlock), "the kernel blocked");
    }

    /// Reads to the end of the stream, if it is reached.
    fn is_at_its_end(&mut self) -> bool {
        while self.read().is_ok_and(|count| count > 0) {}
        self.is_closed()
    }

    fn is_closed(&mut self) -> bool {
        match self.read() {
            Ok(count) => count == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// The kernel keeps such a connection until its own time-out: the test checks that it is
/// still open.
#[test]
fn closing_connection_to_silent_peer_does_not_block() {
    run([device()], |rig| {
        let Some(mut mute) = Mute::new() else { return };
        let link = rig.link();
        let a = mute.called(rig);
        rig[A].disconnect(a);
        assert_eq!(rig.closed(A, a), CloseReason::Local);
        assert_eq!(rig[A].outstanding_recvs(a), 0);
        mute.assert_open();
        for _ in 0..MESSAGES {
            rig.assert_alive(link);
        }
        mute.assert_open();
        while !mute.is_closed() {
            rig.assert_alive(link);
        }
        rig.assert_alive(link);
    });
}

/// A response that arrives after its connection was closed has no effect.
#[test]
fn late_response_is_ignored() {
    run([device()], |rig| {
        let Some(mut mute) = Mute::new() else { return };
        let link = rig.link();
        let a = mute.called(rig);
        rig[A].disconnect(a);
        assert_eq!(rig.closed(A, a), CloseReason::Local);
        // Enhanced, revision 2, 4 bytes more: 1 Read each way.
        let mut reply = b"MPA ID Rep Frame".to_vec();
        reply.extend([0x10, 2, 0, 4, 0, 1, 0, 1]);
        let mut stream = mute.stream.as_ref().unwrap();
        stream.write_all(&reply).unwrap();
        while !mute.is_closed() {
            rig.assert_alive(link);
        }
        rig.assert_alive(link);
    });
}

/// A closed connection counts as a queue pair until the kernel has released it.
#[test]
fn closed_connection_frees_slot_when_destroyed() {
    let Some(mut mute) = Mute::new() else { return };
    let limits = Limits {
        max_qps: 1,
        ..VerbsConfig::default().limits
    };
    let config = VerbsConfig {
        limits,
        ..VerbsConfig::default()
    };
    let mut provider = nvmeof_rdma_verbs::new(config).unwrap();
    let addr = mute.listener.local_addr().unwrap().into();
    let start = Instant::now();
    let connect = |provider: &mut Verbs| {
        let sizes = QpConfig {
            recvs: 1,
            sends: 1,
            reads_out: 1,
            reads_in: 1,
            exposes: 0,
            trusts_peer: false,
        };
        provider.connect(addr, &sizes, &PrivateData::empty(), start.elapsed())
    };
    let mut events = Vec::new();
    let mut poll_once = |provider: &mut Verbs| {
        provider.poll(start.elapsed(), &mut events);
        events
            .drain(..)
            .any(|event| matches!(event, Event::Closed { .. }))
    };
    let first = connect(&mut provider).expect("there is a free slot");
    while mute.stream.is_none() {
        assert!(!poll_once(&mut provider), "it closed by itself");
        mute.stream = mute.listener.accept().ok().map(|(stream, _)| stream);
    }
    let stream = mute.stream.as_ref().unwrap();
    stream.set_nonblocking(true).unwrap();
    provider.disconnect(first);
    while !poll_once(&mut provider) {}
    let full = connect(&mut provider).unwrap_err().to_string();
    assert!(full.contains("all 1 entries"), "{full}");
    while let Err(error) = connect(&mut provider) {
        assert!(error.to_string().contains("all 1 entries"), "{error}");
        assert!(!poll_once(&mut provider), "there is nothing to close");
    }
    assert!(mute.is_at_its_end());
}

/// Dropping a provider does not wait for pending responses.
#[test]
fn dropping_provider_does_not_block() {
    run([device()], |rig| {
        let Some(mut mute) = Mute::new() else { return };
        mute.called(rig);
        rig[A].vanish();
        mute.assert_open();
    });
}
