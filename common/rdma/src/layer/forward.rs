//! What a layer leaves to the provider below it.

/// Writes the named methods of an `impl` of [`Provider`](crate::Provider) so that
/// they call the provider in a field of `self`: those that a layer does not change.
/// `post` stands for `post_answer`, too.
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
///     nvmeof_rdma::forward!(below: limits name register listen unlisten connect set_whose
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
        fn limits(&self) -> &$crate::Limits {
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
            addr: $crate::Address,
        ) -> Result<($crate::ListenerId, $crate::Address), $crate::ListenError> {
            self.$inner.listen(addr)
        }
    };
    (@unlisten $inner:ident) => {
        fn unlisten(&mut self, listener: $crate::ListenerId) {
            self.$inner.unlisten(listener);
        }
    };
    (@connect $inner:ident) => {
        fn connect(
            &mut self,
            addr: $crate::Address,
            config: &$crate::QpConfig,
            private_data: &$crate::PrivateData,
            now: ::std::time::Duration,
        ) -> Result<$crate::QpId, $crate::ConnectError> {
            self.$inner.connect(addr, config, private_data, now)
        }
    };
    (@set_whose $inner:ident) => {
        fn set_whose(&mut self, qp: $crate::QpId, whose: $crate::Whose) {
            self.$inner.set_whose(qp, whose);
        }
    };
    (@local_addr $inner:ident) => {
        fn local_addr(&self, qp: $crate::QpId) -> Option<$crate::Address> {
            self.$inner.local_addr(qp)
        }
    };
    (@peer_may_invalidate $inner:ident) => {
        fn peer_may_invalidate(&self, qp: $crate::QpId) -> bool {
            self.$inner.peer_may_invalidate(qp)
        }
    };
    (@peer_works_in_place $inner:ident) => {
        fn peer_works_in_place(&self, qp: $crate::QpId, buf: &::nvmeof_memory::Buf) -> bool {
            self.$inner.peer_works_in_place(qp, buf)
        }
    };
    (@abort $inner:ident) => {
        fn abort(&mut self, qp: $crate::QpId) {
            self.$inner.abort(qp);
        }
    };
    (@progress $inner:ident) => {
        fn progress(&self, qp: $crate::QpId) -> Option<$crate::Progress> {
            self.$inner.progress(qp)
        }
    };
    (@map_remote $inner:ident) => {
        fn map_remote(
            &mut self,
            qp: $crate::QpId,
            remote: $crate::RemoteSlice,
            rights: $crate::Rights,
        ) -> Option<::nvmeof_memory::Buf> {
            self.$inner.map_remote(qp, remote, rights)
        }
    };
    (@prepare $inner:ident) => {
        fn prepare(
            &mut self,
            qp: $crate::QpId,
            config: &$crate::QpConfig,
        ) -> Result<(), $crate::PostError> {
            self.$inner.prepare(qp, config)
        }
    };
    (@accept $inner:ident) => {
        fn accept(
            &mut self,
            qp: $crate::QpId,
            private_data: &$crate::PrivateData,
        ) -> Result<(), $crate::PostError> {
            self.$inner.accept(qp, private_data)
        }
    };
    (@reject $inner:ident) => {
        fn reject(
            &mut self,
            qp: $crate::QpId,
            private_data: &$crate::PrivateData,
        ) -> Result<(), $crate::PostError> {
            self.$inner.reject(qp, private_data)
        }
    };
    (@post_recv $inner:ident) => {
        fn post_recv(
            &mut self,
            qp: $crate::QpId,
            tag: $crate::Tag,
            buf: ::nvmeof_memory::Buf,
        ) -> Result<(), $crate::Refused<::nvmeof_memory::Buf>> {
            self.$inner.post_recv(qp, tag, buf)
        }
    };
    (@share_receives $inner:ident) => {
        fn share_receives(
            &mut self,
            qp: $crate::QpId,
            recvs: u32,
            entries: u32,
        ) -> Option<$crate::SharedReceives> {
            self.$inner.share_receives(qp, recvs, entries)
        }
    };
    (@post_shared_recv $inner:ident) => {
        fn post_shared_recv(
            &mut self,
            srq: $crate::SrqId,
            tag: $crate::Tag,
            buf: ::nvmeof_memory::Buf,
        ) -> Result<(), $crate::Refused<::nvmeof_memory::Buf>> {
            self.$inner.post_shared_recv(srq, tag, buf)
        }
    };
    (@post $inner:ident) => {
        fn post(
            &mut self,
            qp: $crate::QpId,
            tag: $crate::Tag,
            work: $crate::Work,
        ) -> Result<(), $crate::Refused<$crate::Work>> {
            self.$inner.post(qp, tag, work)
        }

        fn post_answer(
            &mut self,
            qp: $crate::QpId,
            tag: $crate::Tag,
            answer: $crate::Answer,
        ) -> Result<(), $crate::PostError> {
            self.$inner.post_answer(qp, tag, answer)
        }
    };
    (@expose $inner:ident) => {
        fn expose(
            &mut self,
            qp: $crate::QpId,
            buf: ::nvmeof_memory::Buf,
            rights: $crate::Rights,
        ) -> Result<$crate::RemoteSlice, $crate::Refused<::nvmeof_memory::Buf, $crate::ExposeError>>
        {
            self.$inner.expose(qp, buf, rights)
        }
    };
    (@withdraw $inner:ident) => {
        fn withdraw(
            &mut self,
            key: $crate::RemoteKey,
        ) -> Result<::nvmeof_memory::Buf, $crate::ExposeError> {
            self.$inner.withdraw(key)
        }
    };
    (@disconnect $inner:ident) => {
        fn disconnect(&mut self, qp: $crate::QpId) {
            self.$inner.disconnect(qp);
        }
    };
    (@submit $inner:ident) => {
        fn submit(&mut self, now: ::std::time::Duration) {
            self.$inner.submit(now);
        }
    };
    (@poll $inner:ident) => {
        fn poll(&mut self, now: ::std::time::Duration, events: &mut Vec<$crate::Event>) -> bool {
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
