//! Faults by schedule: each happens at the n-th time that its place is reached.

use std::collections::BTreeMap;

/// A place at which a fault can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Point {
    /// A call of `post_send` fails with the number as errno.
    PostSend,
    /// A call of `post_recv` fails.
    PostRecv,
    /// A call of `post_srq_recv` fails.
    PostSrqRecv,
    /// A registration of memory fails.
    Register,
    /// A deregistration of memory fails.
    Deregister,
    /// A memory window is not allocated.
    AllocWindow,
    /// A completion queue is not created.
    CreateCq,
    /// A queue pair is not created.
    CreateQp,
    /// A shared receive queue is not created.
    CreateSrq,
    /// A work request of a send queue completes with the number as status.
    Send,
    /// A receive completes with the number as status.
    Receive,
    /// The queue pair of a work request gets a fatal error.
    QpFatal,
    /// The completion queue of a work request overflows.
    CqError,
    /// The device of a work request is removed.
    Removal,
    /// A request for a connection gets no response.
    Connect,
    /// The last message of a connection's set-up is lost.
    Establish,
    /// A stopped queue pair does not report that it takes no more shared receives.
    LastReceive,
    /// A call of `req_notify_cq` has no effect. It returns the number.
    Arm,
}

const NAMES: [(&str, Point, i32); 18] = [
    ("post-send", Point::PostSend, libc::ENOMEM),
    ("post-recv", Point::PostRecv, libc::ENOMEM),
    ("post-srq-recv", Point::PostSrqRecv, libc::ENOMEM),
    ("register", Point::Register, libc::ENOMEM),
    ("deregister", Point::Deregister, libc::EBUSY),
    ("alloc-window", Point::AllocWindow, libc::ENOMEM),
    ("create-cq", Point::CreateCq, libc::ENOMEM),
    ("create-qp", Point::CreateQp, libc::ENOMEM),
    ("create-srq", Point::CreateSrq, libc::ENOMEM),
    // IBV_WC_GENERAL_ERR
    ("send", Point::Send, 21),
    ("receive", Point::Receive, 21),
    ("qp-fatal", Point::QpFatal, 0),
    ("cq-error", Point::CqError, 0),
    ("removal", Point::Removal, 0),
    ("connect", Point::Connect, 0),
    ("establish", Point::Establish, 0),
    ("last-receive", Point::LastReceive, 0),
    ("arm", Point::Arm, 0),
];

/// The faults of one device.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// How often each place was reached since a fault was added there.
    reached: BTreeMap<Point, u64>,
    planned: BTreeMap<(Point, u64), i32>,
}

impl Faults {
    /// Adds a fault: `PLACE:N` or `PLACE:N:NUMBER`, for the N-th time from now on.
    ///
    /// # Errors
    /// If the text has another form.
    pub(crate) fn add(&mut self, text: &str) -> Result<(), String> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let known = NAMES.iter().find(|(known, ..)| *known == name);
        let (_, point, default) = known.ok_or_else(|| format!("{name}: no such fault"))?;
        let nth = parts.next().and_then(|text| text.parse::<u64>().ok());
        let nth = nth.ok_or_else(|| format!("{text}: a fault needs its number, from 1"))?;
        let value = match parts.next() {
            None => *default,
            Some(text) => text
                .parse()
                .map_err(|_| format!("{text}: a fault's value is a number"))?,
        };
        let reached = self.reached.get(point).copied().unwrap_or(0);
        self.planned.insert((*point, reached + nth), value);
        Ok(())
    }

    /// Faults that did not happen yet.
    pub(crate) fn planned(&self) -> usize {
        self.planned.len()
    }

    /// Counts one passage of `point`. Returns the number of the fault that happens now.
    pub(crate) fn hit(&mut self, point: Point) -> Option<i32> {
        if self.planned.is_empty() {
            return None;
        }
        let reached = self.reached.entry(point).or_default();
        *reached += 1;
        let now = (point, *reached);
        self.planned.remove(&now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_happens_once_at_its_number() {
        let mut faults = Faults::default();
        faults.add("post-send:2").unwrap();
        faults.add("send:1:5").unwrap();
        assert_eq!(faults.hit(Point::PostSend), None);
        assert_eq!(faults.hit(Point::Send), Some(5));
        assert_eq!(faults.hit(Point::PostSend), Some(libc::ENOMEM));
        assert_eq!(faults.hit(Point::PostSend), None);
    }

    #[test]
    fn unknown_fault_is_refused() {
        let mut faults = Faults::default();
        for text in ["nonsense:1", "send", "send:x", "send:1:x"] {
            assert!(faults.add(text).is_err(), "{text}");
        }
    }
}
