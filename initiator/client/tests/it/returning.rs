//! Buffers that return some time after they are withdrawn: each call ends once, with its buffer,
//! in virtual time.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::fake::BLOCK;
use crate::held::Scene;
use nvmeof_initiator::polled::Done;
use nvmeof_initiator::{Blocks, Error, Operation};
use nvmeof_memory::Buf;
use nvmeof_rdma::{
    Address, ConnectError, Event, ExposeError, PostError, PrivateData, Provider, QpConfig, QpId,
    Refused, RemoteKey, Tag, Work,
};
use nvmeof_rdma_shm::Shm;
use nvmeof_wire::Status;

/// What the provider of the I/O queue does, and what it keeps.
#[derive(Debug, Default)]
struct Control {
    /// Refuses the next command.
    refuses: Option<PostError>,
    /// Keeps withdrawn buffers.
    keeps: bool,
    withdrawn: Vec<(QpId, RemoteKey, Buf)>,
}

/// A provider whose withdrawn buffers return later.
struct Late {
    inner: Shm,
    qp: QpId,
    control: Arc<Mutex<Control>>,
}

impl Provider for Late {
    nvmeof_rdma_layers::forward!(inner: limits name register listen unlisten set_owner
        local_addr peer_may_invalidate peer_works_in_place map_remote prepare accept reject
        post_recv share_receives post_shared_recv expose disconnect abort progress submit wait_fd
        next_deadline rest);

    fn connect(
        &mut self,
        addr: Address,
        config: &QpConfig,
        private_data: &PrivateData,
        now: Duration,
    ) -> Result<QpId, ConnectError> {
        self.qp = self.inner.connect(addr, config, private_data, now)?;
        Ok(self.qp)
    }

    fn post(&mut self, qp: QpId, tag: Tag, work: Work) -> Result<(), Refused<Work>> {
        match self.control.lock().unwrap().refuses.take() {
            Some(why) => Err(Refused { why, back: work }),
            None => self.inner.post(qp, tag, work),
        }
    }

    fn withdraw(&mut self, key: RemoteKey) -> Result<Option<Buf>, ExposeError> {
        let buf = self.inner.withdraw(key)?.unwrap();
        let mut control = self.control.lock().unwrap();
        control.withdrawn.push((self.qp, key, buf));
        Ok(None)
    }

    fn poll(&mut self, now: Duration, events: &mut Vec<Event>) -> bool {
        let progress = self.inner.poll(now, events);
        let mut control = self.control.lock().unwrap();
        let closed = |event: &Event| matches!(event, Event::Closed { .. });
        let end = events.iter().position(closed);
        if control.keeps && end.is_none() {
            return progress;
        }
        let returned: Vec<_> = control.withdrawn.drain(..).collect();
        let returned = returned.into_iter();
        let returned = returned.map(|(qp, key, buf)| Event::Withdrawn { qp, key, buf });
        let end = end.unwrap_or(events.len());
        events.splice(end..end, returned);
        progress || !events.is_empty()
    }
}

/// A scene whose provider keeps withdrawn buffers.
fn scene() -> (Scene, Arc<Mutex<Control>>) {
    let control = Arc::new(Mutex::new(Control::default()));
    let own = Arc::clone(&control);
    let scene = Scene::with(false, |inner| {
        Box::new(Late {
            inner,
            qp: QpId(0),
            control: own,
        })
    });
    control.lock().unwrap().keeps = true;
    (scene, control)
}

/// Submits a call on two blocks.
fn submit(scene: &mut Scene, operation: Operation, slba: u64, content: u8) {
    let blocks = Blocks {
        operation,
        nsid: 1,
        block_shift: 9,
        slba,
        count: 2,
        fua: false,
    };
    let mut buf = scene.pool.take().unwrap();
    buf.set_len(2 * BLOCK).unwrap();
    buf.fill(content);
    scene.io.submit(blocks, Some(buf), slba, scene.now).unwrap();
}

/// Polls for long, but not until a command times out.
fn poll(scene: &mut Scene) {
    for _ in 0..50 {
        scene.poll_once();
    }
}

/// The only call that ended.
fn only(scene: &mut Scene) -> Done {
    poll(scene);
    assert_eq!(scene.done.len(), 1);
    scene.done.pop().unwrap()
}

