//! `[[host]]`: hosts that have to prove who they are, and how.

use std::fmt;
use std::time::SystemTime;

use nvmeof_wire::Nqn;
use nvmeof_wire::auth::{GroupId, HashId};
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use toml::Spanned;

use super::key_file::KeyFile;
use super::provider::ValueError;
use super::until::RawUntil;

/// A host with a key (DH-HMAC-CHAP). Each subsystem authenticates it, so that no other host can
/// use its NQN.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawHost {
    /// NQN of the host.
    pub(crate) nqn: Spanned<String>,
    /// File with the key of the host, or `credential:NAME` for a credential of the service
    /// (`LoadCredential=`). A relative path is resolved against the working directory of the
    /// target.
    key_file: Spanned<String>,
    /// File with the key that is being replaced, which the host may still use.
    old_key_file: Option<Spanned<String>>,
    /// When the old key ceases to be accepted: a date (to its end in UTC), or a date and time with
    /// an offset such as `2026-12-31T18:00:00Z`. If left out: when `old_key_file` is removed.
    old_key_until: Option<Spanned<RawUntil>>,
    /// File with the key of the controller, for hosts that authenticate it too. If left out, such a
    /// host cannot connect.
    controller_key_file: Option<Spanned<String>>,
    /// Hash function `"sha256"`, `"sha384"` or `"sha512"`, or a list of these, the preferred first.
    /// The target uses the first that the host supports. If left out: all, in this order.
    hash: Option<Spanned<RawNames>>,
    /// Diffie-Hellman groups, the preferred first: `"ffdhe2048"`, `"ffdhe3072"`, `"ffdhe4096"`,
    /// `"ffdhe6144"`, `"ffdhe8192"` and `"null"` (none). The target uses the first that the host
    /// supports. If left out: all, in this order.
    dh_groups: Option<Spanned<RawNames>>,
}

/// Hash functions, the default order first. All of them resist forgery for as long as the key is
/// secret. SHA-256 is the default of nvmet as well, and every host supports it.
const HASHES: [(&str, HashId); 3] = [
    ("sha256", HashId::SHA256),
    ("sha384", HashId::SHA384),
    ("sha512", HashId::SHA512),
];

/// Groups, the default order first: by cost, and no exchange at all only with hosts that support
/// none. An exchange prevents that recorded messages can be tested against guesses of the key. Keys
/// are random and have 256 bits or more, so a larger group protects against nothing else, but costs
/// up to forty times as much at each connect.
const GROUPS: [(&str, GroupId); 6] = [
    ("ffdhe2048", GroupId::FFDHE2048),
    ("ffdhe3072", GroupId::FFDHE3072),
    ("ffdhe4096", GroupId::FFDHE4096),
    ("ffdhe6144", GroupId::FFDHE6144),
    ("ffdhe8192", GroupId::FFDHE8192),
    ("null", GroupId::NULL),
];

/// Which key of a host, or of the controller for it, a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostKey {
    /// The current key of the host.
    Current,
    /// The key that is being replaced.
    Old,
    /// The key of the controller.
    Controller,
}

impl HostKey {
    /// The key of `[[host]]` that names its file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Current => "key_file",
            Self::Old => "old_key_file",
            Self::Controller => "controller_key_file",
        }
    }
}

impl RawHost {
    /// Its NQN.
    ///
    /// # Errors
    /// [`ValueError`] names the rule.
    pub(crate) fn name(&self) -> Result<Nqn, ValueError> {
        let name = self.nqn.get_ref();
        Nqn::new(name).map_err(|error| at(&self.nqn, format!("nqn = {name:?}: {error}")))
    }

    /// When its old key ceases to be accepted; `None`: when it is removed.
    pub(crate) fn old_key_until(&self) -> Option<SystemTime> {
        self.old_key_until
            .as_ref()
            .map(|until| until.get_ref().time())
    }

    /// Its hash functions, the preferred first.
    ///
    /// # Errors
    /// [`ValueError`] names the valid values.
    pub(crate) fn hashes(&self) -> Result<Vec<HashId>, ValueError> {
        chosen("hash", self.hash.as_ref(), &HASHES)
    }

