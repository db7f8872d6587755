//! Implementation of [`Provider`] for boxes.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use nvmeof_memory::{Buf, Region};

use crate::{
    Address, ConnectError, Event, ExposeError, Inline, Limits, ListenError, ListenerId, PostError,
    Posted, PrivateData, Progress, Provider, QpConfig, QpId, QpOwner, Refused, RegionExposure,
    RemoteKey, RemoteSlice, Rights, SharedReceives, SrqId, Tag, Work, WriteAndSend,
};

impl<P: Provider + ?Sized> Provider for Box<P> {
    fn limits(&self) -> &Limits {
        (**self).limits()
    }

    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn register(&mut self, region: &Region) -> Result<(), std::io::Error> {
        (**self).register(region)
    }

    fn listen(&mut self, addr: Address) -> Result<(ListenerId, Address), ListenError> {
        (**self).listen(addr)
    }

    fn unlisten(&mut self, listener: ListenerId) {
        (**self).unlisten(listener);
    }

    fn connect(
        &mut self,
        addr: Address,
        config: &QpConfig,
        private_data: &PrivateData,
        now: Duration,
    ) -> Result<QpId, ConnectError> {
        (**self).connect(addr, config, private_data, now)
    }

    fn prepare(&mut self, qp: QpId, config: &QpConfig) -> Result<(), PostError> {
        (**self).prepare(qp, config)
    }

    fn accept(&mut self, qp: QpId, private_data: &PrivateData) -> Result<(), PostError> {
        (**self).accept(qp, private_data)
    }

    fn reject(&mut self, qp: QpId, private_data: &PrivateData) -> Result<(), PostError> {
        (**self).reject(qp, private_data)
    }

    fn post_recv(&mut self, qp: QpId, tag: Tag, buf: Buf) -> Result<(), Refused<Buf>> {
        (**self).post_recv(qp, tag, buf)
    }

    fn share_receives(&mut self, qp: QpId, recvs: u32, entries: u32) -> Option<SharedReceives> {
        (**self).share_receives(qp, recvs, entries)
    }

    fn post_shared_recv(&mut self, srq: SrqId, tag: Tag, buf: Buf) -> Result<(), Refused<Buf>> {
        (**self).post_shared_recv(srq, tag, buf)
    }

    fn post(&mut self, qp: QpId, tag: Tag, work: Work) -> Result<(), Refused<Work>> {
        (**self).post(qp, tag, work)
    }

    fn post_message(
        &mut self,
        qp: QpId,
        tag: Tag,
        head: &Inline,
        invalidate: Option<RemoteKey>,
    ) -> Result<Posted, PostError> {
        (**self).post_message(qp, tag, head, invalidate)
    }

    fn post_response(&mut self, qp: QpId, tag: Tag, answer: WriteAndSend) -> Result<(), PostError> {
        (**self).post_response(qp, tag, answer)
    }

    fn expose(
        &mut self,
        qp: QpId,
        buf: Buf,
        rights: Rights,
    ) -> Result<RemoteSlice, Refused<Buf, ExposeError>> {
        (**self).expose(qp, buf, rights)
    }

    fn withdraw(&mut self, key: RemoteKey) -> Result<Option<Buf>, ExposeError> {
        (**self).withdraw(key)
    }

    fn expose_region(
        &mut self,
        qp: QpId,
        region: &Region,
    ) -> Result<Option<RegionExposure>, std::io::Error> {
        (**self).expose_region(qp, region)
    }

    fn disconnect(&mut self, qp: QpId) {
        (**self).disconnect(qp);
    }

    fn submit(&mut self, now: Duration) {
        (**self).submit(now);
    }

    fn poll(&mut self, now: Duration, events: &mut Vec<Event>) -> bool {
        (**self).poll(now, events)
    }

    fn peer_may_invalidate(&self, qp: QpId) -> bool {
        (**self).peer_may_invalidate(qp)
    }

    fn peer_works_in_place(&self, qp: QpId, buf: &Buf) -> bool {
        (**self).peer_works_in_place(qp, buf)
    }

    fn abort(&mut self, qp: QpId) {
        (**self).abort(qp);
    }

    fn progress(&self, qp: QpId) -> Option<Progress> {
        (**self).progress(qp)
    }

    fn map_remote(&mut self, qp: QpId, remote: RemoteSlice, rights: Rights) -> Option<Buf> {
        (**self).map_remote(qp, remote, rights)
    }

    fn set_owner(&mut self, qp: QpId, owner: QpOwner) {
        (**self).set_owner(qp, owner);
    }

    fn local_addr(&self, qp: QpId) -> Option<Address> {
        (**self).local_addr(qp)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).wait_fd()
    }

    fn next_deadline(&self) -> Option<Duration> {
        (**self).next_deadline()
    }

    fn rest(&mut self) {
        (**self).rest();
    }
}
