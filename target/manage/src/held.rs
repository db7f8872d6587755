//! The ANA groups whose images this gateway may open.

use std::collections::BTreeMap;

use nvmeof_backend::{Claim, Geometry, RbdClients};
use nvmeof_target_config::{Config, ConfiguredStore};

/// The groups of `[[ha.group]]` that this gateway holds. It has fenced their former owners.
#[derive(Clone, Default)]
pub(crate) struct HeldGroups {
    held: BTreeMap<u32, HeldGroup>,
}

/// A group that this gateway holds.
#[derive(Clone)]
pub(crate) struct HeldGroup {
    /// The clients that open its images.
    pub(crate) clients: RbdClients,
    /// The epoch in which hosts see it as optimized.
    pub(crate) serving: Option<u64>,
}

impl HeldGroups {
    pub(crate) fn get(&self, group: u32) -> Option<&HeldGroup> {
        self.held.get(&group)
    }

    /// Its images may be opened through `clients`; hosts see it as inaccessible.
    pub(crate) fn hold(&mut self, group: u32, clients: RbdClients) {
        let serving = None;
        self.held.insert(group, HeldGroup { clients, serving });
    }

    /// Hosts see it as optimized in that epoch, or as inaccessible.
    pub(crate) fn set_serving(&mut self, group: u32, serving: Option<u64>) {
        if let Some(held) = self.held.get_mut(&group) {
            held.serving = serving;
        }
    }

    /// No image of it may be opened any more.
    pub(crate) fn release(&mut self, group: u32) {
        self.held.remove(&group);
    }

    /// Whether it is held, and its images are being opened or are not served at present.
    pub(crate) fn is_taking(&self, group: u32) -> bool {
        self.get(group).is_some_and(|held| held.serving.is_none())
    }

    /// Whether `taken`, which was opened with an earlier state, may be served now.
    pub(crate) fn permits(&self, configured: &ConfiguredStore, taken: &Taken) -> bool {
        let Some(group) = configured.group else {
            return true;
        };
        match (taken, self.get(group)) {
            (Taken::Open(claim), _) => self.is_serving(group) && claim.is_permitted(),
            (Taken::Standby(standby), held) => standby.claim.is_none() && held.is_none(),
        }
    }

    fn is_serving(&self, group: u32) -> bool {
        self.get(group).is_some_and(|held| held.serving.is_some())
    }

    /// The groups of `config` that this gateway does not serve.
    pub(crate) fn standby(&self, config: &Config) -> Vec<u32> {
        let groups = config.ha().into_iter().flat_map(|ha| &ha.groups);
        let groups = groups.map(|group| group.id);
        groups.filter(|id| !self.is_serving(*id)).collect()
    }
}

/// A backing store that is available.
#[derive(Clone)]
pub enum Taken {
    /// It is open and locked.
    Open(Claim),
    /// An image of a group of `[[ha.group]]` that this gateway does not serve.
    Standby(Standby),
}

/// An image of a group of `[[ha.group]]` that this gateway does not serve.
#[derive(Clone)]
pub struct Standby {
    /// Its geometry when it was last examined.
    pub(crate) geometry: Geometry,
    /// It is open and locked, if this gateway holds the group.
    pub(crate) claim: Option<Claim>,
}

impl Taken {
    /// As an image on standby.
    pub(crate) fn into_standby(self) -> Standby {
        match self {
            Self::Open(claim) => Standby {
                geometry: claim.geometry().clone(),
                claim: Some(claim),
            },
            Self::Standby(standby) => standby,
        }
    }

    /// Its claim, if it is open and locked.
    pub(crate) fn claim(&self) -> Option<&Claim> {
        match self {
            Self::Open(claim) => Some(claim),
            Self::Standby(standby) => standby.claim.as_ref(),
        }
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        match self {
            Self::Open(claim) => claim.geometry(),
            Self::Standby(standby) => &standby.geometry,
        }
    }
}
