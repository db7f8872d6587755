//! A target with one subsystem for any host, one for a permitted host, and the discovery
//! subsystem.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, LazyLock};

use nvmeof_dhchap::{Key, Policy, Secret};
use nvmeof_target_core::{
    AnaGroup, AuthenticationSpec, Fabric, Limits, Model, NamespaceSpec, NamespaceState,
    SettingsKeeper,
};
use nvmeof_target_core::{PortAddress, PortSpec, SubsystemSpec, Target};
use nvmeof_wire::Nqn;
use nvmeof_wire::auth::{GroupId, HashId};
use nvmeof_wire::log::ana::AnaState;

/// The subsystem that any host may use.
pub const SUBSYSTEM: &str = "nqn.2026-11.org.example:disk";
/// A host.
pub const HOST: &str = "nqn.2026-11.org.example:host";

/// Namespace and backing store of [`SUBSYSTEM`] that only a permitted host may access.
pub const HIDDEN: u32 = 2;
/// Namespace and backing store that hosts can access only in the model of [`other`], where
/// [`HOST`] has a key.
pub const CLOSED: u32 = 4;
/// Namespace and backing store that are read-only.
pub const READ_ONLY: u32 = 3;

const FRIEND: &str = "nqn.2026-11.org.example:friend";

static MODEL: LazyLock<Model> = LazyLock::new(|| {
    let groups = [
        (2, AnaState::NON_OPTIMIZED),
        (CLOSED, AnaState::INACCESSIBLE),
    ];
    let namespaces = vec![
        namespace(1, 512),
        hidden(),
        readonly(),
        grouped(namespace(CLOSED, 512), CLOSED),
    ];
    model(&groups, namespaces, true)
});

static CHANGED: LazyLock<Model> = LazyLock::new(|| {
    let mut smaller = namespace(1, 512);
    smaller.blocks = 990;
    let mut faulted = namespace(5, 4096);
    faulted.state = NamespaceState::Faulted;
    let mut disabled = namespace(6, 512);
    disabled.state = NamespaceState::Disabled;
    disabled.blocks = 0;
    let namespaces = vec![
        smaller,
        hidden(),
        grouped(namespace(CLOSED, 512), CLOSED),
        faulted,
        disabled,
    ];
    let groups = [(1, AnaState::NON_OPTIMIZED), (7, AnaState::PERSISTENT_LOSS)];
    model(&groups, namespaces, false).with_authentication(keys())
});

/// A key for [`HOST`], which no input has, without an exchange that costs time.
fn keys() -> AuthenticationSpec {
    let secret = Secret::take(&mut [7; 32]).expect("memory");
    let key = Key::of(secret, None).expect("a valid key");
    let policy = Policy {
        first_is_old: false,
        unknown: Default::default(),
        keys: vec![Arc::new(key)],
        controller_key: None,
        hashes: vec![HashId::SHA256],
        groups: vec![GroupId::NULL],
    };
    let host = Nqn::new(HOST).expect("a good name");
    AuthenticationSpec {
        hosts: [(host, Arc::new(policy))].into(),
        ..AuthenticationSpec::default()
    }
}

/// A port with groups in these states, a subsystem for any host with these namespaces, and
/// optionally one for a permitted host.
fn model(groups: &[(u32, AnaState)], namespaces: Vec<NamespaceSpec>, friends: bool) -> Model {
    let traddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let mut port = PortSpec::new(traddr, 4420, vec![Fabric::Iwarp.into()]);
    port.ana_groups = groups
        .iter()
        .map(|&(id, state)| AnaGroup { id, state })
        .collect();
    let mut subsystems = vec![SubsystemSpec {
        nqn: SUBSYSTEM.into(),
        allow_any_host: true,
        namespaces,
        ..SubsystemSpec::default()
    }];
    if friends {
        subsystems.push(SubsystemSpec {
            nqn: "nqn.2026-11.org.example:closed".into(),
            allowed_hosts: vec![FRIEND.into()],
            namespaces: vec![namespace(1, 512)],
            ..SubsystemSpec::default()
        });
    }
    let limits = Limits {
        io_queues: 4,
        controllers: 3,
        ..Limits::default()
    };
    Model::build(limits, &[port], &subsystems).expect("the model is valid")
}

fn hidden() -> NamespaceSpec {
    NamespaceSpec {
        hosts: Some(vec![FRIEND.into()]),
        ..namespace(HIDDEN, 512)
    }
}

fn readonly() -> NamespaceSpec {
    NamespaceSpec {
        readonly: true,
        ..grouped(namespace(READ_ONLY, 4096), 2)
    }
}

fn grouped(namespace: NamespaceSpec, ana_group: u32) -> NamespaceSpec {
    NamespaceSpec {
        ana_group,
        ..namespace
    }
}

fn namespace(nsid: u32, block_size: u32) -> NamespaceSpec {
    NamespaceSpec {
        nsid,
        blocks: 1000,
        block_size,
        store: nsid,
        deallocate: true,
        volatile_cache: true,
        ..NamespaceSpec::default()
    }
}

/// A target without connections.
#[must_use]
pub fn served() -> Target {
    let target = Target::new(MODEL.clone());
    target.set_settings_keeper(Arc::new(NobodyWakes));
    target
}

/// Wake-ups have no effect: fuzz targets check for data to save themselves.
#[derive(Debug)]
struct NobodyWakes;

impl SettingsKeeper for NobodyWakes {
    fn wake(&self) {}
}

/// A change by an administrator, and back.
#[must_use]
pub fn other(changed: bool) -> Model {
    let model: &Model = if changed { &CHANGED } else { &MODEL };
    model.clone()
}

/// The port that hosts use.
#[must_use]
pub fn port() -> PortAddress {
    PortAddress {
        traddr: IpAddr::V4(Ipv4Addr::LOCALHOST).into(),
        trsvcid: 4420,
    }
}
