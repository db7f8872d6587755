//! Providers of one process that listen on the same addresses. They share one socket. Each of
//! them accepts connections and passes them to the member that serves them, before anything
//! is read.

use std::fmt::Debug;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nvmeof_rdma::{ConnectionGuard, Steering};

/// A listening socket.
pub trait Acceptor: Debug {
    /// Type of its address.
    type Addr: Clone + Debug + PartialEq;
    /// A connection from which nothing was read.
    type Connection: Debug;

    /// Its address.
    fn addr(&self) -> Self::Addr;

    /// Accepts a pending connection and returns it with the address of its peer. Never
    /// blocks.
    ///
    /// # Errors
    /// `WouldBlock` if there is none, or the error of the system.
    fn accept(&self) -> io::Result<(Self::Connection, IpAddr)>;
}

/// Wakes the thread of a provider.
pub trait Waker: Debug {
    /// Signals until [`clear`](Self::clear).
    fn wake(&self);

    /// Clears the signal, if it is set.
    fn clear(&self);
}

/// The listeners of a group of providers.
#[derive(Debug)]
pub struct Group<D: Acceptor, B> {
    steering: Steering,
    listeners: Mutex<Vec<Weak<SharedListener<D, B>>>>,
}

/// A listening socket and the providers that accept from it.
#[derive(Debug)]
pub struct SharedListener<D: Acceptor, B> {
    acceptor: D,
    /// `None` if only one provider uses it.
    steering: Option<Steering>,
    members: Mutex<Vec<Weak<Inbox<D, B>>>>,
}

/// Connections that another member of the group accepted for this one.
#[derive(Debug)]
pub struct Inbox<D: Acceptor, B> {
    /// The member's number in the group's [`Steering`].
    number: usize,
    arrived: Mutex<Vec<Arrived<D>>>,
    /// Signaled while there are connections.
    waker: B,
    /// Maximum number of connections in it.
    room: usize,
}

/// An accepted connection.
#[derive(Debug)]
pub struct Arrived<D: Acceptor> {
    /// Address of the listening socket.
    pub at: D::Addr,
    /// The connection.
    pub connection: D::Connection,
    /// Counts it in the load of a member of a group: keep it as long as the connection.
    pub guard: Option<ConnectionGuard>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is<T>(one: &Weak<T>, other: &Arc<T>) -> bool {
    std::ptr::eq(one.as_ptr(), Arc::as_ptr(other))
}

impl<D: Acceptor, B: Waker> Group<D, B> {
    /// Creates a group. `steering` spreads its connections.
    #[must_use]
    pub fn new(steering: Steering) -> Arc<Self> {
        let listeners = Mutex::default();
        Arc::new(Self {
            steering,
            listeners,
        })
    }

    /// Lets the owner of `inbox` listen on `addr`, together with other members; the first of
    /// them opens the socket.
    ///
    /// # Errors
    /// The error of `open`.
    pub fn listen<E>(
        &self,
        addr: &D::Addr,
        inbox: &Arc<Inbox<D, B>>,
        open: impl FnOnce() -> Result<D, E>,
    ) -> Result<Arc<SharedListener<D, B>>, E> {
        let mut listeners = lock(&self.listeners);
        listeners.retain(|shared| shared.strong_count() > 0);
        let mut alive = listeners.iter().filter_map(Weak::upgrade);
        let found = alive.find(|shared| shared.acceptor.addr() == *addr && !shared.has(inbox));
        let shared = if let Some(shared) = found {
            shared
        } else {
            let shared = Arc::new(SharedListener {
                steering: Some(self.steering.clone()),
                ..SharedListener::alone(open()?)
            });
            listeners.push(Arc::downgrade(&shared));
            shared
        };
        lock(&shared.members).push(Arc::downgrade(inbox));
        Ok(shared)
    }
}

impl<D: Acceptor, B: Waker> SharedListener<D, B> {
    /// A listener of one provider alone.
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

    /// Accepts a pending connection for the member whose inbox is `own`. `None` if it was
    /// passed to another member.
    ///
    /// # Errors
    /// As [`Acceptor::accept`].
    pub fn accept(&self, own: Option<&Arc<Inbox<D, B>>>) -> io::Result<Option<Arrived<D>>> {
        let (connection, peer) = self.acceptor.accept()?;
        let mut arrived = Arrived {
            at: self.acceptor.addr(),
            connection,
            guard: None,
        };
        let (Some(own), Some(steering)) = (own, &self.steering) else {
            return Ok(Some(arrived));
        };
        let members: Vec<_> = lock(&self.members)
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        let by_number = |number| members.iter().find(|member| member.number == number);
        // If the inbox is full, this member may keep the connection.
        let may_take =
            |number| number == own.number || by_number(number).is_some_and(|it| it.has_room());
        arrived.guard = steering.choose(peer, may_take);
        let chosen = arrived
            .guard
            .as_ref()
            .map_or(own.number, ConnectionGuard::member);
        match by_number(chosen) {
            Some(member) if chosen != own.number => member.put(arrived),
            _ => return Ok(Some(arrived)),
        }
        Ok(None)
    }

