//! Selection of providers on different machines, and errors.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nvmeof_rdma_shm::Borrowed;
use nvmeof_rdma_sim::{SimConfig, SimNet};
use nvmeof_rdma_soft::SoftConfig;
use nvmeof_target_core::Fabric;

use super::devices::Devices;
use super::listen::listen_with;
use super::plan::{plan_with, unused_with};
use super::*;
use nvmeof_target_config::{Config, ConfigError, ShmSettings};

/// A machine with RDMA devices at some of its addresses.
struct Fake {
    plain: Vec<&'static str>,
    devices: Vec<(&'static str, &'static str, Fabric)>,
    trouble: Option<&'static str>,
    unusable: Option<&'static str>,
}

const NONE: Fake = Fake {
    plain: Vec::new(),
    devices: Vec::new(),
    trouble: None,
    unusable: None,
};

const SHM: &str = "shm (this host, through shared memory)";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

impl Devices for Fake {
    fn at(&self, wanted: SocketAddr) -> Result<Option<Device>, String> {
        if let Some(trouble) = self.trouble {
            return Err(trouble.to_owned());
        }
        let mut devices = self.devices.iter();
        let found = devices.find(|(at, ..)| ip(at) == wanted.ip());
        Ok(found.map(|(_, name, fabric)| Device {
            name: (*name).to_owned(),
            port: 1,
            fabric: *fabric,
            only: None,
        }))
    }

    fn why_none(&self, addr: SocketAddr) -> String {
        format!("no RDMA device serves {}", addr.ip())
    }

    fn unusable(&self) -> Option<String> {
        self.unusable.map(str::to_owned)
    }

    fn addresses(&self) -> Vec<IpAddr> {
        let devices = self.devices.iter().map(|(at, ..)| *at);
        devices.chain(self.plain.iter().copied()).map(ip).collect()
    }
}

fn config_with(traddr: &str, port: u16, provider: &str, head: &str) -> Config {
    let text = format!(
        "{head}[[port]]\ntraddr = \"{traddr}\"\ntrsvcid = {port}\nprovider = {provider}\n\
         [[subsystem]]\nnqn = \"nqn.2026-11.org.example:disk\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nnsid = 1\npath = \"null:1M\"\n"
    );
    Config::parse(Path::new("target.toml"), text).unwrap()
}

fn config(traddr: &str, provider: &str) -> Config {
    config_with(traddr, 4420, provider, "")
}

/// The plan for one port as text.
fn planned(traddr: &str, provider: &str, machine: &Fake) -> Result<String, String> {
    let ports = plan_with(&config(traddr, provider), machine);
    let ports = ports.map_err(|error| error.to_string())?;
    assert_eq!(ports.len(), 1);
    Ok(ports[0].to_string())
}

#[test]
fn auto_selects_device_of_address_or_software() {
    let machine = Fake {
        devices: vec![("10.0.0.1", "rxe0", Fabric::RoceV2)],
        plain: vec!["10.0.0.2"],
        ..NONE
    };
    let planned = |traddr| planned(traddr, "\"auto\"", &machine).unwrap();
    assert_eq!(
        planned("10.0.0.1"),
        format!("10.0.0.1:4420: verbs (rxe0 port 1: roce-v2), {SHM}")
    );
    assert_eq!(
        planned("10.0.0.2"),
        format!("10.0.0.2:4420: iwarp (software, over TCP), {SHM}")
    );
}

#[test]
fn auto_on_all_addresses_selects_both() {
    let machine = Fake {
        devices: vec![
            ("10.0.0.1", "rxe0", Fabric::RoceV2),
            ("fd00::1", "mlx5_0", Fabric::InfiniBand),
        ],
        plain: vec!["10.0.0.2", "127.0.0.1"],
        ..NONE
    };
    let planned = |traddr, machine| planned(traddr, "\"auto\"", machine).unwrap();
    assert_eq!(
        planned("0.0.0.0", &machine),
        format!(
            "0.0.0.0:4420: verbs (rxe0 port 1: roce-v2 on 10.0.0.1), iwarp (software, over TCP), \
             {SHM}"
        )
    );
    assert_eq!(
        planned("::", &machine),
        format!(
            "[::]:4420 (IPv6 only): verbs (mlx5_0 port 1: infiniband on fd00::1), iwarp \
             (software, over TCP), {SHM}"
        )
    );
    assert_eq!(
        planned("0.0.0.0", &NONE),
        format!("0.0.0.0:4420: iwarp (software, over TCP), {SHM}")
    );
}

