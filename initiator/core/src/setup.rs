//! Setting up a controller over its admin queue (NVMe Base 2.0, section 3.5.2:
//! controller initialization over fabrics).

use std::time::Duration;

use nvmeof_dhchap::{Work, WorkResult};
use nvmeof_wire::admin::Cns;
use nvmeof_wire::fabrics::{CNTLID_DYNAMIC, ConnectResult};
use nvmeof_wire::features::{FeatureId, NumberOfQueues};
use nvmeof_wire::identify::{IdentifyController, Oaes, Sgls};
use nvmeof_wire::registers::{Cap, Cc, Csts, Property, PropertyValue, Vs};
use zerocopy::FromBytes;

use crate::admin::{self, Ask, Names, QueueShape};
use crate::authentication::{Authentication, AuthenticationStep};
use crate::blocks::{IoLimits, MAX_TRANSFER};
use crate::command::CommandCompletion;
use crate::error::{Refusal, SetupError};
use crate::setting::Setting;

/// What to set up.
#[derive(Clone, Debug)]
pub struct SetupConfig {
    /// Host, and subsystem to connect to.
    pub names: Names,
    /// The admin queue.
    pub queue: QueueShape,
    /// Keep-alive time-out; zero for none.
    pub keep_alive: Duration,
    /// I/O queues to request; 0 without I/O, as for a discovery controller.
    pub io_queues: u16,
    /// Maximum bytes of in-capsule data to use, if the controller supports as many.
    pub in_capsule: u32,
}

/// A controller that is ready.
#[derive(Clone, Debug)]
pub struct ControllerInfo {
    /// Its identifier.
    pub cntlid: u16,
    /// Its capabilities.
    pub cap: Cap,
    /// The version of NVMe that it complies with.
    pub vs: Vs,
    /// Its configuration, as this host set it.
    pub cc: Cc,
    /// Its Identify Controller data structure.
    pub identify: Box<IdentifyController>,
    /// I/O queues that it grants.
    pub io_queues: u16,
    /// Limits of I/O commands.
    pub limits: IoLimits,
    /// Maximum entries of an I/O queue.
    pub max_queue_size: u16,
}

/// What to do next.
#[derive(Debug)]
pub enum Next {
    /// Send this, and pass the completion to `handle_completion`.
    Send(Ask),
    /// Run this, and pass the result to `handle_result`. It takes up to 100 ms.
    Run(Work),
    /// Wait for the completion of the last command.
    Pending,
    /// Nothing before this time.
    Wait(Duration),
    /// It is done.
    Done,
}

/// The steps from an RDMA connection to a controller that is ready.
///
/// ```text
///  Connect ─► Authentication ─► Get CAP ─► Get VS ─► Set CC.EN ─► poll CSTS.RDY ─► Identify
///     ─► Number of Queues ─► Async Event Configuration ─► done
/// ```
#[derive(Debug)]
pub struct Setup {
    config: SetupConfig,
    step: Step,
    /// The authentication, while it is in progress.
    authentication: Option<Box<Authentication>>,
    asked: bool,
    cntlid: u16,
    cap: Cap,
    vs: Vs,
    cc: Cc,
    identify: Option<Box<IdentifyController>>,
    io_queues: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Connect,
    Authenticate,
    Cap,
    Version,
    Enable,
    Ready {
        ask_at: Duration,
        deadline: Duration,
    },
    Identify,
    Queues,
    Events,
    Done,
}

/// How long to wait before CSTS is read again.
const READY_POLL: Duration = Duration::from_millis(10);
/// The time for a controller whose CAP.TO is 0, which is not a time: the smallest unit.
const SHORTEST_READY: Duration = Duration::from_millis(500);

impl Setup {
    /// Starts with the Connect command.
    #[must_use]
    pub fn new(config: SetupConfig) -> Self {
        Self {
            config,
            step: Step::Connect,
            authentication: None,
            asked: false,
            cntlid: CNTLID_DYNAMIC,
            cap: Cap(0),
            vs: Vs(0),
            cc: Cc(0),
            identify: None,
            io_queues: 0,
        }
    }

