//! Listeners of providers: at the start before any reactor runs, so that errors are found
//! early, and later in running reactors.

use std::path::Path;

use nvmeof_rdma::{Address, ListenError, ListenerId, Provider};

use super::making::{ProviderFactory, ProviderGroup};
use super::plan::provider_message;
use super::{Port, PortProvider};
use crate::waits::WaitReason;
use nvmeof_target_config::{Choice, Config, ConfigError, ProviderName};

/// Attempts to find a port number that is free with every provider of a port.
const TRIES: u32 = 16;

/// The providers and ports that listen.
pub struct Listening {
    /// The providers of each reactor.
    pub(crate) reactors: Vec<Vec<ReactorProvider>>,
    /// The ports with the addresses in use, without providers that were omitted.
    pub ports: Vec<Port>,
}

/// A provider of one reactor.
pub(crate) struct ReactorProvider {
    pub(crate) name: ProviderName,
    pub(crate) provider: Box<dyn Provider>,
    /// With the addresses in use.
    pub(crate) listeners: Vec<(ListenerId, Address)>,
}

/// A provider that can listen: before the start, or in a running reactor.
pub(crate) trait Listens {
    /// Listens on `address`; returns the address in use.
    fn listen(&mut self, address: Address) -> Result<(ListenerId, Address), ListenError>;

    /// Stops listening.
    fn unlisten(&mut self, listener: ListenerId);

    /// Keeps the listener: all providers of the port listen.
    fn own(&mut self, listener: ListenerId, address: Address);
}

impl Listens for ReactorProvider {
    fn listen(&mut self, address: Address) -> Result<(ListenerId, Address), ListenError> {
        self.provider.listen(address)
    }

    fn unlisten(&mut self, listener: ListenerId) {
        self.provider.unlisten(listener);
    }

    fn own(&mut self, listener: ListenerId, address: Address) {
        self.listeners.push((listener, address));
    }
}

/// Creates the providers of `ports` for all reactors, and listens on all ports that are
/// available. The others wait.
///
/// # Errors
/// [`ConfigError`] with port, cause and remedy of the first port that can never be listened on;
/// then nothing listens.
pub fn listen(
    config: &Config,
    mut ports: Vec<Port>,
    means: &mut ProviderFactory,
) -> Result<Listening, ConfigError> {
    let members = loop {
        let serves = |name: &ProviderName| ports.iter().any(|port| port.uses_provider(*name));
        let names: Vec<_> = ProviderName::ALL.into_iter().filter(serves).collect();
        match means.make_all(&names, config) {
            Ok(members) => break members,
            Err((name, why)) => omit_provider(config, &mut ports, name, &why)?,
        }
    };
    for member in &members {
        member.check_limits(config)?;
    }
    listen_with(config, ports, members, means.steering.members())
}

/// Provider `name` is not available: ports where it is optional are served without it, the
/// others wait.
fn omit_provider(
    config: &Config,
    ports: &mut [Port],
    name: ProviderName,
    why: &str,
) -> Result<(), ConfigError> {
    for (number, port) in ports.iter_mut().enumerate() {
        let its = |provider: &&PortProvider| provider.name == name && port.waits.is_none();
        let Some(provider) = port.providers.iter().find(its) else {
            continue;
        };
        if provider.optional {
            port.providers.retain(|provider| provider.name != name);
            let (address, others) = (port.address, port.provider_names());
            tracing::warn!("port {address}: served by {others} without {name}: {why}");
            continue;
        }
        let error = of_provider(config, number, name, why);
        if !error.may_succeed_later() {
            return Err(error);
        }
        port.waits = Some(WaitReason::of(&error));
    }
    Ok(())
}

/// Listens over existing providers, for `reactors` reactors.
pub(super) fn listen_with(
    config: &Config,
    mut ports: Vec<Port>,
    mut members: Vec<ProviderGroup>,
    reactors: usize,
) -> Result<Listening, ConfigError> {
    for number in 0..ports.len() {
        let others = ports.clone();
        let port = ports.get_mut(number).filter(|port| port.waits.is_none());
        let Some(port) = port else { continue };
        let others = others.get(..number).unwrap_or_default();
        match listen_at(config, number, port, others, &mut members) {
            Err(error) if error.may_succeed_later() => port.waits = Some(WaitReason::of(&error)),
            listened => listened?,
        }
    }
    let mut listening = Listening {
        reactors: (0..reactors).map(|_| Vec::new()).collect(),
        ports,
    };
    for member in members {
        for (of_reactor, ready) in listening.reactors.iter_mut().zip(member.providers) {
            of_reactor.push(ready);
        }
    }
    Ok(listening)
}

