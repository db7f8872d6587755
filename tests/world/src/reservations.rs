//! The reservations that a correct target may have, and what hosts may do by them.
//!
//! What the target saves is in force when the save has ended. Each saved state must be explained
//! by requests in progress, applied in some order to the state before: see [`Hypothesis`]. A
//! request that was acknowledged must be among them. One whose response was lost may be.
//!
//! An operation may succeed if its host was allowed at some time while it was in progress, and may
//! end with Reservation Conflict if it was denied at some time. Once a command that excludes a
//! host is acknowledged, writes of this host take no effect: see [`Oracle::exclude`].

mod model;

use std::collections::{BTreeMap, BTreeSet};

use nvmeof_initiator_core::ReservationReport;
use nvmeof_target_core::SettingsSave;

use crate::oracle::{OpId, Oracle, Wrong};
pub(crate) use model::{Access, Held, Refusal, Request, State};

/// Knows the reservations of all namespaces.
#[derive(Debug)]
pub(crate) struct Reservations {
    namespaces: Vec<Namespace>,
}

#[derive(Debug)]
struct Namespace {
    hosts: usize,
    /// The states that were in force, and since when. Never empty; the last one is in force.
    past: Vec<(u64, State)>,
    /// Requests that may still be applied, or have no response.
    sent: BTreeMap<OpId, Sent>,
    /// Never empty.
    hypotheses: BTreeSet<Hypothesis>,
    /// When a save failed last.
    failed: u64,
}

/// A request in progress.
#[derive(Debug)]
struct Sent {
    request: Request,
    /// Its response was lost.
    is_lost: bool,
    /// The target crashed: it is not applied any more.
    is_over: bool,
    /// Whether it is part of the save in progress, if at all.
    in_save: bool,
    /// Whether it may be refused with these.
    conflict: bool,
    field: bool,
    /// Whether it changed nothing of what was in force: then it may be granted without a save.
    same: bool,
}

/// Requests that may have been applied, and have no response.
type Hypothesis = BTreeMap<OpId, Applied>;

/// A request that was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Applied {
    /// When it came in force.
    at: u64,
    /// Hosts that could write before and not afterwards, as bits.
    excludes: u32,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    Refused(Refusal),
    /// The save failed.
    NotSaved,
    /// The namespace could not be accessed.
    NotReached,
    Lost,
}

/// What a host could do during an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rights {
    /// Whether it was allowed at some time.
    pub(crate) granted: bool,
    /// Whether it was denied at some time.
    pub(crate) denied: bool,
}

impl Rights {
    /// No reservations.
    pub(crate) const ALL: Self = Self {
        granted: true,
        denied: false,
    };
}

impl Reservations {
    pub(crate) fn new(namespaces: usize, hosts: usize) -> Self {
        let namespace = || Namespace {
            hosts,
            past: vec![(0, State::default())],
            sent: BTreeMap::new(),
            hypotheses: BTreeSet::from([Hypothesis::new()]),
            failed: 0,
        };
        Self {
            namespaces: (0..namespaces).map(|_| namespace()).collect(),
        }
    }

    /// What is in force.
    pub(crate) fn present(&self, ns: usize) -> &State {
        self.namespaces[ns].present()
    }

    /// Requests that may still be applied.
    pub(crate) fn outstanding(&self, ns: usize) -> usize {
        self.namespaces[ns].sent.len()
    }

    /// Request `id` is sent.
    pub(crate) fn begin(&mut self, ns: usize, id: OpId, request: Request) {
        let sent = Sent {
            request,
            is_lost: false,
            is_over: false,
            in_save: false,
            conflict: false,
            field: false,
            same: false,
        };
        self.namespaces[ns].sent.insert(id, sent);
        self.namespaces[ns].note_refusals();
    }

    /// Request `id` ended.
    pub(crate) fn end(
        &mut self,
        (ns, id): (usize, OpId),
        answer: Answer,
        oracle: &mut Oracle,
    ) -> Result<(), Wrong> {
        let namespace = &mut self.namespaces[ns];
        let Some(sent) = namespace.sent.get_mut(&id) else {
            return Err(Wrong(format!("request {id} completed twice")));
        };
        let is_fine = match answer {
            Answer::Lost if !sent.is_over => {
                sent.is_lost = true;
                return Ok(());
            }
            Answer::Lost | Answer::NotReached => true,
            Answer::Refused(Refusal::Conflict) => sent.conflict,
            Answer::Refused(Refusal::Field) => sent.field,
            Answer::NotSaved => namespace.failed > id,
            Answer::Done => return namespace.acknowledge((ns, id), oracle),
        };
        let request = sent.request;
        if answer != Answer::Lost {
            namespace.hypotheses.retain(|one| !one.contains_key(&id));
        }
        namespace.remove(id);
        if !is_fine || namespace.hypotheses.is_empty() {
            return Err(Wrong(format!(
                "request {id}, {request:?}, ended with {answer:?}, which no order of requests \
                 explains; in force is {:?}",
                namespace.present()
            )));
        }
        Ok(())
    }

