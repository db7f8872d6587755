//! Converts the Markdown of manual pages to roff: headings, paragraphs, lists, code, links
//! and tables. A row of a table becomes an item: the first cell is the tag, the last one the
//! text, and the cells between them follow the tag.

/// The page of `text`; headings use the macro `heading` (`SH` or `SS`).
pub(crate) fn roff(text: &str, heading: &str) -> String {
    let mut page = Page::default();
    for line in text.lines() {
        page.line(line, heading);
    }
    page.close();
    page.out
}

/// The sections of a document, without the text before the first one.
pub(crate) fn sections(text: &str) -> &str {
    text.find("## ")
        .and_then(|at| text.get(at..))
        .unwrap_or_default()
}

/// The text below the heading `title`, up to the next one.
pub(crate) fn section<'a>(text: &'a str, title: &str) -> &'a str {
    let heading = format!("## {title}\n");
    let rest = text.split_once(&heading).map_or("", |(_, rest)| rest);
    rest.split("\n## ").next().unwrap_or_default()
}

/// The element that the previous lines belong to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Within {
    /// None: the next line of text starts a paragraph.
    #[default]
    Nothing,
    /// A heading, after which the first paragraph needs no macro.
    Heading,
    Paragraph,
    Item,
    /// Code between fences.
    Fence,
    /// Code that is indented.
    Indented,
    Table,
}

#[derive(Debug, Default)]
struct Page {
    out: String,
    within: Within,
    /// The titles of the table's columns.
    titles: Vec<String>,
}

impl Page {
    fn line(&mut self, line: &str, heading: &str) {
        let is_fence = line.starts_with("```");
        match self.within {
            Within::Fence if is_fence => self.close(),
            Within::Fence => self.code(line),
            _ if is_fence => self.begin_code(Within::Fence),
            Within::Heading if line.trim().is_empty() => {}
            _ if line.trim().is_empty() => self.close(),
            _ => self.prose(line, heading),
        }
    }

    fn prose(&mut self, line: &str, heading: &str) {
        if let Some(title) = line.strip_prefix("## ") {
            self.close();
            self.push(&format!(".{heading} {}", title.replace('`', "")));
            self.within = Within::Heading;
        } else if line.starts_with("# ") {
            // The title of a document: the page has one.
            self.close();
        } else if let Some(row) = line.strip_prefix("| ") {
            self.row(row.trim_end_matches(" |"));
        } else if let Some(item) = line.strip_prefix("* ") {
            self.close();
            self.push(".IP \\(bu 2");
            self.text(item);
            self.within = Within::Item;
        } else if self.within == Within::Indented {
            self.code(line.strip_prefix("    ").unwrap_or(line));
        } else if let Some(code) = line.strip_prefix("    ").filter(|_| self.is_between()) {
            self.begin_code(Within::Indented);
            self.code(code);
        } else {
            if self.within == Within::Nothing {
                self.push(".PP");
            }
            if self.is_between() {
                self.within = Within::Paragraph;
            }
            self.text(line.trim_start());
        }
    }

    fn is_between(&self) -> bool {
        [Within::Nothing, Within::Heading].contains(&self.within)
    }

    fn begin_code(&mut self, kind: Within) {
        self.close();
        self.push(".PP\n.RS 4\n.EX");
        self.within = kind;
    }

    fn code(&mut self, line: &str) {
        let line = at_start(escaped(line).replace('-', "\\-"));
        self.push(&line);
    }

    fn text(&mut self, line: &str) {
        self.push(&at_start(inline(line)));
    }

    /// A row of a table, its header, or the delimiter row.
    fn row(&mut self, row: &str) {
        let cells: Vec<_> = row.split(" | ").map(|cell| cell.trim()).collect();
        if self.within != Within::Table {
            self.close();
            self.titles = cells.iter().map(|&cell| cell.to_owned()).collect();
            self.within = Within::Table;
            return;
        }
        let [tag, between @ .., text] = cells.as_slice() else {
            return;
        };
        if tag.starts_with("---") {
            return;
        }
        let titles = self.titles.iter().skip(1);
        let between = between
            .iter()
            .zip(titles)
            .filter(|(cell, _)| !cell.is_empty());
        let between = between.map(|(cell, title)| match title.as_str() {
            "default" if *cell != "required" => format!("default {cell}"),
            _ => (*cell).to_owned(),
        });
        let between = between.collect::<Vec<_>>().join(", ");
        let tag = if between.is_empty() {
            inline(tag)
        } else {
            inline(&format!("{tag} ({between})"))
        };
        self.push(".TP");
        self.push(&at_start(tag));
        self.text(text);
    }

    /// Closes the current element.
    fn close(&mut self) {
        if [Within::Fence, Within::Indented].contains(&self.within) {
            self.push(".EE\n.RE");
        }
        self.within = Within::Nothing;
    }

    fn push(&mut self, line: &str) {
        self.out.push_str(line);
        self.out.push('\n');
    }
}

/// Formats code in bold and links as their text.
fn inline(text: &str) -> String {
    let mut out = String::new();
    for (number, piece) in text.replace("\\|", "|").split('`').enumerate() {
        let piece = escaped(piece);
        if number % 2 == 1 {
            out.push_str(&format!("\\fB{}\\fR", piece.replace('-', "\\-")));
        } else {
            out.push_str(&piece);
        }
    }
    without_links(&out)
}

/// `[text](target)` as `text`.
fn without_links(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let Some((_, after)) = after.split_once(')') else {
            break;
        };
        match before.rsplit_once('[') {
            Some((before, words)) => out.extend([before, words]),
            None => out.push_str(before),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e")
}

/// Escapes the first character of a line that roff would take for a request.
fn at_start(line: String) -> String {
    if line.starts_with(['.', '\'']) {
        return format!("\\&{line}");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_become_macros() {
        let text = "\
# Title

## EXIT STATUS

Of `a-b`
and [more](x.md#y), \\n.

* One
  and on

    $ run --now

```toml
.key = 'a\\b'
```
'last'
";
        let expected = "\
.SH EXIT STATUS
Of \\fBa\\-b\\fR
and more, \\en.
.IP \\(bu 2
One
and on
.PP
.RS 4
.EX
$ run \\-\\-now
.EE
.RE
.PP
.RS 4
.EX
\\&.key = 'a\\eb'
.EE
.RE
.PP
\\&'last'
";
        assert_eq!(roff(text, "SH"), expected);
    }

    #[test]
    fn table_rows_become_items() {
        let text = "\
## `[limits]`

| key | value | default | meaning |
| --- | --- | --- | --- |
| `depth` | number | `256` | Entries \\| slots. |
| `on` | text |  | Whether. |
| `at` | text | required | Where. |

| file | what |
| --- | --- |
| `/etc/x` | Its file. |
";
        let expected = "\
.SS [limits]
.TP
\\fBdepth\\fR (number, default \\fB256\\fR)
Entries | slots.
.TP
\\fBon\\fR (text)
Whether.
.TP
\\fBat\\fR (text, required)
Where.
.TP
\\fB/etc/x\\fR
Its file.
";
        assert_eq!(roff(text, "SS"), expected);
    }

    #[test]
    fn section_ends_at_the_next_heading() {
        let text = "## A\n\none\n\n## B\n\ntwo\n";
        assert_eq!(section(text, "A").trim(), "one");
        assert_eq!(section(text, "B").trim(), "two");
        assert_eq!(section(text, "C"), "");
        assert_eq!(sections(&format!("# T\n\nabout\n\n{text}")), text);
    }
}
