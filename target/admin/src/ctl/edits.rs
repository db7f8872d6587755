//! The commands that change single objects.

use clap::{Args, Subcommand};

use nvmeof_target_api::{Edit, HostKeys, NamespaceAdd};
use nvmeof_target_config::{CREDENTIAL, is_relative};

/// Commands for one kind of object, with `--plan`.
#[derive(Debug, Args)]
pub(super) struct Edits<T: Subcommand> {
    #[command(subcommand)]
    pub(super) what: T,
    /// Show the effect without applying the change.
    #[arg(long, global = true)]
    pub(super) plan: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum Namespace {
    /// List namespaces with path, size, ANA group and state.
    List(OnlyOf),
    /// Add a namespace.
    Add(Add),
    /// Remove a namespace after its commands in flight have completed.
    Remove(One),
    /// Adopt the size of the file or device, or resize the file.
    Resize(Size),
    /// Enable a namespace.
    Enable(One),
    /// Disable the namespace and keep its configuration.
    Disable(One),
    /// Change keys, such as ana_group=2.
    Set {
        #[command(flatten)]
        one: One,
        #[command(flatten)]
        values: Values,
    },
}

#[derive(Debug, Args)]
pub(super) struct Values {
    /// Keys and values as in the configuration file; an empty value removes the key.
    #[arg(required = true, value_name = "KEY=VALUE", value_parser = setting)]
    settings: Vec<(String, Option<String>)>,
}

/// The two sides of `KEY=VALUE`.
fn setting(word: &str) -> Result<(String, Option<String>), String> {
    match word.split_once('=') {
        Some((key, value)) if !key.is_empty() => {
            let value = (!value.is_empty()).then(|| value.to_owned());
            Ok((key.to_owned(), value))
        }
        _ => Err("must be KEY=VALUE".to_owned()),
    }
}

/// A new namespace, as `path=PATH,KEY=VALUE,...`.
fn namespace(words: &str) -> Result<NamespaceAdd, String> {
    let mut add = NamespaceAdd::default();
    for word in words.split(',') {
        let (key, Some(value)) = setting(word).map_err(|what| format!("{word:?}: {what}"))? else {
            return Err(format!("{word:?}: a value must follow the ="));
        };
        let wrong = |what: &str| format!("{word:?}: must be {what}");
        let number = || value.parse().map(Some).map_err(|_| wrong("a number"));
        let truth = || value.parse().map(Some).map_err(|_| wrong("true or false"));
        match &*key {
            "path" => add.path = absolute(&value),
            "nsid" => add.nsid = number()?,
            "block_size" => add.block_size = number()?,
            "ana_group" => add.ana_group = number()?,
            "readonly" => add.readonly = truth()?,
            "iopoll" => add.iopoll = truth()?,
            "uuid" => add.uuid = Some(value),
            "nguid" => add.nguid = Some(value),
            "eui64" => add.eui64 = Some(value),
            "host" => add.hosts.push(value),
            _ => return Err(format!("{key}: unknown key; the keys are {KEYS}")),
        }
    }
    if add.path.is_empty() {
        return Err("path: missing; name a file or block device, ram:SIZE or null:SIZE".to_owned());
    }
    Ok(add)
}

/// The keys of a namespace.
const KEYS: &str = "path, nsid, block_size, uuid, nguid, eui64, readonly, iopoll, ana_group \
                    and host";

/// The absolute path of a file: the target has another working directory. Symbolic links are
/// not resolved.
fn absolute(path: &str) -> String {
    if !is_relative(path) {
        return path.to_owned();
    }
    match std::path::absolute(path) {
        Ok(whole) => whole.display().to_string(),
        // The target refuses a relative path.
        Err(_) => path.to_owned(),
    }
}

impl Values {
    /// An edit for each setting.
    fn edits(&self, edit: impl Fn(String, Option<String>) -> Edit) -> Vec<Edit> {
        let settings = self.settings.iter().cloned();
        settings.map(|(key, value)| edit(key, value)).collect()
    }
}

#[derive(Debug, Args)]
pub(super) struct Add {
    /// File, block device, ram:SIZE or null:SIZE.
    path: String,
    /// Namespace ID [default: the first free one].
    #[arg(long, value_name = "NUMBER")]
    nsid: Option<u32>,
    #[command(flatten)]
    of: Of,
    /// Logical block size in bytes.
    #[arg(long, value_name = "BYTES")]
    block_size: Option<u32>,
    /// UUID.
    #[arg(long)]
    uuid: Option<String>,
    /// NGUID.
    #[arg(long)]
    nguid: Option<String>,
    /// EUI-64.
    #[arg(long)]
    eui64: Option<String>,
    /// Refuse writes.
    #[arg(long)]
    readonly: bool,
    /// Poll the device for completions (IOPOLL).
    #[arg(long)]
    iopoll: bool,
    /// ANA group.
    #[arg(long, value_name = "NUMBER")]
    ana_group: Option<u32>,
    /// NQN of a host that can access it; repeatable [default: all allowed hosts].
    #[arg(long = "host", value_name = "NQN")]
    hosts: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct One {
    /// Namespace ID.
    nsid: u32,
    #[command(flatten)]
    of: Of,
}

#[derive(Debug, Args)]
pub(super) struct Size {
    /// Namespace ID.
    pub(super) nsid: u32,
    /// New size of the file, such as 20G.
    pub(super) size: Option<String>,
    /// Allow shrinking: data beyond the new size are lost.
    #[arg(long, requires = "size")]
    pub(super) shrink: bool,
    /// NQN of the subsystem; required if there are several.
    #[arg(long, value_name = "NQN")]
    pub(super) subsystem: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct Of {
    /// NQN of the subsystem; required if there are several.
    #[arg(long, value_name = "NQN")]
    subsystem: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct OnlyOf {
    /// Only of the subsystem with this NQN.
    #[arg(long, value_name = "NQN")]
    pub(super) subsystem: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Host {
    /// List hosts that are allowed to connect or are connected.
    List(OnlyOf),
    /// Allow hosts to connect.
    Allow(Allow),
    /// Disconnect hosts and refuse further connections.
    Deny(Deny),
    /// Set the key with which a host authenticates, if no controller uses one that it replaces.
    SetKey(SetKey),
    /// Give a host another key; its present key is accepted, too, until it is removed.
    RotateKey(RotateKey),
    /// Remove the old key of a host, if no controller uses it.
    RemoveOldKey {
        /// NQN of the host.
        host: String,
        /// Remove it in any case, and disconnect the controllers that use it.
        #[arg(long)]
        force: bool,
    },
    /// Remove all keys of a host; it does not authenticate any more.
    RemoveKey {
        /// NQN of the host.
        host: String,
    },
}

#[derive(Debug, Args)]
pub(super) struct SetKey {
    /// NQN of the host.
    host: String,
    /// File with the key of the host, or credential:NAME.
    #[arg(long, value_name = "PATH", value_parser = key_file)]
    key_file: String,
    /// File with the key of the controller, for hosts that authenticate it.
    #[arg(long, value_name = "PATH", value_parser = key_file)]
    controller_key_file: Option<String>,
    /// Hash functions [default: as in the configuration reference].
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    hash: Vec<String>,
    /// Groups of the key exchange, the preferred first [default: as in the configuration
    /// reference].
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    dh_groups: Vec<String>,
    /// Replace keys that controllers use, and disconnect these controllers.
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
pub(super) struct RotateKey {
    /// NQN of the host.
    host: String,
    /// File with the new key of the host, or credential:NAME.
    #[arg(long, value_name = "PATH", value_parser = key_file)]
    key_file: String,
    /// Until when the old key is accepted, such as 2026-12-31 or 2026-12-31T18:00:00Z
    /// [default: until it is removed].
    #[arg(long, value_name = "DATE")]
    old_until: Option<String>,
}

/// The absolute path of a file with a key. The target refuses a key in its place.
fn key_file(path: &str) -> Result<String, String> {
    if path.is_empty() || path.starts_with(CREDENTIAL) {
        return Ok(path.to_owned());
    }
    let path = std::path::absolute(path).map_err(|error| error.to_string())?;
    Ok(path.display().to_string())
}

#[derive(Debug, Args)]
pub(super) struct Allow {
    /// NQN of a host, or `any`.
    #[arg(required = true)]
    hosts: Vec<String>,
    /// Allow these hosts only.
    #[arg(long)]
    only: bool,
    #[command(flatten)]
    of: Of,
}

#[derive(Debug, Args)]
pub(super) struct Deny {
    /// NQN of a host, or `any`.
    #[arg(required = true)]
    hosts: Vec<String>,
    #[command(flatten)]
    of: Of,
}

#[derive(Debug, Subcommand)]
pub(super) enum Port {
    /// List ports with port ID, address, providers and ANA groups.
    List,
    /// Add a port.
    Add(AddPort),
    /// Remove a port and disconnect its hosts.
    Remove {
        /// Address and port, unix:/path, or port ID.
        address: String,
    },
    /// Change keys, such as queue_depth=64.
    Set {
        /// Address and port, unix:/path, or port ID.
        address: String,
        #[command(flatten)]
        values: Values,
    },
}

#[derive(Debug, Args)]
pub(super) struct AddPort {
    /// Address and port such as 10.0.0.1:4420, or unix:/path.
    address: String,
    /// Providers: auto, iwarp, verbs, shm, or several such as iwarp,shm.
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    provider: Vec<String>,
    /// Port ID in the discovery log page.
    #[arg(long, value_name = "NUMBER")]
    id: Option<u16>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Subsystem {
    /// List subsystems.
    List,
    /// Add a subsystem.
    Add(AddSubsystem),
    /// Remove a subsystem and disconnect its hosts.
    Remove {
        /// NQN of the subsystem.
        nqn: String,
    },
    /// Change keys, such as model=NAME.
    Set {
        /// NQN of the subsystem.
        nqn: String,
        #[command(flatten)]
        values: Values,
    },
}

#[derive(Debug, Args)]
pub(super) struct AddSubsystem {
    /// NQN of the subsystem.
    nqn: String,
    /// NQN of an allowed host, or `any`; repeatable.
    #[arg(long = "host", value_name = "NQN")]
    hosts: Vec<String>,
    /// A namespace: path=PATH and further keys, separated by commas; repeatable. If
    /// one of them is refused, nothing is added.
    #[arg(long = "namespace", value_name = "path=PATH,..", value_parser = namespace)]
    namespaces: Vec<NamespaceAdd>,
    /// Serial number.
    #[arg(long)]
    serial: Option<String>,
    /// Model number.
    #[arg(long)]
    model: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Ana {
    /// Set the state of an ANA group.
    Set {
        /// ANA group ID.
        group: u32,
        /// optimized, non-optimized, inaccessible, persistent-loss or change.
        state: String,
        /// Only on this port: address and port, or port ID.
        #[arg(long, value_name = "PORT")]
        port: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum Referral {
    /// Add a referral.
    Add {
        /// Address and port, such as 10.0.0.9:4420.
        address: String,
        /// Port ID.
        #[arg(long, value_name = "NUMBER")]
        port_id: Option<u16>,
        /// NQN of the discovery service.
        #[arg(long)]
        nqn: Option<String>,
    },
    /// Remove a referral.
    Remove {
        /// Address and port.
        address: String,
    },
}

/// The name of any host in a host list.
const ANY: &str = "any";

impl Namespace {
    pub(super) fn edits(&self) -> Vec<Edit> {
        let enable = |one: &One, enabled| Edit::NamespaceEnable {
            subsystem: one.of.subsystem.clone(),
            nsid: one.nsid,
            enabled,
        };
        vec![match self {
            Self::Add(add) => Edit::NamespaceAdd(NamespaceAdd {
                subsystem: add.of.subsystem.clone(),
                nsid: add.nsid,
                path: absolute(&add.path),
                block_size: add.block_size,
                uuid: add.uuid.clone(),
                nguid: add.nguid.clone(),
                eui64: add.eui64.clone(),
                readonly: add.readonly.then_some(true),
                iopoll: add.iopoll.then_some(true),
                ana_group: add.ana_group,
                hosts: add.hosts.clone(),
            }),
            Self::Remove(one) => Edit::NamespaceRemove {
                subsystem: one.of.subsystem.clone(),
                nsid: one.nsid,
            },
            Self::Enable(one) => enable(one, true),
            Self::Disable(one) => enable(one, false),
            Self::Set { one, values } => {
                return values.edits(|key, value| Edit::NamespaceSet {
                    subsystem: one.of.subsystem.clone(),
                    nsid: one.nsid,
                    value: match value {
                        Some(path) if key == "path" => {
                            Some(absolute(path.trim_matches(['"', '\''])))
                        }
                        value => value,
                    },
                    key,
                });
            }
            // Not changes of the configuration.
            Self::Resize(_) | Self::List(_) => return Vec::new(),
        }]
    }
}

impl Host {
    pub(super) fn edits(&self) -> Vec<Edit> {
        match self {
            Self::List(_) => Vec::new(),
            Self::Allow(Allow { hosts, only, of }) => {
                let allow = hosts.iter().map(|host| Edit::HostAllow {
                    subsystem: of.subsystem.clone(),
                    host: host.clone(),
                });
                let first = only.then(|| Edit::HostDeny {
                    subsystem: of.subsystem.clone(),
                    host: ANY.to_owned(),
                });
                first.into_iter().chain(allow).collect()
            }
            Self::Deny(Deny { hosts, of }) => {
                let deny = hosts.iter().map(|host| Edit::HostDeny {
                    subsystem: of.subsystem.clone(),
                    host: host.clone(),
                });
                deny.collect()
            }
            Self::SetKey(set) => vec![Edit::HostSetKey(HostKeys {
                host: set.host.clone(),
                key_file: set.key_file.clone(),
                controller_key_file: set.controller_key_file.clone(),
                hash: set.hash.clone(),
                dh_groups: set.dh_groups.clone(),
                replaces: None,
                force: set.force,
            })],
            Self::RotateKey(RotateKey {
                host,
                key_file,
                old_until,
            }) => vec![Edit::HostRotateKey {
                host: host.clone(),
                key_file: key_file.clone(),
                old_key_file: None,
                old_key_until: old_until.clone(),
                replaces: None,
            }],
            Self::RemoveOldKey { host, force } => vec![Edit::HostRemoveOldKey {
                host: host.clone(),
                replaces: None,
                force: *force,
            }],
            Self::RemoveKey { host } => vec![Edit::HostRemoveKey {
                host: host.clone(),
                replaces: None,
            }],
        }
    }
}

impl Port {
    pub(super) fn edits(&self) -> Vec<Edit> {
        vec![match self {
            Self::List => return Vec::new(),
            Self::Add(AddPort {
                address,
                provider,
                id,
            }) => Edit::PortAdd {
                address: address.clone(),
                provider: provider.clone(),
                id: *id,
            },
            Self::Remove { address } => Edit::PortRemove {
                address: address.clone(),
            },
            Self::Set { address, values } => {
                return values.edits(|key, value| Edit::PortSet {
                    address: address.clone(),
                    key,
                    value,
                });
            }
        }]
    }
}

impl AddSubsystem {
    fn edits(&self) -> Vec<Edit> {
        let subsystem = Edit::SubsystemAdd {
            nqn: self.nqn.clone(),
            serial: self.serial.clone(),
            model: self.model.clone(),
            hosts: self.hosts.clone(),
        };
        let namespaces = self.namespaces.iter().map(|add| {
            Edit::NamespaceAdd(NamespaceAdd {
                subsystem: Some(self.nqn.clone()),
                ..add.clone()
            })
        });
        std::iter::once(subsystem).chain(namespaces).collect()
    }
}

impl Subsystem {
    pub(super) fn edits(&self) -> Vec<Edit> {
        vec![match self {
            Self::List => return Vec::new(),
            Self::Add(add) => return add.edits(),
            Self::Remove { nqn } => Edit::SubsystemRemove { nqn: nqn.clone() },
            Self::Set { nqn, values } => {
                return values.edits(|key, value| Edit::SubsystemSet {
                    nqn: nqn.clone(),
                    key,
                    value,
                });
            }
        }]
    }
}

impl Ana {
    pub(super) fn edits(&self) -> Vec<Edit> {
        let Self::Set { group, state, port } = self;
        vec![Edit::AnaSet {
            address: port.clone(),
            group: *group,
            state: state.clone(),
        }]
    }
}

impl Referral {
    pub(super) fn edits(&self) -> Vec<Edit> {
        vec![match self {
            Self::Add {
                address,
                port_id,
                nqn,
            } => Edit::ReferralAdd {
                address: address.clone(),
                port_id: *port_id,
                nqn: nqn.clone(),
            },
            Self::Remove { address } => Edit::ReferralRemove {
                address: address.clone(),
            },
        }]
    }
}
