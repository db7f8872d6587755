//! The machine of one gateway: its membership, its renewals, and the order of actions.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::action::{Action, Number, Written};
use crate::candidates::exclusion;
use crate::config::{Config, ConfigError, Time};
use crate::group::GroupState;
use crate::lost::{LostController, LostState};
use crate::observer::{Liveness, Observer};
use crate::record::{
    Facts, Gateway, Group, Incarnation, MAX_GROUPS, Owner, Record, Wish, WishReason, is_name,
};
use crate::refusal::{Refusal, refusal};
use crate::view::View;
use crate::why::Why;

/// Orders that wait for a write, at most.
const MOST_ORDERS: usize = 16;

/// Membership of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has not read the record yet, or waits until the lease of a predecessor has expired.
    Starting,
    /// The record contains it.
    Member,
    /// It serves nothing. It joins if the cause ends, except for [`Refusal::Replaced`] and
    /// [`Refusal::Removed`].
    Refused(Refusal),
    /// It has released all groups, and makes no further action.
    Stopped,
}

/// An order of an administrator that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// No such group.
    #[error("group {0}: not configured")]
    Group(u32),
    /// No such gateway.
    #[error("gateway {0:?}: not in the record; see the list of gateways")]
    Gateway(String),
    /// The gateway cannot take the group.
    #[error("group {group}: gateway {gateway} cannot take it: {cause}")]
    Candidate {
        /// The group.
        group: u32,
        /// The gateway.
        gateway: String,
        /// Why not.
        cause: String,
    },
    /// The gateway is not a member of the record.
    #[error("this gateway cannot change the record: {0}")]
    Standing(String),
    /// Too many orders wait.
    #[error("{MOST_ORDERS} orders wait for a write of the record, the maximum; repeat it later")]
    Busy,
}

/// A change of the record for an administrator.
#[derive(Clone, Debug)]
enum Order {
    Move { group: u32, gateway: String },
    Drained { gateway: String, drained: bool },
    Remove { gateway: String },
}

/// The record as this gateway knows it.
#[derive(Clone, Debug)]
struct Known {
    record: Record,
    /// `None`: the object did not exist.
    version: Option<u64>,
    /// When the operation began that read or wrote it.
    begun: Duration,
}

/// Hosts whose earlier commands this gateway must not begin any more: others may have told them
/// so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hosts {
    /// There are none.
    Current,
    /// All that are connected when the record shows this process without `expired`.
    Earlier,
    /// The same; they are being disconnected.
    Disconnecting(Number),
}

/// A read or a write of the record in progress.
#[derive(Clone, Debug)]
struct Operation {
    number: Number,
    started: Duration,
    /// The record that a write contains, and the number of orders in it.
    written: Option<(Record, usize)>,
}

/// The lease and takeover decisions of one gateway.
#[derive(Clone, Debug)]
pub struct Machine {
    config: Config,
    me: Owner,
    standing: Standing,
    known: Option<Known>,
    /// Whether a write may use the known version.
    is_current: bool,
    has_seen_record: bool,
    observer: Observer,
    groups: BTreeMap<u32, GroupState>,
    orders: Vec<Order>,
    is_stopping: bool,
    hosts: Hosts,
    /// Start of the last write that took effect.
    renewed_at: Option<Duration>,
    joined_at: Duration,
    /// When the next read is due, and whether a write shall follow it.
    read_at: Duration,
    is_renewal_due: bool,
    operation: Option<Operation>,
    last_number: Number,
    last_poll: Duration,
    last_error: Option<String>,
}

