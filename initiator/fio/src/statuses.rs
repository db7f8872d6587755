//! Error numbers of NVMe status codes.

use nix::errno::Errno;
use nvmeof_initiator::Status;

/// The error number for the status of a command; `EIO` for one that no table has.
pub(crate) fn errno(status: Status) -> Errno {
    number(COMMANDS, status)
        .or_else(|| number(ALL, status))
        .unwrap_or(Errno::EIO)
}

/// The same for the status of a Connect command.
pub(crate) fn errno_of_connect(status: Status) -> Errno {
    number(CONNECT, status)
        .or_else(|| number(ALL, status))
        .unwrap_or(Errno::EIO)
}

fn number(table: Table, status: Status) -> Option<Errno> {
    let mut all = table.iter();
    let found = all.find(|(_, statuses)| statuses.contains(&status.kind()));
    found.map(|(errno, _)| *errno)
}

/// 181h as the status of an I/O command.
const INVALID_PROTECTION_INFORMATION: Status = Status::CONNECT_CONTROLLER_BUSY;
/// 182h as the status of an I/O command.
const WRITE_TO_READ_ONLY_RANGE: Status = Status::CONNECT_INVALID_PARAMETERS;

type Table = &'static [(Errno, &'static [Status])];

/// Command specific status codes of I/O commands from 180h, as the I/O command sets
/// define them: Conflicting Attributes, Invalid Protection Information,
/// Attempted Write to Read Only Range and Command Size Limit Exceeded (NVMe Base 2.1, section
/// 4.2.3.2, figure 104). Connect has other names for the same numbers.
const COMMANDS: Table = &[
    (Errno::EOPNOTSUPP, &[Status::CONFLICTING_ATTRIBUTES]),
    (Errno::EILSEQ, &[INVALID_PROTECTION_INFORMATION]),
    (Errno::ENODATA, &[WRITE_TO_READ_ONLY_RANGE]),
    (Errno::EINVAL, &[Status::COMMAND_SIZE_LIMIT_EXCEEDED]),
];

/// The same codes as the status of a Connect command (NVMe Base 2.1, section 4.2.3.2, figure 105).
/// No job gets them from the Linux host, which connects before there is a device.
const CONNECT: Table = &[
    (Errno::EOPNOTSUPP, &[Status::CONNECT_INCOMPATIBLE_FORMAT]),
    (Errno::EBUSY, &[Status::CONNECT_CONTROLLER_BUSY]),
    (Errno::EINVAL, &[Status::CONNECT_INVALID_PARAMETERS]),
    (Errno::EACCES, &[Status::CONNECT_INVALID_HOST]),
];

