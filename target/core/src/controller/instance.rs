//! Which incarnation of a controller it is: CIU and CIRN (NVMe Base 2.3, figure 328).
//!
//! A CIRN has two forms. A target without an [`IncarnationKey`] issues the first one, which
//! no target verifies. With a key, a CIRN names the process that issued it:
//!
//! ```text
//!  63     48 47               32 31                        0
//! ┌─────────┬───────────────────────────────────────────────┐
//! │    0    │                    random                     │
//! ├─────────┼───────────────────┬───────────────────────────┤
//! │ process │ count of instance │ hash of key and identity  │
//! └─────────┴───────────────────┴───────────────────────────┘
//! ```

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicU64, Ordering};

use nvmeof_wire::Nqn;
use nvmeof_wire::admin::CrossControllerReset;
use uuid::Uuid;

/// Names one incarnation of a controller, so that a host cannot reset a later one by
/// mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instance {
    /// Controller Instance Uniquifier, 1 to 255.
    pub(crate) ciu: u8,
    /// Controller Instance Random Number.
    pub(crate) cirn: u64,
}

/// What a process of a target and its successors have in common: a CIRN of this process proves
/// to them which process issued it.
///
/// The holder promises: when another process has the same key and a higher number, this process
/// has ended, and so has each of its operations on a backing store.
#[derive(Clone, PartialEq, Eq)]
pub struct IncarnationKey {
    key: Uuid,
    process: NonZeroU16,
}

impl IncarnationKey {
    /// The key of process number `process`, derived from a secret and from what it is `bound`
    /// to: with another of the two, no CIRN verifies.
    #[must_use]
    pub fn new(secret: [u8; 16], bound: &[u8], process: NonZeroU16) -> Self {
        let key = Uuid::new_v5(&Uuid::from_bytes(secret), bound);
        Self { key, process }
    }

    /// Whether this process verifies the CIRNs that the holder of `earlier` issued.
    #[must_use]
    pub fn follows(&self, earlier: &Self) -> bool {
        self.key == earlier.key && self.process > earlier.process
    }

    /// The CIRN with that number of a process and that count, for a controller. No host knows
    /// the key, so none can compute it.
    fn cirn(&self, process: u16, count: u16, identity: &Identity<'_>) -> u64 {
        let Identity {
            cntlid,
            ciu,
            hostnqn,
            hostid,
            subnqn,
        } = identity;
        // Each part has a fixed length, so that no two identities are the same message.
        let message = [
            &process.to_le_bytes()[..],
            &count.to_le_bytes(),
            &cntlid.to_le_bytes(),
            &[*ciu],
            *hostid,
            &hostnqn.to_field(),
            &subnqn.to_field(),
        ];
        let hash = Uuid::new_v5(&self.key, &message.concat()).into_bytes();
        let [h0, h1, h2, h3, ..] = hash;
        let ([p0, p1], [c0, c1]) = (process.to_le_bytes(), count.to_le_bytes());
        u64::from_le_bytes([h0, h1, h2, h3, c0, c1, p0, p1])
    }
}

impl fmt::Debug for IncarnationKey {
    /// Omits the key, which is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("IncarnationKey");
        shown
            .field("process", &self.process)
            .finish_non_exhaustive()
    }
}

/// What a CIRN is bound to: a controller, its host and its subsystem.
#[derive(Clone, Copy)]
pub(crate) struct Identity<'a> {
    pub(crate) cntlid: u16,
    pub(crate) ciu: u8,
    pub(crate) hostnqn: &'a Nqn,
    pub(crate) hostid: &'a [u8; 16],
    pub(crate) subnqn: &'a Nqn,
}

/// Issues the CIRNs of all controllers of a target.
#[derive(Debug)]
pub(crate) struct Incarnations {
    key: Option<IncarnationKey>,
    /// Incarnations until now.
    count: AtomicU64,
    random: RandomState,
}

impl Incarnations {
    /// Issues CIRNs that successors verify if there is a `key`.
    pub(crate) fn new(key: Option<IncarnationKey>) -> Self {
        Self {
            key,
            count: AtomicU64::new(0),
            random: RandomState::new(),
        }
    }

    /// The CIRN of the next incarnation.
    fn next(&self, identity: &Identity<'_>) -> u64 {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let [c0, c1, ..] = number.to_le_bytes();
        match &self.key {
            // The count repeats after 65,536 incarnations. Only the host of that controller
            // could name the later one of two by mistake.
            Some(key) => key.cirn(key.process.get(), u16::from_le_bytes([c0, c1]), identity),
            None => self.random.hash_one(number) >> 16,
        }
    }

    /// Whether `cirn` names an incarnation of that controller in a predecessor of this process.
    /// Those of this process itself and of later ones are none.
    pub(crate) fn is_of_predecessor(&self, cirn: u64, identity: &Identity<'_>) -> bool {
        let [.., c0, c1, p0, p1] = cirn.to_le_bytes();
        let (process, count) = (u16::from_le_bytes([p0, p1]), u16::from_le_bytes([c0, c1]));
        self.key.as_ref().is_some_and(|key| {
            (1..key.process.get()).contains(&process) && key.cirn(process, count, identity) == cirn
        })
    }
}

impl Identity<'_> {
    /// The controller that `named` names, if it is of this host and subsystem.
    pub(crate) fn named(self, named: &CrossControllerReset) -> Self {
        Self {
            cntlid: named.icid,
            ciu: named.ciu,
            ..self
        }
    }
}

/// The incarnations of one controller.
#[derive(Debug)]
pub(crate) struct Instances {
    count: u64,
    current: Option<Instance>,
}

