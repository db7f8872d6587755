//! The Connect command (Base 2.1, 6.3): how a queue gets a controller, and all reasons to
//! refuse it. A host that has to authenticate itself gets it later: see `authentication`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_dhchap::{ControllerAuth, Policy, Proof};
use nvmeof_wire::fabrics::{
    CATTR_NO_SQ_FLOW, CNTLID_DYNAMIC, CONNECT_DATA_LEN, Connect, ConnectData, ConnectResult,
    FcType, InvalidParameter,
};
use nvmeof_wire::nqn::NqnError;
use nvmeof_wire::{Nqn, Sqe, Status, opcode};
use zerocopy::FromBytes;

use super::authentication::Authentication;
use super::io::{Joined, Quota};
use super::{ExhaustedQuotas, FollowUps, Queue, Role, common_checks};
use crate::controller::{Controller, ControllerKind, Features};
use crate::model::Choice;
use crate::quota::PeerUsage;
use crate::registry::{Proposal, Route};
use crate::request::{Failure, Next, Request, Stage};
use crate::shared::Served;
use crate::{
    Authenticated, CloseCause, ControllerIds, Data, InFlight, KeyState, Limit, Model, PortAddress,
};

// Byte offsets of fields of the command and of its data, for error reports.
const RECFMT: InvalidParameter = InvalidParameter::InCommand(40);
const QID: InvalidParameter = InvalidParameter::InCommand(42);
const SQSIZE: InvalidParameter = InvalidParameter::InCommand(44);
const HOSTID: InvalidParameter = InvalidParameter::InData(0);
const CNTLID: InvalidParameter = InvalidParameter::InData(16);
const SUBNQN: InvalidParameter = InvalidParameter::InData(256);
const HOSTNQN: InvalidParameter = InvalidParameter::InData(512);

/// A refused Connect: the failure for the host, and the cause for the log.
pub(super) struct Refused {
    failure: Failure,
    cause: String,
}

impl Refused {
    fn new(failure: impl Into<Failure>, cause: impl fmt::Display) -> Self {
        Self {
            failure: failure.into(),
            cause: cause.to_string(),
        }
    }

    /// Connect Invalid Parameters, with the invalid field.
    fn parameter(field: InvalidParameter, cause: impl fmt::Display) -> Self {
        let failure = Failure {
            result: field.to_result(),
            ..Status::CONNECT_INVALID_PARAMETERS.into()
        };
        Self::new(failure, format_args!("{}: {cause}", field.field()))
    }
}

/// A Connect with valid syntax: what joins a controller.
#[derive(Debug)]
pub(super) struct Candidate {
    connect: Connect,
    who: HostIdentity,
    /// Entries of the submission queue.
    entries: u16,
    /// The identifier of the controller, if the host knows it already.
    proposed: Option<Proposal>,
}

impl Candidate {
    /// Host and subsystem.
    pub(super) fn names(&self) -> (&str, &str) {
        (self.who.hostnqn.as_str(), self.who.subnqn.as_str())
    }

    /// Host and subsystem.
    pub(super) fn nqns(&self) -> (Nqn, Nqn) {
        (self.who.hostnqn, self.who.subnqn)
    }
}

/// The data of a Connect with valid syntax.
#[derive(Debug)]
struct HostIdentity {
    hostid: [u8; 16],
    /// If the host sent no NQN, one derived from its Host Identifier.
    hostnqn: Nqn,
    /// Whether the host sent an NQN.
    is_named: bool,
    subnqn: Nqn,
    cntlid: u16,
}

