//! The commands (Base 2.1, 7.5 to 7.7, and 8.1.22.3 to 8.1.22.8).

use std::collections::BTreeMap;

use nvmeof_wire::reservation::{
    AcquireAction, NoticeType, PersistChange, Register, RegisterAction, ReleaseAction, Reserve,
};

use crate::{Change, HostId, InvalidField, Refused, Reservation, Reservations, Rules};

/// The next state while it is being made.
struct Draft<'a> {
    before: &'a Reservations,
    next: Reservations,
    /// The host of the command, which is not notified.
    issuer: HostId,
    notices: BTreeMap<HostId, NoticeType>,
}

impl Reservations {
    /// Reservation Register of `host` with the keys `(CRKEY, NRKEY)`.
    ///
    /// # Errors
    /// [`Refused`]; nothing changes.
    pub fn register(
        &self,
        host: HostId,
        command: &Register,
        (current, new): (u64, u64),
        rules: &Rules,
    ) -> Result<Change, Refused> {
        let persists = match command.persist {
            PersistChange::KEEP => self.persists,
            PersistChange::CLEAR => false,
            PersistChange::SET => true,
            _ => return Err(Refused::Field(InvalidField::Persist)),
        };
        let unregisters = match command.action {
            RegisterAction::REGISTER | RegisterAction::REPLACE if new != 0 => false,
            RegisterAction::REPLACE if rules.replace_with_zero_unregisters => true,
            RegisterAction::REGISTER | RegisterAction::REPLACE => {
                return Err(Refused::Field(InvalidField::NewKey));
            }
            RegisterAction::UNREGISTER => true,
            _ => return Err(Refused::Field(InvalidField::Action)),
        };
        let present = self.registrants.get(&host).copied();
        let mut draft = self.draft(host);
        if command.action == RegisterAction::REGISTER {
            match present {
                None if self.registrants.len() >= usize::from(rules.most_registrants) => {
                    return Err(Refused::Full);
                }
                Some(key) if key != new => return Err(Refused::Conflict),
                _ => {}
            }
        } else {
            self.check_key(&host, current, command.ignores_key)?;
        }
        if unregisters {
            draft.unregister(&host);
        } else {
            draft.next.registrants.insert(host, new);
        }
        draft.next.persists = persists;
        Ok(draft.changed())
    }

    /// Reservation Acquire of `host` with the keys `(CRKEY, PRKEY)`.
    ///
    /// # Errors
    /// [`Refused`]; nothing changes.
    pub fn acquire(
        &self,
        host: HostId,
        command: &Reserve,
        (current, preempted): (u64, u64),
    ) -> Result<Change, Refused> {
        let preempts = match AcquireAction(command.action) {
            AcquireAction::ACQUIRE => false,
            AcquireAction::PREEMPT | AcquireAction::PREEMPT_AND_ABORT => true,
            _ => return Err(Refused::Field(InvalidField::Action)),
        };
        if command.ignores_key {
            return Err(Refused::Field(InvalidField::IgnoresKey));
        }
        if !command.kind.is_known() {
            return Err(Refused::Field(InvalidField::Kind));
        }
        let takes_from_all = self.reservation.is_some_and(|it| it.holder.is_none());
        if preempts && preempted == 0 && !takes_from_all {
            return Err(Refused::Field(InvalidField::PreemptKey));
        }
        self.check_key(&host, current, false)?;
        let taken = Reservation {
            kind: command.kind,
            holder: (!command.kind.is_of_all()).then_some(host),
        };
        let mut draft = self.draft(host);
        if preempts {
            draft.preempt(preempted, taken)?;
            return Ok(draft.changed());
        }
        match &self.reservation {
            None => draft.next.reservation = Some(taken),
            // A command that was interrupted may have taken it, and not have waited for others.
            Some(held) if held.kind == command.kind && self.is_holder(&host) => {
                return Ok(Change {
                    ends: self.denied(),
                    ..draft.end()
                });
            }
            Some(_) => return Err(Refused::Conflict),
        }
        Ok(draft.end())
    }

    /// Reservation Release of `host` with the key CRKEY.
    ///
    /// # Errors
    /// [`Refused`]; nothing changes.
    pub fn release(
        &self,
        host: HostId,
        command: &Reserve,
        current: u64,
    ) -> Result<Change, Refused> {
        let clears = match ReleaseAction(command.action) {
            ReleaseAction::RELEASE => false,
            ReleaseAction::CLEAR => true,
            _ => return Err(Refused::Field(InvalidField::Action)),
        };
        if command.ignores_key {
            return Err(Refused::Field(InvalidField::IgnoresKey));
        }
        if !clears && !command.kind.is_known() {
            return Err(Refused::Field(InvalidField::Kind));
        }
        self.check_key(&host, current, false)?;
        let mut draft = self.draft(host);
        if clears {
            for other in self.registrants.keys() {
                draft.notify(other, NoticeType::RESERVATION_PREEMPTED);
            }
            draft.next.registrants.clear();
            draft.next.reservation = None;
            return Ok(draft.changed());
        }
        if self.is_holder(&host) {
            if self
                .reservation
                .is_some_and(|held| held.kind != command.kind)
            {
                return Err(Refused::Field(InvalidField::Kind));
            }
            draft.give_up();
        }
        Ok(draft.end())
    }