    /// Removes a member, which gets no more connections.
    pub fn leave(&self, inbox: &Arc<Inbox<D, B>>) {
        lock(&self.members).retain(|one| !is(one, inbox));
    }
}

impl<D: Acceptor, B: Waker> Inbox<D, B> {
    /// Creates the inbox of member `number`, for at most `room` connections. Its owner waits
    /// for the waker.
    pub fn new(number: usize, room: u32, waker: B) -> Arc<Self> {
        Arc::new(Self {
            number,
            arrived: Mutex::default(),
            waker,
            room: usize::try_from(room).unwrap_or(usize::MAX),
        })
    }

    /// The waker of its owner.
    pub fn waker(&self) -> &B {
        &self.waker
    }

    fn has_room(&self) -> bool {
        lock(&self.arrived).len() < self.room
    }

    fn put(&self, arrived: Arrived<D>) {
        lock(&self.arrived).push(arrived);
        self.waker.wake();
    }

    /// Takes all connections.
    pub fn take(&self) -> Vec<Arrived<D>> {
        self.waker.clear();
        std::mem::take(&mut lock(&self.arrived))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use super::*;

    /// A listening socket with this number of pending connections.
    #[derive(Debug)]
    struct Queue(AtomicU32);

    impl Acceptor for Queue {
        type Addr = u16;
        type Connection = u32;

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
        fn wake(&self) {
            self.0.store(true, Ordering::Relaxed);
        }

        fn clear(&self) {
            self.0.store(false, Ordering::Relaxed);
        }
    }

    type Member = Arc<Inbox<Queue, Flag>>;

    /// A listener shared by `members` members with inboxes for `room` connections; `waiting`
    /// connections are pending.
    fn meet(
        members: usize,
        room: u32,
        waiting: u32,
    ) -> (Vec<Member>, Arc<SharedListener<Queue, Flag>>) {
        let group = Group::new(Steering::new(members));
        let member = |number| Inbox::new(number, room, Flag::default());
        let members: Vec<_> = (0..members).map(member).collect();
        let open = || Ok::<_, ()>(Queue(AtomicU32::new(waiting)));
        let listeners = members
            .iter()
            .map(|member| group.listen(&7, member, open).unwrap());
        let listeners: Vec<_> = listeners.collect();
        assert!(
            listeners.iter().all(|one| Arc::ptr_eq(one, &listeners[0])),
            "one socket"
        );
        (members, Arc::clone(&listeners[0]))
    }

    /// Lets the first member accept all pending connections. Returns those of each member.
    fn taken(members: &[Member], shared: &SharedListener<Queue, Flag>) -> Vec<Vec<Arrived<Queue>>> {
        let mut own = Vec::new();
        loop {
            match shared.accept(members.first()) {
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
    fn connections_are_spread_evenly_over_members() {
        let (members, shared) = meet(4, 100, 64);
        let taken = taken(&members, &shared);
        assert_eq!(counts(&taken), [16; 4]);
        assert!(
            taken
                .iter()
                .flatten()
                .all(|one| one.at == 7 && one.guard.is_some())
        );
    }

    #[test]
    fn removed_member_gets_no_connection() {
        let (mut members, shared) = meet(4, 100, 30);
        shared.leave(&members[2]);
        let last = members.pop();
        drop(last);
        assert_eq!(counts(&taken(&members, &shared)), [15, 15, 0]);
    }

    #[test]
    fn connection_for_full_inbox_stays_with_acceptor() {
        let (members, shared) = meet(2, 3, 10);
        assert_eq!(counts(&taken(&members, &shared)), [7, 3]);
    }

    #[test]
    fn waker_is_signaled_while_inbox_has_connections() {
        let (members, shared) = meet(3, 100, 2);
        let _taken = [
            shared.accept(members.first()),
            shared.accept(members.first()),
        ];
        let is_set = |member: &Member| member.waker().0.load(Ordering::Relaxed);
        assert_eq!(
            members.iter().map(is_set).collect::<Vec<_>>(),
            [false, true, false]
        );
        assert_eq!(members[1].take().len(), 1);
        assert!(!is_set(&members[1]));
    }

    #[test]
    fn provider_alone_accepts_everything() {
        let shared = SharedListener::<_, Flag>::alone(Queue(AtomicU32::new(1)));
        let arrived = shared.accept(None).unwrap().unwrap();
        assert!(arrived.guard.is_none());
        assert!(shared.accept(None).is_err());
    }
}