    /// What `host` could do with `ns` since operation `since` began.
    pub(crate) fn rights(&self, ns: usize, host: usize, access: Access, since: OpId) -> Rights {
        let states = || self.namespaces[ns].since(since);
        Rights {
            granted: states().any(|state| state.allows(host, access)),
            denied: states().any(|state| !state.allows(host, access)),
        }
    }

    /// Command `id` returned this report.
    pub(crate) fn reported(
        &self,
        ns: usize,
        id: OpId,
        report: &ReservationReport,
    ) -> Result<(), Wrong> {
        let mut states = self.namespaces[ns].since(id);
        if states.any(|state| state.is_reported(report)) {
            return Ok(());
        }
        Err(Wrong(format!(
            "{report:?} of disk {ns}, but since then in force are {:?}",
            self.namespaces[ns].since(id).collect::<Vec<_>>()
        )))
    }
}

impl Reservations {
    /// The target has taken the changes of a namespace to save.
    pub(crate) fn save_begins(&mut self, nsid: u32) {
        let namespace = &mut self.namespaces[index(nsid)];
        namespace
            .sent
            .values_mut()
            .for_each(|sent| sent.in_save = true);
    }

    /// It saved these, which are in force from now on.
    pub(crate) fn saved(&mut self, save: &SettingsSave, oracle: &mut Oracle) -> Result<(), Wrong> {
        let (now, ns) = (oracle.tick(), index(save.nsid()));
        let namespace = &mut self.namespaces[ns];
        let state = match &save.settings().reservations[..] {
            [] => State::default(),
            [saved] if saved.nsid == save.nsid() => State::of_saved(saved)
                .ok_or_else(|| Wrong(format!("the target saved {saved:?}")))?,
            others => return Err(Wrong(format!("disk {ns}: the target saved {others:?}"))),
        };
        namespace.explain(&state, now).map_err(|Wrong(what)| {
            Wrong(format!("disk {ns}: the target saved {state:?}, {what}"))
        })?;
        for host in namespace.put_in_force(state, now) {
            oracle.allow(ns, host);
        }
        namespace.save_is_over();
        Ok(())
    }

    /// A save failed: nothing that depends on it is applied.
    pub(crate) fn save_failed(&mut self, save: &SettingsSave, oracle: &mut Oracle) {
        let namespace = &mut self.namespaces[index(save.nsid())];
        namespace.failed = oracle.tick();
        namespace.save_is_over();
    }

    /// The target lost power. It restores what was saved.
    pub(crate) fn crash(&mut self, oracle: &mut Oracle) {
        let now = oracle.tick();
        for namespace in &mut self.namespaces {
            let state = namespace.present().after_power_loss();
            // Nothing that was sent before takes effect any more.
            let _ = namespace.put_in_force(state, now);
            for sent in namespace.sent.values_mut() {
                sent.is_over = true;
                sent.in_save = false;
            }
            namespace.forget_lost();
        }
    }

    /// The target has no more requests without a response, nor do saves have them.
    pub(crate) fn settle(&mut self) {
        for namespace in &mut self.namespaces {
            namespace.forget_lost();
        }
    }

    /// Whether there are requests without a response.
    pub(crate) fn is_unsettled(&self) -> bool {
        let mut sent = self.namespaces.iter().flat_map(|one| one.sent.values());
        sent.any(|sent| sent.is_lost)
    }
}

/// The index of a namespace.
fn index(nsid: u32) -> usize {
    usize::try_from(nsid - 1).unwrap()
}

impl Namespace {
    fn save_is_over(&mut self) {
        self.sent.values_mut().for_each(|sent| sent.in_save = false);
        self.note_refusals();
    }

    fn present(&self) -> &State {
        &self.past[self.past.len() - 1].1
    }

    /// What was in force since then.
    fn since(&self, since: u64) -> impl Iterator<Item = &State> {
        let later = self.past.partition_point(|(at, _)| *at <= since);
        self.past[later.max(1) - 1..].iter().map(|(_, state)| state)
    }

    /// Returns the hosts that may write again.
    fn put_in_force(&mut self, state: State, now: u64) -> Vec<usize> {
        let (before, hosts) = (self.present(), 0..self.hosts);
        let gains = |host: &usize| !writes(before, *host) && writes(&state, *host);
        let gain = hosts.filter(gains).collect();
        if *before != state {
            self.past.push((now, state));
        }
        gain
    }

