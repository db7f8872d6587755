//! `reactor.cores` and `reactor.count`: the CPUs of the reactors.

use std::num::NonZero;
use std::thread::available_parallelism;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

/// Most reactors of a target.
pub const MOST_REACTORS: usize = 256;
/// CPUs that the kernel's set can name (`CPU_SETSIZE`).
const MOST_CPUS: usize = 1024;

/// The CPUs of the reactors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cores {
    /// This many reactors, which the kernel schedules on any CPU.
    Anywhere(usize),
    /// One reactor on each of these, in this order.
    On(Vec<usize>),
    /// One on each CPU that the target may use, or on this many of them.
    Auto(Option<usize>),
}

impl Cores {
    /// Number of reactors, as far as it is known before they are placed.
    pub fn count(&self) -> u32 {
        let count = match self {
            Self::Anywhere(count) | Self::Auto(Some(count)) => *count,
            Self::On(cores) => cores.len(),
            Self::Auto(None) => available_parallelism().map_or(1, NonZero::get),
        };
        u32::try_from(count.min(MOST_REACTORS)).unwrap_or(u32::MAX)
    }
}

/// The value of `reactor.cores`: `"auto"`, CPUs and ranges of CPUs in the format of systemd's
/// `CPUAffinity=` (`"0-3,8"`), or an array of numbers and such texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RawCores {
    Auto,
    On(Vec<usize>),
}

impl RawCores {
    /// The CPUs, with `count` reactors if that is set. The error is about `count`.
    pub(crate) fn resolve(this: Option<&Self>, count: Option<usize>) -> Result<Cores, String> {
        if count.is_some_and(|count| count == 0 || count > MOST_REACTORS) {
            return Err(format!("reactor.count: must be 1 to {MOST_REACTORS}"));
        }
        match (this, count) {
            (None, count) => Ok(Cores::Anywhere(count.unwrap_or(1))),
            (Some(Self::Auto), count) => Ok(Cores::Auto(count)),
            (Some(Self::On(cores)), None) => Ok(Cores::On(cores.clone())),
            (Some(Self::On(cores)), Some(count)) if count == cores.len() => {
                Ok(Cores::On(cores.clone()))
            }
            (Some(Self::On(cores)), Some(count)) => Err(format!(
                "reactor.count: {count} conflicts with reactor.cores, which names {} CPUs; omit \
                 one of them",
                cores.len()
            )),
        }
    }
}

/// CPUs of a text such as `0-3,8`, in its order.
fn parse(text: &str) -> Result<Vec<usize>, String> {
    let wrong = |part: &str| {
        format!("{part:?}: must be a CPU (0) or a range of them (0-3), separated by commas")
    };
    let mut all = Vec::new();
    // systemd separates by spaces too.
    let parts = text.split(|c: char| c == ',' || c.is_whitespace());
    for part in parts.filter(|part| !part.is_empty()) {
        let number = |text: &str| text.parse::<usize>().map_err(|_| wrong(part));
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if last < first {
            return Err(format!(
                "{part:?}: the end of the range is less than its start; write {last}-{first}"
            ));
        }
        if last >= MOST_CPUS {
            return Err(format!(
                "{part:?}: out of range; the highest CPU number is {}",
                MOST_CPUS - 1
            ));
        }
        all.extend(first..=last);
    }
    Ok(all)
}

/// One element of an array.
struct Element(Vec<usize>);

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match deserializer.deserialize_any(CoresVisitor)? {
            RawCores::On(cores) => Ok(Self(cores)),
            RawCores::Auto => Err(D::Error::custom("\"auto\" must not be in a list")),
        }
    }
}

impl<'de> Deserialize<'de> for RawCores {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match deserializer.deserialize_any(CoresVisitor)? {
            Self::On(cores) if cores.is_empty() || cores.len() > MOST_REACTORS => Err(
                D::Error::custom(format!("name 1 to {MOST_REACTORS} CPUs, or omit the key")),
            ),
            cores => Ok(cores),
        }
    }
}

struct CoresVisitor;

impl<'de> Visitor<'de> for CoresVisitor {
    type Value = RawCores;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("\"auto\", CPUs such as \"0-3,8\", or a list of them")
    }

    fn visit_i64<E: Error>(self, core: i64) -> Result<RawCores, E> {
        self.visit_str(&core.to_string())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<RawCores, E> {
        if text.trim() == "auto" {
            return Ok(RawCores::Auto);
        }
        parse(text).map(RawCores::On).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<RawCores, A::Error> {
        let mut all = Vec::new();
        while let Some(Element(cores)) = elements.next_element()? {
            all.extend(cores);
        }
        Ok(RawCores::On(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, Deserialize)]
    struct Holder {
        cores: RawCores,
    }

    fn read(value: &str) -> Result<RawCores, String> {
        let holder: Result<Holder, _> = toml::from_str(&format!("cores = {value}"));
        holder
            .map(|it| it.cores)
            .map_err(|error| error.message().to_owned())
    }

    #[test]
    fn cores_are_numbers_ranges_and_lists() {
        for (text, cores) in [
            ("[0]", vec![0]),
            ("[3, 1, 1]", vec![3, 1, 1]),
            ("7", vec![7]),
            ("\"0-3,8\"", vec![0, 1, 2, 3, 8]),
            ("\"4 6-7\"", vec![4, 6, 7]),
            ("[0, \"2-3\"]", vec![0, 2, 3]),
        ] {
            assert_eq!(read(text), Ok(RawCores::On(cores)), "{text}");
        }
        assert_eq!(read("\"auto\""), Ok(RawCores::Auto));
    }

    #[test]
    fn invalid_cores_are_refused() {
        for (text, words) in [
            ("[]", "1 to 256"),
            ("\"\"", "1 to 256"),
            ("\"0-999\"", "1 to 256"),
            ("\"3-1\"", "write 1-3"),
            ("\"1024\"", "1023"),
            ("\"x\"", "\"x\""),
            ("-1", "\"-1\""),
            ("\"0-18446744073709551616\"", "must be a CPU"),
            ("[\"auto\"]", "must not be in a list"),
            ("true", "\"auto\", CPUs such as"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn count_that_differs_from_named_cores_is_refused() {
        let on = RawCores::On(vec![4, 5]);
        let resolve = RawCores::resolve;
        assert_eq!(resolve(None, None), Ok(Cores::Anywhere(1)));
        assert_eq!(resolve(None, Some(3)), Ok(Cores::Anywhere(3)));
        assert_eq!(
            resolve(Some(&RawCores::Auto), Some(3)),
            Ok(Cores::Auto(Some(3)))
        );
        assert_eq!(resolve(Some(&on), Some(2)), Ok(Cores::On(vec![4, 5])));
        assert!(
            resolve(Some(&on), Some(3))
                .unwrap_err()
                .contains("omit one of them")
        );
        assert!(resolve(None, Some(0)).unwrap_err().contains("1 to 256"));
        assert!(resolve(None, Some(257)).unwrap_err().contains("1 to 256"));
    }
}
