//! Busy time of our target, from its metrics.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::Trouble;

/// Seconds for which the reactors have worked.
pub(crate) fn time(control: &Path) -> Result<f64, Trouble> {
    let ask = || {
        let mut stream = UnixStream::connect(control)?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map(|_| text)
    };
    let text = ask().map_err(|error| Trouble::file("read metrics of", control, &error))?;
    of(&text).ok_or_else(|| Trouble::Failed(format!("the target has no time of reactors:\n{text}")))
}

fn of(metrics: &str) -> Option<f64> {
    let mut lines = metrics.lines().filter(|line| {
        line.starts_with("nvmeof_target_reactor_time_seconds_total{")
            && line.contains("state=\"working\"")
    });
    let time = |line: &str| line.rsplit(' ').next()?.parse::<f64>().ok();
    lines.try_fold(None, |sum, line| {
        Some(Some(sum.unwrap_or(0.0) + time(line)?))
    })?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn working_time_of_all_reactors_counts() {
        let text = "# TYPE nvmeof_target_reactor_time_seconds counter\n\
             nvmeof_target_reactor_time_seconds_total{reactor=\"0\",state=\"working\"} 1.5\n\
             nvmeof_target_reactor_time_seconds_total{reactor=\"0\",state=\"polling\"} 9.0\n\
             nvmeof_target_reactor_time_seconds_total{reactor=\"1\",state=\"working\"} 2.0\n";
        assert_eq!(of(text), Some(3.5));
        assert_eq!(of("nothing"), None);
    }
}
