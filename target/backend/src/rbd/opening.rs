//! Opening an image: which ones are served, and their geometry.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nvmeof_backend_spec::{CephAccess, RbdName, within};
use nvmeof_ceph::{CephError, Cluster, Features, Image, Pool, Properties, wait_closed};

use super::{Lock, RbdClients, RbdStore, lock};
use crate::blocking::OPENING;
use crate::{BlockSize, Geometry, Hints, OpenError, RbdRefusal, probe};

/// How long an image is waited for that this process is closing.
const CLOSING: Duration = Duration::from_secs(5);

/// The first bytes of a clone that librbd encrypts. An image that is no clone has the header of
/// LUKS, and so has one that a host encrypts: it is served as it is.
const ENCRYPTED_CLONE: &[u8] = b"RBDL\xba\xbe";

const LOSES: &str = "a cache loses acknowledged writes when the target crashes";
/// Options of librbd that must have one of these values, and why.
const REQUIRED: [(&str, &[&str], &str); 3] = [
    ("rbd_cache", &["false", "0", "no", "off"], LOSES),
    ("rbd_persistent_cache_mode", &["disabled"], LOSES),
    (
        "rbd_disable_zero_copy_writes",
        &["true", "1", "yes", "on"],
        "a write that its host changes would be sent again forever",
    ),
];

/// Granularity of deallocations: the default of librbd (`rbd_discard_granularity_bytes`).
const DEALLOCATION: u64 = 64 << 10;
/// Allocation unit of an OSD (`bluestore_min_alloc_size`), and the longest atomic write that is
/// reported.
const UNIT: u64 = 4096;

/// How an image is opened.
#[derive(Clone)]
pub(crate) enum Mode {
    /// For reading, without a lock.
    ReadOnly,
    /// The same, to check whether it can be served writable.
    Standby,
    /// For writing, with the lock; through these clients, or through a shared one.
    Writable(Option<RbdClients>),
}

/// Opens an image and locks it, unless it is read-only.
pub(crate) fn open(
    name: &Arc<str>,
    named: &RbdName,
    access: &CephAccess,
    mode: &Mode,
    block_size: Option<BlockSize>,
) -> Result<(Arc<RbdStore>, Geometry), OpenError> {
    let lock = match mode {
        Mode::Writable(_) => Lock::Held,
        Mode::ReadOnly | Mode::Standby => Lock::None,
    };
    let (image, geometry) = open_image(name, named, access, mode, block_size)?;
    let client = image
        .cluster()
        .map_or_else(String::new, |it| it.address().to_owned());
    tracing::info!(path = %name, size = geometry.size, client, "opened RBD image");
    let store = RbdStore::new(image, named.clone(), access.clone(), lock);
    Ok((store, geometry))
}

/// The geometry of an image that another client may have locked.
pub(crate) fn standby(
    name: &Arc<str>,
    image: &RbdName,
    access: &CephAccess,
    block_size: Option<BlockSize>,
) -> Result<Geometry, OpenError> {
    let opened = open_image(name, image, access, &Mode::Standby, block_size);
    opened.map(|(_, geometry)| geometry)
}

fn open_image(
    name: &Arc<str>,
    image: &RbdName,
    access: &CephAccess,
    mode: &Mode,
    block_size: Option<BlockSize>,
) -> Result<(Image, Geometry), OpenError> {
    let refused = |why| OpenError::Rbd {
        name: name.to_string(),
        why,
    };
    let opening = Opening {
        name: Arc::clone(name),
        image: image.clone(),
        access: access.clone(),
        mode: mode.clone(),
    };
    let unresponsive = || refused(RbdRefusal::Unresponsive(OPENING));
    let pending = Pending::begin(name, OPENING).ok_or_else(unresponsive)?;
    // An image that is opened too late is closed again.
    let opened = within(OPENING, move || {
        let opened = opening.open();
        drop(pending);
        opened
    });
    let (image, properties) = opened.ok_or_else(unresponsive)?.map_err(refused)?;
    let block_size = block_size.unwrap_or(BlockSize::B512);
    probe::servable(name, properties.size, block_size)?;
    let readonly = matches!(mode, Mode::ReadOnly);
    let geometry = geometry(&properties, readonly, block_size);
    Ok((image, geometry))
}

/// Names of images that are being opened.
static PENDING: Mutex<BTreeSet<Arc<str>>> = Mutex::new(BTreeSet::new());
static ENDED: Condvar = Condvar::new();

/// An opening in progress. There is one at a time for each image: while the cluster does not
/// respond, later ones would wait as well, each in a thread of its own.
struct Pending(Arc<str>);

