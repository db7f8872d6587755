//! Listeners of providers: at the start before any reactor runs, so that what
//! can fail does so then, and later in reactors that run.

use std::path::Path;

use nvmeof_rdma::{Address, ListenError, ListenerId, Provider};

use super::making::{Means, Member};
use super::plan::told;
use super::{Part, Port};
use crate::waits::Waits;
use nvmeof_target_config::{Choice, Config, ConfigError, ProviderName};

/// Times to look for a port number that is free with every provider of a port.
const TRIES: u32 = 16;

/// What listens.
pub struct Listening {
    /// Of each reactor.
    pub(crate) reactors: Vec<Vec<Ready>>,
    /// The ports with the addresses in use, without providers that were left
    /// out.
    pub ports: Vec<Port>,
}

/// One reactor's provider.
pub(crate) struct Ready {
    pub(crate) name: ProviderName,
    pub(crate) provider: Box<dyn Provider>,
    /// With the addresses in use.
    pub(crate) listeners: Vec<(ListenerId, Address)>,
}

/// Something that listens: a provider, here or in a reactor that runs.
pub(crate) trait Listens {
    /// Listens on `address`; returns the address in use.
    fn listen(&mut self, address: Address) -> Result<(ListenerId, Address), ListenError>;

    /// Does not listen any more.
    fn unlisten(&mut self, listener: ListenerId);

    /// Keeps it, as all providers of the port listen.
    fn own(&mut self, listener: ListenerId, address: Address);
}

