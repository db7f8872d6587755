//! Connection requests: accepted when the core agrees and there is room.

use std::time::Duration;

use nvmeof_memory::Buf;
use nvmeof_rdma::{ConnectRequest, PostError, PrivateData, QpConfig};
use nvmeof_target_core::{Queue as Core, Refusal, Target};
use nvmeof_wire::cm::Accept;
use zerocopy::IntoBytes;

use super::Reactor;
use crate::queue::{Edge, SENDS_PER_COMMAND};
use crate::storage::Storage;

/// RDMA Reads that one queue pair has in flight at most.
const READS: u32 = 32;

impl<S: Storage> Reactor<S> {
    /// A peer asks for a connection.
    pub(super) fn accept(&mut self, provider: usize, request: &ConnectRequest, now: Duration) {
        let refusal = match self.admit(request, now) {
            Ok((core, capsules, accept)) => {
                return self.establish(provider, request, core, capsules, accept);
            }
            Err(refusal) => refusal,
        };
        if let Some(left_out) = self.connect_log.ask(now) {
            let peer = request.peer;
            tracing::warn!(%peer, left_out, "connection rejected: {refusal}");
        }
        let told = PrivateData::new(refusal.reject.as_bytes()).unwrap_or_default();
        if let Some(provider) = self.providers.get_mut(provider) {
            // It fails when the peer is gone already.
            let _ = provider.reject(request.qp, &told);
        }
    }

    /// Everything that can be refused, before anything is promised.
    fn admit(
        &self,
        request: &ConnectRequest,
        now: Duration,
    ) -> Result<(Core, Vec<Buf>, Accept), Refusal> {
        if !self.stage.accepts() {
            return Err(Target::no_room("the target is about to stop".to_owned()));
        }
        let (core, accept) = self.target.queue(&request.private_data, now)?;
        let entries = usize::from(core.entries());
        let capsules: Vec<Buf> = (0..entries).map_while(|_| self.capsules.take()).collect();
        if capsules.len() < entries {
            let free = capsules.len();
            return Err(Target::no_room(format!(
                "{free} of the {entries} capsule buffers it needs are free; \
                 raise reactor.buffer_memory"
            )));
        }
        Ok((core, capsules, accept))
    }

    fn establish(
        &mut self,
        provider: usize,
        request: &ConnectRequest,
        core: Core,
        capsules: Vec<Buf>,
        accept: Accept,
    ) {
        let entries = u32::from(core.entries());
        let Some(at) = self.providers.get_mut(provider) else {
            return;
        };
        let limits = at.limits();
        let config = QpConfig {
            recvs: entries,
            sends: entries * SENDS_PER_COMMAND,
            reads_out: entries.min(READS).min(limits.max_reads),
            // A host has nothing to read from us; 0 is not allowed.
            reads_in: 1,
        };
        let (qp, peer, capsule_len) = (request.qp, request.peer, self.capsule_len);
        let queue = core.qid();
        let place = self
            .queues
            .insert(|place| Edge::new(place, qp, provider, peer, core, capsule_len));
        let edge = place.and_then(|place| self.queues.get(place));
        let Some(edge) = edge else {
            let _ = at.reject(qp, &PrivateData::empty());
            return;
        };
        let private_data = PrivateData::new(accept.as_bytes()).unwrap_or_default();
        let accepted = at.prepare(qp, &config).and_then(|()| {
            for buf in capsules {
                edge.post_recv(buf, &mut **at)?;
            }
            at.accept(qp, &private_data)
        });
        match accepted {
            Ok(()) => {
                tracing::debug!(%peer, queue, entries, "connection accepted");
                self.news |= nvmeof_target_core::News::DEADLINE;
            }
            Err(why) => {
                if why != PostError::Closed {
                    tracing::warn!(%peer, queue, "connection rejected: {why}");
                    let refusal = Target::no_room(why.to_string());
                    let told = PrivateData::new(refusal.reject.as_bytes()).unwrap_or_default();
                    let _ = at.reject(qp, &told);
                }
                self.queues.remove(provider, qp);
            }
        }
    }
}