/// Listens on the port at index `number` of `config` with all its providers; the `others` of the
/// configuration listen already.
pub(crate) fn listen_at<L: Listens>(
    config: &Config,
    number: usize,
    port: &mut Port,
    others: &[Port],
    members: &mut [ProviderGroup<L>],
) -> Result<(), ConfigError> {
    listen_on(members, port).map_err(|(provider, error)| {
        let provider = port.providers.get(provider);
        if let (Some(provider), ListenError::InUse { .. }) = (provider, &error)
            && let Some(rival) = others.iter().find(|one| is_rival(one, port, provider.name))
        {
            return config.port_error(number, &own_conflict(port.address, rival.address));
        }
        refused(config, number, port, provider, &error)
    })
}

/// Whether `other`, which listens over that provider, uses the address of `port`.
fn is_rival(other: &Port, port: &Port, provider: ProviderName) -> bool {
    other.waits.is_none()
        && other.provider_index(provider).is_some()
        && match (other.address, port.address) {
            (Address::Ip(one), Address::Ip(two)) => {
                let all = one.ip().is_unspecified() || two.ip().is_unspecified();
                // IPv6 ports do not cover IPv4 addresses.
                let family = one.is_ipv6() == two.is_ipv6();
                one.port() == two.port() && (one.ip() == two.ip() || (all && family))
            }
            (Address::Unix(one), Address::Unix(two)) => {
                let file = |path: &Path| {
                    let folder = path.parent()?.canonicalize().ok()?;
                    Some((folder, path.file_name()?.to_owned()))
                };
                let one = file(one.as_path());
                one.is_some() && one == file(two.as_path())
            }
            _ => false,
        }
}

fn own_conflict(address: Address, rival: Address) -> String {
    let rule = match address {
        Address::Ip(_) => {
            "0.0.0.0 and :: include the other addresses; remove one of the two ports, or give \
             one another trsvcid"
        }
        Address::Unix(_) => "both name the same socket; remove one of the two ports",
    };
    format!("address {address} conflicts with port {rival} of this configuration: {rule}")
}

/// The index of a provider of the port, and its error.
type Failed = (usize, ListenError);

/// Listens on one port with all its providers, with the same port number. A number that is free
/// with the first may be in use with the next: then another is tried.
fn listen_on<L: Listens>(members: &mut [ProviderGroup<L>], port: &mut Port) -> Result<(), Failed> {
    let mut tries = if port.address.port() == Some(0) {
        TRIES
    } else {
        1
    };
    loop {
        match try_number(members, port) {
            Err((_, ListenError::InUse { .. })) if tries > 1 => tries -= 1,
            outcome => return outcome,
        }
    }
}

/// Listens with all providers of the port, or with none of them.
fn try_number<L: Listens>(members: &mut [ProviderGroup<L>], port: &mut Port) -> Result<(), Failed> {
    let mut address = port.address;
    let mut opened = Vec::new();
    let mut left_out = Vec::new();
    for member in members {
        let Some(place) = port.provider_index(member.name) else {
            continue;
        };
        let optional = port
            .providers
            .get(place)
            .is_some_and(|provider| provider.optional);
        match member.listen(address) {
            Ok((listeners, bound)) => {
                address = bound;
                opened.push((member, listeners, bound));
            }
            Err(error) if optional && may_be_left_out(member.name, &error) => {
                left_out.push((member.name, error));
            }
            Err(error) => {
                for (member, listeners, _) in opened {
                    member.unlisten(&listeners);
                }
                return Err((place, error));
            }
        }
    }
    for (member, listeners, bound) in opened {
        member.own(listeners, bound);
    }
    port.address = address;
    for (name, error) in left_out {
        port.providers.retain(|provider| provider.name != name);
        log_omitted(port, name, &error);
    }
    Ok(())
}