impl Queue {
    /// A command on a queue that is not connected yet. Base 2.1, 6.3: any
    /// other command than Connect is aborted with Command Sequence Error. The
    /// queue is then closed, because its peer is not known as a host.
    pub(super) fn begin_unconnected(
        &mut self,
        now: Duration,
        request: &mut Request,
        sqe: &Sqe,
    ) -> Result<Next, Failure> {
        if self.authentication.is_some() {
            return self.begin_unproven(now, request, sqe);
        }
        let connects = sqe.opcode == opcode::FABRICS && FcType::of(sqe) == FcType::CONNECT;
        if !connects {
            let opcode = sqe.opcode;
            self.remark(format!("the first command is {opcode:?}, expected Connect"));
            self.closing = Some(CloseCause::NotConnected);
            self.follow_ups |= FollowUps::POLL;
            return Err(Status::COMMAND_SEQUENCE_ERROR.into());
        }
        common_checks(sqe)?;
        let len = u32::try_from(CONNECT_DATA_LEN).unwrap_or(u32::MAX);
        if let Err(failure) = request.takes(len) {
            self.remark(format!("Connect refused: {}", failure.status));
            return Err(failure);
        }
        if let Data::List { .. } = request.data {
            let failure = Failure::from(Status::SGL_DESCRIPTOR_TYPE_INVALID);
            self.remark(format!("Connect refused: {}", failure.status));
            return Err(failure);
        }
        if let Role::Unconnected { is_busy, .. } = &mut self.role {
            *is_busy = true;
        }
        request.stage = Stage::Connect(Connect::parse(sqe));
        Ok(Next::Data)
    }

    /// The data of a Connect have arrived.
    pub(super) fn connect(
        &mut self,
        now: Duration,
        connect: &Connect,
        data: &[u8],
    ) -> Result<Next, Failure> {
        let Role::Unconnected { is_busy, .. } = &mut self.role else {
            return Err(Status::INTERNAL_ERROR.into());
        };
        // The host may retry after a refusal.
        *is_busy = false;
        match self.admitted(now, connect, data) {
            Ok(result) => {
                self.follow_ups |= FollowUps::DEADLINE;
                Ok(Next::Done(result.to_result()))
            }
            Err(refused) => Err(self.report_refusal(refused, &named(data))),
        }
    }

    /// Reports a refusal, with the names of host and subsystem.
    pub(super) fn report_refusal(&mut self, refused: Refused, who: &str) -> Failure {
        let Refused { failure, cause } = refused;
        let status = failure.status;
        self.remark(format!("Connect refused: {status}: {cause}{who}"));
        failure
    }

    fn admitted(
        &mut self,
        now: Duration,
        connect: &Connect,
        data: &[u8],
    ) -> Result<ConnectResult, Refused> {
        let candidate = Candidate {
            connect: *connect,
            entries: self.check_command(connect)?,
            who: check_data(data)?,
            proposed: None,
        };
        let (host, subsystem) = candidate.nqns();
        let policy = self.shared.served().model.policy(&host, &subsystem);
        if let Some(policy) = policy {
            return self.require(now, candidate, policy);
        }
        let cntlid = self.join(now, &candidate, None)?;
        Ok(ConnectResult::new(cntlid, false))
    }

    /// The host has to authenticate itself before the queue joins: until then, it uses nothing
    /// that other hosts could lack.
    fn require(
        &mut self,
        now: Duration,
        mut candidate: Candidate,
        policy: Arc<Policy>,
    ) -> Result<ConnectResult, Refused> {
        self.check_room()?;
        let who = &candidate.who;
        self.check_keys(who)?;
        let (cntlid, kato_ms) = if self.qid == 0 {
            let served = self.shared.served();
            let kind = checked_kind(&served, who, self.port.as_ref())?;
            let choice = identifiers(&served.model, who, &kind);
            let proposed = self.shared.registry.propose(&choice);
            let ids = choice.ids;
            drop(served);
            let proposed = proposed.ok_or_else(|| self.no_identifier(ids))?;
            let cntlid = proposed.cntlid();
            candidate.proposed = Some(proposed);
            let kato_ms = Features::new(candidate.connect.kato.get()).kato_ms;
            (cntlid, kato_ms)
        } else {
            let controller = self.checked_controller(who, candidate.entries)?;
            let kato_ms = controller.lock().features.kato_ms;
            (who.cntlid, kato_ms)
        };
        // As of Connect: SQHD of the completions to come depends on it.
        self.set_flow_control(&candidate);
        let (host, subsystem) = candidate.nqns();
        let keep_alive = Duration::from_millis(kato_ms.into());
        let auth = ControllerAuth::new(host, subsystem, policy, keep_alive, now);
        let authentication = Authentication::required(auth, candidate);
        self.authentication = Some(Box::new(authentication));
        self.role = Role::Unconnected {
            since: now,
            is_busy: false,
        };
        Ok(ConnectResult::new(cntlid, true))
    }

