//! Connection requests: accepted when the core agrees and there is room.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use nvmeof_backend::BackingStores;
use nvmeof_memory::Buf;
use nvmeof_rdma::{
    ACCEPT_PACE, Address, ConnectRequest, PostError, PrivateData, Provider, QpConfig, QpId, QpOwner,
};
use nvmeof_target_core::{Limit, PortQuotaGuard, Queue as Core, Refusal, Source, Target};
use nvmeof_wire::cm::{Accept, Request as CmRequest};
use zerocopy::IntoBytes;

use super::sizes::ADMIN_CAPSULE;
use super::{CHECK_INTERVAL, Listening, Reactor};
use crate::peer_log::PeerLog;
use crate::queue::{FIRST, Link, MOST_UNCONNECTED, QueuePair, SENDS_PER_COMMAND};
use crate::source::source_of;
use crate::tag::SlotId;
use nvmeof_target_address::port_address;

/// Maximum number of RDMA Reads that one queue pair has in flight.
const READS: u32 = 32;

/// Connection requests that wait for a response, and the provider of each. Their number
/// is bounded by the providers (`Limits::max_pending`).
#[derive(Debug, Default)]
pub(super) struct Requests {
    waiting: VecDeque<(usize, ConnectRequest)>,
    /// When the last response was sent.
    answered: Option<Duration>,
    /// When operations of backing stores completed last.
    served: Option<Duration>,
}

impl Requests {
    pub(super) fn push(&mut self, provider: usize, request: ConnectRequest) {
        self.waiting.push_back((provider, request));
    }

    /// The peer disconnected.
    pub(super) fn forget(&mut self, provider: usize, qp: QpId) {
        let stays = |(at, request): &(usize, ConnectRequest)| (*at, request.qp) != (provider, qp);
        self.waiting.retain(stays);
    }

    /// Operations of backing stores completed.
    #[inline]
    pub(super) fn note_served(&mut self, now: Duration) {
        self.served = Some(now);
    }

    /// When to respond to the next one: some time after the last one, or earlier if no
    /// operation completed for as long.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let last = self.answered.zip(self.served);
        let at = last.map_or(Duration::ZERO, |(answered, served)| {
            answered.min(served) + ACCEPT_PACE
        });
        (!self.waiting.is_empty()).then_some(at)
    }
}

/// A connection without a controller that is not closing.
struct Unconnected {
    id: SlotId,
    source: Source,
    /// Its queue identifier.
    qid: u16,
    /// Whether a controller of its peer lacks the queue, so that it does not count.
    is_expected: bool,
    /// Whether it waits for a computation, which the target owes it.
    awaits_worker: bool,
    /// When it was accepted, or its peer sent or fetched the last valid message.
    last_progress: Duration,
}

/// How many connections are expected for I/O queues that controllers lack, by source.
struct Awaited(BTreeMap<Source, usize>);

impl Awaited {
    /// Whether a connection is one of them, each of which counts once.
    fn take(&mut self, source: Source, qid: u16) -> bool {
        let left = self.0.get_mut(&source).filter(|left| **left > 0);
        let Some(left) = left.filter(|_| qid != 0) else {
            return false;
        };
        *left -= 1;
        true
    }
}

/// Resources of an accepted connection.
struct Admitted {
    /// Its slot in the quota of its port.
    quota: PortQuotaGuard,
    core: Core,
    /// For its first receives.
    capsules: Vec<Buf>,
    /// The private data of the response.
    accept: Accept,
}

impl<S: BackingStores> Reactor<S> {
    /// Responds to connection requests that are due. Returns whether there were any.
    #[inline]
    pub(super) fn respond_to_requests(&mut self, now: Duration) -> bool {
        !self.requests.waiting.is_empty() && self.respond_due(now)
    }

    fn respond_due(&mut self, now: Duration) -> bool {
        // A target that is shutting down rejects all of them at once.
        let accepts = self.stage.accepts() && self.detach.accepts();
        let mut any = false;
        while !accepts || self.requests.deadline().is_some_and(|at| now >= at) {
            let Some((provider, request)) = self.requests.waiting.pop_front() else {
                break;
            };
            self.requests.answered = Some(now);
            self.accept(provider, &request, now);
            any = true;
        }
        any
    }

    #[cfg(test)]
    pub(super) fn requests_waiting(&self) -> usize {
        self.requests.waiting.len()
    }

