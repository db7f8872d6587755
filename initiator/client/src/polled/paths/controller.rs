//! One controller of a path, from the first attempt to connect it to its loss: its admin queue,
//! the checks of its namespace, and its I/O queues until the I/O half takes them.
//!
//! ```text
//!  Setup ── ready ──► Checks ── namespace and ANA states known ──► Queues ── connected ──► Live
//!    │                  │                                            │                      │
//!    └──────────────────┴────────────── error: failed ───────────────┘        error: lost ──┘
//! ```
//!
//! While it is live, the checks are made again when an event says that something may have changed.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_initiator_core::dhchap::HostKeys;
use nvmeof_initiator_core::multipath::{
    AnaGroups, AnaLimits, AnaReader, PathAccess, RetryPolicy, SharedNamespace, check_subsystem,
    check_unique,
};
use nvmeof_initiator_core::{
    Command, CommandError, ControllerEvent, ControllerInfo, Names, QueueShape, SetupError, admin,
};
use nvmeof_memory::Region;
use nvmeof_rdma::Address;
use nvmeof_wire::Status;
use nvmeof_wire::admin::{Cns, CrossControllerReset};
use nvmeof_wire::identify::descriptors::NamespaceIdentifiers;
use nvmeof_wire::identify::{DescriptorList, IdentifyNamespace, NamespaceList};
use nvmeof_wire::log::ana::AnaState;
use zerocopy::FromBytes;

use super::keys::{Authentication, KeyRequest};
use super::shared::{Incarnation, Incoming};
use super::{PathConfig, Providers};
use crate::error::{Error, MachineError, UsageError};
use crate::geometry::Geometry;
use crate::polled::admin::AdminQueue;
use crate::polled::call::{Call, Done};
use crate::polled::io::{IoConfig, IoQueue};

/// The namespace, as the first path reported it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) geometry: Geometry,
    namespace: SharedNamespace,
}

/// What a controller needs of its owner.
pub(super) struct Context<'a> {
    pub(super) path: usize,
    pub(super) config: &'a PathConfig,
    pub(super) nsid: u32,
    /// Entries of each I/O queue.
    pub(super) queue_size: u16,
    pub(super) providers: &'a mut dyn Providers,
    /// `None` until the first controller has reported the namespace.
    pub(super) head: &'a mut Option<Head>,
    /// The memory of calls.
    pub(super) regions: &'a [Region],
    /// Addresses and identifiers of the controllers of other paths, from their set-up on.
    pub(super) others: &'a [(Address, u16)],
}

/// A completion that concerns the fence of another controller.
#[derive(Debug)]
pub(super) enum FenceNews {
    /// The reset of that controller completed, with dword 0.
    Reset(Incarnation, Status, u32),
    /// The log page of resets was read; `None` if that failed.
    Log(Option<Vec<u8>>),
    /// A reset has completed: the log page is to be read.
    Notice,
}

#[derive(Debug)]
pub(super) struct Controller {
    pub(super) incarnation: Incarnation,
    addr: Address,
    queue: AdminQueue,
    stage: Stage,
    /// When checks or the connection of I/O queues must be complete.
    deadline: Option<Duration>,
    inquiry: Inquiry,
    /// When a check may be made again after one that failed.
    inquire_at: Duration,
    /// When states that end by themselves are read again.
    passing_at: Duration,
    /// The namespace is to be checked.
    is_unchecked: bool,
    /// The namespace may be another one since the last check: it is not used before the next.
    is_doubted: bool,
    /// The ANA states are to be read.
    is_outdated: bool,
    /// Identify Namespace, until the identifiers are known as well.
    reported: Option<(Geometry, u32)>,
    /// ANA group of the namespace; 0 without ANA.
    group: u32,
    groups: Option<AnaGroups>,
    /// Why it is not used for the namespace.
    pub(super) refused: Option<Error>,
    /// How often it refused a command because of its ANA state.
    pub(super) refusals: u64,
    /// Queues that are not handed over.
    queues: Vec<IoQueue>,
    regions: usize,
    /// The I/O half has to see a change: of the access, its reason, or keys.
    is_changed: bool,
    pub(super) authentication: Authentication,
    pub(super) news: Vec<FenceNews>,
    done: Vec<Done>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Setup,
    Checks,
    Queues,
    Live,
}

