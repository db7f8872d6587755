//! Settings that require a restart: they determined the memory and the threads of the target at
//! its start.

use nvmeof_backend_spec::CephAccess;
use nvmeof_rdma_shm::{Borrowed, ShmConfig};
use nvmeof_target_core::Limits;

use crate::ports::shm_config;
use nvmeof_target_address as zone;
use nvmeof_target_config::{
    Config, ConfigError, ControlConfig, Cores, HaConfig, MetricsConfig, ReactorSettings, Sqpoll,
};

/// The settings of a configuration that cannot change while the target runs.
#[derive(Clone, Debug)]
pub struct Fixed {
    limits: Limits,
    settings: ReactorSettings,
    ceph: CephAccess,
    ha: Option<HaConfig>,
    zero_copy_sends: bool,
    shm: ShmConfig,
    socket_mode: u32,
    control: ControlConfig,
    metrics: MetricsConfig,
}

const REMEDY: &str = "cannot change while hosts are served; restart the target, or restore the \
                      former value";

impl Fixed {
    /// The settings of `config`.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        Self {
            limits: config.limits(),
            settings: config.reactor_settings(),
            ceph: config.ceph().clone(),
            ha: config.ha().cloned(),
            zero_copy_sends: config.zero_copy_sends(),
            shm: shm_config(config.shm(), &Borrowed::default()),
            socket_mode: config.socket_mode(),
            control: config.control().clone(),
            metrics: config.metrics().clone(),
        }
    }

    /// Checks that `config` has the same settings.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and key of the first that differs.
    pub(crate) fn check(&self, config: &Config) -> Result<(), ConfigError> {
        match self.differing(config).first() {
            Some((table, key)) => Err(config.table_error(table, key, REMEDY)),
            None => Ok(()),
        }
    }

    /// The tables and keys that differ in `config`.
    #[must_use]
    pub fn differing(&self, config: &Config) -> Vec<(&'static str, &'static str)> {
        let new = Self::of(config);
        let zero_copy = self.zero_copy_sends != new.zero_copy_sends;
        let mode = [("mode", self.socket_mode != new.socket_mode)];
        // Its interface may have appeared since.
        let listens = |it: &MetricsConfig| it.listen.map(zone::resolved);
        let listen = [("listen", listens(&self.metrics) != listens(&new.metrics))];
        let tables = [
            (
                "limits",
                limit(&self.limits_with_defaults(&new), &new.limits),
            ),
            ("reactor", reactor(&self.settings, &new.settings)),
            ("storage", storage(&self.settings, &new.settings)),
            ("ceph", ceph(&self.ceph, &new.ceph)),
            ("ha", ha(self.ha.as_ref(), new.ha.as_ref())),
            ("iwarp", differing([("zero_copy_sends", zero_copy)])),
            ("shm", shm(&self.shm, &new.shm)),
            ("unix", differing(mode)),
            ("control", control(&self.control, &new.control)),
            ("metrics", differing(listen)),
        ];
        let tables = tables.into_iter();
        let all = tables.flat_map(|(table, keys)| keys.into_iter().map(move |key| (table, key)));
        all.collect()
    }
}

impl Fixed {
    /// Its limits, with defaults that follow from other limits computed from those of `new`: such
    /// a key was not changed.
    fn limits_with_defaults(&self, new: &Self) -> Limits {
        let parts = |fixed: &Self, of_controllers| {
            let limits = fixed.limits.clone();
            limits.with_quotas(fixed.settings.cores.count(), of_controllers)
        };
        let old = &self.limits;
        // The others follow from these two.
        let (was, is) = (parts(self, (None, None)), parts(new, (None, None)));
        let host_controllers = follow(
            old.host_controllers,
            was.host_controllers,
            is.host_controllers,
        );
        let port_controllers = follow(
            old.port_controllers,
            was.port_controllers,
            is.port_controllers,
        );
        let of_controllers =
            |limits: &Limits| (Some(limits.host_controllers), Some(limits.port_controllers));
        let was = parts(self, of_controllers(old));
        let is = parts(new, of_controllers(&new.limits));
        Limits {
            host_controllers,
            port_controllers,
            host_queues: follow(old.host_queues, was.host_queues, is.host_queues),
            host_commands: follow(old.host_commands, was.host_commands, is.host_commands),
            port_connections: follow(
                old.port_connections,
                was.port_connections,
                is.port_connections,
            ),
            port_commands: follow(old.port_commands, was.port_commands, is.port_commands),
            ..old.clone()
        }
    }
}

/// The default `is` if `old` is the former default `was`, otherwise `old`.
fn follow<T: Copy + PartialEq>(old: T, was: T, is: T) -> T {
    if old == was { is } else { old }
}

