//! Which error number fio gets for a status of NVMe.

use nix::errno::Errno;
use nvmeof_initiator::Status;

/// The number for `status`; `EIO` for one that has no name here.
pub(crate) fn errno(status: Status) -> Errno {
    let found = TABLE
        .iter()
        .find(|(_, statuses)| statuses.contains(&status.kind()));
    found.map_or(Errno::EIO, |(errno, _)| *errno)
}

/// As the block layer of the Linux host has them (its `nvme_error_status` and
/// `blk_status_to_errno`), so that a job sees the same over both. Where Linux says
/// `EIO` of everything else, or repeats the command for ever, there are numbers of
/// our own: write protection, what is busy or not ready, what is not permitted.
const TABLE: &[(Errno, &[Status])] = &[
    (Errno::ENOSPC, &[Status::CAPACITY_EXCEEDED]),
    (
        Errno::EREMOTEIO,
        &[Status::LBA_OUT_OF_RANGE, Status::COMMAND_INTERRUPTED],
    ),
    (
        Errno::EOPNOTSUPP,
        &[
            Status::INVALID_OPCODE,
            Status::INVALID_FIELD,
            Status::INVALID_NAMESPACE,
            Status::CONFLICTING_ATTRIBUTES,
        ],
    ),
    (
        Errno::ENODATA,
        &[
            Status::WRITE_FAULT,
            Status::UNRECOVERED_READ_ERROR,
            Status::DEALLOCATED_BLOCK,
            Status::ACCESS_DENIED,
        ],
    ),
    (
        Errno::EILSEQ,
        &[
            Status::GUARD_CHECK_ERROR,
            Status::APPLICATION_TAG_CHECK_ERROR,
            Status::REFERENCE_TAG_CHECK_ERROR,
        ],
    ),
    (Errno::EBADE, &[Status::RESERVATION_CONFLICT]),
    (
        Errno::ENOLINK,
        &[
            Status::HOST_PATHING_ERROR,
            Status::INTERNAL_PATH_ERROR,
            Status::ANA_PERSISTENT_LOSS,
            Status::ANA_INACCESSIBLE,
            Status::ANA_TRANSITION,
            Status::CONTROLLER_PATHING_ERROR,
            Status::TRANSIENT_TRANSPORT_ERROR,
        ],
    ),
    // Our own.
    (Errno::EROFS, &[Status::NAMESPACE_WRITE_PROTECTED]),
    (Errno::EBUSY, &[Status::CONNECT_CONTROLLER_BUSY]),
    (
        Errno::EAGAIN,
        &[
            Status::NAMESPACE_NOT_READY,
            Status::ADMIN_MEDIA_NOT_READY,
            Status::FORMAT_IN_PROGRESS,
            Status::SANITIZE_IN_PROGRESS,
        ],
    ),
    (
        Errno::EACCES,
        &[
            Status::CONNECT_INVALID_HOST,
            Status::AUTHENTICATION_REQUIRED,
            Status::OPERATION_DENIED,
            Status::PROHIBITED_BY_LOCKDOWN,
        ],
    ),
    (
        Errno::EINVAL,
        &[
            Status::CONNECT_INVALID_PARAMETERS,
            Status::INVALID_QUEUE_ID,
            Status::INVALID_QUEUE_SIZE,
            Status::HOST_ID_INCONSISTENT,
            Status::KEEP_ALIVE_TIMEOUT_INVALID,
            Status::COMMAND_SIZE_LIMIT_EXCEEDED,
        ],
    ),
    (
        Errno::ECANCELED,
        &[
            Status::ABORT_REQUESTED,
            Status::ABORTED_BY_HOST,
            Status::ABORTED_PREEMPT,
            Status::ABORTED_SQ_DELETION,
            Status::POWER_LOSS,
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_is_in_the_table_once_or_eio() {
        for status in Status::ALL {
            let groups = TABLE.iter().filter(|(_, group)| group.contains(status));
            let found: Vec<_> = groups.map(|(errno, _)| *errno).collect();
            assert!(found.len() <= 1, "{status}: {found:?}");
            let expected = found.first().copied().unwrap_or(Errno::EIO);
            for status in [*status, status.with_dnr(), status.with_more()] {
                assert_eq!(errno(status), expected, "{status}");
            }
        }
        for (number, group) in TABLE {
            assert!(!group.is_empty(), "{number}");
            assert!(group.iter().all(|status| Status::ALL.contains(status)));
        }
    }

    /// The numbers of Linux, as it has them on x86-64.
    #[test]
    fn statuses_have_the_numbers_of_the_linux_host() {
        for (status, number) in [
            (Status::CAPACITY_EXCEEDED, 28),
            (Status::LBA_OUT_OF_RANGE, 121),
            (Status::COMMAND_INTERRUPTED, 121),
            (Status::INVALID_OPCODE, 95),
            (Status::INVALID_FIELD, 95),
            (Status::INVALID_NAMESPACE, 95),
            (Status::CONFLICTING_ATTRIBUTES, 95),
            (Status::WRITE_FAULT, 61),
            (Status::UNRECOVERED_READ_ERROR, 61),
            (Status::ACCESS_DENIED, 61),
            (Status::DEALLOCATED_BLOCK, 61),
            (Status::GUARD_CHECK_ERROR, 84),
            (Status::APPLICATION_TAG_CHECK_ERROR, 84),
            (Status::REFERENCE_TAG_CHECK_ERROR, 84),
            (Status::RESERVATION_CONFLICT, 52),
            (Status::HOST_PATHING_ERROR, 67),
            (Status::INTERNAL_ERROR, 5),
            (Status::COMPARE_FAILURE, 5),
        ] {
            assert_eq!(errno(status) as i32, number, "{status}");
        }
        assert_eq!(errno(Status::CONNECT_CONTROLLER_BUSY), Errno::EBUSY);
        assert_eq!(errno(Status::NAMESPACE_NOT_READY), Errno::EAGAIN);
        assert_eq!(errno(Status::NAMESPACE_WRITE_PROTECTED), Errno::EROFS);
    }
}
