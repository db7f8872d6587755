//! The ports that are served, and their changes: which stay, which are added, which are removed.

use nvmeof_rdma::Address;
use nvmeof_target_core::{Disconnected, PortSpec};

use super::reactors::Reactors;
use crate::ports::{self, Port, ProviderGroup};
use nvmeof_target_address::port_address;
use nvmeof_target_config::{Choice, Config, ConfigError};

/// The ports of the configuration, in its order.
#[derive(Clone)]
pub(crate) struct ServedPorts {
    served_ports: Vec<ServedPort>,
}

#[derive(Clone, Debug)]
struct ServedPort {
    /// As configured.
    wanted: (Address, Choice),
    /// With the address in use.
    port: Port,
}

/// The ports of the next configuration.
pub(super) struct NextServedPorts {
    pub(super) next: ServedPorts,
    /// Indices of the ports to listen on.
    fresh: Vec<usize>,
    /// Their providers that no reactor has yet.
    made: Vec<ProviderGroup>,
    pub(super) gone: Vec<Port>,
}

impl ServedPorts {
    /// The ports at the start of the target.
    pub(crate) fn new(config: &Config, ports: Vec<Port>) -> Self {
        let served_ports = wanted(config).zip(ports);
        Self {
            served_ports: served_ports
                .map(|(wanted, port)| ServedPort { wanted, port })
                .collect(),
        }
    }

    /// All ports, including those that wait.
    pub(super) fn all(&self) -> impl Iterator<Item = &Port> {
        self.served_ports
            .iter()
            .map(|served_port| &served_port.port)
    }

    /// The ports that listen.
    pub(super) fn ports(&self) -> impl Iterator<Item = &Port> {
        self.all().filter(|port| port.waits.is_none())
    }

    /// The specifications for the model.
    pub(super) fn specs(&self) -> Vec<PortSpec> {
        self.all().map(Port::to_spec).collect()
    }

    /// Retries the waiting ports that are `due`, and updates them. Returns the ports that listen
    /// now.
    pub(super) fn retry(
        &mut self,
        config: &Config,
        reactors: &Reactors,
        due: impl Fn(&Port) -> bool,
    ) -> Vec<Port> {
        let mut listening = Vec::new();
        for at in 0..self.served_ports.len() {
            let port = self
                .served_ports
                .get(at)
                .map(|served_port| &served_port.port);
            if !port.is_some_and(|port| port.waits.is_some() && due(port)) {
                continue;
            }
            let tried = self.try_one(config, reactors, at);
            let Some(served_port) = self.served_ports.get_mut(at) else {
                continue;
            };
            match (tried, &mut served_port.port.waits) {
                (Ok(port), _) => {
                    served_port.port = port.clone();
                    listening.push(port);
                }
                (Err(error), Some(waits)) => {
                    let address = port_address(served_port.port.address);
                    waits.still(&format_args!("port {address}"), error.what());
                }
                (Err(_), None) => {}
            }
        }
        listening
    }

    /// Has every reactor listen on the port at index `at` of `config`, or none of them.
    fn try_one(
        &self,
        config: &Config,
        reactors: &Reactors,
        at: usize,
    ) -> Result<Port, ConfigError> {
        let mut port = ports::plan_one(config, at)?;
        let mut made = Vec::new();
        reactors.make_missing(config, at, &mut port, &mut made)?;
        for member in made {
            let name = member.name;
            let added = reactors.add(member);
            added.map_err(|why| ports::of_provider(config, at, name, &why.to_string()))?;
        }
        let others: Vec<_> = self.ports().cloned().collect();
        reactors.listen(config, at, &mut port, &others)?;
        Ok(port)
    }

    /// The ports that listened, to listen on them again.
    pub(super) fn all_fresh(&self) -> NextServedPorts {
        let all = self.all().enumerate();
        let fresh = all.filter(|(_, port)| port.waits.is_none());
        NextServedPorts {
            next: self.clone(),
            fresh: fresh.map(|(at, _)| at).collect(),
            made: Vec::new(),
            gone: Vec::new(),
        }
    }

    /// Determines the changes of ports in `config`, without listening.
    pub(super) fn prepare(
        &self,
        config: &Config,
        reactors: &Reactors,
    ) -> Result<NextServedPorts, ConfigError> {
        let mut there: Vec<_> = self.served_ports.iter().map(Some).collect();
        let (mut next, mut fresh, mut made) = (Vec::new(), Vec::new(), Vec::new());
        for (at, wanted) in wanted(config).enumerate() {
            let same = |served_port: &Option<&ServedPort>| {
                served_port.is_some_and(|served_port| served_port.wanted == wanted)
            };
            let kept = there.iter_mut().find(|served_port| same(served_port));
            if let Some(served_port) = kept.and_then(Option::take) {
                next.push(served_port.clone());
                continue;
            }
            let mut known = self.served_ports.iter();
            if known
                .any(|served_port| served_port.wanted.0 == wanted.0 && wanted.0.port() != Some(0))
            {
                let what = "it cannot change while the port is served; remove the port, then add \
                            it again";
                return Err(config.provider_error(at, what));
            }
            fresh.push(at);
            let mut port = ports::plan_one(config, at)?;
            reactors.make_missing(config, at, &mut port, &mut made)?;
            next.push(ServedPort { wanted, port });
        }
        let gone = there.into_iter().flatten();
        Ok(NextServedPorts {
            gone: gone.map(|served_port| served_port.port.clone()).collect(),
            next: ServedPorts { served_ports: next },
            fresh,
            made,
        })
    }
}

impl NextServedPorts {
    /// Has every reactor listen on the new ports, or none on any of them. Adds missing providers.
    pub(super) fn listen(
        &mut self,
        config: &Config,
        reactors: &Reactors,
    ) -> Result<(), ConfigError> {
        for member in self.made.drain(..) {
            let name = member.name;
            reactors.add(member).map_err(|failed| {
                let ports: Vec<_> = self.next.ports().cloned().collect();
                ports::broken(config, &ports, name, &failed.to_string())
            })?;
        }
        for (opened, at) in self.fresh.iter().enumerate() {
            let all = self.next.all().enumerate();
            let others = all.filter(|(other, port)| {
                let listens = opened_before(&self.fresh, opened, *other);
                *other != *at && listens && port.waits.is_none()
            });
            let others: Vec<_> = others.map(|(_, port)| port.clone()).collect();
            let Some(served_port) = self.next.served_ports.get_mut(*at) else {
                continue;
            };
            if let Err(error) = reactors.listen(config, *at, &mut served_port.port, &others) {
                self.fresh.truncate(opened);
                self.unlisten(reactors);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Reverts [`listen`](Self::listen).
    pub(super) fn unlisten(&self, reactors: &Reactors) {
        for at in &self.fresh {
            if let Some(served_port) = self.next.served_ports.get(*at) {
                let _ = reactors.unlisten(&served_port.port);
            }
        }
    }

    /// Stops listening on removed ports. Returns the controllers that were deleted.
    pub(super) fn close_removed(&self, reactors: &Reactors) -> Vec<Disconnected> {
        let gone = self.gone.iter();
        gone.flat_map(|port| reactors.unlisten(port)).collect()
    }
}

/// Whether port `other` listens once the first `opened` ports of `fresh` do.
fn opened_before(fresh: &[usize], opened: usize, other: usize) -> bool {
    let its = fresh.iter().position(|at| *at == other);
    its.is_none_or(|its| its < opened)
}

fn wanted(config: &Config) -> impl Iterator<Item = (Address, Choice)> {
    let choices = config.choices().iter().cloned();
    config.addresses().into_iter().zip(choices)
}
