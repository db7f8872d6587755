//! Numbers and sizes on the command line, decimal or hexadecimal.

use std::num::IntErrorKind;
use std::ops::RangeInclusive;
use std::time::Duration;

/// A parser of numbers in `range`, of type `T`.
pub(super) fn number<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| of(digits(text)?, &range)
}

/// A parser of bytes in `range`: a number alone, or with KiB, MiB or GiB.
pub(super) fn size<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| of(bytes(text)?, &range)
}

/// The same without k, m and g, which are powers of 1000 in nvme-cli.
pub(super) fn exact_size<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
        match unit.to_ascii_lowercase().as_str() {
            "k" | "m" | "g" => Err(format!(
                "{unit} is a power of 1000 in nvme-cli, and of 1024 in other options; write \
                 4096 or 4KiB"
            )),
            _ => of(bytes(text)?, &range),
        }
    }
}

/// Whether `text` is a number, of any size.
pub(super) fn is_number(text: &str) -> bool {
    digits(text).is_ok() || !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn of<T: TryFrom<u64>>(number: u64, range: &RangeInclusive<u64>) -> Result<T, String> {
    let inside = range.contains(&number);
    let number = inside.then(|| T::try_from(number).ok()).flatten();
    number.ok_or_else(|| format!("out of range ({}-{})", range.start(), range.end()))
}

/// `10` or `0xa`.
fn digits(text: &str) -> Result<u64, String> {
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let number = match hexadecimal {
        // The parser would accept a sign.
        Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16),
        _ => text.parse(),
    };
    number.map_err(|error| match error.kind() {
        IntErrorKind::PosOverflow => "out of range: more than 64 bits".to_owned(),
        _ => "not a whole number; write 10 or 0xa".to_owned(),
    })
}

/// Parses a size; units are powers of 1024, as in the output.
fn bytes(text: &str) -> Result<u64, String> {
    if let Ok(number) = digits(text) {
        return Ok(number);
    }
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let number = text.strip_suffix(unit).unwrap_or_default();
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err("not a size; write 4096, 4k or 4KiB (k, m, g: powers of 1024)".to_owned()),
    };
    let number = digits(number)?;
    Ok(number.saturating_mul(1 << shift))
}

/// A time of at least a millisecond, in seconds.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = match digits(text) {
        Ok(whole) => u32::try_from(whole).map_or(f64::INFINITY, f64::from),
        Err(_) => text
            .parse()
            .map_err(|_| "not a number of seconds".to_owned())?,
    };
    if (0.001..=1e6).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err("out of range (0.001-1000000)".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        let number = number::<u16>(1..=4097);
        assert_eq!(number("16"), Ok(16));
        assert_eq!((number("0x10"), number("0X1f")), (Ok(16), Ok(31)));
        for bad in ["", "x", "-1", "0x", "0x+1", "1.5", "10h"] {
            assert!(number(bad).unwrap_err().contains("10 or 0xa"), "{bad}");
        }
        for bad in ["0", "4098", "0x10000"] {
            assert_eq!(number(bad), Err("out of range (1-4097)".to_owned()));
        }
        assert_eq!(
            super::number::<u64>(0..=u64::MAX)("0xffffffffffffffff"),
            Ok(u64::MAX)
        );
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        let size = size::<u32>(1..=u32::MAX.into());
        assert_eq!(size("4k"), Ok(4096));
        assert_eq!((size("1M"), size("1MiB")), (Ok(1 << 20), Ok(1 << 20)));
        assert_eq!((size("64KiB"), size("0x200")), (Ok(65536), Ok(512)));
        for bad in ["", "k", "4x", "-1", "4ib", "4kb", "4 k"] {
            let error = size(bad).unwrap_err();
            assert!(error.starts_with("not a"), "{bad}: {error}");
        }
        for bad in ["0", "4g", "99999999999g"] {
            assert!(size(bad).unwrap_err().contains("out of range (1-"), "{bad}");
        }
    }

    #[test]
    fn size_with_ambiguous_unit_is_refused() {
        let size = exact_size::<u64>(1..=u64::MAX);
        assert_eq!((size("4096"), size("4KiB")), (Ok(4096), Ok(4096)));
        assert_eq!(size("0x200"), Ok(512));
        for bad in ["4k", "1M", "2g"] {
            assert!(size(bad).unwrap_err().contains("1000"), "{bad}");
        }
        for bad in ["", "k", "x", "0"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn number_of_more_than_64_bits_is_out_of_range() {
        let all = 0..=u64::MAX;
        let (number, size) = (number::<u64>(all.clone()), size::<u64>(all));
        for bad in ["18446744073709551616", "0x10000000000000000"] {
            assert!(
                number(bad).unwrap_err().starts_with("out of range"),
                "{bad}"
            );
        }
        assert!(
            size("18446744073709551616")
                .unwrap_err()
                .starts_with("out of range")
        );
    }

    #[test]
    fn numbers_of_any_size_are_recognized() {
        for number in ["1", "0x1", "99999999999999999999999"] {
            assert!(is_number(number), "{number}");
        }
        for text in ["", "x", "1x", "nqn.2026-11.org.example:1"] {
            assert!(!is_number(text), "{text}");
        }
    }

    #[test]
    fn seconds_have_fractions() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds("0x10"), Ok(Duration::from_secs(16)));
        for bad in ["0", "-1", "nan", "inf", "1e7", "x", "0xffffffffff"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
