//! Counting the commands of a queue by host and namespace.

use std::sync::Arc;
use std::time::Duration;

use nvmeof_wire::opcode::io;
use nvmeof_wire::{Nqn, Status};

use crate::metrics::{Class, LatencySample, MetricsRegistry, Operation, ReactorMetrics, Tally};
use crate::{Data, Remote, Request};

/// Counts the commands of one queue, from when it is connected.
#[derive(Debug, Default)]
pub(super) struct Meter {
    reactor_metrics: ReactorMetrics,
    joined: Option<Joined>,
    /// Counters of the namespaces that commands have used, by NSID; 0 stands for all
    /// others.
    namespaces: Vec<(u32, Arc<Tally>)>,
    /// Index of the last one used.
    last: usize,
}

#[derive(Debug)]
struct Joined {
    subsystem: Nqn,
    name: Nqn,
    host: Arc<Tally>,
}

impl Meter {
    /// Sets the metrics of the reactor.
    pub(super) fn count_in(&mut self, reactor_metrics: &ReactorMetrics) {
        self.reactor_metrics = reactor_metrics.clone();
    }

    /// A host connected the queue to a subsystem.
    pub(super) fn join(&mut self, host: Nqn, subsystem: Nqn) {
        self.joined = Some(Joined {
            subsystem,
            name: host,
            host: self.reactor_metrics.host(host, subsystem),
        });
    }

    /// The queue pair ended with an error of RDMA or of the network.
    pub(super) fn count_connection_error(&self) {
        if let Some(joined) = &self.joined {
            joined.host.count_connection_error();
        }
    }

    /// A command of an I/O queue completed. `has` returns whether the subsystem has a
    /// namespace.
    #[inline]
    pub(super) fn io(
        &mut self,
        request: &Request,
        status: Status,
        took: Duration,
        has: impl Fn(u32) -> bool,
    ) {
        let took = LatencySample::new(took);
        // Almost always a read or write of the same namespace as before.
        let class = match request.opcode {
            io::READ => Class::Read,
            io::WRITE => Class::Write,
            _ => return self.any(request, status, took, has),
        };
        match (&self.joined, self.namespaces.get(self.last)) {
            (Some(joined), Some((nsid, tally))) if *nsid == request.nsid && status.is_success() => {
                let bytes = moved(request);
                joined.host.moved(class, bytes, took);
                tally.moved(class, bytes, took);
            }
            _ => self.any(request, status, took, has),
        }
    }

    #[cold]
    fn any(
        &mut self,
        request: &Request,
        status: Status,
        took: LatencySample,
        has: impl Fn(u32) -> bool,
    ) {
        let operation = Operation::of_io(request.opcode);
        // A Fabrics command has its type in the bytes of the NSID.
        let in_namespace = operation != Operation::Fabrics;
        if in_namespace {
            self.select_namespace(request.nsid, has);
        }
        let Some(joined) = &self.joined else {
            return;
        };
        let tally = self.namespaces.get(self.last).filter(|_| in_namespace);
        let tallies = tally
            .map(|(_, tally)| tally)
            .into_iter()
            .chain([&joined.host]);
        for tally in tallies {
            match operation.class() {
                Some(class @ (Class::Read | Class::Write)) if status.is_success() => {
                    tally.moved(class, moved(request), took);
                }
                _ => {
                    tally.count(operation, status, took);
                    if operation == Operation::Compare && status.is_success() {
                        tally.touched(operation, moved(request));
                    }
                }
            }
        }
    }

    /// A command without data transfer read or wrote `bytes` of a namespace.
    #[cold]
    pub(super) fn count_local(
        &mut self,
        operation: Operation,
        nsid: u32,
        bytes: u64,
        has: impl Fn(u32) -> bool,
    ) {
        self.select_namespace(nsid, has);
        if let Some((_, tally)) = self.namespaces.get(self.last) {
            tally.touched(operation, bytes);
        }
    }

    /// The counters of all reactors.
    pub(super) fn metrics_registry(&self) -> &MetricsRegistry {
        self.reactor_metrics.metrics_registry()
    }

    /// A command of any other queue completed.
    pub(super) fn admin(&self, request: &Request, status: Status) {
        if let Some(joined) = &self.joined {
            let operation = Operation::of_admin(request.opcode);
            joined
                .host
                .count(operation, status, LatencySample::new(Duration::ZERO));
        }
    }

    /// Selects the counters of namespace `nsid`, or those of 0 if it does not exist.
    fn select_namespace(&mut self, nsid: u32, has: impl Fn(u32) -> bool) {
        let find = |all: &[(u32, Arc<Tally>)], nsid| all.binary_search_by_key(&nsid, |one| one.0);
        let at = find(&self.namespaces, nsid).or_else(|free| {
            if has(nsid) {
                return Err((nsid, free));
            }
            find(&self.namespaces, 0).map_err(|free| (0, free))
        });
        self.last = at.unwrap_or_else(|(nsid, free)| {
            let subsystem = self.joined.as_ref().map(|joined| joined.subsystem);
            let tally = subsystem.map(|subsystem| self.reactor_metrics.namespace(subsystem, nsid));
            self.namespaces
                .insert(free, (nsid, tally.unwrap_or_default()));
            free
        });
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Some(joined) = &self.joined {
            self.reactor_metrics.left(joined.name, joined.subsystem);
        }
    }
}

/// Bytes of data that a command transferred.
#[inline]
fn moved(request: &Request) -> u64 {
    match request.data() {
        Data::Remote(Remote { len, .. }) | Data::List { len, .. } => (*len).into(),
        Data::Capsule(range) => u64::try_from(range.len()).unwrap_or(0),
        Data::None => 0,
    }
}