    /// Refuses a host whose keys are not known at present, so that it tries again. Its
    /// authentication would fail, after which a host may not: Linux then deletes its controller.
    fn check_keys(&self, who: &HostIdentity) -> Result<(), Refused> {
        let served = self.shared.served();
        let policy = served.model.authentication().hosts.get(&who.hostnqn);
        if policy.is_none_or(|policy| !policy.keys.is_empty()) {
            return Ok(());
        }
        let failure = Failure::transient(Status::CONNECT_CONTROLLER_BUSY);
        let cause = "no key file of the host could be read";
        Err(Refused::new(failure, cause))
    }

    /// Whether the engine has buffers for the queue.
    fn check_room(&mut self) -> Result<(), Refused> {
        match self.no_room.take() {
            None => Ok(()),
            Some(missing) => {
                let failure = Failure::transient(Status::CONNECT_CONTROLLER_BUSY);
                Err(Refused::new(failure, missing))
            }
        }
    }

    /// SQHD is by the entries and the flow control of the Connect.
    fn set_flow_control(&mut self, candidate: &Candidate) {
        self.sq.entries = candidate.entries;
        self.sq.no_flow_control = candidate.connect.cattr & CATTR_NO_SQ_FLOW != 0;
    }

    /// Gets the queue a controller, or refuses it; with what the host proved, if it had to.
    pub(super) fn join(
        &mut self,
        now: Duration,
        candidate: &Candidate,
        proof: Option<Proof>,
    ) -> Result<u16, Refused> {
        self.check_room()?;
        let Candidate { who, entries, .. } = candidate;
        let proved = proof.as_ref().map(|proof| {
            let policy = self.shared.served().model.policy(&who.hostnqn, &who.subnqn);
            Authenticated::of(proof, policy.as_deref())
        });
        let (role, in_flight, replaced) = if self.qid == 0 {
            let (controller, lost) = self.new_controller(now, candidate, proof)?;
            let in_flight = controller.in_flight.join();
            (Role::Admin(controller), in_flight, lost)
        } else {
            let (joined, in_flight) = self.new_member(who, *entries)?;
            (Role::Io(joined), in_flight, None)
        };
        self.in_flight = Some(in_flight);
        self.role = role;
        self.exhausted = ExhaustedQuotas::default();
        self.set_flow_control(candidate);
        let Some(controller) = self.controller() else {
            return Err(Refused::new(Status::INTERNAL_ERROR, "no controller"));
        };
        controller.hot.note_activity(now);
        let cntlid = controller.cntlid;
        self.meter.join(who.hostnqn, who.subnqn);
        let connected = match self.qid {
            0 => {
                let replaced = replaced.map_or_else(String::new, |lost| self.replaced_text(&lost));
                let proved = proved.map_or_else(String::new, |it| format!(", authenticated: {it}"));
                let (subsystem, host) = (who.subnqn, who.hostnqn);
                let unnamed = if who.is_named {
                    ""
                } else {
                    ", which sent an empty HOSTNQN and is identified by its Host Identifier"
                };
                let shared = self.namesake(who).map_or_else(String::new, |other| {
                    format!(", which has the host identifier of {other}: give each its own")
                });
                format!(
                    "controller {cntlid} of {subsystem} connected by {host}{unnamed}{shared}\
                     {proved}{replaced}"
                )
            }
            qid => format!("queue {qid} of controller {cntlid} connected, {entries} entries"),
        };
        self.remark(connected);
        Ok(cntlid)
    }

