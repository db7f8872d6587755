//! The header of a scenario file, and the selection of scenarios.

use std::fs;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use crate::Trouble;

/// Default timeout of a scenario in seconds.
const DEFAULT_TIMEOUT_S: u64 = 120;

/// The provider of this project's side, which decides the device of the kernel's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Provider {
    /// Software iWARP in the process, the kernel over `siw`.
    Iwarp,
    /// libibverbs over `rxe`, both sides.
    VerbsRxe,
    /// libibverbs over `siw`, both sides.
    VerbsSiw,
}

impl Provider {
    const ALL: [Self; 3] = [Self::Iwarp, Self::VerbsRxe, Self::VerbsSiw];

    /// Its name in scenario files, on the command line and in results.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Iwarp => "iwarp",
            Self::VerbsRxe => "verbs-rxe",
            Self::VerbsSiw => "verbs-siw",
        }
    }
}

impl FromStr for Provider {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|known| known.name() == word);
        found.ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            format!("unknown provider `{word}`; use one of {known}")
        })
    }
}

/// One file below `scenarios/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scenario {
    /// The file's name without `.sh`.
    pub(crate) name: String,
    /// What it proves, in a line.
    pub(crate) about: String,
    /// Providers that it runs over, in this order.
    pub(crate) providers: Vec<Provider>,
    /// Time limit after which it has failed.
    pub(crate) timeout: Duration,
    /// The same with `--long`.
    long_timeout: Duration,
    /// A benchmark, which is not part of an ordinary run.
    pub(crate) figures: bool,
    /// It tests the transport: a rotation runs it over all providers.
    pub(crate) transport: bool,
    /// It needs `/lab/fio-engine`.
    pub(crate) fio_engine: bool,
    /// It needs `/lab/packages`.
    pub(crate) packages: bool,
    /// The script in `outside/` that runs on this machine meanwhile, without `.sh`.
    pub(crate) outside: Option<String>,
    pub(crate) machine: Machine,
}

/// Requirements on the guest of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) memory_mib: u32,
    pub(crate) cpus: u32,
    /// NUMA nodes, each with at least one CPU.
    pub(crate) nodes: u32,
}

impl Machine {
    /// Whether a scenario that requires `wanted` can run on this one. More emulated CPUs are
    /// slower, so the number must be equal.
    pub(crate) fn suits(self, wanted: Self) -> bool {
        self.memory_mib >= wanted.memory_mib
            && self.cpus == wanted.cpus
            && self.nodes >= wanted.nodes
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            memory_mib: 1024,
            cpus: 2,
            nodes: 1,
        }
    }
}

/// A scenario over one provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) scenario: Scenario,
    pub(crate) provider: Provider,
}

impl Case {
    /// Its name on the command line and on disk.
    pub(crate) fn name(&self) -> String {
        format!("{}@{}", self.scenario.name, self.provider.name())
    }
}

impl Scenario {
    /// Reads the comments at the head of a file: `# key: value` up to the
    /// first line that is no comment.
    pub(crate) fn parse(name: &str, text: &str) -> Result<Self, String> {
        let mut about = None;
        let mut providers = Vec::new();
        let mut timeout_s = DEFAULT_TIMEOUT_S;
        let mut long_timeout_s = None;
        let mut machine = Machine::default();
        let (mut figures, mut transport) = (false, false);
        let (mut fio_engine, mut packages) = (false, false);
        let mut outside = None;
        for line in text.lines().take_while(|line| line.starts_with('#')) {
            let Some((key, value)) = line.trim_start_matches(['#', ' ']).split_once(':') else {
                continue;
            };
            let value = value.trim();
            match key {
                "about" => about = Some(value.to_owned()),
                "providers" => {
                    for word in value.split_whitespace() {
                        providers.push(word.parse()?);
                    }
                }
                "timeout" => timeout_s = number(key, value)?,
                "long-timeout" => long_timeout_s = Some(number(key, value)?),
                "memory" => machine.memory_mib = number(key, value)?,
                "figures" => figures = yes(key, value)?,
                "transport" => transport = yes(key, value)?,
                "fio-engine" => fio_engine = yes(key, value)?,
                "packages" => packages = yes(key, value)?,
                "outside" => outside = Some(value.to_owned()),
                "cpus" => machine.cpus = number(key, value)?,
                "nodes" => machine.nodes = number(key, value)?,
                _ => {}
            }
        }
        if providers.is_empty() {
            return Err("the line `# providers: ...` is missing or empty".to_owned());
        }
        if machine.nodes > machine.cpus {
            return Err(format!(
                "`# nodes: {}` exceeds the number of cpus ({})",
                machine.nodes, machine.cpus
            ));
        }
        Ok(Self {
            name: name.to_owned(),
            about: about.ok_or("the line `# about: ...` is missing")?,
            providers,
            timeout: Duration::from_secs(timeout_s),
            long_timeout: Duration::from_secs(long_timeout_s.unwrap_or(timeout_s)),
            figures,
            transport,
            fio_engine,
            packages,
            outside,
            machine,
        })
    }
}

