//! The Namespace Write Protection Config feature (Base 2.1, 5.1.25.1.31).

use std::sync::Arc;

use nvmeof_target_reservations::Access;
use nvmeof_wire::Status;
use nvmeof_wire::admin::{GetFeatures, NSID_ALL, Select, SetFeatures};
use nvmeof_wire::features::WriteProtection;

use super::features::{SEL, capabilities};
use super::{Admin, CDW10, CDW11};
use crate::controller::{Controller, ControllerKind};
use crate::live::{Live, ProtectionStep};
use crate::namespace_view::{NamespaceView, Present, VisibleNamespace};
use crate::protection::{ProtectionRequest, Refused};
use crate::request::{Epoch, Failure, Next, Request, Stage};
use crate::shared::Shared;
use crate::{Executed, IoKind, IoOp, Namespace};

impl Admin<'_> {
    /// Get Features of a namespace of the host. The default is No Write
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

    /// Set Features: for one namespace, or for all namespaces of the host, one after the
    /// other (Base 2.1, 4.4). All are checked first, so that none changes if one cannot be
    /// set. A later failure of a backing store or of the keeper leaves earlier ones set.
    pub(super) fn protect(
        &self,
        request: &mut Request,
        command: &SetFeatures,
    ) -> Result<Next, Failure> {
        let to = WriteProtection::from_dword(command.cdw11);
        // Identify Controller, NWPC: all states but Permanent Write Protect.
        let known = matches!(
            to,
            WriteProtection::NONE | WriteProtection::PROTECTED | WriteProtection::UNTIL_POWER_CYCLE
        );
        if !known {
            return Err(Failure::field(CDW11));
        }
        if command.nsid != NSID_ALL {
            let seen = self.visible(command.nsid)?;
            check_reservation(&seen)?;
            return self.protect_one(request, &seen.namespace, to);
        }
        let (live, namespace_view) = (self.live()?, self.namespace_view()?);
        for seen in namespace_view.list() {
            check_reservation(seen)?;
            check_ready(&seen.namespace)?;
            let allowed = live.check_protection(seen.namespace.nsid, to);
            allowed.map_err(|refused| self.refusal(refused, NSID_ALL))?;
        }
        self.protect_from(request, 0, to)
    }

    /// Makes a namespace read-only immediately, then makes earlier writes stable. Base 2.1,
    /// 5.1.25.1.31: "the controller shall commit all volatile write cache data and
    /// metadata associated with the specified namespace ... as part of transitioning to the
    /// write protected state".
    fn protect_one(
        &self,
        request: &mut Request,
        namespace: &Namespace,
        to: WriteProtection,
    ) -> Result<Next, Failure> {
        check_ready(namespace)?;
        let (live, nsid) = (self.live()?, namespace.nsid);
        let protecting = live.protect(&self.shared.save_queue, nsid, to);
        let protecting = protecting.map_err(|refused| self.refusal(refused, nsid))?;
        // Now, because the queue may be closed before earlier writes are stable.
        if let Some(before) = &protecting.before {
            self.notify_all(live, before);
        }
        match protecting.next {
            ProtectionStep::Settle(asked) => {
                self.controller.lock().protecting.push((nsid, asked));
                let store = namespace.store;
                let epoch = Epoch::default();
                request.stage = Stage::Protect {
                    store,
                    nsid,
                    asked,
                    epoch,
                };
                Ok(Next::Execute(IoOp {
                    kind: IoKind::Settle,
                    ..IoOp::flush(namespace.store)
                }))
            }
            granting => self.granted(request, granting, (nsid, to)),
        }
    }

    /// Protects namespaces of the host from NSID `from` on, up to the first that has to
    /// wait.
    fn protect_from(
        &self,
        request: &mut Request,
        from: u32,
        to: WriteProtection,
    ) -> Result<Next, Failure> {
        let namespace_view = self.namespace_view()?;
        let rest = namespace_view.list().iter();
        for seen in rest.filter(|seen| seen.namespace.nsid >= from) {
            match self.protect_one(request, &seen.namespace, to)? {
                Next::Done(_) => {}
                next => return Ok(next),
            }
        }
        Ok(Next::Done(0))
    }

    /// Continues after namespace `nsid`: if it is granted and the command is for all, the
    /// next ones follow.
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

    /// Earlier writes are stable now, or cannot be made so: then the namespace is not
    /// protected, unless another request protects it.
    pub(crate) fn protected(
        &self,
        request: &mut Request,
        (nsid, asked): (u32, ProtectionRequest),
        outcome: Executed,
    ) -> Result<Next, Failure> {
        let live = self.live()?;
        let asked = is_open(self.controller, asked).ok_or(not_kept())?;
        let stable = outcome == Executed::Ok;
        let protecting = live.protected(&self.shared.save_queue, nsid, asked, stable);
        if let Some(before) = protecting.before {
            self.notify_all(live, &before);
        }
        match outcome {
            Executed::Ok => self.granted(request, protecting.next, (nsid, asked.to)),
            _ => Err(Failure::of(outcome, IoKind::Settle)),
        }
    }

    /// Notifies the controllers of the subsystem of changes since `before`.
    fn notify_all(&self, live: &Live, before: &Present) {
        self.shared.notify_all(&live.nqn, before);
        self.deferred.notified.set(true);
    }

    /// The request is granted, or will be when it has been saved.
    fn granted(
        &self,
        request: &mut Request,
        granting: ProtectionStep,
        (nsid, to): (u32, WriteProtection),
    ) -> Result<Next, Failure> {
        match granting {
            ProtectionStep::Granted => Ok(Next::Done(0)),
            ProtectionStep::Keep(keeping) => {
                let epoch = Epoch::default();
                let protects = Some((nsid, to));
                request.stage = Stage::Keep { protects, epoch };
                self.deferred.keeping.set(Some(keeping));
                Ok(Next::Keep)
            }
            ProtectionStep::Settle(_) | ProtectionStep::Refused => Err(not_kept()),
        }
    }

    /// The namespace, if this host can access it.
    pub(super) fn visible(&self, nsid: u32) -> Result<VisibleNamespace, Failure> {
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

    /// The view of the host. A discovery controller has none.
    pub(super) fn namespace_view(&self) -> Result<Arc<NamespaceView>, Failure> {
        self.controller
            .namespace_view()
            .ok_or(Failure::field(CDW10))
    }

    pub(super) fn live(&self) -> Result<&Live, Failure> {
        match &self.controller.kind {
            ControllerKind::Nvm(live) => Ok(live),
            ControllerKind::Discovery => Err(Failure::field(CDW10)),
        }
    }
}

