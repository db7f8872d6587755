//! Get and Set Features (Base 2.1, 5.1.11 and 5.1.25).

use nvmeof_wire::Status;
use nvmeof_wire::admin::{GetFeatures, NSID_ALL, Select, SetFeatures};
use nvmeof_wire::features::{
    AsyncEventConfig, ErrorRecovery, FeatureCapabilities, FeatureId, HOST_IDENTIFIER_LEN,
    HostBehavior, IoCommandSetProfile, NumberOfQueues, PowerManagement, TemperatureThreshold,
    Timestamp, VolatileWriteCache, is_extended_host_identifier,
};
use nvmeof_wire::log::smart::CriticalWarning;
use zerocopy::{FromBytes, IntoBytes};

use super::{Admin, CDW10, CDW11, NSID, give};
use crate::controller::notices::Kinds;
use crate::controller::{Features, HostClock, warnings};
use crate::request::{Epoch, Failure, Next, Page, Request, Stage, bit};
use crate::window::Window;

// Where fields of the commands are.
pub(super) const SEL: u16 = 41;
const SAVE: u16 = bit(43, 7);
const DULBE: u16 = 46;
const EGEALCN: u16 = bit(45, 6);
/// With THSEL in bits 5:4 of the byte.
const TMPSEL: u16 = 46;

/// Features of an I/O controller.
pub(super) const OF_IO: [FeatureId; 16] = [
    FeatureId::ARBITRATION,
    FeatureId::POWER_MANAGEMENT,
    FeatureId::TEMPERATURE_THRESHOLD,
    FeatureId::ERROR_RECOVERY,
    FeatureId::VOLATILE_WRITE_CACHE,
    FeatureId::NUMBER_OF_QUEUES,
    FeatureId::WRITE_ATOMICITY,
    FeatureId::ASYNC_EVENT_CONFIG,
    FeatureId::TIMESTAMP,
    FeatureId::KEEP_ALIVE_TIMER,
    FeatureId::HOST_BEHAVIOR,
    FeatureId::IO_COMMAND_SET_PROFILE,
    FeatureId::HOST_IDENTIFIER,
    // The last ones: see `Admin::features`.
    FeatureId::RESERVATION_NOTIFICATION_MASK,
    FeatureId::RESERVATION_PERSISTENCE,
    FeatureId::NAMESPACE_WRITE_PROTECTION,
];

/// Features of a discovery controller with persistent connections (Base 2.1, figure 32).
pub(super) const OF_DISCOVERY: [FeatureId; 2] =
    [FeatureId::ASYNC_EVENT_CONFIG, FeatureId::KEEP_ALIVE_TIMER];

/// Base 2.1, 5.1.25.1.8: for transports that require Keep Alive "(e.g., RDMA and TCP), the
/// default value for this field is 1D4C0h". Connect sets the current value.
const DEFAULT_KATO_MS: u32 = 0x1_d4c0;