    /// Success of request `id`: it is in force, and what it excludes has ended.
    fn acknowledge(&mut self, (ns, id): (usize, OpId), oracle: &mut Oracle) -> Result<(), Wrong> {
        let is_saved = self.hypotheses.iter().any(|one| one.contains_key(&id));
        if !is_saved && self.sent.get(&id).is_some_and(|sent| sent.same) {
            self.remove(id);
            return Ok(());
        }
        self.hypotheses.retain(|one| one.contains_key(&id));
        let applied: Vec<Applied> = self.hypotheses.iter().map(|one| one[&id]).collect();
        let sent = self.remove(id);
        let Some(since) = applied.iter().map(|one| one.at).min() else {
            return Err(Wrong(format!(
                "request {id}, {sent:?}, was acknowledged, but no save explains that; in force is \
                 {:?}",
                self.present()
            )));
        };
        if sent.is_some_and(|sent| sent.is_over) {
            return Ok(());
        }
        let excludes = applied.iter().fold(u32::MAX, |all, one| all & one.excludes);
        for host in (0..self.hosts).filter(|host| excludes & (1 << host) != 0) {
            if self.since(since).all(|state| !writes(state, host)) {
                oracle.exclude(ns, host);
            }
        }
        Ok(())
    }

    fn remove(&mut self, id: OpId) -> Option<Sent> {
        let without = |mut one: Hypothesis| {
            one.remove(&id);
            one
        };
        let all = std::mem::take(&mut self.hypotheses);
        self.hypotheses = all.into_iter().map(without).collect();
        self.sent.remove(&id)
    }

    fn forget_lost(&mut self) {
        let lost = self.sent.iter().filter(|(_, sent)| sent.is_lost);
        for id in lost.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.remove(id);
        }
    }

    /// All states that requests of `ids` lead to, in any order, with those that were applied.
    fn reachable(&self, ids: &[OpId], now: u64) -> BTreeSet<(State, Hypothesis)> {
        let first = (self.present().clone(), Hypothesis::new());
        let mut all = BTreeSet::from([first.clone()]);
        let mut next = vec![first];
        while let Some((state, applied)) = next.pop() {
            for id in ids.iter().filter(|id| !applied.contains_key(id)) {
                let Ok(after) = state.after(&self.sent[id].request) else {
                    continue;
                };
                let excludes = (0..self.hosts)
                    .filter(|host| writes(&state, *host) && !writes(&after, *host))
                    .fold(0, |all, host| all | 1 << host);
                let mut applied = applied.clone();
                applied.insert(*id, Applied { at: now, excludes });
                let one = (after, applied);
                if all.insert(one.clone()) {
                    next.push(one);
                }
            }
        }
        all
    }

    /// Checks that requests of the save lead to `state`.
    fn explain(&mut self, state: &State, now: u64) -> Result<(), Wrong> {
        let in_save = self.sent.iter().filter(|(_, sent)| sent.in_save);
        let in_save: Vec<OpId> = in_save.map(|(id, _)| *id).collect();
        let reachable = self.reachable(&in_save, now);
        let fitting: Vec<_> = reachable.iter().filter(|(it, _)| it == state).collect();
        let mut hypotheses = BTreeSet::new();
        for one in &self.hypotheses {
            for (_, applied) in &fitting {
                if applied.keys().all(|id| !one.contains_key(id)) {
                    let both = one.iter().chain(applied.iter());
                    hypotheses.insert(both.map(|(id, it)| (*id, *it)).collect());
                }
            }
        }
        if hypotheses.is_empty() {
            return Err(Wrong(format!(
                "but {:?} was in force, and no order of {:?} explains that: {:?}",
                self.present(),
                self.sent,
                self.hypotheses
            )));
        }
        self.hypotheses = hypotheses;
        Ok(())
    }

    /// Notes which requests may be refused: each is checked against what requests before it lead
    /// to, saved or not.
    fn note_refusals(&mut self) {
        let ids = self.sent.iter().filter(|(_, sent)| !sent.is_over);
        let ids: Vec<OpId> = ids.map(|(id, _)| *id).collect();
        let present = self.present().clone();
        for sent in self.sent.values_mut() {
            sent.same |= present.after(&sent.request).as_ref() == Ok(&present);
        }
        for (state, applied) in self.reachable(&ids, 0) {
            for id in ids.iter().filter(|id| !applied.contains_key(id)) {
                let sent = self.sent.get_mut(id).unwrap();
                match state.after(&sent.request) {
                    Ok(_) => {}
                    Err(Refusal::Conflict) => sent.conflict = true,
                    Err(Refusal::Field) => sent.field = true,
                }
            }
        }
    }
}

fn writes(state: &State, host: usize) -> bool {
    state.allows(host, Access::Write)
}
