//! Sizes: limits of devices, and fallbacks when a device refuses a size.

use std::io;

use nvmeof_rdma::{Limits, QpConfig};

use crate::VerbsError;
use crate::sys::{CmId, DeviceAttr, QpParts, QpSizes};

/// Entries of a send queue for binding and invalidating memory, beyond those for keys exposed
/// at once.
const SPARE: u32 = 32;

/// Limits of one device, in the form of provider limits. `max_message` is the minimum of its
/// ports.
pub(crate) fn limits_of(attr: &DeviceAttr, max_message: u32, limits: &Limits) -> Limits {
    // Binding and invalidating windows needs entries on the same queue: reserved for the
    // maximum.
    let sends = if attr.windows {
        attr.max_qp_wr.saturating_sub(SPARE) / 3
    } else {
        attr.max_qp_wr
    };
    let keys = if attr.windows {
        attr.max_mw
    } else {
        // Half, the rest is for local registrations.
        attr.max_mr / 2
    };
    Limits {
        max_recvs: limits.max_recvs.min(attr.max_qp_wr),
        max_sends: limits.max_sends.min(sends.max(1)),
        max_reads: limits
            .max_reads
            .min(attr.max_reads_in.min(attr.max_reads_out)),
        max_message: limits.max_message.min(max_message),
        max_exposed: limits.max_exposed.min(keys),
        max_pending: limits.max_pending,
        max_qps: limits.max_qps.min(attr.max_qp),
    }
}

/// The higher limits of two devices.
pub(crate) fn either(one: &Limits, other: &Limits) -> Limits {
    Limits {
        max_recvs: one.max_recvs.max(other.max_recvs),
        max_sends: one.max_sends.max(other.max_sends),
        max_reads: one.max_reads.max(other.max_reads),
        max_message: one.max_message.max(other.max_message),
        max_exposed: one.max_exposed.max(other.max_exposed),
        max_pending: one.max_pending.max(other.max_pending),
        max_qps: one.max_qps.max(other.max_qps),
    }
}

/// Checks the sizes of a queue pair against its device, which may have lower limits than
/// another one of this machine.
///
/// # Errors
/// [`VerbsError::Size`] names the value to lower.
pub(crate) fn check(attr: &DeviceAttr, device: &str, config: &QpConfig) -> Result<(), VerbsError> {
    let opens = attr.windows && config.exposes > 0;
    let sends = attr.max_qp_wr.saturating_sub(if opens { SPARE } else { 0 });
    for (what, value, max) in [
        ("recvs", config.recvs, attr.max_qp_wr),
        ("sends", config.sends, sends),
    ] {
        if value > max {
            let device = device.to_owned();
            return Err(VerbsError::Size {
                device,
                what,
                value,
                max,
            });
        }
    }
    Ok(())
}

/// Entries of the send queue for binding and invalidating memory: one each for every key, as
/// far as the device has them.
pub(crate) fn internal_entries(attr: &DeviceAttr, config: &QpConfig) -> u32 {
    let wanted = match config.exposes {
        0 => 0,
        exposes => exposes.saturating_mul(2).saturating_add(SPARE),
    };
    wanted.min(attr.max_qp_wr.saturating_sub(config.sends))
}

/// Properties of a created queue pair.
pub(crate) struct CreatedQp {
    /// Maximum inline data of a send in bytes.
    pub(crate) inline: usize,
    /// Entries of the send queue for internal requests.
    pub(crate) extra: u32,
    /// Number of missing entries.
    pub(crate) unused: u32,
}

