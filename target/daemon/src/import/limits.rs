//! Limits that the kernel's target has for each subsystem or port and this one for
//! all. The greatest number comes along; what is served with another is told.

use std::collections::BTreeMap;

use nvmeof_target_core::Limits;

use super::Carried;
use super::report::Report;
use super::subsystems::Subsystem;

/// Queues of a controller that the kernel's target takes where nothing is said, and
/// at most (Linux 6.12, drivers/nvme/target/nvmet.h, NVMET_NR_QUEUES).
pub(super) const KERNEL_QUEUES: i64 = 128;
/// Entries of a queue over RDMA that it takes where nothing is said (Linux 6.12,
/// include/linux/nvme-rdma.h, NVME_RDMA_DEFAULT_QUEUE_SIZE; until 6.8 the only
/// number there was).
pub(super) const KERNEL_ENTRIES: i64 = 128;
/// I/O queues of one controller here, at most.
const MOST_QUEUES: u16 = 1024;

/// What a limit becomes.
struct Served {
    number: u16,
    most: u16,
    /// Where in an object of the file the number is.
    key: &'static str,
    /// What it counts.
    of_what: &'static str,
    /// Ours.
    limit: &'static str,
    /// Whose numbers they are, and whoever may want another.
    all: &'static str,
    more: &'static str,
}

impl Carried {
    /// Entries of the longest queue over all ports.
    pub(super) fn queue_depth(&self) -> Option<u16> {
        let all = self.ports.iter().map(|it| it.queue_size);
        Some(within(all.max()?, 2, Limits::MAX_QUEUE_DEPTH))
    }

    /// Queues of one controller over all subsystems that say a number. One that
    /// says none takes what hosts make, which is no reason for fewer than usual.
    pub(super) fn io_queues(&self) -> Option<u16> {
        let said = |it: &&Subsystem| it.queues != KERNEL_QUEUES;
        let all = self.subsystems.iter().filter(said).map(|it| it.queues);
        let most = within(all.max()?, 1, MOST_QUEUES);
        let each_says = self.subsystems.iter().all(|it| said(&it));
        (each_says || most > Limits::default().io_queues).then_some(most)
    }

    /// Tells whose limits are not what they were.
    pub(super) fn tell_of_limits(&self, report: &mut Report) {
        let ours = Limits::default();
        let queues = Served {
            number: self.io_queues().unwrap_or(ours.io_queues),
            most: MOST_QUEUES,
            key: "attr.qid_max",
            of_what: "I/O queues of a controller",
            limit: "limits.io_queues",
            all: "all subsystems",
            more: "hosts make more of them, such as one for each processor",
        };
        let all = self.subsystems.iter();
        queues.tell(all.map(|it| (it.place.as_str(), it.queues)), report);
        let entries = Served {
            number: self.queue_depth().unwrap_or(ours.queue_depth),
            most: Limits::MAX_QUEUE_DEPTH,
            key: "param.max_queue_size",
            of_what: "entries of a queue",
            limit: "limits.queue_depth",
            all: "all ports",
            more: "hosts ask for more",
        };
        let all = self.ports.iter();
        entries.tell(all.map(|it| (it.place.as_str(), it.queue_size)), report);
    }
}

impl Served {
    /// One note for all that had the same number, of objects by their places.
    fn tell<'a>(&self, all: impl Iterator<Item = (&'a str, i64)>, report: &mut Report) {
        let mut others: BTreeMap<i64, Vec<&str>> = BTreeMap::new();
        for (place, number) in all.filter(|(_, number)| *number != i64::from(self.number)) {
            others.entry(number).or_default().push(place);
        }
        for (number, places) in others {
            let [first, more @ ..] = places.as_slice() else {
                continue;
            };
            let place = format!("{first}.{}", self.key);
            let mut what = format!("{number} {} become {}", self.of_what, self.number);
            if !more.is_empty() {
                what = format!("{what}, and so {} more", more.len());
            }
            report.note(&place, &what, &self.remedy(number));
        }
    }

    fn remedy(&self, number: i64) -> String {
        let Self {
            limit, all, more, ..
        } = self;
        if number < i64::from(self.number) {
            return format!("{limit} is for {all}: lower it for all, or leave it");
        }
        if self.number == self.most {
            return "more is not possible".to_owned();
        }
        format!("{limit} is for {all}: raise it where {more}")
    }
}

/// The number, or the end of the range that is nearer.
fn within(number: i64, least: u16, most: u16) -> u16 {
    let number = number.clamp(least.into(), most.into());
    u16::try_from(number).unwrap_or(most)
}