    /// The step that is due at `now`.
    ///
    /// # Errors
    /// [`SetupError`]: the connection cannot be used then.
    pub fn poll(&mut self, now: Duration) -> Result<Next, SetupError> {
        if self.step == Step::Done {
            return Ok(Next::Done);
        }
        if self.asked {
            return Ok(Next::Pending);
        }
        if let Some(next) = self.authenticate()? {
            return Ok(next);
        }
        if let Step::Ready { ask_at, .. } = self.step
            && now < ask_at
        {
            return Ok(Next::Wait(ask_at));
        }
        self.asked = true;
        Ok(Next::Send(self.ask()))
    }

    /// The next step of the authentication, if it is in progress.
    fn authenticate(&mut self) -> Result<Option<Next>, SetupError> {
        let Some(authentication) = &mut self.authentication else {
            return Ok(None);
        };
        Ok(Some(match authentication.poll()? {
            AuthenticationStep::Send(ask) => {
                self.asked = true;
                Next::Send(ask)
            }
            AuthenticationStep::Run(work) => Next::Run(work),
            AuthenticationStep::Pending => Next::Pending,
            AuthenticationStep::Done => {
                self.authentication = None;
                self.step = Step::Cap;
                return Ok(None);
            }
        }))
    }

    /// The error if the connection has ended now, during the authentication.
    #[must_use]
    pub fn closed(&self) -> Option<SetupError> {
        self.authentication.as_deref().map(Authentication::closed)
    }

    /// Takes the result of [`Next::Run`].
    pub fn handle_result(&mut self, result: WorkResult) {
        if let Some(authentication) = &mut self.authentication {
            authentication.handle_result(result);
        }
    }

    fn ask(&self) -> Ask {
        match self.step {
            Step::Connect => {
                let kato = self.config.keep_alive.as_millis();
                let kato = u32::try_from(kato).unwrap_or(u32::MAX);
                admin::connect(&self.config.names, self.config.queue, CNTLID_DYNAMIC, kato)
            }
            Step::Authenticate | Step::Cap => admin::property_get(Property::CAP, true).into(),
            Step::Version => admin::property_get(Property::VS, false).into(),
            Step::Enable => {
                admin::property_set(Property::CC, PropertyValue::Dword(self.cc.0)).into()
            }
            Step::Ready { .. } => admin::property_get(Property::CSTS, false).into(),
            Step::Identify => admin::identify(Cns::CONTROLLER, 0).into(),
            Step::Queues => {
                let wanted = NumberOfQueues {
                    submission: self.config.io_queues,
                    completion: self.config.io_queues,
                };
                admin::set_features(FeatureId::NUMBER_OF_QUEUES, wanted.to_dword()).into()
            }
            Step::Events | Step::Done => {
                let events = self.events().bits();
                admin::set_features(FeatureId::ASYNC_EVENT_CONFIG, events).into()
            }
        }
    }

    /// Takes the completion of the last command; `data` is the payload from the
    /// controller.
    ///
    /// # Errors
    /// [`SetupError`]: the connection cannot be used then.
    pub fn handle_completion(
        &mut self,
        now: Duration,
        completion: CommandCompletion,
        data: &[u8],
    ) -> Result<(), SetupError> {
        self.asked = false;
        self.step = match self.step {
            Step::Connect => self.connected(completion)?,
            Step::Authenticate => {
                if let Some(authentication) = &mut self.authentication {
                    authentication.handle_completion(completion, data)?;
                }
                Step::Authenticate
            }
            Step::Cap => {
                self.cap = Cap(value(completion, "Property Get of CAP")?);
                self.cc = configuration(self.cap, self.is_discovery())?;
                Step::Version
            }
            Step::Version => {
                let vs = value(completion, "Property Get of VS")?;
                self.vs = Vs(low_dword(vs));
                Step::Enable
            }
            Step::Enable => {
                value(completion, "Property Set of CC")?;
                let deadline = now + ready_time(self.cap);
                Step::Ready {
                    ask_at: now,
                    deadline,
                }
            }
            Step::Ready { deadline, .. } => self.after_status(now, deadline, completion)?,
            Step::Identify => {
                value(completion, "Identify Controller")?;
                let identify = IdentifyController::read_from_bytes(data).map_err(|_| {
                    SetupError::InvalidResponse(format!("Identify returned {} bytes", data.len()))
                })?;
                self.check_identify(&identify)?;
                self.identify = Some(Box::new(identify));
                match self.config.io_queues {
                    0 => self.before_events(),
                    _ => Step::Queues,
                }
            }
            Step::Queues => {
                let granted = value(completion, "Set Features, Number of Queues")?;
                let granted = NumberOfQueues::from_dword(low_dword(granted)).map_err(|_| {
                    SetupError::InvalidResponse(format!("Number of Queues returned {granted:#x}"))
                })?;
                self.io_queues = granted.pairs().min(self.config.io_queues);
                self.before_events()
            }
            Step::Events | Step::Done => {
                value(completion, "Set Features, Asynchronous Event Configuration")?;
                Step::Done
            }
        };
        Ok(())
    }

