//! Network faults, on demand or at random.

use std::net::IpAddr;

use nvmeof_rdma_soft::StreamId;

use crate::delivery::{Delivery, Pair};
use crate::net::Net;

/// A fault that affects everything between two endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkFault {
    /// Every connection breaks; both sides see a reset.
    Reset(IpAddr, IpAddr),
    /// Nothing arrives any more, without a notification.
    Cut(IpAddr, IpAddr),
    /// The end of a [`Cut`](Self::Cut): waiting data arrive.
    Heal(IpAddr, IpAddr),
    /// The first ends its sending direction of every connection to the second.
    HalfClose(IpAddr, IpAddr),
    /// This number of further connections to the endpoint are refused.
    Refuse(IpAddr, u32),
}

impl Net {
    pub(crate) fn trouble(&mut self, trouble: NetworkFault) {
        match trouble {
            NetworkFault::Reset(one, other) => {
                let between = Pair::new(one, other);
                let streams = self.sockets.find(|socket| {
                    let ends = Pair::new(socket.local.ip(), socket.remote.ip());
                    ends == between && socket.peer.is_some()
                });
                for to in streams {
                    self.send_to(to, Delivery::Reset { to });
                }
            }
            NetworkFault::Cut(one, other) => {
                self.cuts.insert(Pair::new(one, other));
            }
            NetworkFault::Heal(one, other) => self.heal(Pair::new(one, other)),
            NetworkFault::HalfClose(from, to) => {
                let streams = self.sockets.find(|socket| {
                    (socket.local.ip(), socket.remote.ip()) == (from, to) && socket.established
                });
                for stream in streams {
                    self.shut(stream);
                }
            }
            NetworkFault::Refuse(ip, count) => {
                self.refusals.insert(ip, count);
            }
        }
    }

    /// Sends one piece of data, subject to random faults.
    pub(crate) fn send_piece(&mut self, from: StreamId, to: StreamId, mut bytes: Vec<u8>) {
        let chances = self.config.chances;
        if self.dice.happens(chances.reset) {
            self.send_to(to, Delivery::Reset { to });
            self.send_to(from, Delivery::Reset { to: from });
            return;
        }
        if self.dice.happens(chances.corrupt) {
            let place = self.dice.below(bytes.len());
            let bit = self.dice.roll() % 8;
            if let Some(byte) = bytes.get_mut(place) {
                *byte ^= 1 << bit;
            }
        }
        let ends = self.sockets.get(from);
        let between = ends.map(|socket| Pair::new(socket.local.ip(), socket.remote.ip()));
        self.send_to(to, Delivery::Bytes { from, to, bytes });
        if let Some(between) = between
            && self.dice.happens(chances.stall)
            && self.cuts.insert(between)
        {
            self.send_between(between, chances.stall_for, Delivery::Heal { between });
        }
    }
}
