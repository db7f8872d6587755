//! The table of instructions in `docs/performance.md`, generated from the baseline of the
//! guards.

/// The table is between these lines.
const BEGIN: &str = "<!-- made of tests/guards/instructions.txt: begin -->\n";
const END: &str = "<!-- made of tests/guards/instructions.txt: end -->";

/// Sides: the name in the document, and the prefix of the names of cases.
const SIDES: [(&str, &str); 6] = [
    ("target, software iWARP", "target"),
    ("initiator, software iWARP", "initiator"),
    ("target, with its sockets", "tcp-target"),
    ("initiator, with its sockets", "tcp-initiator"),
    ("target, shared memory", "shm-target"),
    ("initiator, shared memory", "shm-initiator"),
];
/// Suffixes of the names of cases, one for each column.
const COLUMNS: [&str; 4] = ["read-qd1", "write-qd1", "read-qd16", "write-qd16"];
/// The side with a goal for a deep queue, and the cases of a read and a write of it.
const DEEP: (&str, [&str; 2]) = (
    "target over shared memory",
    ["shm-target-read-qd128", "shm-target-write-qd128"],
);

/// `document` with the counts of `recorded` in its table.
///
/// # Errors
///
/// The document has no markers for the table, or a count is not recorded.
pub fn refreshed(document: &str, recorded: &str) -> Result<String, String> {
    let (before, rest) = document.split_once(BEGIN).ok_or("the table has no begin")?;
    let (_, after) = rest.split_once(END).ok_or("the table has no end")?;
    let mut table = String::from(
        "\n| side | read, depth 1 | write, depth 1 | read, depth 16 | write, depth 16 |\n\
         | --- | --- | --- | --- | --- |\n",
    );
    for (side, cases) in SIDES {
        let counts = COLUMNS.map(|column| count(recorded, &format!("{cases}-{column}")));
        let cells: Result<Vec<String>, String> = counts.into_iter().collect();
        table += &format!("| {side} | {} |\n", cells?.join(" | "));
    }
    let (side, [read, write]) = DEEP;
    let [read, write] = [count(recorded, read)?, count(recorded, write)?];
    table += "\nAt depth 128, ";
    table += &format!("the {side} has {read} for a read and {write} for a write.\n");
    Ok(format!("{before}{BEGIN}{table}\n{END}{after}"))
}

fn count(recorded: &str, case: &str) -> Result<String, String> {
    let mut lines = recorded.lines().map(str::split_whitespace);
    let line = lines.find_map(|mut words| (words.next() == Some(case)).then_some(words));
    let count = line.and_then(|mut words| words.next()?.parse().ok());
    count
        .map(with_commas)
        .ok_or_else(|| format!("no count of {case} is recorded"))
}

fn with_commas(count: u64) -> String {
    if count < 1000 {
        return count.to_string();
    }
    format!("{},{:03}", with_commas(count / 1000), count % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_grouped() {
        let texts = [0, 999, 1000, 12_034_567].map(with_commas);
        assert_eq!(texts, ["0", "999", "1,000", "12,034,567"]);
    }

    #[test]
    fn only_the_table_is_replaced() {
        let mut recorded = "# comment\ncompiler rustc 1\n".to_owned();
        for (_, cases) in SIDES {
            for column in COLUMNS {
                recorded += &format!("{cases}-{column}   1234  a reason\n");
            }
        }
        for case in DEEP.1 {
            recorded += &format!("{case}   1234  a reason\n");
        }
        let document = format!("before\n{BEGIN}old\n{END}\nafter\n");
        let new = refreshed(&document, &recorded).unwrap();
        assert!(new.starts_with(&format!("before\n{BEGIN}\n| side")));
        assert!(
            new.ends_with(&format!("1,234 for a write.\n\n{END}\nafter\n")),
            "{new}"
        );
        assert_eq!(refreshed(&new, &recorded).unwrap(), new);
        let less = recorded.replace("shm-target-read-qd16", "other");
        assert!(
            refreshed(&document, &less)
                .unwrap_err()
                .contains("shm-target-read-qd16")
        );
        assert!(refreshed("no table", &recorded).is_err());
    }
}
