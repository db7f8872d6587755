//! A connection to a cluster.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nix::errno::Errno;
use nvmeof_backend_spec::CephAccess;

use crate::closing::close_elsewhere;
use crate::error::{CephError, check};
use crate::sys::{self, Functions, RadosT, c_string};

/// A connection to a cluster: one client of it, with an address of its own. Clones are the same
/// connection, which ends with the last of them, of its pools and of its images.
#[derive(Clone, Debug)]
pub struct Cluster {
    handle: Arc<Handle>,
}

pub(crate) struct Handle {
    pub(crate) functions: &'static Functions,
    pub(crate) raw: RadosT,
    fsid: String,
    address: String,
    /// Whether it opens no more images.
    is_retired: AtomicBool,
    /// Whether an image was not closed properly.
    failed_to_close: AtomicBool,
}

// SAFETY: librados permits calls with one handle from any thread (librados.h: "A handle for
// interacting with a RADOS cluster ... can be shared by threads").
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Cluster");
        let debug = debug.field("fsid", &self.fsid);
        debug.field("address", &self.address).finish()
    }
}

/// Options that this crate depends on, in the order of `rados_conf_set`.
const OPTIONS: &[(&str, &str)] = &[
    // A cache in this process would lose acknowledged writes with it.
    ("rbd_cache", "false"),
    // A client that reaches such a limit waits in the thread that submits: the limits of the
    // target are below.
    ("objecter_inflight_ops", "0"),
    ("objecter_inflight_op_bytes", "0"),
    // The process logs by itself; errors of calls are reported by their callers.
    ("log_to_stderr", "false"),
    ("err_to_stderr", "false"),
    // Seconds for the first contact.
    ("client_mount_timeout", "8"),
    // The owner of a lock that is broken is blocklisted. Not with `rbd_blocklist_expire_seconds`:
    // librbd 16.2 then fails with EINVAL.
    ("rbd_blocklist_on_break_lock", "true"),
    // An operation that ended by a timeout may still be executed, after later ones.
    ("rados_osd_op_timeout", "0"),
    // A host can change its memory during a write: the checksum of the message would then be wrong
    // each time that it is sent.
    ("rbd_disable_zero_copy_writes", "true"),
];

/// Connections that more images may use, with their access.
static SHARED: Mutex<Vec<(CephAccess, Weak<Handle>)>> = Mutex::new(Vec::new());

/// Images that share a connection. Each connection has threads and sessions with OSDs of its own,
/// and one connection has limited throughput.
const IMAGES: usize = 32;

/// Bytes of an FSID as text, with room for its end.
const FSID: usize = 37;

/// The handle of a connection that is being made. It is released if that fails.
struct Connecting {
    functions: &'static Functions,
    raw: RadosT,
}

impl Drop for Connecting {
    fn drop(&mut self) {
        // SAFETY: the handle was created, and is used nowhere else.
        unsafe { (self.functions.rados_shutdown)(self.raw) };
    }
}

impl Cluster {
    /// Connects to a cluster as a new client.
    ///
    /// # Errors
    /// [`CephError`]. Without a configuration file, its call is `rados_conf_read_file`. Without a
    /// key, or with a wrong one, or without a monitor, it is `rados_connect`.
    pub fn connect(access: &CephAccess) -> Result<Self, CephError> {
        let functions = sys::functions()?;
        let user = format!("client.{}", access.user());
        let name = c_string(&user).ok_or_else(|| CephError::Nul(user.clone()))?;
        let cluster = c"ceph";
        let mut raw = null_mut();
        // SAFETY: both strings end with NUL, and the handle is written on success only.
        let created =
            unsafe { (functions.rados_create2)(&raw mut raw, cluster.as_ptr(), name.as_ptr(), 0) };
        check("rados_create2", &user, created)?;
        let this = Connecting { functions, raw };
        this.read_file(access.conf())?;
        for (option, value) in OPTIONS {
            match this.set(option, value) {
                // A version that does not have what it turns off.
                Err(error) if error.errno() == Some(Errno::ENOENT) => {}
                set => set?,
            }
        }
        if let Some(keyring) = &access.keyring {
            this.set("keyring", &keyring.to_string_lossy())?;
        }
        // SAFETY: a handle that is configured and not connected.
        let connected = unsafe { (functions.rados_connect)(raw) };
        check("rados_connect", &user, connected)?;
        let (fsid, address) = (this.fsid()?, this.address()?);
        // The new owner shuts it down.
        std::mem::forget(this);
        let handle = Handle {
            functions,
            raw,
            fsid,
            address,
            is_retired: AtomicBool::new(false),
            failed_to_close: AtomicBool::new(false),
        };
        Ok(Self {
            handle: Arc::new(handle),
        })
    }