impl Pending {
    /// `None` if the image is being opened for longer than `timeout`.
    fn begin(name: &Arc<str>, timeout: Duration) -> Option<Self> {
        let is_pending = |names: &mut BTreeSet<Arc<str>>| names.contains(name);
        let waited = ENDED.wait_timeout_while(pending(), timeout, is_pending);
        let (mut names, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return None;
        }
        names.insert(Arc::clone(name));
        Some(Self(Arc::clone(name)))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        pending().remove(&self.0);
        ENDED.notify_all();
    }
}

fn pending() -> MutexGuard<'static, BTreeSet<Arc<str>>> {
    // A set of names is consistent also after a panic of another holder.
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is opened.
struct Opening {
    name: Arc<str>,
    image: RbdName,
    access: CephAccess,
    mode: Mode,
}

impl Opening {
    fn open(&self) -> Result<(Image, Properties), RbdRefusal> {
        if !wait_closed(Some(&self.name), CLOSING) {
            return Err(RbdRefusal::Unresponsive(CLOSING));
        }
        if let Mode::Writable(Some(clients)) = &self.mode {
            let cluster = clients.cluster().ok_or(RbdRefusal::Blocklisted)?;
            return self.open_through(&cluster);
        }
        match self.open_as_client() {
            // The client that other images use, which is not used any more: as another one.
            Err(RbdRefusal::Blocklisted) => self.open_as_client(),
            result => result,
        }
    }

    fn open_as_client(&self) -> Result<(Image, Properties), RbdRefusal> {
        let cluster = Cluster::shared(&self.access);
        let cluster = cluster.map_err(|error| not_connected(&self.access, error))?;
        let opened = self.open_through(&cluster);
        if matches!(opened, Err(RbdRefusal::Blocklisted)) {
            cluster.retire();
        }
        opened
    }

    fn open_through(&self, cluster: &Cluster) -> Result<(Image, Properties), RbdRefusal> {
        let image = self.open_image(cluster)?;
        let properties = image.properties()?;
        self.check_features(&image, &properties)?;
        match &self.mode {
            Mode::ReadOnly => {}
            Mode::Standby => self.check_options(&image)?,
            Mode::Writable(clients) => {
                let clients = clients.as_ref();
                lock::acquire(&image, |owner| {
                    clients.is_some_and(|it| it.has_fenced(owner))
                })?;
                self.check_options(&image)?;
            }
        }
        Ok((image, properties))
    }

    fn open_image(&self, cluster: &Cluster) -> Result<Image, RbdRefusal> {
        let RbdName {
            pool,
            namespace,
            image,
            snapshot,
        } = &self.image;
        let open_pool = || pool_of(cluster, pool, namespace.as_deref());
        let opened = Image::open(
            open_pool()?,
            image,
            snapshot.as_deref(),
            !matches!(self.mode, Mode::Writable(_)),
            &self.name,
        );
        let Err(error) = opened else {
            return opened.map_err(|error| self.not_opened(error));
        };
        match (error.errno(), snapshot) {
            (Some(Errno::ENOENT), Some(snapshot)) => {
                let whole = Image::open(open_pool()?, image, None, true, &self.name);
                Err(match whole {
                    Ok(_) => RbdRefusal::NoSnapshot {
                        image: self.without_snapshot(),
                        snapshot: snapshot.clone(),
                    },
                    Err(error) => self.not_opened(error),
                })
            }
            _ => Err(self.not_opened(error)),
        }
    }

    /// The image as commands name it.
    fn without_snapshot(&self) -> String {
        let mut image = self.image.clone();
        image.snapshot = None;
        image.to_string()
    }

    fn not_opened(&self, error: CephError) -> RbdRefusal {
        match error.errno() {
            Some(Errno::ENOENT) => {
                let RbdName {
                    pool, namespace, ..
                } = &self.image;
                let place = namespace
                    .as_ref()
                    .map(|namespace| format!("{pool}/{namespace}"));
                RbdRefusal::NoImage {
                    place: place.unwrap_or_else(|| pool.clone()),
                    image: self.image.image.clone(),
                }
            }
            Some(Errno::EPERM | Errno::EACCES) => RbdRefusal::NotPermitted {
                user: self.access.user().to_owned(),
                pool: self.image.pool.clone(),
            },
            _ => error.into(),
        }
    }

    /// Checks that the target can serve an image with these features.
    fn check_features(&self, image: &Image, properties: &Properties) -> Result<(), RbdRefusal> {
        let has = |feature| properties.features.contains(feature);
        let name = || self.without_snapshot();
        let mut first = [0; ENCRYPTED_CLONE.len()];
        // An empty image is refused for its size.
        if properties.size > 0 && image.read(0, &mut first)? == first.len() {
            let is_encrypted = first == ENCRYPTED_CLONE;
            (!is_encrypted).then_some(()).ok_or(RbdRefusal::Encrypted)?;
        }
        if has(Features::DIRTY_CACHE) {
            return Err(RbdRefusal::DirtyCache(name()));
        }
        if has(Features::MIGRATING) {
            return Err(RbdRefusal::Migrating(name()));
        }
        if properties.has_parent {
            return Err(RbdRefusal::Clone(name()));
        }
        if let Mode::ReadOnly = self.mode {
            return Ok(());
        }
        if has(Features::JOURNALING) {
            return Err(RbdRefusal::Journaled(name()));
        }
        if has(Features::NON_PRIMARY) {
            return Err(RbdRefusal::NotPrimary(name()));
        }
        if !has(Features::EXCLUSIVE_LOCK) {
            return Err(RbdRefusal::NoLock(name()));
        }
        Ok(())
    }

