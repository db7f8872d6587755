//! High availability: takes over ANA groups from other gateways, and hands them over.

mod status;

pub use status::{
    HaCandidate, HaControl, HaGateway, HaGatewayState, HaGroup, HaOrder, HaOrderError, HaStanding,
    HaStatus, HaTakeover, ORDER_TIMEOUT,
};