impl Listens for Ready {
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

/// Makes the providers of `ports` for all reactors, and listens on all that can be
/// listened on. The others wait.
///
/// # Errors
/// [`ConfigError`] names the port, cause and remedy, of the first that can never be
/// listened on; then nothing listens.
pub fn listen(
    config: &Config,
    mut ports: Vec<Port>,
    means: &mut Means,
) -> Result<Listening, ConfigError> {
    let members = loop {
        let serves = |name: &ProviderName| ports.iter().any(|port| port.is_over(*name));
        let names: Vec<_> = ProviderName::ALL.into_iter().filter(serves).collect();
        match means.make_all(&names, config) {
            Ok(members) => break members,
            Err((name, why)) => go_without(config, &mut ports, name, &why)?,
        }
    };
    for member in &members {
        member.check_limits(config)?;
    }
    listen_with(config, ports, members, means.steering.members())
}

/// Provider `name` cannot be had: ports that may do so are served without it, the others
/// wait.
fn go_without(
    config: &Config,
    ports: &mut [Port],
    name: ProviderName,
    why: &str,
) -> Result<(), ConfigError> {
    for (number, port) in ports.iter_mut().enumerate() {
        let its = |part: &&Part| part.provider == name && port.waits.is_none();
        let Some(part) = port.parts.iter().find(its) else {
            continue;
        };
        if part.optional {
            port.parts.retain(|part| part.provider != name);
            let (address, others) = (port.address, port.provider_names());
            tracing::warn!("{address}: served by {others}, without {name}: {why}");
            continue;
        }
        let error = of_provider(config, number, name, why);
        if !error.may_pass() {
            return Err(error);
        }
        port.waits = Some(Waits::of(&error));
    }
    Ok(())
}

/// Listens over providers that are there, for so many reactors.
pub(super) fn listen_with(
    config: &Config,
    mut ports: Vec<Port>,
    mut members: Vec<Member>,
    reactors: usize,
) -> Result<Listening, ConfigError> {
    for number in 0..ports.len() {
        let others = ports.clone();
        let port = ports.get_mut(number).filter(|port| port.waits.is_none());
        let Some(port) = port else { continue };
        let others = others.get(..number).unwrap_or_default();
        match listen_at(config, number, port, others, &mut members) {
            Err(error) if error.may_pass() => port.waits = Some(Waits::of(&error)),
            listened => listened?,
        }
    }
    let mut listening = Listening {
        reactors: (0..reactors).map(|_| Vec::new()).collect(),
        ports,
    };
    for member in members {
        for (of_reactor, ready) in listening.reactors.iter_mut().zip(member.readies) {
            of_reactor.push(ready);
        }
    }
    Ok(listening)
}

/// Listens on port number `number` of `config` with all its providers; the `others`
/// of the configuration do already.
pub(crate) fn listen_at<L: Listens>(
    config: &Config,
    number: usize,
    port: &mut Port,
    others: &[Port],
    members: &mut [Member<L>],
) -> Result<(), ConfigError> {
    listen_on(members, port).map_err(|(part, error)| {
        let part = port.parts.get(part);
        if let (Some(part), ListenError::InUse { .. }) = (part, &error)
            && let Some(rival) = others.iter().find(|one| is_rival(one, port, part.provider))
        {
            return config.port_error(number, &own_conflict(port.address, rival.address));
        }
        refused(config, number, port, part, &error)
    })
}

/// Whether `other`, which listens over that provider, is what has the address of `port`.
fn is_rival(other: &Port, port: &Port, provider: ProviderName) -> bool {
    other.waits.is_none()
        && other.place_of(provider).is_some()
        && match (other.address, port.address) {
            (Address::Ip(one), Address::Ip(two)) => {
                let all = one.ip().is_unspecified() || two.ip().is_unspecified();
                // Ports of IPv6 take nothing of IPv4.
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
            "0.0.0.0 and :: cover the other addresses; leave one of the two ports out, or give \
             one another trsvcid"
        }
        Address::Unix(_) => "both name the same socket; leave one of the two ports out",
    };
    format!("address {address} conflicts with port {rival} of this configuration: {rule}")
}

/// What failed: a part of the port by number, and why.
type Failed = (usize, ListenError);

/// Listens on one port with all its providers, under the same number. One that
/// is free with the first may be taken with the next: then another is tried.
fn listen_on<L: Listens>(members: &mut [Member<L>], port: &mut Port) -> Result<(), Failed> {
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

/// Listens with all providers of the port, or with none.
fn try_number<L: Listens>(members: &mut [Member<L>], port: &mut Port) -> Result<(), Failed> {
    let mut address = port.address;
    let mut opened = Vec::new();
    let mut left_out = Vec::new();
    for member in members {
        let Some(place) = port.place_of(member.name) else {
            continue;
        };
        let optional = port.parts.get(place).is_some_and(|part| part.optional);
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
        port.parts.retain(|part| part.provider != name);
        tell_left_out(port, name, &error);
    }
    Ok(())
}

/// Whether an optional provider that cannot listen for this reason is left out.
fn may_be_left_out(name: ProviderName, error: &ListenError) -> bool {
    match name {
        ProviderName::Shm => true,
        _ => matches!(error, ListenError::InUse { .. }),
    }
}

/// Tells that a port is served without a provider that nobody asked for.
fn tell_left_out(port: &Port, name: ProviderName, error: &ListenError) {
    if name == ProviderName::Shm {
        let others = port.provider_names();
        tracing::warn!(
            "{}: without shared memory, {others} serves hosts on this machine as well: {error}",
            port.place()
        );
        return;
    }
    let device = port.parts.iter().find_map(Part::iwarp_device);
    let device = device.map_or("an RDMA device", |device| device.name.as_str());
    tracing::info!(
        "{}: without software {}: the TCP port is taken, by {device} or another program; hosts \
         that speak iWARP are served by {device}, on its own addresses",
        port.place(),
        name,
    );
}

impl<L: Listens> Member<L> {
    /// Listens for every reactor, or for none. Returns each reactor's listener
    /// and the address in use.
    fn listen(&mut self, mut address: Address) -> Result<(Vec<ListenerId>, Address), ListenError> {
        let mut listeners = Vec::new();
        for ready in &mut self.readies {
            match ready.listen(address) {
                Ok((listener, bound)) => {
                    // Where a free port was found, the next one takes the same.
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
        for (ready, listener) in self.readies.iter_mut().zip(listeners) {
            ready.unlisten(*listener);
        }
    }

    fn own(&mut self, listeners: Vec<ListenerId>, address: Address) {
        for (ready, listener) in self.readies.iter_mut().zip(listeners) {
            ready.own(listener, address);
        }
    }
}

/// What is wrong with a port that cannot be listened on.
fn refused(
    config: &Config,
    number: usize,
    port: &Port,
    part: Option<&Part>,
    error: &ListenError,
) -> ConfigError {
    let device = port.parts.iter().find_map(Part::iwarp_device);
    match (part.map(|part| part.provider), error, device) {
        (Some(ProviderName::Iwarp), ListenError::InUse { addr }, Some(device)) => {
            let what = format!(
                "iwarp cannot listen on {addr} beside verbs: {} speaks iWARP itself and takes the \
                 TCP port; name \"verbs\" alone, which the same hosts reach",
                device.name
            );
            config.provider_error(number, &what)
        }
        (Some(name @ (ProviderName::Verbs | ProviderName::Shm)), ListenError::Io { .. }, _) => {
            let told = of_provider(config, number, name, &error.to_string());
            told.passing(error.may_pass())
        }
        (_, ListenError::NoSuchInterface { .. }, _) => {
            let what = format!(
                "the interface of {} is not there; `ip link` shows those there are",
                config.traddr(number)
            );
            config.port_error(number, &what).passing(error.may_pass())
        }
        _ => {
            let told = config.port_error(number, &error.to_string());
            told.passing(error.may_pass())
        }
    }
}

/// What is wrong with the first of `ports` that a provider serves which does
/// not work.
pub(crate) fn broken(
    config: &Config,
    ports: &[Port],
    name: ProviderName,
    why: &str,
) -> ConfigError {
    let its = |port: &Port| port.place_of(name).is_some();
    let number = ports.iter().position(its).unwrap_or_default();
    of_provider(config, number, name, why)
}

/// What is wrong with port number `number`, of that provider.
pub(crate) fn of_provider(
    config: &Config,
    number: usize,
    name: ProviderName,
    why: &str,
) -> ConfigError {
    let choice = config.choices().get(number).unwrap_or(&Choice::Auto);
    // Without support for devices there never is one.
    let passing = name.is_software() || cfg!(feature = "verbs");
    let error = config.provider_error(number, &told(choice, name, why));
    error.passing(passing)
}
