//! The null store: writes are discarded, reads return zeroes.

use std::sync::Arc;

use nvmeof_uring as uring;
use nvmeof_uring::Ring;

use crate::{Backend, Geometry, Io, Op, RefusalReason, Request, Submitted};

/// Completes requests immediately. Reads fill the buffer with zeroes: it may contain data of
/// another host.
pub(crate) struct NullBackend {
    name: Arc<str>,
    geometry: Geometry,
}

impl NullBackend {
    pub(crate) fn new(name: Arc<str>, geometry: Geometry) -> Self {
        Self { name, geometry }
    }
}

impl Backend for NullBackend {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn submit(
        &mut self,
        request: &mut Request,
        _io: &mut Io<'_>,
    ) -> Result<Submitted, RefusalReason> {
        if let Err(error) = self.geometry.check(&self.name, &request.op) {
            return Ok(Submitted::Done(Err(error)));
        }
        if let Op::Read { buf, .. } = &mut request.op {
            buf.fill(0);
        }
        Ok(Submitted::Done(Ok(())))
    }

    fn complete(&mut self, _done: uring::Done, _io: &mut Io<'_>) {}

    fn poll(&mut self, _io: &mut Io<'_>) {}

    fn waiting(&self) -> bool {
        false
    }

    fn in_flight(&self) -> usize {
        0
    }

    fn close(&mut self, _ring: &mut Ring) -> Result<(), uring::RingError> {
        Ok(())
    }
}
