//! Images of removed namespaces, which stay open until their records are removed: only the owner of
//! the lock may remove a record.

use std::sync::{MutexGuard, PoisonError};

use nvmeof_backend::Claim;
use nvmeof_wire::Nqn;

use super::Manager;
use super::pool::NamespaceStore;

/// A namespace, or all namespaces of a subsystem.
pub type Removed = (Nqn, Option<u32>);

/// Removals in progress.
#[derive(Default)]
pub(super) struct Removals {
    names: Vec<Removed>,
    /// Of images that were removed since.
    claims: Vec<(Nqn, u32, Claim)>,
}

/// A removal by name. Its images are closed when it is dropped.
#[must_use]
pub struct Removal<'a> {
    manager: &'a Manager,
    names: Vec<Removed>,
}

impl Manager {
    /// Keeps images open which the next changes remove, if they are of these namespaces, until the
    /// result is dropped. An administrator removes these namespaces by name, thus
    /// [`forget_settings`](Self::forget_settings) is called for each of them.
    pub fn begin_removal(&self, names: Vec<Removed>) -> Removal<'_> {
        self.removals().names.extend(names.iter().copied());
        Removal {
            manager: self,
            names,
        }
    }

    /// Keeps those of `gone` open that are removed by name. They are of `stores`.
    pub(super) fn keep_removed(&self, stores: &[NamespaceStore], gone: Vec<(u32, Claim)>) {
        let mut removals = self.removals();
        let Removals { names, claims } = &mut *removals;
        for (number, claim) in gone {
            let its = stores.iter().find(|store| store.number == number);
            let name = its.and_then(|store| {
                let nqn = Nqn::new(&store.configured.nqn).ok()?;
                Some((nqn, store.configured.nsid))
            });
            if let Some((nqn, nsid)) = name
                && names.iter().any(|name| is_of(name, &nqn, nsid))
                && claim.records().is_some()
            {
                claims.push((nqn, nsid, claim));
            }
        }
    }

    fn removals(&self) -> MutexGuard<'_, Removals> {
        // A panic of a holder leaves nothing inconsistent.
        self.removals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Removal<'_> {
    /// The namespaces.
    #[must_use]
    pub fn names(&self) -> &[Removed] {
        &self.names
    }
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        let mut removals = self.manager.removals();
        for name in &self.names {
            if let Some(at) = removals.names.iter().position(|one| one == name) {
                removals.names.swap_remove(at);
            }
        }
        let Removals { names, claims } = &mut *removals;
        claims.retain(|(nqn, nsid, _)| names.iter().any(|name| is_of(name, nqn, *nsid)));
    }
}

fn is_of((subsystem, of): &Removed, nqn: &Nqn, nsid: u32) -> bool {
    subsystem == nqn && of.is_none_or(|of| of == nsid)
}