/// The admin command that is outstanding for a check.
#[derive(Debug)]
enum Inquiry {
    None,
    Namespace,
    /// The namespace does not exist: which do?
    ActiveList,
    Descriptors,
    Ana(Box<AnaReader>),
}

// Identifiers of admin commands. Those of resets follow.
const CHECK: u64 = 1;
const RESET_LOG: u64 = 2;
const RESETS: u64 = 1 << 32;

/// The Cross-Controller Reset log page: its longest form is 511 entries and their count.
const RESET_LOG_LEN: u32 = 4096;

/// How long to wait before a failed check is made again, and before states that end by themselves
/// are read again.
const AGAIN: Duration = Duration::from_secs(1);

impl Controller {
    /// Starts to connect.
    pub(super) fn connect(
        incarnation: Incarnation,
        context: &mut Context<'_>,
        now: Duration,
    ) -> Result<Self, Error> {
        let config = context.config;
        let provider = context.providers.provider(context.path)?;
        let queue = AdminQueue::connect(provider, config.addr, config.admin.clone(), now)?;
        Ok(Self {
            incarnation,
            addr: config.addr,
            queue,
            stage: Stage::Setup,
            deadline: None,
            inquiry: Inquiry::None,
            inquire_at: now,
            passing_at: now,
            is_unchecked: true,
            is_doubted: false,
            is_outdated: true,
            reported: None,
            group: 0,
            groups: None,
            refused: None,
            refusals: 0,
            queues: Vec::new(),
            regions: 0,
            is_changed: false,
            authentication: Authentication::new(config.admin.setup.names.keys.clone()),
            news: Vec::new(),
            done: Vec::new(),
        })
    }

    pub(super) fn info(&self) -> Option<&ControllerInfo> {
        self.queue.info().map(AsRef::as_ref)
    }

    /// Its address and identifier, once it is set up.
    pub(super) fn identity(&self) -> Option<(Address, u16)> {
        let info = self.info().filter(|_| self.stage != Stage::Setup)?;
        Some((self.addr, info.cntlid))
    }

    pub(super) fn is_live(&self) -> bool {
        self.stage == Stage::Live
    }

    /// Whether the I/O half has to see a change since the last call.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    /// The access to the namespace, and whether there may be access without a reconnect.
    pub(super) fn access(&self) -> (PathAccess, bool) {
        if self.is_doubted {
            return (PathAccess::None, true);
        }
        if self.refused.is_some() {
            return (PathAccess::None, false);
        }
        let state = match &self.groups {
            Some(groups) => groups.state(self.group),
            None => AnaState::OPTIMIZED,
        };
        let access = match state {
            AnaState::OPTIMIZED => PathAccess::Optimized,
            AnaState::NON_OPTIMIZED => PathAccess::NonOptimized,
            _ => PathAccess::None,
        };
        (access, state != AnaState::PERSISTENT_LOSS)
    }

    /// It refused a command because of its ANA state, which is read again.
    pub(super) fn refuses(&mut self) {
        if let Some(groups) = &mut self.groups {
            groups.refused(self.group);
        }
        self.refusals += 1;
        self.is_outdated = true;
        self.is_changed = true;
    }

    /// Authenticates the queues of a live controller again, with `keys`.
    pub(super) fn authenticate(&mut self, keys: Arc<HostKeys>) {
        self.authentication.begin(Arc::clone(&keys));
        if let Err(error) = self.queue.reauthenticate(Some(keys)) {
            self.authentication.on_admin(Err(error));
        }
    }

    /// A request to authenticate its I/O queues, once.
    pub(super) fn take_key_request(&mut self) -> Option<KeyRequest> {
        self.authentication.take_request(self.incarnation)
    }

    /// The connected queues, once.
    pub(super) fn take_queues(&mut self) -> Option<Incoming> {
        let info = self.queue.info()?;
        if self.stage != Stage::Live || self.queues.is_empty() {
            return None;
        }
        Some(Incoming {
            incarnation: self.incarnation,
            retry: RetryPolicy::of(&info.identify),
            queues: std::mem::take(&mut self.queues),
            regions: self.regions,
        })
    }

