//! Passing memory to a peer that may access it directly, and mapping memory of a peer.

use std::os::fd::BorrowedFd;

use nvmeof_rdma::Fault;

use super::Core;
use crate::ShmConfig;
use crate::conn::{Conn, log_peer};
use crate::fault::{codes, fault};
use crate::grant::REGIONS;
use crate::message::Message;

/// The number of regions that the passive side offers to map.
#[allow(clippy::cast_possible_truncation, reason = "a small number")]
pub(super) const MOST_REGIONS: u32 = REGIONS as u32;

impl Core {
    /// Logs the data path of the connection.
    pub(super) fn log_data_path(&mut self, conn: &Conn, in_place: bool) {
        let way = if in_place {
            "the target uses the initiator's memory in place"
        } else {
            "payload is copied through rings"
        };
        if let Some(left_out) = self.data_paths.ask(self.now) {
            log_peer!(info, conn, in_place, left_out, "shared memory: {way}");
        }
    }

    /// The peer maps this many regions. Passes those that are registered.
    pub(super) fn may_take(&mut self, conn: &mut Conn, regions: u32) {
        let granted = conn
            .channel
            .as_ref()
            .is_some_and(|channel| channel.grants() > 0);
        let takes = usize::try_from(regions).unwrap_or(REGIONS).min(REGIONS);
        conn.peer_takes = if granted { takes } else { 0 };
        let in_place = conn.peer_takes > 0;
        self.log_data_path(conn, in_place);
        self.pass_regions(conn, REGIONS);
    }

    /// Passes the regions up to number `last` that the peer maps and does not have yet.
    #[cold]
    pub(super) fn pass_regions(&self, conn: &mut Conn, last: usize) {
        while conn.passed <= last
            && conn.passed < conn.peer_takes
            && let Some(region) = self.shared_regions.region(conn.passed)
        {
            let message = Message::Region {
                number: u32::try_from(conn.passed).unwrap_or(u32::MAX),
                len: region.len() as u64,
            };
            if let Some(link) = &conn.link
                && let Err(error) = link.send(&message.to_bytes(), region.file())
            {
                // The regions before it can be used; the ring carries data of the others.
                log_peer!(debug, conn, %error, "cannot pass a region to the peer");
                conn.peer_takes = conn.passed;
                return;
            }
            conn.passed += 1;
        }
    }

    /// The peer passed a region.
    pub(super) fn on_region(
        &mut self,
        conn: &mut Conn,
        number: u32,
        len: u64,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), Fault> {
        let (Some(peer_memory), Some(channel)) = (&mut conn.peer_memory, &conn.channel) else {
            let text = "unexpected memory";
            return Err(fault(codes::REGION, text));
        };
        let ShmConfig {
            borrowed, mapped, ..
        } = &self.config;
        // The system always knows the user; no process has user ID -1.
        let user = conn.link.as_ref().and_then(|link| link.user().ok());
        let user = user.unwrap_or(u32::MAX);
        let map = |fd: BorrowedFd<'_>, len| borrowed.map(fd, len, user, *mapped);
        if !peer_memory.map(number, len, fd, channel, map)? {
            let most = self.config.mapped;
            if let Some(left_out) = self.log.ask(self.now) {
                log_peer!(
                    warn,
                    conn,
                    left_out,
                    "cannot map {len} bytes of lent memory: the limit of {most} bytes \
                     (shm.lent_memory), or the share of this user, is reached; payload is \
                     copied through rings instead"
                );
            }
        }
        Ok(())
    }
}