impl Default for Instances {
    fn default() -> Self {
        // A controller that has the identifier of an earlier one begins elsewhere.
        let count = RandomState::new().hash_one(u64::MAX) >> 1;
        Self {
            count,
            current: None,
        }
    }
}

impl Instances {
    /// The controller becomes ready (CSTS.RDY): a new incarnation. `identity` has its CIU set.
    pub(crate) fn begin(&mut self, incarnations: &Incarnations, identity: Identity<'_>) {
        self.count += 1;
        let [ciu, ..] = (self.count % 255).to_le_bytes();
        let ciu = ciu + 1;
        let cirn = incarnations.next(&Identity { ciu, ..identity });
        self.current = Some(Instance { ciu, cirn });
    }

    /// The present one, unless the controller was never ready.
    pub(crate) fn current(&self) -> Option<Instance> {
        self.current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTID: [u8; 16] = [7; 16];

    fn key(process: u16) -> IncarnationKey {
        IncarnationKey::new([1; 16], b"machine", NonZeroU16::new(process).unwrap())
    }

    fn nqn(name: &str) -> Nqn {
        Nqn::new(&format!("nqn.2026-11.org.example:{name}")).unwrap()
    }

    fn identity<'a>(hostnqn: &'a Nqn, subnqn: &'a Nqn) -> Identity<'a> {
        Identity {
            cntlid: 3,
            ciu: 9,
            hostnqn,
            hostid: &HOSTID,
            subnqn,
        }
    }

    #[test]
    fn ciu_increments_and_is_never_zero() {
        let (hostnqn, subnqn) = (nqn("host"), nqn("disk"));
        for key in [None, Some(key(1))] {
            let incarnations = Incarnations::new(key);
            let mut instances = Instances::default();
            assert_eq!(instances.current(), None);
            let mut seen = std::collections::BTreeSet::new();
            let mut before = None;
            for _ in 0..600 {
                instances.begin(&incarnations, identity(&hostnqn, &subnqn));
                let Instance { ciu, cirn } = instances.current().unwrap();
                assert!(ciu != 0 && seen.insert(cirn));
                if let Some(before) = before {
                    assert_eq!(ciu, if before == 255 { 1 } else { before + 1 });
                }
                before = Some(ciu);
            }
        }
        let [one, other] = [Incarnations::new(None), Incarnations::new(None)];
        let identity = identity(&hostnqn, &subnqn);
        assert_ne!(one.next(&identity), other.next(&identity));
    }

    #[test]
    fn cirn_verifies_only_in_a_later_process_with_the_same_key() {
        let (hostnqn, subnqn) = (nqn("host"), nqn("disk"));
        let identity = identity(&hostnqn, &subnqn);
        let cirn = Incarnations::new(Some(key(4))).next(&identity);
        let verifies = |key| Incarnations::new(key).is_of_predecessor(cirn, &identity);
        assert!(verifies(Some(key(5))) && verifies(Some(key(u16::MAX))));
        assert!(!verifies(Some(key(4))), "its own process");
        assert!(!verifies(Some(key(3))), "a later process");
        assert!(!verifies(None));
        let process = NonZeroU16::new(5).unwrap();
        let other_secret = IncarnationKey::new([2; 16], b"machine", process);
        let other_machine = IncarnationKey::new([1; 16], b"machina", process);
        assert!(!verifies(Some(other_secret)) && !verifies(Some(other_machine)));
    }

    #[test]
    fn cirn_verifies_only_for_its_controller_host_and_subsystem() {
        let (hostnqn, subnqn, other) = (nqn("host"), nqn("disk"), nqn("other"));
        let its = || identity(&hostnqn, &subnqn);
        let cirn = Incarnations::new(Some(key(1))).next(&its());
        let successor = Incarnations::new(Some(key(2)));
        assert!(successor.is_of_predecessor(cirn, &its()));
        let others = [
            Identity { cntlid: 4, ..its() },
            Identity { ciu: 10, ..its() },
            Identity {
                hostnqn: &other,
                ..its()
            },
            Identity {
                hostid: &[8; 16],
                ..its()
            },
            Identity {
                subnqn: &other,
                ..its()
            },
        ];
        for (at, other) in others.iter().enumerate() {
            assert!(!successor.is_of_predecessor(cirn, other), "{at}");
        }
        for bit in 0..64 {
            let forged = cirn ^ (1 << bit);
            assert!(!successor.is_of_predecessor(forged, &its()), "bit {bit}");
        }
    }

    #[test]
    fn cirn_after_the_count_wrapped_verifies() {
        let (hostnqn, subnqn) = (nqn("host"), nqn("disk"));
        let identity = identity(&hostnqn, &subnqn);
        let (last, successor) = (Incarnations::new(Some(key(1))), key(2));
        let successor = Incarnations::new(Some(successor));
        last.count.store(u64::from(u16::MAX), Ordering::Relaxed);
        let [before, after] = [last.next(&identity), last.next(&identity)];
        assert_ne!(before, after);
        assert!(successor.is_of_predecessor(before, &identity));
        assert!(successor.is_of_predecessor(after, &identity));
    }

    /// Otherwise one of 2^32 of them would verify by chance.
    #[test]
    fn cirn_without_a_key_names_no_process() {
        let (hostnqn, subnqn) = (nqn("host"), nqn("disk"));
        let identity = identity(&hostnqn, &subnqn);
        let incarnations = Incarnations::new(None);
        assert!((0..100).all(|_| incarnations.next(&identity) >> 48 == 0));
        let successor = Incarnations::new(Some(key(2)));
        let zero = key(2).cirn(0, 0, &identity);
        assert!(!successor.is_of_predecessor(zero, &identity));
    }

    #[test]
    fn key_is_not_in_debug_output() {
        assert_eq!(format!("{:?}", key(3)), "IncarnationKey { process: 3, .. }");
    }
}
