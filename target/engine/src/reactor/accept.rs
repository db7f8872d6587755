//! Connection requests: accepted when the core agrees and there is room.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use nvmeof_backend::Storage;
use nvmeof_memory::Buf;
use nvmeof_rdma::{
    ACCEPT_PACE, Address, ConnectRequest, PostError, PrivateData, Provider, QpConfig, QpId, Whose,
};
use nvmeof_target_core::{Limit, PortQuotaGuard, Queue as Core, Refusal, Target};
use nvmeof_wire::cm::{Accept, Request as CmRequest};
use zerocopy::IntoBytes;

use super::sizes::ADMIN_CAPSULE;
use super::{LOOK_AFTER, Listening, Reactor};
use crate::peer_log::PeerLog;
use crate::queue::{FIRST, Link, QueuePair, SENDS_PER_COMMAND, Source};
use crate::tag::SlotId;
use nvmeof_target_address::port_address;

/// RDMA Reads that one queue pair has in flight at most.
const READS: u32 = 32;

/// Connection requests that wait for an answer, and the provider of each. There are at most
/// as many as the providers keep (`Limits::max_pending`).
#[derive(Debug, Default)]
pub(super) struct Requests {
    waiting: VecDeque<(usize, ConnectRequest)>,
    /// When the last one was answered.
    answered: Option<Duration>,
    /// When disk operations of commands completed last.
    served: Option<Duration>,
}

impl Requests {
    pub(super) fn push(&mut self, provider: usize, request: ConnectRequest) {
        self.waiting.push_back((provider, request));
    }

    /// The peer left.
    pub(super) fn forget(&mut self, provider: usize, qp: QpId) {
        let stays = |(at, request): &(usize, ConnectRequest)| (*at, request.qp) != (provider, qp);
        self.waiting.retain(stays);
    }

    /// Disk operations of commands completed.
    #[inline]
    pub(super) fn note_served(&mut self, now: Duration) {
        self.served = Some(now);
    }

    /// When the next one is to be answered: a while after the last one, or when no disk
    /// operation completed for as long.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let last = self.answered.zip(self.served);
        let at = last.map_or(Duration::ZERO, |(answered, served)| {
            answered.min(served) + ACCEPT_PACE
        });
        (!self.waiting.is_empty()).then_some(at)
    }
}

/// What an accepted connection begins with.
struct Admitted {
    /// Its place at its port.
    quota: PortQuotaGuard,
    core: Core,
    /// For its first receives.
    capsules: Vec<Buf>,
    /// What the host is told.
    accept: Accept,
}

impl<S: Storage> Reactor<S> {
    /// Answers connection requests that are due. Says whether any was.
    #[inline]
    pub(super) fn answer_requests(&mut self, now: Duration) -> bool {
        !self.requests.waiting.is_empty() && self.answer_due(now)
    }

    fn answer_due(&mut self, now: Duration) -> bool {
        // All are refused at once by a target that is about to stop.
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
        let told = PrivateData::new(refusal.reject.as_bytes()).unwrap_or_default();
        if let Some(provider) = self.providers.get_mut(provider) {
            // It fails when the peer is gone already.
            let _ = provider.reject(request.qp, &told);
        }
    }

    /// Everything that can be refused, before anything is promised.
    fn admit(
        &mut self,
        provider: usize,
        request: &ConnectRequest,
        now: Duration,
    ) -> Result<Admitted, Refusal> {
        if !self.stage.accepts() {
            return Err(Target::no_room("the target is about to stop".to_owned()));
        }
        if !self.detach.accepts() {
            return Err(Target::no_room("the target is drained".to_owned()));
        }
        // What shook hands before its port was removed is not let in after that.
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
        self.make_way(now)?;
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

    /// Connections that no host has a controller on yet are few: the oldest of
    /// the peer that has the most of them gives way to a new one.
    fn make_way(&mut self, now: Duration) -> Result<(), Refusal> {
        let most = usize::from(self.target.limits().unconnected);
        let queues = &mut self.queues;
        let mut open = Vec::new();
        self.unconnected.retain(|place| {
            let unconnected = queues
                .get(*place)
                .filter(|queue_pair| !queue_pair.is_connected());
            if unconnected
                .as_ref()
                .is_some_and(|queue_pair| !queue_pair.is_closing())
            {
                open.extend(
                    unconnected
                        .as_ref()
                        .map(|queue_pair| (*place, queue_pair.source())),
                );
            }
            unconnected.is_some()
        });
        // Those that are closing take their time with it.
        if self.unconnected.len() >= 2 * most {
            self.target.limit_counters().add(Limit::Unconnected);
            return Err(Target::no_room(format!(
                "{} connections without a Connect are closing",
                self.unconnected.len()
            )));
        }
        if open.len() >= most
            && let Some(queue) = oldest_of_most(&open)
        {
            self.target.limit_counters().add(Limit::Unconnected);
            self.with_queue(queue, now, |queue_pair, io| {
                let why = format!(
                    "more than {most} connections sent no Connect, and this is the oldest of \
                     the peer with the most of them (limits.unconnected)"
                );
                queue_pair.abandon(&why, io);
            });
        }
        Ok(())
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
        at.set_whose(request.qp, Whose::of_queue(queue));
        introduce(&mut core, &**at, request);
        let config = sizes_of(entries, request, at.limits().max_reads);
        let (qp, peer) = (request.qp, request.peer);
        let capsule_len = match queue {
            0 => ADMIN_CAPSULE,
            _ => usize::try_from(core.capsule_len()).unwrap_or(self.capsule_len),
        };
        let link = link_of(provider, request, capsule_len, config.reads_out);
        let place = self.add_queue(link, core, quota);
        let Some(at) = self.providers.get_mut(provider) else {
            return;
        };
        let Some(queue_pair) = place.and_then(|place| self.queues.get(place)) else {
            let _ = at.reject(qp, &PrivateData::empty());
            return;
        };
        let shared = &mut self.resources.shared;
        if most > 0
            && let Some(receives) = at.share_receives(qp, entries, most)
            && let Some(receives) = shared.join(provider, receives)
        {
            // Those are of one size, whichever port a queue came by.
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
                self.resources.poll_by(Some(now + LOOK_AFTER));
            }
            Err(why) => {
                turn_down(
                    &mut **at,
                    request,
                    &why,
                    &mut self.resources.connect_log,
                    now,
                );
                queue_pair.turn_away();
            }
        }
    }

