//! Creation of providers: at the start for all configured ports, later for a port with a
//! provider that no other port has.

use std::io;

use nvmeof_memory::Region;
use nvmeof_rdma::{Provider, Steering, explain};
use nvmeof_rdma_iwarp::{IwarpConfig, ZeroCopy};
use nvmeof_rdma_shm::{Borrowed, Shm, ShmConfig, own_folder};

use super::devices;
use super::listen::ReactorProvider;
use nvmeof_target_config::{Config, ConfigError, ProviderName, ShmSettings};
use nvmeof_target_engine::SENDS_PER_COMMAND;

/// The providers of one kind of all reactors. They are a group: all listen on the same addresses,
/// and connections are distributed over them.
pub(crate) struct ProviderGroup<L = ReactorProvider> {
    pub(crate) name: ProviderName,
    pub(crate) providers: Vec<L>,
}

/// What is needed to create providers for all reactors.
#[derive(Debug)]
pub struct ProviderFactory {
    /// Distributes connections over the reactors, each of which has its own provider.
    pub(crate) steering: Steering,
    /// File descriptors for connections of each reactor that no provider has reserved yet.
    pub(crate) files: u32,
    /// Memory of hosts that all providers have mapped.
    pub(crate) borrowed: Borrowed,
}

/// A host has at least an admin queue and an I/O queue.
const QUEUES_OF_A_HOST: u32 = 2;

impl ProviderFactory {
    /// For `reactors` reactors, each with `files` descriptors for connections.
    #[must_use]
    pub fn new(reactors: usize, files: u32) -> Self {
        Self {
            steering: Steering::new(reactors),
            files,
            borrowed: Borrowed::default(),
        }
    }

    /// Creates the providers with these names, which share the descriptors.
    ///
    /// # Errors
    /// The provider that cannot be created, and the cause.
    pub(super) fn make_all(
        &mut self,
        names: &[ProviderName],
        config: &Config,
    ) -> Result<Vec<ProviderGroup>, (ProviderName, String)> {
        let software = names.iter().filter(|name| name.is_software()).count();
        let share = self.files / u32::try_from(software.max(1)).unwrap_or(u32::MAX);
        let make = |name: &ProviderName| {
            let made = ProviderGroup::new(*name, self, share.max(1), config);
            made.map_err(|why| (*name, why))
        };
        let made = names.iter().map(make).collect::<Result<Vec<_>, _>>()?;
        self.take(made.iter().map(ProviderGroup::files).sum());
        Ok(made)
    }

    /// Creates one more, in addition to those `made` that do not run yet.
    ///
    /// # Errors
    /// Why it cannot be created.
    pub(crate) fn make(
        &self,
        name: ProviderName,
        made: &[ProviderGroup],
        config: &Config,
    ) -> Result<ProviderGroup, String> {
        let taken: u32 = made.iter().map(ProviderGroup::files).sum();
        let files = self.files.saturating_sub(taken);
        if name.is_software() && files < QUEUES_OF_A_HOST {
            return Err(
                "the providers in use reserve all file descriptors; raise the limit \
                 (`ulimit -n`, LimitNOFILE= of the service) and restart the target"
                    .to_owned(),
            );
        }
        ProviderGroup::new(name, self, files, config)
    }

    /// Reserves descriptors for a provider that runs now.
    pub(crate) fn take(&mut self, files: u32) {
        self.files = self.files.saturating_sub(files);
    }
}

impl ProviderGroup {
    /// With at most `files` descriptors for connections of each reactor.
    fn new(
        name: ProviderName,
        means: &ProviderFactory,
        files: u32,
        config: &Config,
    ) -> Result<Self, String> {
        let steering = &means.steering;
        let lacks = |error: io::Error| format!("epoll: {}", explain(&error));
        let providers = match name {
            ProviderName::Iwarp => iwarp_providers(steering, files, config).map_err(lacks)?,
            ProviderName::Verbs => devices::verbs_providers(steering)?,
            ProviderName::Shm => {
                let config = shm_config(config.shm(), &means.borrowed);
                shm_providers(steering, files, config).map_err(lacks)?
            }
        };
        Ok(Self::of(name, providers))
    }

    /// One provider for each reactor.
    pub(super) fn of(name: ProviderName, providers: Vec<Box<dyn Provider>>) -> Self {
        let ready = |provider| ReactorProvider {
            name,
            provider,
            listeners: Vec::new(),
        };
        Self {
            name,
            providers: providers.into_iter().map(ready).collect(),
        }
    }

    /// Registers the memory of each reactor with its provider.
    ///
    /// # Errors
    /// If the memory cannot be registered.
    pub(crate) fn register(&mut self, memory: &[Vec<Region>]) -> io::Result<()> {
        for (ready, regions) in self.providers.iter_mut().zip(memory) {
            for region in regions {
                ready.provider.register(region)?;
            }
        }
        Ok(())
    }

    /// Descriptors that are reserved for its connections on each reactor.
    pub(crate) fn files(&self) -> u32 {
        let first = self.providers.first().filter(|_| self.name.is_software());
        first.map_or(0, |ready| ready.provider.limits().max_qps)
    }

    /// Checks that queues of the configured depth are possible: the queues of a device may be
    /// shorter than those of software.
    pub(crate) fn check_limits(&self, config: &Config) -> Result<(), ConfigError> {
        let depth = u32::from(config.limits().queue_depth);
        for ready in &self.providers {
            let limits = ready.provider.limits();
            let possible = limits.max_recvs.min(limits.max_sends / SENDS_PER_COMMAND);
            if depth > possible {
                let what = format!(
                    "{depth} exceeds {possible}, the maximum of the {} provider on this machine; \
                     set it to {possible} or less",
                    self.name
                );
                return Err(config.limits_error("queue_depth", &what));
            }
        }
        Ok(())
    }
}

fn iwarp_providers(
    steering: &Steering,
    files: u32,
    config: &Config,
) -> io::Result<Vec<Box<dyn Provider>>> {
    let mut config = IwarpConfig {
        socket_mode: config.socket_mode(),
        zero_copy: match config.zero_copy_sends() {
            true => ZeroCopy::Remote,
            false => ZeroCopy::Never,
        },
        ..IwarpConfig::default()
    };
    config.limits.max_qps = config.limits.max_qps.min(files);
    let members = nvmeof_rdma_iwarp::group(&config, steering)?;
    Ok(boxed(members))
}

/// The configuration of the provider; `borrowed` is the memory that all of them have mapped.
pub(crate) fn shm_config(settings: &ShmSettings, borrowed: &Borrowed) -> ShmConfig {
    let folder = settings.folder.clone().unwrap_or_else(own_folder);
    ShmConfig {
        mapped: settings.lent_memory,
        borrowed: borrowed.clone(),
        ..ShmConfig::listening(folder, &settings.users)
    }
}

fn shm_providers(
    steering: &Steering,
    files: u32,
    mut config: ShmConfig,
) -> io::Result<Vec<Box<dyn Provider>>> {
    config.limits.max_qps = config.limits.max_qps.min(files);
    let members = Shm::group(&config, steering)?;
    Ok(boxed(members))
}

fn boxed<P: Provider + 'static>(members: Vec<P>) -> Vec<Box<dyn Provider>> {
    let boxed = |member| Box::new(member) as Box<dyn Provider>;
    members.into_iter().map(boxed).collect()
}