    fn accept(&mut self, provider: usize, request: &ConnectRequest, now: Duration) {
        let refusal = match self.admit(provider, request, now) {
            Ok(admitted) => return self.establish(provider, request, admitted, now),
            Err(refusal) => refusal,
        };
        self.counters.rejected();
        if let Some(left_out) = self.resources.connect_log.ask(request.peer, now) {
            let peer = request.peer;
            let asked = CmRequest::parse(&request.private_data).ok();
            let queue = asked.map(|asked| asked.qid.get());
            tracing::warn!(%peer, queue, left_out, "connection rejected: {refusal}");
        }
        let private_data = PrivateData::new(refusal.reject.as_bytes()).unwrap_or_default();
        if let Some(provider) = self.providers.get_mut(provider) {
            // It fails if the peer is gone already.
            let _ = provider.reject(request.qp, &private_data);
        }
    }

    /// All checks, before any resource is committed.
    fn admit(
        &mut self,
        provider: usize,
        request: &ConnectRequest,
        now: Duration,
    ) -> Result<Admitted, Refusal> {
        if !self.stage.accepts() {
            return Err(Target::no_room("the target is shutting down".to_owned()));
        }
        if !self.detach.accepts() {
            return Err(Target::no_room("the target is drained".to_owned()));
        }
        // A handshake may have begun before its port was removed.
        let its = |one: &&Listening| (one.provider, one.listener) == (provider, request.listener);
        let port = self.listeners.iter().find(its).map(|one| one.address);
        let port = port.ok_or_else(|| Target::no_room("its port was removed".to_owned()))?;
        let (mut core, accept) = self.target.queue(&request.private_data, now)?;
        core.set_port(port_address(port));
        core.set_home(self.number);
        if request.reads_out == 0 {
            return Err(Target::no_reads());
        }
        let quota = self.target.port_quota(&port.to_string())?;
        self.limit_unconnected((source_of(request.peer), core.qid()), now)?;
        let pool = match core.qid() {
            0 => &self.resources.admin_capsules,
            _ => &self.resources.capsules,
        };
        let first = usize::from(FIRST);
        let free = pool.available();
        let mut capsules = Vec::new();
        if free >= first {
            capsules.extend((0..first).map_while(|_| pool.take()));
        }
        if capsules.len() < first {
            self.target.limit_counters().add(Limit::Capsules);
            return Err(Target::no_room(format!(
                "{free} of the {first} capsule buffers a connection needs at first are free; \
                 raise reactor.buffer_memory"
            )));
        }
        Ok(Admitted {
            quota,
            core,
            capsules,
            accept,
        })
    }

    /// Limits connections without a controller for a new one of `(source, qid)`: at the limit, a
    /// connection of the peer with the most of them is closed. It is the one that made no progress
    /// for longest, and one that waits for a worker only if all of the peer do.
    ///
    /// Those for I/O queues that controllers of their peers lack have a limit of their own, twice
    /// as high: a host may open the connections of all its queues before the first Connect, and
    /// when a target starts, all hosts do at once.
    fn limit_unconnected(&mut self, new: (Source, u16), now: Duration) -> Result<(), Refusal> {
        let most = usize::from(self.target.limits().unconnected);
        let mut open = self.open_unconnected();
        let all = self.unconnected.len();
        if all < most {
            return Ok(());
        }
        let mut awaited = Awaited(self.target.awaited_queues());
        for one in &mut open {
            one.is_expected = awaited.take(one.source, one.qid);
        }
        let is_expected = awaited.take(new.0, new.1);
        // Closing takes some time.
        let closing = all - open.len();
        let others = open.iter().filter(|one| !one.is_expected).count();
        if all >= MOST_UNCONNECTED * most || others.min(most) + closing >= 2 * most {
            self.target.limit_counters().add(Limit::Unconnected);
            return Err(Target::no_room(format!(
                "{closing} connections without a controller are closing"
            )));
        }
        // Also of the other kind: some may have become such when controllers left.
        for (kind, places) in [(false, most), (true, 2 * most)] {
            let mut its: Vec<_> = open.extract_if(.., |one| one.is_expected == kind).collect();
            let free_places = places - usize::from(kind == is_expected);
            while its.len() > free_places
                && let Some(id) = idlest_of_most(&its)
            {
                its.retain(|one| one.id != id);
                self.replace(id, now);
            }
        }
        Ok(())
    }