    /// Returns the entries of the queue.
    fn check_command(&self, connect: &Connect) -> Result<u16, Refused> {
        let recfmt = connect.recfmt.get();
        if recfmt != 0 {
            let failure = Failure {
                result: RECFMT.to_result(),
                ..Status::CONNECT_INCOMPATIBLE_FORMAT.into()
            };
            let cause = format_args!("record format {recfmt}, expected 0");
            return Err(Refused::new(failure, cause));
        }
        let qid = connect.qid.get();
        if qid != self.qid {
            // RDMA transport 1.0, 3.1: the private data names the same queue.
            let cause = format_args!("{qid}, but the connection is for queue {}", self.qid);
            return Err(Refused::parameter(QID, cause));
        }
        // The private data determined the number of posted receives; "a queue size of 0 ...
        // is aborted with Connect Invalid Parameters".
        let sqsize = connect.sqsize.get();
        let largest = self.entries - 1;
        connect
            .entries()
            .filter(|_| (1..=largest).contains(&sqsize))
            .ok_or_else(|| {
                let cause = format_args!("{sqsize}, expected 1 to {largest} (zero-based)");
                Refused::parameter(SQSIZE, cause)
            })
    }

    /// Creates a controller. Also returns the discovery controller that it replaced, if any.
    fn new_controller(
        &mut self,
        now: Duration,
        candidate: &Candidate,
        proof: Option<Proof>,
    ) -> Result<(Arc<Controller>, Option<Arc<Controller>>), Refused> {
        let who = &candidate.who;
        // Held until the controller is registered, where a model change looks for it.
        let served = self.shared.served();
        let kind = checked_kind(&served, who, self.port.as_ref())?;
        if let Some(proof) = &proof {
            check_key(&served.model, who, proof)?;
        }
        if self.exhausted.port {
            return Err(self.refused_by(Limit::PortMemory, who));
        }
        let finds = matches!(kind, ControllerKind::Discovery);
        if !finds && self.exhausted.hosts.contains(&who.hostnqn) {
            return Err(self.refused_by(Limit::HostMemory, who));
        }
        let choice = identifiers(&served.model, who, &kind);
        let features = Features::new(candidate.connect.kato.get());
        let (hostnqn, hostid) = (who.hostnqn, who.hostid);
        // If the port was removed meanwhile, the connection is about to be closed.
        let (port, home) = (self.port.clone(), self.home.reactor);
        let (peer, source) = (Arc::clone(&self.endpoints.peer), self.endpoints.source);
        let queue_depth = served.model.queue_depth_at(port.as_ref());
        let make = |cntlid| {
            let mut controller = Controller::new(cntlid, hostnqn, hostid, port, kind, features);
            controller.home = home;
            controller.queue_depth = queue_depth;
            controller.peer = peer;
            controller.source = source;
            controller.lock().proof = proof;
            controller.hot.arm(now);
            controller
        };
        let registry = &self.shared.registry;
        let port = self.port.as_ref();
        let ids = choice.ids;
        let choice = (&choice, candidate.proposed.as_ref());
        let (added, lost) = if finds {
            let (added, lost) = registry.add_discovery(&hostnqn, port, choice, make);
            (added.ok_or(Limit::ControllerIds), lost)
        } else {
            let ports = served.model.ports();
            let route = Route { port, ports };
            (
                registry.add((&hostnqn, &hostid), &route, choice, make),
                None,
            )
        };
        drop(served);
        if let Some(lost) = &lost {
            self.shared.limit_counters.add(Limit::DiscoveryControllers);
            // A discovery controller has only its admin queue.
            self.request_calls([lost.home_call()]);
        }
        let added = added.map_err(|limit| match (limit, &candidate.proposed) {
            (Limit::ControllerIds, Some(proposed)) => self.identifier_taken(proposed.cntlid()),
            (Limit::ControllerIds, None) => self.no_identifier(ids),
            (limit, _) => self.refused_by(limit, who),
        });
        Ok((added?, lost))
    }

