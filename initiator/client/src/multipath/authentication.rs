//! Authentication of all paths again, with other keys.

use std::sync::Arc;

use nvmeof_initiator_core::dhchap::HostKeys;
use tokio::task::JoinSet;

use super::Multipath;
use super::connection::{Connection, ConnectionId};
use super::path::PathSlot;
use crate::error::{Error, MachineError};
use crate::options::ConnectOptions;

impl Multipath {
    /// Authenticates the queues of all connected paths again, with `keys`, which paths that are
    /// lost use when they are connected again. A path that is being connected meanwhile is
    /// authenticated with them as well. Calls go on meanwhile. While the targets have both the
    /// former key and the new one, no path is lost by this.
    ///
    /// # Errors
    /// The first error of a path, which may be its loss meanwhile. A path whose controller refuses
    /// the keys stays connected; some of its queues may use the new keys then, and it is connected
    /// again with the former ones. Paths that are lost keep the former keys as well. Keep both keys
    /// on the targets, and repeat the call.
    pub async fn reauthenticate(&self, keys: Arc<HostKeys>) -> Result<(), Error> {
        let _one_at_a_time = self.inner.authenticating.lock().await;
        let mut asked = Vec::new();
        let mut first = Ok(());
        loop {
            let found = self.not_asked(&asked, first.is_ok().then_some(&keys));
            if found.is_empty() {
                return first;
            }
            let mut all = JoinSet::new();
            for live in found {
                asked.push(live.id);
                let (at, controller) = (live.path, live.controller.clone());
                let keys = Arc::clone(&keys);
                all.spawn(async move { (at, controller.reauthenticate(Some(keys)).await) });
            }
            while let Some(ended) = all.join_next().await {
                let (at, result) = ended.map_err(MachineError::internal)?;
                if result.is_ok()
                    && let Some(path) = self.inner.lock().get_mut(at)
                {
                    path.options.keys = Some(Arc::clone(&keys));
                }
                first = first.and(result);
            }
        }
    }

    /// The connected paths that are not among `asked`. If there are none, all others are connected
    /// with `keys` from now on.
    fn not_asked(
        &self,
        asked: &[ConnectionId],
        keys: Option<&Arc<HostKeys>>,
    ) -> Vec<Arc<Connection>> {
        let mut paths = self.inner.lock();
        let live = paths.iter().filter_map(PathSlot::live);
        let found: Vec<_> = live
            .filter(|live| !asked.contains(&live.id))
            .map(Arc::clone)
            .collect();
        if found.is_empty()
            && let Some(keys) = keys
        {
            for path in paths.iter_mut() {
                path.options.keys = Some(Arc::clone(keys));
            }
        }
        found
    }
}

/// The keys of a path, if they were changed while it was being connected with `former`.
pub(super) fn changed_keys(now: &ConnectOptions, former: &ConnectOptions) -> Option<Arc<HostKeys>> {
    let keys = now.keys.as_ref()?;
    let is_same = former.keys.as_ref().is_some_and(|it| Arc::ptr_eq(it, keys));
    (!is_same).then(|| Arc::clone(keys))
}

/// Authenticates a new connection again, with the keys of its path.
pub(super) fn follow(connection: &Connection, keys: Arc<HostKeys>) {
    let controller = connection.controller.clone();
    tokio::spawn(async move {
        if let Err(error) = controller.reauthenticate(Some(keys)).await {
            tracing::warn!(
                addr = %controller.options().addr,
                error = error.cause(),
                "path connected with former keys not authenticated with the new ones"
            );
        }
    });
}
