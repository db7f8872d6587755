//! The Namespace Write Protection Config feature (Base 2.1, 5.1.25.1.31).

use nvmeof_wire::Status;
use nvmeof_wire::admin::{GetFeatures, Select, SetFeatures};
use nvmeof_wire::features::WriteProtection;

use super::features::{SEL, capabilities};
use super::{Admin, CDW10, CDW11, NSID};
use crate::controller::{Controller, Serves};
use crate::live::{Granting, Live};
use crate::protection::{Asked, Refused};
use crate::queue::{Epoch, Failure, Next, Request, Stage, flush_of, not_ready, status_of};
use crate::sight::{Present, Seen};
use crate::target::Shared;
use crate::{Executed, IoKind, IoOp};

impl Admin<'_> {
    /// Get Features. The default is No Write Protect (Base 2.1, 8.1.16: "the
    /// initial state of a namespace"); nothing is saved by Set Features.
    pub(super) fn get_protection(&self, command: &GetFeatures) -> Result<Next, Failure> {
        let value = match command.select {
            Select::Capabilities => capabilities(command.fid).bits(),
            Select::Current => {
                self.visible(command.nsid)?;
                let state = self.live()?.protection(command.nsid);
                let state = state.ok_or_else(|| self.no_namespace(command.nsid))?;
                state.to_dword()
            }
            Select::Default | Select::Saved => {
                self.visible(command.nsid)?;
                WriteProtection::NONE.to_dword()
            }
            Select::Reserved(_) => return Err(Failure::field(SEL)),
        };
        Ok(Next::Done(value.into()))
    }

    /// Set Features: the namespace is read only from here on; then what was
    /// written before becomes stable. Base 2.0, 5.27.1.28: "the controller shall
    /// commit all volatile write cache data and metadata associated with the
    /// specified namespace ... as part of transitioning to the write protected
    /// state".
    pub(super) fn protect(
        &self,
        request: &mut Request,
        command: &SetFeatures,
    ) -> Result<Next, Failure> {
        let live = self.live()?;
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
        let namespace = self.visible(command.nsid)?.namespace;
        // Of storage that failed nothing can be made stable.
        if to != WriteProtection::NONE && !namespace.is_ready() {
            return Err(not_ready());
        }
        let protecting = live.protect(&self.shared.desk, command.nsid, to);
        let protecting = protecting.map_err(|refused| match refused {
            Refused::Gone => self.no_namespace(command.nsid),
            Refused::Fixed => Failure::from(Status::FEATURE_NOT_CHANGEABLE).at(CDW10),
        })?;
        // At once: the queue may go before what was written is stable.
        if let Some(before) = &protecting.before {
            self.tell_all(live, before);
        }
        match protecting.next {
            Granting::Settle(asked) => {
                let waits = (command.nsid, asked);
                self.controller.lock().protecting.push(waits);
                let disk = namespace.disk;
                let epoch = Epoch::default();
                request.stage = Stage::Protect { disk, asked, epoch };
                Ok(Next::Execute(IoOp {
                    kind: IoKind::Settle,
                    ..flush_of(&namespace)
                }))
            }
            granting => self.granted(request, granting),
        }
    }

    /// What was written before is stable now, or cannot be made so: then the
    /// namespace is not protected either, unless others want it to be.
    pub(crate) fn protected(
        &self,
        request: &mut Request,
        asked: Asked,
        outcome: Executed,
    ) -> Result<Next, Failure> {
        let live = self.live()?;
        let asked = is_open(self.controller, asked).ok_or(not_kept())?;
        let stable = outcome == Executed::Ok;
        let protecting = live.protected(&self.shared.desk, request.nsid, asked, stable);
        if let Some(before) = protecting.before {
            self.tell_all(live, &before);
        }
        match outcome {
            Executed::Ok => self.granted(request, protecting.next),
            Executed::Gone => Err(not_ready()),
            _ => Err(status_of(IoKind::Settle, outcome).into()),
        }
    }

    /// Who has a controller of the subsystem may see another state than `before`.
    fn tell_all(&self, live: &Live, before: &Present) {
        self.shared.tell_all(&live.nqn, before);
        self.left.told.set(true);
    }

    /// It is as asked for, or will be when that is kept.
    fn granted(&self, request: &mut Request, granting: Granting) -> Result<Next, Failure> {
        match granting {
            Granting::Granted => Ok(Next::Done(0)),
            Granting::Keep(keeping) => {
                let epoch = Epoch::default();
                request.stage = Stage::Keep { epoch };
                self.left.keeping.set(Some(keeping));
                Ok(Next::Keep)
            }
            Granting::Settle(_) | Granting::Refused => Err(not_kept()),
        }
    }

    /// The namespace, if it is there for this host.
    fn visible(&self, nsid: u32) -> Result<Seen, Failure> {
        let sight = self.controller.sight();
        let seen = sight.as_ref().and_then(|sight| sight.get(nsid));
        seen.cloned().ok_or_else(|| self.no_namespace(nsid))
    }

    fn no_namespace(&self, nsid: u32) -> Failure {
        let sight = self.controller.sight();
        sight.map_or(Failure::field(NSID), |sight| {
            Failure::no_namespace(&sight, nsid)
        })
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
