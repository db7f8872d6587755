//! Objects of a saved configuration, which is untrusted input.
//!
//! nvmetcli writes attributes as the kernel shows them: numbers and switches mostly as
//! text. Other tools that write this format differ. Therefore a number may be a number or
//! text, and values of other types are reported and ignored.

use std::collections::BTreeMap;

use serde_json::Value;
use zeroize::Zeroizing;

use super::report::{Report, quoted};

/// Longest text in bytes, and longest list. Attributes of the kernel have at most one page
/// of 4096 bytes.
const LONGEST_TEXT: usize = 4096;
const LONGEST_LIST: usize = 65_536;

/// An object; reading a key removes it.
#[derive(Debug)]
pub(super) struct Object<'a> {
    location: String,
    fields: BTreeMap<&'a str, &'a Value>,
}

impl<'a> Object<'a> {
    /// `None`, and a remark, if the value is not an object.
    pub(super) fn new(location: String, value: &'a Value, report: &mut Report) -> Option<Self> {
        let Value::Object(map) = value else {
            report.lost(&location, "is not an object", "correct it in the file");
            return None;
        };
        let fields = map.iter().map(|(key, value)| (key.as_str(), value));
        Some(Self {
            location,
            fields: fields.collect(),
        })
    }

    /// The place of `key`.
    pub(super) fn location(&self, key: &str) -> String {
        match self.location.as_str() {
            "" => key.to_owned(),
            location => format!("{location}.{key}"),
        }
    }

    /// The place of this object.
    pub(super) fn own_location(&self) -> &str {
        &self.location
    }

    /// A text, or a number as text.
    pub(super) fn text(&mut self, key: &str, report: &mut Report) -> Option<String> {
        let value = self.fields.remove(key)?;
        let text = plain(value);
        if text.is_none() {
            let location = self.location(key);
            report.lost(&location, "is not a valid text", "correct it in the file");
        }
        text
    }

    /// A text that may be a secret. It is erased when it is dropped; the file is not.
    pub(super) fn secret(&mut self, key: &str, report: &mut Report) -> Option<Zeroizing<String>> {
        self.text(key, report).map(Zeroizing::new)
    }

    /// A number, or its text.
    pub(super) fn number(&mut self, key: &str, report: &mut Report) -> Option<i64> {
        let text = self.text(key, report)?;
        let number = text.trim().parse().ok();
        if number.is_none() {
            let what = format!("{} is not a number", quoted(&text));
            report.lost(&self.location(key), &what, "correct it in the file");
        }
        number
    }

    /// 0 or 1, as the kernel shows switches.
    pub(super) fn switch(&mut self, key: &str, report: &mut Report) -> Option<bool> {
        if let Some(Value::Bool(on)) = self.fields.get(key) {
            self.fields.remove(key);
            return Some(*on);
        }
        match self.number(key, report)? {
            0 => Some(false),
            1 => Some(true),
            other => {
                let what = format!("{other} is neither 0 nor 1");
                report.lost(&self.location(key), &what, "correct it in the file");
                None
            }
        }
    }

    /// An object, empty if there is none.
    pub(super) fn object(&mut self, key: &str, report: &mut Report) -> Object<'a> {
        let location = self.location(key);
        let value = self.fields.remove(key);
        let found = value.and_then(|value| Object::new(location.clone(), value, report));
        found.unwrap_or(Object {
            location,
            fields: BTreeMap::new(),
        })
    }

    /// The objects of a list, empty if there is none.
    pub(super) fn objects(&mut self, key: &str, report: &mut Report) -> Vec<Object<'a>> {
        let location = self.location(key);
        let elements = self.list(key, report).iter().enumerate();
        let objects = elements
            .filter_map(|(at, value)| Object::new(format!("{location}[{at}]"), value, report));
        objects.collect()
    }

    /// The texts of a list, empty if there is none.
    pub(super) fn texts(&mut self, key: &str, report: &mut Report) -> Vec<String> {
        let location = self.location(key);
        let mut texts = Vec::new();
        for (at, value) in self.list(key, report).iter().enumerate() {
            match plain(value) {
                Some(text) => texts.push(text),
                None => report.lost(&format!("{location}[{at}]"), "is not a valid name", ""),
            }
        }
        texts
    }

    fn list(&mut self, key: &str, report: &mut Report) -> &'a [Value] {
        match self.fields.remove(key) {
            None | Some(Value::Null) => &[],
            Some(Value::Array(elements)) => {
                let kept = elements.get(..LONGEST_LIST);
                if kept.is_some_and(|kept| kept.len() < elements.len()) {
                    let what = format!("has more than {LONGEST_LIST} elements");
                    report.lost(&self.location(key), &what, "the rest is left out");
                }
                kept.unwrap_or(elements)
            }
            Some(_) => {
                report.lost(
                    &self.location(key),
                    "is not a list",
                    "correct it in the file",
                );
                &[]
            }
        }
    }

    /// Ignores keys.
    pub(super) fn skip(&mut self, keys: &[&str]) {
        for key in keys {
            self.fields.remove(*key);
        }
    }

    /// Reports unknown keys, without their values, which may be secrets.
    pub(super) fn finish(self, report: &mut Report) {
        for key in self.fields.keys() {
            let location = self.location(&quoted(key).replace('"', ""));
            let remedy = "if hosts depend on it, look for an equivalent in docs/configuration.md";
            report.lost(&location, "is an unknown key", remedy);
        }
    }
}

fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if text.len() <= LONGEST_TEXT => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}
