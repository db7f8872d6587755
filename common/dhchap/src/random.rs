//! Random numbers: of the system, or of a simulation.

/// A source of random bytes. All secrets depend on it, so only simulations use another one than
/// [`SystemRandom`].
pub trait Random {
    /// Fills `bytes`.
    ///
    /// # Errors
    /// [`RandomError`] when there are none.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), RandomError>;
}

/// The random numbers of the system (getrandom(2)).
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemRandom;

/// There are no random numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system provides no random numbers: {0}")]
pub struct RandomError(pub String);

impl Random for SystemRandom {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), RandomError> {
        getrandom::fill(bytes).map_err(|error| RandomError(error.to_string()))
    }
}

/// A number that is not 0, such as a sequence number.
pub(crate) fn nonzero(random: &mut dyn Random) -> Result<u32, RandomError> {
    let mut bytes = [0; 4];
    random.fill(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes).max(1))
}
