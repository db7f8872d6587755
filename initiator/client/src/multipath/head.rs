//! A namespace of a subsystem, as all of its paths report it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_initiator_core::SetupError;
use nvmeof_initiator_core::multipath::{PathPolicy, RetryPolicy, SharedNamespace};
use nvmeof_wire::Status;
use nvmeof_wire::admin::Cns;
use nvmeof_wire::identify::descriptors::NamespaceIdentifiers;
use nvmeof_wire::identify::{DescriptorList, IdentifyNamespace};
use zerocopy::FromBytes;

use super::choice::Choice;
use super::connection::Connection;
use crate::error::{Error, MachineError, UsageError};
use crate::namespace::Namespace;

/// The namespace as it was when it was opened, and its present size. Connections over which it is
/// another one are not used.
pub(super) struct Head {
    /// Differs from that of every other head.
    pub(super) id: u64,
    /// With the size at that time.
    opened: SharedNamespace,
    /// Its number of blocks over all paths; never falls.
    blocks: AtomicU64,
    pub(super) identify: Box<IdentifyNamespace>,
    pub(super) retry: RetryPolicy,
    choice: Mutex<Choice>,
}

impl Head {
    /// Namespace `nsid` as `connection` has it.
    pub(super) async fn of(
        connection: &Connection,
        nsid: u32,
        id: u64,
        policy: PathPolicy,
    ) -> Result<Self, Error> {
        let namespace = connection.controller.namespace(nsid).await?;
        let opened = shared(&namespace).await?;
        Ok(Self {
            id,
            opened,
            blocks: AtomicU64::new(opened.blocks),
            identify: Box::new(*namespace.identify()),
            retry: RetryPolicy::of(connection.controller.identify()),
            choice: Mutex::new(Choice::new(policy)),
        })
    }

    pub(super) fn nsid(&self) -> u32 {
        self.opened.nsid
    }

    pub(super) fn block_size(&self) -> u32 {
        self.opened.block_size
    }

    pub(super) fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    /// All paths have `blocks` blocks.
    pub(super) fn grow(&self, blocks: u64) {
        self.blocks.fetch_max(blocks, Ordering::AcqRel);
    }

    /// Forgets the paths until the next command: they keep their connections.
    pub(super) fn clear(&self) {
        let paths = self.lock().clear();
        drop(paths);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Choice> {
        self.choice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks whether the namespace is the same one over `connection`, which remembers the result.
    ///
    /// # Errors
    /// That of a command which may succeed later.
    pub(super) async fn check(&self, connection: &Connection) -> Result<(), Error> {
        let generation = connection.generation();
        let checked = match connection.controller.namespace(self.nsid()).await {
            Ok(namespace) => {
                let compared = self.compare(&namespace).await;
                compared.map(|()| Arc::new(namespace))
            }
            Err(error) => Err(error),
        };
        if let Err(error) = &checked {
            if !is_lasting(error) {
                return Err(error.clone());
            }
            let known = connection.known(self.id).and_then(Result::err);
            if known.is_none_or(|known| known.cause() != error.cause()) {
                let addr = connection.controller.options().addr;
                let nsid = self.nsid();
                tracing::warn!(%addr, nsid, %error, "path not used for a namespace");
            }
        }
        if !connection.remember(self.id, checked, generation) {
            connection.check_again();
        }
        Ok(())
    }

    /// Checks that `namespace`, of another controller, is the same one.
    async fn compare(&self, namespace: &Namespace) -> Result<(), Error> {
        let found = shared(namespace).await?;
        let known = SharedNamespace {
            blocks: self.blocks(),
            ..self.opened
        };
        known.check(&found).map_err(|difference| {
            let addr = namespace.controller().options().addr;
            let error = SetupError::InvalidResponse(difference.to_string());
            Error::setup(addr, 0, error)
        })
    }
}

/// Whether the check of a namespace would fail again with that error.
fn is_lasting(error: &Error) -> bool {
    match error {
        Error::Setup(_) => true,
        Error::Command(failed) => failed.status.dnr(),
        Error::Usage(usage) => matches!(
            **usage,
            UsageError::NoNamespace { .. } | UsageError::Format { .. }
        ),
        _ => false,
    }
}

/// What the paths must agree on, as the controller of `namespace` reports it.
async fn shared(namespace: &Namespace) -> Result<SharedNamespace, Error> {
    Ok(SharedNamespace {
        nsid: namespace.nsid(),
        identifiers: identifiers(namespace).await?,
        block_size: namespace.block_size(),
        blocks: namespace.blocks(),
    })
}

/// The identifiers of a namespace.
async fn identifiers(namespace: &Namespace) -> Result<NamespaceIdentifiers, Error> {
    let controller = namespace.controller();
    let page = controller.identify_page(Cns::DESCRIPTORS, namespace.nsid());
    let page = match page.await {
        Ok(page) => page,
        // Controllers before NVMe 1.3 have no identifiers of namespaces here.
        Err(Error::Command(failed)) if failed.status.is(Status::INVALID_FIELD) => {
            return Ok(NamespaceIdentifiers::default());
        }
        Err(error) => return Err(error),
    };
    let list = DescriptorList::read_from_bytes(&page)
        .map_err(|_| MachineError::internal("an Identify page of another length"))?;
    NamespaceIdentifiers::parse(&list).map_err(|error| {
        let addr = controller.options().addr;
        Error::setup(addr, 0, SetupError::InvalidResponse(error.to_string()))
    })
}