#[test]
fn named_providers_serve_in_their_order_or_are_refused() {
    let machine = Fake {
        devices: vec![("10.0.0.1", "rxe0", Fabric::RoceV2)],
        plain: vec!["10.0.0.2"],
        ..NONE
    };
    let ports = plan_with(&config("10.0.0.1", "[\"iwarp\", \"verbs\"]"), &machine).unwrap();
    let spec = ports[0].to_spec();
    let fabrics: Vec<_> = spec.carriers.iter().map(|one| one.fabric).collect();
    assert_eq!(fabrics, [Fabric::Iwarp, Fabric::RoceV2]);
    assert_eq!(ports[0].provider_names(), "iwarp, verbs");
    for (traddr, provider) in [
        ("10.0.0.2", "\"verbs\""),
        ("10.0.0.2", "[\"verbs\", \"iwarp\"]"),
        ("::1", "\"verbs\""),
    ] {
        let error = planned(traddr, provider, &machine).unwrap_err();
        let start = "target.toml:4: provider: verbs: no RDMA device serves";
        assert!(error.starts_with(start), "{error}");
    }
    let error = planned("0.0.0.0", "\"verbs\"", &NONE).unwrap_err();
    assert!(error.contains("0.0.0.0"), "{error}");
    assert!(planned("10.0.0.2", "\"iwarp\"", &machine).is_ok());
}

#[test]
fn failing_device_is_reported_not_omitted() {
    let machine = Fake {
        trouble: Some("no permission"),
        ..NONE
    };
    let error = planned("10.0.0.1", "\"auto\"", &machine).unwrap_err();
    assert_eq!(
        error,
        "target.toml:4: provider: verbs: no permission; or set provider = \"iwarp\", which needs \
         no RDMA device"
    );
    let error = planned("10.0.0.1", "\"verbs\"", &machine).unwrap_err();
    assert_eq!(error, "target.toml:4: provider: verbs: no permission");
    assert!(planned("10.0.0.1", "\"iwarp\"", &machine).is_ok());
}

#[test]
fn unusable_devices_are_reported_with_auto_only() {
    let machine = Fake {
        unusable: Some("rdma-core is missing"),
        ..NONE
    };
    let warning = |provider, machine| {
        let config = config("10.0.0.1", provider);
        let ports = plan_with(&config, machine).unwrap();
        unused_with(&config, &ports, machine)
    };
    let why = warning("\"auto\"", &machine).unwrap();
    assert!(why.contains("rdma-core is missing; using"), "{why}");
    assert_eq!(warning("\"iwarp\"", &machine), None);
    assert_eq!(warning("\"auto\"", &NONE), None);
}

#[test]
fn build_without_verbs_has_no_devices() {
    if cfg!(feature = "verbs") {
        return;
    }
    assert!(plan(&config("127.0.0.1", "\"auto\"")).is_ok());
    let error = plan(&config("127.0.0.1", "\"verbs\"")).unwrap_err();
    assert!(error.to_string().contains("feature `verbs`"), "{error}");
}

/// Providers on simulated networks. On one network they share port numbers, as sockets and an
/// iWARP device do.
fn members(verbs: &SimNet, iwarp: &SimNet) -> Vec<ProviderGroup> {
    let member = |name, net: &SimNet| {
        let provider = net.endpoint(ip("10.0.0.1"), SoftConfig::default());
        ProviderGroup::of(name, vec![Box::new(provider)])
    };
    vec![
        member(ProviderName::Verbs, verbs),
        member(ProviderName::Iwarp, iwarp),
    ]
}

fn net() -> SimNet {
    SimNet::new(1, SimConfig::default())
}

fn machine(fabric: Fabric) -> Fake {
    Fake {
        devices: vec![("10.0.0.1", "dev0", fabric)],
        ..NONE
    }
}

/// Listens on 10.0.0.1 over both.
fn listened(
    config: &Config,
    fabric: Fabric,
    verbs: &SimNet,
    iwarp: &SimNet,
) -> Result<Listening, ConfigError> {
    let ports = plan_with(config, &machine(fabric)).unwrap();
    listen_with(config, ports, members(verbs, iwarp), 1)
}

const BOTH: &str = "[\"verbs\", \"iwarp\"]";

#[test]
fn free_port_is_the_same_for_all_providers() {
    let (verbs, iwarp) = (net(), net());
    // The first numbers that one provider selects are in use with the other.
    let mut stranger = iwarp.endpoint(ip("10.0.0.1"), SoftConfig::default());
    let (_, first) =
        nvmeof_rdma::Provider::listen(&mut stranger, "10.0.0.1:0".parse().unwrap()).unwrap();
    let config = config_with("10.0.0.1", 0, BOTH, "");
    let Listening { reactors, ports } = listened(&config, Fabric::RoceV2, &verbs, &iwarp).unwrap();
    assert_ne!(ports[0].address.port(), Some(0));
    assert_ne!(ports[0].address.port(), first.port());
    assert_eq!(reactors.len(), 1);
    let names: Vec<_> = reactors[0].iter().map(|ready| ready.name).collect();
    assert_eq!(names, [ProviderName::Verbs, ProviderName::Iwarp]);
    assert!(reactors[0].iter().all(|ready| ready.listeners.len() == 1));
    // Both listen now, and the numbers tried before are free.
    for net in [&verbs, &iwarp] {
        let mut other = net.endpoint(ip("10.0.0.1"), SoftConfig::default());
        assert!(nvmeof_rdma::Provider::listen(&mut other, ports[0].address).is_err());
    }
    let mut other = verbs.endpoint(ip("10.0.0.1"), SoftConfig::default());
    assert!(nvmeof_rdma::Provider::listen(&mut other, first).is_ok());
}

