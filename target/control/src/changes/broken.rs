//! What of a configuration cannot be served on this machine at present, and
//! which edit made it so.

use nvmeof_rdma::Address;

use nvmeof_target_api::{Edit, NamespaceAdd};
use nvmeof_target_config::{Config, ConfigError};
use nvmeof_target_manage::ports;
use nvmeof_target_manage::unopenable;

/// One thing that cannot be served.
#[derive(Debug)]
pub(super) struct Broken {
    thing: Thing,
    pub(super) error: ConfigError,
}

#[derive(Debug)]
enum Thing {
    Namespace(String, u32),
    Port(Address),
}

/// Everything that can never be opened, and ports that nothing can ever serve: what
/// may be there later is waited for. What was opened is let go again.
pub(super) fn find(config: &Config) -> Vec<Broken> {
    let disks = unopenable(config).into_iter().map(|one| Broken {
        thing: Thing::Namespace(one.nqn, one.nsid),
        error: one.error,
    });
    let ports = config.addresses().into_iter().enumerate();
    let ports = ports.filter_map(|(at, address)| {
        let error = ports::plan_one(config, at).err()?;
        let never = !error.may_pass();
        never.then_some(Broken {
            thing: Thing::Port(address),
            error,
        })
    });
    disks.chain(ports).collect()
}

impl Broken {
    /// Whether that edit has it served.
    pub(super) fn is_of(&self, edit: &Edit) -> bool {
        match (&self.thing, edit) {
            (Thing::Namespace(nqn, number), Edit::NamespaceAdd(add)) => {
                let NamespaceAdd {
                    subsystem, nsid, ..
                } = add;
                subsystem.as_deref() == Some(nqn) && *nsid == Some(*number)
            }
            (
                Thing::Namespace(nqn, number),
                Edit::NamespaceEnable {
                    subsystem,
                    nsid,
                    enabled: true,
                }
                | Edit::NamespaceSet {
                    subsystem, nsid, ..
                },
            ) => subsystem.as_deref() == Some(nqn) && nsid == number,
            (Thing::Port(at), Edit::PortAdd { address, .. } | Edit::PortSet { address, .. }) => {
                address.parse() == Ok(*at)
            }
            _ => false,
        }
    }
}
