//! Errors of calls to the cluster.

use libc::c_int;
use nix::errno::Errno;

/// A call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CephError {
    /// The libraries cannot be used.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The call, which returned an error number.
    #[error("{call} failed: {errno}")]
    Call {
        /// The C function, with its main argument.
        call: String,
        /// Its error.
        errno: Errno,
    },
    /// A name has a NUL character.
    #[error("{0:?}: has a NUL character")]
    Nul(String),
    /// A value is too long to be stored.
    #[error("value {value} has {len} bytes; {most} bytes is the maximum")]
    TooLong {
        /// Its object and key.
        value: String,
        /// Its length.
        len: usize,
        /// The maximum.
        most: usize,
    },
    /// The cluster did not respond with what its interface promises.
    #[error("{call}: unexpected response: {what}")]
    Unexpected {
        /// The C function.
        call: &'static str,
        /// What is wrong with it.
        what: String,
    },
}

/// A library, or a function in it, is missing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// A library cannot be loaded.
    #[error("{file} cannot be loaded: {text}")]
    Library {
        /// Its file.
        file: &'static str,
        /// The message of the loader.
        text: String,
    },
    /// A library has no such function: it is too old.
    #[error("{file} has no function {name}")]
    Symbol {
        /// Its file.
        file: &'static str,
        /// The function.
        name: &'static str,
    },
}

impl CephError {
    /// The error number, if it is one of a call.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Call { errno, .. } => Some(*errno),
            Self::Missing(_) | Self::Nul(_) | Self::TooLong { .. } | Self::Unexpected { .. } => {
                None
            }
        }
    }
}

/// The error number in a negative result.
pub(crate) fn errno_of(result: i64) -> Errno {
    let number = i32::try_from(result.unsigned_abs());
    Errno::from_raw(number.unwrap_or(libc::EIO))
}

/// The result of a call: an error if it is negative.
pub(crate) fn check(call: &'static str, object: &str, result: c_int) -> Result<c_int, CephError> {
    if result >= 0 {
        return Ok(result);
    }
    let errno = errno_of(result.into());
    let call = match object {
        "" => call.to_owned(),
        object => format!("{call}({object})"),
    };
    Err(CephError::Call { call, errno })
}
