//! The NQN of the discovery subsystem, and referrals to others.

use std::net::{IpAddr, SocketAddr};

use nvmeof_wire::Nqn;

use super::build::{check_nqn, wrong};
use super::{Change, ChangeKind, Location, Model, ModelError, Subject};

/// Describes the discovery subsystem.
#[derive(Clone, Debug, Default)]
pub struct DiscoverySpec {
    /// Its unique NQN, besides the well-known one.
    pub nqn: Option<String>,
    /// Referrals to other discovery subsystems.
    pub referrals: Vec<ReferralSpec>,
}

/// Describes a referral to another discovery subsystem.
#[derive(Clone, Debug)]
pub struct ReferralSpec {
    /// Its address.
    pub traddr: IpAddr,
    /// TCP or RDMA CM port.
    pub trsvcid: u16,
    /// Its port identifier, if it is known.
    pub port_id: Option<u16>,
    /// Its NQN; by default the well-known one.
    pub nqn: Option<String>,
}

/// The discovery subsystem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discovery {
    nqn: Option<Nqn>,
    referrals: Vec<Referral>,
}

/// A referral to another discovery subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Referral {
    /// Its address.
    pub traddr: IpAddr,
    /// TCP or RDMA CM port.
    pub trsvcid: u16,
    /// Its port identifier; 0 if it is not known.
    pub port_id: u16,
    /// Its NQN.
    pub nqn: Nqn,
}

impl Discovery {
    /// Its unique NQN, besides the well-known one.
    #[must_use]
    pub fn nqn(&self) -> Option<&Nqn> {
        self.nqn.as_ref()
    }

    /// The referrals, in the order given.
    #[must_use]
    pub fn referrals(&self) -> &[Referral] {
        &self.referrals
    }

    /// Whether `nqn` is an NQN of the discovery subsystem.
    #[must_use]
    pub fn is_called(&self, nqn: &Nqn) -> bool {
        nqn.is_discovery() || self.nqn() == Some(nqn)
    }
}

impl Model {
    /// The same model, with this discovery subsystem.
    ///
    /// # Errors
    /// [`ModelError`] for the first invalid value.
    pub fn with_discovery(mut self, spec: &DiscoverySpec) -> Result<Self, ModelError> {
        let nqn = spec.nqn.as_ref();
        let nqn = nqn.map(|nqn| self.unique_name(nqn)).transpose()?;
        let mut referrals = Vec::with_capacity(spec.referrals.len());
        for (at, spec) in spec.referrals.iter().enumerate() {
            referrals.push(referral(Location::Referral(at), spec, &referrals)?);
        }
        self.discovery = Discovery { nqn, referrals };
        Ok(self)
    }

    /// The discovery subsystem.
    #[must_use]
    pub fn discovery(&self) -> &Discovery {
        &self.discovery
    }

    fn unique_name(&self, text: &str) -> Result<Nqn, ModelError> {
        let bad = |why: &str| wrong(Location::Discovery, "nqn", text, why);
        let nqn = check_nqn(Location::Discovery, "nqn", text)?;
        if nqn.is_discovery() {
            return Err(bad(
                "every discovery subsystem has this name; omit the key, or set a unique name",
            ));
        }
        if self.subsystem(&nqn).is_some() {
            return Err(bad("a subsystem has this name already"));
        }
        Ok(nqn)
    }
}

fn referral(
    location: Location,
    spec: &ReferralSpec,
    others: &[Referral],
) -> Result<Referral, ModelError> {
    let ReferralSpec {
        traddr,
        trsvcid,
        port_id,
        ..
    } = *spec;
    if traddr.is_unspecified() || traddr.is_multicast() {
        let why = "hosts cannot connect to it; give the address of one target";
        return Err(wrong(location, "traddr", traddr, why));
    }
    if trsvcid == 0 {
        return Err(wrong(location, "trsvcid", trsvcid, "must be 1 to 65535"));
    }
    let nqn = match &spec.nqn {
        Some(nqn) => check_nqn(location, "nqn", nqn)?,
        None => Nqn::discovery(),
    };
    let same =
        |other: &Referral| (other.traddr, other.trsvcid, other.nqn) == (traddr, trsvcid, nqn);
    if others.iter().any(same) {
        let why = "another referral has this traddr, trsvcid and nqn already";
        return Err(wrong(location, "traddr", traddr, why));
    }
    Ok(Referral {
        traddr,
        trsvcid,
        port_id: port_id.unwrap_or(0),
        nqn,
    })
}