impl Scenario {
    /// The same scenario with its time limit of a long run.
    pub(crate) fn for_long_run(self) -> Self {
        Self {
            timeout: self.long_timeout,
            ..self
        }
    }

    /// One of its providers, in turn by `number`.
    fn one_provider(&self, number: usize) -> &[Provider] {
        let at = number.checked_rem(self.providers.len()).unwrap_or(0);
        self.providers.get(at..=at).unwrap_or(&self.providers)
    }
}

/// The value of a flag, whose only value is `yes`.
fn yes(key: &str, value: &str) -> Result<bool, String> {
    let yes = (value == "yes").then_some(true);
    yes.ok_or_else(|| format!("`# {key}: {value}` is not `yes`; remove the line otherwise"))
}

fn number<T: FromStr + Default + PartialEq>(key: &str, value: &str) -> Result<T, String> {
    let number = value.parse().ok().filter(|number| *number != T::default());
    number.ok_or_else(|| format!("`# {key}: {value}` is not a number greater than 0"))
}

/// All scenarios of a folder, by name.
pub(crate) fn load(folder: &Path) -> Result<Vec<Scenario>, Trouble> {
    let entries = fs::read_dir(folder).map_err(|error| Trouble::file("read", folder, &error))?;
    let mut scenarios = Vec::new();
    for entry in entries {
        let path = entry
            .map_err(|error| Trouble::file("read", folder, &error))?
            .path();
        if path.extension().is_none_or(|extension| extension != "sh") {
            continue;
        }
        let text =
            fs::read_to_string(&path).map_err(|error| Trouble::file("read", &path, &error))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let scenario = Scenario::parse(&name, &text)
            .map_err(|why| Trouble::SetUp(format!("{}: {why}", path.display())))?;
        scenarios.push(scenario);
    }
    scenarios.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(scenarios)
}

/// Selection of cases.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Choice<'a> {
    /// All scenarios except benchmarks.
    Ordinary,
    /// The same, each scenario over one provider, which changes with the number; transport
    /// scenarios over all.
    Rotated(usize),
    /// Benchmarks.
    Figures,
    /// `SCENARIO`, `SCENARIO@PROVIDER` or `@PROVIDER`.
    Named(&'a [String]),
}

impl<'a> Choice<'a> {
    /// The selection of the command line.
    pub(crate) fn new(named: &'a [String], figures: bool, rotated: Option<usize>) -> Self {
        match (named, figures, rotated) {
            (_, true, _) => Self::Figures,
            ([], false, Some(number)) => Self::Rotated(number),
            ([], false, None) => Self::Ordinary,
            (named, false, _) => Self::Named(named),
        }
    }

    fn takes(self, case: &Case) -> bool {
        match self {
            Self::Ordinary | Self::Rotated(_) => !case.scenario.figures,
            Self::Figures => case.scenario.figures,
            Self::Named(words) => words.iter().any(|word| is_named(case, word)),
        }
    }
}

/// The chosen cases.
pub(crate) fn select(scenarios: &[Scenario], choice: Choice<'_>) -> Result<Vec<Case>, Trouble> {
    let all = scenarios.iter().enumerate().flat_map(|(at, scenario)| {
        let case = |provider: &Provider| Case {
            scenario: scenario.clone(),
            provider: *provider,
        };
        let providers = match choice {
            Choice::Rotated(number) if !scenario.transport => {
                // Consecutive scenarios differ, so that a run has all providers.
                scenario.one_provider(number.wrapping_add(at))
            }
            _ => &scenario.providers,
        };
        providers.iter().map(case)
    });
    let all: Vec<Case> = all.collect();
    let words = if let Choice::Named(words) = choice {
        words
    } else {
        &[]
    };
    for word in words {
        if !all.iter().any(|case| is_named(case, word)) {
            let known: Vec<_> = scenarios.iter().map(|one| one.name.as_str()).collect();
            return Err(Trouble::SetUp(format!(
                "unknown scenario `{word}`; use NAME, NAME@PROVIDER or @PROVIDER, where NAME is \
                 one of {}",
                known.join(", ")
            )));
        }
    }
    Ok(all.into_iter().filter(|case| choice.takes(case)).collect())
}

