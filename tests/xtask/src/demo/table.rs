//! The result table of the demo, and the numbers in it.

use std::fmt;

/// Rows of three columns: what, result, details.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: Vec<[String; 3]>,
}

impl Table {
    pub(super) fn row(&mut self, what: &str, result: &str, details: &str) {
        self.rows.push([what, result, details].map(str::to_owned));
    }
}

impl fmt::Display for Table {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for [what, result, details] in &self.rows {
            let line = format!("{what:22} {result:>14}  {details}");
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// The number after a key in JSON text where that key stands once.
pub(super) fn number(json: &str, key: &str) -> Option<f64> {
    let (_, rest) = json.split_once(&format!("\"{key}\""))?;
    let value = rest.trim_start().strip_prefix(':')?.trim_start();
    let end = value.find(|letter: char| !matches!(letter, '0'..='9' | '.' | '-' | '+' | 'e' | 'E'));
    value.get(..end.unwrap_or(value.len()))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_report() {
        let json = r#"{"iops": 1234.5, "lat_ns": {"p99":77 , "p99_9" : 1e6}, "rw": "x"}"#;
        assert_eq!(number(json, "iops"), Some(1234.5));
        assert_eq!(number(json, "p99"), Some(77.0));
        assert_eq!(number(json, "p99_9"), Some(1e6));
        assert_eq!(number(json, "p50"), None);
        assert_eq!(number(json, "rw"), None);
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::default();
        table.row("read", "5 MiB/s", "equal");
        table.row("target", "stopped", "");
        assert_eq!(
            table.to_string(),
            "read                          5 MiB/s  equal\n\
             target                        stopped\n"
        );
    }
}
