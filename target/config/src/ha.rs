//! `[ha]`: this gateway, the shared record, and the ANA groups that gateways take over.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::provider::ValueError;

/// High availability: this gateway and others serve the same subsystems. There is none if the
/// configuration has no `[ha]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HaConfig {
    /// Name of this gateway.
    pub gateway: String,
    /// Pool of the shared record.
    pub pool: String,
    /// Its namespace in the pool.
    pub namespace: Option<String>,
    /// Its object.
    pub object: String,
    /// A gateway that has not renewed for this time is replaced.
    pub lease: Duration,
    /// A group returns to a preferred gateway that was alive for this time; `None`: only when an
    /// administrator moves it.
    pub failback: Option<Duration>,
    /// The groups, in order.
    pub groups: Vec<HaGroupConfig>,
}

impl HaConfig {
    /// Whether it has the ANA group `id`.
    #[must_use]
    pub fn has_group(&self, id: u32) -> bool {
        self.groups.iter().any(|group| group.id == id)
    }
}

/// An ANA group that one gateway at a time serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HaGroupConfig {
    /// ANAGRPID.
    pub id: u32,
    /// Its gateways, the preferred one first.
    pub gateways: Vec<String>,
}

/// High availability: several gateways serve the same subsystems, and take over ANA groups from
/// each other. See configuration.md.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawHa {
    /// Name of this gateway, unique among the gateways: 1 to 64 letters, digits, dots, hyphens or
    /// underscores.
    gateway: Spanned<String>,
    /// RADOS object of the record that the gateways share: `POOL[/NAMESPACE]/OBJECT`. The first
    /// gateway creates it.
    record: Spanned<String>,
    /// Milliseconds after which a gateway that has not renewed its lease is replaced: 2000 to
    /// 60000. The same on all gateways.
    ///
    /// Default: `3000`
    lease_ms: Option<Spanned<u32>>,
    /// Seconds that a preferred gateway must have been alive before a group returns to it: 0 to
    /// 86400. If left out, a group returns only by `ctl ha move`.
    failback_s: Option<Spanned<u32>>,
    /// The groups.
    #[serde(default)]
    pub(crate) group: Vec<Spanned<RawHaGroup>>,
}

/// An ANA group that one gateway at a time serves: 1 to 64 of them. Its namespaces must be writable
/// RBD images.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawHaGroup {
    /// ANA group: 1 to 128.
    id: Spanned<u32>,
    /// Names of the gateways that may serve the group, the preferred one first: 1 to 16. Other
    /// gateways report the group as inaccessible.
    gateways: Spanned<Vec<Spanned<String>>>,
}

const LEASE_MS: RangeInclusive<u32> = 2000..=60_000;
const DEFAULT_LEASE_MS: u32 = 3000;
const FAILBACK_S: RangeInclusive<u32> = 0..=86_400;
const GROUP_IDS: RangeInclusive<u32> = 1..=128;
/// The shared record has room for so many.
const MAX_GROUPS: usize = 64;
const MAX_GATEWAYS: usize = 16;
const MAX_NAME: usize = 64;

impl RawHa {
    /// # Errors
    /// [`ValueError`] of each value, with the valid ones.
    pub(crate) fn to_config(&self) -> Result<HaConfig, Vec<ValueError>> {
        let mut errors = Vec::new();
        let mut keep = |result: Result<(), ValueError>| errors.extend(result.err());
        keep(check_name("gateway", &self.gateway));
        let record = Record::parse(&self.record);
        keep(record.as_ref().map(drop).map_err(Clone::clone));
        let range = |key, value: &Option<Spanned<u32>>, range: RangeInclusive<u32>| match value {
            Some(value) if !range.contains(value.get_ref()) => {
                let what = format!("must be {} to {}", range.start(), range.end());
                Err(wrong(key, value, &value.get_ref(), &what))
            }
            _ => Ok(()),
        };
        keep(range("lease_ms", &self.lease_ms, LEASE_MS));
        keep(range("failback_s", &self.failback_s, FAILBACK_S));
        errors.extend(self.group_errors());
        let number = |value: &Option<Spanned<u32>>| value.as_ref().map(|value| *value.get_ref());
        match record {
            Ok(record) if errors.is_empty() => Ok(HaConfig {
                gateway: self.gateway.get_ref().clone(),
                pool: record.pool,
                namespace: record.namespace,
                object: record.object,
                lease: Duration::from_millis(
                    number(&self.lease_ms).unwrap_or(DEFAULT_LEASE_MS).into(),
                ),
                failback: number(&self.failback_s).map(|s| Duration::from_secs(s.into())),
                groups: self.group.iter().map(|it| it.get_ref().group()).collect(),
            }),
            _ => Err(errors),
        }
    }