    /// Removes everything, as an administrator does.
    #[must_use]
    pub fn clear(&self) -> Change {
        // No host has this identifier.
        let mut draft = self.draft([0; 16]);
        for host in self.registrants.keys() {
            draft.notify(host, NoticeType::RESERVATION_PREEMPTED);
        }
        draft.next.registrants.clear();
        draft.next.reservation = None;
        draft.changed()
    }

    /// Sets whether they persist through power loss (feature 83h).
    #[must_use]
    pub fn with_persistence(&self, persists: bool) -> Change {
        let mut draft = self.draft([0; 16]);
        draft.next.persists = persists;
        draft.end()
    }

    fn draft(&self, issuer: HostId) -> Draft<'_> {
        Draft {
            before: self,
            next: self.clone(),
            issuer,
            notices: BTreeMap::new(),
        }
    }

    /// Whether the host is a registrant, with that key unless it is ignored.
    fn check_key(&self, host: &HostId, current: u64, ignores: bool) -> Result<(), Refused> {
        match self.registrants.get(host) {
            Some(key) if ignores || *key == current => Ok(()),
            _ => Err(Refused::Conflict),
        }
    }
}

impl Draft<'_> {
    fn notify(&mut self, host: &HostId, notice: NoticeType) {
        if *host != self.issuer {
            self.notices.insert(*host, notice);
        }
    }

    /// The reservation is released. All others that are registered are notified, if the type
    /// depends on registrations.
    fn give_up(&mut self) {
        let Some(held) = self.next.reservation.take() else {
            return;
        };
        if held.kind.depends_on_registrants() {
            self.notify_registrants(NoticeType::RESERVATION_RELEASED);
        }
    }

    fn notify_registrants(&mut self, notice: NoticeType) {
        let hosts: Vec<_> = self.next.registrants.keys().copied().collect();
        for host in hosts {
            self.notify(&host, notice);
        }
    }

    /// The reservation ends with the registration of its holder, or of the last holder.
    fn unregister(&mut self, host: &HostId) {
        self.next.registrants.remove(host);
        let ends = self.next.reservation.is_some_and(|held| match held.holder {
            Some(holder) => holder == *host,
            None => self.next.registrants.is_empty(),
        });
        if ends {
            self.give_up();
        }
    }

    /// Removes the registrants with that key, and perhaps takes the reservation.
    fn preempt(&mut self, key: u64, taken: Reservation) -> Result<(), Refused> {
        let held = self.before.reservation;
        let takes = match held {
            None => false,
            // Of all registrants.
            Some(Reservation { holder: None, .. }) => key == 0,
            Some(Reservation {
                holder: Some(holder),
                ..
            }) => self.before.registrants.get(&holder) == Some(&key),
        };
        let of_all = takes && key == 0;
        let issuer = self.issuer;
        // Who takes the reservation stays registered, whatever its key.
        let goes = |host: &HostId, its: u64| (of_all || its == key) && !(takes && *host == issuer);
        let before = self.before.registrants.iter();
        let gone = before.filter(|(host, its)| goes(host, **its));
        let gone: Vec<_> = gone.map(|(host, _)| *host).collect();
        if gone.is_empty() && !takes {
            return Err(Refused::Conflict);
        }
        for host in &gone {
            self.next.registrants.remove(host);
        }
        if takes {
            self.next.reservation = Some(taken);
            if held.is_some_and(|held| held.kind != taken.kind) {
                self.notify_registrants(NoticeType::RESERVATION_RELEASED);
            }
        } else if self.next.registrants.is_empty() {
            // All who held it are gone.
            self.next.reservation = None;
        }
        for host in &gone {
            self.notify(host, NoticeType::REGISTRATION_PREEMPTED);
        }
        Ok(())
    }

    /// The end of a command that counts as a change of registrations.
    fn changed(mut self) -> Change {
        self.next.generation = self.before.generation.wrapping_add(1);
        self.end()
    }

    fn end(self) -> Change {
        let ends = self.before.lost_by(&self.next);
        Change {
            next: self.next,
            notices: self.notices.into_iter().collect(),
            ends,
        }
    }
}
