//! The Namespace Write Protection Config feature (Base 2.1, 5.1.25.1.31).

use std::sync::Arc;

use nvmeof_wire::Status;
use nvmeof_wire::admin::{GetFeatures, NSID_ALL, Select, SetFeatures};
use nvmeof_wire::features::WriteProtection;

use super::features::{SEL, capabilities};
use super::{Admin, CDW10, CDW11};
use crate::controller::{Controller, Serves};
use crate::live::{Granting, Live};
use crate::namespace_view::{NamespaceView, Present, VisibleNamespace};
use crate::protection::{Asked, Refused};
use crate::request::{Epoch, Failure, Next, Request, Stage};
use crate::shared::Shared;
use crate::{Executed, IoKind, IoOp, Namespace};

impl Admin<'_> {
    /// Get Features of a namespace that is there for the host. The default is No Write
    /// Protect (Base 2.1, 8.1.16: "The initial state of a namespace at the time of its
    /// creation is the No Write Protect state"); nothing is saved by
    /// Set Features.
    pub(super) fn get_protection(&self, command: &GetFeatures) -> Result<Next, Failure> {
        let value = match command.select {
            Select::Capabilities => capabilities(command.fid).bits(),
            Select::Current => {
                let state = self.live()?.protection(command.nsid);
                let gone = || self.refusal(Refused::Gone, command.nsid);
                state.ok_or_else(gone)?.to_dword()
            }
            Select::Default | Select::Saved => WriteProtection::NONE.to_dword(),
            Select::Reserved(_) => return Err(Failure::field(SEL)),
        };
        Ok(Next::Done(value.into()))
    }

    /// Set Features: of one namespace, or one after the other of all that there are for the
    /// host (Base 2.1, 4.4). Of those that cannot be set one is found beforehand, so that
    /// none changes; what a disk or the keeper fails at later leaves those before it set.
    pub(super) fn protect(
        &self,
        request: &mut Request,
        command: &SetFeatures,
    ) -> Result<Next, Failure> {
        let to = WriteProtection::from_dword(command.cdw11);
        // Identify Controller, NWPC: of the states that there are, not the
        // permanent one.
        let known = matches!(
            to,
            WriteProtection::NONE | WriteProtection::PROTECTED | WriteProtection::UNTIL_POWER_CYCLE
        );
        if !known {
            return Err(Failure::field(CDW11));
        }
        if command.nsid != NSID_ALL {
            return self.protect_one(request, &self.visible(command.nsid)?.namespace, to);
        }
        let (live, namespace_view) = (self.live()?, self.namespace_view()?);
        for seen in namespace_view.seen() {
            check_ready(&seen.namespace, to)?;
            let allowed = live.check_protection(seen.namespace.nsid, to);
            allowed.map_err(|refused| self.refusal(refused, NSID_ALL))?;
        }
        self.protect_from(request, 0, to)
    }

    /// A namespace is read only from here on; then what was written before becomes stable.
    /// Base 2.1, 5.1.25.1.31: "the controller shall commit all volatile write cache data and
    /// metadata associated with the specified namespace ... as part of transitioning to the
    /// write protected state".
    fn protect_one(
        &self,
        request: &mut Request,
        namespace: &Namespace,
        to: WriteProtection,
    ) -> Result<Next, Failure> {
        check_ready(namespace, to)?;
        let (live, nsid) = (self.live()?, namespace.nsid);
        let protecting = live.protect(&self.shared.desk, nsid, to);
        let protecting = protecting.map_err(|refused| self.refusal(refused, nsid))?;
        // At once: the queue may go before what was written is stable.
        if let Some(before) = &protecting.before {
            self.tell_all(live, before);
        }
        match protecting.next {
            Granting::Settle(asked) => {
                self.controller.lock().protecting.push((nsid, asked));
                let disk = namespace.disk;
                let epoch = Epoch::default();
                request.stage = Stage::Protect {
                    disk,
                    nsid,
                    asked,
                    epoch,
                };
                Ok(Next::Execute(IoOp {
                    kind: IoKind::Settle,
                    ..IoOp::flush(namespace.disk)
                }))
            }
            granting => self.granted(request, granting, (nsid, to)),
        }
    }

    /// Those there are for the host, from number `from` on, up to the first of which
    /// something has to be waited for.
    fn protect_from(
        &self,
        request: &mut Request,
        from: u32,
        to: WriteProtection,
    ) -> Result<Next, Failure> {
        let namespace_view = self.namespace_view()?;
        let rest = namespace_view.seen().iter();
        for seen in rest.filter(|seen| seen.namespace.nsid >= from) {
            match self.protect_one(request, &seen.namespace, to)? {
                Next::Done(_) => {}
                next => return Ok(next),
            }
        }
        Ok(Next::Done(0))
    }

    /// That came of the namespace with that number: when it is granted, others follow if all
    /// were meant.
    pub(crate) fn protect_rest(
        &self,
        request: &mut Request,
        next: Next,
        (nsid, to): (u32, WriteProtection),
    ) -> Result<Next, Failure> {
        match next {
            Next::Done(_) if request.nsid == NSID_ALL => {
                self.protect_from(request, nsid.saturating_add(1), to)
            }
            next => Ok(next),
        }
    }

    /// What was written before is stable now, or cannot be made so: then the
    /// namespace is not protected either, unless others want it to be.
    pub(crate) fn protected(
        &self,
        request: &mut Request,
        (nsid, asked): (u32, Asked),
        outcome: Executed,
    ) -> Result<Next, Failure> {
        let live = self.live()?;
        let asked = is_open(self.controller, asked).ok_or(not_kept())?;
        let stable = outcome == Executed::Ok;
        let protecting = live.protected(&self.shared.desk, nsid, asked, stable);
        if let Some(before) = protecting.before {
            self.tell_all(live, &before);
        }
        match outcome {
            Executed::Ok => self.granted(request, protecting.next, (nsid, asked.to)),
            Executed::Gone => Err(Failure::not_ready()),
            _ => Err(outcome.status(IoKind::Settle).into()),
        }
    }

    /// Who has a controller of the subsystem may see another state than `before`.
    fn tell_all(&self, live: &Live, before: &Present) {
        self.shared.tell_all(&live.nqn, before);
        self.left.told.set(true);
    }

    /// It is as asked for, or will be when that is kept.
    fn granted(
        &self,
        request: &mut Request,
        granting: Granting,
        (nsid, to): (u32, WriteProtection),
    ) -> Result<Next, Failure> {
        match granting {
            Granting::Granted => Ok(Next::Done(0)),
            Granting::Keep(keeping) => {
                let epoch = Epoch::default();
                request.stage = Stage::Keep { nsid, to, epoch };
                self.left.keeping.set(Some(keeping));
                Ok(Next::Keep)
            }
            Granting::Settle(_) | Granting::Refused => Err(not_kept()),
        }
    }

    /// The namespace, if it is there for this host.
    fn visible(&self, nsid: u32) -> Result<VisibleNamespace, Failure> {
        let seen = self.namespace_view()?.get(nsid).cloned();
        seen.ok_or_else(|| self.refusal(Refused::Gone, nsid))
    }

    fn refusal(&self, refused: Refused, nsid: u32) -> Failure {
        match (refused, self.namespace_view()) {
            (Refused::Fixed, _) => Failure::from(Status::FEATURE_NOT_CHANGEABLE).at(CDW10),
            (Refused::Gone, Ok(namespace_view)) => Failure::no_namespace(&namespace_view, nsid),
            (Refused::Gone, Err(failure)) => failure,
        }
    }

    /// What the host sees. A discovery controller has none of this.
    fn namespace_view(&self) -> Result<Arc<NamespaceView>, Failure> {
        self.controller
            .namespace_view()
            .ok_or(Failure::field(CDW10))
    }

    fn live(&self) -> Result<&Live, Failure> {
        match &self.controller.serves {
            Serves::Nvm(live) => Ok(live),
            Serves::Discovery => Err(Failure::field(CDW10)),
        }
    }
}