impl Admin<'_> {
    /// The features of this controller.
    pub(super) fn features(&self) -> &'static [FeatureId] {
        match &OF_IO {
            _ if self.controller.is_discovery() => &OF_DISCOVERY,
            all if self.keeps() => all,
            [others @ .., _, _, _] => others,
        }
    }

    /// Whether hosts may write protect and reserve namespaces, which requires a keeper. Write
    /// Protect is persistent across power cycles (Base 2.1, 8.1.16.1, figure 621). Write
    /// Protect Until Power Cycle is not, but cannot be offered alone: bit 0 of NWPC
    /// covers both No Write Protect and Write Protect, and the other states are optional
    /// in addition. Reservations that do not persist through power loss do not fence.
    pub(super) fn keeps(&self) -> bool {
        self.shared.save_queue.has_keeper()
    }

    /// Whether the controller has the feature at all.
    fn has(&self, fid: FeatureId) -> bool {
        self.features().contains(&fid)
    }

    fn check(&self, fid: FeatureId) -> Result<(), Failure> {
        if self.has(fid) {
            return Ok(());
        }
        Err(Failure::field(CDW10))
    }

    /// Base 2.1, 4.4. Features of the controller: with NSID 0h and FFFFFFFFh both commands
    /// apply to the controller; with a valid NSID "the Set Features command shall abort with
    /// a status code of Feature Not Namespace Specific", and Get Features returns the value
    /// of the controller. Features of namespaces: with FFFFFFFFh Set Features applies to
    /// "all namespaces attached to the controller processing the command", while Get
    /// Features fails "with a status code of Invalid Namespace or Format". Other NSIDs fail
    /// as for any command.
    fn check_nsid(&self, fid: FeatureId, nsid: u32, sets: bool) -> Result<(), Failure> {
        let whole = nsid == 0 || nsid == NSID_ALL;
        let invalid = Failure::from(Status::INVALID_NAMESPACE).at(NSID);
        // A discovery controller has no namespaces.
        let namespace_view = self.controller.namespace_view();
        if is_of_namespaces(fid) {
            return match namespace_view {
                // Base 2.1, 5.1.25.1.29 and 5.1.25.1.30.
                _ if nsid == NSID_ALL && !sets && is_of_reservations(fid) => {
                    Err(Failure::field(NSID))
                }
                _ if nsid == NSID_ALL && sets => Ok(()),
                Some(_) if nsid == NSID_ALL => Err(invalid),
                Some(namespace_view) if namespace_view.get(nsid).is_none() => {
                    Err(Failure::no_namespace(&namespace_view, nsid))
                }
                _ => Ok(()),
            };
        }
        let valid = 1..=namespace_view.map_or(0, |namespace_view| namespace_view.highest());
        match valid.contains(&nsid) {
            _ if whole => Ok(()),
            true if sets => Err(Failure::from(Status::FEATURE_NOT_NAMESPACE_SPECIFIC).at(NSID)),
            true => Ok(()),
            false => Err(invalid),
        }
    }

    pub(super) fn get_features(
        &self,
        request: &mut Request,
        command: &GetFeatures,
    ) -> Result<Next, Failure> {
        self.check(command.fid)?;
        self.check_access(command.fid, command.nsid, false)?;
        // The capabilities of a feature are the same for every namespace.
        if command.select != Select::Capabilities {
            self.check_nsid(command.fid, command.nsid, false)?;
        }
        match command.fid {
            FeatureId::NAMESPACE_WRITE_PROTECTION => return self.get_protection(command),
            FeatureId::RESERVATION_PERSISTENCE => return self.get_persistence(command),
            _ => {}
        }
        let most = self.controller.most_io_queues();
        let cold = self.controller.lock();
        let (values, current) = match command.select {
            Select::Current => (cold.features.clone(), true),
            // Base 2.1, 5.1.11: without a saved value the default is returned.
            Select::Default | Select::Saved => (Features::new(DEFAULT_KATO_MS), false),
            Select::Capabilities => return Ok(Next::Done(capabilities(command.fid).bits().into())),
            Select::Reserved(_) => return Err(Failure::field(SEL)),
        };
        drop(cold);
        let value = match command.fid {
            FeatureId::ARBITRATION => values.arbitration,
            FeatureId::POWER_MANAGEMENT => values.power_management,
            FeatureId::TEMPERATURE_THRESHOLD => threshold(&values, command.cdw11)?,
            FeatureId::ERROR_RECOVERY => values.error_recovery_of(command.nsid).to_dword(),
            FeatureId::VOLATILE_WRITE_CACHE => VolatileWriteCache {
                enabled: values.volatile_cache,
            }
            .to_dword(),
            FeatureId::NUMBER_OF_QUEUES => queues(values.io_queues.unwrap_or(most)),
            FeatureId::WRITE_ATOMICITY => values.write_atomicity,
            FeatureId::ASYNC_EVENT_CONFIG => values.async_events,
            FeatureId::KEEP_ALIVE_TIMER => values.kato_ms,
            FeatureId::IO_COMMAND_SET_PROFILE => IoCommandSetProfile::NVM.to_dword(),
            FeatureId::RESERVATION_NOTIFICATION_MASK => values.notice_mask_of(command.nsid).bits(),
            FeatureId::HOST_BEHAVIOR | FeatureId::TIMESTAMP => {
                return give(request, data_len(command.fid), Page::Feature(*command));
            }
            FeatureId::HOST_IDENTIFIER => {
                // Base 2.1, 5.1.25.1.28: fabrics have 128-bit identifiers only.
                if !is_extended_host_identifier(command.cdw11) && current {
                    return Err(Failure::field(CDW11));
                }
                return give(request, data_len(command.fid), Page::Feature(*command));
            }
            _ => return Err(Failure::field(CDW10)),
        };
        Ok(Next::Done(value.into()))
    }

    pub(super) fn write_feature(&self, command: &GetFeatures, window: &mut Window<'_>) {
        let current = command.select == Select::Current;
        match command.fid {
            FeatureId::HOST_BEHAVIOR if current => {
                window.put(0, &self.controller.lock().features.host_behavior);
            }
            FeatureId::TIMESTAMP if current => {
                let clock = self.controller.lock().features.clock;
                window.put(0, &clock.timestamp(self.now));
            }
            FeatureId::HOST_IDENTIFIER if current => window.put(0, &self.controller.hostid),
            _ => {}
        }
    }

    pub(super) fn set_features(
        &self,
        request: &mut Request,
        command: &SetFeatures,
    ) -> Result<Next, Failure> {
        self.check(command.fid)?;
        // Base 2.1, 5.1.25: no feature is saveable.
        if command.save {
            return Err(Failure::from(Status::FEATURE_NOT_SAVEABLE).at(SAVE));
        }
        self.check_access(command.fid, command.nsid, true)?;
        self.check_nsid(command.fid, command.nsid, true)?;
        match command.fid {
            FeatureId::NAMESPACE_WRITE_PROTECTION => return self.protect(request, command),
            FeatureId::RESERVATION_PERSISTENCE => return self.set_persistence(request, command),
            FeatureId::RESERVATION_NOTIFICATION_MASK => return self.set_notice_mask(command),
            FeatureId::ERROR_RECOVERY => return self.set_error_recovery(command),
            FeatureId::NUMBER_OF_QUEUES => return self.set_queues(command.cdw11),
            FeatureId::ASYNC_EVENT_CONFIG => return self.set_async_events(command.cdw11),
            FeatureId::HOST_BEHAVIOR | FeatureId::TIMESTAMP => {
                request.takes(data_len(command.fid))?;
                let epoch = Epoch::default();
                request.stage = Stage::Feature {
                    fid: command.fid,
                    epoch,
                };
                return Ok(Next::Data);
            }
            // Base 2.1, 5.1.25.1.28: over fabrics Connect has set it, "the
            // command is aborted with Command Sequence Error".
            FeatureId::HOST_IDENTIFIER => return Err(Status::COMMAND_SEQUENCE_ERROR.into()),
            _ => self.set_value(command)?,
        }
        Ok(Next::Done(0))
    }

    /// Sets a feature that is a value of Dword 11.
    fn set_value(&self, command: &SetFeatures) -> Result<(), Failure> {
        let mut cold = self.controller.lock();
        let values = &mut cold.features;
        match command.fid {
            FeatureId::ARBITRATION => values.arbitration = command.cdw11,
            FeatureId::POWER_MANAGEMENT => {
                // Identify Controller, NPSS: power state 0 only.
                if PowerManagement::from_dword(command.cdw11).ps != 0 {
                    return Err(Failure::field(CDW11));
                }
                values.power_management = command.cdw11;
            }
            FeatureId::TEMPERATURE_THRESHOLD => {
                set_threshold(values, command.cdw11)?;
                let warnings = self.warnings(values) & CriticalWarning::TTC;
                self.controller.warn(&mut cold, warnings);
            }
            FeatureId::VOLATILE_WRITE_CACHE => {
                values.volatile_cache = VolatileWriteCache::from_dword(command.cdw11).enabled;
                let write_through = !values.volatile_cache;
                self.controller.hot.set_write_through(write_through);
            }
            // Base 2.1, 5.1.25.1.17, of "an index that corresponds to an I/O Command Set
            // Combination that has a value of 0h" (Identify, CNS 1Ch): the command is aborted
            // "with a status code of I/O Command Set Combination Rejected". There is
            // combination 0 alone.
            FeatureId::IO_COMMAND_SET_PROFILE => {
                if IoCommandSetProfile::from_dword(command.cdw11) != IoCommandSetProfile::NVM {
                    let rejected = Status::COMMAND_SET_COMBINATION_REJECTED;
                    return Err(Failure::from(rejected).at(CDW11));
                }
            }
            FeatureId::WRITE_ATOMICITY => values.write_atomicity = command.cdw11 & 1,
            FeatureId::KEEP_ALIVE_TIMER => {
                *values = Features {
                    kato_ms: crate::controller::rounded_kato(command.cdw11),
                    ..values.clone()
                };
            }
            _ => return Err(Failure::field(CDW10)),
        }
        Ok(())
    }

    /// Base 2.1, 5.1.25.2.1: requested before I/O queues are created.
    fn set_queues(&self, cdw11: u32) -> Result<Next, Failure> {
        let asked =
            NumberOfQueues::from_dword(cdw11).map_err(|status| Failure::from(status).at(CDW11))?;
        let most = self.controller.most_io_queues();
        let mut cold = self.controller.lock();
        if !cold.queues.is_empty() {
            return Err(Status::COMMAND_SEQUENCE_ERROR.into());
        }
        let granted = asked.pairs().min(most);
        cold.features.io_queues = Some(granted);
        Ok(Next::Done(queues(granted).into()))
    }

    /// NVM 1.0, 4.1.3.2, for one namespace or for all that the host can access.
    fn set_error_recovery(&self, command: &SetFeatures) -> Result<Next, Failure> {
        let value = ErrorRecovery::from_dword(command.cdw11);
        // Identify Namespace, NSFEAT: no error for deallocated blocks.
        if value.dulbe {
            return Err(Failure::field(DULBE));
        }
        let Some(namespace_view) = self.controller.namespace_view() else {
            return Err(Failure::field(CDW10));
        };
        let values = &mut self.controller.lock().features.error_recovery;
        let nsids = namespace_view.list().iter().map(|one| one.namespace.nsid);
        for nsid in nsids.filter(|nsid| [*nsid, NSID_ALL].contains(&command.nsid)) {
            values.insert(nsid, value);
        }
        Ok(Next::Done(0))
    }

    fn set_async_events(&self, cdw11: u32) -> Result<Next, Failure> {
        // Base 2.1, 5.1.25.1.5: "If Endurance Groups are not supported and this bit is set
        // to '1', then the Set Features command shall be aborted with a status of Invalid
        // Field in Command". For other events that cannot occur here, the section does not
        // require this, and by 1.4.1.6 reserved bits need not be checked: those are ignored,
        // and Get Features returns the enabled ones.
        if AsyncEventConfig::from_bits_retain(cdw11).contains(AsyncEventConfig::EGEALPCN) {
            return Err(Failure::field(EGEALCN));
        }
        let mut cold = self.controller.lock();
        let before = cold.features.async_events;
        let events = cdw11 & self.async_events().bits();
        cold.features.async_events = events;
        // Base 2.1, 5.1.25.1.5: "If the condition for an event is true when the
        // corresponding notice is enabled, then an event is sent to the host".
        let [fresh, ..] = (events & !before).to_le_bytes();
        let warnings = self.warnings(&cold.features);
        let fresh = warnings & CriticalWarning::from_bits_truncate(fresh);
        self.controller.warn(&mut cold, fresh);
        Ok(Next::Done(0))
    }

    /// The present critical warnings.
    pub(super) fn warnings(&self, features: &Features) -> CriticalWarning {
        let namespace_view = self.controller.namespace_view();
        namespace_view.map_or(CriticalWarning::empty(), |namespace_view| {
            warnings::critical(&namespace_view, features)
        })
    }

    /// Events that can be enabled.
    fn async_events(&self) -> AsyncEventConfig {
        let kinds = if self.controller.is_discovery() {
            Kinds::DISCOVERY
        } else {
            Kinds::NAMESPACE
                | Kinds::ANA
                | Kinds::TEMPERATURE
                | Kinds::RELIABILITY
                | Kinds::OTHER_SMART
                | Kinds::CROSS_CONTROLLER_RESET
                | Kinds::LOST_HOST_COMMUNICATION
        };
        AsyncEventConfig::from_bits_truncate(kinds.bits())
    }

    /// The data of Set Features.
    pub(crate) fn set_data(&self, fid: FeatureId, data: &[u8]) -> Result<Next, Failure> {
        match fid {
            FeatureId::HOST_BEHAVIOR => self.set_host_behavior(data),
            FeatureId::TIMESTAMP => self.set_timestamp(data),
            _ => Err(Status::INTERNAL_ERROR.into()),
        }
    }

    fn set_timestamp(&self, data: &[u8]) -> Result<Next, Failure> {
        let Ok((timestamp, _)) = Timestamp::read_from_prefix(data) else {
            return Err(Status::INTERNAL_ERROR.into());
        };
        self.controller.lock().features.clock = HostClock {
            set_ms: Some(timestamp.ms()),
            at: self.now,
        };
        Ok(Next::Done(0))
    }

    fn set_host_behavior(&self, data: &[u8]) -> Result<Next, Failure> {
        let Ok((behavior, _)) = HostBehavior::read_from_prefix(data) else {
            return Err(Status::INTERNAL_ERROR.into());
        };
        // Host Behavior Support: ACRE, ETDAS and LBAFEE are 0 or 1. Other fields are not
        // stored, because they are not supported.
        let known = [behavior.acre, behavior.etdas, behavior.lbafee];
        if known.iter().any(|value| *value > 1) {
            return Err(Status::INVALID_FIELD.into());
        }
        let mut cold = self.controller.lock();
        let kept = behavior.as_bytes().iter();
        for (to, from) in cold.features.host_behavior.iter_mut().zip(kept) {
            *to = *from;
        }
        Ok(Next::Done(0))
    }
}

