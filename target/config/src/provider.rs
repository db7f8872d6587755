//! Which providers a port is to be served by, as it is configured.

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

/// What a port is served by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The RDMA device of its address; software iWARP where there is none. In
    /// either case shared memory for this host's processes, where that works.
    Auto,
    /// Each of these, or the target does not start.
    These(Vec<ProviderName>),
}

/// The value of the key `provider`: one name or a list of them.
#[derive(Clone, Debug)]
pub(crate) enum RawProvider {
    One(String),
    List(Vec<Spanned<String>>),
}

/// What is wrong with a value.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    /// Where in the text, when one name of a list is to blame.
    pub(crate) at: Option<usize>,
    pub(crate) what: String,
}

const AUTO: &str = "auto";

impl ProviderName {
    /// Every provider there is, in the order in which they begin to listen.
    /// The first chooses the number of a port that has none: RDMA devices that
    /// speak iWARP have a socket for it, which software must not take.
    pub const ALL: [Self; 3] = [Self::Verbs, Self::Iwarp, Self::Shm];

    /// Whether it takes no device: each of its connections is a descriptor.
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
    /// As on a command line: names one after the other.
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
    /// [`Wrong`] says what would be right.
    pub(crate) fn choice(&self) -> Result<Choice, Wrong> {
        let wrong = |at, what| Err(Wrong { at, what });
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
                    let what = "\"auto\" is no member of a list; it stands alone";
                    return wrong(at, what.to_owned());
                }
                None => return wrong(at, unknown(name)),
            }
        }
        if these.is_empty() {
            let what = "the list is empty; name \"verbs\", \"iwarp\", \"shm\", or leave it out";
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
