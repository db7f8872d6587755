//! Where the log goes: standard error, or under systemd the journal with the
//! fields of each message.

mod journal;
mod peers;

use std::io::IsTerminal;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

use journal::Journal;
pub(crate) use peers::PeerLog;

/// Starts the log. `level` is stronger than RUST_LOG.
///
/// # Errors
/// What is wrong with the level.
pub(crate) fn start(level: Option<&str>) -> Result<(), String> {
    let from_env = std::env::var("RUST_LOG").ok();
    let filter = level.or(from_env.as_deref()).unwrap_or("info");
    let filter = EnvFilter::try_new(filter).map_err(|error| error.to_string())?;
    // Without a journal that takes messages they go where they always went.
    let journal = Journal::of_service();
    let lines = journal.is_none().then(|| {
        fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
    });
    tracing_subscriber::registry()
        .with(filter)
        .with(journal)
        .with(lines)
        .try_init()
        .map_err(|error| error.to_string())
}
