//! Making providers: at the start for what is configured then, later for a port
//! over one that no port had before.

use std::io;

use nvmeof_memory::Region;
use nvmeof_rdma::{Provider, Steering, explain};
use nvmeof_rdma_iwarp::IwarpConfig;
use nvmeof_rdma_shm::{Borrowed, Shm, ShmConfig, own_folder};

use super::devices;
use super::listen::Ready;
use nvmeof_target_config::{Config, ConfigError, ProviderName, ShmSettings};
use nvmeof_target_engine::SENDS_PER_COMMAND;

/// One kind of provider for all reactors. They are a group: each of them
/// listens on the same addresses, and connections are spread over them.
pub(crate) struct Member<L = Ready> {
    pub(crate) name: ProviderName,
    pub(crate) readies: Vec<L>,
}

/// What providers are made of, for all reactors.
#[derive(Debug)]
pub struct Means {
    /// Spreads connections over reactors, each of which has a provider of its
    /// own.
    pub(crate) steering: Steering,
    /// Connections of each reactor that are descriptors: as many as no provider
    /// has yet.
    pub(crate) files: u32,
    /// The memory of hosts that is mapped, by all providers.
    pub(crate) borrowed: Borrowed,
}

/// A host has an admin queue and one for I/O at least.
const QUEUES_OF_A_HOST: u32 = 2;

impl Means {
    /// For so many reactors, each with so many connections that are descriptors.
    #[must_use]
    pub fn new(reactors: usize, files: u32) -> Self {
        Self {
            steering: Steering::new(reactors),
            files,
            borrowed: Borrowed::default(),
        }
    }

    /// Makes the providers of these names, which share the descriptors.
    ///
    /// # Errors
    /// Which one cannot be had, and why.
    pub(super) fn make_all(
        &mut self,
        names: &[ProviderName],
        config: &Config,
    ) -> Result<Vec<Member>, (ProviderName, String)> {
        let software = names.iter().filter(|name| name.is_software()).count();
        let share = self.files / u32::try_from(software.max(1)).unwrap_or(u32::MAX);
        let make = |name: &ProviderName| {
            let made = Member::new(*name, self, share.max(1), config);
            made.map_err(|why| (*name, why))
        };
        let made = names.iter().map(make).collect::<Result<Vec<_>, _>>()?;
        self.take(made.iter().map(Member::files).sum());
        Ok(made)
    }

    /// Makes one more beside others that were `made` and do not run yet.
    ///
    /// # Errors
    /// Why it cannot be had.
    pub(crate) fn make(
        &self,
        name: ProviderName,
        made: &[Member],
        config: &Config,
    ) -> Result<Member, String> {
        let taken: u32 = made.iter().map(Member::files).sum();
        let files = self.files.saturating_sub(taken);
        if name.is_software() && files < QUEUES_OF_A_HOST {
            return Err(
                "those that serve since the start have all file descriptors; allow the process \
                 more (`ulimit -n`, LimitNOFILE= of the service) and restart the target"
                    .to_owned(),
            );
        }
        Member::new(name, self, files, config)
    }

    /// So many descriptors are for connections of a provider that runs now.
    pub(crate) fn take(&mut self, files: u32) {
        self.files = self.files.saturating_sub(files);
    }
}

impl Member {
    /// With `files` connections of each reactor at most that are descriptors.
    fn new(name: ProviderName, means: &Means, files: u32, config: &Config) -> Result<Self, String> {
        let steering = &means.steering;
        let lacks = |error: io::Error| format!("epoll: {}", explain(&error));
        let providers = match name {
            ProviderName::Iwarp => {
                iwarp_providers(steering, files, config.socket_mode()).map_err(lacks)?
            }
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

    /// Lets each of them use the memory of its reactor.
    ///
    /// # Errors
    /// When the machine does not let it be registered.
    pub(crate) fn register(&mut self, memory: &[Vec<Region>]) -> io::Result<()> {
        for (ready, regions) in self.readies.iter_mut().zip(memory) {
            for region in regions {
                ready.provider.register(region)?;
            }
        }
        Ok(())
    }

    /// Descriptors that its connections may be, of each reactor.
    pub(crate) fn files(&self) -> u32 {
        let first = self.readies.first().filter(|_| self.name.is_software());
        first.map_or(0, |ready| ready.provider.limits().max_qps)
    }

    /// Whether queues of the length that hosts may ask for are possible: a
    /// device may have fewer places than software.
    pub(crate) fn check_limits(&self, config: &Config) -> Result<(), ConfigError> {
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

fn iwarp_providers(
    steering: &Steering,
    files: u32,
    socket_mode: u32,
) -> io::Result<Vec<Box<dyn Provider>>> {
    let mut config = IwarpConfig {
        socket_mode,
        ..IwarpConfig::default()
    };
    config.limits.max_qps = config.limits.max_qps.min(files);
    let members = nvmeof_rdma_iwarp::group(&config, steering)?;
    Ok(boxed(members))
}

/// What the provider is given for `settings`; `borrowed` is what all of them have mapped.
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
