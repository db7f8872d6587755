//! A pool, or a namespace in it: opens images, and keeps small values in objects.

use std::ffi::{CStr, CString};
use std::ptr::{null, null_mut};
use std::slice;
use std::sync::Arc;

use libc::{c_int, c_void};
use nix::errno::Errno;

use crate::cluster::{Cluster, Handle};
use crate::error::{CephError, check};
use crate::sys::{CMP_EQUAL, CREATE_IDEMPOTENT, Functions, IoCtxT, c_string};

/// A pool of a cluster, or a namespace in it.
#[derive(Debug)]
pub struct Pool {
    pub(crate) raw: IoCtxT,
    pub(crate) cluster: Arc<Handle>,
}

// SAFETY: librados permits calls with an I/O context from any thread, except for changing its
// properties, which happens only while it is made.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

/// The result of [`Pool::swap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swapped {
    /// The new value is on stable storage.
    Yes,
    /// The value was another one. Nothing changed.
    Changed,
}

/// Maximum length of a value in bytes. What can be stored can be read.
const LONGEST_VALUE: usize = 16 << 20;
/// Values that are read at once.
const AT_ONCE: u64 = 256;
/// Maximum number of values of one object.
const MOST_VALUES: usize = 1 << 16;

impl Pool {
    /// Opens the pool `name`, and the namespace `namespace` in it.
    ///
    /// # Errors
    /// [`CephError`] with `ENOENT` if there is no such pool. A namespace need not exist.
    pub fn open(cluster: &Cluster, name: &str, namespace: Option<&str>) -> Result<Self, CephError> {
        let handle = Arc::clone(cluster.handle());
        let nul = |text: &str| CephError::Nul(text.to_owned());
        let c_name = c_string(name).ok_or_else(|| nul(name))?;
        let c_namespace = match namespace {
            Some(text) => Some(c_string(text).ok_or_else(|| nul(text))?),
            None => None,
        };
        let functions = handle.functions;
        let mut raw = null_mut();
        // SAFETY: a connected handle, and a string that ends with NUL.
        let made =
            unsafe { (functions.rados_ioctx_create)(handle.raw, c_name.as_ptr(), &raw mut raw) };
        check("rados_ioctx_create", name, made)?;
        let cluster = handle;
        let this = Self { raw, cluster };
        if let Some(namespace) = &c_namespace {
            // SAFETY: the context was just made, and no other thread has it.
            unsafe { (functions.rados_ioctx_set_namespace)(raw, namespace.as_ptr()) };
        }
        // A write to a full pool fails instead of waiting for room.
        // SAFETY: as above.
        unsafe { (functions.rados_set_pool_full_try)(raw) };
        Ok(this)
    }

