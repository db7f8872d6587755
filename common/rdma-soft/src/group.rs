//! Providers of one process that listen on the same addresses: one socket,
//! from which any of them takes a connection and hands it to the one that
//! serves it, before anything is read from it.

use std::fmt::Debug;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nvmeof_rdma::{Counted, Steering};

/// What connections come through: a socket that listens.
pub trait Acceptor: Debug {
    /// Where it is.
    type Addr: Clone + Debug + PartialEq;
    /// A connection that nothing was read from.
    type Visitor: Debug;

    /// Where it is.
    fn addr(&self) -> Self::Addr;

    /// Takes a connection that waits, and says whose it is. Never waits.
    ///
    /// # Errors
    /// `WouldBlock` when there is none, or what the system says.
    fn accept(&self) -> io::Result<(Self::Visitor, IpAddr)>;
}

/// What wakes the thread of a provider.
pub trait Waker: Debug {
    /// Rings until [`silence`](Self::silence).
    fn ring(&self);

    /// Ends the ringing, if there is any.
    fn silence(&self);
}

/// What the providers of a group listen on.
#[derive(Debug)]
pub struct Group<D: Acceptor, B> {
    steering: Steering,
    meetings: Mutex<Vec<Weak<Meeting<D, B>>>>,
}

/// A listening socket and the providers that accept from it.
#[derive(Debug)]
pub struct Meeting<D: Acceptor, B> {
    acceptor: D,
    /// `None`: of one provider alone.
    steering: Option<Steering>,
    members: Mutex<Vec<Weak<Inbox<D, B>>>>,
}

/// Connections that another member of the group took for this one.
#[derive(Debug)]
pub struct Inbox<D: Acceptor, B> {
    /// The member's number in the group's [`Steering`].
    number: usize,
    arrived: Mutex<Vec<Arrived<D>>>,
    /// Rings while there are any.
    waker: B,
    /// Connections that may wait here.
    room: usize,
}

/// A connection that arrived.
#[derive(Debug)]
pub struct Arrived<D: Acceptor> {
    /// Which listening socket.
    pub at: D::Addr,
    /// The connection.
    pub visitor: D::Visitor,
    /// Has it count, in a group: keep it as long as the connection.
    pub counted: Option<Counted>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is<T>(one: &Weak<T>, other: &Arc<T>) -> bool {
    std::ptr::eq(one.as_ptr(), Arc::as_ptr(other))
}

impl<D: Acceptor, B: Waker> Group<D, B> {
    /// A group whose connections `steering` spreads.
    #[must_use]
    pub fn new(steering: Steering) -> Arc<Self> {
        let meetings = Mutex::default();
        Arc::new(Self { steering, meetings })
    }

    /// Has the owner of `inbox` listen at `addr`, together with those members
    /// that do already; the first of them opens the socket.
    ///
    /// # Errors
    /// What `open` says.
    pub fn listen<E>(
        &self,
        addr: &D::Addr,
        inbox: &Arc<Inbox<D, B>>,
        open: impl FnOnce() -> Result<D, E>,
    ) -> Result<Arc<Meeting<D, B>>, E> {
        let mut meetings = lock(&self.meetings);
        meetings.retain(|meeting| meeting.strong_count() > 0);
        let mut alive = meetings.iter().filter_map(Weak::upgrade);
        let found = alive.find(|meeting| meeting.acceptor.addr() == *addr && !meeting.has(inbox));
        let meeting = if let Some(meeting) = found {
            meeting
        } else {
            let meeting = Arc::new(Meeting {
                steering: Some(self.steering.clone()),
                ..Meeting::alone(open()?)
            });
            meetings.push(Arc::downgrade(&meeting));
            meeting
        };
        lock(&meeting.members).push(Arc::downgrade(inbox));
        Ok(meeting)
    }
}

impl<D: Acceptor, B: Waker> Meeting<D, B> {
    /// Of one provider alone.
    #[must_use]
    pub fn alone(acceptor: D) -> Self {
        Self {
            acceptor,
            steering: None,
            members: Mutex::default(),
        }
    }

    /// The listening socket.
    #[must_use]
    pub fn acceptor(&self) -> &D {
        &self.acceptor
    }

    fn has(&self, inbox: &Arc<Inbox<D, B>>) -> bool {
        lock(&self.members).iter().any(|one| is(one, inbox))
    }

    /// Takes a connection that waits, for the member whose inbox is `own`.
    /// `None` when it is another member's, which has it now.
    ///
    /// # Errors
    /// As [`Acceptor::accept`].
    pub fn accept(&self, own: Option<&Arc<Inbox<D, B>>>) -> io::Result<Option<Arrived<D>>> {
        let (visitor, peer) = self.acceptor.accept()?;
        let mut arrived = Arrived {
            at: self.acceptor.addr(),
            visitor,
            counted: None,
        };
        let (Some(own), Some(steering)) = (own, &self.steering) else {
            return Ok(Some(arrived));
        };
        let members: Vec<_> = lock(&self.members)
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        let by_number = |number| members.iter().find(|member| member.number == number);
        // Where there is no room any more it may still be ours.
        let may_take =
            |number| number == own.number || by_number(number).is_some_and(|it| it.has_room());
        arrived.counted = steering.choose(peer, may_take);
        let chosen = arrived.counted.as_ref().map_or(own.number, Counted::member);
        match by_number(chosen) {
            Some(member) if chosen != own.number => member.put(arrived),
            _ => return Ok(Some(arrived)),
        }
        Ok(None)
    }