/// Error numbers as for a block device of the Linux host, so that a job gets the same
/// number over both.
/// Sources: `nvme_error_status` in drivers/nvme/host/core.c of Linux 5.15.80, and
/// `blk_errors` in block/blk-core.c of Linux 5.17.10. Linux first
/// retries most commands five times, unless the status has Do Not Retry.
///
/// Linux has `EIO` for all others. This project has more specific numbers for:
///
/// * path errors: Linux has only Host Pathing Error, which it generates itself. With
///   multipathing it uses another path for all of this type (`nvme_is_path_error`,
///   drivers/nvme/host/nvme.h). A job of fio has one path;
/// * write protected, busy, not permitted, invalid, and aborted.
const ALL: Table = &[
    (Errno::ENOSPC, &[Status::CAPACITY_EXCEEDED]),
    (
        Errno::EREMOTEIO,
        &[
            Status::LBA_OUT_OF_RANGE,
            Status::COMMAND_INTERRUPTED,
            Status::NAMESPACE_NOT_READY,
        ],
    ),
    (
        Errno::EOPNOTSUPP,
        &[
            Status::INVALID_OPCODE,
            Status::INVALID_FIELD,
            Status::INVALID_NAMESPACE,
        ],
    ),
    (
        Errno::ENODATA,
        &[
            Status::WRITE_FAULT,
            Status::UNRECOVERED_READ_ERROR,
            Status::DEALLOCATED_BLOCK,
            Status::ACCESS_DENIED,
            Status::COMPARE_FAILURE,
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
    (Errno::ENOLINK, &[Status::HOST_PATHING_ERROR]),
    // Not in Linux.
    (
        Errno::ENOLINK,
        &[
            Status::INTERNAL_PATH_ERROR,
            Status::ANA_PERSISTENT_LOSS,
            Status::ANA_INACCESSIBLE,
            Status::ANA_TRANSITION,
            Status::CONTROLLER_PATHING_ERROR,
            Status::TRANSIENT_TRANSPORT_ERROR,
        ],
    ),
    (Errno::EROFS, &[Status::NAMESPACE_WRITE_PROTECTED]),
    (
        Errno::EAGAIN,
        &[
            Status::ADMIN_MEDIA_NOT_READY,
            Status::FORMAT_IN_PROGRESS,
            Status::SANITIZE_IN_PROGRESS,
        ],
    ),
    (
        Errno::EACCES,
        &[
            Status::AUTHENTICATION_REQUIRED,
            Status::OPERATION_DENIED,
            Status::PROHIBITED_BY_LOCKDOWN,
        ],
    ),
    (
        Errno::EINVAL,
        &[
            Status::INVALID_QUEUE_ID,
            Status::INVALID_QUEUE_SIZE,
            Status::HOST_ID_INCONSISTENT,
            Status::KEEP_ALIVE_TIMEOUT_INVALID,
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
    fn each_status_is_in_the_tables_once_or_eio() {
        type Number = fn(Status) -> Errno;
        let both: [(Table, Number); 2] = [(COMMANDS, errno), (CONNECT, errno_of_connect)];
        for (table, number) in both {
            for status in Status::ALL {
                let groups = table.iter().chain(ALL);
                let groups = groups.filter(|(_, group)| group.contains(status));
                let found: Vec<_> = groups.map(|(errno, _)| *errno).collect();
                assert!(found.len() <= 1, "{status}: {found:?}");
                let expected = found.first().copied().unwrap_or(Errno::EIO);
                for status in [*status, status.with_dnr(), status.with_more()] {
                    assert_eq!(number(status), expected, "{status}");
                }
            }
        }
        for (number, group) in COMMANDS.iter().chain(CONNECT).chain(ALL) {
            assert!(!group.is_empty(), "{number}");
            assert!(group.iter().all(|status| Status::ALL.contains(status)));
        }
    }

    /// Every status that Linux 5.15.80 names in `nvme_error_status`, but for zones, and the
    /// number that it has on x86-64.
    #[test]
    fn statuses_have_the_numbers_of_the_linux_host() {
        for (status, number) in [
            (Status::CAPACITY_EXCEEDED, 28),
            (Status::LBA_OUT_OF_RANGE, 121),
            (Status::COMMAND_INTERRUPTED, 121),
            (Status::INVALID_OPCODE, 95),
            (Status::INVALID_FIELD, 95),
            (Status::INVALID_NAMESPACE, 95),
            (Status::NAMESPACE_NOT_READY, 121),
            (Status::CONFLICTING_ATTRIBUTES, 95),
            (Status::WRITE_FAULT, 61),
            (Status::UNRECOVERED_READ_ERROR, 61),
            (Status::ACCESS_DENIED, 61),
            (Status::DEALLOCATED_BLOCK, 61),
            (WRITE_TO_READ_ONLY_RANGE, 61),
            (Status::COMPARE_FAILURE, 61),
            (Status::GUARD_CHECK_ERROR, 84),
            (Status::APPLICATION_TAG_CHECK_ERROR, 84),
            (Status::REFERENCE_TAG_CHECK_ERROR, 84),
            (INVALID_PROTECTION_INFORMATION, 84),
            (Status::RESERVATION_CONFLICT, 52),
            (Status::HOST_PATHING_ERROR, 67),
            (Status::INTERNAL_ERROR, 5),
        ] {
            assert_eq!(errno(status) as i32, number, "{status}");
        }
        let connect = errno_of_connect;
        assert_eq!(connect(Status::CONNECT_CONTROLLER_BUSY), Errno::EBUSY);
        assert_eq!(connect(Status::CONNECT_INVALID_PARAMETERS), Errno::EINVAL);
        assert_eq!(errno(Status::NAMESPACE_WRITE_PROTECTED), Errno::EROFS);
    }
}
