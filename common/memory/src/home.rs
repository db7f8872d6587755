//! Where buffers lie, and how a piece of memory goes back to its owner.

use std::fmt;
use std::sync::Arc;

use crate::free::Free;
use crate::marking;
use crate::region::Region;
use crate::shared::Shared;

/// Set in the number of a piece that is lent, beside the number itself, so that
/// a dereference of its `Buf` finds it there.
pub(crate) const LENT: u32 = 1 << 31;

/// Where buffers lie and what becomes of them when they are dropped.
#[derive(Debug)]
pub(crate) struct Home {
    region: Region,
    owner: Owner,
}

/// Whose the pieces are.
#[derive(Debug)]
pub(crate) enum Owner {
    /// A pool's: numbers of the pieces nobody holds. Every piece is either here
    /// once or in exactly one `Buf`.
    Pool(Free),
    /// Another process's.
    Peer(Marks),
}

/// Words in shared memory, one for each number under which memory can be lent:
/// 1 as long as it is.
pub(crate) struct Marks {
    shared: Arc<Shared>,
    /// Byte of the first word.
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
            Owner::Pool(free) => Some(free),
            Owner::Peer(_) => None,
        }
    }

    pub(crate) fn marks(&self) -> Option<&Marks> {
        match &self.owner {
            Owner::Peer(marks) => Some(marks),
            Owner::Pool(_) => None,
        }
    }

    /// Takes piece `index` back from the `Buf` that held it.
    #[inline]
    pub(crate) fn give_back(&self, index: u32) {
        match &self.owner {
            Owner::Pool(free) => free.push(index),
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
    fn place(&self, number: u32) -> usize {
        self.first
            .saturating_add((number as usize).saturating_mul(8))
    }

    /// Sets the mark of `number`. False when it is set, or there is none.
    #[inline]
    pub(crate) fn set(&self, number: u32) -> bool {
        let word = self.shared.word(self.place(number));
        word.is_ok_and(marking::mark)
    }

    #[inline]
    pub(crate) fn clear(&self, number: u32) {
        if let Ok(word) = self.shared.word(self.place(number)) {
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
