//! A snapshot of a queue pair, for monitoring.

use super::QueuePair;
use crate::snapshot::{Member, QueueSnapshot};

impl QueuePair {
    /// Its present state.
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