#[test]
fn device_that_uses_the_tcp_port_is_reported() {
    let net = net();
    let refused = |config: &Config, fabric| {
        let listened = listened(config, fabric, &net, &net);
        listened.map(|_| ()).unwrap_err().to_string()
    };
    let config = config("10.0.0.1", BOTH);
    let error = refused(&config, Fabric::Iwarp);
    assert!(error.starts_with("target.toml:4: provider: "), "{error}");
    assert!(error.contains("dev0") && error.contains("\"verbs\" alone"));
    // Another program uses it, which may end.
    let listening = listened(&config, Fabric::RoceV2, &net, &net).unwrap();
    let waits = listening.ports[0].waits.as_ref().unwrap();
    assert!(waits.why.starts_with("traddr: "), "{waits:?}");
    assert!(waits.why.contains("in use"), "{waits:?}");
    // The number of attempts is limited.
    let any = config_with("10.0.0.1", 0, BOTH, "");
    assert!(refused(&any, Fabric::Iwarp).contains("dev0"));
}

#[test]
fn iwarp_device_may_use_the_tcp_port_on_all_addresses() {
    let listened = |fabric, net: &SimNet| {
        let config = config("0.0.0.0", "\"auto\"");
        let mut ports = plan_with(&config, &machine(fabric)).unwrap();
        // The simulation does not support the unspecified address.
        let port = ports[0].address.port().unwrap();
        ports[0].address = (ip("10.0.0.1"), port).into();
        listen_with(&config, ports, members(net, net), 1)
    };
    let listening = listened(Fabric::Iwarp, &net()).unwrap();
    // This test has no provider for shared memory, so it stays in the plan.
    assert_eq!(listening.ports[0].provider_names(), "verbs, shm");
    assert_eq!(listening.reactors[0][1].listeners, []);
    // Another program may use it.
    let listening = listened(Fabric::RoceV2, &net()).unwrap();
    assert!(listening.ports[0].waits.is_some());
}

/// Listens on 127.0.0.1 over `provider`, with sockets in `folder`.
fn listened_here(provider: &str, folder: &Path, reactors: usize) -> Result<Listening, ConfigError> {
    let head = format!("[shm]\nfolder = {folder:?}\n");
    let config = config_with("127.0.0.1", 0, provider, &head);
    let ports = plan_with(&config, &NONE).unwrap();
    listen(&config, ports, &mut means(reactors))
}

fn means(reactors: usize) -> ProviderFactory {
    ProviderFactory::new(reactors, 100)
}

#[test]
fn shm_config_opens_sockets_for_other_users() {
    let settings = |users: &[u32]| ShmSettings {
        folder: Some("/run/elsewhere".into()),
        users: users.to_vec(),
        lent_memory: 4096,
    };
    let own = shm_config(&settings(&[]), &Borrowed::default());
    assert_eq!((own.mode, own.mapped), (0o600, 4096));
    assert_eq!(own.folder, Path::new("/run/elsewhere"));
    let other = shm_config(&settings(&[54_321]), &Borrowed::default());
    assert_eq!((other.mode, other.users.last()), (0o666, Some(&54_321)));
}

/// At the start providers share the descriptors, later ones get the rest.
#[test]
fn later_provider_gets_remaining_descriptors() {
    let config = config_with("127.0.0.1", 0, "\"iwarp\"", "");
    let most = |members: &[ProviderGroup]| -> Vec<u32> {
        let first = members.iter().map(|member| &member.providers[0].provider);
        first.map(|provider| provider.limits().max_qps).collect()
    };
    let mut both = means(2);
    let names = [ProviderName::Iwarp, ProviderName::Shm];
    let made = both.make_all(&names, &config).unwrap();
    assert_eq!((most(&made), both.files), (vec![50, 50], 0));
    let mut one = means(2);
    let made = one.make_all(&names[..1], &config).unwrap();
    assert_eq!((most(&made), one.files), (vec![100], 0));
    let refused = |means: &ProviderFactory| means.make(ProviderName::Shm, &[], &config).map(drop);
    assert!(refused(&one).unwrap_err().contains("file descriptors"));
    // More than it can have.
    one.files = 10_000;
    let made = one.make(ProviderName::Iwarp, &[], &config).unwrap();
    let next = one.make(ProviderName::Shm, &[made], &config).unwrap();
    assert_eq!(one.files, 10_000, "a plan takes nothing");
    assert_eq!(next.files(), 4096);
    one.take(next.files());
    assert_eq!(one.files, 10_000 - 4096);
    one.files = 1;
    assert!(refused(&one).is_err());
}

