//! `[metrics]`: the TCP address of the metrics.

use std::net::SocketAddr;

use nvmeof_rdma::Address;
use serde::Deserialize;
use toml::Spanned;

use super::provider::ValueError;
use nvmeof_target_address as zone;

/// The listener for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricsConfig {
    /// The TCP address to listen on; `None`: there is none.
    pub listen: Option<SocketAddr>,
}

/// Metrics and health over TCP, in addition to the control socket; see monitoring.md.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawMetrics {
    /// TCP address and port for `/metrics`, `/healthz` and `/snapshot`, such as
    /// `"127.0.0.1:9400"`. If left out: they are available on the control socket only.
    listen: Option<Spanned<String>>,
}

impl RawMetrics {
    /// # Errors
    /// [`ValueError`] names the valid values.
    pub(crate) fn to_config(&self) -> Result<MetricsConfig, ValueError> {
        let listen = self.listen.as_ref().map(|listen| {
            let text = listen.get_ref();
            let address = zone::parse(text).ok().and_then(Address::socket_addr);
            address.ok_or_else(|| ValueError {
                at: Some(listen.span().start),
                what: format!(
                    "metrics.listen = {text:?}: must be an address and a port, such as \
                     \"127.0.0.1:9400\" or \"[::1]:9400\""
                ),
            })
        });
        let listen = listen.transpose()?;
        Ok(MetricsConfig { listen })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<SocketAddr>, String> {
        let raw: RawMetrics = toml::from_str(text).unwrap();
        let config = raw.to_config().map_err(|wrong| wrong.what)?;
        Ok(config.listen)
    }

    #[test]
    fn metrics_address_requires_a_port() {
        assert_eq!(read(""), Ok(None));
        let listen = read("listen = \"[::1]:9400\"").unwrap().unwrap();
        assert_eq!((listen.port(), listen.is_ipv6()), (9400, true));
        let listen = read("listen = \"[fe80::1%absent0]:9400\"")
            .unwrap()
            .unwrap();
        assert_eq!(zone::traddr(listen), "fe80::1%absent0");
        for bad in ["127.0.0.1", ":9400", "localhost:9400", "", "unix:/a"] {
            let what = read(&format!("listen = \"{bad}\"")).unwrap_err();
            assert!(
                what.starts_with(&format!("metrics.listen = \"{bad}\": must be")),
                "{what}"
            );
        }
    }
}