    /// Another host with the same host identifier that has a controller.
    fn namesake(&self, who: &HostIdentity) -> Option<Nqn> {
        let all = self.shared.registry.all();
        let mut others = all
            .iter()
            .filter(|one| one.hostid == who.hostid && one.hostnqn != who.hostnqn);
        others
            .find(|one| !one.is_discovery())
            .map(|one| one.hostnqn)
    }

    /// The log text for a replaced discovery controller.
    fn replaced_text(&self, lost: &Controller) -> String {
        let (limit, most) = (
            Limit::DiscoveryControllers,
            self.shared.limits.discovery_controllers,
        );
        let Controller {
            cntlid,
            hostnqn,
            peer,
            ..
        } = lost;
        format!("; replaces discovery controller {cntlid} of {hostnqn}, {peer} ({limit} = {most})")
    }

    /// Refuses a Connect because the subsystem has no controller identifier left.
    fn no_identifier(&self, ids: ControllerIds) -> Refused {
        let cause = format_args!(
            "all controller identifiers of this subsystem, {ids}, are in use; raise its \
             cntlid_max or lower its cntlid_min, without overlapping other targets that serve it"
        );
        self.busy(Limit::ControllerIds, cause)
    }

    /// Refuses a Connect because the identifier that the host was told is in use meanwhile.
    fn identifier_taken(&self, cntlid: u16) -> Refused {
        let cause = format_args!(
            "another host got controller identifier {cntlid} while this one authenticated itself; \
             it can connect again"
        );
        self.busy(Limit::ControllerIds, cause)
    }

    /// Controller Busy because of `limit`, which is counted. The host may retry, because
    /// resources may be released.
    fn busy(&self, limit: Limit, cause: impl fmt::Display) -> Refused {
        self.shared.limit_counters.add(limit);
        let failure = Failure::transient(Status::CONNECT_CONTROLLER_BUSY);
        Refused::new(failure, cause)
    }