impl Machine {
    /// A gateway that has not read the record yet. `incarnation` is random.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn new(config: Config, incarnation: Incarnation, now: Time) -> Result<Self, ConfigError> {
        config.check()?;
        let groups = config.groups.iter();
        Ok(Self {
            me: Owner {
                gateway: config.name.clone(),
                incarnation,
            },
            standing: Standing::Starting,
            known: None,
            is_current: false,
            has_seen_record: false,
            observer: Observer::new(config.timing.lease, config.longest_gap()),
            groups: groups
                .map(|group| (group.id, GroupState::new(group.clone())))
                .collect(),
            orders: Vec::new(),
            is_stopping: false,
            hosts: Hosts::Current,
            renewed_at: None,
            joined_at: now.monotonic,
            read_at: now.monotonic,
            is_renewal_due: false,
            operation: None,
            last_number: 0,
            last_poll: now.monotonic,
            last_error: None,
            config,
        })
    }

    /// Its membership.
    #[must_use]
    pub fn standing(&self) -> &Standing {
        &self.standing
    }

    /// The record that was read or written last.
    #[must_use]
    pub fn record(&self) -> Option<&Record> {
        self.known.as_ref().map(|known| &known.record)
    }

    /// The last failure of a read or write of the record, unless one has succeeded since.
    #[must_use]
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.me.gateway
    }

    /// The lease of a gateway, as this one observes it. Its own is observed as well.
    #[must_use]
    pub fn liveness(&self, gateway: &str) -> Liveness {
        self.observer.liveness(gateway)
    }

    /// The configured groups.
    pub fn groups(&self) -> impl Iterator<Item = u32> {
        self.groups.keys().copied()
    }

    /// Whether hosts see the group as optimized at this gateway.
    #[must_use]
    pub fn is_serving(&self, group: u32) -> bool {
        self.groups.get(&group).is_some_and(GroupState::is_serving)
    }

    /// The state of a group and its causes; `None` if it is not configured or no record is known.
    #[must_use]
    pub fn why(&self, now: Time, group: u32) -> Option<Why> {
        let known = self.known.as_ref()?;
        let state = self.groups.get(&group)?;
        let in_record = known.record.groups.get(&group).cloned().unwrap_or_default();
        let view = self.view(&known.record, now);
        let error = state.last_error();
        Some(Why::new(&view, state.config(), in_record, error))
    }

    /// When `poll` must be called again at the latest, without another event.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Duration> {
        if self.standing == Standing::Stopped {
            return None;
        }
        let operation = self.operation.as_ref();
        let operation = operation.map(|it| it.started + self.config.timing.record_timeout);
        let lapse = self.renewed_at.map(|at| at + self.config.validity());
        let close = lapse.map(|at| at + self.config.timing.lease);
        // Later, they cause nothing more.
        let lapses = [lapse, close].into_iter().flatten();
        let lapses = lapses.filter(|at| *at > self.last_poll);
        // During an operation, no read is due.
        let read = operation.is_none().then_some(self.read_at);
        let groups = self.groups.values().filter_map(GroupState::wakeup);
        let groups = groups.filter(|at| *at > self.last_poll);
        groups.chain(operation).chain(lapses).chain(read).min()
    }

    /// A read has ended: version and contents, or `None` if there is no object.
    pub fn handle_record(
        &mut self,
        now: Time,
        number: Number,
        result: Result<Option<(u64, Vec<u8>)>, String>,
    ) {
        let is_read = |it: &Operation| it.number == number && it.written.is_none();
        let Some(operation) = self.operation.take_if(|it| is_read(it)) else {
            return;
        };
        match result.map(|read| read.map(|(version, bytes)| (version, Record::parse(&bytes)))) {
            Ok(Some((version, Ok(record)))) => {
                let version = Some(version);
                self.has_seen_record = true;
                self.observer
                    .handle_record(&record, operation.started, now.monotonic);
                let begun = operation.started;
                self.know(
                    now,
                    Known {
                        record,
                        version,
                        begun,
                    },
                );
                self.is_current = true;
                self.last_error = None;
            }
            Ok(Some((_, Err(error)))) => self.refuse(error.into()),
            Ok(None) if self.has_seen_record => self.refuse(Refusal::Removed),
            Ok(None) => {
                let known = Known {
                    record: Record::default(),
                    version: None,
                    begun: operation.started,
                };
                self.know(now, known);
                self.is_current = true;
            }
            Err(error) => self.fail(now, error),
        }
    }

    /// A write has ended.
    pub fn handle_written(&mut self, now: Time, number: Number, result: Written) {
        let is_write = |it: &Operation| it.number == number && it.written.is_some();
        let Some(operation) = self.operation.take_if(|it| is_write(it)) else {
            return;
        };
        match (result, operation.written) {
            (Written::Done(version), Some((record, orders))) => {
                self.renewed_at = Some(operation.started);
                self.is_renewal_due = false;
                self.orders.drain(..orders.min(self.orders.len()));
                let (version, begun) = (Some(version), operation.started);
                self.has_seen_record = true;
                self.know(
                    now,
                    Known {
                        record,
                        version,
                        begun,
                    },
                );
                self.is_current = true;
                self.last_error = None;
            }
            (Written::Unknown(error), _) => self.fail(now, error),
            (Written::Done(_) | Written::Conflict, _) => {
                self.is_current = false;
                self.read_at = now.monotonic;
            }
        }
    }

    /// A `Fence` has ended; the addresses of the new clients.
    pub fn handle_fenced(
        &mut self,
        now: Time,
        group: u32,
        number: Number,
        result: Result<Vec<String>, String>,
    ) {
        if let Some(state) = self.groups.get_mut(&group) {
            state.handle_fenced(now.monotonic, number, result, &self.config.timing);
        }
    }

    /// An `Open` has ended.
    pub fn handle_opened(
        &mut self,
        now: Time,
        group: u32,
        number: Number,
        result: Result<(), String>,
    ) {
        if let Some(state) = self.groups.get_mut(&group) {
            state.handle_opened(now.monotonic, number, result, &self.config.timing);
        }
    }

    /// A `Close` has ended. After an error, the clients are fenced before the group is served.
    pub fn handle_closed(&mut self, group: u32, number: Number, result: &Result<(), String>) {
        if let Some(state) = self.groups.get_mut(&group) {
            state.handle_closed(number, result);
        }
    }

    /// A `Disconnect` has ended.
    pub fn handle_disconnected(&mut self, number: Number) {
        if self.hosts == Hosts::Disconnecting(number) {
            self.hosts = Hosts::Current;
        }
    }

    /// A host asks about a controller of another gateway that it has lost; `None` if no other
    /// gateway in the record assigns that identifier.
    #[must_use]
    pub fn ask_lost(&self, now: Time, cntlid: u16) -> Option<LostController> {
        LostController::of(self.record()?, &self.me.gateway, cntlid, now.monotonic)
    }

    /// What is known of it now. Call it after each read or write of the record.
    pub fn judge_lost(&self, now: Time, lost: &mut LostController) -> LostState {
        self.known.as_ref().map_or(LostState::Pending, |known| {
            lost.judge(&known.record, known.begun, now.monotonic)
        })
    }

    /// The images that were opened in `epoch` can no longer be used: their clients are
    /// blocklisted, or their lock was lost.
    pub fn handle_lost(&mut self, now: Time, group: u32, epoch: u64, error: &str) {
        if let Some(state) = self.groups.get_mut(&group) {
            state.handle_lost(now.monotonic, epoch, error, &self.config.timing);
        }
    }

    /// Moves a group. Fail-back does not undo it.
    ///
    /// # Errors
    /// [`OrderError`].
    pub fn move_group(&mut self, now: Time, group: u32, gateway: &str) -> Result<(), OrderError> {
        let state = self.groups.get(&group).ok_or(OrderError::Group(group))?;
        let refused = |cause: String| OrderError::Candidate {
            group,
            gateway: gateway.to_owned(),
            cause,
        };
        let names = &state.config().gateways;
        if !names.iter().any(|it| it == gateway) {
            return Err(refused("not configured for this group".to_owned()));
        }
        let known = self.known_for_order(gateway)?;
        if !known.record.groups.contains_key(&group) {
            return Err(refused(
                "the group was never owned; start its gateways".to_owned(),
            ));
        }
        match exclusion(&self.view(&known.record, now), gateway) {
            Some(cause) => Err(refused(cause)),
            None => self.order(Order::Move {
                group,
                gateway: gateway.to_owned(),
            }),
        }
    }

    /// Moves all groups of a gateway to others, and gives it no more until
    /// [`resume`](Self::resume).
    ///
    /// # Errors
    /// [`OrderError`].
    pub fn drain(&mut self, gateway: &str) -> Result<(), OrderError> {
        self.set_drained(gateway, true)
    }

    /// Ends [`drain`](Self::drain). Groups return by fail-back or by `move_group`.
    ///
    /// # Errors
    /// [`OrderError`].
    pub fn resume(&mut self, gateway: &str) -> Result<(), OrderError> {
        self.set_drained(gateway, false)
    }

    /// Removes a gateway that no longer exists from the record. It must be stopped, or its lease
    /// must have expired. Clients of its groups are fenced as usual.
    ///
    /// # Errors
    /// [`OrderError`].
    pub fn remove(&mut self, gateway: &str) -> Result<(), OrderError> {
        self.known_for_order(gateway)?;
        self.order(Order::Remove {
            gateway: gateway.to_owned(),
        })
    }

    /// Releases all groups and leaves: see [`Standing::Stopped`].
    pub fn stop(&mut self, now: Time) {
        self.is_stopping = true;
        self.read_at = self.read_at.min(now.monotonic);
    }

    /// Replaces the facts, as a change of the configuration does at run time. Others check them
    /// when they join.
    ///
    /// # Errors
    /// [`ConfigError`]; nothing changes.
    pub fn set_facts(&mut self, facts: Facts) -> Result<(), ConfigError> {
        facts.check().map_err(ConfigError::Facts)?;
        self.config.facts = facts;
        Ok(())
    }

    /// The next action. Call it until it returns `None` after each call of another method, and at
    /// [`next_wakeup`](Self::next_wakeup).
    pub fn poll(&mut self, now: Time) -> Option<Action> {
        self.last_poll = now.monotonic;
        if self.is_stopping && self.may_stop_at_once(now) {
            self.standing = Standing::Stopped;
        }
        if self.standing == Standing::Stopped {
            return None;
        }
        let timeout = self.config.timing.record_timeout;
        let is_late = |it: &Operation| now.monotonic.saturating_sub(it.started) >= timeout;
        if self.operation.as_ref().is_some_and(is_late) {
            self.operation = None;
            self.fail(now, format!("no result within {timeout:?}"));
        }
        let action = self.poll_hosts().or_else(|| self.poll_groups(now));
        action.or_else(|| self.poll_record(now))
    }

    fn poll_hosts(&mut self) -> Option<Action> {
        let is_due =
            self.hosts == Hosts::Earlier && self.own_entry().is_some_and(|entry| !entry.expired);
        is_due.then(|| {
            self.last_number += 1;
            let number = self.last_number;
            self.hosts = Hosts::Disconnecting(number);
            Action::Disconnect { number }
        })
    }

    /// This process in the record.
    fn own_entry(&self) -> Option<&Gateway> {
        let entry = self.record()?.gateways.get(&self.me.gateway);
        entry.filter(|entry| entry.incarnation == self.me.incarnation)
    }

    /// Whether it can leave without a change of the record: other gateways find its lease expired,
    /// and fence its clients.
    fn may_stop_at_once(&self, now: Time) -> bool {
        let may_have_commands = self.groups.values().any(GroupState::may_have_commands);
        let is_refused = matches!(self.standing, Standing::Refused(_));
        let has_failed = is_refused || self.last_error.is_some();
        !may_have_commands && has_failed && !self.is_valid(now)
    }

    fn poll_groups(&mut self, now: Time) -> Option<Action> {
        let known = self.known.as_ref()?;
        let mut groups = std::mem::take(&mut self.groups);
        let mut numbers = self.last_number;
        let view = self.view(&known.record, now);
        let none = Group::default();
        let action = groups.iter_mut().find_map(|(id, state)| {
            let group = known.record.groups.get(id).unwrap_or(&none);
            state.action(&view, group, &mut numbers)
        });
        self.groups = groups;
        self.last_number = numbers;
        action
    }

    fn poll_record(&mut self, now: Time) -> Option<Action> {
        if self.operation.is_some() {
            return None;
        }
        if now.monotonic >= self.read_at {
            self.read_at = now.monotonic + self.config.timing.renew;
            self.is_renewal_due = true;
            let number = self.start(now, None);
            return Some(Action::Read { number });
        }
        if !self.is_current {
            return None;
        }
        let (record, expected) = (self.next_record(now)?, self.known.as_ref()?.version);
        match record.to_bytes() {
            Ok(bytes) => {
                self.is_current = false;
                let orders = self.orders.len();
                let number = self.start(now, Some((record, orders)));
                Some(Action::Write {
                    number,
                    expected,
                    bytes,
                })
            }
            Err(error) => {
                // The limits prevent this, unless another version wrote a record that is full.
                self.fail(now, error.to_string());
                None
            }
        }
    }

    fn start(&mut self, now: Time, written: Option<(Record, usize)>) -> Number {
        self.last_number += 1;
        self.operation = Some(Operation {
            number: self.last_number,
            started: now.monotonic,
            written,
        });
        self.last_number
    }

    /// The record that this gateway writes next; `None` if it writes nothing now.
    fn next_record(&self, now: Time) -> Option<Record> {
        let known = self.known.as_ref()?;
        let mut next = known.record.clone();
        match self.standing {
            Standing::Member => {}
            Standing::Starting if self.may_join(&known.record) => {}
            _ => return None,
        }
        for order in &self.orders {
            order.apply(&mut next, &self.observer);
        }
        let view = self.view(&known.record, now);
        for (id, state) in &self.groups {
            let before = next.groups.get(id).cloned().unwrap_or_default();
            let mut group = before.clone();
            state.change(&view, &mut group);
            let has_room = next.groups.len() < MAX_GROUPS || next.groups.contains_key(id);
            // One group beyond its limits must not prevent renewals.
            if group != before && has_room && group.check().is_ok() {
                next.groups.insert(*id, group);
            }
        }
        let is_idle = self.groups.values().all(GroupState::is_idle);
        let mut owners = next.groups.values().filter_map(|it| it.owner.as_ref());
        let owns = owners.any(|owner| *owner == self.me);
        let name = &self.me.gateway;
        let before = known.record.gateways.get(name);
        let gateway = Gateway {
            incarnation: self.me.incarnation,
            heartbeat: before.map_or(0, |it| it.heartbeat),
            facts: self.config.facts.clone(),
            drained: next.gateways.get(name).is_some_and(|it| it.drained),
            stopped: self.is_stopping && is_idle && !owns,
            expired: false,
        };
        next.gateways.insert(name.clone(), gateway);
        if view.is_valid {
            for (name, gateway) in &mut next.gateways {
                let liveness = self.observer.liveness(name);
                let is_out = matches!(liveness, Liveness::Expired(_)) && !view.is_me(name);
                gateway.expired |= is_out && !gateway.stopped;
            }
        }
        if !self.is_renewal_due && next == known.record {
            return None;
        }
        if let Some(gateway) = next.gateways.get_mut(name) {
            gateway.heartbeat = gateway.heartbeat.saturating_add(1);
        }
        Some(next)
    }

    /// Whether a process that is not in the record may add itself: there is no other with its
    /// name, or that one has stopped or failed.
    fn may_join(&self, record: &Record) -> bool {
        let name = &self.me.gateway;
        record.gateways.get(name).is_none_or(|gateway| {
            gateway.stopped || matches!(self.observer.liveness(name), Liveness::Expired(_))
        })
    }

    /// Takes the record as known, and decides on the membership.
    fn know(&mut self, now: Time, known: Known) {
        let entry = known.record.gateways.get(&self.me.gateway);
        let is_own = |entry: &&Gateway| entry.incarnation == self.me.incarnation;
        let was_member = self.standing == Standing::Member;
        let is_own_first = entry.filter(is_own).is_some() && self.own_entry().is_none();
        let is_expired = entry.filter(is_own).is_some_and(|own| own.expired);
        let is_final = matches!(
            self.standing,
            Standing::Refused(Refusal::Replaced { .. } | Refusal::Removed)
        );
        self.standing = match (entry.filter(is_own), entry) {
            _ if is_final => self.standing.clone(),
            (Some(own), _) if own.stopped && self.is_stopping => Standing::Stopped,
            (Some(_), _) => Standing::Member,
            (None, Some(other)) if was_member => Standing::Refused(Refusal::Replaced {
                name: self.me.gateway.clone(),
                other: other.incarnation,
            }),
            (None, _) => match refusal(&self.config, &known.record, &self.observer) {
                Some(refusal) => Standing::Refused(refusal),
                None if self.is_stopping => Standing::Stopped,
                None => Standing::Starting,
            },
        };
        if self.standing == Standing::Member && !was_member {
            self.joined_at = now.monotonic;
        }
        // Of its own before, or those that a host lost just when it replaced another process.
        if is_expired || is_own_first && self.had_predecessor() {
            self.hosts = Hosts::Earlier;
        }
        let mut groups = std::mem::take(&mut self.groups);
        let view = self.view(&known.record, now);
        let none = Group::default();
        for (id, state) in &mut groups {
            state.observe(&view, known.record.groups.get(id).unwrap_or(&none));
        }
        self.groups = groups;
        self.known = Some(known);
    }

    /// Whether the record that is known shows another process under its name.
    fn had_predecessor(&self) -> bool {
        let entry = self
            .record()
            .and_then(|it| it.gateways.get(&self.me.gateway));
        entry.is_some_and(|entry| entry.incarnation != self.me.incarnation)
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.is_current = false;
        self.standing = Standing::Refused(refusal);
    }

    /// A read or write of the record failed, or its result is unknown: read it again soon.
    fn fail(&mut self, now: Time, error: String) {
        self.is_current = false;
        self.last_error = Some(error);
        self.read_at = now.monotonic + self.config.timing.renew / 4;
    }

    fn view<'a>(&'a self, record: &'a Record, now: Time) -> View<'a> {
        let is_valid = self.is_valid(now);
        let longest = self.config.validity() + self.config.timing.lease;
        let is_over = self.is_stopping && !is_valid || !self.is_renewed_within(now, longest);
        // A gateway that was suspended tries first.
        let has_lapsed = is_over && self.last_error.is_some();
        View {
            now,
            config: &self.config,
            me: &self.me,
            record,
            observer: &self.observer,
            is_member: self.standing == Standing::Member,
            is_valid,
            has_lapsed,
            is_stopping: self.is_stopping,
            joined_at: self.joined_at,
        }
    }

    /// Whether it is a member, and its last renewal is recent enough to serve and to decide.
    fn is_valid(&self, now: Time) -> bool {
        self.standing == Standing::Member
            && self.hosts == Hosts::Current
            && self.is_renewed_within(now, self.config.validity())
    }

    fn is_renewed_within(&self, now: Time, time: Duration) -> bool {
        let is_recent = |at| now.monotonic.saturating_sub(at) < time;
        self.renewed_at.is_some_and(is_recent)
    }

    fn set_drained(&mut self, gateway: &str, drained: bool) -> Result<(), OrderError> {
        self.known_for_order(gateway)?;
        let gateway = gateway.to_owned();
        self.order(Order::Drained { gateway, drained })
    }

    fn known_for_order(&self, gateway: &str) -> Result<&Known, OrderError> {
        match (&self.known, &self.standing) {
            (Some(known), Standing::Member) => {
                let is_present = is_name(gateway) && known.record.gateways.contains_key(gateway);
                is_present
                    .then_some(known)
                    .ok_or_else(|| OrderError::Gateway(gateway.to_owned()))
            }
            (_, Standing::Refused(refusal)) => Err(OrderError::Standing(refusal.to_string())),
            _ => Err(OrderError::Standing("it is starting or stopped".to_owned())),
        }
    }

    fn order(&mut self, order: Order) -> Result<(), OrderError> {
        if self.orders.len() >= MOST_ORDERS {
            return Err(OrderError::Busy);
        }
        self.orders.push(order);
        Ok(())
    }
}

impl Order {
    fn apply(&self, record: &mut Record, observer: &Observer) {
        match self {
            Self::Move { group, gateway } => {
                let Some(group) = record.groups.get_mut(group) else {
                    return;
                };
                group.failures.remove(gateway);
                group.note = None;
                group.wish = Some(Wish {
                    gateway: gateway.clone(),
                    reason: WishReason::Move,
                });
            }
            Self::Drained { gateway, drained } => {
                if let Some(entry) = record.gateways.get_mut(gateway) {
                    entry.drained = *drained;
                }
            }
            Self::Remove { gateway } => {
                let is_dead = matches!(observer.liveness(gateway), Liveness::Expired(_));
                if record
                    .gateways
                    .get(gateway)
                    .is_some_and(|entry| entry.stopped || is_dead)
                {
                    record.gateways.remove(gateway);
                }
            }
        }
    }
}
