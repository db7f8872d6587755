//! Cross-Controller Reset for the admin queues of the initiator, which do not have the command
//! yet. A layer of the provider replaces another command by it. The layer also sets Remove
//! Completed Entries in Get Log Page for page 1Eh.

use std::sync::{Arc, Mutex};

use nvmeof_initiator_core::{Command, admin};
use nvmeof_rdma::{Inline, Provider, QpId, Refused, Tag, Work};
use nvmeof_wire::Sqe;
use nvmeof_wire::admin::{CrossControllerReset, GetLogPage, LogId};
use nvmeof_wire::features::FeatureId;
use nvmeof_wire::log::controllers::REMOVE_COMPLETED;
use nvmeof_wire::opcode::admin as opcode;

/// The resets that a host sent, which the layers of its providers share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resets(Arc<Mutex<Vec<CrossControllerReset>>>);

/// A vendor specific feature. Setting it stands for a reset, by its index.
const RESET: FeatureId = FeatureId(0xff);

impl Resets {
    /// A command that a layer replaces with `reset`.
    pub(crate) fn command(&self, reset: CrossControllerReset) -> Command {
        let mut all = self.0.lock().unwrap();
        all.push(reset);
        admin::set_features(RESET, u32::try_from(all.len() - 1).unwrap())
    }

    /// Adds the layer to a provider.
    pub(crate) fn layer(&self, inner: Box<dyn Provider>) -> Box<dyn Provider> {
        Box::new(Layer {
            inner,
            resets: self.clone(),
        })
    }

    /// The command to send instead of `sqe`.
    fn replace(&self, sqe: &Sqe) -> Option<Sqe> {
        let mut new = match sqe.opcode {
            opcode::SET_FEATURES if sqe.cdw10.to_bytes()[0] == RESET.0 => {
                let index = usize::try_from(sqe.cdw11.get()).unwrap();
                self.0.lock().unwrap()[index].to_sqe()
            }
            opcode::GET_LOG_PAGE => {
                let mut page = GetLogPage::parse(sqe);
                if page.lid != LogId::CROSS_CONTROLLER_RESET {
                    return None;
                }
                page.lsp |= REMOVE_COMPLETED;
                page.to_sqe()
            }
            _ => return None,
        };
        new.cid = sqe.cid;
        new.dptr = sqe.dptr;
        Some(new)
    }
}

struct Layer {
    inner: Box<dyn Provider>,
    resets: Resets,
}

impl Provider for Layer {
    nvmeof_rdma_layers::forward!(inner: limits name register listen unlisten connect set_owner
        local_addr peer_may_invalidate peer_works_in_place map_remote prepare accept reject
        post_recv share_receives post_shared_recv expose withdraw disconnect abort progress submit
        poll wait_fd next_deadline rest);

    fn post(&mut self, qp: QpId, tag: Tag, mut work: Work) -> Result<(), Refused<Work>> {
        if let Work::Send { head, .. } = &mut work
            && let Some(sqe) = Sqe::from_capsule(head)
            && let Some(new) = self.resets.replace(&sqe)
        {
            *head = Inline::full(new.to_bytes());
        }
        self.inner.post(qp, tag, work)
    }
}