    /// Its groups, the preferred first.
    ///
    /// # Errors
    /// [`ValueError`] names the valid values.
    pub(crate) fn groups(&self) -> Result<Vec<GroupId>, ValueError> {
        chosen("dh_groups", self.dh_groups.as_ref(), &GROUPS)
    }

    /// The files with keys.
    pub(crate) fn files(&self) -> impl Iterator<Item = (HostKey, &Spanned<String>)> {
        let others = [
            (HostKey::Old, self.old_key_file.as_ref()),
            (HostKey::Controller, self.controller_key_file.as_ref()),
        ];
        let others = others.into_iter();
        std::iter::once((HostKey::Current, &self.key_file))
            .chain(others.filter_map(|(key, file)| Some((key, file?))))
    }

    /// Errors in values that can be checked without reading a file.
    pub(crate) fn check(&self) -> Vec<ValueError> {
        let mut errors = Vec::new();
        errors.extend(self.name().err());
        for (key, file) in self.files() {
            let parsed = KeyFile::parse(file.get_ref()).err();
            errors.extend(parsed.map(|what| at(file, format!("{}: {what}", key.name()))));
        }
        match (&self.old_key_file, &self.old_key_until) {
            (Some(old), _) if old.get_ref() == self.key_file.get_ref() => {
                let what = "old_key_file: is the file of key_file; name the file with the previous \
                            key, or omit this key";
                errors.push(at(old, what.to_owned()));
            }
            (None, Some(until)) => {
                let what = "old_key_until: requires old_key_file; name the file with the previous \
                            key, or omit this key";
                errors.push(at(until, what.to_owned()));
            }
            _ => {}
        }
        errors.extend(self.hashes().err());
        errors.extend(self.groups().err());
        errors
    }
}

/// The value of the keys `hash` and `dh_groups`: one name or a list of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawNames(Vec<Spanned<String>>);

/// The values of the names that `given` has, or all of `known`.
fn chosen<T: Copy + PartialEq>(
    key: &str,
    given: Option<&Spanned<RawNames>>,
    known: &[(&str, T)],
) -> Result<Vec<T>, ValueError> {
    let Some(given) = given else {
        return Ok(known.iter().map(|(_, value)| *value).collect());
    };
    let names = &given.get_ref().0;
    if names.is_empty() {
        let what = format!("{key}: the list is empty; name a value, or omit this key for all");
        return Err(at(given, what));
    }
    let mut values = Vec::new();
    for name in names {
        // A single name has the position of its key.
        let wrong = |what: &str| {
            let span = if name.span().is_empty() {
                given.span()
            } else {
                name.span()
            };
            ValueError {
                at: Some(span.start),
                what: format!("{key}: {:?} {what}", name.get_ref()),
            }
        };
        match known.iter().find(|(known, _)| known == name.get_ref()) {
            Some((_, value)) if values.contains(value) => return Err(wrong("is named twice")),
            Some((_, value)) => values.push(*value),
            None => {
                let known: Vec<_> = known
                    .iter()
                    .map(|(known, _)| format!("{known:?}"))
                    .collect();
                let what = format!("is unknown; must be one or more of {}", known.join(", "));
                return Err(wrong(&what));
            }
        }
    }
    Ok(values)
}

fn at<T>(value: &Spanned<T>, what: String) -> ValueError {
    ValueError {
        at: Some(value.span().start),
        what,
    }
}

impl<'de> Deserialize<'de> for RawNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrList;

        impl<'de> Visitor<'de> for OneOrList {
            type Value = RawNames;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name, or a list of names")
            }

            fn visit_str<E>(self, name: &str) -> Result<RawNames, E> {
                Ok(RawNames(vec![Spanned::new(0..0, name.to_owned())]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<RawNames, A::Error> {
                let mut names = Vec::new();
                while let Some(name) = seq.next_element()? {
                    names.push(name);
                }
                Ok(RawNames(names))
            }
        }

        deserializer.deserialize_any(OneOrList)
    }
}
