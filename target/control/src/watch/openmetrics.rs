//! The snapshot as OpenMetrics text, which Prometheus reads.

use std::fmt::{Display, Error};

use nvmeof_wire::text::Escaped;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, MetricEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use nvmeof_target_api::Latency;

use nvmeof_target_api::{Counts, Descriptors, GroupState, NamespaceState, ReactorState, Snapshot};

/// The beginning of every name.
const PREFIX: &str = "nvmeof_target";

/// As OpenMetrics text (version 1.0), of the media type `application/openmetrics-text`.
pub(super) fn to_openmetrics(snapshot: &Snapshot) -> String {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(Families(snapshot.clone())));
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = text::encode(&mut text, &registry);
    text
}

/// All metric families, in order.
#[derive(Debug)]
struct Families(Snapshot);

/// One label: its name and its value.
type Label = (&'static str, String);

/// A value with its labels.
type Sample<T> = (Vec<Label>, T);

/// Name, help and unit of a family.
struct Family {
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
}

impl Collector for Families {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut out = MetricsWriter(encoder);
        let snapshot = &self.0;
        out.target(snapshot)?;
        out.subsystems(snapshot)?;
        out.namespaces(snapshot)?;
        out.hosts(snapshot)?;
        out.authentications(snapshot)?;
        out.ha(snapshot)?;
        out.reactors(snapshot)?;
        out.connections(snapshot)
    }
}

struct MetricsWriter<'a>(DescriptorEncoder<'a>);

/// Commands of a namespace, a host or a reactor, with its labels.
type LabelledCounts<'a> = [(Vec<Label>, &'a Counts)];

