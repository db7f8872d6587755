//! Clients of a Ceph cluster for images that move between gateways together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nvmeof_backend_spec::CephAccess;
use nvmeof_ceph::{Cluster, wait_closed};

use super::lock::EXPIRY;
use super::opening::not_connected;
use crate::RbdRefusal;

/// Clients for the images of one ANA group during one ownership, and whether operations may
/// start. They are closed until [`permit`](Self::permit). Clones are the same clients.
#[derive(Clone)]
pub struct RbdClients {
    inner: Arc<Inner>,
}

struct Inner {
    /// `None` when they are disconnected, or about to be.
    clusters: Mutex<Option<Vec<Cluster>>>,
    addresses: Vec<String>,
    gate: Gate,
    /// Addresses of the clients that were blocklisted for these.
    fenced: Vec<String>,
}

/// Whether operations may start. The number is odd during a period in which they may. An image
/// that was opened in another period accepts none: a command that was received before a period
/// ended does not start in the next one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate {
    period: Arc<AtomicU64>,
}

/// Permission to start operations during one period.
#[derive(Clone, Debug)]
pub(crate) struct Pass {
    gate: Gate,
    period: u64,
}

impl Gate {
    pub(crate) fn pass(&self) -> Pass {
        let period = self.period.load(Ordering::Acquire);
        let gate = self.clone();
        Pass { gate, period }
    }

    fn set(&self, is_open: bool) {
        let change = |period: u64| {
            let changes = (period % 2 == 1) != is_open;
            changes.then(|| period.wrapping_add(1))
        };
        // It changes nothing if it is so already.
        let _ = self
            .period
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
    }
}

impl Pass {
    pub(crate) fn is_of(&self, gate: &Gate) -> bool {
        Arc::ptr_eq(&self.gate.period, &gate.period)
    }

    /// Whether an operation may start now.
    #[inline]
    pub(crate) fn is_valid(&self) -> bool {
        self.period % 2 == 1 && self.gate.period.load(Ordering::Acquire) == self.period
    }
}

impl RbdClients {
    /// Connects `count` clients, blocklists the clients with the addresses `former` for good, and
    /// waits until each new client has the map with that. From then on an OSD that executes an
    /// operation of the new clients executes none of the former ones. They wait for the latest map
    /// also if `former` is empty.
    ///
    /// # Errors
    /// [`RbdRefusal`]. Some of `former` may be blocklisted.
    pub fn connect(
        access: &CephAccess,
        count: usize,
        former: &[String],
    ) -> Result<Self, RbdRefusal> {
        let connect = |_| Cluster::connect(access).map_err(|error| not_connected(access, error));
        let clusters = (0..count.max(1))
            .map(connect)
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(first) = clusters.first() {
            for address in former {
                first.blocklist(address, EXPIRY)?;
            }
        }
        for cluster in &clusters {
            cluster.wait_for_latest_map()?;
        }
        let fenced = former.to_vec();
        let gate = Gate::default();
        let addresses = clusters.iter().map(|it| it.address().to_owned());
        Ok(Self {
            inner: Arc::new(Inner {
                addresses: addresses.collect(),
                clusters: Mutex::new(Some(clusters)),
                gate,
                fenced,
            }),
        })
    }

