//! What is left of a queue pair that ended before its peer answered.

use std::sync::Arc;

use nvmeof_rdma::explain;

use crate::link::{Link, Room};
use crate::mailbox::Mailbox;
use crate::sys::{CmId, EventChannel};

/// An id with its queue pair and device, which cannot be destroyed without
/// waiting. The queue pair is stopped, so all buffers are back already.
#[derive(Debug)]
pub(crate) struct Retired {
    pub(crate) cm: CmId,
    pub(crate) link: Link,
    /// Of the provider, which is told when its room is free.
    pub(crate) mailbox: Arc<Mailbox>,
}

impl Retired {
    /// Destroys everything, which may wait. In a thread for that.
    pub(crate) fn settle(self) {
        let Self {
            mut cm,
            link,
            mailbox,
        } = self;
        // librdmacm handles an event with the id's queue pair, in the thread
        // that takes it. From this channel nobody takes events.
        if let Err(error) = EventChannel::new().and_then(|nobody| cm.migrate(&nobody)) {
            let error = explain(&error);
            tracing::error!("cannot destroy an RDMA connection identifier, it is leaked: {error}");
            std::mem::forget((cm, link));
            return;
        }
        drop(cm);
        let room: Room = link.room;
        // Its memory is deregistered before its domain goes.
        drop(link);
        mailbox.settled(room);
    }
}
