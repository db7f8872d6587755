//! One group on one gateway: its images, from the fence to their close, and its changes of the
//! record.
//!
//! ```text
//!          Fence              recorded: Open              Serve, StopServing
//!   Idle ─────────► Fencing ─► Fenced ─► Opening ─► Open ◄────────────────► Serving
//!    ▲                           │          │        │
//!    └────── Closed ◄─ Closing ◄─┴──────────┴────────┘ Close
//! ```
//! [`GroupState::action`] compares the state of the images with the record, and
//! [`GroupState::change`] changes the record. The second one changes nothing here: a write may
//! fail, or take effect late.

use std::time::Duration;

use crate::action::{Action, Number};
use crate::candidates::{exclusion, failures, ranked, vacancy};
use crate::config::{Failback, GroupConfig, Timing};
use crate::record::{
    Change, Failure, Group, MAX_CLIENTS, Owner, Phase, Wish, WishReason, is_text, shortened,
};
use crate::view::View;

/// Failed attempts before a gateway gives a group up for the first time. Doubles each time, so
/// that a group that no gateway can serve does not alternate between them.
const ATTEMPTS: u32 = 4;
/// Number of times that [`ATTEMPTS`] doubles, at most.
const MOST_DOUBLINGS: u32 = 5;

/// The images of a group on this gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Images {
    /// No client, no image.
    Idle,
    /// Clients connect and the fence is in progress.
    Fencing { call: Call, fenced: Vec<String> },
    /// Clients are connected, and have opened nothing.
    Fenced {
        clients: Vec<String>,
        fenced: Vec<String>,
    },
    /// Clients are recorded and open images.
    Opening { call: Call },
    /// Images are open; hosts see the group as inaccessible.
    Open,
    /// Hosts see the group as optimized.
    Serving { since: Duration },
    /// Images are being closed.
    Closing { call: Call },
    /// Whether no operation of the clients can take effect any more.
    Closed { is_clean: bool },
}

/// An action without a result yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Call {
    number: Number,
    deadline: Duration,
}

/// A group on this gateway.
#[derive(Clone, Debug)]
pub(crate) struct GroupState {
    config: GroupConfig,
    images: Images,
    /// The epoch of the ownership for which `images` are in use.
    epoch: u64,
    /// Why the images must be closed.
    lost: Option<String>,
    /// Failures since the group was last served.
    attempts: u32,
    retry_at: Duration,
    last_error: String,
    /// Since when the record shows that this owner must be replaced.
    vacant: Option<(Option<Owner>, u64, Duration)>,
}

impl GroupState {
    pub(crate) fn new(config: GroupConfig) -> Self {
        Self {
            config,
            images: Images::Idle,
            epoch: 0,
            lost: None,
            attempts: 0,
            retry_at: Duration::ZERO,
            last_error: String::new(),
            vacant: None,
        }
    }

    pub(crate) fn config(&self) -> &GroupConfig {
        &self.config
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.images == Images::Idle
    }

    /// Whether commands of hosts may be in flight.
    pub(crate) fn may_have_commands(&self) -> bool {
        matches!(
            self.images,
            Images::Open | Images::Serving { .. } | Images::Closing { .. }
        )
    }

    pub(crate) fn is_serving(&self) -> bool {
        matches!(self.images, Images::Serving { .. })
    }

    /// The last failure, unless the group has been served since.
    pub(crate) fn last_error(&self) -> Option<&str> {
        let is_over = self.attempts == 0 || self.is_serving();
        (!is_over).then_some(self.last_error.as_str())
    }

    /// When time alone may cause an action.
    pub(crate) fn wakeup(&self) -> Option<Duration> {
        match &self.images {
            Images::Idle => (self.attempts > 0).then_some(self.retry_at),
            Images::Fencing { call, .. } | Images::Opening { call } | Images::Closing { call } => {
                Some(call.deadline)
            }
            _ => None,
        }
    }

    /// Whether this gateway owns the group in the epoch of its images.
    fn is_mine(&self, view: &View<'_>, group: &Group) -> bool {
        view.is_member && group.is_owned(view.me, self.epoch)
    }