    /// A connection with that access that at most 31 other images or pools use, or a new one.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn shared(access: &CephAccess) -> Result<Self, CephError> {
        let fits = |(of, handle): &(CephAccess, Weak<Handle>)| {
            let handle = handle.upgrade().filter(|_| of == access)?;
            let is_retired = handle.is_retired.load(Ordering::Relaxed);
            // One reference is the one that was just made.
            (!is_retired && Arc::strong_count(&handle) <= IMAGES).then_some(Self { handle })
        };
        if let Some(found) = shared().iter().find_map(fits) {
            return Ok(found);
        }
        // Without the lock: it waits for the cluster.
        let made = Self::connect(access)?;
        let mut shared = shared();
        shared.retain(|(_, handle)| handle.strong_count() > 0);
        shared.push((access.clone(), Arc::downgrade(&made.handle)));
        Ok(made)
    }

    /// The connection of `handle`.
    pub(crate) fn of(handle: &Arc<Handle>) -> Self {
        let handle = Arc::clone(handle);
        Self { handle }
    }

    /// Opens no more images: the cluster has blocklisted this client, for good. Whoever opens an
    /// image next connects as another client.
    pub fn retire(&self) {
        self.handle.is_retired.store(true, Ordering::Relaxed);
    }

    /// Number of pools, images and other clones that use it. An image counts until it is closed.
    #[must_use]
    pub fn uses(&self) -> usize {
        Arc::strong_count(&self.handle).saturating_sub(1)
    }

    /// Whether closing an image failed, so that an operation of it may still take effect.
    #[must_use]
    pub fn has_failed_to_close(&self) -> bool {
        self.handle.failed_to_close.load(Ordering::Acquire)
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// Identity of the cluster: a UUID.
    #[must_use]
    pub fn fsid(&self) -> &str {
        &self.handle.fsid
    }

    /// The address of this client, as a blocklist has it.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.handle.address
    }

    /// Blocklists the client with that address for `seconds`. When this returns, the monitors have
    /// a map of the OSDs with it. Other clients, and the OSDs, may not have that map yet: see
    /// [`wait_for_latest_map`](Self::wait_for_latest_map).
    ///
    /// # Errors
    /// [`CephError`].
    pub fn blocklist(&self, address: &str, seconds: u32) -> Result<(), CephError> {
        let Handle { functions, raw, .. } = *self.handle;
        let nul = || CephError::Nul(address.to_owned());
        let c_address = c_string(address).ok_or_else(nul)?;
        // The function takes a pointer to bytes that it could change.
        let mut bytes = c_address.into_bytes_with_nul();
        // SAFETY: a connected handle, and a string that ends with NUL.
        let result =
            unsafe { (functions.rados_blocklist_add)(raw, bytes.as_mut_ptr().cast(), seconds) };
        check("rados_blocklist_add", address, result).map(drop)
    }

    /// Waits until this client has the latest map of the OSDs. An OSD that receives an operation
    /// of this client after that first gets a map that is at least as new, and from then on refuses
    /// operations of clients that are in its blocklist.
    ///
    /// # Errors
    /// [`CephError`].
    pub fn wait_for_latest_map(&self) -> Result<(), CephError> {
        let Handle { functions, raw, .. } = *self.handle;
        // SAFETY: a connected handle.
        let result = unsafe { (functions.rados_wait_for_latest_osdmap)(raw) };
        check("rados_wait_for_latest_osdmap", "", result).map(drop)
    }
}

impl Handle {
    /// An image was not closed properly.
    pub(crate) fn fail_to_close(&self) {
        self.failed_to_close.store(true, Ordering::Release);
    }
}

impl Connecting {
    fn read_file(&self, path: &Path) -> Result<(), CephError> {
        let named = path.display().to_string();
        let c_path = std::ffi::CString::new(path.as_os_str().as_bytes());
        let c_path = c_path.map_err(|_| CephError::Nul(named.clone()))?;
        // SAFETY: a handle that is not connected, and a string that ends with NUL.
        let read = unsafe { (self.functions.rados_conf_read_file)(self.raw, c_path.as_ptr()) };
        check("rados_conf_read_file", &named, read).map(drop)
    }

    fn set(&self, option: &str, value: &str) -> Result<(), CephError> {
        let nul = || CephError::Nul(value.to_owned());
        let (name, text) = (c_string(option), c_string(value).ok_or_else(nul)?);
        let name = name.ok_or_else(nul)?;
        // SAFETY: a handle that is not connected, and strings that end with NUL.
        let set =
            unsafe { (self.functions.rados_conf_set)(self.raw, name.as_ptr(), text.as_ptr()) };
        check("rados_conf_set", option, set).map(drop)
    }

    fn fsid(&self) -> Result<String, CephError> {
        let mut bytes = [0; FSID];
        let place = bytes.as_mut_ptr().cast();
        // SAFETY: a connected handle, and as many bytes as passed.
        let len = unsafe { (self.functions.rados_cluster_fsid)(self.raw, place, FSID) };
        check("rados_cluster_fsid", "", len)?;
        let end = bytes.iter().position(|byte| *byte == 0);
        let bytes = bytes.get(..end.unwrap_or(FSID)).unwrap_or_default();
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    fn address(&self) -> Result<String, CephError> {
        let mut raw = null_mut();
        // SAFETY: a connected handle; the string is written on success only.
        let got = unsafe { (self.functions.rados_getaddrs)(self.raw, &raw mut raw) };
        check("rados_getaddrs", "", got)?;
        // SAFETY: a string of librados, which this function owns.
        let address = unsafe { sys::text(raw) };
        // SAFETY: it is freed once.
        unsafe { (self.functions.rados_buffer_free)(raw) };
        Ok(address)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let (functions, raw) = (self.functions, Raw(self.raw));
        close_elsewhere(&format!("client {}", self.address), move || {
            let raw = raw;
            // SAFETY: this was the last owner. Pools and images have one as well.
            unsafe { (functions.rados_shutdown)(raw.0) };
        });
    }
}

fn shared() -> std::sync::MutexGuard<'static, Vec<(CephAccess, Weak<Handle>)>> {
    // A list of references is consistent also after a panic of another holder.
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Raw(RadosT);

// SAFETY: as of `Handle`.
unsafe impl Send for Raw {}
