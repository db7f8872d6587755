//! The reference model of the reservations of one namespace (NVMe Base 2.1, 8.1.22). It shares no
//! code with the target.

use std::collections::BTreeMap;

use nvmeof_initiator_core::{
    Registrant, ReservationAcquire, ReservationCommand, ReservationRegister, ReservationRelease,
    ReservationReport,
};
use nvmeof_target_core::SavedReservations;
use nvmeof_wire::reservation::{
    AcquireAction, PersistChange, RegisterAction, ReleaseAction, ReservationType,
};

use crate::host::name_of;

/// Registrations and the reservation of a namespace. Hosts have the numbers of the world.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct State {
    generation: u32,
    persists: bool,
    keys: BTreeMap<usize, u64>,
    held: Option<Held>,
}

/// A reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Held {
    pub(crate) kind: ReservationType,
    /// `None`: all registrants hold it.
    pub(crate) holder: Option<usize>,
}

/// What a command does to the data of a namespace. One that writes may read as well: no type
/// denies only the latter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// A request to change reservations.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request {
    /// A command of a host.
    Command(usize, ReservationCommand),
    /// An administrator removes everything.
    Clear,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Reservation Conflict.
    Conflict,
    /// Invalid Field in Command.
    Field,
}

impl State {
    /// What the target saved; `None` if it cannot be the state of a namespace.
    pub(crate) fn of_saved(saved: &SavedReservations) -> Option<Self> {
        let its = &saved.state.reservations;
        let keys: Option<BTreeMap<usize, u64>> = its
            .registrants()
            .map(|(host, key)| Some((number_of(host)?, key)))
            .collect();
        let held = match its.reservation() {
            Some(held) => Some(Held {
                kind: held.kind,
                holder: match &held.holder {
                    Some(host) => Some(number_of(host)?),
                    None => None,
                },
            }),
            None => None,
        };
        let keys = keys?;
        let ids = its.registrants().map(|(host, _)| *host);
        let names = ids.zip(keys.keys().map(|host| name_of(*host)));
        let names: BTreeMap<_, _> = names.collect();
        (saved.state.names == names).then_some(Self {
            generation: its.generation(),
            persists: its.persists(),
            keys,
            held,
        })
    }

    /// Whether a report shows this state.
    pub(crate) fn is_reported(&self, report: &ReservationReport) -> bool {
        let none = ReservationType::NONE;
        let keys = self.keys.iter();
        let registrants = keys.map(|(host, key)| Some((*host, *key, self.is_holder(*host))));
        let reported = |one: &Registrant| Some((number_of(&one.hostid)?, one.key, one.holds));
        report.generation == self.generation
            && report.persists == self.persists
            && report.kind == self.held.map_or(none, |held| held.kind)
            && usize::from(report.registered) == self.keys.len()
            && registrants.eq(report.registrants.iter().map(reported))
    }

    /// After a loss of power (8.1.22.6).
    pub(crate) fn after_power_loss(&self) -> Self {
        match self.persists {
            true => self.clone(),
            false => Self::default(),
        }
    }

    /// Whether there are neither registrants nor a reservation.
    pub(crate) fn is_clear(&self) -> bool {
        self.keys.is_empty() && self.held.is_none()
    }

    /// The key of a registrant.
    pub(crate) fn key(&self, host: usize) -> Option<u64> {
        self.keys.get(&host).copied()
    }

    /// The reservation, if there is one.
    pub(crate) fn held(&self) -> Option<Held> {
        self.held
    }

    /// Whether `host` holds the reservation.
    pub(crate) fn is_holder(&self, host: usize) -> bool {
        match self.held {
            None => false,
            Some(Held { holder: None, .. }) => self.keys.contains_key(&host),
            Some(Held { holder, .. }) => holder == Some(host),
        }
    }

    /// Whether `host` may do that (8.1.22.2).
    pub(crate) fn allows(&self, host: usize, access: Access) -> bool {
        let Some(held) = self.held else {
            return true;
        };
        if self.is_holder(host) {
            return true;
        }
        let registered = self.keys.contains_key(&host);
        match held.kind {
            ReservationType::WRITE_EXCLUSIVE => access == Access::Read,
            ReservationType::EXCLUSIVE_ACCESS => false,
            ReservationType::WRITE_EXCLUSIVE_REGISTRANTS | ReservationType::WRITE_EXCLUSIVE_ALL => {
                registered || access == Access::Read
            }
            _ => registered,
        }
    }