    /// The record has been read or written.
    pub(crate) fn observe(&mut self, view: &View<'_>, group: &Group) {
        if self.is_idle() && group.owner.as_ref() != Some(view.me) {
            self.attempts = 0;
        }
        let now = view.now.monotonic;
        self.vacant = vacancy(view, group).map(|_| match self.vacant.take() {
            Some((owner, epoch, since)) if owner == group.owner && epoch == group.epoch => {
                (owner, epoch, since)
            }
            _ => (group.owner.clone(), group.epoch, now),
        });
    }

    /// What to do with the images.
    pub(crate) fn action(
        &mut self,
        view: &View<'_>,
        group: &Group,
        numbers: &mut Number,
    ) -> Option<Action> {
        let now = view.now.monotonic;
        self.expire(now, &view.config.timing);
        let is_mine = self.is_mine(view, group);
        let id = self.config.id;
        match &self.images {
            Images::Serving { .. } => {
                let may_serve = is_mine
                    && view.is_valid
                    && group.phase == Phase::Serving
                    && self.lost.is_none();
                (!may_serve).then(|| {
                    self.images = Images::Open;
                    Action::StopServing { group: id }
                })
            }
            Images::Open if !is_mine || self.lost.is_some() || group.phase == Phase::Releasing => {
                Some(self.close(view, group, numbers))
            }
            Images::Open if view.has_lapsed => {
                let error = "its lease has lapsed";
                self.lost = Some(error.to_owned());
                self.fail(now, error, &view.config.timing);
                Some(self.close(view, group, numbers))
            }
            Images::Open if view.is_valid && group.phase == Phase::Serving => {
                self.images = Images::Serving { since: now };
                let epoch = self.epoch;
                Some(Action::Serve { group: id, epoch })
            }
            Images::Fenced { .. } if !is_mine => Some(self.close(view, group, numbers)),
            Images::Fenced { clients, .. } if view.is_valid && group.clients == *clients => {
                let call = call(view, numbers);
                self.images = Images::Opening { call };
                let number = call.number;
                Some(Action::Open { group: id, number })
            }
            Images::Closed { .. } if !is_mine => {
                self.images = Images::Idle;
                self.lost = None;
                self.fence(view, group, numbers)
            }
            Images::Idle => self.fence(view, group, numbers),
            _ => None,
        }
    }

    fn fence(&mut self, view: &View<'_>, group: &Group, numbers: &mut Number) -> Option<Action> {
        let must_wait = self.attempts > 0 && view.now.monotonic < self.retry_at;
        let is_taking = view.is_valid
            && group.owner.as_ref() == Some(view.me)
            && group.phase == Phase::Taking
            && group.clients.is_empty();
        if !is_taking || must_wait || view.is_stopping {
            return None;
        }
        let call = call(view, numbers);
        let clients = group.to_fence.clone();
        self.epoch = group.epoch;
        self.lost = None;
        self.images = Images::Fencing {
            call,
            fenced: clients.clone(),
        };
        Some(Action::Fence {
            group: self.config.id,
            number: call.number,
            clients,
        })
    }

    fn close(&mut self, view: &View<'_>, group: &Group, numbers: &mut Number) -> Action {
        let is_planned = self.is_mine(view, group) && self.lost.is_none();
        let call = call(view, numbers);
        self.images = Images::Closing { call };
        Action::Close {
            group: self.config.id,
            number: call.number,
            is_planned,
        }
    }

    /// Ends an action that has no result in time. The next action for the group cancels it.
    fn expire(&mut self, now: Duration, timing: &Timing) {
        let error = || format!("no result within {:?}", timing.action_timeout);
        match self.images {
            Images::Fencing { call, .. } if now >= call.deadline => {
                self.handle_fenced(now, call.number, Err(error()), timing);
            }
            Images::Opening { call } if now >= call.deadline => {
                self.handle_opened(now, call.number, Err(error()), timing);
            }
            Images::Closing { call } if now >= call.deadline => {
                self.handle_closed(call.number, &Err(error()));
            }
            _ => {}
        }
    }

