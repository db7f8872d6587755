//! The cases that are counted.

use nvmeof_guards::{Direction, Engine, Long, Stage};
use nvmeof_initiator::Operation;

/// A code path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    path: Path,
    /// Operations of each round, of all hosts together.
    pub(crate) depth: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// From the capsule to the response, with a null device.
    Target(Operation),
    /// The same with two active hosts, which share its buffers; with many commands, also fair
    /// queueing.
    TargetOfTwo(Operation),
    /// From a call to its result.
    Initiator(Operation),
    /// The same two through shared memory, where the target accesses the initiator's buffers
    /// in place.
    ShmTarget(Operation),
    ShmInitiator(Operation),
    /// The same two over TCP: with system calls, without the work of the kernel.
    TcpTarget(Operation),
    TcpInitiator(Operation),
    /// The same two over an RDMA device, without its library. On the target, queue pairs have
    /// their own receives or share them.
    VerbsTarget(Receives, Operation),
    VerbsInitiator(Operation),
    /// The same two for writes without data in their capsules: the target reads them.
    VerbsTargetPull,
    VerbsInitiatorPull,
    /// The same as the initiator that trusts the target with its buffers.
    VerbsTrustingRead,
    VerbsTrustingPull,
    /// A Send of 64 bytes, a frame.
    EngineSend,
    EngineReceive,
    /// 128 KiB in several frames: the side that writes or reads.
    Long(Direction),
    /// The same: the side that owns the memory.
    LongOwner(Direction),
    /// The initiator through its async interface, over TCP.
    Awaited(Interface, Operation),
}

/// How a target receives over RDMA devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receives {
    Own,
    Shared,
}

/// An async interface of the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interface {
    /// `Namespace` with one I/O queue.
    Direct,
    /// `Namespace` of two controllers with one I/O queue each, in turn.
    TwoQueues,
    /// `MultipathNamespace` with one path.
    OnePath,
    /// The same with two paths, of which it uses one.
    Standby,
    /// The same with two paths in turn.
    TwoPaths,
}

/// What a case may cost at most: that much more than another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    pub(crate) than: Case,
    pub(crate) percent: u64,
}

/// The program for cases with sockets.
const SOCKETS: &str = "nvmeof-guards-sockets";
/// The program for cases of the async interface.
const AWAITED: &str = "nvmeof-guards-awaited";
/// The program for cases with RDMA devices.
const VERBS: &str = "nvmeof-guards-verbs";
/// The other programs.
pub(crate) const OTHERS: [&str; 3] = [SOCKETS, AWAITED, VERBS];

/// The beginnings of the names of the stand-in's functions, which are not counted: for the device
/// of the target, and for that of the initiator.
const DEVICE: &str = "device_call_";
const PEER: &str = "peer_call_";

/// One operation, and many in one iteration.
const DEPTHS: &[u16] = &[1, 16];
/// For a deep queue also the costs that many operations in one iteration share.
const DEPTHS_TO_DEEP: &[u16] = &[1, 16, 128];
/// Two queues in turn with one operation at a time would count sleeps.
const DEPTHS_IN_TURN: &[u16] = &[16];
/// What several paths may cost beyond the same number of queues, in percent.
const PATHS_PERCENT: u64 = 3;
/// One operation of each host, and more than an iteration starts.
const DEPTHS_OF_TWO: &[u16] = &[2, 128];

/// Every case.
pub(crate) fn all() -> impl Iterator<Item = Case> {
    let paths = [
        Path::Target(Operation::Read),
        Path::Target(Operation::Write),
        Path::TargetOfTwo(Operation::Read),
        Path::TargetOfTwo(Operation::Write),
        Path::Initiator(Operation::Read),
        Path::Initiator(Operation::Write),
        Path::ShmTarget(Operation::Read),
        Path::ShmTarget(Operation::Write),
        Path::ShmInitiator(Operation::Read),
        Path::ShmInitiator(Operation::Write),
        Path::TcpTarget(Operation::Read),
        Path::TcpTarget(Operation::Write),
        Path::TcpInitiator(Operation::Read),
        Path::TcpInitiator(Operation::Write),
        Path::VerbsTarget(Receives::Own, Operation::Read),
        Path::VerbsTarget(Receives::Own, Operation::Write),
        Path::VerbsTarget(Receives::Shared, Operation::Read),
        Path::VerbsTarget(Receives::Shared, Operation::Write),
        Path::VerbsInitiator(Operation::Read),
        Path::VerbsInitiator(Operation::Write),
        Path::VerbsTargetPull,
        Path::VerbsInitiatorPull,
        Path::VerbsTrustingRead,
        Path::VerbsTrustingPull,
        Path::EngineSend,
        Path::EngineReceive,
        Path::Long(Direction::Write),
        Path::LongOwner(Direction::Write),
        Path::Long(Direction::Read),
        Path::LongOwner(Direction::Read),
    ];
    let awaited = [
        Interface::Direct,
        Interface::OnePath,
        Interface::Standby,
        Interface::TwoQueues,
        Interface::TwoPaths,
    ];
    let awaited = awaited.into_iter().flat_map(|interface| {
        [Operation::Read, Operation::Write].map(|one| Path::Awaited(interface, one))
    });
    let cases = |path| {
        let depths = match path {
            Path::TargetOfTwo(_) => DEPTHS_OF_TWO,
            Path::ShmTarget(_) => DEPTHS_TO_DEEP,
            Path::Awaited(Interface::TwoQueues | Interface::TwoPaths, _) => DEPTHS_IN_TURN,
            _ => DEPTHS,
        };
        depths.iter().map(move |&depth| Case { path, depth })
    };
    paths.into_iter().chain(awaited).flat_map(cases)
}

