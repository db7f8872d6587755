//! Listeners of providers: at the start before any reactor runs, so that what
//! can fail does so then, and later in reactors that run.

use nvmeof_rdma::{Address, ListenError, ListenerId, Provider};

use super::making::{Means, Member};
use super::plan::told;
use super::{Part, Port};
use crate::config::{Choice, Config, ConfigError, ProviderName};

/// Times to look for a port number that is free with every provider of a port.
const TRIES: u32 = 16;

/// What listens.
pub(crate) struct Listening {
    /// Of each reactor.
    pub(crate) reactors: Vec<Vec<Ready>>,
    /// The ports with the addresses in use, without providers that were left
    /// out.
    pub(crate) ports: Vec<Port>,
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

/// Makes the providers of `ports` for all reactors, and listens on all.
///
/// # Errors
/// [`ConfigError`] names the port, cause and remedy; then nothing listens.
pub(crate) fn listen(
    config: &Config,
    ports: Vec<Port>,
    means: &mut Means,
) -> Result<Listening, ConfigError> {
    let serves = |name: &ProviderName| ports.iter().any(|port| port.place_of(*name).is_some());
    let names: Vec<_> = ProviderName::ALL.into_iter().filter(serves).collect();
    let members = means
        .make_all(&names, config)
        .map_err(|(name, why)| broken(config, &ports, name, &why))?;
    for member in &members {
        member.check_limits(config)?;
    }
    listen_with(config, ports, members)
}

/// Listens on all `ports` over providers that are there.
pub(super) fn listen_with(
    config: &Config,
    mut ports: Vec<Port>,
    mut members: Vec<Member>,
) -> Result<Listening, ConfigError> {
    for (number, port) in ports.iter_mut().enumerate() {
        listen_at(config, number, port, &mut members)?;
    }
    let reactors = members.first().map_or(0, |member| member.readies.len());
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

/// Listens on port number `number` of `config` with all its providers.
pub(crate) fn listen_at<L: Listens>(
    config: &Config,
    number: usize,
    port: &mut Port,
    members: &mut [Member<L>],
) -> Result<(), ConfigError> {
    listen_on(members, port).map_err(|(part, error)| {
        let part = port.parts.get(part);
        refused(config, number, port, part, &error)
    })
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
            of_provider(config, number, name, &error.to_string())
        }
        (_, ListenError::NoSuchInterface { .. }, _) => {
            let what = format!(
                "the interface of {} is not there; `ip link` shows those there are",
                config.traddr(number)
            );
            config.port_error(number, &what)
        }
        _ => config.port_error(number, &error.to_string()),
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
    config.provider_error(number, &told(choice, name, why))
}
