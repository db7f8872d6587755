//! The exclusive lock of an image.
//!
//! The cluster knows that a client ended without releasing a lock when the watch of this client
//! ends, which takes 30 s. A target therefore records in the metadata of the image which process
//! has the lock. The next one on the same machine sees at once whether that process has ended.

use std::fs;
use std::os::unix::fs::MetadataExt;

use nix::errno::Errno;
use nvmeof_ceph::{CephError, Image};

use crate::RbdRefusal;
use crate::lock_holder::has_ended;

/// The key in the metadata of the image.
const KEY: &str = "nvmeof.lock-holder";

/// How long the former owner of a lock is blocklisted, in seconds: ten years. If its process was
/// suspended, it sends its writes whenever it continues, but by default the cluster forgets it
/// after an hour. No other client ever has its address.
pub(super) const EXPIRY: u32 = 10 * 365 * 86_400;

/// Takes the exclusive lock. Breaks the lock of a client that has ended, which also blocklists it,
/// so that no write of it takes effect later. `has_fenced` returns whether a client is blocklisted.
pub(super) fn acquire(image: &Image, has_fenced: impl Fn(&str) -> bool) -> Result<(), RbdRefusal> {
    let in_use = |owner: &str| RbdRefusal::InUse {
        owner: owner.to_owned(),
    };
    if let Some(owner) = image.lock_owner()? {
        let may_write = !has_fenced(&owner) && image.is_watched_by(&owner)?;
        if may_write && !Holder::of(image)?.has_ended(&owner) {
            return Err(in_use(&owner));
        }
        let cluster = image.cluster();
        if let Some(cluster) = &cluster {
            // Before the lock is broken: librbd would do it for an hour. The first entry counts.
            cluster.blocklist(&owner, EXPIRY)?;
        }
        match image.break_lock(&owner) {
            // It was released.
            Err(error) if error.errno() == Some(Errno::ENOENT) => {}
            // Another client was faster.
            Err(error) if error.errno() == Some(Errno::EBUSY) => {
                let owner = image.lock_owner()?;
                return Err(owner.map_or_else(|| error.into(), |owner| in_use(&owner)));
            }
            broken => broken?,
        }
        if let Some(cluster) = cluster {
            // Operations of this client carry the number of this map from now on, so that an OSD
            // refuses the former owner before it executes one of them.
            cluster.wait_for_latest_map()?;
        }
        tracing::info!(
            "{}: lock of the client at {owner} broken: it has ended; it is blocklisted",
            image.name()
        );
    }
    let own = image.acquire_lock().map_err(|error| match taken(&error) {
        // Another client was faster.
        true => match image.lock_owner() {
            Ok(Some(owner)) => in_use(&owner),
            _ => error.into(),
        },
        false => error.into(),
    })?;
    image.set_metadata(KEY, &Holder::this(&own).to_text())?;
    Ok(())
}

/// Whether another client has the lock and keeps it.
fn taken(error: &CephError) -> bool {
    matches!(
        error.errno(),
        Some(Errno::EBUSY | Errno::EROFS | Errno::EAGAIN)
    )
}

/// The process that had the lock last, as it recorded itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Holder {
    /// The address of its client.
    address: String,
    /// Boot of its machine, and PID namespace: where its PID is valid.
    place: String,
    pid: u32,
}

impl Holder {
    fn this(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            place: this_place().unwrap_or_default(),
            pid: std::process::id(),
        }
    }

    fn of(image: &Image) -> Result<Self, CephError> {
        let text = image.metadata(KEY)?;
        Ok(text.as_deref().and_then(Self::parse).unwrap_or_default())
    }

    fn to_text(&self) -> String {
        format!("{} {} {}", self.address, self.place, self.pid)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let (address, place) = (words.next()?.to_owned(), words.next()?.to_owned());
        let pid = words.next()?.parse().ok()?;
        Some(Self {
            address,
            place,
            pid,
        })
    }

    /// Whether the client at `owner` is known to have ended.
    fn has_ended(&self, owner: &str) -> bool {
        let is_here = this_place().is_some_and(|place| place == self.place);
        self.address == owner && is_here && has_ended(self.pid)
    }
}

/// The boot of this machine (random(4)) and the PID namespace of this process (namespaces(7)).
fn this_place() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::metadata("/proc/self/ns/pid").ok()?.ino();
    Some(format!("{}/{namespace}", boot.trim()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn holder_that_is_written_is_read() {
        let this = Holder::this("127.0.0.1:0/7");
        assert_eq!(Holder::parse(&this.to_text()), Some(this));
        for text in ["", "a", "a b", "a b c", "a b -1"] {
            assert_eq!(Holder::parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_an_ended_process_of_this_place_has_ended() {
        let owner = "127.0.0.1:0/7";
        let alive = Holder::this(owner);
        assert!(!alive.has_ended(owner));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        let ended = Holder { pid, ..alive };
        assert!(ended.has_ended(owner));
        assert!(!ended.has_ended("127.0.0.1:0/8"), "another client");
        let place = "another".to_owned();
        let elsewhere = Holder { place, ..ended };
        assert!(!elsewhere.has_ended(owner));
        assert!(!Holder::default().has_ended(""));
    }
}
