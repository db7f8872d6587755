//! Command lines of discovery.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use nvmeof_initiator::DiscoveryOptions;
use nvmeof_initiator::dhchap::HostKeys;
use nvmeof_initiator::discovery::ConnectAllOptions;

use super::numbers::number;
use super::{DiscoveryKeys, Keys, Target};
use crate::failure::Failure;

/// `discover`
#[derive(Args, Debug)]
pub(crate) struct Discover {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Stay connected, follow referrals to other discovery services, and print each
    /// change until interrupted; the first lines are the present entries
    #[arg(long)]
    pub(crate) watch: bool,
    #[command(flatten)]
    pub(crate) keys: DiscoveryKeys,
}

/// `connect-all`
#[derive(Args, Debug)]
pub(crate) struct ConnectAll {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Keep alive timeout of each path in seconds
    #[arg(short = 'k', long, value_name = "S", default_value_t = 5,
          value_parser = number::<u32>(1..=4_294_967))]
    pub(crate) keep_alive_tmo: u32,
    #[command(flatten)]
    pub(crate) keys: Keys,
}

impl Discover {
    /// Options of discovery services.
    pub(crate) fn options(&self) -> Result<DiscoveryOptions, Failure> {
        let mut options = discovery(&self.target);
        options.keys = self.keys.read()?;
        Ok(options)
    }
}

impl ConnectAll {
    /// Options of all connections.
    pub(crate) fn options(&self) -> Result<ConnectAllOptions, Failure> {
        let mut options = ConnectAllOptions {
            discovery: discovery(&self.target),
            ..ConnectAllOptions::default()
        };
        options.path.keep_alive = Duration::from_secs(self.keep_alive_tmo.into());
        options.path.command_timeout = options.discovery.command_timeout;
        options.path.keys = self.keys.read()?;
        // Few discovery services authenticate, and the subsystems prove the controller's key.
        let of_host = options.path.keys.as_deref().map(|keys| HostKeys {
            controller_key: None,
            ..keys.clone()
        });
        options.discovery.keys = of_host.map(Arc::new);
        Ok(options)
    }
}

fn discovery(target: &Target) -> DiscoveryOptions {
    DiscoveryOptions {
        command_timeout: Duration::from_secs(target.command_timeout),
        ..DiscoveryOptions::default()
    }
}
