//! Providers and their listeners: made before any reactor runs, so that what
//! can fail does so at the start.

use std::io;

use nvmeof_rdma::{Address, ListenError, ListenerId, Provider, Steering};
use nvmeof_rdma_iwarp::IwarpConfig;
use nvmeof_rdma_shm::{Shm, ShmConfig};

use super::plan::told;
use super::{Part, Port, devices};
use crate::config::{Choice, Config, ConfigError, ProviderName};
use crate::queue::SENDS_PER_COMMAND;

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

/// One kind of provider for all reactors. They are a group: each of them
/// listens on the same addresses, and connections are spread over them.
pub(crate) struct Member<L = Ready> {
    pub(crate) name: ProviderName,
    pub(crate) readies: Vec<L>,
}

/// Makes the providers of `ports` for the reactors that `steering` spreads
/// connections over, and listens on all.
/// `files` is how many connections each reactor may have that are descriptors.
///
/// # Errors
/// [`ConfigError`] names the port, cause and remedy; then nothing listens.
pub(crate) fn listen(
    config: &Config,
    ports: Vec<Port>,
    steering: &Steering,
    files: u32,
) -> Result<Listening, ConfigError> {
    let mut members = Vec::new();
    let serves = |name: &ProviderName| ports.iter().any(|port| port.place_of(*name).is_some());
    let names: Vec<_> = ProviderName::ALL.into_iter().filter(serves).collect();
    // Each connection of software is one descriptor.
    let software = names.iter().filter(|name| **name != ProviderName::Verbs);
    let software = u32::try_from(software.count().max(1)).unwrap_or(1);
    let each = Each {
        steering,
        files: (files / software).max(1),
    };
    for name in names {
        let member =
            Member::new(name, each, config).map_err(|why| broken(config, &ports, name, &why))?;
        member.check_limits(config)?;
        members.push(member);
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

/// How much of it there is.
#[derive(Clone, Copy)]
struct Each<'a> {
    /// Spreads connections over reactors, each of which has a provider of its
    /// own.
    steering: &'a Steering,
    /// Connections of each provider that are descriptors.
    files: u32,
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
            port.address
        );
        return;
    }
    let device = port.parts.iter().find_map(Part::iwarp_device);
    let device = device.map_or("an RDMA device", |device| device.name.as_str());
    tracing::info!(
        "{}: without software {}: the TCP port is taken, by {device} or another program; hosts \
         that speak iWARP are served by {device}, on its own addresses",
        port.address,
        name,
    );
}

impl Member {
    fn new(name: ProviderName, each: Each<'_>, config: &Config) -> Result<Self, String> {
        let lacks = |error: io::Error| format!("epoll: {error}");
        let providers = match name {
            ProviderName::Iwarp => iwarp_providers(each, config.socket_mode()).map_err(lacks)?,
            ProviderName::Verbs => devices::verbs_providers(each.steering)?,
            ProviderName::Shm => shm_providers(each, config.shm()).map_err(lacks)?,
        };
        Ok(Self::of(name, providers))
    }

    /// One provider for each reactor.
    pub(super) fn of(name: ProviderName, providers: Vec<Box<dyn Provider>>) -> Self {
        let ready = |provider| Ready {
            name,
            provider,
            listeners: Vec::new(),
        };
        Self {
            name,
            readies: providers.into_iter().map(ready).collect(),
        }
    }

    /// Whether queues of the length that hosts may ask for are possible: a
    /// device may have fewer places than software.
    pub(super) fn check_limits(&self, config: &Config) -> Result<(), ConfigError> {
        let depth = u32::from(config.limits().queue_depth);
        for ready in &self.readies {
            let limits = ready.provider.limits();
            let possible = limits.max_recvs.min(limits.max_sends / SENDS_PER_COMMAND);
            if depth > possible {
                let what = format!(
                    "{depth} is more than the {possible} that the {} provider can do here; set it \
                     to {possible} or less",
                    self.name
                );
                return Err(config.limits_error("queue_depth", &what));
            }
        }
        Ok(())
    }
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

fn iwarp_providers(each: Each<'_>, socket_mode: u32) -> io::Result<Vec<Box<dyn Provider>>> {
    let mut config = IwarpConfig {
        socket_mode,
        ..IwarpConfig::default()
    };
    config.limits.max_qps = config.limits.max_qps.min(each.files);
    let members = nvmeof_rdma_iwarp::group(&config, each.steering)?;
    Ok(boxed(members))
}

fn shm_providers(each: Each<'_>, config: &ShmConfig) -> io::Result<Vec<Box<dyn Provider>>> {
    let mut config = config.clone();
    config.limits.max_qps = config.limits.max_qps.min(each.files);
    let members = Shm::group(&config, each.steering)?;
    Ok(boxed(members))
}

fn boxed<P: Provider + 'static>(members: Vec<P>) -> Vec<Box<dyn Provider>> {
    let boxed = |member| Box::new(member) as Box<dyn Provider>;
    members.into_iter().map(boxed).collect()
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

fn of_provider(config: &Config, number: usize, name: ProviderName, why: &str) -> ConfigError {
    let choice = config.choices().get(number).unwrap_or(&Choice::Auto);
    config.provider_error(number, &told(choice, name, why))
}
