//! The text format of Prometheus before OpenMetrics, version 0.0.4, which many tools still
//! request.
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>)

use std::fmt::Write;

use super::openmetrics::to_openmetrics;
use nvmeof_target_api::Snapshot;

/// As Prometheus text (version 0.0.4), of the media type `text/plain`.
pub(super) fn to_prometheus(snapshot: &Snapshot) -> String {
    of_openmetrics(&to_openmetrics(snapshot))
}

/// Counter families get the names of their samples; units and the end mark are dropped, which
/// version 0.0.4 does not have.
fn of_openmetrics(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut help = None;
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match [(); 4].map(|()| words.next().unwrap_or_default()) {
            // The name depends on the type, which follows.
            ["#", "HELP", _, words] => help = Some(words),
            ["#", "TYPE", name, kind] => {
                let suffix = if kind == "counter" { "_total" } else { "" };
                // Writing to a string does not fail.
                if let Some(words) = help.take() {
                    let _ = writeln!(plain, "# HELP {name}{suffix} {words}");
                }
                let _ = writeln!(plain, "# TYPE {name}{suffix} {kind}");
            }
            ["#", ..] => {}
            _ => {
                plain.push_str(line);
                plain.push('\n');
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_families_have_the_names_of_their_samples() {
        let openmetrics = "# HELP a_b Count.\n# TYPE a_b counter\n# UNIT a_b b\n\
                           a_b_total{c=\"d e\"} 1\n# HELP f Value.\n# TYPE f gauge\n\
                           f 2.0\n# EOF\n";
        let expected = "# HELP a_b_total Count.\n# TYPE a_b_total counter\n\
                        a_b_total{c=\"d e\"} 1\n# HELP f Value.\n# TYPE f gauge\nf 2.0\n";
        assert_eq!(of_openmetrics(openmetrics), expected);
    }
}
