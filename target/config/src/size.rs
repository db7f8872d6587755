//! Values that are sizes.

use nvmeof_backend_spec::parse_size;
use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};

/// Bytes: a number, or text such as `"64M"`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size(u64);

impl Size {
    pub(crate) fn all_bytes(self) -> u64 {
        self.0
    }
}

/// The same for values of 32 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size32(u32);

impl Size32 {
    pub(crate) fn bytes(self) -> u32 {
        self.0
    }
}

impl<'de> Deserialize<'de> for Size32 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Size(bytes) = Size::deserialize(deserializer)?;
        let too_large = |_| D::Error::custom(format!("{bytes} bytes: must be less than 4G"));
        u32::try_from(bytes).map(Self).map_err(too_large)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SizeVisitor;

        impl Visitor<'_> for SizeVisitor {
            type Value = Size;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number of bytes, or text such as \"64M\"")
            }

            fn visit_i64<E: Error>(self, bytes: i64) -> Result<Size, E> {
                u64::try_from(bytes)
                    .map(Size)
                    .map_err(|_| E::custom("a size cannot be negative"))
            }

            fn visit_u64<E: Error>(self, bytes: u64) -> Result<Size, E> {
                Ok(Size(bytes))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Size, E> {
                parse_size(text).map(Size).map_err(E::custom)
            }
        }

        deserializer.deserialize_any(SizeVisitor)
    }
}