    /// Checks options that the configuration of the image, of its pool or of the cluster may have
    /// set, although this client sets them otherwise.
    fn check_options(&self, image: &Image) -> Result<(), RbdRefusal> {
        for (option, permitted, why) in REQUIRED {
            // Versions without the option have no such feature.
            let value = image.option(option)?;
            if let Some(value) = value.filter(|value| !permitted.contains(&value.as_str())) {
                return Err(RbdRefusal::Option {
                    image: self.without_snapshot(),
                    option,
                    value,
                    why,
                });
            }
        }
        Ok(())
    }
}

/// The pool of that name, and the namespace in it.
pub(super) fn pool_of(
    cluster: &Cluster,
    name: &str,
    namespace: Option<&str>,
) -> Result<Pool, RbdRefusal> {
    let opened = Pool::open(cluster, name, namespace);
    opened.map_err(|error| match error.errno() {
        Some(Errno::ENOENT) => RbdRefusal::NoPool(name.to_owned()),
        _ => error.into(),
    })
}

/// Why a client cannot connect.
pub(super) fn not_connected(access: &CephAccess, error: CephError) -> RbdRefusal {
    let user = access.user().to_owned();
    let CephError::Call { call, errno } = &error else {
        return error.into();
    };
    if call.starts_with("rados_conf_read_file") {
        let path = access.conf().to_owned();
        return RbdRefusal::Conf {
            path,
            errno: *errno,
        };
    }
    match errno {
        // Without a key, librados has no method in common with the cluster.
        Errno::ENOENT | Errno::EOPNOTSUPP => RbdRefusal::NoKey {
            user,
            keyring: access.keyring.clone(),
        },
        Errno::EACCES | Errno::EPERM => RbdRefusal::Denied { user },
        Errno::ETIMEDOUT => RbdRefusal::NoMonitor {
            conf: access.conf().to_owned(),
        },
        _ => error.into(),
    }
}

fn geometry(properties: &Properties, readonly: bool, block_size: BlockSize) -> Geometry {
    Geometry {
        size: properties.size,
        block_size,
        hints: hints(properties.stripe_unit, readonly),
        buffer_alignment: 1,
        readonly,
        deallocate_zeroes: !readonly,
        // A write completes when all replicas have it on stable storage.
        volatile_write_cache: false,
        direct: true,
        fua_alone: true,
        // Queries about it may wait for the cluster.
        may_block: true,
        may_be_remote: true,
    }
}

/// Preferred sizes. What is in one object, an OSD writes at once.
pub(super) fn hints(stripe_unit: u64, readonly: bool) -> Hints {
    let fits = |size: u64| u32::try_from(size).ok().filter(|_| !readonly && size > 0);
    let is_aligned = stripe_unit.is_power_of_two() && stripe_unit >= UNIT;
    let unit = |size: u64| fits(size.min(stripe_unit)).filter(|_| is_aligned);
    Hints {
        write: unit(UNIT),
        deallocate: unit(DEALLOCATION),
        optimal_write: fits(stripe_unit).filter(|_| is_aligned),
        atomic: unit(UNIT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_is_opened_once_at_a_time() {
        let name = Arc::from("rbd:pool/pending");
        let soon = Duration::from_millis(1);
        let first = Pending::begin(&name, soon).unwrap();
        assert!(Pending::begin(&name, soon).is_none());
        assert!(Pending::begin(&Arc::from("rbd:pool/other"), soon).is_some());
        let waiting = Arc::clone(&name);
        let next = std::thread::spawn(move || Pending::begin(&waiting, OPENING).is_some());
        drop(first);
        assert!(next.join().unwrap());
        assert!(Pending::begin(&name, soon).is_some());
    }

    #[test]
    fn preferred_sizes_are_within_an_object() {
        let of = |unit| hints(unit, false);
        let default = of(4 << 20);
        assert_eq!(default.write, Some(4096));
        assert_eq!(default.atomic, Some(4096));
        assert_eq!(default.deallocate, Some(64 << 10));
        assert_eq!(default.optimal_write, Some(4 << 20));
        assert_eq!(of(16 << 10).deallocate, Some(16 << 10));
        for unit in [0, 512, 12 << 10] {
            assert_eq!(of(unit), Hints::default(), "{unit}");
        }
        assert_eq!(hints(4 << 20, true), Hints::default());
    }
}