/// Whether `word` selects the case. A benchmark is selected only by its name.
fn is_named(case: &Case, word: &str) -> bool {
    let (name, provider) = word.split_once('@').unwrap_or((word, ""));
    let meant = if name.is_empty() {
        !case.scenario.figures
    } else {
        name == case.scenario.name
    };
    meant
        && (provider.is_empty() || provider == case.provider.name())
        && !(name.is_empty() && provider.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "#!/bin/bash\n# about: it works: really\n# Some words.\n\
        # providers: iwarp verbs-siw\n# timeout: 90\n# cpus: 3\n# nodes: 2\n# outside: it\n\
        source lib.sh\n# memory: 1\n";

    fn scenario(name: &str) -> Scenario {
        Scenario::parse(name, FILE).unwrap()
    }

    fn names_of(scenarios: &[Scenario], choice: Choice<'_>) -> Vec<String> {
        let cases = select(scenarios, choice).unwrap();
        cases.iter().map(Case::name).collect()
    }

    #[test]
    fn header_is_read_up_to_the_first_command() {
        let scenario = scenario("smoke");
        assert_eq!(scenario.about, "it works: really");
        assert_eq!(scenario.outside.as_deref(), Some("it"));
        assert_eq!(scenario.providers, [Provider::Iwarp, Provider::VerbsSiw]);
        assert_eq!(scenario.timeout, Duration::from_secs(90));
        assert_eq!(scenario.clone().for_long_run(), scenario);
        assert_eq!(scenario.machine.memory_mib, 1024);
        assert_eq!((scenario.machine.cpus, scenario.machine.nodes), (3, 2));
        assert!(!scenario.fio_engine && !scenario.packages);
        let long = FILE.replace("# cpus", "# long-timeout: 900\n# cpus");
        let long = Scenario::parse("smoke", &long).unwrap();
        assert_eq!(long.timeout, Duration::from_secs(90));
        assert_eq!(long.for_long_run().timeout, Duration::from_secs(900));
    }

    #[test]
    fn faults_in_a_header_are_named() {
        for (text, words) in [
            ("# providers: iwarp\n", "# about"),
            ("# about: x\n", "# providers"),
            ("# about: x\n# providers: tcp\n", "`tcp`"),
            ("# about: x\n# providers: iwarp\n# timeout: 0\n", "timeout"),
            ("# about: x\n# providers: iwarp\n# memory: big\n", "memory"),
            ("# about: x\n# providers: iwarp\n# nodes: 3\n", "cpus (2)"),
            ("# about: x\n# providers: iwarp\n# figures: 1\n", "figures"),
            ("# about: x\n# providers: iwarp\n# fio-engine:\n", "engine"),
        ] {
            let why = Scenario::parse("x", text).unwrap_err();
            assert!(why.contains(words), "{text:?}: {why}");
        }
    }

    #[test]
    fn cases_are_chosen_by_scenario_and_provider() {
        let scenarios = [scenario("a"), scenario("b")];
        let names = |chosen: &[&str]| {
            let chosen: Vec<_> = chosen.iter().map(|&word| word.to_owned()).collect();
            names_of(&scenarios, Choice::new(&chosen, false, None))
        };
        assert_eq!(names(&[]).len(), 4);
        assert_eq!(names(&["b"]), ["b@iwarp", "b@verbs-siw"]);
        assert_eq!(names(&["@verbs-siw"]), ["a@verbs-siw", "b@verbs-siw"]);
        assert_eq!(names(&["a@iwarp", "b@iwarp"]), ["a@iwarp", "b@iwarp"]);
        for word in ["c", "a@verbs-rxe", "@", ""] {
            let words = [word.to_owned()];
            assert!(
                select(&scenarios, Choice::Named(&words)).is_err(),
                "{word:?}"
            );
        }
    }

    #[test]
    fn what_measures_runs_when_asked_for() {
        let figures = format!("# figures: yes\n{FILE}").replace("#!/bin/bash\n", "");
        let measures = Scenario::parse("m", &figures).unwrap();
        assert!(measures.figures && !scenario("a").figures);
        let scenarios = [scenario("a"), measures];
        let named = |word: &str| {
            let words = [word.to_owned()];
            names_of(&scenarios, Choice::new(&words, false, None))
        };
        let ordinary = names_of(&scenarios, Choice::new(&[], false, None));
        assert_eq!(ordinary, ["a@iwarp", "a@verbs-siw"]);
        let measuring = names_of(&scenarios, Choice::new(&[], true, None));
        assert_eq!(measuring, ["m@iwarp", "m@verbs-siw"]);
        assert_eq!(named("m"), measuring);
        assert_eq!(named("m@iwarp"), ["m@iwarp"]);
        assert_eq!(named("@iwarp"), ["a@iwarp"]);
    }

    #[test]
    fn a_rotation_has_every_pair_within_as_many_numbers_as_providers() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
        let scenarios = load(&folder).unwrap();
        let all = names_of(&scenarios, Choice::Ordinary);
        let mut seen = Vec::new();
        for number in 1000..1003 {
            let names = names_of(&scenarios, Choice::Rotated(number));
            assert!(names.len() < all.len());
            for scenario in scenarios.iter().filter(|scenario| !scenario.figures) {
                let its = |name: &&String| name.split('@').next() == Some(&scenario.name);
                let count = names.iter().filter(its).count();
                let expected = match scenario.transport {
                    true => scenario.providers.len(),
                    false => 1,
                };
                assert_eq!(count, expected, "{}", scenario.name);
            }
            seen.extend(names);
        }
        let missing: Vec<_> = all.iter().filter(|name| !seen.contains(name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn every_scenario_of_the_project_can_be_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
        let scenarios = load(&folder).unwrap();
        assert!(scenarios.iter().any(|scenario| scenario.name == "smoke"));
        for name in scenarios.iter().filter_map(|one| one.outside.as_ref()) {
            let script = folder.with_file_name("outside").join(format!("{name}.sh"));
            assert!(script.is_file(), "{}", script.display());
        }
    }
}
