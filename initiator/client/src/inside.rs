//! Operations on blocks without a transfer: Verify, Copy; and Compare and Write.

use nvmeof_initiator_core::copy::COPY_ENTRY_LEN;
use nvmeof_initiator_core::{CopyLimits, CopyPart, Operation, Range};
use nvmeof_memory::Buf;
use nvmeof_wire::admin::Cns;
use nvmeof_wire::identify::namespace::Nsfeat;
use nvmeof_wire::identify::{IdentifyController, IdentifyControllerNvm, IdentifyNamespace};
use zerocopy::FromBytes;

use crate::deadline::Deadline;
use crate::error::{Awaited, Error, UsageError};
use crate::failed::Failed;
use crate::namespace::{Namespace, WriteOptions};

impl Namespace {
    /// Verifies that `count` blocks from `lba` can be read, without a transfer.
    ///
    /// # Errors
    /// When they are out of range, or cannot be read.
    pub async fn verify(&self, lba: u64, count: u64) -> Result<(), Error> {
        self.check(lba, count)?;
        let deadline = self.deadline();
        let most = self.most_blocks(|limits| limits.vsl, deadline).await?;
        self.each(Operation::Verify, (lba, count), most, (false, deadline))
            .await
    }

    /// Copies the blocks of the ranges in `from`, one after the other, to the
    /// blocks from `to`, within the namespace. Long copies are split into several commands:
    /// after an error, a part may be copied.
    ///
    /// # Errors
    /// When blocks are out of range, a source overlaps the destination, the namespace does
    /// not support Copy, or a command fails.
    pub async fn copy(&self, from: &[Range], to: u64, options: WriteOptions) -> Result<(), Error> {
        let mut total = 0u64;
        for range in from {
            self.check(range.slba, range.count.into())?;
            total = total.saturating_add(range.count.into());
        }
        self.check(to, total)?;
        // The controller refuses an overlap within one command. With several commands, the
        // copy would read blocks that were copied before.
        let end = to.saturating_add(total);
        if let Some(Range { slba, count }) = from
            .iter()
            .find(|range| range.slba < end && to < range.slba.saturating_add(range.count.into()))
        {
            let text = format!(
                "{count} blocks from {slba} overlap the destination, {total} blocks from {to}"
            );
            return Err(UsageError::Other(text).into());
        }
        let limits = CopyLimits::of(self.identify()).ok_or_else(|| {
            let text = format!("namespace {} does not support Copy", self.nsid());
            Error::from(UsageError::Other(text))
        })?;
        let deadline = self.deadline();
        for (at, part) in limits.cut(to, from).into_iter().enumerate() {
            let result = self.copy_part(&part, options, deadline).await;
            result.map_err(|error| error.after_changes(at > 0))?;
        }
        Ok(())
    }

    async fn copy_part(
        &self,
        part: &CopyPart,
        options: WriteOptions,
        deadline: Option<Deadline>,
    ) -> Result<(), Error> {
        let Some(command) = part.command(self.nsid(), options.fua) else {
            return Ok(());
        };
        let mut buf = self.controller().alloc(part.from.len() * COPY_ENTRY_LEN)?;
        part.put(&mut buf);
        let call = self.controller().call(command.into(), Some(buf), deadline);
        call.await.0.map(drop)
    }

    /// Compares the blocks from `lba` with the first half of `buf` and, if they are equal,
    /// writes the second half, as an atomic operation. If they differ, it writes nothing and
    /// fails with [`Error::Command`], `Compare Failure`. The limit of blocks is NACWU of the
    /// namespace, or else ACWU of the controller.
    ///
    /// # Errors
    /// As described, and as [`read`](Self::read).
    pub async fn compare_and_write(
        &self,
        lba: u64,
        buf: Buf,
        options: WriteOptions,
    ) -> Result<Buf, Failed> {
        let count = match self.count_of(&buf, lba, Operation::CompareWrite) {
            Ok(0) => return Ok(buf),
            Ok(count) => count,
            Err(error) => return Err(Failed::new(error, buf)),
        };
        let (most, field) =
            compare_and_write_limit(self.identify(), &self.controller().info().identify);
        if count > most {
            let error = UsageError::CompareAndWrite { count, most, field };
            return Err(Failed::new(error, buf));
        }
        self.move_run(Operation::CompareWrite, lba, count, buf, options.fua)
            .await
    }