    /// Refuses a Connect because of `limit`.
    fn refused_by(&self, limit: Limit, who: &HostIdentity) -> Refused {
        let limits = &self.shared.limits;
        let host = format_args!("host {}", who.hostnqn);
        let has_more = |most: u32, what| {
            let cause = format_args!("{host} would have more than {most} {what}; raise {limit}");
            self.busy(limit, cause)
        };
        let kept_for = |holder: fmt::Arguments<'_>, others, percent| {
            let cause = format_args!(
                "{holder} has queues, and the remaining capsule buffers are reserved for {others} \
                 ({limit} = {percent}); raise reactor.buffer_memory or {limit}"
            );
            self.busy(limit, cause)
        };
        match limit {
            Limit::HostControllers => has_more(limits.host_controllers.into(), "controllers"),
            Limit::HostQueues => has_more(limits.host_queues.into(), "I/O queues"),
            Limit::HostCommands => {
                has_more(limits.host_commands, "commands outstanding on its queues")
            }
            Limit::HostMemory => kept_for(host, "others", limits.host_memory),
            Limit::PortControllers => {
                let (port, all) = (self.port_name(), limits.controllers);
                let most = limits.port_controllers;
                let cause = format_args!(
                    "port {port} has its quota of the {all} controllers, and the remaining ones \
                     are reserved for hosts of other ports ({limit} = {most}); raise \
                     limits.controllers or {limit}"
                );
                self.busy(limit, cause)
            }
            Limit::PortCommands => {
                let ports = self.shared.port_count();
                let (port, most) = (self.port_name(), limits.port_commands.with_ports(ports));
                let cause = format_args!(
                    "port {port} would have more than {most} commands outstanding on its queues; \
                     raise {limit}"
                );
                self.busy(limit, cause)
            }
            Limit::PortMemory => {
                let port = self.port_name();
                let holder = format_args!("port {port}");
                kept_for(holder, "hosts of other ports", limits.port_memory)
            }
            Limit::UniqueHostIds => {
                self.shared.limit_counters.add(limit);
                let other = self.namesake(who);
                let other = other.map_or_else(String::new, |other| format!(" ({other})"));
                let cause = format_args!(
                    "{host} has the host identifier of another host{other}; give each host its \
                     own, in /etc/nvme/hostid ({limit})"
                );
                let failure = Failure::transient(Status::CONNECT_INVALID_HOST);
                Refused::new(failure, cause)
            }
            _ => {
                let most = limits.controllers;
                let cause = format_args!("all {most} controllers are in use; raise {limit}");
                self.busy(limit, cause)
            }
        }
    }

    /// The name of the port in messages. Only queues on a known port are subject to its
    /// limits.
    fn port_name(&self) -> String {
        let port = self.port.as_ref();
        port.map_or_else(String::new, ToString::to_string)
    }

    /// Adds this queue to the quotas of its host and of its port.
    fn quota(&self, who: &HostIdentity, entries: u16) -> Result<Quota, Refused> {
        let (shared, limits) = (&self.shared, &self.shared.limits);
        let host = |taken: PeerUsage| {
            if taken.count > limits.host_queues.into() {
                Err(Limit::HostQueues)
            } else if taken.weight > limits.host_commands {
                Err(Limit::HostCommands)
            } else if self.exhausted.hosts.contains(&who.hostnqn) {
                Err(Limit::HostMemory)
            } else {
                Ok(())
            }
        };
        let ports = shared.port_count();
        let port = |taken: PeerUsage| {
            if taken.weight > limits.port_commands.with_ports(ports) {
                Err(Limit::PortCommands)
            } else if self.exhausted.port {
                Err(Limit::PortMemory)
            } else {
                Ok(())
            }
        };
        let of_host = shared
            .hosts
            .take(who.hostnqn.as_str(), entries.into(), host);
        let of_host = of_host.map_err(|limit| self.refused_by(limit, who))?;
        let of_port = self.port.as_ref().map(|at| {
            let taken = shared
                .port_queues
                .take(&at.to_string(), entries.into(), port);
            taken.map_err(|limit| self.refused_by(limit, who))
        });
        Ok(Quota {
            _host: of_host,
            _port: of_port.transpose()?,
        })
    }

    /// The controller of an I/O queue. What other queues can change is checked when it joins.
    fn checked_controller(
        &self,
        who: &HostIdentity,
        entries: u16,
    ) -> Result<Arc<Controller>, Refused> {
        // Without DNR: the host lost its controller and will create another one.
        let no_such = || {
            let cause = format_args!("controller {} does not exist", who.cntlid);
            let mut refused = Refused::parameter(CNTLID, cause);
            refused.failure.status = Status::CONNECT_INVALID_PARAMETERS;
            refused
        };
        let controller = self.shared.registry.get(who.cntlid).ok_or_else(no_such)?;
        // Base 2.1, 6.3: host NQN, host identifier and subsystem NQN are those
        // of the admin queue's Connect.
        if controller.subnqn() != who.subnqn {
            let cause = format_args!("{}, but the controller has another subsystem", who.subnqn);
            return Err(Refused::parameter(SUBNQN, cause));
        }
        if controller.hostnqn != who.hostnqn {
            let cause = format_args!("{}, but the controller has another host", who.hostnqn);
            return Err(Refused::parameter(HOSTNQN, cause));
        }
        if controller.hostid != who.hostid {
            let cause = "differs from that of the admin queue";
            return Err(Refused::parameter(HOSTID, cause));
        }
        // Access was checked for the port of the admin queue.
        if let (Some(port), Some(its)) = (&self.port, &controller.viewer.port)
            && port != its
        {
            let cause = format_args!("{}, but its admin queue is on port {its}", who.cntlid);
            return Err(Refused::parameter(CNTLID, cause));
        }
        if controller.is_discovery() {
            let cause = "a discovery controller has no I/O queues";
            return Err(Refused::parameter(QID, cause));
        }
        // Base 2.1, 6.3, SQSIZE: a queue "larger than the controller supports", as reported
        // in CAP.MQES.
        let most = controller.queue_depth;
        if entries > most {
            let (sqsize, largest) = (entries - 1, most.saturating_sub(1));
            let cause = format_args!("{sqsize}, expected 1 to {largest} (zero-based) on this port");
            return Err(Refused::parameter(SQSIZE, cause));
        }
        Ok(controller)
    }

    fn new_member(&self, who: &HostIdentity, entries: u16) -> Result<(Joined, InFlight), Refused> {
        let controller = self.checked_controller(who, entries)?;
        let ControllerKind::Nvm(live) = &controller.kind else {
            return Err(Refused::new(Status::INTERNAL_ERROR, "no subsystem"));
        };
        let quota = self.quota(who, entries)?;
        let reserves = self.shared.save_queue.has_keeper();
        let limits = &self.shared.limits;
        let joined = Joined::new(Arc::clone(&controller), live, limits, reserves, quota);
        let most = controller.most_io_queues();
        let in_flight = controller.in_flight.join();
        let mut cold = controller.lock();
        if !controller.hot.is_ready() {
            let cause = "the controller is not enabled";
            let failure = Failure::transient(Status::COMMAND_SEQUENCE_ERROR);
            return Err(Refused::new(failure, cause));
        }
        let granted = cold.features.io_queues.unwrap_or(most);
        if self.qid > granted {
            let cause = format_args!("{}, but {granted} I/O queues were granted", self.qid);
            return Err(Refused::parameter(QID, cause));
        }
        if cold.queues.contains_key(&self.qid) {
            let cause = format_args!("queue {} is connected already", self.qid);
            return Err(Refused::parameter(QID, cause));
        }
        cold.queues.insert(self.qid, self.home.reactor);
        drop(cold);
        Ok((joined, in_flight))
    }

    pub(super) fn remark(&mut self, text: String) {
        self.remark = Some(text);
        self.follow_ups |= FollowUps::REMARK;
    }
}

