//! The record of one namespace, as JSON.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use nvmeof_target_core::{
    Preemption, Registrant, ReservationState, SavedProtection, SavedReservations, SavedSettings,
};
use nvmeof_target_reservations::{HostId, Reservation, Reservations};
use nvmeof_wire::Nqn;
use nvmeof_wire::reservation::ReservationType;
use nvmeof_wire::text::Escaped;
use serde::{Deserialize, Serialize};

use super::NamespaceReservations;

/// What hosts set of a namespace.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NamespaceRecord {
    pub(super) subsystem: String,
    pub(super) nsid: u32,
    /// By UUID, as 32 hexadecimal digits: another namespace with this NSID has settings of its own.
    pub(super) by_uuid: BTreeMap<String, Settings>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) write_protected: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reservations: Option<ReservationRecord>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReservationRecord {
    pub(super) generation: u32,
    /// Whether they persist through power loss.
    pub(super) persistent: bool,
    pub(super) registrants: Vec<RegistrantRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reservation: Option<HeldRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) preemption: Option<PreemptionRecord>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct RegistrantRecord {
    #[serde(flatten)]
    pub(super) host: HostRecord,
    /// Hexadecimal, with the prefix `0x`.
    pub(super) key: String,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct HostRecord {
    /// 32 hexadecimal digits.
    pub(super) host_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) nqn: Option<String>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HeldRecord {
    /// Reservation type: 1 to 6.
    #[serde(rename = "type")]
    pub(super) kind: u8,
    /// Host identifier; none if all registrants hold it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) holder: Option<String>,
    /// Seconds since 1970.
    pub(super) since: u64,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PreemptionRecord {
    /// The generation that it began.
    pub(super) generation: u32,
    /// Seconds since 1970.
    pub(super) at: u64,
    pub(super) by: HostRecord,
    pub(super) preempted: Vec<HostRecord>,
}

impl NamespaceRecord {
    /// Parses the record of namespace `nsid` of `subsystem`. Returns its settings as well.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) fn parse(
        bytes: &[u8],
        subsystem: &Nqn,
        nsid: u32,
    ) -> Result<(Self, SavedSettings), String> {
        let record: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if (record.subsystem.as_str(), record.nsid) != (subsystem.as_str(), nsid) {
            let Self {
                subsystem, nsid, ..
            } = record;
            return Err(format!("it is of namespace {nsid} of {subsystem}"));
        }
        let settings = record.settings()?;
        Ok((record, settings))
    }

    /// The record of namespace `nsid` with these settings. What did not change since `before` keeps
    /// its time.
    pub(super) fn of(
        (subsystem, nsid): (&Nqn, u32),
        settings: &SavedSettings,
        before: Option<&Self>,
        now: SystemTime,
    ) -> Self {
        let mut by_uuid = BTreeMap::<String, Settings>::new();
        for one in &settings.protected {
            by_uuid.entry(hex(&one.uuid)).or_default().write_protected = true;
        }
        for one in &settings.reservations {
            let uuid = hex(&one.uuid);
            let before = before.and_then(|record| record.by_uuid.get(&uuid)?.reservations.as_ref());
            let its = ReservationRecord::of(&one.state, before, now);
            by_uuid.entry(uuid).or_default().reservations = Some(its);
        }
        Self {
            subsystem: subsystem.as_str().to_owned(),
            nsid,
            by_uuid,
        }
    }

    /// The settings of the record.
    fn settings(&self) -> Result<SavedSettings, String> {
        let mut all = SavedSettings::default();
        for (uuid, settings) in &self.by_uuid {
            let (nsid, uuid) = (self.nsid, parse_hex(uuid)?);
            if settings.write_protected {
                all.protected.push(SavedProtection { nsid, uuid });
            }
            if let Some(its) = &settings.reservations {
                let state = its.state()?;
                all.reservations
                    .push(SavedReservations { nsid, uuid, state });
            }
        }
        Ok(all)
    }

    /// The reservations of the record.
    pub(super) fn reservations(
        &self,
        subsystem: Nqn,
        nsid: u32,
    ) -> impl Iterator<Item = NamespaceReservations> {
        self.by_uuid.iter().filter_map(move |(uuid, settings)| {
            let its = settings.reservations.as_ref()?;
            Some(NamespaceReservations {
                subsystem,
                nsid,
                uuid: parse_hex(uuid).ok()?,
                state: its.state().ok()?,
                held_since: its.reservation.as_ref().map(|held| time(held.since)),
                preempted_at: its.preemption.as_ref().map(|it| time(it.at)),
            })
        })
    }

    /// Logs how this record, which is stored, differs from the one `before`.
    pub(super) fn log_changes(&self, before: &Self) {
        let Self {
            subsystem, nsid, ..
        } = self;
        let none = Settings::default();
        for (uuid, settings) in &self.by_uuid {
            let old = before.by_uuid.get(uuid).unwrap_or(&none);
            if let Some(its) = &settings.reservations {
                let old = old.reservations.as_ref();
                if let Some(text) = its.preemption_since(old) {
                    tracing::warn!(%subsystem, nsid, "{text}");
                }
                if let Some(text) = its.holder_since(old) {
                    tracing::info!(%subsystem, nsid, "{text}");
                }
            }
        }
    }

    /// Logs the reservations that are restored from this record.
    pub(super) fn log_restored(&self) {
        let Self {
            subsystem, nsid, ..
        } = self;
        let its = self.by_uuid.values();
        for its in its.filter_map(|settings| settings.reservations.as_ref()) {
            let registrants = its.registrants.len();
            match its.holding() {
                Some(holding) => tracing::info!(
                    %subsystem, nsid, registrants,
                    "reservations restored: held by {holding}"
                ),
                None => tracing::info!(%subsystem, nsid, registrants, "registrations restored"),
            }
        }
    }

    /// The bytes to store; none if there are no settings.
    pub(super) fn bytes(&self) -> serde_json::Result<Vec<u8>> {
        if self.by_uuid.is_empty() {
            return Ok(Vec::new());
        }
        let mut bytes = serde_json::to_vec_pretty(self)?;
        bytes.push(b'\n');
        Ok(bytes)
    }
}

impl ReservationRecord {
    fn of(state: &ReservationState, before: Option<&Self>, now: SystemTime) -> Self {
        let now = now.duration_since(SystemTime::UNIX_EPOCH);
        let now = now.map_or(0, |since| since.as_secs());
        let its = &state.reservations;
        let registrants = its.registrants().map(|(host, key)| RegistrantRecord {
            host: HostRecord::of(&Registrant {
                host: *host,
                nqn: state.names.get(host).copied(),
            }),
            key: format!("{key:#018x}"),
        });
        let reservation = its.reservation().map(|held| {
            let mut new = HeldRecord {
                kind: held.kind.0,
                holder: held.holder.as_ref().map(hex),
                since: now,
            };
            let before = before.and_then(|record| record.reservation.as_ref());
            if let Some(same) =
                before.filter(|old| (old.kind, &old.holder) == (new.kind, &new.holder))
            {
                new.since = same.since;
            }
            new
        });
        let preemption = state.preemption.as_ref().map(|preemption| {
            let mut new = PreemptionRecord {
                generation: preemption.generation,
                at: now,
                by: HostRecord::of(&preemption.by),
                preempted: preemption.preempted.iter().map(HostRecord::of).collect(),
            };
            let before = before.and_then(|record| record.preemption.as_ref());
            if let Some(same) = before.filter(|old| old.generation == new.generation) {
                new.at = same.at;
            }
            new
        });
        Self {
            generation: its.generation(),
            persistent: its.persists(),
            registrants: registrants.collect(),
            reservation,
            preemption,
        }
    }

    /// Who was preempted since `before`, for the log.
    fn preemption_since(&self, before: Option<&Self>) -> Option<String> {
        let new = self.preemption.as_ref()?;
        let old = before.and_then(|before| before.preemption.as_ref());
        if old.is_some_and(|old| old.generation == new.generation) {
            return None;
        }
        let (named, others) = match new.preempted.split_at_checked(MOST_NAMES) {
            Some((named, others)) if !others.is_empty() => (named, others.len()),
            _ => (new.preempted.as_slice(), 0),
        };
        let named: Vec<_> = named.iter().map(HostRecord::name).collect();
        let others = match others {
            0 => String::new(),
            more => format!(" and {more} others"),
        };
        Some(format!(
            "reservations: host {} preempted {}{others}",
            new.by.name(),
            named.join(", ")
        ))
    }

    /// Who holds the reservation, if that changed since `before`, for the log.
    fn holder_since(&self, before: Option<&Self>) -> Option<String> {
        let held = |record: &Self| {
            let held = record.reservation.as_ref()?;
            Some((held.kind, held.holder.clone()))
        };
        if before.and_then(held) == held(self) {
            return None;
        }
        Some(match (self.holding(), before.and_then(Self::holding)) {
            (Some(now), _) => format!("reservations: held by {now}"),
            (None, Some(former)) => format!("reservations: released; was held by {former}"),
            (None, None) => "reservations: released".to_owned(),
        })
    }

    /// Who holds the reservation, and its type, for the log.
    pub(super) fn holding(&self) -> Option<String> {
        let held = self.reservation.as_ref()?;
        let its = self.registrants.iter().map(|one| &one.host);
        let mut its = its.filter(|one| Some(&one.host_id) == held.holder.as_ref());
        let name = its.next().map(|one| format!("host {}", one.name()));
        let name = name.as_deref().unwrap_or("all registrants");
        Some(format!("{name}: {}", ReservationType(held.kind).name()))
    }

    fn state(&self) -> Result<ReservationState, String> {
        let (mut registrants, mut names) = (BTreeMap::new(), BTreeMap::new());
        for one in &self.registrants {
            let Registrant { host, nqn } = one.host.registrant()?;
            let key = one.key.strip_prefix("0x");
            let key = key.and_then(|digits| u64::from_str_radix(digits, 16).ok());
            let key = key.ok_or_else(|| format!("{:?} is not a key", one.key))?;
            if registrants.insert(host, key).is_some() {
                return Err(format!("host {} is listed twice", one.host.host_id));
            }
            names.extend(nqn.map(|nqn| (host, nqn)));
        }
        let reservation = self.reservation.as_ref().map(HeldRecord::reservation);
        let reservations = Reservations::restore(
            self.generation,
            self.persistent,
            registrants,
            reservation.transpose()?,
        );
        let preemption = self.preemption.as_ref().map(PreemptionRecord::preemption);
        Ok(ReservationState {
            reservations: reservations
                .ok_or("its reservations are not such as commands can lead to")?,
            names,
            preemption: preemption.transpose()?,
        })
    }
}

impl HeldRecord {
    fn reservation(&self) -> Result<Reservation, String> {
        Ok(Reservation {
            kind: ReservationType(self.kind),
            holder: self.holder.as_deref().map(parse_hex).transpose()?,
        })
    }
}

impl PreemptionRecord {
    fn preemption(&self) -> Result<Preemption, String> {
        let preempted = self.preempted.iter().map(HostRecord::registrant);
        Ok(Preemption {
            generation: self.generation,
            by: self.by.registrant()?,
            preempted: preempted.collect::<Result<_, _>>()?,
        })
    }
}

impl HostRecord {
    fn of(registrant: &Registrant) -> Self {
        Self {
            host_id: hex(&registrant.host),
            nqn: registrant.nqn.map(|nqn| nqn.as_str().to_owned()),
        }
    }

    /// For messages: its NQN, or its identifier.
    fn name(&self) -> String {
        Escaped(self.nqn.as_deref().unwrap_or(&self.host_id)).to_string()
    }

    fn registrant(&self) -> Result<Registrant, String> {
        let nqn = self.nqn.as_deref().map(Nqn::new).transpose();
        Ok(Registrant {
            host: parse_hex(&self.host_id)?,
            nqn: nqn.map_err(|error| error.to_string())?,
        })
    }
}

/// Hosts that a log line names.
const MOST_NAMES: usize = 8;

fn hex(bytes: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*bytes))
}

pub(super) fn parse_hex(text: &str) -> Result<HostId, String> {
    let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = is_hex
        .then(|| u128::from_str_radix(text, 16).ok())
        .flatten();
    let number = number.ok_or_else(|| format!("{text:?} has not 32 hexadecimal digits"))?;
    Ok(number.to_be_bytes())
}

/// Any number is a time: the file may be edited.
fn time(seconds: u64) -> SystemTime {
    let since = Duration::from_secs(seconds);
    SystemTime::UNIX_EPOCH
        .checked_add(since)
        .unwrap_or(SystemTime::UNIX_EPOCH)
}
