//! The shared record: which gateway owns which group, and whose clients may hold its images.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Version of the format. A gateway refuses any other one.
pub const FORMAT: u32 = 1;
/// Gateways of a record, at most.
pub const MAX_GATEWAYS: usize = 16;
/// Groups of a record, at most.
pub const MAX_GROUPS: usize = 64;
/// Clients in each list of a group, at most.
pub const MAX_CLIENTS: usize = 16;
/// Facts of a gateway, at most.
pub const MAX_FACTS: usize = 8;
/// Length of each text in bytes, at most. A name has at most 64.
pub const MAX_TEXT: usize = 256;
/// Length of a record in bytes, at most. `fullest_record_fits` tests that it suffices.
pub const MAX_BYTES: usize = 2 << 20;
/// Counters stay so far below their maximum that they never reach it.
const MAX_COUNTER: u64 = 1 << 53;

/// A random number that identifies a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Incarnation(pub u128);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Serialize for Incarnation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Incarnation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match u128::from_str_radix(&text, 16) {
            Ok(number) if text.len() == 32 && !text.starts_with('+') => Ok(Self(number)),
            _ => Err(D::Error::custom("an incarnation has 32 hexadecimal digits")),
        }
    }
}

/// Controller identifiers that a gateway assigns; from 0 to 0: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControllerIds {
    /// The first one.
    pub first: u16,
    /// The last one.
    pub last: u16,
}

/// Properties of a gateway that must fit those of all others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// Must be disjoint.
    pub controller_ids: ControllerIds,
    /// Must agree, by name: serial number, NQN, a digest of the namespaces.
    pub shared: BTreeMap<String, String>,
    /// Whether its controllers also have namespaces in no group: other gateways know nothing of
    /// commands for these.
    pub has_others: bool,
}

impl Facts {
    /// Checks sizes.
    ///
    /// # Errors
    /// A message.
    pub(crate) fn check(&self) -> Result<(), String> {
        let ControllerIds { first, last } = self.controller_ids;
        if first > last {
            return Err(format!("controller identifiers {first}-{last}: no range"));
        }
        check_length("facts", self.shared.len(), MAX_FACTS)?;
        let texts = self.shared.iter().flat_map(|(name, value)| [name, value]);
        check_texts(texts)
    }
}

/// A process that owns a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Owner {
    /// Name of the gateway.
    pub gateway: String,
    /// Its process.
    pub incarnation: Incarnation,
}

/// A gateway in the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gateway {
    /// Its process.
    pub incarnation: Incarnation,
    /// Grows with each write of this gateway.
    pub heartbeat: u64,
    /// What must fit.
    pub facts: Facts,
    /// Whether an administrator drained it: it takes no group.
    pub drained: bool,
    /// Whether it stopped and released all groups.
    pub stopped: bool,
    /// Whether another gateway found its lease expired. Before it serves a group again, it
    /// disconnects all hosts: see [`Machine::ask_lost`](crate::Machine::ask_lost).
    pub expired: bool,
}

/// State of a group in the record.
///
/// ```text
///              takeover                images open             wish
///   Free ────────────────────► Taking ─────────────► Serving ────────► Releasing
///    ▲                           │ ▲                    │                  │
///    │        gave up            │ └────────────────────┴──────────────────┤
///    ├───────────────────────────┘      takeover by another gateway        │
///    └─────────────────────────────────────────────────────────────────────┘ closed
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// No owner.
    #[default]
    Free,
    /// The owner fences earlier clients and opens images.
    Taking,
    /// The owner may serve.
    Serving,
    /// The owner closes the images for a planned hand-over.
    Releasing,
}

/// Why a group shall move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WishReason {
    /// An administrator moves it. Fail-back does not undo this.
    Move,
    /// Its owner is drained.
    Drain,
    /// Its owner stops.
    Stop,
    /// A preferred gateway is alive again.
    Failback,
    /// Its owner failed to serve it.
    GaveUp,
}

/// The gateway that shall own a group next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wish {
    /// Its name.
    pub gateway: String,
    /// Why.
    pub reason: WishReason,
}

/// A gateway that gave a group up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// The process that failed.
    pub incarnation: Incarnation,
    /// How often it gave the group up.
    pub times: u32,
    /// The last error.
    pub reason: String,
}

/// The last change of owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// The owner before.
    pub from: Option<String>,
    /// Why.
    pub why: String,
    /// Clients that were fenced for it. Empty until the fence has succeeded.
    pub fenced: Vec<String>,
    /// Seconds since 1970 when they were fenced, by the clock of the new owner.
    pub fenced_at_s: Option<u64>,
}