    /// The address of each client.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.inner.addresses.clone()
    }

    /// Operations may start from now on, on backing stores that are opened from a claim of this
    /// period: see [`Claim::in_period`](crate::Claim::in_period).
    pub fn permit(&self) {
        self.inner.gate.set(true);
    }

    /// No operation starts from now on. Those that were submitted to librbd continue.
    pub fn forbid(&self) {
        self.inner.gate.set(false);
    }

    /// Disconnects, after all images are closed. No image is opened any more, and those that are
    /// being opened are waited for. To be called when no reactor and no claim uses them. On
    /// success, no operation of these clients takes effect any more.
    ///
    /// # Errors
    /// An image was not closed within `timeout`, or not properly.
    pub fn close(self, timeout: Duration) -> Result<(), String> {
        self.forbid();
        let Some(clusters) = self.clusters().take() else {
            return Err("its clients are being disconnected already".to_owned());
        };
        let end = Instant::now() + timeout;
        let left = || end.saturating_duration_since(Instant::now());
        let is_used = |it: &&Cluster| it.uses() > 0;
        while let Some(cluster) = clusters.iter().find(is_used) {
            if left().is_zero() {
                let (address, uses) = (cluster.address(), cluster.uses());
                return Err(format!(
                    "client {address}: images not closed within {} s: {uses}",
                    timeout.as_secs()
                ));
            }
            std::thread::sleep(POLL);
        }
        if let Some(failed) = clusters.iter().find(|it| it.has_failed_to_close()) {
            let address = failed.address();
            return Err(format!(
                "client {address}: an image was not closed properly"
            ));
        }
        drop(clusters);
        for address in &self.inner.addresses {
            if !wait_closed(Some(&format!("client {address}")), left()) {
                return Err(format!("client {address}: not disconnected in time"));
            }
        }
        Ok(())
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.inner.gate
    }

    /// The client with the fewest images. It counts as one while it is used.
    pub(super) fn cluster(&self) -> Option<Cluster> {
        let clusters = self.clusters();
        let fewest = clusters.iter().flatten().min_by_key(|it| it.uses());
        fewest.cloned()
    }

    fn clusters(&self) -> MutexGuard<'_, Option<Vec<Cluster>>> {
        let clusters = self.inner.clusters.lock();
        // A panic of a holder leaves nothing inconsistent.
        clusters.unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the client with that address was blocklisted for these.
    pub(super) fn has_fenced(&self, owner: &str) -> bool {
        self.inner.fenced.iter().any(|one| is_same(one, owner))
    }
}

/// How often it checks whether images are closed.
const POLL: Duration = Duration::from_millis(5);

/// Whether `owner`, one address, is among `addresses` of a client, such as
/// `[v2:10.0.0.1:0/7,v1:10.0.0.1:0/7]`.
fn is_same(addresses: &str, owner: &str) -> bool {
    let bare = |text: &str| {
        let text = text.trim_end_matches(']');
        let kind = |text: &str| {
            let kinds = ["v1:", "v2:", "any:"];
            let rest = kinds.iter().find_map(|kind| text.strip_prefix(kind));
            rest.map(str::to_owned)
        };
        let listed = text.strip_prefix('[').and_then(kind);
        listed
            .or_else(|| kind(text))
            .unwrap_or_else(|| text.to_owned())
    };
    let owners: Vec<_> = owner.split(',').map(bare).collect();
    addresses.split(',').any(|one| owners.contains(&bare(one)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pass_is_valid_in_its_period_only() {
        let gate = Gate::default();
        let before = gate.pass();
        assert!(!before.is_valid());
        gate.set(true);
        let (first, again) = (gate.pass(), gate.pass());
        assert!(first.is_valid() && again.is_valid() && !before.is_valid());
        gate.set(true);
        assert!(first.is_valid(), "no change");
        gate.set(false);
        gate.set(false);
        assert!(!first.is_valid() && !gate.pass().is_valid());
        gate.set(true);
        assert!(!first.is_valid() && gate.pass().is_valid());
    }

    #[test]
    fn owner_is_found_among_fenced_addresses() {
        let both = "[v2:10.0.0.1:0/7,v1:10.0.0.1:0/7]";
        for (addresses, owner, same) in [
            (both, "10.0.0.1:0/7", true),
            (both, "v1:10.0.0.1:0/7", true),
            ("10.0.0.1:0/7", "10.0.0.1:0/7", true),
            ("10.0.0.1:0/7", both, true),
            (both, "10.0.0.1:0/77", false),
            (both, "10.0.0.2:0/7", false),
            (both, "", false),
            ("v1:[fd00::1]:0/7", "[fd00::1]:0/7", true),
        ] {
            assert_eq!(is_same(addresses, owner), same, "{addresses} {owner}");
        }
    }
}
