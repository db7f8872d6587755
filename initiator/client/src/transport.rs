//! Which RDMA provider carries the connection.

use std::fmt;
use std::str::FromStr;

use nvmeof_rdma::Provider;

use crate::error::{Error, MachineError};

/// An RDMA provider by name. Features of the crate choose which are there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// The best one that this machine has.
    #[default]
    Auto,
    /// Software iWARP over TCP: works everywhere.
    Iwarp,
}

/// No provider has that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no RDMA provider `{0}`; there are: auto, iwarp")]
pub struct UnknownTransport(String);

impl Transport {
    /// Makes a provider of its own for one queue.
    ///
    /// # Errors
    /// When this machine or this build does not have it.
    pub fn provider(self) -> Result<Box<dyn Provider>, Error> {
        match self {
            Self::Auto | Self::Iwarp => iwarp(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Iwarp => "iwarp",
        }
    }
}

#[cfg(feature = "iwarp")]
fn iwarp() -> Result<Box<dyn Provider>, Error> {
    let provider = nvmeof_rdma_iwarp::new(nvmeof_rdma_iwarp::IwarpConfig::default());
    let provider = provider.map_err(|error| MachineError::Provider {
        name: "iwarp",
        text: error.to_string(),
    })?;
    Ok(Box::new(provider))
}

#[cfg(not(feature = "iwarp"))]
fn iwarp() -> Result<Box<dyn Provider>, Error> {
    Err(MachineError::Provider {
        name: "iwarp",
        text: "this program was built without the feature `iwarp`".to_owned(),
    }
    .into())
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Transport {
    type Err = UnknownTransport;

    fn from_str(name: &str) -> Result<Self, UnknownTransport> {
        [Self::Auto, Self::Iwarp]
            .into_iter()
            .find(|transport| transport.name() == name)
            .ok_or_else(|| UnknownTransport(name.to_owned()))
    }
}
