//! What discovery controllers tell of besides subsystems, as it is configured.

use std::net::IpAddr;

use nvmeof_target_core::{DiscoverySpec, ReferralSpec};
use serde::Deserialize;
use toml::Spanned;

use super::DEFAULT_PORT;

/// What the discovery subsystem says of itself.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawDiscovery {
    /// A name of its own, besides the one that all discovery subsystems have. Left out: it has
    /// none.
    nqn: Option<Spanned<String>>,
}

/// A discovery subsystem elsewhere, of which hosts are told.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawReferral {
    /// An IPv4 or IPv6 address.
    traddr: Spanned<IpAddr>,
    /// Port number.
    ///
    /// Default: `4420`
    trsvcid: Option<Spanned<u16>>,
    /// Number of its port, if that is known.
    ///
    /// Default: `0`
    port_id: Option<u16>,
    /// Its name.
    ///
    /// Default: `"nqn.2014-08.org.nvmexpress.discovery"`
    nqn: Option<Spanned<String>>,
}

impl RawDiscovery {
    /// As the model wants it, with these referrals.
    pub(crate) fn to_spec(&self, referrals: &[Spanned<RawReferral>]) -> DiscoverySpec {
        let referrals = referrals.iter().map(Spanned::get_ref);
        DiscoverySpec {
            nqn: text(self.nqn.as_ref()),
            referrals: referrals.map(RawReferral::to_spec).collect(),
        }
    }

    /// Where the name is in the text.
    pub(crate) fn place(&self) -> Option<usize> {
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
    pub(crate) fn place(&self, key: &str) -> Option<usize> {
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
