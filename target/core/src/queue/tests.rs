//! Commands, by area.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod abort;
mod authentication;
mod authentication_live;
mod capsule;
mod cm;
mod cntlids;
mod commit;
mod connect;
mod cross_reset;
mod fused;
mod io;
mod keep_alive;
mod lifecycle;
mod limits;
mod list;
mod pieces;
mod quotas;
mod reservation_notices;
mod reservations;
