//! Reservation commands of a namespace.

use nvmeof_initiator_core::reservation::{report, report_len};
use nvmeof_initiator_core::{
    ReservationAcquire, ReservationCommand, ReservationRegister, ReservationRelease,
    ReservationReport,
};
use nvmeof_memory::Buf;

use crate::deadline::Deadline;
use crate::error::{Error, MachineError};
use crate::failed::Failed;
use crate::host::Host;
use crate::namespace::Namespace;

/// Bytes of the first Reservation Report command: 63 registrants.
const FIRST: usize = 4096;

impl Namespace {
    /// Reservation Register (NVMe Base 2.1, 7.6): registers this host, ends its registration, or
    /// replaces its key. A registration belongs to the host identifier
    /// ([`Identity::hostid`](crate::Identity)), on all controllers and after each reconnect.
    ///
    /// # Errors
    /// The command fails, or no buffer of 16 bytes is free. Its status is Reservation Conflict
    /// ([`ErrorKind::ReservationConflict`](crate::ErrorKind)) if the host is registered with
    /// another key, or, to unregister or replace, is not registered with the current key.
    pub async fn reservation_register(
        &self,
        registration: ReservationRegister,
    ) -> Result<(), Error> {
        self.change_reservations(&registration.into()).await
    }

    /// Reservation Acquire (NVMe Base 2.1, 7.5): acquires a reservation, or preempts registrants.
    /// Only Preempt and Abort requires that commands of the preempted hosts are aborted; after a
    /// plain Preempt, a target may still execute those that it has received.
    ///
    /// # Errors
    /// The command fails, or no buffer of 16 bytes is free. Its status is Reservation Conflict
    /// ([`ErrorKind::ReservationConflict`](crate::ErrorKind)) if this host is not registered with
    /// that key, another host holds the reservation, or no registrant has the key to preempt.
    pub async fn reservation_acquire(&self, acquisition: ReservationAcquire) -> Result<(), Error> {
        self.change_reservations(&acquisition.into()).await
    }

    /// Reservation Release (NVMe Base 2.1, 7.7): releases the reservation that this host holds, or
    /// clears reservation and registrations.
    ///
    /// # Errors
    /// The command fails, or no buffer of 8 bytes is free. Its status is Reservation Conflict
    /// ([`ErrorKind::ReservationConflict`](crate::ErrorKind)) if this host is not registered with
    /// that key.
    pub async fn reservation_release(&self, release: ReservationRelease) -> Result<(), Error> {
        self.change_reservations(&release.into()).await
    }

    /// Reservation Report (NVMe Base 2.1, 7.8): the reservation and all registrants. A report that
    /// is longer than 4096 bytes (63 registrants) is read again as a whole, because the command
    /// has no offset. If it is longer than the longest buffer of the host or the largest transfer
    /// of the controller (MDTS), [`ReservationReport::registrants`] has those that fit.
    ///
    /// # Errors
    /// A command fails, or no buffer is free.
    pub async fn reservation_report(&self) -> Result<ReservationReport, Error> {
        let deadline = self.deadline();
        let read = |buf| async move { Ok(self.read_report(buf, deadline).await?) };
        whole_report(self.controller().host(), read).await
    }

    /// Sends a command that changes reservations.
    pub(crate) async fn change_reservations(
        &self,
        request: &ReservationCommand,
    ) -> Result<(), Error> {
        let mut buf = self.controller().alloc(request.payload_len())?;
        request.put(&mut buf);
        let command = request.command(self.nsid());
        let call = self
            .controller()
            .call(command.into(), Some(buf), self.deadline());
        call.await.0.map(drop)
    }

    /// Reads the beginning of the report into `buf`, which is shortened to the largest transfer of
    /// the controller.
    pub(crate) async fn read_report(
        &self,
        mut buf: Buf,
        deadline: Option<Deadline>,
    ) -> Result<Buf, Failed> {
        let most = self.controller().info().limits.max_transfer;
        let len = u32::try_from(buf.len()).unwrap_or(u32::MAX).min(most);
        let command = report(self.nsid(), len - len % 4);
        let len = usize::try_from(command.len()).unwrap_or(usize::MAX);
        if let Err(error) = buf.set_len(len) {
            return Err(Failed::new(MachineError::internal(error), buf));
        }
        // The buffer had data of other commands, which a target may leave there.
        buf.fill(0);
        match self
            .controller()
            .call(command.into(), Some(buf), deadline)
            .await
        {
            (Ok(_), Some(buf)) => Ok(buf),
            (Err(error), buf) => Err(Failed::new(error, buf)),
            (Ok(_), None) => {
                let error = MachineError::internal("a success without its buffer");
                Err(Failed::new(error, None))
            }
        }
    }
}

/// Reads a report into longer buffers of `host` until it is whole. `read` fills a buffer, and may
/// shorten it.
pub(crate) async fn whole_report<F>(
    host: &Host,
    read: impl Fn(Buf) -> F,
) -> Result<ReservationReport, Error>
where
    F: Future<Output = Result<Buf, Error>>,
{
    let longest = host.buffers().longest();
    let mut len = FIRST.min(longest).max(report_len(0));
    loop {
        let buf = read(host.buffer(len)?).await?;
        let got = buf.len();
        let report = ReservationReport::parse(&buf)
            .ok_or_else(|| MachineError::internal("a buffer that is shorter than a report"))?;
        let needed = report_len(report.registered);
        if needed <= got || got < len || len >= longest {
            return Ok(report);
        }
        // Twice as long at least: registrants are added meanwhile.
        len = needed.max(len.saturating_mul(2)).min(longest);
    }
}
