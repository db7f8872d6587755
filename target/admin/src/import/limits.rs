//! Limits of subsystems and ports, which here are bounded by those of the target. These
//! are raised to the greatest; what is served with another number is told.

use std::collections::BTreeMap;

use nvmeof_target_core::Limits;

use super::Carried;
use super::ports::Port;
use super::report::Report;
use super::subsystems::Subsystem;

/// Queues of a controller that the kernel's target takes where nothing is said, and
/// at most (Linux 6.12, drivers/nvme/target/nvmet.h, NVMET_NR_QUEUES).
pub(super) const KERNEL_QUEUES: i64 = 128;
/// Entries of a queue over RDMA that it takes where nothing is said (Linux 6.12,
/// include/linux/nvme-rdma.h, NVME_RDMA_DEFAULT_QUEUE_SIZE; until 6.8 the only
/// number there was).
pub(super) const KERNEL_ENTRIES: i64 = 128;
/// Bytes of data of one command that it takes over RDMA, where nothing is said and at
/// most (Linux 6.12, drivers/nvme/target/rdma.c, NVMET_RDMA_MAX_MDTS).
const KERNEL_TRANSFER: u32 = 1 << 20;
/// I/O queues of one controller here, at most.
const MOST_QUEUES: u16 = 1024;

/// A limit that is served.
struct Served {
    most: i64,
    /// Where in an object of the file the number is.
    key: &'static str,
    /// What it counts.
    of_what: &'static str,
    /// Ours.
    limit: &'static str,
    /// Whoever may want another.
    more: &'static str,
    /// What to do where it was less.
    less: &'static str,
}

/// What it becomes for one object of the file.
struct Limited<'a> {
    /// Where that is in the file.
    place: &'a str,
    was: i64,
    is: i64,
}

/// Bytes of data of one command for the MDTS of a port, which kernels after 6.12 have: a
/// power of two of pages of 4 KiB, and what is usual over RDMA for none and for more.
pub(super) fn transfer(mdts: Option<i64>) -> u32 {
    match mdts {
        Some(mdts @ 1..8) => 4096 << mdts,
        _ => KERNEL_TRANSFER,
    }
}

impl Carried {
    /// Entries of the longest queue over all ports.
    pub(super) fn queue_depth(&self) -> Option<u16> {
        self.ports.iter().map(entries).max()
    }

    /// Entries of the longest queue by that port, if those are not those of all.
    pub(super) fn queue_depth_of(&self, port: &Port) -> Option<u16> {
        Some(entries(port)).filter(|its| Some(*its) != self.queue_depth())
    }

    /// Queues of one controller over all subsystems that say a number, if that is
    /// more than usual. One that says none takes what hosts make.
    pub(super) fn io_queues(&self) -> Option<u16> {
        let said = self.subsystems.iter().filter_map(said_queues);
        said.max()
            .filter(|most| *most > Limits::default().io_queues)
    }

    /// Queues of a controller of that subsystem, if those are not those of all.
    pub(super) fn io_queues_of(&self, subsystem: &Subsystem) -> Option<u16> {
        said_queues(subsystem).filter(|its| *its != self.most_queues())
    }

    /// Queues of a controller of a subsystem that says no number.
    fn most_queues(&self) -> u16 {
        self.io_queues().unwrap_or(Limits::default().io_queues)
    }

    /// Bytes of data of one command over all ports, if that is not the usual.
    pub(super) fn max_transfer(&self) -> Option<u32> {
        let most = self.ports.iter().map(|it| it.max_transfer).max();
        most.filter(|most| *most != Limits::default().max_transfer)
    }

    /// Tells whose limits are not what they were.
    pub(super) fn tell_of_limits(&self, report: &mut Report) {
        let queues = Served {
            most: MOST_QUEUES.into(),
            key: "attr.qid_max",
            of_what: "I/O queues of a controller",
            limit: "limits.io_queues",
            more: "hosts make more of them, such as one for each CPU",
            less: "fewer are not possible",
        };
        let usual = self.most_queues();
        let all = self.subsystems.iter().map(|it| Limited {
            place: &it.place,
            was: it.queues,
            is: said_queues(it).unwrap_or(usual).into(),
        });
        queues.tell(all, report);
        let depth = Served {
            most: Limits::MAX_QUEUE_DEPTH.into(),
            key: "param.max_queue_size",
            of_what: "entries of a queue",
            limit: "limits.queue_depth",
            more: "hosts ask for more",
            less: "fewer are not possible",
        };
        let all = self.ports.iter().map(|it| Limited {
            place: &it.place,
            was: it.queue_size,
            is: entries(it).into(),
        });
        depth.tell(all, report);
        let most = self.max_transfer();
        let most = most.unwrap_or(Limits::default().max_transfer).into();
        let transfer = Served {
            most,
            key: "param.mdts",
            of_what: "bytes of data of a command",
            limit: "limits.max_transfer",
            more: "hosts send more",
            less: "another port takes them, and all take the same",
        };
        let all = self.ports.iter().map(|it| Limited {
            place: &it.place,
            was: it.max_transfer.into(),
            is: most,
        });
        transfer.tell(all, report);
    }
}

/// Entries of the longest queue by a port, as far as possible.
fn entries(port: &Port) -> u16 {
    within(port.queue_size, 2, Limits::MAX_QUEUE_DEPTH)
}

/// Queues of one controller of a subsystem that says a number, as far as possible.
fn said_queues(subsystem: &Subsystem) -> Option<u16> {
    let said = subsystem.queues != KERNEL_QUEUES;
    said.then(|| within(subsystem.queues, 1, MOST_QUEUES))
}

impl Served {
    /// One note for all that changed alike.
    fn tell<'a>(&self, all: impl Iterator<Item = Limited<'a>>, report: &mut Report) {
        let mut others: BTreeMap<(i64, i64), Vec<&str>> = BTreeMap::new();
        for one in all.filter(|one| one.was != one.is) {
            others.entry((one.was, one.is)).or_default().push(one.place);
        }
        for ((was, is), places) in others {
            let [first, more @ ..] = places.as_slice() else {
                continue;
            };
            let place = format!("{first}.{}", self.key);
            let mut what = format!("{was} {} become {is}", self.of_what);
            if !more.is_empty() {
                what = format!("{what}, and so {} more", more.len());
            }
            report.note(&place, &what, &self.remedy(was, is));
        }
    }

    fn remedy(&self, was: i64, is: i64) -> String {
        let Self { limit, more, .. } = self;
        if was < is {
            return self.less.to_owned();
        }
        if is == self.most {
            return "more is not possible".to_owned();
        }
        format!("raise {limit} where {more}")
    }
}

/// The number, or the end of the range that is nearer.
fn within(number: i64, least: u16, most: u16) -> u16 {
    let number = number.clamp(least.into(), most.into());
    u16::try_from(number).unwrap_or(most)
}