    /// Ends it because of `why`. The admin queue is to be polled until it is closed.
    pub(super) fn end(mut self, why: Error) -> AdminQueue {
        self.queue.close_because(why);
        self.queue
    }

    /// Shuts it down. The admin queue is to be polled until it is closed.
    pub(super) fn shut_down(mut self, now: Duration, timeout: Duration) -> AdminQueue {
        self.queue.shutdown(now, timeout);
        self.queue
    }

    /// Sends the reset of a lost controller. Returns false if that is not possible now.
    pub(super) fn send_reset(
        &mut self,
        reset: CrossControllerReset,
        of: Incarnation,
        now: Duration,
    ) -> bool {
        let command = admin::cross_controller_reset(reset);
        self.send(command, RESETS.saturating_add(of.0), now)
    }

    /// Reads the log page of resets. Returns false if that is not possible now.
    pub(super) fn read_resets(&mut self, now: Duration) -> bool {
        self.send(admin::cross_resets(RESET_LOG_LEN), RESET_LOG, now)
    }

    /// Makes progress. Returns whether there was any.
    ///
    /// # Errors
    /// The attempt to connect failed, or the controller is lost.
    pub(super) fn poll(&mut self, now: Duration, context: &mut Context<'_>) -> Result<bool, Error> {
        let mut done = std::mem::take(&mut self.done);
        let mut progress = self.queue.poll(now, &mut done);
        for call in done.drain(..) {
            self.on_done(&call, now, context)?;
        }
        self.done = done;
        // Before the error: a target may close the connection after it has refused the keys.
        if let Some(result) = self.queue.take_reauthentication() {
            self.authentication.on_admin(result);
            self.is_changed = true;
        }
        if let Some(error) = self.queue.error() {
            return Err(error.clone());
        }
        self.on_events(context.nsid);
        progress |= self.advance(now, context)?;
        self.inquire(now, context.nsid);
        self.queue.submit_now(now);
        Ok(progress)
    }

