//! A provider that is watched: no buffer returns while a device may still write to it.

use std::time::Duration;

use nvmeof_memory::Buf;
use nvmeof_rdma::{Event, ExposeError, Provider, RemoteKey};
use nvmeof_verbs_standin::writer_of;

/// A provider over stand-in devices. It panics when a buffer returns too early.
#[derive(Debug)]
pub(super) struct Watched<P> {
    pub(super) inner: P,
}

/// Asserts that no device may write to a buffer that returned.
fn assert_free(buf: &Buf, how: &str) {
    if let Some(writer) = writer_of(buf.addr(), buf.len()) {
        panic!("a buffer returned by {how} may still be written by {writer}");
    }
}

impl<P: Provider> Provider for Watched<P> {
    nvmeof_rdma_layers::forward!(inner: limits name register listen unlisten connect set_owner
        local_addr peer_may_invalidate peer_works_in_place map_remote prepare accept reject
        post_recv share_receives post_shared_recv post expose disconnect abort progress
        submit wait_fd next_deadline rest);

    fn poll(&mut self, now: Duration, events: &mut Vec<Event>) -> bool {
        let known = events.len();
        let progress = self.inner.poll(now, events);
        for event in events.iter().skip(known) {
            match event {
                Event::Received(received) => assert_free(&received.buf, "a receive"),
                Event::Completion(done) => {
                    done.buf
                        .iter()
                        .for_each(|buf| assert_free(buf, "a completion"));
                }
                Event::Withdrawn { buf, .. } => assert_free(buf, "a withdrawal"),
                _ => {}
            }
        }
        progress
    }

    fn withdraw(&mut self, key: RemoteKey) -> Result<Option<Buf>, ExposeError> {
        let back = self.inner.withdraw(key)?;
        back.iter()
            .for_each(|buf| assert_free(buf, "its owner's call"));
        Ok(back)
    }
}
