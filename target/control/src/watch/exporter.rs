//! Telling how the target is over TCP, to those who may not manage it.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use nix::errno::Errno;
use nvmeof_rdma::ListenError;

use super::{Watch, routes};
use crate::http::{Answering, Bounds, finished, may_pass};
use nvmeof_target_address::{self as zone, port_address};
use nvmeof_target_config::{Config, ConfigError};

/// A listener at which nobody is answered yet.
pub struct Exporter {
    listener: TcpListener,
}

impl Exporter {
    /// Listens where `config` says; `None` where it says nothing.
    ///
    /// # Errors
    /// [`ConfigError`] names the key.
    pub fn bind(config: &Config) -> Result<Option<Self>, ConfigError> {
        let Some(address) = config.metrics().listen.map(zone::resolved) else {
            return Ok(None);
        };
        let shown = port_address(address.into());
        let listener = TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        match listener {
            Ok(listener) => Ok(Some(Self { listener })),
            Err(error) => {
                let passing = may_pass(&error);
                let what = match error.kind() {
                    io::ErrorKind::AddrInUse => {
                        format!("{shown} is in use; choose another port")
                    }
                    io::ErrorKind::AddrNotAvailable => {
                        format!("{shown} is no address of this machine; `ip address` shows them")
                    }
                    _ if error.raw_os_error() == Some(Errno::ENODEV as i32) => format!(
                        "the interface of {shown} is not there; `ip link` shows those there are"
                    ),
                    _ => ListenError::new(address, error).to_string(),
                };
                let told = config.table_error("metrics", "listen", &what);
                Err(told.passing(passing))
            }
        }
    }

    /// Answers from now on.
    ///
    /// # Errors
    /// When there is no thread or runtime for that.
    pub fn serve(self, watch: &Arc<Watch>) -> io::Result<Answering> {
        let address = self.listener.local_addr()?;
        let listen = move || tokio::net::TcpListener::from_std(self.listener);
        let router = finished(routes(watch), "/metrics, /healthz and /snapshot are here");
        let answering = Answering::start("metrics", listen, router, Bounds::watching())?;
        tracing::info!("metrics at http://{address}/metrics");
        Ok(answering)
    }
}
