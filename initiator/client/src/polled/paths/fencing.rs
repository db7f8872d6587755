//! Fences lost controllers: sends the commands that their [`Fence`]s request over the admin queues
//! of live controllers, and passes the completions on.

use std::time::Duration;

use nvmeof_initiator_core::fence::{ResetRefusal, Sibling, choose_sibling};
use nvmeof_initiator_core::{ControllerInfo, Fence, FenceMethod, FenceStep, LostController};
use nvmeof_rdma::Address;
use nvmeof_wire::log::controllers::CONTROLLER_ENTRY_LEN;
use nvmeof_wire::log::{CrossResetEntry, EntryCount};
use zerocopy::FromBytes;

use super::controller::{Controller, FenceNews};
use super::shared::Incarnation;

/// The lost controllers of a host that are not fenced yet.
#[derive(Debug, Default)]
pub(super) struct Fences {
    all: Vec<Fencing>,
    /// Commands for fences, by the controller that executes them.
    asked: Vec<Asked>,
    /// Commands that a controller did not complete in time, since the last that it completed.
    unanswered: Vec<(Incarnation, u32)>,
    /// Controllers without Cross-Controller Reset.
    incapable: Vec<Incarnation>,
}

#[derive(Debug)]
struct Fencing {
    path: usize,
    addr: Address,
    cntlid: u16,
    incarnation: Incarnation,
    fence: Fence,
    /// The sibling that executes the reset.
    via: Option<Incarnation>,
    /// Siblings that do not reset it.
    refused: Vec<Incarnation>,
    /// When it may take its next step: a sibling that requests steps without an end does not keep
    /// the host busy.
    step_at: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    via: Incarnation,
    deadline: Duration,
}

/// A controller that is fenced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fenced {
    pub(super) path: usize,
    pub(super) incarnation: Incarnation,
    pub(super) method: FenceMethod,
}

/// The pause between two steps of a fence.
const PAUSE: Duration = Duration::from_millis(100);

/// A sibling that takes longer for one command counts as lost.
const LONGEST_STEP: Duration = Duration::from_secs(5);

impl Fences {
    /// Controller `info` of a path was lost at `now`; it granted `keep_alive`. `quiesce` is the
    /// time for one that reports none.
    pub(super) fn add(
        &mut self,
        (path, addr, incarnation): (usize, Address, Incarnation),
        info: &ControllerInfo,
        keep_alive: Duration,
        quiesce: Option<Duration>,
        now: Duration,
    ) {
        self.all.push(Fencing {
            path,
            addr,
            cntlid: info.cntlid,
            incarnation,
            fence: Fence::new(&LostController::of(info, keep_alive), quiesce, now),
            via: None,
            refused: Vec::new(),
            step_at: now,
        });
    }

    /// Passes `news` of controller `via` on.
    pub(super) fn handle(&mut self, via: Incarnation, news: FenceNews, now: Duration) {
        if !matches!(news, FenceNews::Notice) {
            self.asked.retain(|one| one.via != via);
            self.unanswered.retain(|(one, _)| *one != via);
        }
        let its = self.all.iter_mut().filter(|one| one.via == Some(via));
        match news {
            FenceNews::Notice => its.for_each(|one| one.fence.notified(now)),
            FenceNews::Reset(of, status, result) => {
                for one in its.filter(|one| one.incarnation == of) {
                    match one.fence.reset_completed(now, status, result) {
                        Some(ResetRefusal::ThisController) => one.refused.push(via),
                        Some(ResetRefusal::AnyController) => self.incapable.push(via),
                        None => {}
                    }
                }
            }
            // Completed entries are in the page once only: it is for all that `via` resets.
            FenceNews::Log(page) => {
                let entries = page.map(|page| entries(&page));
                for one in its {
                    match &entries {
                        Some(entries) => {
                            if one.fence.log_read(now, entries).is_some() {
                                one.refused.push(via);
                            }
                        }
                        None => one.lose_sibling(now),
                    }
                }
            }
        }
    }

    /// Takes the steps that are due, with `live` controllers and their paths. Returns those that
    /// are fenced.
    pub(super) fn poll(
        &mut self,
        now: Duration,
        live: &mut [(usize, &mut Controller)],
    ) -> Vec<Fenced> {
        if self.all.is_empty() {
            return Vec::new();
        }
        self.drop_lost(now, live);
        for at in 0..self.all.len() {
            self.step(at, now, live);
        }
        let incapable = &self.incapable;
        let fenced = |one: &mut Fencing| {
            let has_sibling = one.has_sibling(live, incapable);
            let FenceStep::Fenced(method) = one.fence.poll(now, has_sibling) else {
                return None;
            };
            let (addr, cntlid) = (one.addr, one.cntlid);
            tracing::info!(%addr, cntlid, ?method, "lost controller fenced");
            Some(Fenced {
                path: one.path,
                incarnation: one.incarnation,
                method,
            })
        };
        let all: Vec<_> = self.all.iter_mut().filter_map(fenced).collect();
        let is_fenced = |one: &Fencing| all.iter().any(|it| it.incarnation == one.incarnation);
        self.all.retain(|one| !is_fenced(one));
        all
    }