/// The request, if nothing came of it yet; nothing else may come of it then.
fn is_open(controller: &Controller, asked: Asked) -> Option<Asked> {
    let protecting = &mut controller.lock().protecting;
    let at = protecting.iter().position(|(_, one)| *one == asked)?;
    Some(protecting.swap_remove(at).1)
}

/// Nothing comes of those requests of the controller whose outcome is not known: what was
/// written before may not be stable and nothing is kept, and there is nobody to hear
/// that. Otherwise a namespace would stay protected that no host was told is, also when
/// others are told that it is not. Says whether controllers were told of a change.
pub(crate) fn give_up(
    shared: &Shared,
    controller: &Controller,
    is_it: impl Fn(Asked) -> bool,
) -> bool {
    let Serves::Nvm(live) = &controller.serves else {
        return false;
    };
    // Its lock is free again below: the controller is one of those that are told.
    let open: Vec<_> = {
        let protecting = &mut controller.lock().protecting;
        let open = protecting.extract_if(.., |(_, asked)| is_it(*asked));
        open.collect()
    };
    let mut told = false;
    for (nsid, asked) in open {
        let protecting = live.protected(&shared.desk, nsid, asked, false);
        if let Some(before) = &protecting.before {
            shared.tell_all(&live.nqn, before);
            told = true;
        }
    }
    told
}

/// Of storage that failed nothing can be made stable.
fn check_ready(namespace: &Namespace, to: WriteProtection) -> Result<(), Failure> {
    if to != WriteProtection::NONE && !namespace.is_ready() {
        return Err(Failure::not_ready());
    }
    Ok(())
}

/// What is answered is there again when the target is started anew.
pub(crate) fn kept(kept: bool) -> Result<Next, Failure> {
    if kept {
        Ok(Next::Done(0))
    } else {
        Err(not_kept())
    }
}

/// This could not be kept. The host may try again.
fn not_kept() -> Failure {
    Failure::transient(Status::INTERNAL_ERROR)
}
