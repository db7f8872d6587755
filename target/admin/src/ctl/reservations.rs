//! `ctl reservations`: shows, removes and moves reservations of hosts.

use std::path::PathBuf;

use axum::http::Method;
use clap::{Args, Subcommand};
use nvmeof_target_api::{
    ClearReservationsIn, ImportReservationsIn, NamespaceReservationsOut, RegistrantOut,
    ReservationHost, ReservationsOut,
};
use nvmeof_wire::text::Escaped;
use serde_json::json;

use super::print::{self, Lines};
use super::{Ctl, Failed, Format, read};

/// Reservations of hosts.
#[derive(Debug, Args)]
pub(super) struct OfReservations {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show registered hosts, reservations and the last preemption (default).
    Show,
    /// Remove all registrations and the reservation of a namespace.
    ///
    /// A host that was fenced can use the namespace again afterwards. Make sure that it is off, or
    /// has no data of the namespace in its caches.
    Clear(Namespace),
    /// Print the reservations of a namespace as JSON, for `import`.
    Export(Namespace),
    /// Give a namespace without registered hosts what `export` printed.
    ///
    /// No host may be connected to the subsystem meanwhile. The last preemption is not imported,
    /// and the reservation counts as held since now.
    Import {
        #[command(flatten)]
        namespace: Namespace,
        /// File that `export` wrote, or - for standard input.
        file: PathBuf,
    },
}

/// A namespace.
#[derive(Clone, Debug, Args)]
struct Namespace {
    /// NQN of the subsystem.
    #[arg(long, value_name = "NQN")]
    subsystem: String,
    /// NSID of the namespace.
    nsid: u32,
}

impl Ctl {
    pub(super) fn reservations(&self, it: &OfReservations) -> Result<(), Failed> {
        match &it.what {
            None | Some(What::Show) => self.get("/v1/reservations", text),
            Some(What::Clear(Namespace { subsystem, nsid })) => {
                let (subsystem, nsid) = (subsystem.clone(), *nsid);
                let cleared = format!(
                    "cleared the reservations of namespace {nsid} of {}\n",
                    Escaped(&subsystem)
                );
                let body = json!(ClearReservationsIn { subsystem, nsid });
                self.post("/v1/reservations/clear", &body, |_: &ReservationsOut| {
                    cleared
                })
            }
            Some(What::Export(namespace)) => self.export(namespace),
            Some(What::Import { namespace, file }) => {
                let Namespace { subsystem, nsid } = namespace.clone();
                let text = read(file)?;
                let reservations = serde_json::from_str(&text).map_err(|error| Failed::File {
                    file: file.clone(),
                    why: format!("is not what `ctl reservations export` prints: {error}"),
                })?;
                let imported = format!(
                    "imported the reservations of namespace {nsid} of {}\n",
                    Escaped(&subsystem)
                );
                let body = json!(ImportReservationsIn {
                    subsystem,
                    nsid,
                    reservations
                });
                self.post("/v1/reservations/import", &body, |_: &ReservationsOut| {
                    imported
                })
            }
        }
    }

    /// Prints the reservations of one namespace as JSON, whatever the output format.
    fn export(&self, Namespace { subsystem, nsid }: &Namespace) -> Result<(), Failed> {
        let reply = self.caller().ask(Method::GET, "/v1/reservations", None)?;
        let all: ReservationsOut = self.parsed(reply)?;
        let its =
            |one: &&NamespaceReservationsOut| one.subsystem == *subsystem && one.nsid == *nsid;
        let Some(one) = all.namespaces.iter().find(its) else {
            return Err(Failed::Usage(format!(
                "namespace {nsid} of {}: no host has registered; `ctl reservations` lists \
                 namespaces with reservations",
                Escaped(subsystem)
            )));
        };
        let document = json!(one);
        match self.output_format {
            Format::Json => print::out_json(&document),
            Format::Normal => {
                let text = serde_json::to_string_pretty(&document).unwrap_or_default();
                print::out(&format!("{text}\n"));
            }
        }
        Ok(())
    }
}

