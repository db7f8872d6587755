//! How the memory of a reactor is divided.

use nvmeof_memory::{ClassSpec, Pages};
use nvmeof_target_core::Limits;

use super::Running;
use crate::ReactorConfig;
use crate::reactor::{LONGEST_AT_ONCE, capsule_stride};

/// Data of most commands is no longer than this.
const SHORT: usize = 4096;
const MEDIUM: usize = 32 << 10;
/// A command whose data were not taken or given for so long ends its
/// connection.
const STALL: std::time::Duration = std::time::Duration::from_secs(30);

/// Divides the memory: half for capsules; of the other half an eighth for
/// short data, a quarter for medium ones, the rest for the longest possible.
/// There is at least one buffer of each kind, and two of the longest, which
/// one compare needs.
#[must_use]
pub fn buffers(running: &Running, limits: &Limits) -> ReactorConfig {
    let memory = usize::try_from(running.buffer_memory).unwrap_or(usize::MAX);
    let longest = usize::try_from(limits.max_transfer).unwrap_or(usize::MAX);
    let in_capsule = usize::try_from(limits.in_capsule).unwrap_or(usize::MAX);
    let capsule = capsule_stride(in_capsule);
    let data = memory / 2;
    let class = |len: usize, share: usize| ClassSpec {
        len,
        count: (share / len).max(1),
    };
    let mut classes = vec![class(SHORT, data / 8)];
    if longest > MEDIUM {
        classes.push(class(MEDIUM, data / 4));
    }
    if longest > SHORT {
        let used: usize = classes.iter().map(|class| class.len * class.count).sum();
        classes.push(class(longest, data.saturating_sub(used)));
    }
    if let Some(longest) = classes.last_mut() {
        longest.count = longest.count.max(LONGEST_AT_ONCE);
    }
    ReactorConfig {
        capsules: (memory / 2 / capsule).max(1),
        data: classes,
        pages: if running.hugepages {
            Pages::HugeIfFree
        } else {
            Pages::Normal
        },
        stall: STALL,
        drain: running.drain,
        shared_receives: running.shared_receives,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::Cores;
    use crate::polling::Preset;

    fn divided(buffer_memory: u64, limits: &Limits) -> ReactorConfig {
        let running = Running {
            cores: Cores::Anywhere(1),
            polling: Preset::Adaptive.polling(None),
            drain: Duration::ZERO,
            buffer_memory,
            sqpoll: None,
            hugepages: false,
            shared_receives: 0,
        };
        buffers(&running, limits)
    }

    #[test]
    fn the_memory_is_used_and_not_more() {
        for memory in [8 << 20, 64 << 20, 1 << 30] {
            let config = divided(memory, &Limits::default());
            let data: usize = config
                .data
                .iter()
                .map(|class| class.len * class.count)
                .sum();
            let all = data + config.capsules * 8192;
            assert!(all <= usize::try_from(memory).unwrap());
            assert!(all > usize::try_from(memory).unwrap() / 100 * 95);
        }
    }

    #[test]
    fn the_longest_transfer_always_fits_twice() {
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
}