/// An ANA group in the record. The default was never owned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// The owner.
    pub owner: Option<Owner>,
    /// Grows with each takeover.
    pub epoch: u64,
    /// State.
    pub phase: Phase,
    /// Seconds since 1970 of the last change of the state, by the clock of the gateway that
    /// changed it.
    pub since_s: u64,
    /// The next owner.
    pub wish: Option<Wish>,
    /// Whether an administrator moved it: fail-back leaves it where it is.
    pub pinned: bool,
    /// Clients of the owner, recorded before they open an image.
    pub clients: Vec<String>,
    /// Clients of earlier owners, which must be fenced before the group is served.
    pub to_fence: Vec<String>,
    /// Gateways that gave it up.
    pub failures: BTreeMap<String, Failure>,
    /// The last change of owner.
    pub last: Option<Change>,
    /// Why the last wish was dropped.
    pub note: Option<String>,
}

/// The contents of the shared object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    format: u32,
    /// The gateways by name.
    pub gateways: BTreeMap<String, Gateway>,
    /// The groups by ANAGRPID.
    pub groups: BTreeMap<u32, Group>,
}

/// Contents that are no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Too long.
    #[error("record of {0} bytes: at most {MAX_BYTES} are permitted")]
    Size(usize),
    /// Not JSON, or not of this shape.
    #[error("record is not valid: {0}; remove the object while all gateways are stopped")]
    Invalid(String),
    /// A later format.
    #[error("record has format {0}, this version reads format {FORMAT}; upgrade this gateway")]
    Format(u32),
}

impl Default for Record {
    fn default() -> Self {
        Self {
            format: FORMAT,
            gateways: BTreeMap::new(),
            groups: BTreeMap::new(),
        }
    }
}

/// What all formats have.
#[derive(Deserialize)]
struct AnyFormat {
    format: u32,
}

impl Record {
    /// Reads a record, which may have any contents.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, RecordError> {
        if bytes.len() > MAX_BYTES {
            return Err(RecordError::Size(bytes.len()));
        }
        let invalid = |error: serde_json::Error| RecordError::Invalid(error.to_string());
        let any: AnyFormat = serde_json::from_slice(bytes).map_err(invalid)?;
        if any.format != FORMAT {
            return Err(RecordError::Format(any.format));
        }
        let record: Self = serde_json::from_slice(bytes).map_err(invalid)?;
        record.check().map_err(RecordError::Invalid)?;
        Ok(record)
    }

    /// The bytes of it.
    ///
    /// # Errors
    /// [`RecordError`] if [`parse`](Self::parse) would refuse them.
    pub fn to_bytes(&self) -> Result<Vec<u8>, RecordError> {
        self.check().map_err(RecordError::Invalid)?;
        let bytes = serde_json::to_vec(self);
        let bytes = bytes.map_err(|error| RecordError::Invalid(error.to_string()))?;
        match bytes.len() > MAX_BYTES {
            true => Err(RecordError::Size(bytes.len())),
            false => Ok(bytes),
        }
    }

    fn check(&self) -> Result<(), String> {
        check_length("gateways", self.gateways.len(), MAX_GATEWAYS)?;
        check_length("groups", self.groups.len(), MAX_GROUPS)?;
        for (name, gateway) in &self.gateways {
            check_name(name)?;
            check_counter("heartbeat", gateway.heartbeat)?;
            gateway.facts.check()?;
        }
        self.groups.values().try_for_each(Group::check)
    }
}

impl Group {
    /// Whether `owner` owns it in `epoch`.
    pub(crate) fn is_owned(&self, owner: &Owner, epoch: u64) -> bool {
        self.owner.as_ref() == Some(owner) && self.epoch == epoch
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        check_counter("epoch", self.epoch)?;
        check_counter("since_s", self.since_s)?;
        if self.owner.is_none() != (self.phase == Phase::Free) {
            return Err("a group is free if and only if it has no owner".to_owned());
        }
        check_length("failures", self.failures.len(), MAX_GATEWAYS)?;
        let fenced = self.last.as_ref().map_or(&[][..], |last| &last.fenced);
        for list in [&self.clients, &self.to_fence, fenced] {
            check_length("clients", list.len(), MAX_CLIENTS)?;
            check_texts(list)?;
        }
        let names = self.owner.iter().map(|owner| &owner.gateway);
        let names = names.chain(self.wish.iter().map(|wish| &wish.gateway));
        let from = self.last.iter().filter_map(|last| last.from.as_ref());
        for name in names.chain(from).chain(self.failures.keys()) {
            check_name(name)?;
        }
        let reasons = self.failures.values().map(|failure| &failure.reason);
        check_texts(
            reasons
                .chain(&self.note)
                .chain(self.last.iter().map(|it| &it.why)),
        )
    }
}

/// Whether `name` may be the name of a gateway.
pub(crate) fn is_name(name: &str) -> bool {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=64).contains(&name.len()) && name.chars().all(is_valid)
}

/// Whether `client` may be recorded.
pub(crate) fn is_text(text: &str) -> bool {
    text.len() <= MAX_TEXT && !text.chars().any(|c| c.is_control() || "\"\\".contains(c))
}

/// A text of any origin for the record: one line, of a bounded length.
pub(crate) fn shortened(text: &str) -> String {
    let mut short = String::new();
    for c in text.chars() {
        let c = match c {
            '"' | '\\' => '\'',
            c if c.is_control() => ' ',
            c => c,
        };
        if short.len() + c.len_utf8() > MAX_TEXT {
            break;
        }
        short.push(c);
    }
    short
}

