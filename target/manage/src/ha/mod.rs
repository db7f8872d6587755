//! High availability as the rest of the target sees it: its state, and orders for it.

mod control;
mod status;

pub(crate) use control::{Event, facts};
pub use control::{HAND_OVER, HaControl};
pub use status::{
    HaCandidate, HaGateway, HaGatewayState, HaGroup, HaOrder, HaOrderError, HaStanding, HaStatus,
    HaTakeover, ORDER_TIMEOUT,
};
