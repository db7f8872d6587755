//! The Namespace Write Protection Config feature (Base 2.1, 5.1.25.1.31).

use nvmeof_wire::Status;
use nvmeof_wire::admin::{GetFeatures, Select, SetFeatures};
use nvmeof_wire::features::WriteProtection;

use super::features::{SEL, capabilities};
use super::{Admin, CDW10, CDW11, NSID};
use crate::controller::Serves;
use crate::live::Live;
use crate::queue::{Failure, Next, Request, Stage, flush_of};
use crate::sight::Seen;
use crate::{Executed, IoKind};

impl Admin<'_> {
    /// Get Features. The default is No Write Protect (Base 2.1, 8.1.16: "the
    /// initial state of a namespace"); nothing is saved by Set Features.
    pub(super) fn get_protection(&self, command: &GetFeatures) -> Result<Next, Failure> {
        let value = match command.select {
            Select::Capabilities => capabilities(command.fid).bits(),
            Select::Current => {
                self.visible(command.nsid)?;
                let state = self.live()?.protection(command.nsid);
                state.ok_or(no_namespace())?.to_dword()
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
    /// written before becomes stable, "as part of transitioning to the write
    /// protected state".
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
        let before = live
            .protect(command.nsid, to)
            .ok_or(no_namespace())?
            .map_err(|_| Failure::from(Status::FEATURE_NOT_CHANGEABLE).at(CDW10))?;
        if before == to {
            return Ok(Next::Done(0));
        }
        if before == WriteProtection::NONE {
            let disk = namespace.disk;
            request.stage = Stage::Protect { disk, before };
            return Ok(Next::Execute(flush_of(&namespace)));
        }
        self.tell_all(live, command.nsid, before);
        Ok(Next::Done(0))
    }

    /// What was written before is stable now, or cannot be made so: then the
    /// namespace is not protected either.
    pub(crate) fn protected(
        &self,
        nsid: u32,
        before: WriteProtection,
        outcome: Executed,
    ) -> Result<Next, Failure> {
        let live = self.live()?;
        if outcome != Executed::Ok {
            live.unprotect(nsid, before);
            return Err(crate::queue::status_of(IoKind::Flush, outcome).into());
        }
        self.tell_all(live, nsid, before);
        Ok(Next::Done(0))
    }

    /// NSATTR of Identify Namespace changed: whoever has a controller of the
    /// subsystem may want to know.
    fn tell_all(&self, live: &Live, nsid: u32, before: WriteProtection) {
        let before = live.as_if(nsid, before);
        for controller in self.shared.registry.all() {
            if controller.subnqn() == live.nqn {
                controller.becomes_from(&before);
            }
        }
    }

    /// The namespace, if it is there for this host.
    fn visible(&self, nsid: u32) -> Result<Seen, Failure> {
        let sight = self.controller.sight();
        let seen = sight.as_ref().and_then(|sight| sight.get(nsid));
        seen.cloned().ok_or(no_namespace())
    }

    fn live(&self) -> Result<&Live, Failure> {
        match &self.controller.serves {
            Serves::Nvm(live) => Ok(live),
            Serves::Discovery => Err(Failure::field(CDW10)),
        }
    }
}

fn no_namespace() -> Failure {
    Failure::from(Status::INVALID_NAMESPACE).at(NSID)
}