    /// Connections without a controller that are not closing. Forgets those that have one or are
    /// closed.
    fn open_unconnected(&mut self) -> Vec<Unconnected> {
        let queues = &mut self.queues;
        let mut open = Vec::new();
        self.unconnected.retain(|id| {
            let Some(queue_pair) = queues.get(*id) else {
                return false;
            };
            if !queue_pair.is_connected() && !queue_pair.is_closing() {
                open.push(Unconnected {
                    id: *id,
                    source: queue_pair.source(),
                    qid: queue_pair.qid(),
                    is_expected: false,
                    awaits_worker: queue_pair.awaits_worker(),
                    last_progress: queue_pair.last_progress(),
                });
            }
            queue_pair.is_unconnected()
        });
        open
    }

    /// Closes a connection without a controller for a new one.
    fn replace(&mut self, queue: SlotId, now: Duration) {
        self.target.limit_counters().add(Limit::Unconnected);
        let most = self.target.limits().unconnected;
        self.with_queue(queue, now, |queue_pair, io| {
            let why = format!(
                "more than {most} connections have no controller, and this one of the peer with \
                 the most of them is idle for longest (limits.unconnected)"
            );
            queue_pair.abandon(&why, io);
        });
    }

    fn establish(
        &mut self,
        provider: usize,
        request: &ConnectRequest,
        admitted: Admitted,
        now: Duration,
    ) {
        let Admitted {
            quota,
            mut core,
            capsules,
            accept,
        } = admitted;
        let (queue, entries) = (core.qid(), u32::from(core.entries()));
        let most = self.most_shared(queue);
        core.count_in(&self.counters.reactor_metrics);
        let Some(at) = self.providers.get_mut(provider) else {
            return;
        };
        at.set_owner(request.qp, QpOwner::of_queue(queue));
        set_addresses(&mut core, &**at, request);
        let config = sizes_of(entries, request, at.limits().max_reads);
        let (qp, peer) = (request.qp, request.peer);
        let capsule_len = match queue {
            0 => ADMIN_CAPSULE,
            _ => usize::try_from(core.capsule_len()).unwrap_or(self.capsule_len),
        };
        let link = link_of(provider, request, capsule_len, config.reads_out);
        let id = self.add_queue(link, core, quota);
        let Some(at) = self.providers.get_mut(provider) else {
            return;
        };
        let Some(queue_pair) = id.and_then(|id| self.queues.get(id)) else {
            let _ = at.reject(qp, &PrivateData::empty());
            return;
        };
        let shared = &mut self.resources.shared;
        if most > 0
            && let Some(receives) = at.share_receives(qp, entries, most)
            && let Some(receives) = shared.join(provider, receives)
        {
            // Shared receives have one size, whichever port a queue uses.
            queue_pair.share(receives, self.capsule_len, shared);
        }
        let accepted = at.prepare(qp, &config).and_then(|()| {
            for buf in capsules {
                queue_pair.post_recv(buf, &mut **at, shared)?;
            }
            at.accept(qp, &PrivateData::new(accept.as_bytes()).unwrap_or_default())
        });
        match accepted {
            Ok(()) => {
                self.counters.accepted();
                tracing::debug!(%peer, queue, entries, "connection accepted");
                self.resources.poll_by(queue_pair.next_deadline());
                self.resources.poll_by(Some(now + CHECK_INTERVAL));
            }
            Err(why) => {
                reject_request(
                    &mut **at,
                    request,
                    &why,
                    &mut self.resources.connect_log,
                    now,
                );
                queue_pair.mark_rejected();
            }
        }
    }

    /// `None` if all slots are used.
    fn add_queue(&mut self, link: Link, core: Core, quota: PortQuotaGuard) -> Option<SlotId> {
        let is_admin = core.qid() == 0;
        let make = |id| QueuePair::new(id, link, core, quota);
        let id = self.queues.insert(make)?;
        self.unconnected.push_back(id);
        if let Some((steering, member)) = self.steering.as_ref().filter(|_| is_admin) {
            self.queues.lighten(id, steering.lighten(*member));
        }
        Some(id)
    }

    /// Receives that queue number `queue` of a controller may share with others; 0: it
    /// gets its own.
    fn most_shared(&self, queue: u16) -> u32 {
        if queue == 0 {
            // Keep Alive must not wait for receives that commands hold while backing
            // stores are slow: its host would be considered dead.
            return 0;
        }
        // Half of the capsules are left to queues of other devices.
        let capsules = u32::try_from(self.resources.capsules.count()).unwrap_or(u32::MAX);
        self.config.shared_receives.min(capsules / 2)
    }
}