fn limit(old: &Limits, new: &Limits) -> Vec<&'static str> {
    let Limits {
        queue_depth,
        io_queues,
        controllers,
        discovery_controllers,
        max_transfer,
        in_capsule,
        max_descriptors,
        connect_timeout,
        unconnected,
        host_controllers,
        port_controllers,
        host_queues,
        host_commands,
        host_memory,
        port_connections,
        port_commands,
        port_memory,
        traffic_keep_alive,
        quiesce_time_s,
        registrants,
        zero_key_unregisters,
        unique_host_ids,
    } = old;
    differing([
        ("queue_depth", *queue_depth != new.queue_depth),
        ("io_queues", *io_queues != new.io_queues),
        ("controllers", *controllers != new.controllers),
        (
            "discovery_controllers",
            *discovery_controllers != new.discovery_controllers,
        ),
        ("max_transfer", *max_transfer != new.max_transfer),
        ("in_capsule", *in_capsule != new.in_capsule),
        ("max_descriptors", *max_descriptors != new.max_descriptors),
        ("connect_timeout_s", *connect_timeout != new.connect_timeout),
        ("unconnected", *unconnected != new.unconnected),
        (
            "host_controllers",
            *host_controllers != new.host_controllers,
        ),
        (
            "port_controllers",
            *port_controllers != new.port_controllers,
        ),
        ("host_queues", *host_queues != new.host_queues),
        ("host_commands", *host_commands != new.host_commands),
        ("host_memory", *host_memory != new.host_memory),
        (
            "port_connections",
            *port_connections != new.port_connections,
        ),
        ("port_commands", *port_commands != new.port_commands),
        ("port_memory", *port_memory != new.port_memory),
        (
            "traffic_keep_alive",
            *traffic_keep_alive != new.traffic_keep_alive,
        ),
        ("quiesce_time_s", *quiesce_time_s != new.quiesce_time_s),
        ("registrants", *registrants != new.registrants),
        (
            "zero_key_unregisters",
            *zero_key_unregisters != new.zero_key_unregisters,
        ),
        ("unique_host_ids", *unique_host_ids != new.unique_host_ids),
    ])
}

fn reactor(old: &ReactorSettings, new: &ReactorSettings) -> Vec<&'static str> {
    let ReactorSettings {
        cores,
        polling,
        drain,
        buffer_memory,
        sqpoll: _,
        hugepages,
        shared_receives,
    } = old;
    // Without a list of CPUs the number of reactors is all that there is.
    let is_count = |cores: &Cores| matches!(cores, Cores::Anywhere(_) | Cores::Auto(Some(_)));
    let count_changed = is_count(cores) && is_count(&new.cores);
    let key = if count_changed { "count" } else { "cores" };
    differing([
        (key, *cores != new.cores),
        ("polling", *polling != new.polling),
        ("drain_s", *drain != new.drain),
        ("buffer_memory", *buffer_memory != new.buffer_memory),
        ("hugepages", *hugepages != new.hugepages),
        ("shared_receives", *shared_receives != new.shared_receives),
    ])
}

fn storage(old: &ReactorSettings, new: &ReactorSettings) -> Vec<&'static str> {
    let parts = |settings: &ReactorSettings| match settings.sqpoll.clone() {
        Some(Sqpoll { idle, cores }) => (true, Some(idle), cores),
        None => (false, None, Vec::new()),
    };
    let (threads, idle, cores) = parts(old);
    let (new_threads, new_idle, new_cores) = parts(new);
    differing([
        ("sqpoll", threads != new_threads),
        ("sqpoll_idle_ms", threads && new_threads && idle != new_idle),
        ("sqpoll_cores", cores != new_cores),
    ])
}

fn ceph(old: &CephAccess, new: &CephAccess) -> Vec<&'static str> {
    let CephAccess {
        conf,
        user,
        keyring,
    } = old;
    differing([
        ("conf", *conf != new.conf),
        ("user", *user != new.user),
        ("keyring", *keyring != new.keyring),
    ])
}

fn ha(old: Option<&HaConfig>, new: Option<&HaConfig>) -> Vec<&'static str> {
    let (old, new) = match (old, new) {
        (Some(old), Some(new)) => (old, new),
        (None, None) => return Vec::new(),
        // The keys that are required.
        (None, Some(_)) | (Some(_), None) => return vec!["gateway", "record", "group"],
    };
    let HaConfig {
        gateway,
        pool,
        namespace,
        object,
        lease,
        failback,
        groups,
    } = old;
    let record = (pool, namespace, object);
    differing([
        ("gateway", *gateway != new.gateway),
        ("record", record != (&new.pool, &new.namespace, &new.object)),
        ("lease_ms", *lease != new.lease),
        ("failback_s", *failback != new.failback),
        ("group", *groups != new.groups),
    ])
}

