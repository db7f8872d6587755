//! The public interface of the network.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nvmeof_rdma_soft::{SoftConfig, SoftRdma};

use crate::net::Net;
use crate::streams::lock;
use crate::{NetworkFault, SimChances, SimConfig, SimStreams};

/// A provider on a simulated network.
pub type Sim = SoftRdma<SimStreams>;

/// A network in virtual time. Clones are the same network.
#[derive(Clone, Debug)]
pub struct SimNet {
    net: Arc<Mutex<Net>>,
}

impl SimNet {
    /// Creates a network in which everything depends on `seed`.
    #[must_use]
    pub fn new(seed: u64, config: SimConfig) -> Self {
        Self {
            net: Arc::new(Mutex::new(Net::new(seed, config))),
        }
    }

    /// Creates a provider at `ip`. Another one at the same address may be created when this
    /// one is dropped, as after a crash. The seed of `config` is replaced by one that depends
    /// on the network's.
    #[must_use]
    pub fn endpoint(&self, ip: IpAddr, config: SoftConfig) -> Sim {
        let seed = lock(&self.net).dice.roll();
        SoftRdma::new(self.streams(ip), SoftConfig { seed, ..config })
    }

    /// Creates providers at `ip` that may listen on the same addresses, like those of the
    /// threads of one process: they get connections round robin.
    #[must_use]
    pub fn group(&self, ip: IpAddr, config: &SoftConfig, members: usize) -> Vec<Sim> {
        // A number that no other group has.
        let number = lock(&self.net).endpoints.len();
        let member = |_| {
            let seed = lock(&self.net).dice.roll();
            let streams = SimStreams::new(Arc::clone(&self.net), ip, Some(number));
            SoftRdma::new(
                streams,
                SoftConfig {
                    seed,
                    ..config.clone()
                },
            )
        };
        (0..members).map(member).collect()
    }

    /// Creates the streams of an endpoint at `ip`, without a provider.
    #[must_use]
    pub fn streams(&self, ip: IpAddr) -> SimStreams {
        SimStreams::new(Arc::clone(&self.net), ip, None)
    }

    /// The time, 0 at the start.
    #[must_use]
    pub fn now(&self) -> Duration {
        lock(&self.net).now
    }

    /// Time of the next arrival; `None` if nothing is in flight.
    #[must_use]
    pub fn next_arrival(&self) -> Option<Duration> {
        lock(&self.net).next_at()
    }

    /// Advances time to the next arrival, or to `until` if that is earlier or nothing is in
    /// flight. Returns whether there was either.
    #[allow(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn advance_to_next(&self, until: Option<Duration>) -> bool {
        let mut net = lock(&self.net);
        let next = net.next_at().into_iter().chain(until).min();
        if let Some(next) = next {
            net.run_until(next);
        }
        next.is_some()
    }

    /// Advances time by `by`.
    pub fn advance(&self, by: Duration) {
        let mut net = lock(&self.net);
        let to = net.now + by;
        net.run_until(to);
    }

    /// Injects `trouble` now.
    pub fn inject(&self, trouble: NetworkFault) {
        lock(&self.net).trouble(trouble);
    }

    /// Changes the random faults from now on.
    pub fn set_chances(&self, chances: SimChances) {
        lock(&self.net).config.chances = chances;
    }
}