    fn connected(&mut self, completion: CommandCompletion) -> Result<Step, SetupError> {
        let SetupConfig { names, queue, .. } = &self.config;
        let connected = check_connect(names, *queue, completion)?;
        self.cntlid = connected.cntlid;
        let authentication = Authentication::after_connect(names, *queue, connected)?;
        self.authentication = authentication.map(Box::new);
        Ok(match self.authentication {
            Some(_) => Step::Authenticate,
            None => Step::Cap,
        })
    }

    fn after_status(
        &self,
        now: Duration,
        deadline: Duration,
        completion: CommandCompletion,
    ) -> Result<Step, SetupError> {
        let csts = value(completion, "Property Get of CSTS")?;
        let csts = Csts::from_bits_retain(low_dword(csts));
        if csts.contains(Csts::CFS) {
            return Err(SetupError::Fatal);
        }
        if csts.contains(Csts::RDY) {
            return Ok(Step::Identify);
        }
        if now >= deadline {
            let after = ready_time(self.cap);
            return Err(SetupError::TimedOut {
                what: "ready",
                after,
            });
        }
        Ok(Step::Ready {
            ask_at: now + READY_POLL,
            deadline,
        })
    }

    /// The controller, once all is done.
    #[must_use]
    pub fn into_info(self) -> Option<ControllerInfo> {
        let identify = self.identify.filter(|_| self.step == Step::Done)?;
        let limits = limits(self.cap, &identify, self.config.in_capsule);
        let mut most = self.cap.max_queue_entries();
        // MAXCMD 0: not reported (NVMe Base 2.0, figure 275).
        if let maxcmd @ 1.. = identify.maxcmd.get() {
            most = most.min(u32::from(maxcmd).saturating_add(1));
        }
        Some(ControllerInfo {
            cntlid: self.cntlid,
            cap: self.cap,
            vs: self.vs,
            cc: self.cc,
            identify,
            io_queues: self.io_queues,
            limits,
            max_queue_size: u16::try_from(most).unwrap_or(u16::MAX),
        })
    }

    fn is_discovery(&self) -> bool {
        self.config.names.subnqn.is_discovery()
    }

    /// Asynchronous events to enable, as far as the controller supports them.
    fn events(&self) -> Oaes {
        let wanted = Oaes::NSAN | Oaes::ANACN | Oaes::CCRCN | Oaes::DLPCN;
        let has = |identify: &IdentifyController| identify.oaes();
        self.identify
            .as_deref()
            .map_or(Oaes::empty(), has)
            .intersection(wanted)
    }

    fn before_events(&self) -> Step {
        if self.events().is_empty() {
            Step::Done
        } else {
            Step::Events
        }
    }