fn shm(old: &ShmConfig, new: &ShmConfig) -> Vec<&'static str> {
    differing([
        ("folder", old.folder != new.folder),
        ("users", old.users != new.users),
        ("lent_memory", old.mapped != new.mapped),
    ])
}

fn control(old: &ControlConfig, new: &ControlConfig) -> Vec<&'static str> {
    let ControlConfig {
        socket,
        mode,
        group,
        state,
    } = old;
    differing([
        ("socket", *socket != new.socket),
        ("mode", *mode != new.mode),
        ("group", *group != new.group),
        ("state", *state != new.state),
    ])
}

fn differing<const N: usize>(keys: [(&'static str, bool); N]) -> Vec<&'static str> {
    let differing = keys.into_iter().filter(|(_, differs)| *differs);
    differing.map(|(key, _)| key).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(head: &str) -> Config {
        let rest = "[[port]]\ntraddr = \"127.0.0.1\"\nprovider = \"iwarp\"\n";
        Config::parse(Path::new("target.toml"), format!("{head}{rest}")).unwrap()
    }

    /// A default that follows from a changed key is not listed.
    #[test]
    fn only_changed_settings_differ() {
        let before = Fixed::of(&config("[limits]\nhost_queues = 9\n"));
        let differing = |head: &str| before.differing(&config(head));
        assert!(differing("[limits]\nhost_queues = 9\n").is_empty());
        let more = "[limits]\nhost_queues = 9\ncontrollers = 128\n[reactor]\ncount = 2\n";
        assert_eq!(
            differing(more),
            [("limits", "controllers"), ("reactor", "count")]
        );
        let pinned = differing("[limits]\nhost_queues = 9\n[reactor]\ncores = [0]\n");
        assert_eq!(pinned, [("reactor", "cores")]);
        let sends = differing("[limits]\nhost_queues = 9\n[iwarp]\nzero_copy_sends = true\n");
        assert_eq!(sends, [("iwarp", "zero_copy_sends")]);
        let given = "[limits]\nhost_queues = 9\nport_commands = 4096\n";
        assert_eq!(differing(given), [("limits", "port_commands")]);
        let less = "[limits]\nhost_queues = 9\nhost_controllers = 8\n";
        assert_eq!(differing(less), [("limits", "host_controllers")]);
        let left_out = [("limits", "host_queues")];
        assert_eq!(differing(""), left_out);
    }

    #[test]
    fn changed_ha_settings_differ() {
        let text = "[ha]\ngateway = \"gw1\"\nrecord = \"rbd/ha\"\nfailback_s = 9\n\
                    [[ha.group]]\nid = 1\ngateways = [\"gw1\", \"gw2\"]\n";
        let before = Fixed::of(&config(text));
        assert!(before.differing(&config(text)).is_empty());
        for (from, to, key) in [
            ("gateway = \"gw1\"", "gateway = \"gw3\"", "gateway"),
            ("rbd/ha", "rbd/other", "record"),
            ("rbd/ha", "rbd/ns/ha", "record"),
            ("failback_s = 9\n", "", "failback_s"),
            ("failback_s", "lease_ms = 5000\nfailback_s", "lease_ms"),
            ("[\"gw1\", \"gw2\"]", "[\"gw2\", \"gw1\"]", "group"),
            ("id = 1", "id = 2", "group"),
        ] {
            let other = config(&text.replacen(from, to, 1));
            assert_eq!(before.differing(&other), [("ha", key)], "{to}");
        }
        let required = ["gateway", "record", "group"].map(|key| ("ha", key));
        assert_eq!(before.differing(&config("")), required);
        assert_eq!(Fixed::of(&config("")).differing(&config(text)), required);
    }

    #[test]
    fn changed_sqpoll_cpu_is_detected() {
        let on = |cores| {
            config(&format!(
                "[storage]\nsqpoll = true\nsqpoll_cores = {cores}\n"
            ))
        };
        let before = Fixed::of(&on("[0, 1]"));
        assert!(before.differing(&on("\"0-1\"")).is_empty());
        let other = on("[0, 2]");
        assert_eq!(before.differing(&other), [("storage", "sqpoll_cores")]);
        let error = before.check(&other).unwrap_err().to_string();
        assert!(
            error.starts_with("target.toml:3: storage.sqpoll_cores: cannot change"),
            "{error}"
        );
        let patient =
            config("[storage]\nsqpoll = true\nsqpoll_cores = [0, 1]\nsqpoll_idle_ms = 9\n");
        assert_eq!(before.differing(&patient), [("storage", "sqpoll_idle_ms")]);
        let anywhere = config("[storage]\nsqpoll = true\n");
        assert_eq!(before.differing(&anywhere), [("storage", "sqpoll_cores")]);
        let none = [("storage", "sqpoll"), ("storage", "sqpoll_cores")];
        assert_eq!(before.differing(&config("")), none);
    }
}