impl MetricsWriter<'_> {
    fn target(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        let version = label("version", &snapshot.version);
        self.gauges(
            "info",
            "Version of the target, in a label; always 1",
            None,
            [(vec![version], 1.0)],
        )?;
        self.gauges(
            "start_time",
            "Start time of the target, in seconds since 1970-01-01 UTC",
            Some(Unit::Seconds),
            [(vec![], snapshot.started)],
        )?;
        self.gauges(
            "controllers",
            "Controllers that hosts have connected",
            None,
            [(vec![], count(snapshot.controllers))],
        )?;
        self.gauges(
            "lent_memory",
            "Memory lent by hosts on this machine that the target has mapped",
            Some(Unit::Bytes),
            [(vec![], count(snapshot.lent_memory))],
        )?;
        let Descriptors { open, limit } = snapshot.descriptors;
        let descriptors = [("open", open), ("limit", limit)];
        self.gauges(
            "file_descriptors",
            "File descriptors of the process: open, and their limit",
            None,
            descriptors.map(|(kind, n)| (vec![label("kind", &kind)], count(n))),
        )?;
        let groups = snapshot.groups.iter().flat_map(|one| {
            let labels = [label("port", &one.port), label("group", &one.group)];
            states(&labels, &GroupState::STATES, &one.state)
        });
        self.gauges(
            "ana_state",
            "ANA state of a group on a port: 1 for the present state, 0 for others",
            None,
            groups,
        )?;
        let waiting = snapshot.waiting.iter().map(|one| {
            let labels = vec![
                label("kind", &one.kind),
                label("name", &one.name),
                label("reason", &one.reason),
            ];
            (labels, 1.0)
        });
        self.gauges(
            "waiting",
            "1 for each namespace, port, listener or key file of a host (`host_key`) that is \
             configured and not served yet",
            None,
            waiting,
        )?;
        let limits = snapshot.limits.iter();
        self.counters(
            "limit_hits",
            "Times that peers reached a limit, by its configuration key",
            limits.map(|(key, hits)| (vec![label("limit", key)], *hits)),
        )
    }

    fn namespaces(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        let all = snapshot.namespaces.iter();
        let labelled: Vec<_> = all
            .map(|one| {
                let labels = vec![label("subsystem", &one.subsystem), label("nsid", &one.nsid)];
                (labels, one)
            })
            .collect();
        let existing = labelled.iter().filter(|(_, one)| one.nsid > 0);
        self.gauges(
            "namespace_size",
            "Size of a namespace; not reported while it is unknown, as of a disabled one",
            Some(Unit::Bytes),
            existing
                .clone()
                .filter(|(_, one)| one.bytes > 0)
                .map(|(labels, one)| (labels.clone(), whole(one.bytes))),
        )?;
        self.gauges(
            "namespace_state",
            "State of a namespace: 1 for the present state, 0 for others; faulted: its backing \
             store became unavailable; waiting: it was unavailable at the start",
            None,
            existing
                .clone()
                .flat_map(|(labels, one)| states(labels, &NamespaceState::STATES, &one.state)),
        )?;
        self.gauges(
            "namespace_unlinked",
            "1 if the file that is served was deleted, renamed or replaced, otherwise 0",
            None,
            existing
                .clone()
                .map(|(labels, one)| (labels.clone(), f64::from(u8::from(one.unlinked)))),
        )?;
        self.gauges(
            "namespace_ana_group",
            "ANA group of a namespace; ana_state reports its state",
            None,
            existing
                .clone()
                .map(|(labels, one)| (labels.clone(), f64::from(one.ana_group))),
        )?;
        self.counters(
            "namespace_faults",
            "Times that the backing store of a namespace became unavailable, by cause",
            existing.flat_map(|(labels, one)| {
                let faults = one.faults.iter();
                faults.map(|(cause, n)| (and(labels, label("cause", cause)), *n))
            }),
        )?;
        self.gauges(
            "namespace_commands_outstanding",
            "Commands in flight, by namespace; nsid 0: for no namespace of the subsystem, or all",
            None,
            each(&labelled, |one| count(one.commands)),
        )?;
        self.reservations(&labelled)?;
        let of: Vec<_> = each(&labelled, |one| &one.counts).collect();
        self.counts(&NAMESPACE, &of)
    }

    fn reservations(&mut self, labelled: &[(Vec<Label>, &NamespaceState)]) -> Result<(), Error> {
        let existing = labelled.iter().filter(|(_, one)| one.nsid > 0);
        self.gauges(
            "namespace_registrants",
            "Hosts that are registered with a namespace, for reservations",
            None,
            existing
                .clone()
                .map(|(labels, one)| (labels.clone(), count(one.registrants))),
        )?;
        self.gauges(
            "namespace_reservation",
            "Type of the reservation of a namespace, 1 to 6; 0: none is held",
            None,
            existing.map(|(labels, one)| (labels.clone(), f64::from(one.reservation))),
        )
    }

    fn subsystems(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        let all = snapshot.subsystems.iter();
        let labelled: Vec<_> = all
            .map(|one| (vec![label("subsystem", &one.subsystem)], one))
            .collect();
        self.gauges(
            "subsystem_hosts",
            "Hosts that are connected to a subsystem",
            None,
            each(&labelled, |one| count(one.hosts)),
        )?;
        self.gauges(
            "subsystem_queues",
            "Queue pairs of a subsystem, including admin queues",
            None,
            each(&labelled, |one| count(one.queues)),
        )?;
        self.gauges(
            "subsystem_commands_outstanding",
            "Commands in flight, by subsystem",
            None,
            each(&labelled, |one| count(one.commands)),
        )?;
        self.counters(
            "subsystem_rdma_errors",
            "Queue pairs of a subsystem that ended with an RDMA or network error",
            each(&labelled, |one| one.rdma_errors),
        )?;
        let of: Vec<_> = each(&labelled, |one| &one.counts).collect();
        self.counts(&SUBSYSTEM, &of)
    }

    fn hosts(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        let all = snapshot.hosts.iter();
        let labelled: Vec<_> = all
            .map(|one| {
                (
                    vec![label("host", &one.host), label("subsystem", &one.subsystem)],
                    one,
                )
            })
            .collect();
        self.gauges(
            "host_connected",
            "1 if a host is connected to the subsystem, otherwise 0",
            None,
            each(&labelled, |one| f64::from(u8::from(one.connected))),
        )?;
        self.gauges(
            "host_queues",
            "Queue pairs of a host, including admin queues",
            None,
            each(&labelled, |one| count(one.queues)),
        )?;
        self.gauges(
            "host_commands_outstanding",
            "Commands in flight, by host",
            None,
            each(&labelled, |one| count(one.commands)),
        )?;
        self.counters(
            "host_rdma_errors",
            "Queue pairs of a host that ended with an RDMA or network error",
            each(&labelled, |one| one.rdma_errors),
        )?;
        let of: Vec<_> = each(&labelled, |one| &one.counts).collect();
        self.counts(&HOST, &of)
    }

    fn authentications(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        let all = snapshot.authentications.iter();
        self.counters(
            "authentications",
            "Authentications of hosts that ended, by outcome",
            all.map(|(outcome, n)| (vec![label("outcome", outcome)], *n)),
        )?;
        let hosts = snapshot.host_authentications.iter().flat_map(|one| {
            let outcomes = one.outcomes.iter();
            outcomes.map(|(outcome, n)| {
                let labels = vec![label("host", &one.host), label("outcome", outcome)];
                (labels, *n)
            })
        });
        self.counters(
            "host_authentications",
            "Authentications of each host that has a key, by outcome",
            hosts,
        )?;
        let controllers = snapshot.controllers_by_key.iter();
        self.gauges(
            "controllers_by_key",
            "Controllers by the key with which their host authenticated; none: it did not",
            None,
            controllers.map(|(key, n)| (vec![label("key", key)], count(*n))),
        )
    }

    fn ha(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        let gauge = |is: bool| f64::from(u8::from(is));
        let ha = snapshot.ha.iter();
        self.gauges(
            "ha_member",
            "1 if this gateway takes part in high availability, otherwise 0",
            None,
            ha.clone().map(|it| (vec![], gauge(it.member))),
        )?;
        let groups: Vec<_> = ha
            .flat_map(|it| &it.groups)
            .map(|one| (vec![label("group", &one.group)], one))
            .collect();
        self.gauges(
            "ha_group_owned",
            "1 if this gateway owns the ANA group by the record, otherwise 0",
            None,
            each(&groups, |one| gauge(one.owned)),
        )?;
        self.gauges(
            "ha_group_served",
            "1 if this gateway serves the ANA group, otherwise 0",
            None,
            each(&groups, |one| gauge(one.served)),
        )?;
        self.gauges(
            "ha_group_epoch",
            "Epoch of the ANA group, which grows with each takeover",
            None,
            each(&groups, |one| whole(one.epoch)),
        )
    }

    fn reactors(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        let reactors = &snapshot.reactors;
        let gauge = |value: fn(&ReactorState) -> f64| {
            let samples = reactors.iter();
            samples.map(move |one| (vec![label("reactor", &one.reactor)], value(one)))
        };
        self.gauges(
            "reactor_up",
            "1 if a reactor responds, 0 if it is stalled or has ended",
            None,
            gauge(|one| f64::from(u8::from(one.answered))),
        )?;
        let seconds = reactors.iter().flat_map(|one| {
            let times = one.seconds.iter();
            times.map(move |(state, time)| (with(one.reactor, "state", state), *time))
        });
        self.counters_in(
            Some(Unit::Seconds),
            "reactor_time",
            "Time of a reactor, by state: working, polling or asleep",
            seconds,
        )?;
        let iterations = reactors.iter().flat_map(|one| {
            let times = one.times.iter();
            times.map(move |(state, times)| (with(one.reactor, "state", state), *times))
        });
        self.counters(
            "reactor_turns",
            "Reactor iterations with work (working) and without (polling), and sleeps (asleep)",
            iterations,
        )?;
        self.gauges(
            "reactor_commands_outstanding",
            "Commands in flight, by reactor",
            None,
            gauge(|one| count(one.commands)),
        )?;
        let waiting = reactors.iter().flat_map(|one| {
            let both = [
                ("buffer", one.waiting_for_buffers),
                ("disk", one.waiting_for_disks),
            ];
            both.map(|(what, n)| (with(one.reactor, "for", what), count(n)))
        });
        self.gauges(
            "reactor_waiting",
            "Queues waiting for a buffer; backing store operations waiting for submission (disk)",
            None,
            waiting,
        )?;
        let free = reactors.iter().flat_map(|one| {
            let both = [("data", one.free_buffers), ("capsule", one.free_capsules)];
            both.map(|(what, n)| (with(one.reactor, "kind", what), count(n)))
        });
        self.gauges(
            "reactor_buffers_free",
            "Free buffers, for data or for command capsules",
            None,
            free,
        )?;
        let of: Vec<_> = reactors
            .iter()
            .map(|one| (vec![label("reactor", &one.reactor)], &one.counts))
            .collect();
        self.counts(&REACTOR, &of)
    }

    fn connections(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        let reactors = &snapshot.reactors;
        let queues = reactors.iter().flat_map(|one| {
            let all = one.queues.iter();
            all.map(move |(provider, n)| (with(one.reactor, "provider", provider), count(*n)))
        });
        self.gauges("connections", "Queue pairs, by provider", None, queues)?;
        let counter = |value: fn(&ReactorState) -> u64| {
            let samples = reactors.iter();
            samples.map(move |one| (vec![label("reactor", &one.reactor)], value(one)))
        };
        self.counters(
            "connections_accepted",
            "Connections accepted",
            counter(|one| one.accepted),
        )?;
        self.counters(
            "connections_rejected",
            "Connections rejected; the log names the reason",
            counter(|one| one.rejected),
        )?;
        self.counters(
            "commands_stalled",
            "Commands outstanding for more than 10 s; the log names them",
            counter(|one| one.stalled),
        )?;
        let closed = reactors.iter().flat_map(|one| {
            let all = one.closed.iter();
            all.map(move |(by, n)| (with(one.reactor, "reason", by), *n))
        });
        self.counters(
            "connections_closed",
            "Connections that ended, by reason",
            closed,
        )?;
        let errors = reactors.iter().flat_map(|one| {
            let all = one.rdma_errors.iter();
            all.map(move |(kind, n)| (with(one.reactor, "kind", kind), *n))
        });
        self.counters(
            "rdma_errors",
            "Connections that ended with an RDMA or network error, by kind",
            errors,
        )
    }

    /// Counts of commands, by the labels of each entry.
    fn counts(&mut self, names: &Names, all: &LabelledCounts<'_>) -> Result<(), Error> {
        let operations = all.iter().flat_map(|(labels, counts)| {
            let each = counts.operations.iter();
            each.map(|(name, n)| (and(labels, label("operation", name)), *n))
        });
        self.counters(
            names.commands,
            "Completed commands, including failed ones",
            operations,
        )?;
        let bytes = |value: fn(&Counts) -> u64| {
            all.iter()
                .map(move |(labels, counts)| (labels.clone(), value(counts)))
        };
        self.counters_in(
            Some(Unit::Bytes),
            names.read,
            "Bytes that Read commands transferred to hosts",
            bytes(|counts| counts.bytes_read),
        )?;
        self.counters_in(
            Some(Unit::Bytes),
            names.written,
            "Bytes that Write commands transferred from hosts",
            bytes(|counts| counts.bytes_written),
        )?;
        let errors = all.iter().flat_map(|(labels, counts)| {
            let each = counts.errors.iter();
            each.map(|one| {
                let mut labels = and(labels, label("status", &format!("{:#05x}", one.status)));
                labels.push(label("name", &one.name));
                (labels, one.count)
            })
        });
        self.counters(names.errors, "Commands that failed, by status", errors)?;
        let times = all.iter().flat_map(|(labels, counts)| {
            let each = counts.latency.iter();
            each.map(|(class, times)| (and(labels, label("class", class)), times))
        });
        self.histograms(
            names.duration,
            "Time from arrival to completion; 0 if both are in the same reactor iteration",
            times,
        )
    }

    fn counters(
        &mut self,
        name: &'static str,
        help: &'static str,
        samples: impl IntoIterator<Item = Sample<u64>>,
    ) -> Result<(), Error> {
        self.counters_in(None, name, help, samples)
    }

    fn counters_in<T: EncodeCounterValue>(
        &mut self,
        unit: Option<Unit>,
        name: &'static str,
        help: &'static str,
        samples: impl IntoIterator<Item = Sample<T>>,
    ) -> Result<(), Error> {
        let family = Family { name, help, unit };
        self.family(&family, MetricType::Counter, samples, &mut |out, value| {
            out.encode_counter::<Vec<Label>, _, u64>(value, None)
        })
    }

    fn gauges(
        &mut self,
        name: &'static str,
        help: &'static str,
        unit: Option<Unit>,
        samples: impl IntoIterator<Item = Sample<f64>>,
    ) -> Result<(), Error> {
        let family = Family { name, help, unit };
        self.family(&family, MetricType::Gauge, samples, &mut |out, value| {
            out.encode_gauge(value)
        })
    }

    fn histograms<'b>(
        &mut self,
        name: &'static str,
        help: &'static str,
        samples: impl IntoIterator<Item = Sample<&'b Latency>>,
    ) -> Result<(), Error> {
        let unit = Some(Unit::Seconds);
        let family = Family { name, help, unit };
        self.family(
            &family,
            MetricType::Histogram,
            samples,
            &mut |out, times| {
                let octaves = times.octaves().map(|(us, n)| (whole(us) / 1e6, n));
                let buckets: Vec<_> = octaves.chain([(f64::MAX, times.beyond())]).collect();
                let sum = whole(times.sum_ns) / 1e9;
                out.encode_histogram::<Vec<Label>>(sum, times.count(), &buckets, None)
            },
        )
    }

    /// One family. It is written without samples as well, so that its name is known.
    fn family<T>(
        &mut self,
        family: &Family,
        kind: MetricType,
        samples: impl IntoIterator<Item = Sample<T>>,
        encode: &mut dyn FnMut(&mut MetricEncoder<'_>, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Family { name, help, unit } = family;
        let mut out = self.0.encode_descriptor(name, help, unit.as_ref(), kind)?;
        for (labels, value) in samples {
            if labels.is_empty() {
                encode(&mut out, &value)?;
            } else {
                encode(&mut out.encode_family(&labels)?, &value)?;
            }
        }
        Ok(())
    }
}

