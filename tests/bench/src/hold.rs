//! Idle connections: a load for targets, and a measure of the cost of an idle host.

use std::convert::Infallible;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nvmeof_initiator::{
    Address, ConnectOptions, Controller, Error, Host, HostConfig, Nqn, RouteOptions, Transport,
};
use tokio::runtime::Builder;

/// The connections to hold.
#[derive(Clone, Debug)]
pub struct Hold {
    /// Where the target listens.
    pub addr: Address,
    /// Name of its subsystem.
    pub subnqn: Nqn,
    /// The RDMA provider.
    pub transport: Transport,
    /// Folder where targets on this host listen for shared memory.
    pub shm_folder: Option<PathBuf>,
    /// Controllers.
    pub controllers: u16,
    /// I/O queues of each.
    pub queues: u16,
    /// Entries of each I/O queue.
    pub size: u16,
}

/// Interval of checks that all connections are established.
const LOOK: Duration = Duration::from_secs(1);

/// Connects, reports the number of queue pairs, and holds them until one is lost.
///
/// # Errors
/// The reason why a connection failed or is lost.
pub fn hold(hold: &Hold, connected: impl FnOnce(usize)) -> Result<Infallible, Error> {
    raise_open_files(hold)?;
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| other(&error.to_string()))?;
    runtime.block_on(async {
        let controllers = connect(hold).await?;
        let queues = controllers.iter().map(|one| 1 + one.info().io_queues);
        connected(queues.map(usize::from).sum());
        loop {
            tokio::time::sleep(LOOK).await;
            if let Some(error) = controllers.iter().find_map(Controller::error) {
                return Err(error);
            }
        }
    })
}

/// Descriptors of a queue pair: a socket, the descriptor to wait on, its duplicate of the
/// runtime, and a spare one.
const DESCRIPTORS: u64 = 4;
/// Other descriptors.
const OTHERS: u64 = 64;

/// Raises the soft limit on open files, up to the hard limit.
fn raise_open_files(hold: &Hold) -> Result<(), Error> {
    let queue_pairs = u64::from(hold.controllers) * (1 + u64::from(hold.queues));
    let wanted = queue_pairs * DESCRIPTORS + OTHERS;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((wanted, wanted));
    if soft >= wanted {
        return Ok(());
    }
    if hard < wanted {
        return Err(other(&format!(
            "{queue_pairs} queue pairs require {wanted} open files, the hard limit is {hard}; \
             raise it (ulimit -Hn {wanted}) or hold fewer"
        )));
    }
    setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).map_err(|errno| {
        other(&format!(
            "cannot raise the limit on open files from {soft}: {errno}"
        ))
    })
}

async fn connect(hold: &Hold) -> Result<Vec<Controller>, Error> {
    // Nothing is read or written.
    let mut config = HostConfig::of_this_machine()?.with_buffers_for(1, 4096);
    config.transport = hold.transport;
    config.route_options = RouteOptions {
        shm_folder: hold.shm_folder.clone(),
        ..RouteOptions::default()
    };
    let host = Host::new(config)?;
    let mut controllers = Vec::with_capacity(hold.controllers.into());
    for _ in 0..hold.controllers {
        let mut options = ConnectOptions::new(hold.addr, hold.subnqn);
        options.io_queues = hold.queues;
        options.queue_size = hold.size;
        let controller = host.connect(options).await?;
        let granted = controller.info().io_queues;
        if granted < hold.queues {
            let wanted = hold.queues;
            return Err(other(&format!(
                "the controller grants {granted} I/O queues, not {wanted}"
            )));
        }
        controllers.push(controller);
    }
    Ok(controllers)
}

fn other(text: &str) -> Error {
    nvmeof_initiator::UsageError::Other(text.to_owned()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_open_files_are_reported() {
        let hold = Hold {
            addr: Address::from(([127, 0, 0, 1], 1)),
            subnqn: Nqn::discovery(),
            transport: Transport::Iwarp,
            shm_folder: None,
            controllers: u16::MAX,
            queues: u16::MAX,
            size: 8,
        };
        let error = raise_open_files(&hold).unwrap_err().to_string();
        assert!(error.contains("open files"), "{error}");
        let (controllers, queues) = (1, 1);
        let few = Hold {
            controllers,
            queues,
            ..hold
        };
        assert!(raise_open_files(&few).is_ok());
    }
}