    fn group_errors(&self) -> Vec<ValueError> {
        let mut errors = Vec::new();
        if self.group.is_empty() || self.group.len() > MAX_GROUPS {
            let (at, given) = match self.group.get(MAX_GROUPS) {
                Some(group) => (group.span().start, self.group.len()),
                None => (self.gateway.span().start, 0),
            };
            let what = format!(
                "ha.group: there are {given} groups; write 1 to {MAX_GROUPS} [[ha.group]], each \
                 with id and gateways"
            );
            errors.push(ValueError { at: Some(at), what });
        }
        let mut ids = BTreeSet::new();
        for group in self.group.iter().map(Spanned::get_ref) {
            let id = *group.id.get_ref();
            if !GROUP_IDS.contains(&id) {
                errors.push(wrong("group.id", &group.id, &id, "must be 1 to 128"));
            } else if !ids.insert(id) {
                let what = "another [[ha.group]] has this ID; remove one";
                errors.push(wrong("group.id", &group.id, &id, what));
            }
            errors.extend(group.gateway_errors());
        }
        errors
    }
}

impl RawHaGroup {
    fn group(&self) -> HaGroupConfig {
        let names = self.gateways.get_ref().iter();
        HaGroupConfig {
            id: *self.id.get_ref(),
            gateways: names.map(|name| name.get_ref().clone()).collect(),
        }
    }

    fn gateway_errors(&self) -> Vec<ValueError> {
        const KEY: &str = "group.gateways";
        let mut errors = Vec::new();
        let given = self.gateways.get_ref();
        if given.is_empty() || given.len() > MAX_GATEWAYS {
            let what = format!(
                "{} names; list 1 to {MAX_GATEWAYS} gateways, the preferred one first",
                given.len()
            );
            errors.push(ValueError::of("ha", KEY, &self.gateways, &what));
        }
        let mut names = BTreeSet::new();
        for name in given {
            errors.extend(check_name(KEY, name).err());
            if !names.insert(name.get_ref()) {
                let what = "is named twice; remove one";
                errors.push(wrong(KEY, name, &Quoted(name.get_ref()), what));
            }
        }
        errors
    }
}

/// The name of the shared record.
struct Record {
    pool: String,
    namespace: Option<String>,
    object: String,
}

impl Record {
    fn parse(given: &Spanned<String>) -> Result<Self, ValueError> {
        let text = given.get_ref();
        let refused = |what| Err(wrong("record", given, &Quoted(text), what));
        let parts: Vec<_> = text.split('/').collect();
        let (pool, namespace, object) = match *parts {
            [pool, object] => (pool, None, object),
            [pool, namespace, object] => (pool, Some(namespace), object),
            _ => ("", None, ""),
        };
        let mut names = [Some(pool), namespace, Some(object)].into_iter().flatten();
        if names.any(|name| name.is_empty() || name.chars().any(char::is_control)) {
            return refused("must be POOL/OBJECT or POOL/NAMESPACE/OBJECT");
        }
        if object.starts_with("rbd_") {
            return refused("objects rbd_... belong to RBD images; name another object");
        }
        Ok(Self {
            pool: pool.to_owned(),
            namespace: namespace.map(str::to_owned),
            object: object.to_owned(),
        })
    }
}

fn check_name(key: &str, given: &Spanned<String>) -> Result<(), ValueError> {
    let name = given.get_ref();
    let is_valid = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if (1..=MAX_NAME).contains(&name.len()) && name.chars().all(is_valid) {
        return Ok(());
    }
    let what = "must have 1 to 64 letters, digits, dots, hyphens or underscores";
    Err(wrong(key, given, &Quoted(name), what))
}

/// The error in `value`, which is shown as `shown`.
fn wrong<T>(key: &str, value: &Spanned<T>, shown: &dyn fmt::Display, what: &str) -> ValueError {
    ValueError {
        at: Some(value.span().start),
        what: format!("ha.{key} = {shown}: {what}"),
    }
}

struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}
