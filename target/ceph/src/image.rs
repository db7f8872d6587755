//! An open RBD image.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::{null, null_mut};
use std::sync::Arc;

use libc::c_int;

use crate::closing::close_elsewhere;
use crate::cluster::Cluster;
use crate::error::{CephError, check, errno_of};
use crate::pool::Pool;
use crate::sys::{self, ConfigOption, Functions, ImageInfo, ImageT, c_string};

/// An open image, which threads share. It is closed, in a thread of its own, when the last clone
/// and the last [`Queue`](crate::Queue) of it are gone and no call is in flight: see
/// [`wait_closed`](crate::wait_closed).
#[derive(Clone, Debug)]
pub struct Image {
    pub(crate) handle: Arc<Handle>,
}

/// The closed image is gone with this, so a raw call holds it.
pub(crate) struct Handle {
    pub(crate) raw: ImageT,
    pub(crate) functions: &'static Functions,
    /// For messages, and for `wait_closed`.
    name: String,
    /// Keeps the connection. Taken when it is closed.
    pool: Option<Pool>,
}

// SAFETY: librbd permits calls with one image from any thread, except for `rbd_close`, which only
// the last owner calls.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Image");
        debug.field("name", &self.name).finish_non_exhaustive()
    }
}

/// Properties of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Size in bytes.
    pub size: u64,
    /// Bytes of an object.
    pub object_size: u64,
    /// Bytes that are contiguous in one object: at most an object.
    pub stripe_unit: u64,
    /// Its features.
    pub features: Features,
    /// Whether it is a clone, which reads from its parent.
    pub has_parent: bool,
}

/// Features of an image: `RBD_FEATURE_*` of rbd/features.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features(pub u64);

impl Features {
    /// One client writes at a time.
    pub const EXCLUSIVE_LOCK: Self = Self(1 << 2);
    /// Writes go to a journal first.
    pub const JOURNALING: Self = Self(1 << 6);
    /// It is being migrated.
    pub const MIGRATING: Self = Self(1 << 9);
    /// It is the copy of an image of another cluster.
    pub const NON_PRIMARY: Self = Self(1 << 10);
    /// A persistent cache of another client has writes of it.
    pub const DIRTY_CACHE: Self = Self(1 << 11);

    /// Whether it has all of `these`.
    #[must_use]
    pub fn contains(self, these: Self) -> bool {
        self.0 & these.0 == these.0
    }
}

/// Bytes of a value of an option or of metadata.
const VALUE: usize = 4096;
/// Most options of an image; there are about 80.
const MOST_OPTIONS: c_int = 1024;

impl Image {
    /// Opens the image `image` of `pool`, or its snapshot, which is read-only. `name` is for
    /// messages.
    ///
    /// # Errors
    /// [`CephError`] with `ENOENT` if there is no such image or snapshot.
    pub fn open(
        pool: Pool,
        image: &str,
        snapshot: Option<&str>,
        readonly: bool,
        name: &str,
    ) -> Result<Self, CephError> {
        let nul = |text: &str| CephError::Nul(text.to_owned());
        let c_image = c_string(image).ok_or_else(|| nul(image))?;
        let c_snapshot = match snapshot {
            Some(text) => Some(c_string(text).ok_or_else(|| nul(text))?),
            None => None,
        };
        let functions = pool.functions();
        let open = match readonly {
            true => functions.rbd_open_read_only,
            false => functions.rbd_open,
        };
        let mut raw = null_mut();
        let at = c_snapshot.as_ref().map_or(null(), |text| text.as_ptr());
        // SAFETY: a context of a connected handle, and strings that end with NUL.
        let opened = unsafe { open(pool.raw, c_image.as_ptr(), &raw mut raw, at) };
        check("rbd_open", image, opened)?;
        let handle = Handle {
            raw,
            functions,
            name: name.to_owned(),
            pool: Some(pool),
        };
        Ok(Self {
            handle: Arc::new(handle),
        })
    }

