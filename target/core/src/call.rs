//! Which reactor has to poll the queues of which controller.

/// A controller changed: a reactor has to poll those queues of the controller that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    /// The index of the reactor.
    pub reactor: u16,
    /// The identifier of the controller.
    pub cntlid: u16,
}