    /// The state after a request.
    pub(crate) fn after(&self, request: &Request) -> Result<Self, Refusal> {
        let mut next = self.clone();
        match request {
            Request::Clear => next.clear(),
            Request::Command(host, ReservationCommand::Register(it)) => next.register(*host, it)?,
            Request::Command(host, ReservationCommand::Acquire(it)) => next.acquire(*host, it)?,
            Request::Command(host, ReservationCommand::Release(it)) => next.release(*host, it)?,
        }
        Ok(next)
    }

    fn clear(&mut self) {
        self.keys.clear();
        self.held = None;
        self.generation = self.generation.wrapping_add(1);
    }

    fn register(&mut self, host: usize, it: &ReservationRegister) -> Result<(), Refusal> {
        let key = self.key(host);
        let is_known = key.is_some_and(|key| it.ignores_key || key == it.current);
        match it.action {
            RegisterAction::REGISTER if key.is_some_and(|key| key != it.new) => {
                return Err(Refusal::Conflict);
            }
            RegisterAction::REGISTER => {}
            _ if !is_known => return Err(Refusal::Conflict),
            _ => {}
        }
        match it.action {
            RegisterAction::UNREGISTER => {
                let held_it = self.is_holder(host);
                self.keys.remove(&host);
                let of_all = self.held.is_some_and(|held| held.holder.is_none());
                if held_it && (!of_all || self.keys.is_empty()) {
                    self.held = None;
                }
            }
            _ => {
                self.keys.insert(host, it.new);
            }
        }
        match it.persist {
            PersistChange::CLEAR => self.persists = false,
            PersistChange::SET => self.persists = true,
            _ => {}
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(())
    }

    fn acquire(&mut self, host: usize, it: &ReservationAcquire) -> Result<(), Refusal> {
        let of_all = self.held.is_some_and(|held| held.holder.is_none());
        if it.action != AcquireAction::ACQUIRE && it.preempted == 0 && !of_all {
            return Err(Refusal::Field);
        }
        if self.key(host) != Some(it.current) {
            return Err(Refusal::Conflict);
        }
        let wanted = Held {
            kind: it.kind,
            holder: (!it.kind.is_of_all()).then_some(host),
        };
        if it.action == AcquireAction::ACQUIRE {
            return match self.held {
                Some(held) if held.kind != it.kind || !self.is_holder(host) => {
                    Err(Refusal::Conflict)
                }
                _ => {
                    self.held = Some(wanted);
                    Ok(())
                }
            };
        }
        // 8.1.22.7: the reservation changes hands if the key is that of its holder, or 0 if all
        // registrants hold it.
        let takes = match self.held {
            None => false,
            Some(Held { holder: None, .. }) => it.preempted == 0,
            Some(Held {
                holder: Some(holder),
                ..
            }) => self.key(holder) == Some(it.preempted),
        };
        let before = self.keys.len();
        let everybody = takes && it.preempted == 0;
        self.keys.retain(|one, key| {
            let is_named = everybody || *key == it.preempted;
            !is_named || (takes && *one == host)
        });
        if takes {
            self.held = Some(wanted);
        } else if self.keys.len() == before {
            return Err(Refusal::Conflict);
        } else if self.keys.is_empty() {
            self.held = None;
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(())
    }

    fn release(&mut self, host: usize, it: &ReservationRelease) -> Result<(), Refusal> {
        if self.key(host) != Some(it.current) {
            return Err(Refusal::Conflict);
        }
        if it.action == ReleaseAction::CLEAR {
            self.clear();
            return Ok(());
        }
        match self.held {
            Some(held) if self.is_holder(host) && held.kind != it.kind => Err(Refusal::Field),
            Some(_) if self.is_holder(host) => {
                self.held = None;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// The number of the host with that identifier.
fn number_of(hostid: &[u8; 16]) -> Option<usize> {
    let [first, ..] = *hostid;
    let is_one = first > 0 && *hostid == [first; 16];
    is_one.then(|| usize::from(first) - 1)
}
