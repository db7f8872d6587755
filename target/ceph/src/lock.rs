//! The exclusive lock of an image.
//!
//! The owner of the lock is a client, named by its address. A lock that is taken explicitly
//! (`rbd_lock_acquire`) is not handed over when another client asks for it.

use std::ptr::null_mut;

use libc::c_char;
use nix::errno::Errno;

use crate::error::CephError;
use crate::image::Image;
use crate::sys::{self, LOCK_EXCLUSIVE, Watcher, c_string};

/// Most owners and watchers of an image that are listed.
const MOST: usize = 256;

impl Image {
    /// The address of the client that has its exclusive lock.
    ///
    /// # Errors
    /// [`CephError`].
    pub fn lock_owner(&self) -> Result<Option<String>, CephError> {
        let mut owners: [*mut c_char; MOST] = [null_mut(); MOST];
        let (mut mode, mut count) = (0, MOST);
        let (functions, place) = (self.functions(), owners.as_mut_ptr());
        // SAFETY: an open image, and as many places as passed.
        let got = unsafe {
            (functions.rbd_lock_get_owners)(self.raw(), &raw mut mode, place, &raw mut count)
        };
        match self.check("rbd_lock_get_owners", got) {
            Err(error) if error.errno() == Some(Errno::ENOENT) => return Ok(None),
            result => result?,
        };
        // SAFETY: strings of librbd, until they are cleaned up.
        let owner = owners.first().filter(|_| count > 0);
        // SAFETY: as above.
        let owner = owner.map(|owner| unsafe { sys::text(*owner) });
        // SAFETY: as many as were returned, cleaned up once.
        unsafe { (functions.rbd_lock_get_owners_cleanup)(place, count) };
        Ok(owner)
    }

    /// Whether the client with that address watches the image. Every client that has it open for
    /// writing does. The cluster forgets a client that ended without closing it after 30 s.
    ///
    /// # Errors
    /// [`CephError`].
    pub fn is_watched_by(&self, address: &str) -> Result<bool, CephError> {
        let none = Watcher {
            addr: null_mut(),
            id: 0,
            cookie: 0,
        };
        let mut watchers = vec![none; MOST];
        let (mut count, functions) = (MOST, self.functions());
        let place = watchers.as_mut_ptr();
        // SAFETY: an open image, and as many places as passed.
        let got = unsafe { (functions.rbd_watchers_list)(self.raw(), place, &raw mut count) };
        self.check("rbd_watchers_list", got)?;
        let found = watchers.iter().take(count).any(|watcher| {
            // SAFETY: strings of librbd, until they are cleaned up.
            let watcher = unsafe { sys::text(watcher.addr) };
            watcher == address
        });
        // SAFETY: as many as were returned, cleaned up once.
        unsafe { (functions.rbd_watchers_list_cleanup)(place, count) };
        Ok(found)
    }

    /// Takes the exclusive lock, and keeps it until the image is closed. Returns the address of
    /// this client, as owners of the lock have it.
    ///
    /// # Errors
    /// [`CephError`].
    pub fn acquire_lock(&self) -> Result<String, CephError> {
        let functions = self.functions();
        // SAFETY: an open image.
        let acquired = unsafe { (functions.rbd_lock_acquire)(self.raw(), LOCK_EXCLUSIVE) };
        self.check("rbd_lock_acquire", acquired)?;
        let mut is_owner = 0;
        // SAFETY: an open image, and a place for the result.
        let got = unsafe { (functions.rbd_is_exclusive_lock_owner)(self.raw(), &raw mut is_owner) };
        self.check("rbd_is_exclusive_lock_owner", got)?;
        let owner = self.lock_owner()?.filter(|_| is_owner != 0);
        owner.ok_or_else(|| CephError::Unexpected {
            call: "rbd_lock_acquire",
            what: format!("{} is not locked", self.name()),
        })
    }

    /// Releases the exclusive lock, after writes in flight have completed. Later writes fail.
    ///
    /// # Errors
    /// [`CephError`].
    pub fn release_lock(&self) -> Result<(), CephError> {
        // SAFETY: an open image.
        let released = unsafe { (self.functions().rbd_lock_release)(self.raw()) };
        self.check("rbd_lock_release", released).map(drop)
    }

    /// Breaks the lock of the client `owner` and blocklists this client, so that no write of it
    /// takes effect any more.
    ///
    /// # Errors
    /// [`CephError`] with `EBUSY` if another client has the lock.
    pub fn break_lock(&self, owner: &str) -> Result<(), CephError> {
        let c_owner = c_string(owner).ok_or_else(|| CephError::Nul(owner.to_owned()))?;
        // SAFETY: an open image, and a string that ends with NUL.
        let broken = unsafe {
            (self.functions().rbd_lock_break)(self.raw(), LOCK_EXCLUSIVE, c_owner.as_ptr())
        };
        self.check("rbd_lock_break", broken).map(drop)
    }
}
