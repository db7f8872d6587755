//! Objects of a configuration that can never be served on this machine, and the edits that added
//! them.

use nvmeof_rdma::Address;

use nvmeof_target_api::{Edit, NamespaceAdd};
use nvmeof_target_config::{Config, ConfigError};
use nvmeof_target_manage::ports;
use nvmeof_target_manage::unusable_namespaces;

/// An object that cannot be served.
#[derive(Debug)]
pub(super) struct Broken {
    object: Object,
    pub(super) error: ConfigError,
}

#[derive(Debug)]
enum Object {
    Namespace(String, u32),
    Port(Address),
}

/// Backing stores that can never be opened, and ports that no provider can ever serve. Objects that
/// may become available are not among them: the target waits for these. Nor are hosts whose key
/// cannot be read: without the edit, the host would have a key that was replaced, or none. Backing
/// stores are closed again.
pub(super) fn find(config: &Config) -> Vec<Broken> {
    let namespaces = unusable_namespaces(config).into_iter().map(|one| Broken {
        object: Object::Namespace(one.nqn, one.nsid),
        error: one.error,
    });
    let ports = config.addresses().into_iter().enumerate();
    let ports = ports.filter_map(|(at, address)| {
        let error = ports::plan_one(config, at).err()?;
        let never = !error.may_succeed_later();
        never.then_some(Broken {
            object: Object::Port(address),
            error,
        })
    });
    namespaces.chain(ports).collect()
}

impl Broken {
    /// Whether the edit adds, changes or enables the object.
    pub(super) fn is_caused_by(&self, edit: &Edit) -> bool {
        match (&self.object, edit) {
            (Object::Namespace(nqn, number), Edit::NamespaceAdd(add)) => {
                let NamespaceAdd {
                    subsystem, nsid, ..
                } = add;
                subsystem.as_deref() == Some(nqn) && *nsid == Some(*number)
            }
            (
                Object::Namespace(nqn, number),
                Edit::NamespaceEnable {
                    subsystem,
                    nsid,
                    enabled: true,
                }
                | Edit::NamespaceSet {
                    subsystem, nsid, ..
                },
            ) => subsystem.as_deref() == Some(nqn) && nsid == number,
            (Object::Port(at), Edit::PortAdd { address, .. } | Edit::PortSet { address, .. }) => {
                address.parse() == Ok(*at)
            }
            _ => false,
        }
    }
}
