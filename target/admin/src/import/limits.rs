//! Limits of subsystems and ports. The limits of this target are set to the largest of them;
//! each object that is served with another limit is reported.

use std::collections::BTreeMap;

use nvmeof_target_core::Limits;

use super::Imported;
use super::ports::Port;
use super::report::Report;
use super::subsystems::Subsystem;

/// Default and maximum number of queues of a controller of nvmet (Linux 6.12,
/// drivers/nvme/target/nvmet.h, NVMET_NR_QUEUES).
pub(super) const KERNEL_QUEUES: i64 = 128;
/// Default number of entries of a queue over RDMA of nvmet (Linux 6.12,
/// include/linux/nvme-rdma.h, NVME_RDMA_DEFAULT_QUEUE_SIZE; until 6.8 the only possible
/// value).
pub(super) const KERNEL_ENTRIES: i64 = 128;
/// Default and maximum number of data bytes of one command over RDMA of nvmet (Linux 6.12,
/// drivers/nvme/target/rdma.c, NVMET_RDMA_MAX_MDTS).
const KERNEL_TRANSFER: u32 = 1 << 20;
/// Maximum number of I/O queues of a controller of this target.
const MOST_QUEUES: u16 = 1024;

/// A limit of this target.
struct Served {
    most: i64,
    /// The key of the value in an object of the file.
    key: &'static str,
    /// The counted objects.
    of_what: &'static str,
    /// The key of this target.
    limit: &'static str,
    /// The condition for raising it.
    more: &'static str,
    /// The reason why it cannot be lower.
    less: &'static str,
}

/// Old and new limit of one object of the file.
struct Limited<'a> {
    /// The place in the file.
    location: &'a str,
    was: i64,
    is: i64,
}

/// Data bytes of one command for the MDTS of a port, which kernels after 6.12 have: a power
/// of two in pages of 4 KiB, or the default over RDMA for none and for larger values.
pub(super) fn transfer(mdts: Option<i64>) -> u32 {
    match mdts {
        Some(mdts @ 1..8) => 4096 << mdts,
        _ => KERNEL_TRANSFER,
    }
}

impl Imported {
    /// The largest queue depth of all ports.
    pub(super) fn queue_depth(&self) -> Option<u16> {
        self.ports.iter().map(entries).max()
    }

    /// The queue depth of a port, if it is not the largest.
    pub(super) fn queue_depth_of(&self, port: &Port) -> Option<u16> {
        Some(entries(port)).filter(|its| Some(*its) != self.queue_depth())
    }

    /// The largest number of queues of a controller that a subsystem configures, if it is
    /// larger than the default.
    pub(super) fn io_queues(&self) -> Option<u16> {
        let configured = self.subsystems.iter().filter_map(configured_queues);
        configured
            .max()
            .filter(|most| *most > Limits::default().io_queues)
    }

    /// Queues of a controller of a subsystem, if they are not the largest number.
    pub(super) fn io_queues_of(&self, subsystem: &Subsystem) -> Option<u16> {
        configured_queues(subsystem).filter(|its| *its != self.most_queues())
    }

    /// Queues of a controller of a subsystem without a configured number.
    fn most_queues(&self) -> u16 {
        self.io_queues().unwrap_or(Limits::default().io_queues)
    }

    /// The largest number of data bytes of a command of all ports, if it is not the default.
    pub(super) fn max_transfer(&self) -> Option<u32> {
        let most = self.ports.iter().map(|it| it.max_transfer).max();
        most.filter(|most| *most != Limits::default().max_transfer)
    }

    /// Reports objects with changed limits.
    pub(super) fn report_limits(&self, report: &mut Report) {
        let queues = Served {
            most: MOST_QUEUES.into(),
            key: "attr.qid_max",
            of_what: "I/O queues of a controller",
            limit: "limits.io_queues",
            more: "hosts create more of them, such as one for each CPU",
            less: "fewer are not possible",
        };
        let usual = self.most_queues();
        let all = self.subsystems.iter().map(|it| Limited {
            location: &it.location,
            was: it.queues,
            is: configured_queues(it).unwrap_or(usual).into(),
        });
        queues.report(all, report);
        let depth = Served {
            most: Limits::MAX_QUEUE_DEPTH.into(),
            key: "param.max_queue_size",
            of_what: "entries of a queue",
            limit: "limits.queue_depth",
            more: "hosts request more",
            less: "fewer are not possible",
        };
        let all = self.ports.iter().map(|it| Limited {
            location: &it.location,
            was: it.queue_size,
            is: entries(it).into(),
        });
        depth.report(all, report);
        let most = self.max_transfer();
        let most = most.unwrap_or(Limits::default().max_transfer).into();
        let transfer = Served {
            most,
            key: "param.mdts",
            of_what: "bytes of data of a command",
            limit: "limits.max_transfer",
            more: "hosts send more",
            less: "another port accepts that many, and the limit is the same for all ports",
        };
        let all = self.ports.iter().map(|it| Limited {
            location: &it.location,
            was: it.max_transfer.into(),
            is: most,
        });
        transfer.report(all, report);
    }
}

/// The queue depth of a port, within the limits of this target.
fn entries(port: &Port) -> u16 {
    within(port.queue_size, 2, Limits::MAX_QUEUE_DEPTH)
}

/// Configured queues of a controller of a subsystem, within the limits of this target.
fn configured_queues(subsystem: &Subsystem) -> Option<u16> {
    let is_configured = subsystem.queues != KERNEL_QUEUES;
    is_configured.then(|| within(subsystem.queues, 1, MOST_QUEUES))
}

impl Served {
    /// One note for all objects with the same change.
    fn report<'a>(&self, all: impl Iterator<Item = Limited<'a>>, report: &mut Report) {
        let mut others: BTreeMap<(i64, i64), Vec<&str>> = BTreeMap::new();
        for one in all.filter(|one| one.was != one.is) {
            others
                .entry((one.was, one.is))
                .or_default()
                .push(one.location);
        }
        for ((was, is), locations) in others {
            let [first, more @ ..] = locations.as_slice() else {
                continue;
            };
            let location = format!("{first}.{}", self.key);
            let mut what = format!("{was} {} become {is}", self.of_what);
            if !more.is_empty() {
                what = format!("{what}, in {} more places too", more.len());
            }
            report.note(&location, &what, &self.remedy(was, is));
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
        format!("raise {limit} if {more}")
    }
}

/// The number, clamped to the range.
fn within(number: i64, least: u16, most: u16) -> u16 {
    let number = number.clamp(least.into(), most.into());
    u16::try_from(number).unwrap_or(most)
}