    /// This member takes no more connections.
    pub fn leave(&self, inbox: &Arc<Inbox<D, B>>) {
        lock(&self.members).retain(|one| !is(one, inbox));
    }
}

impl<D: Acceptor, B: Waker> Inbox<D, B> {
    /// Of member `number`, with room for so many connections. Its owner waits
    /// for the waker.
    pub fn new(number: usize, room: u32, waker: B) -> Arc<Self> {
        Arc::new(Self {
            number,
            arrived: Mutex::default(),
            waker,
            room: usize::try_from(room).unwrap_or(usize::MAX),
        })
    }

    /// What wakes its owner.
    pub fn waker(&self) -> &B {
        &self.waker
    }

    fn has_room(&self) -> bool {
        lock(&self.arrived).len() < self.room
    }

    fn put(&self, arrived: Arrived<D>) {
        lock(&self.arrived).push(arrived);
        self.waker.ring();
    }

    /// Takes all that wait.
    pub fn take(&self) -> Vec<Arrived<D>> {
        self.waker.silence();
        std::mem::take(&mut lock(&self.arrived))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use super::*;

    /// A listening socket with so many connections waiting.
    #[derive(Debug)]
    struct Queue(AtomicU32);

    impl Acceptor for Queue {
        type Addr = u16;
        type Visitor = u32;

        fn addr(&self) -> u16 {
            7
        }

        fn accept(&self) -> io::Result<(u32, IpAddr)> {
            let left = self.0.load(Ordering::Relaxed);
            self.0.store(
                left.checked_sub(1).ok_or(io::ErrorKind::WouldBlock)?,
                Ordering::Relaxed,
            );
            Ok((left, Ipv4Addr::LOCALHOST.into()))
        }
    }

    #[derive(Debug, Default)]
    struct Flag(AtomicBool);

    impl Waker for Flag {
        fn ring(&self) {
            self.0.store(true, Ordering::Relaxed);
        }

        fn silence(&self) {
            self.0.store(false, Ordering::Relaxed);
        }
    }

    type Member = Arc<Inbox<Queue, Flag>>;

    /// A meeting of so many members that have room for `room`, before which
    /// `waiting` wait.
    fn meet(members: usize, room: u32, waiting: u32) -> (Vec<Member>, Arc<Meeting<Queue, Flag>>) {
        let group = Group::new(Steering::new(members));
        let member = |number| Inbox::new(number, room, Flag::default());
        let members: Vec<_> = (0..members).map(member).collect();
        let open = || Ok::<_, ()>(Queue(AtomicU32::new(waiting)));
        let meetings = members
            .iter()
            .map(|member| group.listen(&7, member, open).unwrap());
        let meetings: Vec<_> = meetings.collect();
        assert!(
            meetings.iter().all(|one| Arc::ptr_eq(one, &meetings[0])),
            "one socket"
        );
        (members, Arc::clone(&meetings[0]))
    }

    /// Has the first member take all that wait; what each has then.
    fn taken(members: &[Member], meeting: &Meeting<Queue, Flag>) -> Vec<Vec<Arrived<Queue>>> {
        let mut own = Vec::new();
        loop {
            match meeting.accept(members.first()) {
                Ok(arrived) => own.extend(arrived),
                Err(error) => break assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        let others = members.iter().skip(1).map(|member| member.take());
        std::iter::once(own).chain(others).collect()
    }

    fn counts(taken: &[Vec<Arrived<Queue>>]) -> Vec<usize> {
        taken.iter().map(Vec::len).collect()
    }

    #[test]
    fn members_get_equal_shares_of_what_one_of_them_takes() {
        let (members, meeting) = meet(4, 100, 64);
        let taken = taken(&members, &meeting);
        assert_eq!(counts(&taken), [16; 4]);
        assert!(
            taken
                .iter()
                .flatten()
                .all(|one| one.at == 7 && one.counted.is_some())
        );
    }

    #[test]
    fn a_member_that_left_or_is_gone_gets_nothing() {
        let (mut members, meeting) = meet(4, 100, 30);
        meeting.leave(&members[2]);
        let last = members.pop();
        drop(last);
        assert_eq!(counts(&taken(&members, &meeting)), [15, 15, 0]);
    }

    #[test]
    fn what_finds_no_room_stays_with_who_took_it() {
        let (members, meeting) = meet(2, 3, 10);
        assert_eq!(counts(&taken(&members, &meeting)), [7, 3]);
    }

    #[test]
    fn the_bell_rings_for_who_has_mail() {
        let (members, meeting) = meet(3, 100, 2);
        let _taken = [
            meeting.accept(members.first()),
            meeting.accept(members.first()),
        ];
        let rings = |member: &Member| member.waker().0.load(Ordering::Relaxed);
        assert_eq!(
            members.iter().map(rings).collect::<Vec<_>>(),
            [false, true, false]
        );
        assert_eq!(members[1].take().len(), 1);
        assert!(!rings(&members[1]));
    }

    #[test]
    fn one_alone_takes_everything() {
        let meeting = Meeting::<_, Flag>::alone(Queue(AtomicU32::new(1)));
        let arrived = meeting.accept(None).unwrap().unwrap();
        assert!(arrived.counted.is_none());
        assert!(meeting.accept(None).is_err());
    }
}