fn release(control: &Mutex<Control>) {
    control.lock().unwrap().keeps = false;
}

fn kept(control: &Mutex<Control>) -> usize {
    control.lock().unwrap().withdrawn.len()
}

#[test]
fn call_ends_once_when_its_buffer_returns() {
    let (mut scene, control) = scene();
    submit(&mut scene, Operation::Write, 6, 0x17);
    poll(&mut scene);
    assert_eq!((kept(&control), scene.done.len()), (1, 0));
    // Others are not affected.
    submit(&mut scene, Operation::Read, 6, 0);
    poll(&mut scene);
    assert_eq!((kept(&control), scene.done.len()), (2, 0));
    // The later one returns first.
    control.lock().unwrap().withdrawn.reverse();
    release(&control);
    poll(&mut scene);
    let back: Vec<_> = scene.done.drain(..).collect();
    assert_eq!(back.len(), 2);
    for call in &back {
        assert!(call.result.is_ok(), "{call:?}");
        let buf = call.buf.as_ref().unwrap();
        assert!(buf.len() == 2 * BLOCK && buf.iter().all(|byte| *byte == 0x17));
    }
    drop(back);
    poll(&mut scene);
    assert!(scene.done.is_empty() && !scene.io.is_closed());
    assert_eq!(scene.pool.available(), 4);
}

#[test]
fn failed_call_ends_once_when_its_buffer_returns() {
    let (mut scene, control) = scene();
    scene.target.manners.fails_at = Some((3, Status::LBA_OUT_OF_RANGE));
    submit(&mut scene, Operation::Read, 3, 9);
    poll(&mut scene);
    assert!(scene.done.is_empty());
    release(&control);
    let call = only(&mut scene);
    assert!(matches!(call.result, Err(Error::Command(_))), "{call:?}");
    assert!(call.buf.is_some() && call.work.is_some());
    assert!(!scene.io.is_closed());
}

/// The provider refuses the first command of a call and withdraws its buffer later.
#[test]
fn refused_call_ends_once_when_its_buffer_returns() {
    let (mut scene, control) = scene();
    control.lock().unwrap().refuses = Some(PostError::NotRegistered);
    submit(&mut scene, Operation::Write, 5, 8);
    poll(&mut scene);
    assert_eq!((kept(&control), scene.done.len()), (1, 0));
    release(&control);
    let call = only(&mut scene);
    assert!(matches!(call.result, Err(Error::Machine(_))), "{call:?}");
    assert!(call.buf.unwrap().iter().all(|byte| *byte == 8));
    assert!(call.work.is_some() && !scene.io.is_closed());
    // The queue works, and the call had no effect.
    submit(&mut scene, Operation::Read, 5, 8);
    let call = only(&mut scene);
    assert!(call.result.is_ok());
    assert!(call.buf.unwrap().iter().all(|byte| *byte == 0));
}

/// The same where the provider refuses because it closes the queue pair: the call ends with it.
#[test]
fn call_refused_by_closing_queue_pair_ends_with_it() {
    for returns_before in [false, true] {
        let (mut scene, control) = scene();
        control.lock().unwrap().refuses = Some(PostError::Closed);
        submit(&mut scene, Operation::Write, 5, 8);
        control.lock().unwrap().keeps = !returns_before;
        poll(&mut scene);
        assert!(scene.done.is_empty());
        scene.io.close();
        let call = only(&mut scene);
        assert!(matches!(call.result, Err(Error::Lost(_))), "{call:?}");
        assert!(call.buf.unwrap().iter().all(|byte| *byte == 8));
        assert!(scene.io.is_closed());
    }
}

/// The command completed before the connection was lost: the call succeeds.
#[test]
fn completed_call_ends_once_when_connection_closes() {
    let (mut scene, control) = scene();
    submit(&mut scene, Operation::Write, 6, 0x17);
    poll(&mut scene);
    assert_eq!((kept(&control), scene.done.len()), (1, 0));
    scene.io.close();
    let call = only(&mut scene);
    assert!(call.result.is_ok() && call.buf.is_some(), "{call:?}");
    assert!(scene.io.is_closed());
    assert_eq!(kept(&control), 0);
}
