//! Division of the buffer memory of a reactor.

use nvmeof_memory::{ClassSpec, Pages};
use nvmeof_target_core::Limits;

use nvmeof_target_config::ReactorSettings;
use nvmeof_target_engine::ReactorConfig;
use nvmeof_target_engine::{LONGEST_AT_ONCE, capsule_stride};

/// Most commands have no more data than this.
const SHORT: usize = 4096;
const MEDIUM: usize = 32 << 10;
/// Most merged requests of hosts are no longer than this.
const LONG: usize = 256 << 10;
/// A command whose data transfer makes no progress for this long ends its connection.
const STALL: std::time::Duration = std::time::Duration::from_secs(30);

/// Divides the memory. Capsule buffers get half; of the other half, short transfer buffers get
/// an eighth and medium ones a quarter. Long transfer buffers get half of the rest, and those of
/// the maximum length the other half.
#[must_use]
pub fn buffers(settings: &ReactorSettings, limits: &Limits) -> ReactorConfig {
    let memory = usize::try_from(settings.buffer_memory).unwrap_or(usize::MAX);
    let longest = usize::try_from(limits.max_transfer).unwrap_or(usize::MAX);
    let in_capsule = usize::try_from(limits.in_capsule).unwrap_or(usize::MAX);
    let capsule = capsule_stride(in_capsule);
    ReactorConfig {
        capsules: (memory / 2 / capsule).max(1),
        data: data(memory / 2, longest),
        pages: if settings.hugepages {
            Pages::HugeIfFree
        } else {
            Pages::Normal
        },
        stall: STALL,
        drain: settings.drain,
        shared_receives: settings.shared_receives,
    }
}

/// Divides the memory of transfer buffers. There is at least one buffer of each length. There
/// are at least two of the longest, which one Compare needs: these have priority if memory is
/// short.
fn data(memory: usize, longest: usize) -> Vec<ClassSpec> {
    let class = |len: usize, share: usize| ClassSpec {
        len,
        count: (share / len).max(1),
    };
    let mut classes = vec![class(SHORT, memory / 8)];
    if longest > MEDIUM {
        classes.push(class(MEDIUM, memory / 4));
    }
    let left = memory.saturating_sub(classes.iter().map(bytes).sum());
    if longest > LONG {
        let kept = (left / 2).max(longest.saturating_mul(LONGEST_AT_ONCE));
        classes.push(class(LONG, left.saturating_sub(kept)));
    }
    if longest > SHORT {
        let left = memory.saturating_sub(classes.iter().map(bytes).sum());
        classes.push(class(longest, left));
    }
    if let Some(longest) = classes.last_mut() {
        longest.count = longest.count.max(LONGEST_AT_ONCE);
    }
    classes
}

fn bytes(class: &ClassSpec) -> usize {
    class.len.saturating_mul(class.count)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use nvmeof_polling::PollingConfig;
    use nvmeof_target_config::Cores;

    fn divided(buffer_memory: u64, limits: &Limits) -> ReactorConfig {
        let settings = ReactorSettings {
            cores: Cores::Anywhere(1),
            polling: PollingConfig {
                longest: Duration::ZERO,
                learns: true,
            },
            drain: Duration::ZERO,
            buffer_memory,
            sqpoll: None,
            hugepages: false,
            shared_receives: 0,
        };
        buffers(&settings, limits)
    }

    #[test]
    fn buffers_use_nearly_all_memory_and_no_more() {
        for memory in [8 << 20, 64 << 20, 1 << 30] {
            let config = divided(memory, &Limits::default());
            let data: usize = config.data.iter().map(bytes).sum();
            let all = data + config.capsules * 8192;
            assert!(all <= usize::try_from(memory).unwrap());
            assert!(all > usize::try_from(memory).unwrap() / 100 * 95);
        }
    }

    #[test]
    fn longest_transfer_fits_twice() {
        for shift in 12..=24 {
            let limits = Limits {
                max_transfer: 1 << shift,
                ..Limits::default()
            };
            let config = divided(8 << 20, &limits);
            let longest = config.data.iter().max_by_key(|class| class.len).unwrap();
            assert_eq!(longest.len, 1 << shift);
            assert!(longest.count >= 2, "a compare needs two");
        }
    }

    /// The transfers that can be in flight without waiting, with the default memory.
    #[test]
    fn transfers_of_every_length_run_concurrently() {
        let config = divided(64 << 20, &Limits::default());
        let counts: Vec<_> = config.data.iter().map(|one| (one.len, one.count)).collect();
        let expected = [
            (4096, 1024),
            (32 << 10, 256),
            (256 << 10, 40),
            (1 << 20, 10),
        ];
        assert_eq!(counts, expected);
    }
}
