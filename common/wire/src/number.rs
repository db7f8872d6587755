//! Newtypes for one-byte numbers with named values, of which a peer may send any.

/// Declares such a type with its known values, their names and `name()`. Import the
/// derives of zerocopy where it is used.
macro_rules! numbers {
    ($(#[$doc:meta])* $type:ident { $($name:ident = $value:literal, $words:literal;)* }) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, FromBytes, IntoBytes,
            Immutable, KnownLayout, Unaligned,
        )]
        #[repr(transparent)]
        pub struct $type(pub u8);

        impl $type {
            $(
                #[doc = $words]
                pub const $name: Self = Self($value);
            )*

            /// The name in the words of the specification.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $words,)*
                    _ => "unknown",
                }
            }
        }
    };
}

pub(crate) use numbers;
