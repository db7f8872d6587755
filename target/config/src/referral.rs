//! `[discovery]` and `[[referral]]`: the discovery subsystem and its referrals.

use std::net::IpAddr;

use nvmeof_target_core::{DiscoverySpec, ReferralSpec};
use serde::Deserialize;
use toml::Spanned;

use super::DEFAULT_PORT;

/// The discovery subsystem.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawDiscovery {
    /// Unique NQN of the discovery subsystem, in addition to the well-known one. If left out, it
    /// has none.
    nqn: Option<Spanned<String>>,
    /// Whether the discovery subsystem accepts only hosts with a `[[host]]`, which have to prove
    /// that they have their key. Otherwise it authenticates no host.
    ///
    /// Default: `false`
    #[serde(default)]
    require_authentication: bool,
}

/// Another discovery subsystem, which the discovery log page lists.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawReferral {
    /// Its IPv4 or IPv6 address.
    traddr: Spanned<IpAddr>,
    /// Its TCP port.
    ///
    /// Default: `4420`
    trsvcid: Option<Spanned<u16>>,
    /// Its port ID, if known.
    ///
    /// Default: `0`
    port_id: Option<u16>,
    /// Its NQN.
    ///
    /// Default: `"nqn.2014-08.org.nvmexpress.discovery"`
    nqn: Option<Spanned<String>>,
}

impl RawDiscovery {
    /// The specification for the model, with these referrals.
    pub(crate) fn to_spec(&self, referrals: &[Spanned<RawReferral>]) -> DiscoverySpec {
        let referrals = referrals.iter().map(Spanned::get_ref);
        DiscoverySpec {
            nqn: text(self.nqn.as_ref()),
            referrals: referrals.map(RawReferral::to_spec).collect(),
        }
    }

    /// Whether it accepts only hosts with a key.
    pub(crate) fn require_authentication(&self) -> bool {
        self.require_authentication
    }

    /// Where the name is in the text.
    pub(crate) fn location(&self) -> Option<usize> {
        self.nqn.as_ref().map(|nqn| nqn.span().start)
    }
}

impl RawReferral {
    fn to_spec(&self) -> ReferralSpec {
        let trsvcid = self.trsvcid.as_ref();
        ReferralSpec {
            traddr: *self.traddr.get_ref(),
            trsvcid: trsvcid.map_or(DEFAULT_PORT, |port| *port.get_ref()),
            port_id: self.port_id,
            nqn: text(self.nqn.as_ref()),
        }
    }

    /// Where the value of `key` is in the text.
    pub(crate) fn location(&self, key: &str) -> Option<usize> {
        let span = match key {
            "trsvcid" => self.trsvcid.as_ref()?.span(),
            "nqn" => self.nqn.as_ref()?.span(),
            _ => self.traddr.span(),
        };
        Some(span.start)
    }
}

fn text(spanned: Option<&Spanned<String>>) -> Option<String> {
    spanned.map(|spanned| spanned.get_ref().clone())
}
