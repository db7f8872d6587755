//! All types of the public interface have names in this crate, so that programs depend on no
//! other crate of the project.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

use nvmeof_initiator::memory::Region;
use nvmeof_initiator::polled::{
    AdminConfig, AdminQueue, Association, Call, CallTimeout, Connection, ConnectionConfig, Done,
    IoConfig, IoQueue, SubmitError, Work,
};
use nvmeof_initiator::protocol::{BadSlotCount, Refusal, SetupError};
use nvmeof_initiator::rdma::{CloseReason, ExposeError, PostError, QpOwner, Refused};
use nvmeof_initiator::wire::cm::RejectStatus;
use nvmeof_initiator::wire::fabrics::InvalidParameter;
use nvmeof_initiator::wire::identify::{IdentifyController, IdentifyNamespace};
use nvmeof_initiator::wire::log::DiscoveryEntry;
use nvmeof_initiator::{
    Buf, Cns, Command, Controller, Discovery, Error, LogId, Namespace, Provider, Route,
};

/// A wrapper like in a program, with each type of the signatures by name.
struct Polled {
    queue: IoQueue,
    admin: AdminQueue,
}

impl Polled {
    fn flush(&mut self, nsid: u32) -> Result<(), Refused<Call, SubmitError>> {
        let association: &Association = self.admin.association();
        self.queue.join(association);
        let call = Call::new(Work::flush(nsid), None, 0);
        self.queue.submit_call(call, std::time::Duration::ZERO)
    }
}

async fn pages(controller: &Controller) -> Result<[Vec<u8>; 2], Error> {
    Ok([
        controller.identify_page(Cns::CONTROLLER, 0).await?,
        controller.log_page(LogId::SMART, None, 512).await?,
    ])
}

fn identity(controller: &Controller) -> &IdentifyController {
    controller.identify()
}

fn format(namespace: &Namespace) -> &IdentifyNamespace {
    namespace.identify()
}

fn entries(discovery: Discovery) -> Vec<DiscoveryEntry> {
    discovery.entries
}

fn provider(route: &Route) -> Result<Box<dyn Provider>, Error> {
    route.provider()
}

/// The types of fields and errors.
type Others = (
    (
        AdminConfig,
        Connection,
        ConnectionConfig,
        Done,
        IoConfig,
        CallTimeout,
    ),
    (
        BadSlotCount,
        Refusal,
        SetupError,
        CloseReason,
        ExposeError,
        PostError,
    ),
    (
        QpOwner,
        RejectStatus,
        InvalidParameter,
        Region,
        Buf,
        Command,
    ),
);

#[test]
fn flush_is_built() {
    let work = Work::flush(3);
    assert_eq!((work.bytes(), matches!(work, Work::Single(_))), (0, true));
    let _ = (Polled::flush, pages, identity, format, entries, provider);
    let _ = std::marker::PhantomData::<Others>;
}