/// Host and subsystem of the data of a Connect, as far as they are valid.
fn named(data: &[u8]) -> String {
    let Ok((data, _)) = ConnectData::read_from_prefix(data) else {
        return String::new();
    };
    let named = |what, field| Nqn::from_field(field).map(|nqn| format!("{what} {nqn}"));
    let both = [
        named("host", &data.hostnqn),
        named("subsystem", &data.subnqn),
    ];
    let known: Vec<String> = both.into_iter().flatten().collect();
    match known[..] {
        [] => String::new(),
        _ => format!(" ({})", known.join(", ")),
    }
}

/// The purpose of a controller of an admin queue.
fn checked_kind(
    served: &Served,
    who: &HostIdentity,
    port: Option<&PortAddress>,
) -> Result<ControllerKind, Refused> {
    // Identify Controller, FCATTR: this is the dynamic controller model.
    if who.cntlid != CNTLID_DYNAMIC {
        let cause = format_args!("{:#06x}, expected 0xffff on the admin queue", who.cntlid);
        return Err(Refused::parameter(CNTLID, cause));
    }
    kind_for(served, who, port)
}

/// Refuses a key that was removed while its host proved it: the controllers that used it were
/// disconnected before this one existed.
fn check_key(model: &Model, who: &HostIdentity, proof: &Proof) -> Result<(), Refused> {
    let policy = model.policy(&who.hostnqn, &who.subnqn);
    let Some(policy) = policy else {
        return Ok(());
    };
    if Authenticated::of(proof, Some(&policy)).key == KeyState::Removed {
        let failure = Failure::transient(Status::CONNECT_CONTROLLER_BUSY);
        let cause = "the key of the host was removed during its authentication";
        return Err(Refused::new(failure, cause));
    }
    Ok(())
}

