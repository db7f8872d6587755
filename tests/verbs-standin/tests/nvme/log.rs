//! What the target logs.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Event, Metadata, Subscriber};

/// Collects the lines that this thread logs, until it is dropped.
pub(crate) struct Log {
    lines: Lines,
    _guard: DefaultGuard,
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

/// Message and fields of a line.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("nvmeof") && *metadata.level() <= tracing::Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Log {
    pub(crate) fn new() -> Self {
        let lines = Lines::default();
        let guard = set_default(lines.clone());
        Self {
            lines,
            _guard: guard,
        }
    }

    /// The lines with all of `words`.
    pub(crate) fn with(&self, words: &[&str]) -> Vec<String> {
        let lines = self.lines.0.lock().unwrap();
        let all = |line: &&String| words.iter().all(|word| line.contains(word));
        lines.iter().filter(all).cloned().collect()
    }
}
