//! The region and the owner of buffers, and how a piece returns to its owner.

use std::fmt;
use std::sync::Arc;

use crate::free::Free;
use crate::marking;
use crate::region::Region;
use crate::shared::Shared;
use crate::waiters::Waiters;

/// Flag in the number of a piece in lent memory, so that dereferencing its `Buf` can check
/// it.
pub(crate) const LENT: u32 = 1 << 31;

/// The region of buffers, and their owner, to which they return when they are dropped.
#[derive(Debug)]
pub(crate) struct Home {
    region: Region,
    owner: Owner,
}

/// The owner of pieces.
#[derive(Debug)]
pub(crate) enum Owner {
    /// A pool, with the numbers of its free pieces. Each piece is either free or in exactly
    /// one `Buf`.
    Pool {
        free: Free,
        /// The tasks that wait for a piece, and the index of the pool for them.
        waiters: Option<(Arc<Waiters>, usize)>,
    },
    /// Another process.
    Peer(Marks),
}

/// Words in shared memory, one for each number under which memory can be lent: 1 while it is
/// lent.
pub(crate) struct Marks {
    shared: Arc<Shared>,
    /// Offset of the first word.
    first: usize,
    /// Lives as long as anything is lent.
    _alive: Arc<dyn fmt::Debug + Send + Sync>,
}

impl Home {
    pub(crate) fn new(region: Region, owner: Owner) -> Arc<Self> {
        Arc::new(Self { region, owner })
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    pub(crate) fn free(&self) -> Option<&Free> {
        match &self.owner {
            Owner::Pool { free, .. } => Some(free),
            Owner::Peer(_) => None,
        }
    }

    pub(crate) fn marks(&self) -> Option<&Marks> {
        match &self.owner {
            Owner::Peer(marks) => Some(marks),
            Owner::Pool { .. } => None,
        }
    }

    /// Returns piece `index` of a dropped `Buf` to its owner, or hands it over to a task that waits
    /// for it.
    #[inline]
    pub(crate) fn put_back(&self, index: u32) {
        match &self.owner {
            Owner::Pool { free, waiters } => {
                if !free.push(index)
                    && let Some((waiters, pool)) = waiters
                {
                    waiters.hand_over(*pool, free, index);
                }
            }
            Owner::Peer(marks) => marks.clear(index & !LENT),
        }
    }
}

impl Marks {
    pub(crate) fn new(
        shared: Arc<Shared>,
        first: usize,
        alive: Arc<dyn fmt::Debug + Send + Sync>,
    ) -> Self {
        Self {
            shared,
            first,
            _alive: alive,
        }
    }

    #[inline]
    fn offset(&self, number: u32) -> usize {
        self.first
            .saturating_add((number as usize).saturating_mul(8))
    }

    /// Sets the mark of `number`. Returns false if it is set already or does not exist.
    #[inline]
    pub(crate) fn set(&self, number: u32) -> bool {
        let word = self.shared.word(self.offset(number));
        word.is_ok_and(marking::mark)
    }

    #[inline]
    pub(crate) fn clear(&self, number: u32) {
        if let Ok(word) = self.shared.word(self.offset(number)) {
            marking::unmark(word);
        }
    }
}

impl fmt::Debug for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Marks")
            .field("first", &self.first)
            .finish_non_exhaustive()
    }
}
