//! Queue pairs that ended before their peer responded.

use std::sync::Arc;

use nvmeof_rdma::explain;

use crate::link::{Link, Room};
use crate::mailbox::Mailbox;
use crate::sys::{CmId, EventChannel};

/// An id with its queue pair and device, which cannot be destroyed without blocking. The
/// queue pair is stopped and all its buffers have returned.
#[derive(Debug)]
pub(crate) struct Retired {
    pub(crate) cm: CmId,
    pub(crate) link: Link,
    /// Mailbox of the provider, which is notified when the resources are free.
    pub(crate) mailbox: Arc<Mailbox>,
}

impl Retired {
    /// Destroys everything, which may block. Called in a thread for blocking calls.
    pub(crate) fn settle(self) {
        let Self {
            mut cm,
            link,
            mailbox,
        } = self;
        // librdmacm handles an event with the id's queue pair, in the thread that takes it.
        // No thread takes events from this channel.
        if let Err(error) = EventChannel::new().and_then(|unused| cm.migrate(&unused)) {
            let error = explain(&error);
            tracing::error!("cannot destroy an RDMA connection identifier, it is leaked: {error}");
            std::mem::forget((cm, link));
            return;
        }
        drop(cm);
        let room: Room = link.room;
        // Its memory is deregistered before its domain is destroyed.
        drop(link);
        mailbox.destroyed(room);
    }
}
