//! The configured backing stores of namespaces.

use nvmeof_backend_spec::{BlockSize, Spec};
use nvmeof_target_core::{AuthenticationSpec, Model, NamespaceSpec, PortSpec};
use toml::Spanned;

use super::raw::RawNamespace;
use super::{Config, ConfigError};

/// The configured backing store of one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredStore {
    /// NQN of the subsystem.
    pub nqn: String,
    /// NSID of the namespace.
    pub nsid: u32,
    /// The backing store.
    pub spec: Spec,
    /// Block size; `None`: that of the backing store.
    pub block_size: Option<BlockSize>,
    /// Whether its device is polled for completions.
    pub polled: bool,
    /// ANA group, if gateways take it over from each other: one of [`Config::ha`].
    pub group: Option<u32>,
}

impl ConfiguredStore {
    /// The same namespace on the backing store `spec`.
    #[must_use]
    pub fn with(&self, spec: Spec) -> Self {
        Self {
            spec,
            ..self.clone()
        }
    }

    /// Whether both are the same file, or memory of the same size.
    #[must_use]
    pub fn names(&self, other: &Self) -> bool {
        self.spec.clone().with_readonly(true) == other.spec.clone().with_readonly(true)
    }

    /// Whether a backing store that was opened for this can serve `other`: a writable one also
    /// serves a read-only namespace.
    #[must_use]
    pub fn serves(&self, other: &Self) -> bool {
        let like = |one: &Self| (one.block_size, one.polled, one.group);
        self.names(other)
            && like(self) == like(other)
            && (other.spec.readonly() || !self.spec.readonly())
    }
}

impl Config {
    /// The backing store of each enabled namespace, in order.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and key.
    pub fn configured_stores(&self) -> Result<Vec<ConfiguredStore>, ConfigError> {
        self.each_configured_store()
            .map(|(_, store)| store)
            .collect()
    }

    /// The same with NQN and NSID of each, including those with an error.
    pub fn each_configured_store(
        &self,
    ) -> impl Iterator<Item = ((&str, u32), Result<ConfiguredStore, ConfigError>)> {
        self.namespaces().map(|(nqn, raw)| {
            let store = self.configured_store_of(nqn, raw);
            ((nqn, *raw.nsid.get_ref()), store)
        })
    }

    fn configured_store_of(
        &self,
        nqn: &str,
        raw: &RawNamespace,
    ) -> Result<ConfiguredStore, ConfigError> {
        Ok(ConfiguredStore {
            nqn: nqn.to_owned(),
            nsid: *raw.nsid.get_ref(),
            spec: self.spec(raw)?,
            block_size: block_size(raw),
            polled: *raw.iopoll.get_ref(),
            group: self.ha_group(raw),
        })
    }

    /// An error about the path of the enabled namespace at index `at`, over all subsystems.
    #[must_use]
    pub fn path_error(&self, at: usize, what: &str) -> ConfigError {
        let raw = self.namespaces().nth(at);
        let at = raw.map(|(_, raw)| raw.path.span().start);
        let key = self.called("path", "--namespace");
        self.error_at(at, &format!("{key}: {what}"))
    }

    /// An error about `iopoll` of the enabled namespace at index `at`.
    #[must_use]
    pub fn polled_error(&self, at: usize, what: &str) -> ConfigError {
        let raw = self.namespaces().nth(at);
        let at = raw.map(|(_, raw)| raw.iopoll.span().start);
        self.error_at(at, &format!("iopoll: {what}"))
    }

    /// The path of each namespace as it is written, with NQN and NSID.
    pub fn paths(&self) -> impl Iterator<Item = ((&str, u32), &str)> {
        let all = self.all_namespaces();
        all.map(|(nqn, raw)| ((nqn, *raw.nsid.get_ref()), raw.path.get_ref().as_str()))
    }

    /// The namespaces in order, each with the NQN of its subsystem.
    fn all_namespaces(&self) -> impl Iterator<Item = (&str, &RawNamespace)> {
        let subsystems = self.raw.subsystem.iter().map(Spanned::get_ref);
        subsystems.flat_map(|subsystem| {
            let nqn = subsystem.nqn.get_ref().as_str();
            let namespaces = subsystem.namespace.iter().map(Spanned::get_ref);
            namespaces.map(move |namespace| (nqn, namespace))
        })
    }

    /// The namespaces that are enabled.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = (&str, &RawNamespace)> {
        self.all_namespaces().filter(|(_, one)| one.enabled)
    }

    /// The model with these ports and the keys of hosts. `fill_in` completes each enabled namespace
    /// with the properties of its backing store, in order. The ANA groups `standby`, which other
    /// gateways serve, are inaccessible on every port.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and key.
    pub fn model_of(
        &self,
        fill_in: impl FnMut(&mut NamespaceSpec),
        ports: &[PortSpec],
        standby: &[u32],
        keys: AuthenticationSpec,
    ) -> Result<Model, ConfigError> {
        let subsystems = self.subsystem_specs(fill_in)?;
        let model = self.build(ports, standby, &subsystems)?;
        Ok(model.with_authentication(keys))
    }

    pub(crate) fn spec(&self, raw: &RawNamespace) -> Result<Spec, ConfigError> {
        let spec: Spec = raw
            .path
            .get_ref()
            .parse()
            .map_err(|error| self.of_path(raw, &error))?;
        Ok(spec
            .with_readonly(*raw.readonly.get_ref())
            .with_ceph(self.ceph()))
    }

    fn of_path(&self, raw: &RawNamespace, error: &dyn std::error::Error) -> ConfigError {
        let key = self.called("path", "--namespace");
        self.error_at(Some(raw.path.span().start), &format!("{key}: {error}"))
    }
}

fn block_size(raw: &RawNamespace) -> Option<BlockSize> {
    let given = raw.block_size.as_ref()?;
    BlockSize::from_bytes(*given.get_ref())
}
