//! Sizes as text: `4096`, `64K`, `1G`.

/// A size that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Not a number with a known unit.
    #[error("{0:?} is not a size; write a number with K, M, G or T (powers of 1024), such as 512M")]
    Syntax(String),
    /// Beyond 2^63 bytes.
    #[error("{0:?} is more than 8 EiB")]
    TooLarge(String),
    /// Zero bytes.
    #[error("size must be greater than 0")]
    Zero,
}

/// Reads a size in bytes: a whole number, then nothing or one of K, M, G, T
/// (powers of 1024, either case).
///
/// # Errors
/// [`SizeError`].
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let syntax = || SizeError::Syntax(text.to_owned());
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text.strip_prefix(digits) {
        Some("") => 0,
        Some("K" | "k") => 10,
        Some("M" | "m") => 20,
        Some("G" | "g") => 30,
        Some("T" | "t") => 40,
        _ => return Err(syntax()),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(syntax());
    }
    let too_large = || SizeError::TooLarge(text.to_owned());
    let number: u64 = digits.parse().map_err(|_| too_large())?;
    let bytes = number.checked_mul(1 << shift);
    match bytes.filter(|bytes| i64::try_from(*bytes).is_ok()) {
        None => Err(too_large()),
        Some(0) => Err(SizeError::Zero),
        Some(bytes) => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_1024() {
        for (text, bytes) in [
            ("4096", 4096),
            ("1k", 1024),
            ("64K", 65536),
            ("512M", 512 << 20),
            ("1G", 1 << 30),
            ("3t", 3 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn invalid_sizes_are_refused() {
        for text in [
            "", "G", "1.5G", "-1", "+1G", "1GB", "1 G", " 1G", "1é", "0x10",
        ] {
            assert!(
                matches!(parse_size(text), Err(SizeError::Syntax(_))),
                "{text}"
            );
        }
        for text in ["99999999999999999999", "8388608T", "9223372036854775808"] {
            assert!(
                matches!(parse_size(text), Err(SizeError::TooLarge(_))),
                "{text}"
            );
        }
        assert_eq!(parse_size("0G"), Err(SizeError::Zero));
    }
}