    pub(crate) fn handle_fenced(
        &mut self,
        now: Duration,
        number: Number,
        result: Result<Vec<String>, String>,
        timing: &Timing,
    ) {
        let fenced = match &mut self.images {
            Images::Fencing { call, fenced } if call.number == number => std::mem::take(fenced),
            _ => return,
        };
        let is_valid = |clients: &Vec<String>| {
            (1..=MAX_CLIENTS).contains(&clients.len()) && clients.iter().all(|it| is_text(it))
        };
        match result {
            Ok(clients) if is_valid(&clients) => self.images = Images::Fenced { clients, fenced },
            Ok(clients) => {
                // Disconnects them.
                self.images = Images::Open;
                let count = clients.len();
                self.lost = Some(format!("{count} clients, or an invalid address of one"));
                self.fail(now, "connect: addresses of clients are not valid", timing);
            }
            Err(error) => {
                self.images = Images::Idle;
                self.fail(now, &format!("fence: {error}"), timing);
            }
        }
    }

    pub(crate) fn handle_opened(
        &mut self,
        now: Duration,
        number: Number,
        result: Result<(), String>,
        timing: &Timing,
    ) {
        let is_current = matches!(self.images, Images::Opening { call } if call.number == number);
        if !is_current {
            return;
        }
        self.images = Images::Open;
        if let Err(error) = result {
            self.fail(now, &format!("open: {error}"), timing);
            self.lost = Some(error);
        }
    }

    pub(crate) fn handle_closed(&mut self, number: Number, result: &Result<(), String>) {
        if matches!(self.images, Images::Closing { call } if call.number == number) {
            let is_clean = result.is_ok();
            self.images = Images::Closed { is_clean };
        }
    }

    pub(crate) fn handle_lost(&mut self, now: Duration, epoch: u64, error: &str, timing: &Timing) {
        if epoch != self.epoch || self.lost.is_some() {
            return;
        }
        match self.images {
            Images::Serving { since } => {
                if now.saturating_sub(since) >= timing.longest_retry {
                    self.attempts = 0;
                }
            }
            Images::Open | Images::Opening { .. } => {}
            _ => return,
        }
        self.lost = Some(error.to_owned());
        self.fail(now, &format!("lost: {error}"), timing);
    }

    fn fail(&mut self, now: Duration, error: &str, timing: &Timing) {
        let doublings = self.attempts.min(16);
        let delay = timing.retry.saturating_mul(1 << doublings);
        self.retry_at = now + delay.min(timing.longest_retry);
        self.attempts = self.attempts.saturating_add(1);
        self.last_error = shortened(error);
    }

    /// Changes the record as far as this group requires it. `group` is a copy.
    pub(crate) fn change(&self, view: &View<'_>, group: &mut Group) {
        if !view.is_valid {
            return;
        }
        let is_mine = self.is_mine(view, group);
        match &self.images {
            Images::Idle if group.owner.as_ref() == Some(view.me) => self.change_idle(view, group),
            Images::Idle => {
                if let Some(why) = self.may_take(view, group) {
                    self.take(view, group, why);
                }
            }
            Images::Fenced { clients, fenced } if is_mine && group.clients != *clients => {
                group.clients.clone_from(clients);
                group.to_fence.retain(|client| !fenced.contains(client));
                if let Some(last) = &mut group.last
                    && !fenced.is_empty()
                {
                    last.fenced.clone_from(fenced);
                    last.fenced_at_s = Some(view.now.unix_s);
                }
            }
            Images::Open if is_mine && group.phase == Phase::Taking && self.lost.is_none() => {
                set_phase(view, group, Phase::Serving);
                group.failures.remove(&view.me.gateway);
            }
            Images::Open | Images::Serving { .. } if is_mine && group.phase == Phase::Serving => {
                self.release(view, group);
            }
            Images::Closed { is_clean } if is_mine => {
                match is_clean {
                    true => group.clients.clear(),
                    false => move_clients(group),
                }
                self.leave(view, group);
            }
            _ => {}
        }
    }

