//! Output: fields as text or as JSON.

use std::borrow::Cow;
use std::io::{self, Write};

use nvmeof_wire::text::{Escaped, Json};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

use crate::args::Format;
use crate::failure::Failure;

/// Fields by name, in the order of output. As JSON they are an object.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    fields: Vec<(Cow<'static, str>, Data, String)>,
}

/// The value of a field in JSON.
#[derive(Debug)]
enum Data {
    Json(Value),
    /// Too large for a [`Value`]; printed as a number, as by nvme-cli.
    Large(u128),
    /// An array of objects.
    Objects(Vec<Fields>),
}

impl Serialize for Data {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Json(value) => value.serialize(to),
            Self::Large(number) => to.serialize_u128(*number),
            Self::Objects(objects) => objects.serialize(to),
        }
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(self.fields.len()))?;
        for (name, data, _) in &self.fields {
            map.serialize_entry(name, data)?;
        }
        map.end()
    }
}

impl Fields {
    /// Adds a field with the same value in text and JSON; the text escapes characters that a
    /// terminal interprets or hides.
    pub(crate) fn add(&mut self, name: &'static str, value: impl Into<Value>) -> &mut Self {
        let value = value.into();
        let text = match &value {
            Value::String(text) => Escaped(text).to_string(),
            other => other.to_string(),
        };
        self.with(name, value, text)
    }

    /// Adds a number of up to 128 bits.
    pub(crate) fn large(&mut self, name: &'static str, value: u128) -> &mut Self {
        self.fields
            .push((name.into(), Data::Large(value), value.to_string()));
        self
    }

    /// Adds a number that is hexadecimal in text.
    pub(crate) fn hex(&mut self, name: &'static str, value: impl Into<u64>) -> &mut Self {
        let value = value.into();
        self.with(name, value, format!("{value:#x}"))
    }

    /// Adds an array of objects, for JSON only.
    pub(crate) fn objects(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        objects: Vec<Self>,
    ) -> &mut Self {
        let field = (name.into(), Data::Objects(objects), String::new());
        self.fields.push(field);
        self
    }

    /// Adds a field with its own text.
    pub(crate) fn with(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        value: impl Into<Value>,
        text: impl Into<String>,
    ) -> &mut Self {
        self.fields
            .push((name.into(), Data::Json(value.into()), text.into()));
        self
    }

    /// As lines `name : value`.
    pub(crate) fn to_text(&self) -> String {
        let names = self.fields.iter().map(|(name, ..)| name.len());
        let width = names.max().unwrap_or_default();
        let lines = self.fields.iter();
        lines
            .map(|(name, _, text)| format!("{name:width$} : {text}\n"))
            .collect()
    }

    /// As indented lines `name: value`, for long names.
    pub(crate) fn to_indented_text(&self) -> String {
        let lines = self.fields.iter();
        lines
            .map(|(name, _, text)| format!("  {name}: {text}\n"))
            .collect()
    }

    /// Prints in that format.
    pub(crate) fn print(&self, format: Format) -> Result<(), Failure> {
        match format {
            Format::Normal => print(self.to_text().as_bytes()),
            Format::Json => json(self),
        }
    }
}

/// Bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Text of a field that ends with NUL. Control characters become `?`.
pub(crate) fn text(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0);
    let text = field.get(..end.unwrap_or(field.len())).unwrap_or_default();
    let clean = |c: char| if c.is_control() { '?' } else { c };
    String::from_utf8_lossy(text).chars().map(clean).collect()
}

/// Printable characters in lines of 16, up to the first NUL: the JSON of nvme-cli for
/// vendor specific bytes.
pub(crate) fn vendor_lines(bytes: &[u8]) -> Vec<String> {
    let end = bytes.iter().position(|byte| *byte == 0);
    let used = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
    let printable = |byte: &u8| match byte {
        0x21..=0x7e => char::from(*byte),
        _ => '.',
    };
    used.chunks(16)
        .map(|line| line.iter().map(printable).collect())
        .collect()
}

/// Prints JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value);
    let text = text.map_err(|error| Failure::new(format!("internal error: {error}")))?;
    print(Json(&(text + "\n")).to_string().as_bytes())
}

/// Prints to standard output. A closed pipe is not a failure.
pub(crate) fn print(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let why = nvmeof_rdma::explain(&error);
            Err(Failure::new(format!("standard output: {why}")))
        }
        _ => Ok(()),
    }
}

/// A hex dump: offset, hexadecimal, text.
pub(crate) fn dump(bytes: &[u8]) -> String {
    let mut out = String::new();
    for (row, chunk) in bytes.chunks(16).enumerate() {
        let hex: Vec<String> = chunk.iter().map(|byte| format!("{byte:02x}")).collect();
        let printable = |byte: &u8| match byte {
            0x20..=0x7e => char::from(*byte),
            _ => '.',
        };
        let text: String = chunk.iter().map(printable).collect();
        out.push_str(&format!(
            "{:06x}: {:47} \"{text}\"\n",
            row * 16,
            hex.join(" ")
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_aligned_and_become_json() {
        let mut fields = Fields::default();
        fields.add("vid", 7).hex("ver", 0x20000u32).add("sn", "abc");
        assert_eq!(fields.to_text(), "vid : 7\nver : 0x20000\nsn  : abc\n");
        fields.large("tnvmcap", u128::MAX);
        let json = serde_json::to_string(&fields).unwrap();
        let expected = format!(
            r#"{{"vid":7,"ver":131072,"sn":"abc","tnvmcap":{}}}"#,
            u128::MAX
        );
        assert_eq!(json, expected, "in order, and numbers are numbers");
    }

    #[test]
    fn dumps_fit_eighty_columns() {
        let dump = dump(b"0123456789abcdefXY\x00");
        assert_eq!(
            dump,
            "000000: 30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66 \"0123456789abcdef\"\n\
             000010: 58 59 00                                        \"XY.\"\n"
        );
        assert!(dump.lines().all(|line| line.len() <= 80));
    }

    #[test]
    fn text_of_a_peer_is_escaped() {
        assert_eq!(text(b"nqn\x1b[2J\0rest"), "nqn?[2J");
        let mut fields = Fields::default();
        fields.add("subnqn", text("a\u{202e}b\u{200b}\\".as_bytes()));
        assert_eq!(fields.to_text(), "subnqn : a\\u202Eb\\u200B\\\\\n");
        let json = serde_json::to_value(&fields).unwrap();
        assert_eq!(json["subnqn"], "a\u{202e}b\u{200b}\\");
    }

    #[test]
    fn vendor_bytes_end_at_the_first_nul() {
        assert!(vendor_lines(&[0; 8]).is_empty());
        assert_eq!(
            vendor_lines(b"0123456789abcdef\x01 \0x"),
            ["0123456789abcdef", ".."]
        );
    }
}