    fn check_identify(&self, identify: &IdentifyController) -> Result<(), SetupError> {
        let identified = identify.cntlid.get();
        if identified != self.cntlid {
            return Err(SetupError::InvalidResponse(format!(
                "Connect returned controller {}, Identify returned controller {identified}",
                self.cntlid
            )));
        }
        if !self.config.keep_alive.is_zero() && identify.kas.get() == 0 && !self.is_discovery() {
            return Err(SetupError::Unsupported {
                what: "the controller does not support Keep Alive (KAS is 0)".to_owned(),
                remedy: "disable keep-alive with a time-out of 0",
                settings: &[Setting::KeepAlive],
            });
        }
        if !identify.sgls().contains(Sgls::KSDBDS) {
            return Err(unsupported(
                "the controller does not support keyed SGLs (SGLS bit 2)".to_owned(),
                "it is not an NVMe over RDMA target; connect with its own transport",
            ));
        }
        // A discovery controller has no I/O queues, and so no capsule sizes.
        if self.config.io_queues == 0 {
            return Ok(());
        }
        // NVMe over Fabrics: a capsule holds at least the 64-byte command, and a
        // response the 16-byte completion.
        for (field, value, least) in [
            ("IOCCSZ", identify.ioccsz.get(), 4),
            ("IORCSZ", identify.iorcsz.get(), 1),
        ] {
            if value < least {
                return Err(SetupError::InvalidResponse(format!(
                    "{field} is {value}, must be at least {least}"
                )));
            }
        }
        Ok(())
    }
}

/// The Connect command for I/O queue `queue` of controller `cntlid`. Pass its completion
/// to [`check_connect`].
#[must_use]
pub fn io_connect(names: &Names, queue: QueueShape, cntlid: u16) -> Ask {
    admin::connect(names, queue, cntlid, 0)
}

/// The result of a completed Connect command. [`Authentication::after_connect`] says what
/// follows.
///
/// # Errors
/// [`SetupError::Refused`].
pub fn check_connect(
    names: &Names,
    queue: QueueShape,
    completion: CommandCompletion,
) -> Result<ConnectResult, SetupError> {
    if !completion.status.is_success() {
        let refusal = Refusal::new(completion.status, completion.result, names, queue);
        return Err(SetupError::Refused(Box::new(refusal)));
    }
    Ok(ConnectResult::from_result(completion.result))
}

/// The result of a set-up command that must succeed.
fn value(completion: CommandCompletion, what: &'static str) -> Result<u64, SetupError> {
    if completion.status.is_success() {
        return Ok(completion.result);
    }
    Err(crate::blocks::CommandError {
        command: what,
        status: completion.status,
        result: completion.result,
        place: None,
    }
    .into())
}

fn unsupported(what: String, remedy: &'static str) -> SetupError {
    SetupError::Unsupported {
        what,
        remedy,
        settings: &[],
    }
}

/// The value of CC: entry sizes 2^6 and 2^4, the smallest page the
/// controller has, and the command set (NVMe Base 2.0, section 3.1.3.5).
fn configuration(cap: Cap, is_discovery: bool) -> Result<Cc, SetupError> {
    let css = match cap.css() {
        css if css & Cap::CSS_NVM != 0 => Cc::CSS_NVM,
        css if css & Cap::CSS_IOCS != 0 => Cc::CSS_ALL,
        _ if is_discovery => 0b000,
        css => {
            return Err(unsupported(
                format!(
                    "the controller does not support the NVM command set (CAP.CSS is {css:#04x})"
                ),
                "choose another subsystem; this one has no logical blocks",
            ));
        }
    };
    let mps = cap.min_page_shift().saturating_sub(12);
    Ok(Cc(Cc::ENABLE.0 | (u32::from(css) << 4) | (mps << 7)))
}

fn ready_time(cap: Cap) -> Duration {
    Duration::from_millis(cap.ready_timeout_ms().into()).max(SHORTEST_READY)
}

fn low_dword(value: u64) -> u32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

fn limits(cap: Cap, identify: &IdentifyController, wanted_in_capsule: u32) -> IoLimits {
    let page = 1u64.checked_shl(cap.min_page_shift()).unwrap_or(4096);
    let max_transfer = identify
        .max_transfer_len(page)
        .and_then(|len| u32::try_from(len).ok())
        .map_or(MAX_TRANSFER, |len| len.min(MAX_TRANSFER));
    // In-capsule data require offsets in SGLs, and for RDMA an ICDOFF of 0.
    let possible = identify.sgls().contains(Sgls::OFFSET) && identify.icdoff.get() == 0;
    let room = u32::try_from(identify.in_capsule_data_len()).unwrap_or(u32::MAX);
    IoLimits {
        max_transfer,
        in_capsule: if possible {
            room.min(wanted_in_capsule)
        } else {
            0
        },
        ..IoLimits::default()
    }
}

#[cfg(test)]
mod tests;
