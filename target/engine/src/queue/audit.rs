//! Consistency check of the accounts: hosts and ports are charged exactly what their
//! queues hold, and what backing stores hold for closed queues. For tests and the
//! simulation.

use std::collections::BTreeMap;
use std::ptr;

use super::QueuePair;
use super::account::{Account, Accounts, Held, Holding, KINDS, UnreturnedBuffers};
use super::slots::{Command, Lent};
use super::trust::Mark;

/// Buffers of each kind, then capsules.
type Sum = [u32; KINDS + 1];

/// What is held, by the holding that is charged.
#[derive(Default)]
struct Sums(BTreeMap<*const Holding, Sum>);

impl Sums {
    fn add(&mut self, account: &Account, kind: usize, count: u32) {
        // Addresses do not count capsules.
        let origin = (kind < KINDS).then(|| account.origin());
        for holding in account.holdings().chain(origin) {
            let sum = self.0.entry(ptr::from_ref(holding)).or_default();
            if let Some(sum) = sum.get_mut(kind) {
                *sum += count;
            }
        }
    }
}

impl Accounts {
    /// Checks the accounts against what these queues hold, and what backing stores hold
    /// for closed ones.
    ///
    /// # Errors
    /// A description of the difference.
    pub(crate) fn check<'a>(
        &self,
        queues: impl Iterator<Item = &'a QueuePair>,
        left: impl Iterator<Item = &'a UnreturnedBuffers>,
    ) -> Result<(), String> {
        let mut sums = Sums::default();
        for queue_pair in queues {
            queue_pair.add_to(&mut sums)?;
        }
        for one in left {
            for held in one.held() {
                match held {
                    Held::Capsule => sums.add(one.account(), KINDS, 1),
                    Held::Data(mark) => sums.add(one.account(), mark.kind(), 1),
                }
            }
        }
        for (who, holding) in self.holders() {
            let held = sums.0.get(&ptr::from_ref(holding));
            let (held, charged) = (held.copied().unwrap_or_default(), holding.counts());
            if held != charged {
                return Err(format!("{who} is charged {charged:?} and holds {held:?}"));
            }
        }
        Ok(())
    }
}

impl QueuePair {
    fn add_to(&self, sums: &mut Sums) -> Result<(), String> {
        let Some(account) = &self.account else {
            return Ok(());
        };
        sums.add(account, KINDS, self.capsules);
        for command in self.slots.commands() {
            for mark in command.check()? {
                sums.add(account, mark.kind(), 1);
            }
        }
        Ok(())
    }
}

impl Command {
    /// The marks under which its buffers are charged: none without a buffer, here or
    /// lent.
    fn check(&self) -> Result<impl Iterator<Item = Mark>, String> {
        let data = !self.data.is_none() || self.lent == Lent::Data || self.on_wire.is_some();
        let spare = !self.spare.is_none() || matches!(self.lent, Lent::Spare | Lent::Piece);
        for (charge, has, what) in [(&self.data, data, "data"), (&self.spare, spare, "spare")] {
            if charge.mark().is_some() && !has {
                let cid = self.request.cid();
                return Err(format!(
                    "command {cid} is charged for a {what} buffer without one"
                ));
            }
        }
        Ok(self.data.mark().into_iter().chain(self.spare.mark()))
    }
}
