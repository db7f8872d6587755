//! Opening what a configuration names.

use nvmeof_backend::{BlockSize, Claim, Geometry, Hints, OpenError, Spec, identity};
use nvmeof_target_core::{Model, NamespaceSpec, NamespaceState, PortSpec, Preferred};
use toml::Spanned;

use super::raw::RawNamespace;
use super::{Config, ConfigError};

/// What a configuration names, opened and locked.
pub struct Opened {
    /// The disks; namespaces name them by their place here.
    pub claims: Vec<Claim>,
}

/// What one namespace is to be served from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its subsystem.
    pub nqn: String,
    /// Its number.
    pub nsid: u32,
    /// The storage behind it.
    pub spec: Spec,
    /// Bytes of its blocks; `None`: what suits the storage.
    pub block_size: Option<BlockSize>,
    /// Whether its device is to be asked for what is done.
    pub polled: bool,
}

/// What one namespace is served from.
#[derive(Clone, Copy, Debug)]
pub struct Served<'a> {
    /// The number of its disk.
    pub number: u32,
    /// What it looks like, or did before it was gone.
    pub geometry: &'a Geometry,
    /// Whether hosts can use it.
    pub state: NamespaceState,
}

/// A namespace that cannot be opened.
#[derive(Debug)]
pub struct Unopenable {
    /// Its subsystem.
    pub nqn: String,
    /// Its number.
    pub nsid: u32,
    /// Why.
    pub error: ConfigError,
}

impl Wanted {
    /// Opens and locks it.
    pub fn take(&self) -> Result<Claim, OpenError> {
        if self.polled {
            Claim::take_polled(&self.spec, self.block_size)
        } else {
            Claim::take(&self.spec, self.block_size)
        }
    }

    /// The same namespace on a disk of that specification.
    #[must_use]
    pub fn with(&self, spec: Spec) -> Self {
        Self {
            spec,
            ..self.clone()
        }
    }

    /// Whether both are the same file, or memory of the same size.
    #[must_use]
    pub fn names(&self, wanted: &Self) -> bool {
        self.spec.clone().with_readonly(true) == wanted.spec.clone().with_readonly(true)
    }

    /// Whether a disk of this is what `wanted` says as well: one that can be
    /// written serves a namespace that cannot.
    #[must_use]
    pub fn serves(&self, wanted: &Self) -> bool {
        let like = |one: &Self| (one.block_size, one.polled);
        self.names(wanted)
            && like(self) == like(wanted)
            && (wanted.spec.readonly() || !self.spec.readonly())
    }
}

impl Config {
    /// Opens and locks every file, block device and memory disk it names.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and key.
    pub fn open(&self) -> Result<Opened, ConfigError> {
        let wanted = self.wanted()?;
        let claims = wanted.iter().enumerate().map(|(at, wanted)| {
            let claim = wanted.take();
            claim.map_err(|error| self.disk_error(at, &error))
        });
        let claims = claims.collect::<Result<_, _>>()?;
        Ok(Opened { claims })
    }

    /// Tries to open every namespace that is enabled, and lets go of all again.
    /// Returns those that can never be.
    pub fn unopenable(&self) -> Vec<Unopenable> {
        let mut files = Files::default();
        let mut unopenable = Vec::new();
        for (at, (nqn, raw)) in self.namespaces().enumerate() {
            let wanted = self.wanted_of(nqn, raw);
            let taken = wanted.and_then(|wanted| self.take(at, &wanted, &mut files));
            match taken {
                Ok(_) => {}
                Err(error) if error.may_pass() => {}
                Err(error) => unopenable.push(Unopenable {
                    nqn: nqn.to_owned(),
                    nsid: *raw.nsid.get_ref(),
                    error,
                }),
            }
        }
        unopenable
    }

    /// What each namespace that is enabled is to be served from, in order.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and key.
    pub fn wanted(&self) -> Result<Vec<Wanted>, ConfigError> {
        let all = self.namespaces();
        all.map(|(nqn, raw)| self.wanted_of(nqn, raw)).collect()
    }

    fn wanted_of(&self, nqn: &str, raw: &RawNamespace) -> Result<Wanted, ConfigError> {
        Ok(Wanted {
            nqn: nqn.to_owned(),
            nsid: *raw.nsid.get_ref(),
            spec: self.spec(raw)?,
            block_size: block_size(raw),
            polled: *raw.iopoll.get_ref(),
        })
    }

    /// What is wrong with the disk of namespace number `at`, counted over those of
    /// all subsystems that are enabled.
    pub fn disk_error(&self, at: usize, error: &OpenError) -> ConfigError {
        match self.namespaces().nth(at) {
            Some((_, raw)) => self.of_claim(raw, error),
            None => self.error_at(None, &error.to_string()),
        }
    }

    /// As [`disk_error`](Self::disk_error), about a value that it has.
    pub fn path_error(&self, at: usize, what: &str) -> ConfigError {
        let raw = self.namespaces().nth(at);
        let at = raw.map(|(_, raw)| raw.path.span().start);
        let key = self.called("path", "--namespace");
        self.error_at(at, &format!("{key}: {what}"))
    }