    /// Most blocks of one command, by a field of the controller's NVM command set
    /// limits: "a power of two in units of the minimum memory page size" (NVM 1.0,
    /// section 4.1.5.4). 0, or no such limits, is no limit.
    ///
    /// # Errors
    /// The deadline has passed.
    pub(crate) async fn most_blocks(
        &self,
        field: impl Fn(&IdentifyControllerNvm) -> u8,
        deadline: Option<Deadline>,
    ) -> Result<u64, Error> {
        let controller = self.controller();
        let page = controller.identify_page(Cns::CSI_CONTROLLER, 0);
        let page = match deadline {
            None => page.await,
            Some(deadline) => {
                let waiting_for = Awaited::Completion(Cns::CSI_CONTROLLER.name());
                deadline.bound(page, waiting_for).await?
            }
        };
        // Controllers before NVMe 2.0 do not have the structure.
        let limits = page
            .ok()
            .and_then(|page| IdentifyControllerNvm::read_from_bytes(&page).ok());
        let shift = limits.map_or(0, |limits| field(&limits));
        if shift == 0 {
            return Ok(u64::MAX);
        }
        let bytes = controller.info().cap.min_page_shift() + u32::from(shift);
        let blocks = bytes.saturating_sub(self.block_size().trailing_zeros());
        Ok(1u64.checked_shl(blocks).unwrap_or(u64::MAX))
    }

    /// Runs `operation` on `count` blocks from `lba`, at most `most` in one command.
    pub(crate) async fn each(
        &self,
        operation: Operation,
        (lba, count): (u64, u64),
        most: u64,
        (fua, deadline): (bool, Option<Deadline>),
    ) -> Result<(), Error> {
        let mut done = 0;
        while done < count {
            let some = (count - done).min(most);
            let blocks = self.run(operation, lba + done, some, fua);
            let call = self.controller().call(blocks.into(), None, deadline);
            let result = call.await.0;
            result.map_err(|error| error.after_changes(done > 0 && blocks.changes_data()))?;
            done += some;
        }
        Ok(())
    }
}

/// Most blocks of a fused Compare and Write, and the field of the limit. NVM 1.0, 4.1.5.1,
/// NACWU: it applies if NSFEAT has NSABP and it is not 0; otherwise ACWU of Identify Controller
/// applies. Both are 0's based values.
fn compare_and_write_limit(
    namespace: &IdentifyNamespace,
    controller: &IdentifyController,
) -> (u64, &'static str) {
    let of_namespace = namespace.nacwu.get();
    if namespace.nsfeat().contains(Nsfeat::NSABP) && of_namespace > 0 {
        return (u64::from(of_namespace) + 1, "NACWU");
    }
    (u64::from(controller.acwu.get()) + 1, "ACWU")
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn compare_and_write_limit_is_nacwu_or_acwu() {
        let limit = |nsfeat: Nsfeat, nacwu: u16, acwu: u16| {
            let (mut namespace, mut controller) = (
                IdentifyNamespace::new_zeroed(),
                IdentifyController::new_zeroed(),
            );
            namespace.nsfeat = nsfeat.bits();
            namespace.nacwu = nacwu.into();
            controller.acwu = acwu.into();
            compare_and_write_limit(&namespace, &controller)
        };
        let none = Nsfeat::empty();
        // As SPDK has it: one block.
        assert_eq!(limit(none, 0, 0), (1, "ACWU"));
        assert_eq!(limit(none, 7, 3), (4, "ACWU"));
        assert_eq!(limit(Nsfeat::NSABP, 0, 3), (4, "ACWU"));
        assert_eq!(limit(Nsfeat::NSABP, 7, 0), (8, "NACWU"));
        assert_eq!(limit(Nsfeat::NSABP, 0xffff, 0), (65_536, "NACWU"));
    }
}