/// The changes from `old` to `new`.
pub(super) fn difference(old: &Discovery, new: &Discovery, changes: &mut Vec<Change>) {
    if old.nqn != new.nqn {
        let kind = ChangeKind::Changed { key: "nqn" };
        let subject = Subject::Discovery;
        changes.push(Change { subject, kind });
    }
    let address = |one: &Referral| SocketAddr::new(one.traddr, one.trsvcid).to_string();
    let subject = |one: &Referral| Subject::Referral {
        address: address(one),
        nqn: one.nqn,
    };
    let lists = [
        (&old.referrals, &new.referrals, ChangeKind::Removed),
        (&new.referrals, &old.referrals, ChangeKind::Added),
    ];
    for (all, others, kind) in lists {
        for one in all.iter().filter(|one| !others.contains(one)) {
            let (subject, kind) = (subject(one), kind.clone());
            changes.push(Change { subject, kind });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;
    use crate::testing::{SUBNQN, port, subsystem};

    fn built(spec: &DiscoverySpec) -> Result<Model, ModelError> {
        Model::build(Limits::default(), &[port()], &[subsystem()])?.with_discovery(spec)
    }

    fn referral(traddr: &str) -> ReferralSpec {
        ReferralSpec {
            traddr: traddr.parse().unwrap(),
            trsvcid: 4420,
            port_id: None,
            nqn: None,
        }
    }

    #[test]
    fn reserved_and_invalid_discovery_nqns_are_refused() {
        for nqn in [nvmeof_wire::nqn::DISCOVERY, SUBNQN, "di\nsk"] {
            let spec = DiscoverySpec {
                nqn: Some(nqn.into()),
                ..DiscoverySpec::default()
            };
            let error = built(&spec).unwrap_err();
            assert_eq!(
                (error.location, error.key),
                (Location::Discovery, "nqn"),
                "{nqn}"
            );
        }
    }

    #[test]
    fn unusable_referrals_are_refused() {
        let to_port_0 = ReferralSpec {
            trsvcid: 0,
            ..referral("10.0.0.1")
        };
        let invalid_nqn = ReferralSpec {
            nqn: Some("no\0body".into()),
            ..referral("10.0.0.1")
        };
        for (bad, key) in [
            (referral("0.0.0.0"), "traddr"),
            (referral("ff02::1"), "traddr"),
            (referral("10.0.0.2"), "traddr"),
            (to_port_0, "trsvcid"),
            (invalid_nqn, "nqn"),
        ] {
            let spec = DiscoverySpec {
                nqn: None,
                referrals: vec![referral("10.0.0.2"), bad],
            };
            let error = built(&spec).unwrap_err();
            assert_eq!((error.location, error.key), (Location::Referral(1), key));
        }
    }

    #[test]
    fn discovery_differences_are_named() {
        let before = DiscoverySpec {
            nqn: None,
            referrals: vec![referral("10.0.0.2"), referral("::1")],
        };
        let after = DiscoverySpec {
            nqn: Some("nqn.2026-11.org.example:finder".into()),
            referrals: vec![referral("10.0.0.3"), referral("::1")],
        };
        let changes = built(&before).unwrap().difference(&built(&after).unwrap());
        let lines: Vec<_> = changes.iter().map(ToString::to_string).collect();
        assert_eq!(
            lines,
            [
                "the discovery subsystem is changed: nqn",
                "the referral to 10.0.0.2:4420 is removed",
                "the referral to 10.0.0.3:4420 is added",
            ]
        );
    }
}
