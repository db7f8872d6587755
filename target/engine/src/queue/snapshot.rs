//! What a queue pair looks like at one moment, to whoever watches the target.

use super::QueuePair;
use crate::snapshot::{Member, QueueSnapshot};

impl QueuePair {
    /// How it is now.
    pub(crate) fn snapshot(&self) -> QueueSnapshot {
        let member = self
            .core
            .association()
            .map(|(host, subsystem, cntlid)| Member {
                host: host.to_owned(),
                subsystem: subsystem.to_owned(),
                cntlid,
            });
        QueueSnapshot {
            provider: self.link.provider,
            peer: self.link.peer,
            queue: self.core.qid(),
            entries: self.core.entries(),
            member,
            commands: self.slots.in_use(),
            namespaces: self.slots.namespaces(),
        }
    }
}
