//! Metrics and health over TCP, for clients without access to the control socket.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use nix::errno::Errno;
use nvmeof_rdma::ListenError;

use super::{Watch, routes};
use crate::http::{Bounds, HttpServer, finished, may_succeed_later};
use nvmeof_target_address::{self as zone, port_address};
use nvmeof_target_config::{Config, ConfigError};

/// A listening socket that does not serve requests yet.
pub struct Exporter {
    listener: TcpListener,
}

impl Exporter {
    /// Listens on `metrics.listen` of `config`; `None` if it is not set.
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
                let passing = may_succeed_later(&error);
                let what = match error.kind() {
                    io::ErrorKind::AddrInUse => {
                        format!("{shown} is in use; choose another port")
                    }
                    io::ErrorKind::AddrNotAvailable => {
                        format!(
                            "{shown} is not an address of this machine; `ip address` lists them"
                        )
                    }
                    _ if error.raw_os_error() == Some(Errno::ENODEV as i32) => format!(
                        "the interface of {shown} does not exist; `ip link` lists the interfaces"
                    ),
                    _ => ListenError::new(address, error).to_string(),
                };
                let error = config.table_error("metrics", "listen", &what);
                Err(error.passing(passing))
            }
        }
    }

    /// Starts serving requests.
    ///
    /// # Errors
    /// If the thread or its runtime cannot be created.
    pub fn serve(self, watch: &Arc<Watch>) -> io::Result<HttpServer> {
        let address = self.listener.local_addr()?;
        let listen = move || tokio::net::TcpListener::from_std(self.listener);
        let router = finished(
            routes(watch),
            "the paths are /metrics, /healthz and /snapshot",
        );
        let server = HttpServer::start("metrics", listen, router, Bounds::watching())?;
        tracing::info!("metrics listening on http://{address}/metrics");
        Ok(server)
    }
}