impl Case {
    pub(crate) fn find(name: &str) -> Result<Self, String> {
        let found = all().find(|case| case.name() == name);
        found.ok_or_else(|| format!("unknown case `{name}`"))
    }

    pub(crate) fn name(self) -> String {
        let path = match self.path {
            Path::Target(one) => format!("target-{}", operation(one)),
            Path::TargetOfTwo(one) => format!("target-of-two-{}", operation(one)),
            Path::Initiator(one) => format!("initiator-{}", operation(one)),
            Path::ShmTarget(one) => format!("shm-target-{}", operation(one)),
            Path::ShmInitiator(one) => format!("shm-initiator-{}", operation(one)),
            Path::TcpTarget(one) => format!("tcp-target-{}", operation(one)),
            Path::TcpInitiator(one) => format!("tcp-initiator-{}", operation(one)),
            Path::VerbsTarget(Receives::Own, one) => format!("verbs-target-{}", operation(one)),
            Path::VerbsTarget(Receives::Shared, one) => {
                format!("verbs-target-shared-{}", operation(one))
            }
            Path::VerbsInitiator(one) => format!("verbs-initiator-{}", operation(one)),
            Path::VerbsTargetPull => "verbs-target-pull".to_owned(),
            Path::VerbsInitiatorPull => "verbs-initiator-pull".to_owned(),
            Path::VerbsTrustingRead => "verbs-initiator-trusting-read".to_owned(),
            Path::VerbsTrustingPull => "verbs-initiator-trusting-pull".to_owned(),
            Path::EngineSend => "engine-send".to_owned(),
            Path::EngineReceive => "engine-receive".to_owned(),
            Path::Long(Direction::Write) => "engine-write-128k".to_owned(),
            Path::LongOwner(Direction::Write) => "engine-written-128k".to_owned(),
            Path::Long(Direction::Read) => "engine-read-128k".to_owned(),
            Path::LongOwner(Direction::Read) => "engine-answer-128k".to_owned(),
            Path::Awaited(interface, one) => {
                format!("awaited-{}-{}", interface.name(), operation(one))
            }
        };
        format!("{path}-qd{}", self.depth)
    }