    /// The namespaces that are enabled in order, each with the name of its
    /// subsystem.
    fn namespaces(&self) -> impl Iterator<Item = (&str, &RawNamespace)> {
        let subsystems = self.raw.subsystem.iter().map(Spanned::get_ref);
        subsystems.flat_map(|subsystem| {
            let nqn = subsystem.nqn.get_ref().as_str();
            let namespaces = subsystem.namespace.iter();
            let enabled = namespaces.map(Spanned::get_ref).filter(|one| one.enabled);
            enabled.map(move |namespace| (nqn, namespace))
        })
    }

    /// Opens and locks what each enabled namespace names, in order. What cannot be
    /// opened yet says why: `serve` waits for that, and `check-config` lists it.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and key of the first that cannot be served
    /// however long one waits.
    pub fn open_present(&self) -> Result<Vec<Result<Claim, ConfigError>>, ConfigError> {
        let mut files = Files::default();
        let wanted = self.wanted()?.into_iter().enumerate();
        wanted
            .map(|(at, wanted)| match self.take(at, &wanted, &mut files) {
                Err(error) if !error.may_pass() => Err(error),
                taken => Ok(taken),
            })
            .collect()
    }

    /// Opens and locks what namespace number `at` wants; `files` are those that others of
    /// the configuration have.
    fn take(&self, at: usize, wanted: &Wanted, files: &mut Files) -> Result<Claim, ConfigError> {
        let is_free = files.add(&wanted.spec);
        if !is_free.map_err(|error| self.disk_error(at, &error))? {
            let what = format!(
                "{}: another namespace of this configuration is served from the same file or \
                 device; name another one, or serve both read-only",
                wanted.spec
            );
            return Err(self.path_error(at, &what));
        }
        let taken = wanted.take();
        taken.map_err(|error| self.disk_error(at, &error))
    }

    /// The model of what was opened, with the ports that are listened on.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and key.
    pub fn model(&self, opened: &Opened, ports: &[PortSpec]) -> Result<Model, ConfigError> {
        let disks = (0..).zip(&opened.claims).map(|(number, claim)| Served {
            number,
            geometry: claim.geometry(),
            state: NamespaceState::Ready,
        });
        self.model_of(disks, ports)
    }

    /// The model of these disks, which come in the order of the namespaces that
    /// are enabled.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and key.
    pub fn model_of<'a>(
        &self,
        disks: impl IntoIterator<Item = Served<'a>>,
        ports: &[PortSpec],
    ) -> Result<Model, ConfigError> {
        let mut disks = disks.into_iter();
        let subsystems = self.subsystem_specs(|spec| {
            if let Some(disk) = disks.next() {
                fill_in(spec, disk);
            }
        })?;
        self.build(ports, &subsystems)
    }

    fn spec(&self, raw: &RawNamespace) -> Result<Spec, ConfigError> {
        let spec: Spec = raw
            .path
            .get_ref()
            .parse()
            .map_err(|error| self.of_path(raw, &error))?;
        Ok(spec.with_readonly(raw.readonly))
    }

    fn of_claim(&self, raw: &RawNamespace, error: &OpenError) -> ConfigError {
        let told = match error {
            OpenError::CannotPoll { .. } => {
                let at = raw.iopoll.span().start;
                self.error_at(Some(at), &format!("iopoll: {error}"))
            }
            _ => self.of_path(raw, error),
        };
        told.passing(error.may_pass())
    }

    fn of_path(&self, raw: &RawNamespace, error: &dyn std::error::Error) -> ConfigError {
        let key = self.called("path", "--namespace");
        self.error_at(Some(raw.path.span().start), &format!("{key}: {error}"))
    }
}

/// What the model has to know of a disk.
fn fill_in(spec: &mut NamespaceSpec, disk: Served<'_>) {
    let Served {
        number,
        geometry,
        state,
    } = disk;
    spec.state = state;
    let block_size = geometry.block_size.bytes();
    spec.disk = number;
    spec.blocks = geometry.size / u64::from(block_size);
    spec.block_size = block_size;
    spec.readonly |= geometry.readonly;
    spec.deallocate = geometry.deallocate_zeroes;
    spec.volatile_cache = geometry.volatile_write_cache;
    spec.preferred = preferred(&geometry.hints);
}

/// The sizes of which hosts are told.
pub fn preferred(hints: &Hints) -> Preferred {
    Preferred {
        write: hints.write.unwrap_or(0),
        deallocate: hints.deallocate.unwrap_or(0),
        optimal_write: hints.optimal_write.unwrap_or(0),
        atomic: hints.atomic.unwrap_or(0),
    }
}

/// Files and devices of the namespaces of one configuration.
#[derive(Default)]
struct Files {
    /// With whether it is only read.
    taken: Vec<((u64, u64), bool)>,
}

impl Files {
    /// One more namespace is served from that. False when another one is already, and
    /// one of the two may write.
    fn add(&mut self, spec: &Spec) -> Result<bool, OpenError> {
        let Spec::File { path, .. } = spec else {
            return Ok(true);
        };
        let Some(file) = identity(path)? else {
            return Ok(true);
        };
        let readonly = spec.readonly();
        let clashes = |(other, reads): &(_, bool)| *other == file && !(*reads && readonly);
        let is_free = !self.taken.iter().any(clashes);
        self.taken.push((file, readonly));
        Ok(is_free)
    }
}

fn block_size(raw: &RawNamespace) -> Option<BlockSize> {
    let given = raw.block_size.as_ref()?;
    BlockSize::from_bytes(*given.get_ref())
}