/// Names of the families of commands.
struct Names {
    commands: &'static str,
    read: &'static str,
    written: &'static str,
    errors: &'static str,
    duration: &'static str,
}

const NAMESPACE: Names = Names {
    commands: "namespace_commands",
    read: "namespace_read",
    written: "namespace_written",
    errors: "namespace_errors",
    duration: "namespace_command_duration",
};
const SUBSYSTEM: Names = Names {
    commands: "subsystem_commands",
    read: "subsystem_read",
    written: "subsystem_written",
    errors: "subsystem_errors",
    duration: "subsystem_command_duration",
};
const HOST: Names = Names {
    commands: "host_commands",
    read: "host_read",
    written: "host_written",
    errors: "host_errors",
    duration: "host_command_duration",
};
const REACTOR: Names = Names {
    commands: "reactor_commands",
    read: "reactor_read",
    written: "reactor_written",
    errors: "reactor_errors",
    duration: "reactor_command_duration",
};

/// Host names come from hosts. Hidden characters are escaped as everywhere, so different names
/// have different labels. The encoder does not escape backslash, quote and line feed, as
/// OpenMetrics requires.
fn label(name: &'static str, value: &dyn Display) -> Label {
    let mut escaped = String::new();
    for c in Escaped(&value.to_string()).to_string().chars() {
        match c {
            '\\' => escaped.push_str("\\\\"),
            '"' => escaped.push_str("\\\""),
            '\n' => escaped.push_str("\\n"),
            c => escaped.push(c),
        }
    }
    (name, escaped)
}

fn with(reactor: usize, name: &'static str, value: &str) -> Vec<Label> {
    vec![label("reactor", &reactor), label(name, &value)]
}

/// A sample of each entry, with its labels.
fn each<'a, T, V>(
    labelled: &'a [(Vec<Label>, &'a T)],
    value: impl Fn(&'a T) -> V,
) -> impl Iterator<Item = Sample<V>> {
    let all = labelled.iter();
    all.map(move |(labels, one)| (labels.clone(), value(one)))
}

fn and(labels: &[Label], one: Label) -> Vec<Label> {
    let mut labels = labels.to_vec();
    labels.push(one);
    labels
}

/// A sample for each state: 1 for `now`, 0 for all others.
fn states(labels: &[Label], all: &[&str], now: &str) -> Vec<Sample<f64>> {
    let samples = all.iter().map(|state| {
        let value = f64::from(u8::from(*state == now));
        (and(labels, label("state", state)), value)
    });
    samples.collect()
}

#[allow(clippy::cast_precision_loss, reason = "gauges are floating point")]
fn whole(n: u64) -> f64 {
    n as f64
}

#[allow(clippy::cast_precision_loss, reason = "gauges are floating point")]
fn count(n: usize) -> f64 {
    n as f64
}
