//! `port.provider`: the providers of a port.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use toml::Spanned;

/// An RDMA provider by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderName {
    /// An RDMA device: InfiniBand, RoCE or iWARP.
    Verbs,
    /// Software iWARP over TCP.
    Iwarp,
    /// Shared memory with processes of this host.
    Shm,
}

/// The configured providers of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The RDMA device of its address, or software iWARP if there is none. In both cases also
    /// shared memory for processes of this host, if that works.
    Auto,
    /// All of these; each is required.
    These(Vec<ProviderName>),
}

/// The value of the key `provider`: one name or a list of them.
#[derive(Clone, Debug)]
pub(crate) enum RawProvider {
    One(String),
    List(Vec<Spanned<String>>),
}

/// An invalid value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ValueError {
    /// Position in the text; `None`: that of the key.
    pub(crate) at: Option<usize>,
    pub(crate) what: String,
}

impl ValueError {
    /// The error in the value of a key of a table.
    pub(crate) fn of<T>(table: &str, key: &str, value: &Spanned<T>, what: &str) -> Self {
        Self {
            at: Some(value.span().start),
            what: format!("{table}.{key}: {what}"),
        }
    }
}

const AUTO: &str = "auto";

impl ProviderName {
    /// All providers, in the order in which they start to listen. The first one selects the
    /// TCP port if it is 0: RDMA devices that support iWARP have a socket for it, which software
    /// iWARP must not take.
    pub const ALL: [Self; 3] = [Self::Verbs, Self::Iwarp, Self::Shm];

    /// Whether it needs no device. Each of its connections uses a file descriptor.
    #[must_use]
    pub fn is_software(self) -> bool {
        self != Self::Verbs
    }

    /// Its name in configurations, logs and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Verbs => "verbs",
            Self::Iwarp => "iwarp",
            Self::Shm => "shm",
        }
    }
}

impl fmt::Display for ProviderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl RawProvider {
    /// Names of the command line, in order.
    pub(crate) fn of_names(names: &[String]) -> Self {
        match names {
            [one] => Self::One(one.clone()),
            names => {
                let spanned = |name: &String| Spanned::new(0..0, name.clone());
                Self::List(names.iter().map(spanned).collect())
            }
        }
    }

    /// # Errors
    /// [`ValueError`] names the valid values.
    pub(crate) fn choice(&self) -> Result<Choice, ValueError> {
        let wrong = |at, what| Err(ValueError { at, what });
        let list = match self {
            Self::One(name) if name == AUTO => return Ok(Choice::Auto),
            Self::One(name) => {
                let Some(provider) = find(name) else {
                    return wrong(None, unknown(name));
                };
                return Ok(Choice::These(vec![provider]));
            }
            Self::List(list) => list,
        };
        let mut these = Vec::new();
        for name in list {
            let (at, name) = (Some(name.span().start), name.get_ref());
            match find(name) {
                Some(provider) if these.contains(&provider) => {
                    return wrong(at, format!("{name:?} is named twice"));
                }
                Some(provider) => these.push(provider),
                None if name == AUTO => {
                    let what = "\"auto\" must not be in a list; write it alone";
                    return wrong(at, what.to_owned());
                }
                None => return wrong(at, unknown(name)),
            }
        }
        if these.is_empty() {
            let what = "the list is empty; name \"verbs\", \"iwarp\", \"shm\", or omit this key";
            return wrong(None, what.to_owned());
        }
        Ok(Choice::These(these))
    }
}

fn find(name: &str) -> Option<ProviderName> {
    ProviderName::ALL.into_iter().find(|one| one.name() == name)
}

fn unknown(name: &str) -> String {
    format!(
        "there is no provider {name:?}; must be \"auto\", \"iwarp\", \"verbs\", \"shm\", or a list \
         such as [\"verbs\", \"iwarp\"]"
    )
}

impl<'de> Deserialize<'de> for RawProvider {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrList;

        impl<'de> Visitor<'de> for OneOrList {
            type Value = RawProvider;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name such as \"iwarp\", or a list of such names")
            }

            fn visit_str<E>(self, name: &str) -> Result<RawProvider, E> {
                Ok(RawProvider::One(name.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<RawProvider, A::Error> {
                let mut names = Vec::new();
                while let Some(name) = seq.next_element()? {
                    names.push(name);
                }
                Ok(RawProvider::List(names))
            }
        }

        deserializer.deserialize_any(OneOrList)
    }
}