    /// This gateway owns the group and has nothing open.
    fn change_idle(&self, view: &View<'_>, group: &mut Group) {
        if group.phase != Phase::Taking || !group.clients.is_empty() {
            self.take(view, group, "its images are not open".to_owned());
        } else if view.is_stopping {
            self.free(view, group, WishReason::Stop);
        } else if self.must_give_up(view, group) {
            self.give_up(view, group);
        }
    }

    /// The images are closed.
    fn leave(&self, view: &View<'_>, group: &mut Group) {
        if group.phase == Phase::Releasing || view.is_stopping {
            let reason = group.wish.as_ref().map_or(WishReason::Stop, |it| it.reason);
            self.free(view, group, reason);
        } else if self.must_give_up(view, group) {
            self.give_up(view, group);
        } else {
            let why = format!("gateway {}: {}", view.me.gateway, self.last_error);
            self.take(view, group, why);
        }
    }

    /// Why this gateway takes the group now.
    fn may_take(&self, view: &View<'_>, group: &Group) -> Option<String> {
        let why = vacancy(view, group)?;
        let (owner, epoch, since) = self.vacant.as_ref()?;
        let order = ranked(view, &self.config, group);
        let rank = order.iter().position(|name| view.is_me(name))?;
        if *owner != group.owner || *epoch != group.epoch {
            return None;
        }
        let Timing { renew, lease, .. } = view.config.timing;
        let ranks = u32::try_from(rank).unwrap_or(u32::MAX);
        let mut from = *since + renew.saturating_mul(ranks);
        let wished = group.wish.as_ref().map(|wish| wish.gateway.as_str());
        if wished.is_some_and(|name| order.first() == Some(&name) && !view.is_me(name)) {
            from += lease;
        } else if owner.is_none() && wished.is_none() && !self.is_preferred(view) {
            // Preferred gateways may be starting.
            from = from.max(view.joined_at + lease);
        }
        (view.now.monotonic >= from).then_some(why)
    }

    fn is_preferred(&self, view: &View<'_>) -> bool {
        self.config
            .gateways
            .first()
            .is_some_and(|name| view.is_me(name))
    }

    /// Makes this gateway the owner in the next epoch.
    fn take(&self, view: &View<'_>, group: &mut Group, mut why: String) {
        let from = group.owner.take().map(|owner| owner.gateway);
        if from.as_ref() == Some(&view.me.gateway) {
            // A wish remains: this gateway releases the group when it serves it.
        } else if let Some(wish) = group.wish.take() {
            if view.is_me(&wish.gateway) {
                group.pinned = wish.reason == WishReason::Move;
                why = format!("{}; {}", why, reason_text(wish.reason));
            } else {
                let name = &wish.gateway;
                let cause = exclusion(view, name).unwrap_or_else(|| "did not take it".to_owned());
                group.note = Some(dropped(name, &cause));
            }
        } else {
            group.pinned = false;
        }
        move_clients(group);
        group.owner = Some(view.me.clone());
        group.epoch = group.epoch.saturating_add(1);
        set_phase(view, group, Phase::Taking);
        group.last = Some(Change {
            from,
            why: shortened(&why),
            fenced: Vec::new(),
            fenced_at_s: None,
        });
    }

    /// Begins a planned hand-over if there is a reason for one.
    fn release(&self, view: &View<'_>, group: &mut Group) {
        if let Some(wish) = group.wish.take() {
            let name = &wish.gateway;
            if view.is_me(name) {
                group.pinned = wish.reason == WishReason::Move;
            } else if let Some(cause) = exclusion(view, name) {
                group.note = Some(dropped(name, &cause));
            } else {
                group.wish = Some(wish);
                set_phase(view, group, Phase::Releasing);
                return;
            }
        }
        let order = ranked(view, &self.config, group);
        let best = order.into_iter().find(|name| !view.is_me(name));
        let is_drained = view.entry().is_some_and(|gateway| gateway.drained);
        let next = if view.is_stopping {
            best.map(|name| (name, WishReason::Stop))
        } else if is_drained {
            best.map(|name| (name, WishReason::Drain))
        } else {
            let preferred = best.filter(|name| self.may_fail_back(view, group, name));
            preferred.map(|name| (name, WishReason::Failback))
        };
        if let Some((name, reason)) = next {
            let gateway = name.to_owned();
            group.wish = Some(Wish { gateway, reason });
        }
        if next.is_some() || view.is_stopping {
            set_phase(view, group, Phase::Releasing);
        }
    }