    /// The functions in which instructions are counted, and those that they
    /// call in which none are.
    pub(crate) fn functions(self) -> &'static [&'static str] {
        match self.path {
            Path::Target(_) | Path::TargetOfTwo(_) => &["target_iteration", "carry_for_target"],
            Path::Initiator(_) => &["initiator_iteration", "carry_for_initiator"],
            Path::ShmTarget(_) | Path::TcpTarget(_) => &["target_iteration"],
            Path::ShmInitiator(_) | Path::TcpInitiator(_) => &["initiator_iteration"],
            Path::VerbsTarget(..) | Path::VerbsTargetPull => &["target_iteration", DEVICE],
            Path::VerbsInitiator(_)
            | Path::VerbsInitiatorPull
            | Path::VerbsTrustingRead
            | Path::VerbsTrustingPull => &["initiator_iteration", PEER],
            Path::EngineSend => &["sender_iteration", "carry_for_initiator"],
            Path::EngineReceive => &["receiver_iteration", "carry_for_target"],
            Path::Long(_) => &["worker_iteration", "worker_posts", "carry_for_initiator"],
            Path::LongOwner(_) => &["owner_iteration", "carry_for_target"],
            Path::Awaited(..) => &["initiator_rounds", "target_iteration"],
        }
    }

    /// The program that runs the case and its arguments; `None` if this program runs it.
    pub(crate) fn elsewhere(self) -> Option<(&'static str, Vec<String>)> {
        let (program, arguments) = match self.path {
            Path::TcpTarget(one) | Path::TcpInitiator(one) => (SOCKETS, vec![operation(one)]),
            Path::Awaited(interface, one) => (AWAITED, vec![interface.name(), operation(one)]),
            Path::VerbsTarget(Receives::Shared, one) => (VERBS, vec!["shared", operation(one)]),
            Path::VerbsTarget(Receives::Own, one) | Path::VerbsInitiator(one) => {
                (VERBS, vec!["own", operation(one)])
            }
            Path::VerbsTargetPull | Path::VerbsInitiatorPull => (VERBS, vec!["pulled", "write"]),
            Path::VerbsTrustingRead => (VERBS, vec!["trusted", "read"]),
            Path::VerbsTrustingPull => (VERBS, vec!["trusted-pulled", "write"]),
            _ => return None,
        };
        let mut arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
        arguments.push(self.depth.to_string());
        Some((program, arguments))
    }

    /// Whether its count has a baseline. Those of the async interface depend a little on the time
    /// that they take, and have only a [`bound`](Self::bound).
    pub(crate) fn has_baseline(self) -> bool {
        !matches!(self.path, Path::Awaited(..))
    }

    /// What it may cost compared with another case.
    pub(crate) fn bound(self) -> Option<Bound> {
        let Path::Awaited(interface, one) = self.path else {
            return None;
        };
        let than = match interface {
            Interface::Direct | Interface::TwoQueues => return None,
            Interface::OnePath | Interface::Standby => Interface::Direct,
            Interface::TwoPaths => Interface::TwoQueues,
        };
        Some(Bound {
            than: Self {
                path: Path::Awaited(than, one),
                ..self
            },
            percent: PATHS_PERCENT,
        })
    }

    /// Runs the case.
    ///
    /// # Errors
    /// Another program runs it.
    pub(crate) fn run(self, rounds: u32) -> Result<(), String> {
        let depth = usize::from(self.depth);
        match self.path {
            Path::Target(operation) | Path::Initiator(operation) => {
                rounds_on(&mut Stage::new(), operation, depth, rounds);
            }
            Path::TargetOfTwo(operation) => {
                let mut stage = Stage::new().and_another();
                rounds_on(&mut stage, operation, depth / 2, rounds);
            }
            Path::ShmTarget(operation) | Path::ShmInitiator(operation) => {
                rounds_on(&mut Stage::shm(), operation, depth, rounds);
            }
            Path::TcpTarget(_)
            | Path::TcpInitiator(_)
            | Path::VerbsTarget(..)
            | Path::VerbsInitiator(_)
            | Path::VerbsTargetPull
            | Path::VerbsInitiatorPull
            | Path::VerbsTrustingRead
            | Path::VerbsTrustingPull
            | Path::Awaited(..) => {
                return Err(format!("{} runs in another program", self.name()));
            }
            Path::EngineSend | Path::EngineReceive => {
                let mut engine = Engine::new(false);
                (0..rounds).for_each(|_| engine.round(depth));
            }
            Path::Long(direction) | Path::LongOwner(direction) => {
                let mut long = Long::new(direction);
                (0..rounds).for_each(|_| long.round(depth));
            }
        }
        Ok(())
    }
}

impl Interface {
    fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::TwoQueues => "two-queues",
            Self::OnePath => "one-path",
            Self::Standby => "standby",
            Self::TwoPaths => "two-paths",
        }
    }
}

fn operation(operation: Operation) -> &'static str {
    match operation {
        Operation::Write => "write",
        _ => "read",
    }
}

fn rounds_on(stage: &mut Stage, operation: Operation, depth: usize, rounds: u32) {
    for _ in 0..rounds {
        stage.round(operation, depth, |step| step(), |step| step());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_runs() {
        for case in all() {
            assert_eq!(Case::find(&case.name()), Ok(case));
            assert_eq!(case.run(2).is_ok(), case.elsewhere().is_none());
        }
        assert!(Case::find("nothing").is_err());
    }

    #[test]
    fn case_is_bounded_by_one_without_a_bound() {
        let bounded: Vec<_> = all()
            .filter_map(|case| Some((case, case.bound()?)))
            .collect();
        let names: Vec<_> = bounded
            .iter()
            .map(|(case, bound)| format!("{} <= {}", case.name(), bound.than.name()))
            .collect();
        let expected = "awaited-two-paths-read-qd16 <= awaited-two-queues-read-qd16";
        assert!(names.iter().any(|name| name == expected), "{names:?}");
        assert_eq!(names.len(), 10);
        for (case, bound) in bounded {
            assert!(all().any(|other| other == bound.than), "{}", case.name());
            assert_eq!(bound.than.bound(), None);
        }
    }
}