/// Takes the request from the pending ones of the controller, if it is pending.
fn is_open(controller: &Controller, asked: ProtectionRequest) -> Option<ProtectionRequest> {
    let protecting = &mut controller.lock().protecting;
    let at = protecting.iter().position(|(_, one)| *one == asked)?;
    Some(protecting.swap_remove(at).1)
}

/// Cancels the pending requests of the controller for which `is_it` returns true. Earlier
/// writes may not be stable, nothing has been saved, and no host gets a response.
/// Otherwise the namespace would stay protected without a successful response to any host,
/// while others may have got an error. Returns whether controllers were notified of a
/// change.
pub(crate) fn cancel_requests(
    shared: &Shared,
    controller: &Controller,
    is_it: impl Fn(ProtectionRequest) -> bool,
) -> bool {
    let ControllerKind::Nvm(live) = &controller.kind else {
        return false;
    };
    // Releases the lock of the controller, which is among those that are notified below.
    let open: Vec<_> = {
        let protecting = &mut controller.lock().protecting;
        let open = protecting.extract_if(.., |(_, asked)| is_it(*asked));
        open.collect()
    };
    let mut notified = false;
    for (nsid, asked) in open {
        let protecting = live.protected(&shared.save_queue, nsid, asked, false);
        if let Some(before) = &protecting.before {
            shared.notify_all(&live.nqn, before);
            notified = true;
        }
    }
    notified
}

/// Set Features of a namespace changes it: no host does that against a reservation.
pub(super) fn check_reservation(seen: &VisibleNamespace) -> Result<(), Failure> {
    match seen.accesses.has(Access::Write) {
        true => Ok(()),
        false => Err(Status::RESERVATION_CONFLICT.into()),
    }
}

/// Writes to a backing store that is gone cannot be made stable. What is saved of a namespace that
/// waits may be unknown: a change would replace it.
fn check_ready(namespace: &Namespace) -> Result<(), Failure> {
    match namespace.is_ready() {
        true => Ok(()),
        false => Err(Failure::not_ready()),
    }
}

/// Completes a request after its save: an acknowledged state survives a restart.
pub(crate) fn kept(kept: bool) -> Result<Next, Failure> {
    if kept {
        Ok(Next::Done(0))
    } else {
        Err(not_kept())
    }
}

/// The save failed. The host may retry.
pub(super) fn not_kept() -> Failure {
    Failure::transient(Status::INTERNAL_ERROR)
}