    fn may_fail_back(&self, view: &View<'_>, group: &Group, name: &str) -> bool {
        let Failback::After(hold) = view.config.failback else {
            return false;
        };
        let at = |name: &str| self.config.gateways.iter().position(|it| it == name);
        // A gateway that is not in the list comes last.
        let own = at(&view.me.gateway).unwrap_or(usize::MAX);
        !group.pinned
            && at(name).is_some_and(|at| at < own)
            && failures(view, group, name) == 0
            && view.observer.alive_for(name, view.now.monotonic) >= hold
    }

    /// Whether another gateway shall try, which gave the group up no more often than this one will
    /// have.
    fn must_give_up(&self, view: &View<'_>, group: &Group) -> bool {
        let times = failures(view, group, &view.me.gateway);
        self.attempts >= ATTEMPTS << times.min(MOST_DOUBLINGS)
            && self.successor(view, group, times).is_some()
    }

    fn successor(&self, view: &View<'_>, group: &Group, times: u32) -> Option<&str> {
        ranked(view, &self.config, group).into_iter().find(|name| {
            !view.is_me(name) && failures(view, group, name) <= times.saturating_add(1)
        })
    }

    fn give_up(&self, view: &View<'_>, group: &mut Group) {
        let times = failures(view, group, &view.me.gateway);
        let next = self.successor(view, group, times).map(str::to_owned);
        let failure = Failure {
            incarnation: view.me.incarnation,
            times: times.saturating_add(1),
            reason: self.last_error.clone(),
        };
        if let Some(gateway) = next {
            let reason = WishReason::GaveUp;
            group.wish = Some(Wish { gateway, reason });
        }
        let present = |name: &String| view.record.gateways.contains_key(name);
        group.failures.retain(|name, _| present(name));
        group.failures.insert(view.me.gateway.clone(), failure);
        self.free(view, group, WishReason::GaveUp);
    }

    /// Leaves the group without an owner, for the wished gateway or the best one.
    fn free(&self, view: &View<'_>, group: &mut Group, reason: WishReason) {
        if let Some(wish) = &group.wish
            && let Some(cause) = exclusion(view, &wish.gateway)
        {
            group.note = Some(dropped(&wish.gateway, &cause));
            group.wish = None;
        }
        if group.wish.is_none() {
            let order = ranked(view, &self.config, group);
            let best = order.into_iter().find(|name| !view.is_me(name));
            group.wish = best.map(|name| Wish {
                gateway: name.to_owned(),
                reason,
            });
        }
        group.owner = None;
        set_phase(view, group, Phase::Free);
    }
}

/// Clients whose operations may still take effect must be fenced by the next owner.
fn move_clients(group: &mut Group) {
    for client in std::mem::take(&mut group.clients) {
        if !group.to_fence.contains(&client) {
            group.to_fence.push(client);
        }
    }
}

fn set_phase(view: &View<'_>, group: &mut Group, phase: Phase) {
    group.phase = phase;
    group.since_s = view.now.unix_s;
}

fn dropped(name: &str, cause: &str) -> String {
    shortened(&format!("move to gateway {name} was dropped: {cause}"))
}

fn reason_text(reason: WishReason) -> &'static str {
    match reason {
        WishReason::Move => "moved by an administrator",
        WishReason::Drain => "its gateway is drained",
        WishReason::Stop => "its gateway stops",
        WishReason::Failback => "fail-back to a preferred gateway",
        WishReason::GaveUp => "its gateway gave it up",
    }
}

fn call(view: &View<'_>, numbers: &mut Number) -> Call {
    *numbers += 1;
    Call {
        number: *numbers,
        deadline: view.now.monotonic + view.config.timing.action_timeout,
    }
}