    pub(crate) fn functions(&self) -> &'static Functions {
        self.cluster.functions
    }

    /// The value of `key` in the omap of `object`; `None` if there is none.
    ///
    /// # Errors
    /// [`CephError`].
    pub fn get(&self, object: &str, key: &str) -> Result<Option<Vec<u8>>, CephError> {
        let op = ReadOp::new(self)?;
        let [c_object, c_key] = names([object, key])?;
        let (keys, lens) = ([c_key.as_ptr()], [key.len()]);
        let (mut iter, mut result) = (null_mut(), 0);
        // SAFETY: the arrays have one element each, and live until the operation has completed, as
        // do the places of the results.
        unsafe {
            (self.functions().rados_read_op_omap_get_vals_by_keys2)(
                op.raw,
                keys.as_ptr(),
                1,
                lens.as_ptr(),
                &raw mut iter,
                &raw mut result,
            );
        }
        let done = op.run(self, &c_object);
        let values = self.values(object, done, result, iter)?;
        Ok(values.into_iter().next().map(|(_, value)| value))
    }

    /// All keys and values in the omap of `object`, in order of their keys. None if there is no
    /// such object.
    ///
    /// # Errors
    /// [`CephError`].
    pub fn list(&self, object: &str) -> Result<Vec<(String, Vec<u8>)>, CephError> {
        let mut all: Vec<(String, Vec<u8>)> = Vec::new();
        loop {
            let last = all.last().map_or("", |(key, _)| key.as_str());
            let op = ReadOp::new(self)?;
            let [c_object, after] = names([object, last])?;
            let (mut iter, mut more, mut result) = (null_mut(), 0, 0);
            // SAFETY: as in `get`.
            unsafe {
                (self.functions().rados_read_op_omap_get_vals2)(
                    op.raw,
                    after.as_ptr(),
                    null(),
                    AT_ONCE,
                    &raw mut iter,
                    &raw mut more,
                    &raw mut result,
                );
            }
            let done = op.run(self, &c_object);
            let values = self.values(object, done, result, iter)?;
            let is_end = values.is_empty() || more == 0;
            all.extend(values);
            if is_end {
                return Ok(all);
            }
            if all.len() > MOST_VALUES {
                let what = format!("{object} has more than {MOST_VALUES} values");
                let call = "rados_read_op_omap_get_vals2";
                return Err(CephError::Unexpected { call, what });
            }
        }
    }

    /// Replaces the value of `key` in the omap of `object` by `new`, if it is `expected` now. For
    /// both, `None` is no value. An empty value is the same as none. The object is created if it
    /// does not exist.
    ///
    /// # Errors
    /// [`CephError`]. The old or the new value is stored then. With [`CephError::TooLong`], it is
    /// the old one.
    pub fn swap(
        &self,
        object: &str,
        key: &str,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Swapped, CephError> {
        let len = new.map_or(0, <[u8]>::len);
        if len > LONGEST_VALUE {
            return Err(CephError::TooLong {
                value: format!("{object}:{key}"),
                len,
                most: LONGEST_VALUE,
            });
        }
        let op = WriteOp::new(self)?;
        let [c_object, c_key] = names([object, key])?;
        let mut compared: c_int = 0;
        op.create();
        op.compare(&c_key, expected.unwrap_or_default(), &mut compared);
        match new {
            Some(new) => op.set(&c_key, new),
            None => op.remove(&c_key),
        }
        let (functions, place) = (self.functions(), c_object.as_ptr());
        // SAFETY: a context, a string that ends with NUL, and an operation that has copied its
        // arguments; the place of its result lives until it has completed.
        let done =
            unsafe { (functions.rados_write_op_operate2)(op.raw, self.raw, place, null_mut(), 0) };
        if done == -libc::ECANCELED {
            return Ok(Swapped::Changed);
        }
        check("rados_write_op_operate2", object, done)?;
        Ok(Swapped::Yes)
    }

    /// Removes an object. It need not exist.
    ///
    /// # Errors
    /// [`CephError`].
    pub fn remove(&self, object: &str) -> Result<(), CephError> {
        let [c_object] = names([object])?;
        // SAFETY: a context, and a string that ends with NUL.
        let removed = unsafe { (self.functions().rados_remove)(self.raw, c_object.as_ptr()) };
        match check("rados_remove", object, removed) {
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(()),
            result => result.map(drop),
        }
    }

    /// The values of a read operation with these results.
    fn values(
        &self,
        object: &str,
        done: c_int,
        result: c_int,
        iter: *mut c_void,
    ) -> Result<Vec<(String, Vec<u8>)>, CephError> {
        let iter = Values {
            functions: self.functions(),
            raw: iter,
        };
        if done == -libc::ENOENT {
            return Ok(Vec::new());
        }
        check("rados_read_op_operate", object, done)?;
        check("rados_read_op_operate", object, result)?;
        iter.collect()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: made by `open`, and destroyed once. It counts references itself, so that calls
        // in flight and images may outlive it.
        unsafe { (self.functions().rados_ioctx_destroy)(self.raw) };
    }
}

/// Strings for C functions.
fn names<const N: usize>(texts: [&str; N]) -> Result<[CString; N], CephError> {
    if let Some(bad) = texts.iter().find(|text| text.contains('\0')) {
        return Err(CephError::Nul((*bad).to_owned()));
    }
    Ok(texts.map(|text| c_string(text).unwrap_or_default()))
}

/// The values that a read operation returned.
struct Values {
    functions: &'static Functions,
    raw: *mut c_void,
}

