//! The host, subsystem and queue of a queue pair, for log lines about its peer.

/// The names of a queue pair's host, subsystem and queue, as far as they are known. A
/// provider only repeats them in each log line about the peer, with
/// [`log_conn!`](crate::log_conn). An empty value has the size of a pointer.
#[derive(Clone, Debug, Default)]
pub struct QpOwner(Option<Box<Names>>);

#[derive(Clone, Debug)]
struct Names {
    host: Option<Box<str>>,
    subsystem: Option<Box<str>>,
    queue: u16,
}

impl QpOwner {
    /// A queue of a host that did not send its name yet.
    #[must_use]
    pub fn of_queue(queue: u16) -> Self {
        Self(Some(Box::new(Names {
            host: None,
            subsystem: None,
            queue,
        })))
    }

    /// A queue of a known host at a subsystem.
    #[must_use]
    pub fn of_host(host: &str, subsystem: &str, queue: u16) -> Self {
        Self(Some(Box::new(Names {
            host: Some(host.into()),
            subsystem: Some(subsystem.into()),
            queue,
        })))
    }

    /// The name of the host.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        self.0.as_ref()?.host.as_deref()
    }

    /// The name of the subsystem.
    #[must_use]
    pub fn subsystem(&self) -> Option<&str> {
        self.0.as_ref()?.subsystem.as_deref()
    }

    /// The queue ID.
    #[must_use]
    pub fn queue(&self) -> Option<u16> {
        Some(self.0.as_ref()?.queue)
    }
}

/// Logs a line about a connection: its level, the peer's address as a value of `tracing`, its
/// [`QpOwner`](crate::QpOwner), and the text. Unknown names are left out.
///
/// For crates that depend on `tracing`.
#[macro_export]
macro_rules! log_conn {
    ($level:ident, $peer:expr, $owner:expr, $($text:tt)+) => {{
        let owner: &$crate::QpOwner = $owner;
        ::tracing::$level!(
            peer = $peer,
            host = owner.host(),
            subsystem = owner.subsystem(),
            queue = owner.queue(),
            $($text)+
        );
    }};
}