/// Bytes of a feature that has data.
fn data_len(fid: FeatureId) -> u32 {
    let len = match fid {
        FeatureId::TIMESTAMP => size_of::<Timestamp>(),
        FeatureId::HOST_IDENTIFIER => HOST_IDENTIFIER_LEN,
        _ => size_of::<HostBehavior>(),
    };
    u32::try_from(len).unwrap_or(u32::MAX)
}

fn queues(pairs: u16) -> u32 {
    NumberOfQueues {
        submission: pairs,
        completion: pairs,
    }
    .to_dword()
}

/// Composite temperature is sensor 0; there are no others.
fn threshold(values: &Features, cdw11: u32) -> Result<u32, Failure> {
    let asked = TemperatureThreshold::from_dword(cdw11);
    let tmpth = match (asked.tmpsel, asked.thsel) {
        (0, TemperatureThreshold::OVER) => values.over_temperature,
        (0, TemperatureThreshold::UNDER) => values.under_temperature,
        _ => return Err(Failure::field(TMPSEL)),
    };
    Ok(tmpth.into())
}

fn set_threshold(values: &mut Features, cdw11: u32) -> Result<(), Failure> {
    /// TMPSEL: all sensors.
    const ALL_SENSORS: u8 = 15;
    let asked = TemperatureThreshold::from_dword(cdw11);
    match (asked.tmpsel, asked.thsel) {
        (0 | ALL_SENSORS, TemperatureThreshold::OVER) => values.over_temperature = asked.tmpth,
        (0 | ALL_SENSORS, TemperatureThreshold::UNDER) => values.under_temperature = asked.tmpth,
        _ => return Err(Failure::field(TMPSEL)),
    }
    Ok(())
}

/// Features with namespace scope (Base 2.1, 5.1.25).
pub(super) fn is_of_namespaces(fid: FeatureId) -> bool {
    is_of_reservations(fid)
        || matches!(
            fid,
            FeatureId::ERROR_RECOVERY | FeatureId::NAMESPACE_WRITE_PROTECTION
        )
}

fn is_of_reservations(fid: FeatureId) -> bool {
    matches!(
        fid,
        FeatureId::RESERVATION_NOTIFICATION_MASK | FeatureId::RESERVATION_PERSISTENCE
    )
}

pub(super) fn capabilities(fid: FeatureId) -> FeatureCapabilities {
    match fid {
        FeatureId::HOST_IDENTIFIER => FeatureCapabilities::empty(),
        _ if is_of_namespaces(fid) => {
            FeatureCapabilities::CHANGEABLE | FeatureCapabilities::NAMESPACE_SPECIFIC
        }
        _ => FeatureCapabilities::CHANGEABLE,
    }
}