/// Creates a queue pair, with less than `wanted` if necessary, but not less for the caller.
pub(crate) fn make_qp(
    cm: &mut CmId,
    parts: &QpParts,
    wanted: QpSizes,
    internal: u32,
) -> io::Result<CreatedQp> {
    let mut attempts = attempts(wanted, internal).peekable();
    while let Some((sizes, extra)) = attempts.next() {
        match cm.create_qp(parts, sizes) {
            Ok(inline) => {
                return Ok(CreatedQp {
                    inline: inline as usize,
                    extra,
                    unused: wanted.sends.saturating_sub(sizes.sends),
                });
            }
            Err(error) if attempts.peek().is_some() && is_too_much(&error) => {
                tracing::debug!(?sizes, "cannot create a queue pair of these sizes: {error}");
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::InvalidInput.into())
}

/// Sizes to try until the device creates a queue pair, with the internal entries: a device
/// may have no inline data at all, and its maximum may count the shortest requests (mlx5
/// counts blocks of 64 bytes). With fewer internal entries exposing waits more often.
fn attempts(sizes: QpSizes, internal: u32) -> impl Iterator<Item = (QpSizes, u32)> {
    let caller = sizes.sends.saturating_sub(internal);
    let mut places = vec![internal];
    for fewer in [internal / 2, SPARE] {
        if fewer > 0 && places.last().is_some_and(|last| fewer < *last) {
            places.push(fewer);
        }
    }
    let mut inline = vec![sizes.inline];
    if sizes.inline > 0 {
        inline.push(0);
    }
    places.into_iter().flat_map(move |internal| {
        let sends = caller.saturating_add(internal);
        let sized = move |inline| {
            (
                QpSizes {
                    sends,
                    inline,
                    ..sizes
                },
                internal,
            )
        };
        inline.clone().into_iter().map(sized)
    })
}

/// Whether a device that refused may accept less.
fn is_too_much(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOMEM))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEAK: DeviceAttr = DeviceAttr {
        max_srq_wr: 0,
        vendor_id: 0,
        max_qp: 16,
        max_qp_wr: 128,
        max_sge: 2,
        max_cqe: 4096,
        max_mr: 64,
        max_mw: 0,
        max_reads_in: 1,
        max_reads_out: 4,
        windows: false,
        iwarp: true,
        ports: 1,
    };
    const STRONG: DeviceAttr = DeviceAttr {
        max_qp: 1000,
        max_qp_wr: 2048,
        max_mr: 8,
        max_mw: 512,
        max_reads_in: 16,
        max_reads_out: 16,
        windows: true,
        iwarp: false,
        ..WEAK
    };
    const CONFIG: QpConfig = QpConfig {
        recvs: 128,
        sends: 100,
        reads_out: 1,
        reads_in: 1,
        exposes: 10,
        trusts_peer: false,
    };
    const SIZES: QpSizes = QpSizes {
        sends: 300,
        recvs: 1,
        send_segments: 2,
        inline: 64,
    };

    #[test]
    fn weak_device_does_not_lower_limits_of_strong_one() {
        let all = crate::VerbsConfig::default().limits;
        let weak = limits_of(&WEAK, 1 << 20, &all);
        assert_eq!(
            (weak.max_recvs, weak.max_sends, weak.max_reads),
            (128, 128, 1)
        );
        assert_eq!((weak.max_exposed, weak.max_qps), (32, 16));
        let strong = limits_of(&STRONG, 1 << 10, &all);
        assert_eq!((strong.max_sends, strong.max_exposed), (672, 512));
        for both in [either(&weak, &strong), either(&strong, &weak)] {
            assert_eq!((both.max_recvs, both.max_reads), (2048, 16));
            assert_eq!((both.max_message, both.max_qps), (1 << 20, 1000));
        }
    }

    #[test]
    fn size_above_device_limit_is_refused_with_name() {
        assert!(check(&WEAK, "weak0", &CONFIG).is_ok());
        let recvs = QpConfig {
            recvs: 129,
            ..CONFIG
        };
        let words = check(&WEAK, "weak0", &recvs).unwrap_err().to_string();
        for part in ["weak0", "128", "129", "recvs", "lower"] {
            assert!(words.contains(part), "{words}");
        }
        let sends = QpConfig {
            sends: 2048,
            ..CONFIG
        };
        assert!(
            check(&STRONG, "strong0", &sends).is_err(),
            "no entry to bind"
        );
        let silent = QpConfig {
            exposes: 0,
            ..sends
        };
        assert!(check(&STRONG, "strong0", &silent).is_ok());
    }

    #[test]
    fn entries_are_reserved_only_for_exposure() {
        assert_eq!(internal_entries(&STRONG, &CONFIG), 52);
        let many = QpConfig {
            exposes: 5000,
            ..CONFIG
        };
        assert_eq!(internal_entries(&STRONG, &many), 1948);
        let none = QpConfig {
            exposes: 0,
            ..CONFIG
        };
        assert_eq!(internal_entries(&STRONG, &none), 0);
    }

    #[test]
    fn smaller_sizes_are_tried_down_to_minimum() {
        let tried: Vec<_> = attempts(SIZES, 200)
            .map(|(sizes, internal)| (sizes.sends, sizes.inline, internal))
            .collect();
        let expected = [
            (300, 64, 200),
            (300, 0, 200),
            (200, 64, 100),
            (200, 0, 100),
            (132, 64, 32),
            (132, 0, 32),
        ];
        assert_eq!(tried, expected);
        assert_eq!(attempts(SIZES, 0).count(), 2);
    }
}
