//! The ports that hosts come by: which stay, which come, which go.

use nvmeof_rdma::Address;
use nvmeof_target_core::{Disconnected, PortSpec};

use super::reactors::Reactors;
use crate::ports::{self, Member, Port};
use nvmeof_target_config::{Choice, Config, ConfigError};

/// The ports that are listened on, in the order of the configuration.
#[derive(Clone)]
pub(crate) struct Doors {
    doors: Vec<Door>,
}

#[derive(Clone, Debug)]
struct Door {
    /// As configured.
    wanted: (Address, Choice),
    /// With the address in use.
    port: Port,
}

/// The ports of the next configuration.
pub(super) struct NextDoors {
    pub(super) next: Doors,
    /// Places of those that are to be listened on.
    fresh: Vec<usize>,
    /// Providers of those that no reactor has yet.
    made: Vec<Member>,
    pub(super) gone: Vec<Port>,
}

impl Doors {
    /// What is listened on since the start.
    pub(crate) fn new(config: &Config, ports: Vec<Port>) -> Self {
        let doors = wanted(config).zip(ports);
        Self {
            doors: doors.map(|(wanted, port)| Door { wanted, port }).collect(),
        }
    }

    /// All of them, those that are waited for included.
    pub(super) fn all(&self) -> impl Iterator<Item = &Port> {
        self.doors.iter().map(|door| &door.port)
    }

    /// Those that are listened on.
    pub(super) fn ports(&self) -> impl Iterator<Item = &Port> {
        self.all().filter(|port| port.waits.is_none())
    }

    /// What the model has to know of them.
    pub(super) fn specs(&self) -> Vec<PortSpec> {
        self.all().map(Port::to_spec).collect()
    }

    /// Tries those again that are waited for and `due`; what came of it is in them.
    /// Returns the ports that are listened on now.
    pub(super) fn retry(
        &mut self,
        config: &Config,
        reactors: &Reactors,
        due: impl Fn(&Port) -> bool,
    ) -> Vec<Port> {
        let mut listening = Vec::new();
        for at in 0..self.doors.len() {
            let port = self.doors.get(at).map(|door| &door.port);
            if !port.is_some_and(|port| port.waits.is_some() && due(port)) {
                continue;
            }
            let tried = self.try_one(config, reactors, at);
            let Some(door) = self.doors.get_mut(at) else {
                continue;
            };
            match (tried, &mut door.port.waits) {
                (Ok(port), _) => {
                    door.port = port.clone();
                    listening.push(port);
                }
                (Err(error), Some(waits)) => waits.still(error.what()),
                (Err(_), None) => {}
            }
        }
        listening
    }

    /// Has every reactor listen on port number `at` of `config`, or none.
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

    /// Those that were listened on, to be listened on again.
    pub(super) fn all_fresh(&self) -> NextDoors {
        let all = self.all().enumerate();
        let fresh = all.filter(|(_, port)| port.waits.is_none());
        NextDoors {
            next: self.clone(),
            fresh: fresh.map(|(at, _)| at).collect(),
            made: Vec::new(),
            gone: Vec::new(),
        }
    }

    /// Finds out what `config` has other ports. Nothing is listened on.
    pub(super) fn prepare(
        &self,
        config: &Config,
        reactors: &Reactors,
    ) -> Result<NextDoors, ConfigError> {
        let mut there: Vec<_> = self.doors.iter().map(Some).collect();
        let (mut next, mut fresh, mut made) = (Vec::new(), Vec::new(), Vec::new());
        for (at, wanted) in wanted(config).enumerate() {
            let same = |door: &Option<&Door>| door.is_some_and(|door| door.wanted == wanted);
            let kept = there.iter_mut().find(|door| same(door));
            if let Some(door) = kept.and_then(Option::take) {
                next.push(door.clone());
                continue;
            }
            let mut known = self.doors.iter();
            if known.any(|door| door.wanted.0 == wanted.0 && wanted.0.port() != Some(0)) {
                let what = "it cannot change while the port is served; remove the port, then add \
                            it again";
                return Err(config.provider_error(at, what));
            }
            fresh.push(at);
            let mut port = ports::plan_one(config, at)?;
            reactors.make_missing(config, at, &mut port, &mut made)?;
            next.push(Door { wanted, port });
        }
        let gone = there.into_iter().flatten();
        Ok(NextDoors {
            gone: gone.map(|door| door.port.clone()).collect(),
            next: Doors { doors: next },
            fresh,
            made,
        })
    }
}

impl NextDoors {
    /// Has every reactor listen on the new ones, or none on any, over providers
    /// that may be new as well.
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
            let Some(door) = self.next.doors.get_mut(*at) else {
                continue;
            };
            if let Err(error) = reactors.listen(config, *at, &mut door.port, &others) {
                self.fresh.truncate(opened);
                self.unlisten(reactors);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Takes that back.
    pub(super) fn unlisten(&self, reactors: &Reactors) {
        for at in &self.fresh {
            if let Some(door) = self.next.doors.get(*at) {
                let _ = reactors.unlisten(&door.port);
            }
        }
    }

    /// Leaves the ports that are gone, and says who lost a controller by that.
    pub(super) fn leave(&self, reactors: &Reactors) -> Vec<Disconnected> {
        let gone = self.gone.iter();
        gone.flat_map(|port| reactors.unlisten(port)).collect()
    }
}

/// Whether port `other` listens when those of `fresh` before number `opened` do.
fn opened_before(fresh: &[usize], opened: usize, other: usize) -> bool {
    let its = fresh.iter().position(|at| *at == other);
    its.is_none_or(|its| its < opened)
}

fn wanted(config: &Config) -> impl Iterator<Item = (Address, Choice)> {
    let choices = config.choices().iter().cloned();
    config.addresses().into_iter().zip(choices)
}