    /// When [`poll`](Self::poll) has something to do.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let steps = self.all.iter().filter_map(|one| {
            let due = one.fence.next_deadline()?;
            Some(due.max(one.step_at))
        });
        let asked = self.asked.iter().map(|one| one.deadline);
        steps.chain(asked).min()
    }

    /// Siblings that are lost, or did not complete a command in time.
    fn drop_lost(&mut self, now: Duration, live: &[(usize, &mut Controller)]) {
        let is_live = |via: Incarnation| live.iter().any(|(_, it)| it.incarnation == via);
        let late: Vec<_> = self
            .asked
            .iter()
            .filter(|one| now >= one.deadline)
            .collect();
        let late: Vec<_> = late.iter().map(|one| one.via).collect();
        for via in &late {
            match self.unanswered.iter_mut().find(|(one, _)| one == via) {
                Some((_, count)) => *count = count.saturating_add(1),
                None => self.unanswered.push((*via, 1)),
            }
        }
        self.asked
            .retain(|one| is_live(one.via) && now < one.deadline);
        self.unanswered.retain(|(via, _)| is_live(*via));
        self.incapable.retain(|via| is_live(*via));
        for one in &mut self.all {
            one.refused.retain(|via| is_live(*via));
            if one
                .via
                .is_some_and(|via| !is_live(via) || late.contains(&via))
            {
                one.lose_sibling(now);
            }
        }
    }

    /// One step of the fence at index `at`.
    fn step(&mut self, at: usize, now: Duration, live: &mut [(usize, &mut Controller)]) {
        let Some(one) = self.all.get_mut(at).filter(|one| now >= one.step_at) else {
            return;
        };
        let has_sibling = one.has_sibling(live, &self.incapable);
        let via = match one.fence.poll(now, has_sibling) {
            FenceStep::Wait | FenceStep::Fenced(_) => return,
            FenceStep::Reset(reset) => {
                one.step_at = now + PAUSE;
                let siblings = live.iter().map(|(path, it)| {
                    let unanswered = self.unanswered.iter();
                    let mut unanswered = unanswered.filter(|(via, _)| *via == it.incarnation);
                    Sibling {
                        is_same_path: *path == one.path,
                        has_refused: one.is_refused_by(it.incarnation, &self.incapable),
                        is_busy: self.asked.iter().any(|asked| asked.via == it.incarnation),
                        unanswered: unanswered.next().map_or(0, |(_, count)| *count),
                    }
                });
                let chosen = choose_sibling(&siblings.collect::<Vec<_>>());
                let Some((_, via)) = chosen.and_then(|chosen| live.get_mut(chosen)) else {
                    return;
                };
                if !via.send_reset(reset, one.incarnation, now) {
                    return;
                }
                one.via = Some(via.incarnation);
                via.incarnation
            }
            FenceStep::ReadLog => {
                one.step_at = now + PAUSE;
                let its = |(_, it): &&mut (usize, &mut Controller)| one.via == Some(it.incarnation);
                let Some((_, via)) = live.iter_mut().find(its) else {
                    return one.lose_sibling(now);
                };
                let is_busy = self.asked.iter().any(|asked| asked.via == via.incarnation);
                if is_busy || !via.read_resets(now) {
                    return;
                }
                via.incarnation
            }
        };
        one.fence.sent();
        let deadline = now + LONGEST_STEP;
        self.asked.push(Asked { via, deadline });
    }
}

impl Fencing {
    fn lose_sibling(&mut self, now: Duration) {
        self.via = None;
        self.fence.sibling_lost(now);
    }

    /// Whether `sibling` does not reset it, or resets none.
    fn is_refused_by(&self, sibling: Incarnation, incapable: &[Incarnation]) -> bool {
        self.refused.contains(&sibling) || incapable.contains(&sibling)
    }

    /// Whether a live controller may reset it.
    fn has_sibling(&self, live: &[(usize, &mut Controller)], incapable: &[Incarnation]) -> bool {
        let refuses = |it: &Controller| self.is_refused_by(it.incarnation, incapable);
        live.iter().any(|(_, it)| !refuses(it))
    }
}

/// The entries of a page; those beyond its end are omitted.
fn entries(page: &[u8]) -> Vec<CrossResetEntry> {
    let count = EntryCount::read_from_prefix(page).map_or(0, |(count, _)| count.ne.get());
    let all = page.chunks_exact(CONTROLLER_ENTRY_LEN).skip(1);
    all.take(count.into())
        .filter_map(|entry| CrossResetEntry::read_from_bytes(entry).ok())
        .collect()
}