/// The identifiers that a new controller may have.
fn identifiers<'a>(model: &'a Model, who: &HostIdentity, kind: &ControllerKind) -> Choice<'a> {
    let finds = matches!(kind, ControllerKind::Discovery);
    let subsystem = model.subsystem(&who.subnqn).map(|one| &**one);
    model.controller_ids(subsystem.filter(|_| !finds))
}

/// The purpose of a controller of a host on `port`.
fn kind_for(
    served: &Served,
    who: &HostIdentity,
    port: Option<&PortAddress>,
) -> Result<ControllerKind, Refused> {
    if served.model.discovery().is_called(&who.subnqn) {
        return Ok(ControllerKind::Discovery);
    }
    let live = served.live(&who.subnqn).ok_or_else(|| {
        let cause = format_args!("subsystem {} does not exist", who.subnqn);
        Refused::parameter(SUBNQN, cause)
    })?;
    let port = port.and_then(|at| served.model.port(at));
    if port.is_some_and(|port| !port.offers(&who.subnqn)) {
        let cause = format_args!("this port does not offer subsystem {}", who.subnqn);
        return Err(Refused::parameter(SUBNQN, cause));
    }
    let subsystem = &live.current().subsystem;
    if !who.is_named && subsystem.allowed_hosts.is_some() {
        let cause = format_args!(
            "the host sent an empty HOSTNQN, and {} accepts only hosts in its allowed_hosts; set \
             one of these names on the host, or set allow_any_host",
            who.subnqn
        );
        return Err(Refused::new(Status::CONNECT_INVALID_HOST, cause));
    }
    if !subsystem.allows(&who.hostnqn) {
        let cause = format_args!(
            "host {} is not in allowed_hosts of {}",
            who.hostnqn, who.subnqn
        );
        return Err(Refused::new(Status::CONNECT_INVALID_HOST, cause));
    }
    Ok(ControllerKind::Nvm(Arc::clone(live)))
}

fn check_data(data: &[u8]) -> Result<HostIdentity, Refused> {
    let Ok((data, _)) = ConnectData::read_from_prefix(data) else {
        return Err(Refused::new(Status::INTERNAL_ERROR, "data too short"));
    };
    // Base 2.1, 6.3, requires HOSTNQN, but tools of SPDK send none by default, and the targets
    // of Linux and SPDK accept such hosts if any host may connect. Quotas, counters and write
    // loss are by NQN: derive one from the Host Identifier, which by the same section is the
    // same on all queues of a host.
    let (hostnqn, is_named) = match Nqn::from_field(&data.hostnqn) {
        Ok(hostnqn) => (hostnqn, true),
        Err(NqnError::Empty) => (Nqn::of_uuid(&data.hostid), false),
        Err(error) => return Err(Refused::parameter(HOSTNQN, error)),
    };
    let subnqn =
        Nqn::from_field(&data.subnqn).map_err(|error| Refused::parameter(SUBNQN, error))?;
    // Base 2.1, 5.1.25.1.28: a Host Identifier of 0 stands for none, which fabrics do not
    // permit.
    if data.hostid == [0; 16] {
        return Err(Refused::parameter(HOSTID, "zero, expected a UUID"));
    }
    Ok(HostIdentity {
        hostid: data.hostid,
        hostnqn,
        is_named,
        subnqn,
        cntlid: data.cntlid.get(),
    })
}
