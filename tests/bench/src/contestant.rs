//! Contestants: the programs that are measured.

use serde::Serialize;

use crate::work::{About, Store, Work};

/// A program or set-up that is measured. "Ours" is this project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Contestant {
    /// Yardstick: bare TCP.
    Tcp,
    /// The same with MSG_ZEROCOPY.
    #[serde(rename = "tcp-zerocopy")]
    TcpZerocopy,
    /// Yardstick: fio on the file itself.
    Local,
    /// Yardstick: bare shared memory.
    #[serde(rename = "shm-bare")]
    ShmBare,
    /// Ours over software iWARP.
    Iwarp,
    /// The same with CRCs.
    #[serde(rename = "iwarp-crc")]
    IwarpCrc,
    /// Ours through shared memory.
    Shm,
    /// Yardstick: a bare Unix socket.
    #[serde(rename = "unix-bare")]
    UnixBare,
    /// Ours over software iWARP through a Unix socket.
    Unix,
    /// Ours through shared memory, with the async interface.
    #[serde(rename = "shm-async")]
    ShmAsync,
    /// Ours through shared memory, with SQPOLL.
    #[serde(rename = "shm-sqpoll")]
    ShmSqpoll,
    /// Ours with the busy queue pairs alone.
    Alone,
    /// Ours with the busy queue pairs beside many idle ones.
    Crowd,
    /// Ours with one queue for all operations.
    #[serde(rename = "1-queue")]
    OneQueue,
    /// Ours with the same operations on several queues.
    Queues,
    /// Ours with one reactor.
    #[serde(rename = "1-reactor")]
    OneReactor,
    /// Ours with two.
    #[serde(rename = "2-reactors")]
    TwoReactors,
    /// The permitted CPU time of an idle process.
    Limit,
    /// Our target with idle hosts.
    Target,
    /// Our idle initiator.
    Initiator,
    /// An honest host alone.
    Quiet,
    /// The same host beside hostile peers.
    Beside,
    /// `--peer`: another initiator with our target.
    Peer,
    /// `--peer-target`: our initiator with another target.
    #[serde(rename = "peer-target")]
    PeerTarget,
    /// `--peer-pair`: another initiator with another target.
    #[serde(rename = "peer-pair")]
    PeerPair,
}

impl Contestant {
    /// The contestants of a workload: first the yardstick.
    pub(crate) fn of(work: &Work) -> &'static [Self] {
        let file = work.store == Store::File;
        match work.about {
            About::Iwarp if file => &[Self::Local, Self::Iwarp],
            About::Iwarp => &[Self::Tcp, Self::Iwarp],
            About::Shm if file => &[Self::Local, Self::Shm],
            About::Shm => &[Self::ShmBare, Self::Shm],
            About::Unix => &[Self::UnixBare, Self::Unix],
            About::UnixTcp => &[Self::Iwarp, Self::Unix],
            About::Crc => &[Self::Iwarp, Self::IwarpCrc],
            About::Zerocopy => &[Self::Tcp, Self::TcpZerocopy],
            About::Async => &[Self::Shm, Self::ShmAsync],
            About::Sqpoll => &[Self::Shm, Self::ShmSqpoll],
            About::Crowd | About::CrowdShm => &[Self::Alone, Self::Crowd],
            About::Queues => &[Self::OneQueue, Self::Queues],
            About::Reactors | About::ReactorsShm => &[Self::OneReactor, Self::TwoReactors],
            About::Idle | About::IdleShm | About::IdleCrowd | About::IdleCrowdShm => {
                &[Self::Limit, Self::Target, Self::Initiator]
            }
            About::Hostile(_) | About::HostileSame(_) => &[Self::Quiet, Self::Beside],
            About::Pair | About::PairBusy => &[Self::PeerPair, Self::Iwarp],
            About::PairQueues => &[Self::PeerPair, Self::Queues],
        }
    }

    /// The yardstick: the contestant that the others are compared with.
    pub(crate) fn yardstick(work: &Work) -> Self {
        Self::of(work).first().copied().unwrap_or(Self::Limit)
    }

    /// Whether it is neither ours nor a yardstick.
    pub(crate) fn is_foreign(self) -> bool {
        matches!(self, Self::Peer | Self::PeerTarget | Self::PeerPair)
    }

    /// Whether its target is neither ours nor a yardstick.
    pub(crate) fn has_foreign_target(self) -> bool {
        matches!(self, Self::PeerTarget | Self::PeerPair)
    }

    /// Number of slices of a measurement. With another initiator it is one, because that
    /// receives its run time in whole seconds.
    pub(crate) fn slices(work: &Work, mut all: impl Iterator<Item = Self>) -> u32 {
        match all.any(|one| matches!(one, Self::Peer | Self::PeerPair)) {
            true => 1,
            false => work.slices(),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::TcpZerocopy => "tcp-zerocopy",
            Self::Local => "local",
            Self::ShmBare => "shm-bare",
            Self::Iwarp => "iwarp",
            Self::IwarpCrc => "iwarp-crc",
            Self::Shm => "shm",
            Self::UnixBare => "unix-bare",
            Self::Unix => "unix",
            Self::ShmAsync => "shm-async",
            Self::ShmSqpoll => "shm-sqpoll",
            Self::Alone => "alone",
            Self::Crowd => "crowd",
            Self::OneQueue => "1-queue",
            Self::Queues => "queues",
            Self::OneReactor => "1-reactor",
            Self::TwoReactors => "2-reactors",
            Self::Limit => "limit",
            Self::Target => "target",
            Self::Initiator => "initiator",
            Self::Quiet => "quiet",
            Self::Beside => "beside",
            Self::Peer => "peer",
            Self::PeerTarget => "peer-target",
            Self::PeerPair => "peer-pair",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work;

    #[test]
    fn every_workload_has_a_yardstick_and_contestants() {
        for work in work::all().into_iter().chain(work::pairs()) {
            let all = Contestant::of(&work);
            assert!(all.len() > 1, "{}", work.name());
            assert_eq!(all[0], Contestant::yardstick(&work));
        }
    }
}
