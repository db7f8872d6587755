//! The target as a whole: the interface of the engine.

mod host_settings;
mod stopping;

use std::sync::Arc;
use std::time::Duration;

use nvmeof_wire::cm::{Accept, Reject, RejectStatus, Request as CmRequest};

pub use host_settings::SettingsSave;

use crate::controller::instance::Incarnations;
use crate::quota::{PeerUsage, QuotaGuard};
use crate::shared::Shared;
use crate::{
    IncarnationKey, Limit, LimitCounters, Limits, Locks, Model, OtherGateways, Queue, Writers,
};

/// A target. Clones share their state; each reactor has one.
#[derive(Clone, Debug)]
pub struct Target {
    pub(crate) shared: Arc<Shared>,
}

/// A connection in the quota of its port, until it is dropped.
#[derive(Debug)]
pub struct PortQuotaGuard {
    _guard: QuotaGuard,
}

/// A connection request is rejected.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The private data of the reject, for the host.
    pub reject: Reject,
    /// Cause and expected value, for the log.
    pub cause: String,
}

impl Target {
    /// Serves `model`.
    #[must_use]
    pub fn new(model: Model) -> Self {
        Self::with_incarnations(model, None)
    }

    /// Serves `model`. With a `key`, a Cross-Controller Reset of a controller of a predecessor
    /// process succeeds immediately; see [`IncarnationKey`] for what its holder promises.
    #[must_use]
    pub fn with_incarnations(model: Model, key: Option<IncarnationKey>) -> Self {
        Self {
            shared: Arc::new(Shared::new(model, Incarnations::new(key))),
        }
    }

    /// Hosts may have lost controllers of other gateways. Has no effect the second time.
    pub fn set_other_gateways(&self, gateways: Arc<dyn OtherGateways>) {
        // It was set before.
        let _ = self.shared.other_gateways.set(gateways);
    }

    /// The current model.
    #[must_use]
    pub fn model(&self) -> Arc<Model> {
        Arc::clone(&self.shared.served().model)
    }

    /// The limits, which never change.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// The range locks, which all reactors share.
    #[must_use]
    pub fn locks(&self) -> &Locks {
        &self.shared.locks
    }

    /// The hosts that wrote to a storage, which all reactors share.
    #[must_use]
    pub fn writers(&self) -> &Writers {
        &self.shared.writers
    }

    /// Number of connected controllers.
    #[must_use]
    pub fn controllers(&self) -> usize {
        self.shared.registry.len()
    }

    /// Accepts a connection request with the private data of the host. Returns a queue,
    /// which is not connected to a controller yet, and the private data of the accept.
    ///
    /// # Errors
    /// [`Refusal`] with the private data of the reject.
    pub fn queue(&self, private_data: &[u8], now: Duration) -> Result<(Queue, Accept), Refusal> {
        let request = CmRequest::parse(private_data).map_err(|status| {
            let cause = match status {
                RejectStatus::INVALID_LENGTH => format!(
                    "received {} bytes of private data, expected at least 32",
                    private_data.len()
                ),
                _ => "the private data has an unknown record format, expected 0".to_owned(),
            };
            refusal(status, cause)
        })?;
        let limits = self.limits();
        let qid = request.qid.get();
        if qid > limits.io_queues {
            return Err(refusal(
                RejectStatus::INVALID_QID,
                format!(
                    "queue {qid} was requested, expected 0 to {}",
                    limits.io_queues
                ),
            ));
        }
        let entries = entries(&request, limits)?;
        let queue = Queue::new(Arc::clone(&self.shared), qid, entries, now);
        Ok((queue, Accept::new(entries)))
    }

    /// Counts how often peers reached limits.
    #[must_use]
    pub fn limit_counters(&self) -> &LimitCounters {
        &self.shared.limit_counters
    }

    /// Adds a connection to the quota of the port with this name.
    ///
    /// # Errors
    /// [`Refusal`] if the port has reached its limit.
    pub fn port_quota(&self, port: &str) -> Result<PortQuotaGuard, Refusal> {
        let ports = self.shared.port_count();
        let most = self.limits().port_connections.with_ports(ports);
        let fits = |taken: PeerUsage| (taken.count <= most).then_some(()).ok_or(());
        let taken = self.shared.ports.take(port, 0, fits);
        taken
            .map(|guard| PortQuotaGuard { _guard: guard })
            .map_err(|()| {
                self.limit_counters().add(Limit::PortConnections);
                Self::no_room(format!(
                    "port {port} has {most} connections, which is its limit; raise \
                     limits.port_connections"
                ))
            })
    }

    /// Refuses a connection whose host accepts no RDMA Reads.
    #[must_use]
    pub fn no_reads() -> Refusal {
        refusal(
            RejectStatus::INVALID_IRD,
            "the host accepts no RDMA Reads (its IRD is 0), which writes require; expected 1 or \
             more"
                .to_owned(),
        )
    }

    /// Refuses a connection for lack of resources.
    #[must_use]
    pub fn no_room(cause: String) -> Refusal {
        refusal(RejectStatus::NO_RESOURCES, cause)
    }
}

/// Entries of the submission queue, which is the number of receives to post.
fn entries(request: &CmRequest, limits: &Limits) -> Result<u16, Refusal> {
    let max = if request.qid.get() == 0 {
        Limits::ADMIN_DEPTH
    } else {
        limits.queue_depth
    };
    let hsqsize = request.hsqsize.get();
    // Without enough receives the connection would break later, so refuse it now.
    // HSQSIZE is zero-based, and "a queue size of 0 is not valid" (Base 2.1, 3.3.3: at
    // least two entries).
    let entries = hsqsize
        .checked_add(1)
        .filter(|entries| (2..=max).contains(entries))
        .ok_or_else(|| {
            refusal(
                RejectStatus::INVALID_HSQSIZE,
                format!("HSQSIZE is {hsqsize}, expected 1 to {}", max - 1),
            )
        })?;
    if request.hrqsize.get() == 0 {
        return Err(refusal(
            RejectStatus::INVALID_HRQSIZE,
            "HRQSIZE is 0: no response could be received".to_owned(),
        ));
    }
    Ok(entries)
}

fn refusal(status: RejectStatus, cause: String) -> Refusal {
    Refusal {
        reject: Reject::new(status),
        cause,
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.reject.status, self.cause)
    }
}