    /// Its name, for messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.handle.name
    }

    pub(crate) fn functions(&self) -> &'static Functions {
        self.handle.functions
    }

    pub(crate) fn raw(&self) -> ImageT {
        self.handle.raw
    }

    /// The result of a call: an error if it is negative.
    pub(crate) fn check(&self, call: &'static str, result: c_int) -> Result<c_int, CephError> {
        check(call, &self.handle.name, result)
    }

    /// Its current size in bytes. Clients that change an image notify all that have it open, so
    /// that this asks the cluster only after a change.
    ///
    /// # Errors
    /// [`CephError`].
    pub fn size(&self) -> Result<u64, CephError> {
        let mut size = 0;
        // SAFETY: an open image, and a place for the result.
        let got = unsafe { (self.functions().rbd_get_size)(self.raw(), &raw mut size) };
        self.check("rbd_get_size", got)?;
        Ok(size)
    }

    /// Its properties.
    ///
    /// # Errors
    /// [`CephError`].
    pub fn properties(&self) -> Result<Properties, CephError> {
        let (functions, raw) = (self.functions(), self.raw());
        // SAFETY: numbers and bytes, for which zero is a value.
        let mut info: ImageInfo = unsafe { std::mem::zeroed() };
        let (mut features, mut stripe_unit) = (0, 0);
        // SAFETY: an open image, and places for the results, of the size that is passed.
        let got = unsafe { (functions.rbd_stat)(raw, &raw mut info, size_of::<ImageInfo>()) };
        self.check("rbd_stat", got)?;
        // SAFETY: as above.
        let got = unsafe { (functions.rbd_get_features)(raw, &raw mut features) };
        self.check("rbd_get_features", got)?;
        // SAFETY: as above.
        let got = unsafe { (functions.rbd_get_stripe_unit)(raw, &raw mut stripe_unit) };
        self.check("rbd_get_stripe_unit", got)?;
        // SAFETY: no name is asked for, so that nothing is written.
        let parent = unsafe {
            (functions.rbd_get_parent_info)(raw, null_mut(), 0, null_mut(), 0, null_mut(), 0)
        };
        let has_parent = match parent {
            // It has a name, for which there is no room.
            0 | libc::ERANGE => true,
            other if other == -libc::ERANGE => true,
            other if other == -libc::ENOENT => false,
            other => self.check("rbd_get_parent_info", other).map(|_| true)?,
        };
        Ok(Properties {
            size: info.size,
            object_size: info.obj_size,
            stripe_unit,
            features: Features(features),
            has_parent,
        })
    }

    /// The value of a configuration option that is in force for this image; `None` if there is no
    /// such option. It may be set for the image, its pool, the client or the cluster.
    ///
    /// # Errors
    /// [`CephError`].
    pub fn option(&self, name: &str) -> Result<Option<String>, CephError> {
        let none = ConfigOption {
            name: null_mut(),
            value: null_mut(),
            source: 0,
        };
        let mut count = MOST_OPTIONS;
        let mut options = vec![none; usize::try_from(count).unwrap_or_default()];
        let (functions, place) = (self.functions(), options.as_mut_ptr());
        // SAFETY: an open image, and as many places as passed.
        let got = unsafe { (functions.rbd_config_image_list)(self.raw(), place, &raw mut count) };
        self.check("rbd_config_image_list", got)?;
        let filled = usize::try_from(count).unwrap_or_default();
        let found = options.iter().take(filled).find_map(|option| {
            // SAFETY: a string of librbd, until it is cleaned up.
            let key = unsafe { sys::text(option.name) };
            // SAFETY: as above.
            (key == name).then(|| unsafe { sys::text(option.value) })
        });
        // SAFETY: as many options as were returned, cleaned up once.
        unsafe { (functions.rbd_config_image_list_cleanup)(place, count) };
        Ok(found)
    }

    /// The value of a key in its metadata.
    ///
    /// # Errors
    /// [`CephError`].
    pub fn metadata(&self, key: &str) -> Result<Option<String>, CephError> {
        let c_key = c_string(key).ok_or_else(|| CephError::Nul(key.to_owned()))?;
        let mut bytes = [0u8; VALUE];
        let mut len = bytes.len();
        let place = bytes.as_mut_ptr().cast();
        // SAFETY: an open image, a string that ends with NUL, and as many bytes as passed.
        let got = unsafe {
            (self.functions().rbd_metadata_get)(self.raw(), c_key.as_ptr(), place, &raw mut len)
        };
        if got == -libc::ENOENT {
            return Ok(None);
        }
        self.check("rbd_metadata_get", got)?;
        let end = bytes.iter().position(|byte| *byte == 0);
        let value = bytes.get(..end.unwrap_or(VALUE)).unwrap_or_default();
        Ok(Some(String::from_utf8_lossy(value).into_owned()))
    }

    /// Sets a key in its metadata.
    ///
    /// # Errors
    /// [`CephError`].
    pub fn set_metadata(&self, key: &str, value: &str) -> Result<(), CephError> {
        let nul = |text: &str| CephError::Nul(text.to_owned());
        let c_key = c_string(key).ok_or_else(|| nul(key))?;
        let c_value = c_string(value).ok_or_else(|| nul(value))?;
        // SAFETY: an open image, and strings that end with NUL.
        let set = unsafe {
            (self.functions().rbd_metadata_set)(self.raw(), c_key.as_ptr(), c_value.as_ptr())
        };
        self.check("rbd_metadata_set", set).map(drop)
    }

    /// Reads from `offset` on, and waits for the cluster. Returns the number of bytes: fewer at
    /// the end of the image.
    ///
    /// # Errors
    /// [`CephError`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize, CephError> {
        let (place, len) = (into.as_mut_ptr().cast(), into.len());
        // SAFETY: an open image, and as many bytes as passed.
        let read = unsafe { (self.functions().rbd_read)(self.raw(), offset, len, place) };
        usize::try_from(read).map_err(|_| CephError::Call {
            call: format!("rbd_read({})", self.handle.name),
            errno: errno_of(i64::try_from(read).unwrap_or_default()),
        })
    }

    /// The pool, and the namespace in it, from which it was opened: the same client.
    #[must_use]
    pub fn pool(&self) -> Option<&Pool> {
        self.handle.pool.as_ref()
    }

    /// The connection through which it was opened.
    #[must_use]
    pub fn cluster(&self) -> Option<Cluster> {
        let pool = self.handle.pool.as_ref();
        pool.map(|pool| Cluster::of(&pool.cluster))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let closing = Closing {
            raw: self.raw,
            functions: self.functions,
            pool: ManuallyDrop::new(self.pool.take()),
        };
        let name = self.name.clone();
        close_elsewhere(&self.name, move || closing.close(&name));
    }
}

/// An image that nobody uses any more.
struct Closing {
    raw: ImageT,
    functions: &'static Functions,
    /// Dropped after the image is closed, and never if it cannot be closed.
    pool: ManuallyDrop<Option<Pool>>,
}

// SAFETY: as of `Handle`.
unsafe impl Send for Closing {}

impl Closing {
    /// Closes it, which releases its lock, and then the connection.
    fn close(self, name: &str) {
        // SAFETY: the last owner is gone, and with it all calls.
        let closed = unsafe { (self.functions.rbd_close)(self.raw) };
        if closed < 0 {
            let errno = errno_of(closed.into());
            tracing::warn!("{name}: not closed properly: {errno}; a lock of it may remain");
            if let Some(pool) = &*self.pool {
                pool.cluster.fail_to_close();
            }
        }
        drop(ManuallyDrop::into_inner(self.pool));
    }
}