    /// When [`poll`](Self::poll) must be called.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let is_idle = matches!(self.inquiry, Inquiry::None) && self.stage != Stage::Setup;
        let is_due = self.is_unchecked || self.is_outdated;
        let due_at = Some(self.inquire_at).filter(|_| is_due);
        let passing_at = Some(self.passing_at).filter(|_| self.has_passing_state());
        let passing_at = passing_at.map(|at| at.max(self.inquire_at));
        let check_at = due_at
            .into_iter()
            .chain(passing_at)
            .min()
            .filter(|_| is_idle);
        let queues = self.queues.iter().filter_map(IoQueue::next_deadline);
        let ours = [self.queue.next_deadline(), self.deadline, check_at];
        ours.into_iter().flatten().chain(queues).min()
    }

    /// The descriptors to sleep on.
    pub(super) fn wait_fds(&self) -> impl Iterator<Item = Option<BorrowedFd<'_>>> {
        let queues = self.queues.iter().map(IoQueue::wait_fd);
        queues.chain([self.queue.wait_fd()])
    }

    pub(super) fn rest(&mut self) {
        self.queue.rest();
        self.queues.iter_mut().for_each(IoQueue::rest);
    }

    fn on_events(&mut self, nsid: u32) {
        while let Some(event) = self.queue.take_event() {
            match event {
                // The group of the namespace may have changed as well (Base 2.1, 8.1.1.2).
                ControllerEvent::AnaChanged => {
                    self.is_outdated = true;
                    self.is_unchecked = true;
                }
                // Without a list, each may have changed.
                ControllerEvent::NamespacesChanged(nsids)
                    if nsids.is_empty() || nsids.contains(&nsid) =>
                {
                    self.doubt();
                }
                ControllerEvent::CrossControllerReset => self.news.push(FenceNews::Notice),
                ControllerEvent::Lost => {
                    self.is_outdated = true;
                    self.doubt();
                    self.news.push(FenceNews::Notice);
                }
                _ => {}
            }
        }
    }

    /// The namespace may be another one now.
    fn doubt(&mut self) {
        self.is_unchecked = true;
        self.is_doubted = true;
        self.is_changed = true;
    }

    /// Checks that it is a controller of the subsystem, and of no other path.
    fn check_identity(&self, context: &Context<'_>) -> Result<(), Error> {
        let Some(info) = self.info() else {
            return Ok(());
        };
        let names = &context.config.admin.setup.names;
        let checked = check_subsystem(&names.subnqn, &info.identify);
        let checked = checked.and_then(|()| check_unique(info.cntlid, context.others));
        checked.map_err(|error| Error::setup(self.addr, 0, error))
    }

    /// The next stage, if this one is complete.
    fn advance(&mut self, now: Duration, context: &mut Context<'_>) -> Result<bool, Error> {
        let before = self.stage;
        match self.stage {
            Stage::Setup if self.queue.info().is_some() => {
                self.check_identity(context)?;
                self.stage = Stage::Checks;
                self.deadline = Some(now + context.config.admin.connect_timeout);
            }
            Stage::Checks if self.is_checked() => {
                self.open_queues(now, context)?;
                self.stage = Stage::Queues;
                self.deadline = Some(now + context.config.admin.connect_timeout);
            }
            Stage::Queues => {
                if self.poll_queues(now)? {
                    self.stage = Stage::Live;
                    self.deadline = None;
                    self.is_changed = true;
                }
            }
            Stage::Setup | Stage::Checks | Stage::Live => {}
        }
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            let time = context.config.admin.connect_timeout.as_secs_f32();
            let text = format!("the controller was not ready for I/O within {time} s");
            return Err(self.invalid(text));
        }
        Ok(self.stage != before)
    }

    fn is_checked(&self) -> bool {
        matches!(self.inquiry, Inquiry::None) && !self.is_unchecked && !self.is_outdated
    }

    /// Starts to connect the I/O queues, as many as the controller grants.
    fn open_queues(&mut self, now: Duration, context: &mut Context<'_>) -> Result<(), Error> {
        let Some(info) = self.queue.info().cloned() else {
            return Ok(());
        };
        let PathConfig {
            addr,
            admin,
            trusts_target,
        } = context.config;
        let count = admin.setup.io_queues.min(info.io_queues);
        if count == 0 {
            return Err(self.invalid("the controller grants no I/O queue".to_owned()));
        }
        // Those of the admin queue, although others may be configured since.
        let names = Names {
            keys: self.authentication.keys().cloned(),
            ..admin.setup.names.clone()
        };
        for qid in 1..=count {
            let config = IoConfig {
                names: names.clone(),
                queue: QueueShape {
                    qid,
                    size: context.queue_size,
                    flow_control: true,
                },
                command_timeout: admin.command_timeout,
                connect_timeout: admin.connect_timeout,
                trusts_target: *trusts_target,
            };
            let provider = context.providers.provider(context.path)?;
            let mut queue = IoQueue::connect(provider, *addr, &info, config, now)?;
            queue.join(self.queue.association());
            for region in context.regions {
                queue.register(region)?;
            }
            self.queues.push(queue);
        }
        self.regions = context.regions.len();
        Ok(())
    }

    /// Whether all I/O queues are connected.
    fn poll_queues(&mut self, now: Duration) -> Result<bool, Error> {
        for queue in &mut self.queues {
            queue.poll(now, &mut self.done);
            if let Some(error) = queue.error() {
                return Err(error.clone());
            }
        }
        Ok(self.queues.iter().all(IoQueue::is_ready))
    }

    /// Whether a group is in a state that ends by itself, perhaps without an event.
    fn has_passing_state(&self) -> bool {
        let groups = self.groups.as_ref();
        self.stage == Stage::Live && groups.is_some_and(|groups| !groups.is_all_accessible())
    }

    /// Sends the next command of a check, if one is due.
    fn inquire(&mut self, now: Duration, nsid: u32) {
        let is_idle = matches!(self.inquiry, Inquiry::None) && self.stage != Stage::Setup;
        if !is_idle || now < self.inquire_at {
            return;
        }
        let is_passing = self.has_passing_state() && now >= self.passing_at;
        if self.is_outdated || is_passing {
            self.is_outdated = false;
            self.passing_at = now + AGAIN;
            let limits = self.info().map(|info| AnaLimits::of(&info.identify, true));
            match limits.flatten() {
                Some(limits) => return self.read_ana(AnaReader::new(limits), now),
                None => self.groups = None,
            }
        }
        if self.is_unchecked {
            self.is_unchecked = false;
            let command = admin::identify(Cns::NAMESPACE, nsid);
            self.ask(Inquiry::Namespace, command, now);
        }
    }

    /// Continues to read the ANA log page.
    fn read_ana(&mut self, reader: AnaReader, now: Duration) {
        if let Some(command) = reader.poll_command() {
            return self.ask(Inquiry::Ana(Box::new(reader)), command, now);
        }
        self.groups = reader.into_log().map(|log| AnaGroups::of(&log));
        self.inquiry = Inquiry::None;
        self.is_changed = true;
    }

    fn ask(&mut self, inquiry: Inquiry, command: Command, now: Duration) {
        self.inquiry = match self.send(command, CHECK, now) {
            true => inquiry,
            // No room: all is checked again.
            false => {
                self.check_again(now);
                Inquiry::None
            }
        };
    }

    fn check_again(&mut self, now: Duration) {
        self.is_unchecked = true;
        self.is_outdated = true;
        self.inquire_at = now + AGAIN;
    }

    /// Sends an admin command. Returns false if there is no room for it.
    fn send(&mut self, command: Command, user: u64, now: Duration) -> bool {
        let len = usize::try_from(command.len()).unwrap_or(usize::MAX);
        let page = match command.is_empty() {
            true => None,
            false => match self.queue.page(len) {
                Some(page) => Some(page),
                None => return false,
            },
        };
        let call = Call::new(command.into(), page, user);
        self.queue.submit(call, now).is_ok()
    }

    fn on_done(
        &mut self,
        call: &Done,
        now: Duration,
        context: &mut Context<'_>,
    ) -> Result<(), Error> {
        let data = call.buf.as_deref().unwrap_or_default();
        match call.user {
            CHECK => {
                let inquiry = std::mem::replace(&mut self.inquiry, Inquiry::None);
                let is_ana = matches!(inquiry, Inquiry::Ana(_));
                let checked = match &call.result {
                    Ok(_) => self.on_answer(inquiry, data, now, context),
                    Err(Error::Command(failed)) => self.on_refusal(inquiry, failed, now, context),
                    // The connection is lost, and has the reason.
                    Err(_) => Ok(()),
                };
                if let Err(error) = checked {
                    return self.check_failed(error, is_ana, now, context.head.is_some());
                }
            }
            RESET_LOG => {
                let data = call.result.is_ok().then(|| data.to_vec());
                self.news.push(FenceNews::Log(data));
            }
            user => {
                let of = Incarnation(user.saturating_sub(RESETS));
                let (status, result) = match &call.result {
                    Ok(result) => (Status::SUCCESS, *result),
                    Err(Error::Command(failed)) => (failed.status, 0),
                    Err(_) => return Ok(()),
                };
                let dword = u32::try_from(result & 0xffff_ffff).unwrap_or_default();
                self.news.push(FenceNews::Reset(of, status, dword));
            }
        }
        Ok(())
    }

    /// The data that a check requested.
    fn on_answer(
        &mut self,
        inquiry: Inquiry,
        data: &[u8],
        now: Duration,
        context: &mut Context<'_>,
    ) -> Result<(), Error> {
        let length = || MachineError::internal("an Identify page of another length");
        let nsid = context.nsid;
        match inquiry {
            Inquiry::None => {}
            Inquiry::Namespace => {
                let identify = IdentifyNamespace::read_from_bytes(data).map_err(|_| length())?;
                // Identify of an inactive namespace returns zeroes (NVMe Base 2.0, section
                // 5.17.2.1).
                if identify.nsze.get() == 0 {
                    let command = admin::identify(Cns::ACTIVE_NAMESPACES, 0);
                    self.ask(Inquiry::ActiveList, command, now);
                    return Ok(());
                }
                let geometry = Geometry::of(nsid, &identify)?;
                self.reported = Some((geometry, identify.anagrpid.get()));
                let command = admin::identify(Cns::DESCRIPTORS, nsid);
                self.ask(Inquiry::Descriptors, command, now);
            }
            Inquiry::ActiveList => {
                let list = NamespaceList::read_from_bytes(data).map_err(|_| length())?;
                let active: Vec<u32> = list.iter().collect();
                return Err(UsageError::no_namespace(nsid, &active).into());
            }
            Inquiry::Descriptors => {
                let list = DescriptorList::read_from_bytes(data).map_err(|_| length())?;
                let identifiers = NamespaceIdentifiers::parse(&list);
                let identifiers = identifiers.map_err(|error| self.invalid(error.to_string()))?;
                self.compare(identifiers, context)?;
            }
            Inquiry::Ana(mut reader) => {
                let read = reader.handle_data(data);
                read.map_err(|error| Error::setup(self.addr, 0, error))?;
                self.read_ana(*reader, now);
            }
        }
        Ok(())
    }

    /// The controller refused the command of a check.
    fn on_refusal(
        &mut self,
        inquiry: Inquiry,
        failed: &CommandError,
        now: Duration,
        context: &mut Context<'_>,
    ) -> Result<(), Error> {
        match inquiry {
            Inquiry::Ana(mut reader) => {
                let again = reader.handle_failure(failed.status);
                if again.map_err(|error| Error::setup(self.addr, 0, error))? {
                    self.read_ana(*reader, now);
                    return Ok(());
                }
            }
            // Controllers before NVMe 1.3 have no identifiers of namespaces here.
            Inquiry::Descriptors if failed.status.is(Status::INVALID_FIELD) => {
                return self.compare(NamespaceIdentifiers::default(), context);
            }
            _ => {}
        }
        Err(Error::Command(Box::new(failed.clone())))
    }

    /// Checks that the namespace is the one that the first path reported.
    fn compare(
        &mut self,
        identifiers: NamespaceIdentifiers,
        context: &mut Context<'_>,
    ) -> Result<(), Error> {
        let Some((geometry, group)) = self.reported.take() else {
            return Ok(());
        };
        let namespace = SharedNamespace {
            nsid: geometry.nsid,
            identifiers,
            block_size: geometry.block_size(),
            blocks: geometry.blocks,
        };
        match context.head {
            Some(head) => {
                let checked = head.namespace.check(&namespace);
                checked.map_err(|difference| self.invalid(difference.to_string()))?;
            }
            None => {
                *context.head = Some(Head {
                    geometry,
                    namespace,
                });
            }
        }
        self.group = group;
        self.refused = None;
        self.checked();
        Ok(())
    }

    /// A check has a result. It says nothing about a change since it was begun.
    fn checked(&mut self) {
        self.is_doubted &= self.is_unchecked;
        self.is_changed = true;
    }

    /// A check failed: the attempt to connect fails, the namespace is not used over this path, or
    /// the check is made again.
    fn check_failed(
        &mut self,
        error: Error,
        is_ana: bool,
        now: Duration,
        has_head: bool,
    ) -> Result<(), Error> {
        let addr = self.addr;
        if !is_ana && has_head && is_lasting(&error) {
            tracing::warn!(%addr, %error, "path not used for a namespace");
            self.refused = Some(error);
            self.checked();
            return Ok(());
        }
        if self.stage != Stage::Live {
            return Err(error);
        }
        tracing::warn!(%addr, %error, "path not checked; trying again");
        self.check_again(now);
        Ok(())
    }

    fn invalid(&self, text: String) -> Error {
        Error::setup(self.addr, 0, SetupError::InvalidResponse(text))
    }
}

/// Whether the check of a namespace would fail again with that error.
fn is_lasting(error: &Error) -> bool {
    match error {
        Error::Setup(_) => true,
        Error::Command(failed) => failed.status.dnr(),
        Error::Usage(usage) => matches!(
            **usage,
            UsageError::NoNamespace { .. } | UsageError::Format { .. }
        ),
        _ => false,
    }
}
