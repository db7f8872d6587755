//! Settings of the view: sort order, pause, scroll position.

use super::rates::Row;

/// The settings of the view.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    pub(super) sort: SortKey,
    /// Lowest first instead of highest.
    pub(super) reversed: bool,
    pub(super) paused: bool,
    /// Rows of namespaces and hosts that are scrolled out at the top.
    pub(super) from: usize,
    /// The error of the last request, if it failed.
    pub(super) trouble: Option<String>,
}

/// The sort key of namespaces and hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SortKey {
    #[default]
    Iops,
    Read,
    Written,
    P99,
    Errors,
    Name,
}

/// The function of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Sort,
    Reverse,
    Pause,
    Up,
    Down,
}

impl SortKey {
    const ALL: [Self; 6] = [
        Self::Iops,
        Self::Read,
        Self::Written,
        Self::P99,
        Self::Errors,
        Self::Name,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Iops => "IOPS",
            Self::Read => "read",
            Self::Written => "written",
            Self::P99 => "p99",
            Self::Errors => "errors",
            Self::Name => "name",
        }
    }

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|one| *one == self);
        let next = at.and_then(|at| Self::ALL.get(at + 1));
        next.copied().unwrap_or_default()
    }
}

impl View {
    /// Applies a key; returns whether it ends the program.
    pub(super) fn press(&mut self, key: Key) -> bool {
        match key {
            Key::Quit => return true,
            Key::Sort => self.sort = self.sort.next(),
            Key::Reverse => self.reversed = !self.reversed,
            Key::Pause => self.paused = !self.paused,
            Key::Up => self.from = self.from.saturating_sub(1),
            Key::Down => self.from = self.from.saturating_add(1),
        }
        false
    }

    /// The rows in the selected order.
    pub(super) fn sorted<'a>(&self, rows: &'a [Row]) -> Vec<&'a Row> {
        let mut rows: Vec<&Row> = rows.iter().collect();
        let number = |row: &Row| match self.sort {
            SortKey::Iops => row.iops,
            SortKey::Read => row.read,
            SortKey::Written => row.written,
            SortKey::P99 => row.p99.unwrap_or(-1.0),
            SortKey::Errors => row.errors,
            SortKey::Name => 0.0,
        };
        // Highest first; equal rows in the order of names.
        rows.sort_by(|one, other| {
            number(other)
                .total_cmp(&number(one))
                .then_with(|| one.name.cmp(&other.name))
        });
        if self.reversed {
            rows.reverse();
        }
        rows
    }
}
