//! Reservations of hosts, as an administrator shows, removes and moves them.

use std::collections::BTreeSet;

use nvmeof_target_core::{CannotImport, ReservationState, SaveError};
use nvmeof_wire::Nqn;
use uuid::Uuid;

use super::{FORGET, Manager};
use crate::host_settings::{NamespaceReservations, UnknownRecord};

/// Why reservations were not changed.
#[derive(Debug, thiserror::Error)]
pub enum ReservationsError {
    /// There are none.
    #[error(
        "no host is registered with namespace {nsid} of {subsystem}; `nvmeof-target ctl \
         reservations show` lists namespaces with registrants"
    )]
    None {
        /// NQN of the subsystem.
        subsystem: Nqn,
        /// NSID of the namespace.
        nsid: u32,
    },
    /// They cannot be imported, or there is no such namespace.
    #[error("namespace {nsid} of {subsystem}: {why}")]
    CannotChange {
        /// NQN of the subsystem.
        subsystem: Nqn,
        /// NSID of the namespace.
        nsid: u32,
        /// The reason.
        why: CannotImport,
    },
    /// Hosts are connected, whose commands would not be awaited.
    #[error(
        "hosts are connected to {subsystem} ({hosts}): disconnect them with `nvmeof-target ctl \
         disconnect`, or `nvmeof-target ctl drain`, so that none of their commands is executed \
         against the reservation"
    )]
    Connected {
        /// NQN of the subsystem.
        subsystem: Nqn,
        /// NQNs of the hosts.
        hosts: String,
    },
    /// They cannot be saved.
    #[error(transparent)]
    SaveError(#[from] SaveError),
    /// They are not saved yet.
    #[error(
        "the record, beside `control.state` or in RADOS, was not written within {} s; it may \
         still be written",
        FORGET.as_secs()
    )]
    NotYet,
}

impl Manager {
    /// The reservations of all namespaces that have any, by subsystem and NSID.
    #[must_use]
    pub fn reservations(&self) -> Vec<NamespaceReservations> {
        self.records.reservations()
    }

    /// Configured namespaces whose record of what hosts set cannot be read, or could not be
    /// restored after a failed write.
    #[must_use]
    pub fn unknown_records(&self) -> Vec<UnknownRecord> {
        let (mut all, model) = (self.records.unknown(), self.model());
        all.retain(|one| {
            let subsystem = model.subsystem(&one.subsystem);
            subsystem.is_some_and(|it| it.namespace(one.nsid).is_some())
        });
        all
    }

    /// Warnings about connected hosts that have the same host identifier.
    #[must_use]
    pub fn host_id_warnings(&self) -> Vec<String> {
        let shared = self.target.shared_host_ids().into_iter();
        let warnings = shared.map(|(id, hosts)| {
            let hosts: Vec<_> = hosts.iter().map(ToString::to_string).collect();
            format!(
                "hosts {} have the same host identifier {}: reservations take them for one host; \
                 give each its own, in /etc/nvme/hostid (limits.unique_host_ids refuses them)",
                hosts.join(" and "),
                Uuid::from_bytes(id)
            )
        });
        warnings.collect()
    }

    /// Removes all registrations and the reservation of a namespace. Its hosts are notified.
    ///
    /// # Errors
    /// [`ReservationsError`]. Unless it is [`ReservationsError::NotYet`], nothing changed.
    pub fn clear_reservations(&self, subsystem: Nqn, nsid: u32) -> Result<(), ReservationsError> {
        let pending = self.target.clear_reservations(&subsystem, nsid);
        let pending = pending.ok_or_else(|| {
            let model = self.model();
            let its = model.subsystem(&subsystem);
            match its.and_then(|it| it.namespace(nsid)) {
                Some(_) => ReservationsError::None { subsystem, nsid },
                None => ReservationsError::CannotChange {
                    subsystem,
                    nsid,
                    why: CannotImport::NoNamespace,
                },
            }
        })?;
        saved(pending.wait(FORGET))
    }

    /// Gives a namespace without registrants these reservations, while no host is connected to its
    /// subsystem.
    ///
    /// # Errors
    /// [`ReservationsError`]. Unless it is [`ReservationsError::NotYet`], nothing changed.
    pub fn import_reservations(
        &self,
        subsystem: Nqn,
        nsid: u32,
        state: ReservationState,
    ) -> Result<(), ReservationsError> {
        let connected = self.target.connected().into_iter();
        let connected = connected.filter(|one| one.subnqn == subsystem);
        let hosts: BTreeSet<_> = connected.map(|one| one.hostnqn.to_string()).collect();
        if !hosts.is_empty() {
            let hosts = hosts.into_iter().collect::<Vec<_>>().join(", ");
            return Err(ReservationsError::Connected { subsystem, hosts });
        }
        let pending = self.target.import_reservations(&subsystem, nsid, state);
        let pending = pending.map_err(|why| ReservationsError::CannotChange {
            subsystem,
            nsid,
            why,
        })?;
        saved(pending.wait(FORGET))
    }
}

fn saved(outcome: Option<Result<(), SaveError>>) -> Result<(), ReservationsError> {
    Ok(outcome.ok_or(ReservationsError::NotYet)??)
}