/// Whether an optional provider that cannot listen for this reason is omitted.
fn may_be_left_out(name: ProviderName, error: &ListenError) -> bool {
    match name {
        ProviderName::Shm => true,
        _ => matches!(error, ListenError::InUse { .. }),
    }
}

/// Logs that a port is served without a provider that is optional.
fn log_omitted(port: &Port, name: ProviderName, error: &ListenError) {
    if name == ProviderName::Shm {
        let others = port.provider_names();
        tracing::warn!(
            "port {}: served without shared memory: {error}; hosts on this machine use {others}",
            port.place()
        );
        return;
    }
    let device = port.providers.iter().find_map(PortProvider::iwarp_device);
    let device = device.map_or("an RDMA device", |device| device.name.as_str());
    tracing::info!(
        "port {}: served without software {}: {device} or another program uses the TCP port; \
         {device} serves iWARP hosts on its own addresses",
        port.place(),
        name,
    );
}

impl<L: Listens> ProviderGroup<L> {
    /// Listens for every reactor, or for none. Returns the listener of each reactor and the
    /// address in use.
    fn listen(&mut self, mut address: Address) -> Result<(Vec<ListenerId>, Address), ListenError> {
        let mut listeners = Vec::new();
        for ready in &mut self.providers {
            match ready.listen(address) {
                Ok((listener, bound)) => {
                    // If a free port was selected, the next reactor uses the same.
                    address = bound;
                    listeners.push(listener);
                }
                Err(error) => {
                    self.unlisten(&listeners);
                    return Err(error);
                }
            }
        }
        Ok((listeners, address))
    }

    fn unlisten(&mut self, listeners: &[ListenerId]) {
        for (ready, listener) in self.providers.iter_mut().zip(listeners) {
            ready.unlisten(*listener);
        }
    }

    fn own(&mut self, listeners: Vec<ListenerId>, address: Address) {
        for (ready, listener) in self.providers.iter_mut().zip(listeners) {
            ready.own(listener, address);
        }
    }
}

/// The error for a port that cannot be listened on.
fn refused(
    config: &Config,
    number: usize,
    port: &Port,
    provider: Option<&PortProvider>,
    error: &ListenError,
) -> ConfigError {
    let device = port.providers.iter().find_map(PortProvider::iwarp_device);
    match (provider.map(|provider| provider.name), error, device) {
        (Some(ProviderName::Iwarp), ListenError::InUse { addr }, Some(device)) => {
            let what = format!(
                "iwarp cannot listen on {addr} beside verbs: {} implements iWARP and uses the TCP \
                 port; use \"verbs\" alone, which serves the same hosts",
                device.name
            );
            config.provider_error(number, &what)
        }
        (Some(name @ (ProviderName::Verbs | ProviderName::Shm)), ListenError::Io { .. }, _) => {
            let refused = of_provider(config, number, name, &error.to_string());
            refused.passing(error.may_succeed_later())
        }
        (_, ListenError::NoSuchInterface { .. }, _) => {
            let what = format!(
                "the interface of {} does not exist; `ip link` lists interfaces",
                config.traddr(number)
            );
            config
                .port_error(number, &what)
                .passing(error.may_succeed_later())
        }
        _ => {
            let refused = config.port_error(number, &error.to_string());
            refused.passing(error.may_succeed_later())
        }
    }
}

/// The error for the first of `ports` with the provider `name`, which does not work.
pub(crate) fn broken(
    config: &Config,
    ports: &[Port],
    name: ProviderName,
    why: &str,
) -> ConfigError {
    let its = |port: &Port| port.provider_index(name).is_some();
    let number = ports.iter().position(its).unwrap_or_default();
    of_provider(config, number, name, why)
}

/// The error for the provider `name` of the port at index `number`.
pub(crate) fn of_provider(
    config: &Config,
    number: usize,
    name: ProviderName,
    why: &str,
) -> ConfigError {
    let choice = config.choices().get(number).unwrap_or(&Choice::Auto);
    // A build without support for devices never gets one.
    let passing = name.is_software() || cfg!(feature = "verbs");
    let error = config.provider_error(number, &provider_message(choice, name, why));
    error.passing(passing)
}