impl Values {
    fn collect(&self) -> Result<Vec<(String, Vec<u8>)>, CephError> {
        let mut all = Vec::new();
        if self.raw.is_null() {
            return Ok(all);
        }
        loop {
            let (mut key, mut value) = (null_mut(), null_mut());
            let (mut key_len, mut value_len) = (0, 0);
            // SAFETY: the iterator of an operation that has completed.
            let next = unsafe {
                (self.functions.rados_omap_get_next2)(
                    self.raw,
                    &raw mut key,
                    &raw mut value,
                    &raw mut key_len,
                    &raw mut value_len,
                )
            };
            check("rados_omap_get_next2", "", next)?;
            if key.is_null() {
                return Ok(all);
            }
            if value_len > LONGEST_VALUE {
                let what = format!("a value has {value_len} bytes");
                let call = "rados_omap_get_next2";
                return Err(CephError::Unexpected { call, what });
            }
            // SAFETY: both have as many bytes as returned, until the iterator ends.
            let key = unsafe { slice::from_raw_parts(key.cast::<u8>(), key_len) };
            let value = match value.is_null() {
                true => &[][..],
                // SAFETY: as above.
                false => unsafe { slice::from_raw_parts(value.cast::<u8>(), value_len) },
            };
            all.push((String::from_utf8_lossy(key).into_owned(), value.to_vec()));
        }
    }
}

impl Drop for Values {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: it is ended once.
            unsafe { (self.functions.rados_omap_get_end)(self.raw) };
        }
    }
}

macro_rules! operation {
    ($type:ident, $create:ident, $release:ident) => {
        /// An operation on an object, until it is dropped.
        struct $type {
            functions: &'static Functions,
            raw: *mut c_void,
        }

        impl $type {
            fn new(pool: &Pool) -> Result<Self, CephError> {
                let functions = pool.functions();
                // SAFETY: it has no requirements.
                let raw = unsafe { (functions.$create)() };
                if raw.is_null() {
                    return check(stringify!($create), "", -libc::ENOMEM)
                        .map(|_| unreachable!("an error"));
                }
                Ok(Self { functions, raw })
            }
        }

        impl Drop for $type {
            fn drop(&mut self) {
                // SAFETY: it is released once.
                unsafe { (self.functions.$release)(self.raw) };
            }
        }
    };
}

operation!(ReadOp, rados_create_read_op, rados_release_read_op);
operation!(WriteOp, rados_create_write_op, rados_release_write_op);

impl ReadOp {
    /// Executes it. The places of its results must still exist.
    fn run(&self, pool: &Pool, object: &CStr) -> c_int {
        // SAFETY: a context, and a string that ends with NUL. Both callers keep the places of the
        // results until this returns.
        unsafe { (self.functions.rados_read_op_operate)(self.raw, pool.raw, object.as_ptr(), 0) }
    }
}

/// Steps of a write operation. All copy their arguments.
impl WriteOp {
    fn create(&self) {
        // SAFETY: an operation that was not executed yet.
        unsafe { (self.functions.rados_write_op_create)(self.raw, CREATE_IDEMPOTENT, null()) };
    }

    /// The operation fails unless the value of `key` is `expected`. The result of this step is
    /// written to `result` when the operation is executed.
    fn compare(&self, key: &CStr, expected: &[u8], result: &mut c_int) {
        // SAFETY: an operation that was not executed yet, and bytes that are as long as passed.
        unsafe {
            (self.functions.rados_write_op_omap_cmp2)(
                self.raw,
                key.as_ptr(),
                CMP_EQUAL,
                expected.as_ptr().cast(),
                key.count_bytes(),
                expected.len(),
                result,
            );
        }
    }

    fn set(&self, key: &CStr, value: &[u8]) {
        let (keys, key_lens) = ([key.as_ptr()], [key.count_bytes()]);
        let (values, value_lens) = ([value.as_ptr().cast()], [value.len()]);
        // SAFETY: as in `compare`; the arrays have one element each.
        unsafe {
            (self.functions.rados_write_op_omap_set2)(
                self.raw,
                keys.as_ptr(),
                values.as_ptr(),
                key_lens.as_ptr(),
                value_lens.as_ptr(),
                1,
            );
        }
    }

    fn remove(&self, key: &CStr) {
        let (keys, lens) = ([key.as_ptr()], [key.count_bytes()]);
        // SAFETY: as in `set`.
        unsafe {
            (self.functions.rados_write_op_omap_rm_keys2)(
                self.raw,
                keys.as_ptr(),
                lens.as_ptr(),
                1,
            );
        }
    }
}