    /// `None` when there are as many as places can name.
    fn add_queue(&mut self, link: Link, core: Core, quota: PortQuotaGuard) -> Option<SlotId> {
        let is_admin = core.qid() == 0;
        let make = |place| QueuePair::new(place, link, core, quota);
        let place = self.queues.insert(make)?;
        self.unconnected.push_back(place);
        if let Some((steering, member)) = self.steering.as_ref().filter(|_| is_admin) {
            self.queues.lighten(place, steering.lighten(*member));
        }
        Some(place)
    }

    /// Receives that queue number `queue` of a controller may share with
    /// others; 0: it gets its own.
    fn most_shared(&self, queue: u16) -> u32 {
        if queue == 0 {
            // Keep Alive must not wait for receives that commands hold as long
            // as disks are slow: its host would be taken for dead.
            return 0;
        }
        // Half of the capsules are left to queues of other devices.
        let capsules = u32::try_from(self.resources.capsules.count()).unwrap_or(u32::MAX);
        self.config.shared_receives.min(capsules / 2)
    }
}

/// Tells `core` by which addresses its connection came.
fn introduce(core: &mut Core, provider: &dyn Provider, request: &ConnectRequest) {
    match provider.local_addr(request.qp) {
        Some(Address::Ip(local)) => core.set_local(local.ip()),
        Some(Address::Unix(_)) => core.set_local_host(),
        None => {}
    }
    if core.qid() == 0 {
        core.set_peer(&request.peer.to_string());
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

/// What a queue of so many entries needs of its connection.
fn sizes_of(entries: u32, request: &ConnectRequest, max_reads: u32) -> QpConfig {
    QpConfig {
        recvs: entries,
        sends: entries * SENDS_PER_COMMAND,
        reads_out: entries.min(READS).min(max_reads).min(request.reads_out),
        // A host has nothing to read from us; 0 is not allowed.
        reads_in: 1,
        exposes: 0,
    }
}

/// Refuses a connection for which there is no room.
#[cold]
fn turn_down(
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
    let told = PrivateData::new(refusal.reject.as_bytes()).unwrap_or_default();
    if provider.reject(request.qp, &told).is_err() {
        provider.disconnect(request.qp);
    }
}

/// The oldest queue of the peer with the most of them: one that makes many does
/// not drive out those of others. Oldest first.
fn oldest_of_most(open: &[(SlotId, Source)]) -> Option<SlotId> {
    let mut counts: BTreeMap<&Source, usize> = BTreeMap::new();
    for (_, source) in open {
        *counts.entry(source).or_default() += 1;
    }
    let most = counts.values().copied().max()?;
    let mut oldest = open.iter();
    let oldest = oldest.find(|(_, source)| counts.get(source) == Some(&most));
    oldest.map(|(place, _)| *place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_with_the_most_gives_way() {
        let open = |sources: &[u8]| -> Vec<_> {
            let places = (0u16..).map(|index| SlotId {
                index,
                generation: 0,
            });
            let sources = sources.iter().map(|it| Source::Ip([10, 0, 0, *it].into()));
            places.zip(sources).collect()
        };
        let victim = |sources: &[u8]| oldest_of_most(&open(sources)).map(|place| place.index);
        assert_eq!(victim(&[1, 2, 3]), Some(0), "all alike: the oldest");
        assert_eq!(victim(&[1, 2, 3, 2]), Some(1));
        assert_eq!(victim(&[1, 1, 2, 2, 2]), Some(2));
        assert_eq!(victim(&[]), None);
    }
}
