//! Opening what a configuration names.

use std::os::unix::fs::MetadataExt;

use nvmeof_backend::{BlockSize, Claim, OpenError, Spec};
use nvmeof_target_core::{Model, NamespaceSpec, PortSpec};
use toml::Spanned;

use super::raw::RawNamespace;
use super::{Config, ConfigError};

/// What a configuration names, opened and locked.
pub struct Opened {
    /// The disks; namespaces name them by their place here.
    pub claims: Vec<Claim>,
    specs: Vec<Vec<Geometry>>,
}

/// What the model has to know of a disk.
#[derive(Clone, Copy, Debug)]
struct Geometry {
    disk: u32,
    blocks: u64,
    block_size: u32,
    readonly: bool,
    deallocate: bool,
    volatile_cache: bool,
}

impl Config {
    /// Opens and locks every file, block device and memory disk it names.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and key.
    pub fn open(&self) -> Result<Opened, ConfigError> {
        let mut claims = Vec::new();
        let mut specs = Vec::new();
        for subsystem in &self.raw.subsystem {
            let mut of_subsystem = Vec::new();
            for namespace in &subsystem.get_ref().namespace {
                let claim = self.claim(namespace.get_ref())?;
                of_subsystem.push(geometry(claims.len(), &claim));
                claims.push(claim);
            }
            specs.push(of_subsystem);
        }
        Ok(Opened { claims, specs })
    }

    /// As [`open`](Self::open), but lets go of everything again, and only
    /// tells of what another process has locked: that may be a target that
    /// runs with this very configuration. Returns such remarks.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and key.
    pub fn try_open(&self) -> Result<Vec<String>, ConfigError> {
        let mut remarks = Vec::new();
        let mut claims = Vec::new();
        let mut files = Vec::new();
        let subsystems = self.raw.subsystem.iter().map(Spanned::get_ref);
        for namespace in subsystems.flat_map(|subsystem| &subsystem.namespace) {
            let raw = namespace.get_ref();
            let spec = self.spec(raw)?;
            let file = identity(&spec);
            // Not another process, but this very configuration has it twice.
            let ours = file.is_some() && files.contains(&file);
            match take(&spec, raw) {
                Ok(claim) => claims.push(claim),
                Err(error @ OpenError::Locked { .. }) if !ours => {
                    remarks.push(self.of_path(raw, &error).to_string());
                }
                Err(error) => return Err(self.of_claim(raw, &error)),
            }
            files.push(file);
        }
        Ok(remarks)
    }

    /// The model of what was opened, with the ports that are listened on.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and key.
    pub fn model(&self, opened: &Opened, ports: &[PortSpec]) -> Result<Model, ConfigError> {
        let mut sizes = opened.specs.iter().flatten();
        let subsystems = self.subsystem_specs(|spec| {
            if let Some(geometry) = sizes.next() {
                geometry.fill_in(spec);
            }
        })?;
        Model::build(self.limits(), ports, &subsystems).map_err(|error| self.of_model(&error))
    }

    fn claim(&self, raw: &RawNamespace) -> Result<Claim, ConfigError> {
        let spec = self.spec(raw)?;
        take(&spec, raw).map_err(|error| self.of_claim(raw, &error))
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
        match error {
            OpenError::CannotPoll { .. } => {
                let at = raw.iopoll.span().start;
                self.error_at(Some(at), &format!("iopoll: {error}"))
            }
            _ => self.of_path(raw, error),
        }
    }

    fn of_path(&self, raw: &RawNamespace, error: &dyn std::error::Error) -> ConfigError {
        let key = self.called("path", "--namespace");
        self.error_at(Some(raw.path.span().start), &format!("{key}: {error}"))
    }
}

impl Geometry {
    fn fill_in(self, spec: &mut NamespaceSpec) {
        spec.disk = self.disk;
        spec.blocks = self.blocks;
        spec.block_size = self.block_size;
        spec.readonly = self.readonly;
        spec.deallocate = self.deallocate;
        spec.write_zeroes = !self.readonly;
        spec.volatile_cache = self.volatile_cache;
    }
}

/// Device and number of a file, by whatever path it is named.
fn identity(spec: &Spec) -> Option<(u64, u64)> {
    let Spec::File { path, .. } = spec else {
        return None;
    };
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

fn take(spec: &Spec, raw: &RawNamespace) -> Result<Claim, OpenError> {
    if *raw.iopoll.get_ref() {
        Claim::take_polled(spec, block_size(raw))
    } else {
        Claim::take(spec, block_size(raw))
    }
}

fn block_size(raw: &RawNamespace) -> Option<BlockSize> {
    let given = raw.block_size.as_ref()?;
    BlockSize::from_bytes(*given.get_ref())
}

fn geometry(disk: usize, claim: &Claim) -> Geometry {
    let geometry = claim.geometry();
    let block_size = geometry.block_size.bytes();
    Geometry {
        disk: u32::try_from(disk).unwrap_or(u32::MAX),
        blocks: geometry.size / u64::from(block_size),
        block_size,
        readonly: geometry.readonly,
        deallocate: geometry.deallocate_zeroes,
        volatile_cache: geometry.volatile_write_cache,
    }
}