fn check_name(name: &str) -> Result<(), String> {
    match is_name(name) {
        true => Ok(()),
        false => Err("the name of a gateway is not valid".to_owned()),
    }
}

fn check_texts<'a>(texts: impl IntoIterator<Item = &'a String>) -> Result<(), String> {
    match texts.into_iter().all(|text| is_text(text)) {
        true => Ok(()),
        false => Err(format!(
            "a text has more than {MAX_TEXT} bytes, or control characters or quotes"
        )),
    }
}

fn check_length(what: &str, count: usize, most: usize) -> Result<(), String> {
    match count <= most {
        true => Ok(()),
        false => Err(format!("{count} {what}: at most {most} are permitted")),
    }
}

fn check_counter(what: &str, value: u64) -> Result<(), String> {
    match value <= MAX_COUNTER {
        true => Ok(()),
        false => Err(format!("{what} of {value}: at most {MAX_COUNTER}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> String {
        "x".repeat(MAX_TEXT)
    }

    fn name(number: usize) -> String {
        format!("{number:064}")
    }

    fn fullest_group() -> Group {
        let clients = vec![text(); MAX_CLIENTS];
        let incarnation = Incarnation(u128::MAX);
        let failure = Failure {
            incarnation,
            times: u32::MAX,
            reason: text(),
        };
        Group {
            owner: Some(Owner {
                gateway: name(1),
                incarnation,
            }),
            epoch: MAX_COUNTER,
            phase: Phase::Releasing,
            since_s: MAX_COUNTER,
            wish: Some(Wish {
                gateway: name(1),
                reason: WishReason::Failback,
            }),
            pinned: true,
            clients: clients.clone(),
            to_fence: clients.clone(),
            failures: (0..MAX_GATEWAYS)
                .map(|at| (name(at), failure.clone()))
                .collect(),
            last: Some(Change {
                from: Some(name(1)),
                why: text(),
                fenced: clients,
                fenced_at_s: Some(MAX_COUNTER),
            }),
            note: Some(text()),
        }
    }

    #[test]
    fn fullest_record_fits() {
        let mut record = Record::default();
        let facts = Facts {
            controller_ids: ControllerIds {
                first: 1000,
                last: 65_000,
            },
            shared: (0..MAX_FACTS)
                .map(|at| (format!("{at:0256}"), text()))
                .collect(),
            has_others: false,
        };
        let gateway = Gateway {
            incarnation: Incarnation(u128::MAX),
            heartbeat: MAX_COUNTER,
            facts,
            drained: true,
            stopped: false,
            expired: false,
        };
        for at in 0..MAX_GATEWAYS {
            record.gateways.insert(name(at), gateway.clone());
        }
        for id in 0..u32::try_from(MAX_GROUPS).unwrap() {
            record.groups.insert(u32::MAX - id, fullest_group());
        }
        let bytes = record.to_bytes().expect("the limits are chosen so");
        assert_eq!(Record::parse(&bytes), Ok(record));
    }

    #[test]
    fn later_format_is_reported_as_such() {
        let bytes = br#"{"format": 2, "gateways": [], "more": 1}"#;
        assert_eq!(Record::parse(bytes), Err(RecordError::Format(2)));
        let text = RecordError::Format(2).to_string();
        assert!(text.contains("upgrade this gateway"), "{text}");
    }

    #[test]
    fn contents_outside_of_limits_are_errors() {
        let group = |change: fn(&mut Group)| {
            let mut record = Record::default();
            let mut group = Group::default();
            change(&mut group);
            record.groups.insert(1, group);
            let bytes = serde_json::to_vec(&record).unwrap();
            assert!(Record::parse(&bytes).is_err(), "{record:?}");
            assert!(record.to_bytes().is_err());
        };
        group(|group| group.epoch = u64::MAX);
        group(|group| group.phase = Phase::Serving);
        group(|group| group.clients = vec![String::new(); MAX_CLIENTS + 1]);
        group(|group| group.note = Some("\u{1}".to_owned()));
        group(|group| {
            let gateway = "a b".to_owned();
            let reason = WishReason::Move;
            group.wish = Some(Wish { gateway, reason });
        });
        assert!(matches!(
            Record::parse(&vec![b' '; MAX_BYTES + 1]),
            Err(RecordError::Size(_))
        ));
        for bytes in [&b""[..], b"null", b"{}", b"[1]", b"{\"format\":1}", b"\xff"] {
            assert!(matches!(Record::parse(bytes), Err(RecordError::Invalid(_))));
        }
    }

    #[test]
    fn texts_of_any_origin_are_shortened_to_valid_ones() {
        for text in ["", "a\nb\"c\\", &"\u{e9}".repeat(MAX_TEXT)] {
            assert!(is_text(&shortened(text)), "{text}");
        }
    }
}
