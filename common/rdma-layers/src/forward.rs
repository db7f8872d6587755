//! Forwarding of methods to the inner provider.

/// Generates the named methods of an `impl` of [`Provider`](nvmeof_rdma::Provider), which
/// call the provider in a field of `self`. `post` includes `post_message` and
/// `post_response`, and `expose` includes `expose_region`.
///
/// ```
/// use nvmeof_rdma::{Event, Provider};
/// use std::time::Duration;
///
/// /// Counts events.
/// struct Counting<P> {
///     below: P,
///     events: usize,
/// }
///
/// impl<P: Provider> Provider for Counting<P> {
///     nvmeof_rdma_layers::forward!(below: limits name register listen unlisten connect set_owner
///         local_addr peer_may_invalidate peer_works_in_place map_remote prepare accept reject
///         post_recv share_receives post_shared_recv post expose withdraw disconnect abort progress
///         submit wait_fd next_deadline rest);
///
///     fn poll(&mut self, now: Duration, events: &mut Vec<Event>) -> bool {
///         let known = events.len();
///         let progress = self.below.poll(now, events);
///         self.events += events.len() - known;
///         progress
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward {
    ($inner:ident: $($method:ident)*) => {
        $($crate::forward!(@$method $inner);)*
    };
    (@limits $inner:ident) => {
        fn limits(&self) -> &::nvmeof_rdma::Limits {
            self.$inner.limits()
        }
    };
    (@name $inner:ident) => {
        fn name(&self) -> &'static str {
            self.$inner.name()
        }
    };
    (@register $inner:ident) => {
        fn register(&mut self, region: &::nvmeof_memory::Region) -> Result<(), ::std::io::Error> {
            self.$inner.register(region)
        }
    };
    (@listen $inner:ident) => {
        fn listen(
            &mut self,
            addr: ::nvmeof_rdma::Address,
        ) -> Result<
            (::nvmeof_rdma::ListenerId, ::nvmeof_rdma::Address),
            ::nvmeof_rdma::ListenError,
        > {
            self.$inner.listen(addr)
        }
    };
    (@unlisten $inner:ident) => {
        fn unlisten(&mut self, listener: ::nvmeof_rdma::ListenerId) {
            self.$inner.unlisten(listener);
        }
    };
    (@connect $inner:ident) => {
        fn connect(
            &mut self,
            addr: ::nvmeof_rdma::Address,
            config: &::nvmeof_rdma::QpConfig,
            private_data: &::nvmeof_rdma::PrivateData,
            now: ::std::time::Duration,
        ) -> Result<::nvmeof_rdma::QpId, ::nvmeof_rdma::ConnectError> {
            self.$inner.connect(addr, config, private_data, now)
        }
    };
    (@set_owner $inner:ident) => {
        fn set_owner(&mut self, qp: ::nvmeof_rdma::QpId, owner: ::nvmeof_rdma::QpOwner) {
            self.$inner.set_owner(qp, owner);
        }
    };
    (@local_addr $inner:ident) => {
        fn local_addr(&self, qp: ::nvmeof_rdma::QpId) -> Option<::nvmeof_rdma::Address> {
            self.$inner.local_addr(qp)
        }
    };
    (@peer_may_invalidate $inner:ident) => {
        fn peer_may_invalidate(&self, qp: ::nvmeof_rdma::QpId) -> bool {
            self.$inner.peer_may_invalidate(qp)
        }
    };
    (@peer_works_in_place $inner:ident) => {
        fn peer_works_in_place(&self, qp: ::nvmeof_rdma::QpId, buf: &::nvmeof_memory::Buf) -> bool {
            self.$inner.peer_works_in_place(qp, buf)
        }
    };
    (@abort $inner:ident) => {
        fn abort(&mut self, qp: ::nvmeof_rdma::QpId) {
            self.$inner.abort(qp);
        }
    };
    (@progress $inner:ident) => {
        fn progress(&self, qp: ::nvmeof_rdma::QpId) -> Option<::nvmeof_rdma::Progress> {
            self.$inner.progress(qp)
        }
    };
    (@map_remote $inner:ident) => {
        fn map_remote(
            &mut self,
            qp: ::nvmeof_rdma::QpId,
            remote: ::nvmeof_rdma::RemoteSlice,
            rights: ::nvmeof_rdma::Rights,
        ) -> Option<::nvmeof_memory::Buf> {
            self.$inner.map_remote(qp, remote, rights)
        }
    };
    (@prepare $inner:ident) => {
        fn prepare(
            &mut self,
            qp: ::nvmeof_rdma::QpId,
            config: &::nvmeof_rdma::QpConfig,
        ) -> Result<(), ::nvmeof_rdma::PostError> {
            self.$inner.prepare(qp, config)
        }
    };
    (@accept $inner:ident) => {
        fn accept(
            &mut self,
            qp: ::nvmeof_rdma::QpId,
            private_data: &::nvmeof_rdma::PrivateData,
        ) -> Result<(), ::nvmeof_rdma::PostError> {
            self.$inner.accept(qp, private_data)
        }
    };
    (@reject $inner:ident) => {
        fn reject(
            &mut self,
            qp: ::nvmeof_rdma::QpId,
            private_data: &::nvmeof_rdma::PrivateData,
        ) -> Result<(), ::nvmeof_rdma::PostError> {
            self.$inner.reject(qp, private_data)
        }
    };
    (@post_recv $inner:ident) => {
        fn post_recv(
            &mut self,
            qp: ::nvmeof_rdma::QpId,
            tag: ::nvmeof_rdma::Tag,
            buf: ::nvmeof_memory::Buf,
        ) -> Result<(), ::nvmeof_rdma::Refused<::nvmeof_memory::Buf>> {
            self.$inner.post_recv(qp, tag, buf)
        }
    };
    (@share_receives $inner:ident) => {
        fn share_receives(
            &mut self,
            qp: ::nvmeof_rdma::QpId,
            recvs: u32,
            entries: u32,
        ) -> Option<::nvmeof_rdma::SharedReceives> {
            self.$inner.share_receives(qp, recvs, entries)
        }
    };
    (@post_shared_recv $inner:ident) => {
        fn post_shared_recv(
            &mut self,
            srq: ::nvmeof_rdma::SrqId,
            tag: ::nvmeof_rdma::Tag,
            buf: ::nvmeof_memory::Buf,
        ) -> Result<(), ::nvmeof_rdma::Refused<::nvmeof_memory::Buf>> {
            self.$inner.post_shared_recv(srq, tag, buf)
        }
    };
    (@post $inner:ident) => {
        fn post(
            &mut self,
            qp: ::nvmeof_rdma::QpId,
            tag: ::nvmeof_rdma::Tag,
            work: ::nvmeof_rdma::Work,
        ) -> Result<(), ::nvmeof_rdma::Refused<::nvmeof_rdma::Work>> {
            self.$inner.post(qp, tag, work)
        }

        fn post_message(
            &mut self,
            qp: ::nvmeof_rdma::QpId,
            tag: ::nvmeof_rdma::Tag,
            head: &::nvmeof_rdma::Inline,
            invalidate: Option<::nvmeof_rdma::RemoteKey>,
        ) -> Result<::nvmeof_rdma::Posted, ::nvmeof_rdma::PostError> {
            self.$inner.post_message(qp, tag, head, invalidate)
        }

        fn post_response(
            &mut self,
            qp: ::nvmeof_rdma::QpId,
            tag: ::nvmeof_rdma::Tag,
            answer: ::nvmeof_rdma::WriteAndSend,
        ) -> Result<(), ::nvmeof_rdma::PostError> {
            self.$inner.post_response(qp, tag, answer)
        }
    };
    (@expose $inner:ident) => {
        fn expose(
            &mut self,
            qp: ::nvmeof_rdma::QpId,
            buf: ::nvmeof_memory::Buf,
            rights: ::nvmeof_rdma::Rights,
        ) -> Result<
            ::nvmeof_rdma::RemoteSlice,
            ::nvmeof_rdma::Refused<::nvmeof_memory::Buf, ::nvmeof_rdma::ExposeError>,
        > {
            self.$inner.expose(qp, buf, rights)
        }

        $crate::forward!(@expose_region $inner);
    };
    (@withdraw $inner:ident) => {
        fn withdraw(
            &mut self,
            key: ::nvmeof_rdma::RemoteKey,
        ) -> Result<Option<::nvmeof_memory::Buf>, ::nvmeof_rdma::ExposeError> {
            self.$inner.withdraw(key)
        }
    };
    (@expose_region $inner:ident) => {
        fn expose_region(
            &mut self,
            qp: ::nvmeof_rdma::QpId,
            region: &::nvmeof_memory::Region,
        ) -> Result<Option<::nvmeof_rdma::RegionExposure>, ::std::io::Error> {
            self.$inner.expose_region(qp, region)
        }
    };
    (@disconnect $inner:ident) => {
        fn disconnect(&mut self, qp: ::nvmeof_rdma::QpId) {
            self.$inner.disconnect(qp);
        }
    };
    (@submit $inner:ident) => {
        fn submit(&mut self, now: ::std::time::Duration) {
            self.$inner.submit(now);
        }
    };
    (@poll $inner:ident) => {
        fn poll(
            &mut self,
            now: ::std::time::Duration,
            events: &mut Vec<::nvmeof_rdma::Event>,
        ) -> bool {
            self.$inner.poll(now, events)
        }
    };
    (@wait_fd $inner:ident) => {
        fn wait_fd(&self) -> Option<::std::os::fd::BorrowedFd<'_>> {
            self.$inner.wait_fd()
        }
    };
    (@next_deadline $inner:ident) => {
        fn next_deadline(&self) -> Option<::std::time::Duration> {
            self.$inner.next_deadline()
        }
    };
    (@rest $inner:ident) => {
        fn rest(&mut self) {
            self.$inner.rest();
        }
    };
}