#[test]
fn every_reactor_listens_for_shared_memory_at_the_same_port() {
    let folder = tempfile::tempdir().unwrap();
    let Listening { reactors, ports } = listened_here("\"auto\"", folder.path(), 2).unwrap();
    assert_eq!(ports[0].provider_names(), "iwarp, shm");
    for providers in &reactors {
        let names: Vec<_> = providers.iter().map(|ready| ready.name).collect();
        assert_eq!(names, [ProviderName::Iwarp, ProviderName::Shm]);
        assert!(providers.iter().all(|ready| ready.listeners.len() == 1));
    }
    let socket = format!("127.0.0.1-{}.sock", ports[0].address.port().unwrap());
    assert!(folder.path().join(socket).exists());
    // Hosts on other machines get entries that they can use.
    let fabrics = |port: &Port| {
        port.to_spec()
            .carriers
            .iter()
            .map(|one| one.fabric)
            .collect()
    };
    let listed: Vec<Fabric> = fabrics(&ports[0]);
    assert_eq!(listed, [Fabric::Iwarp]);
    let alone = listened_here("\"shm\"", folder.path(), 1).unwrap();
    let listed: Vec<Fabric> = fabrics(&alone.ports[0]);
    assert_eq!(listed, [Fabric::Unspecified]);
}

#[test]
fn broken_shared_memory_ends_the_start_only_if_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let listening = listened_here("\"auto\"", &file, 1).unwrap();
    assert_eq!(listening.ports[0].provider_names(), "iwarp");
    assert_eq!(listening.reactors[0][1].listeners, []);
    for provider in ["\"shm\"", "[\"iwarp\", \"shm\"]"] {
        let error = listened_here(provider, &file, 1).map(|_| ()).unwrap_err();
        let error = error.to_string();
        assert!(
            error.starts_with("target.toml:6: provider: shm: "),
            "{error}"
        );
        assert!(
            error.contains("shm.folder") && error.contains("file"),
            "{error}"
        );
    }
}

#[test]
fn every_reactor_listens_at_the_same_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.sock");
    let config = || {
        let text = format!(
            "[[port]]\ntraddr = \"unix:{}\"\n[unix]\nmode = 0o600\n[[subsystem]]\n\
             nqn = \"nqn.2026-11.org.example:disk\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nnsid = 1\npath = \"null:1M\"\n",
            path.display()
        );
        Config::parse(Path::new("target.toml"), text).unwrap()
    };
    let start = || {
        let ports = plan_with(&config(), &machine(Fabric::RoceV2)).unwrap();
        listen(&config(), ports, &mut means(2))
    };
    let Listening { reactors, ports } = start().unwrap();
    assert_eq!(ports[0].provider_names(), "iwarp");
    assert!(ports[0].to_string().contains("for this host"));
    for providers in &reactors {
        assert_eq!(providers.len(), 1);
        assert_eq!(providers[0].listeners.len(), 1);
    }
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let spec = ports[0].to_spec();
    assert_eq!(spec.traddr.to_string(), format!("unix:{}", path.display()));
    let taken = start().unwrap().ports[0].waits.clone().unwrap();
    assert!(taken.why.starts_with("traddr: "), "{taken:?}");
    assert!(taken.why.contains("in use"), "{taken:?}");
    drop(reactors);
    assert!(!path.exists());
}

#[test]
fn device_with_short_queues_is_reported_at_start() {
    let mut soft = SoftConfig::default();
    soft.limits.max_sends = 100;
    let net = net();
    let provider = net.endpoint(ip("10.0.0.1"), soft);
    let member = ProviderGroup::of(ProviderName::Verbs, vec![Box::new(provider)]);
    let error = |depth| {
        let head = format!("[limits]\nqueue_depth = {depth}\n");
        let config = config_with("10.0.0.1", 4420, "\"iwarp\"", &head);
        member
            .check_limits(&config)
            .map_err(|error| error.to_string())
    };
    assert_eq!(error(50), Ok(()));
    let error = error(51).unwrap_err();
    assert!(
        error.starts_with("target.toml:2: limits.queue_depth: "),
        "{error}"
    );
    assert!(error.contains("50 or less"), "{error}");
}