/// Sets the addresses of the connection in `core`.
fn set_addresses(core: &mut Core, provider: &dyn Provider, request: &ConnectRequest) {
    match provider.local_addr(request.qp) {
        Some(Address::Ip(local)) => core.set_local(local.ip()),
        Some(Address::Unix(_)) => core.set_local_host(),
        None => {}
    }
    if core.qid() == 0 {
        core.set_peer(&request.peer.to_string(), source_of(request.peer));
    }
}

fn link_of(provider: usize, request: &ConnectRequest, capsule_len: usize, reads: u32) -> Link {
    Link {
        qp: request.qp,
        provider,
        listener: request.listener,
        peer: request.peer,
        capsule_len,
        reads,
    }
}

/// Sizes of the connection for a queue with `entries` entries.
fn sizes_of(entries: u32, request: &ConnectRequest, max_reads: u32) -> QpConfig {
    QpConfig {
        recvs: entries,
        sends: entries * SENDS_PER_COMMAND,
        reads_out: entries.min(READS).min(max_reads).min(request.reads_out),
        // A host has nothing to read from the target; 0 is not allowed.
        reads_in: 1,
        exposes: 0,
        trusts_peer: false,
    }
}

/// Rejects a connection for lack of resources.
#[cold]
fn reject_request(
    provider: &mut dyn Provider,
    request: &ConnectRequest,
    why: &PostError,
    log: &mut PeerLog,
    now: Duration,
) {
    if *why == PostError::Closed {
        return;
    }
    let peer = request.peer;
    if let Some(left_out) = log.ask(peer, now) {
        tracing::warn!(%peer, left_out, "connection rejected: {why}");
    }
    let refusal = Target::no_room(why.to_string());
    let private_data = PrivateData::new(refusal.reject.as_bytes()).unwrap_or_default();
    if provider.reject(request.qp, &private_data).is_err() {
        provider.disconnect(request.qp);
    }
}

/// The queue that made no progress for longest, of the peer with the most of them: a peer with
/// many does not displace those of others. Queues that wait for a worker come last, because
/// their peers cannot do anything.
fn idlest_of_most(open: &[Unconnected]) -> Option<SlotId> {
    let mut counts: BTreeMap<Source, usize> = BTreeMap::new();
    for one in open {
        *counts.entry(one.source).or_default() += 1;
    }
    let most = counts.values().copied().max()?;
    let its = open
        .iter()
        .filter(|one| counts.get(&one.source) == Some(&most));
    // The first of equal ones: the oldest.
    let idlest = its.min_by_key(|one| (one.awaits_worker, one.last_progress));
    idlest.map(|one| one.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections by peer, whether each waits for a worker, and the second of its last progress.
    fn open(all: &[(u8, bool, u64)]) -> Vec<Unconnected> {
        let ids = (0u16..).map(|index| SlotId {
            index,
            generation: 0,
        });
        let all = all
            .iter()
            .zip(ids)
            .map(|((peer, awaits_worker, at), id)| Unconnected {
                id,
                source: Source::Ip([10, 0, 0, *peer].into()),
                qid: 0,
                is_expected: false,
                awaits_worker: *awaits_worker,
                last_progress: Duration::from_secs(*at),
            });
        all.collect()
    }

    fn victim(all: &[(u8, bool, u64)]) -> Option<u16> {
        idlest_of_most(&open(all)).map(|id| id.index)
    }

    #[test]
    fn oldest_connection_of_the_largest_peer_is_replaced() {
        let victim = |sources: &[u8]| {
            let all: Vec<_> = sources.iter().map(|source| (*source, false, 0)).collect();
            victim(&all)
        };
        assert_eq!(victim(&[1, 2, 3]), Some(0), "all alike: the oldest");
        assert_eq!(victim(&[1, 2, 3, 2]), Some(1));
        assert_eq!(victim(&[1, 1, 2, 2, 2]), Some(2));
        assert_eq!(victim(&[]), None);
    }

    #[test]
    fn connection_without_progress_is_replaced_before_an_older_one() {
        assert_eq!(
            victim(&[(1, false, 9), (2, false, 3), (3, false, 5)]),
            Some(1)
        );
        assert_eq!(
            victim(&[(1, false, 9), (1, false, 8), (2, false, 3)]),
            Some(1),
            "only of the peer with the most"
        );
    }

    #[test]
    fn connection_that_waits_for_a_worker_is_replaced_last() {
        assert_eq!(
            victim(&[(1, true, 1), (2, false, 3), (3, false, 5)]),
            Some(1)
        );
        assert_eq!(victim(&[(1, true, 2), (2, true, 1)]), Some(1), "all do");
    }
}