fn text(all: &ReservationsOut) -> String {
    let mut lines = Lines::default();
    let namespaces = &all.namespaces;
    for one in &all.unknown {
        let text = format!(
            "UNKNOWN: namespace {} of {}: {}",
            one.nsid,
            Escaped(&one.subsystem),
            one.why
        );
        lines.add(0, &text);
    }
    if namespaces.is_empty() && all.unknown.is_empty() {
        lines.add(0, "no host has registered with a namespace");
    }
    for of_subsystem in namespaces.chunk_by(|a, b| a.subsystem == b.subsystem) {
        if let Some(first) = of_subsystem.first() {
            lines.add(0, &format!("subsystem {}", Escaped(&first.subsystem)));
        }
        of_subsystem
            .iter()
            .for_each(|one| add_namespace(&mut lines, one));
    }
    lines.text
}

fn add_namespace(lines: &mut Lines, one: &NamespaceReservationsOut) {
    let held = match &one.reservation {
        Some(held) => format!(
            "{} since {}",
            Escaped(&held.type_name),
            Escaped(&held.since)
        ),
        None => "no reservation".to_owned(),
    };
    let kept = match one.persistent {
        true => "persistent",
        false => "ends with a restart of the target",
    };
    lines.add(2, &format!("namespace {}: {held}, {kept}", one.nsid));
    if one.registrants.is_empty() {
        lines.add(4, "no host is registered");
    }
    for registrant in &one.registrants {
        let RegistrantOut {
            host_id,
            host,
            key,
            holder,
        } = registrant;
        let role = if *holder { "holder" } else { "registrant" };
        let name = name(host.as_deref(), host_id);
        lines.add(4, &format!("{role} {name}, key {}", Escaped(key)));
    }
    if let Some(it) = &one.preemption {
        let its = it.preempted.iter();
        let its: Vec<_> = its.map(name_of).collect();
        let text = format!(
            "preempted {}: {} by {}",
            Escaped(&it.at),
            its.join(" and "),
            name_of(&it.by)
        );
        lines.add(4, &text);
    }
}

fn name_of(host: &ReservationHost) -> String {
    name(host.host.as_deref(), &host.host_id)
}

/// The NQN of the host, or its identifier.
fn name(host: Option<&str>, host_id: &str) -> String {
    match host {
        Some(nqn) => Escaped(nqn).to_string(),
        None => format!("host identifier {}", Escaped(host_id)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn text_names_holder_registrants_and_preemption() {
        let id = |number: u32| format!("00000000-0000-0000-0000-00000000000{number}");
        let registrant = |number: u32, holder: bool| {
            json!({"host_id": id(number), "host": format!("nqn.2026-11.org.example:host-{number}"),
                "key": format!("{number:#018x}"), "holder": holder})
        };
        let host = |number: u32| json!({"host_id": id(number), "host": null});
        let all = json!({"namespaces": [{
            "subsystem": "nqn.2026-11.org.example:disk", "nsid": 1, "uuid": id(9),
            "generation": 4, "persistent": true,
            "reservation": {"type": 1, "type_name": "Write Exclusive",
                "since": "2026-11-27T10:00:00Z"},
            "registrants": [registrant(1, true), registrant(2, false)],
            "preemption": {"at": "2026-11-27T10:00:00Z", "by": host(1),
                "preempted": [host(3)]},
        }]});
        let text = text(&serde_json::from_value(all).unwrap());
        let expected = "\
subsystem nqn.2026-11.org.example:disk
  namespace 1: Write Exclusive since 2026-11-27T10:00:00Z, persistent
    holder nqn.2026-11.org.example:host-1, key 0x0000000000000001
    registrant nqn.2026-11.org.example:host-2, key 0x0000000000000002
    preempted 2026-11-27T10:00:00Z: host identifier
      00000000-0000-0000-0000-000000000003 by host identifier
      00000000-0000-0000-0000-000000000001
";
        assert_eq!(text, expected);
        let unknown = json!({"namespaces": [], "unknown": [
            {"subsystem": "nqn", "nsid": 3, "why": "damaged; move it away"}]});
        let unknown = super::text(&serde_json::from_value(unknown).unwrap());
        assert_eq!(
            unknown,
            "UNKNOWN: namespace 3 of nqn: damaged; move it away\n"
        );
        let none = super::text(&ReservationsOut::default());
        assert_eq!(none, "no host has registered with a namespace\n");
    }
}
