//! Rate limit for log lines that a peer can provoke.
//!
//! Each source of connections has a rate of its own, so that a flood from one does not
//! suppress the lines of others. A second rate limits all sources together.

use std::time::Duration;

use nvmeof_rdma::Peer;
use nvmeof_target_core::Source;

use crate::source::source_of;

/// Rate limiter for log lines about peers.
#[derive(Debug, Default)]
pub(crate) struct PeerLog {
    all: Bucket,
    /// Sources seen lately, at most [`SOURCES`].
    sources: Vec<(Source, Bucket)>,
    left_out: u64,
}

/// When the next line would be due if lines came at exactly the rate.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket(Duration);

/// A burst of lines, and one more in each interval.
#[derive(Clone, Copy, Debug)]
struct Rate {
    burst: u32,
    interval: Duration,
}

/// One source. A host connects all queues of its controllers at once.
const OF_SOURCE: Rate = Rate {
    burst: 128,
    interval: Duration::from_millis(250),
};
/// All sources together.
const OF_ALL: Rate = Rate {
    burst: 512,
    interval: Duration::from_millis(25),
};
const SOURCES: usize = 64;

impl PeerLog {
    /// Whether to write a line about `peer` now. `Some` has the number of lines left out
    /// since the last one, of all peers, if any were.
    pub(crate) fn ask(&mut self, peer: Peer, now: Duration) -> Option<Option<u64>> {
        let source = source_of(peer).network();
        let mut its = self.bucket(source);
        if !its.has(OF_SOURCE, now) || !self.all.has(OF_ALL, now) {
            self.left_out = self.left_out.saturating_add(1);
            return None;
        }
        its.take(OF_SOURCE, now);
        self.remember(source, its);
        self.all.take(OF_ALL, now);
        let left_out = std::mem::take(&mut self.left_out);
        Some((left_out > 0).then_some(left_out))
    }

    fn bucket(&self, source: Source) -> Bucket {
        let known = self.sources.iter().find(|(one, _)| *one == source);
        known.map_or_else(Bucket::default, |(_, its)| *its)
    }

    /// A new source replaces the one that was quiet for longest.
    fn remember(&mut self, source: Source, its: Bucket) {
        if let Some(known) = self.sources.iter_mut().find(|(one, _)| *one == source) {
            known.1 = its;
            return;
        }
        if self.sources.len() >= SOURCES {
            let quiet = (0..).zip(&self.sources).min_by_key(|(_, (_, its))| its.0);
            self.sources.swap_remove(quiet.map_or(0, |(at, _)| at));
        }
        self.sources.push((source, its));
    }
}

impl Bucket {
    fn has(self, rate: Rate, now: Duration) -> bool {
        self.0 <= now.saturating_add(rate.interval * (rate.burst - 1))
    }

    fn take(&mut self, rate: Rate, now: Duration) {
        self.0 = self.0.max(now).saturating_add(rate.interval);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> Peer {
        Peer::Ip(text.parse().unwrap())
    }

    #[test]
    fn flood_of_one_source_leaves_lines_of_another() {
        let mut log = PeerLog::default();
        let (hostile, honest) = (peer("10.0.0.1:1000"), peer("10.0.0.2:1000"));
        let mut lines = 0_u64;
        let mut left_out = 0;
        for line in 0..5000_u32 {
            // Two seconds, each line for another connection.
            let now = Duration::from_micros(400) * line;
            let reported = log.ask(hostile, now);
            lines += u64::from(reported.is_some());
            left_out += reported.flatten().unwrap_or_default();
        }
        assert!((128..=138).contains(&lines), "{lines}");
        for _ in 0..128 {
            let reported = log.ask(honest, Duration::from_secs(2)).unwrap();
            lines += 1;
            left_out += reported.unwrap_or_default();
        }
        assert_eq!(lines + left_out, 5128);
    }

    #[test]
    fn flood_of_many_sources_is_limited_and_remembers_few_of_them() {
        let mut log = PeerLog::default();
        let mut lines = 0;
        for line in 0..100_000_u32 {
            let [_, a, b, c] = line.to_be_bytes();
            let now = Duration::from_micros(10) * line;
            let source = peer(&format!("10.{a}.{b}.{c}:1000"));
            lines += u32::from(log.ask(source, now).is_some());
        }
        assert!(lines <= 512 + 40, "{lines}");
        assert!(log.sources.len() <= SOURCES);
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_source() {
        let source = |text| source_of(peer(text)).network();
        assert_eq!(source("[fd00::1]:1"), source("[fd00::2:0:0:1]:2"));
        assert_ne!(source("[fd00::1]:1"), source("[fd00:0:0:1::1]:1"));
        assert_eq!(source("[::ffff:10.0.0.1]:1"), source("10.0.0.1:2"));
        assert_ne!(source("[::ffff:10.0.0.1]:1"), source("10.0.0.2:1"));
    }
}
