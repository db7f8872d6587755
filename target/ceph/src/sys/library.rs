//! The C functions, looked up when they are first needed.

use std::sync::OnceLock;

use libc::{c_char, c_int, c_void, size_t, ssize_t, timespec};

use super::{
    Callback, CompletionT, ConfigOption, ImageInfo, ImageT, IoCtxT, RadosT, Watcher, exit,
};
use crate::Missing;

macro_rules! functions {
    ($($file:literal => { $($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)* })*) => {
        /// One pointer for each function.
        #[derive(Debug)]
        pub(crate) struct Functions {
            $($(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*)*
        }

        fn load() -> Result<Functions, Missing> {
            $(let library = open($file)?;
            $(let $name = {
                type Function = unsafe extern "C" fn($($argument),*) $(-> $result)?;
                let name = concat!(stringify!($name), "\0").as_bytes();
                // SAFETY: the type is that of the function in the headers of Ceph 16.2, whose
                // meaning does not change within a version of the file's name.
                let found = unsafe { library.get::<Function>(name) };
                *found.map_err(|_| Missing::Symbol { file: $file, name: stringify!($name) })?
            };)*
            // Never unloaded: the pointers are valid as long as the program runs.
            std::mem::forget(library);)*
            exit::skip_destructors();
            Ok(Functions { $($($name,)*)* })
        }
    };
}

functions! {
    "librados.so.2" => {
        rados_create2: fn(*mut RadosT, *const c_char, *const c_char, u64) -> c_int;
        rados_conf_read_file: fn(RadosT, *const c_char) -> c_int;
        rados_conf_set: fn(RadosT, *const c_char, *const c_char) -> c_int;
        rados_connect: fn(RadosT) -> c_int;
        rados_shutdown: fn(RadosT);
        rados_cluster_fsid: fn(RadosT, *mut c_char, size_t) -> c_int;
        rados_getaddrs: fn(RadosT, *mut *mut c_char) -> c_int;
        rados_buffer_free: fn(*mut c_char);
        rados_blocklist_add: fn(RadosT, *mut c_char, u32) -> c_int;
        rados_wait_for_latest_osdmap: fn(RadosT) -> c_int;
        rados_ioctx_create: fn(RadosT, *const c_char, *mut IoCtxT) -> c_int;
        rados_ioctx_destroy: fn(IoCtxT);
        rados_ioctx_set_namespace: fn(IoCtxT, *const c_char);
        rados_set_pool_full_try: fn(IoCtxT);
        rados_create_write_op: fn() -> *mut c_void;
        rados_release_write_op: fn(*mut c_void);
        rados_write_op_create: fn(*mut c_void, c_int, *const c_char);
        rados_write_op_omap_cmp2:
            fn(*mut c_void, *const c_char, u8, *const c_char, size_t, size_t, *mut c_int);
        rados_write_op_omap_set2:
            fn(*mut c_void, *const *const c_char, *const *const c_char, *const size_t,
               *const size_t, size_t);
        rados_write_op_omap_rm_keys2:
            fn(*mut c_void, *const *const c_char, *const size_t, size_t);
        rados_write_op_operate2:
            fn(*mut c_void, IoCtxT, *const c_char, *mut timespec, c_int) -> c_int;
        rados_create_read_op: fn() -> *mut c_void;
        rados_release_read_op: fn(*mut c_void);
        rados_read_op_omap_get_vals2:
            fn(*mut c_void, *const c_char, *const c_char, u64, *mut *mut c_void, *mut u8,
               *mut c_int);
        rados_read_op_omap_get_vals_by_keys2:
            fn(*mut c_void, *const *const c_char, size_t, *const size_t, *mut *mut c_void,
               *mut c_int);
        rados_read_op_operate: fn(*mut c_void, IoCtxT, *const c_char, c_int) -> c_int;
        rados_omap_get_next2:
            fn(*mut c_void, *mut *mut c_char, *mut *mut c_char, *mut size_t, *mut size_t)
                -> c_int;
        rados_omap_get_end: fn(*mut c_void);
        rados_remove: fn(IoCtxT, *const c_char) -> c_int;
    }
    "librbd.so.1" => {
        rbd_open: fn(IoCtxT, *const c_char, *mut ImageT, *const c_char) -> c_int;
        rbd_open_read_only: fn(IoCtxT, *const c_char, *mut ImageT, *const c_char) -> c_int;
        rbd_close: fn(ImageT) -> c_int;
        rbd_stat: fn(ImageT, *mut ImageInfo, size_t) -> c_int;
        rbd_read: fn(ImageT, u64, size_t, *mut c_char) -> ssize_t;
        rbd_get_size: fn(ImageT, *mut u64) -> c_int;
        rbd_get_features: fn(ImageT, *mut u64) -> c_int;
        rbd_get_stripe_unit: fn(ImageT, *mut u64) -> c_int;
        rbd_get_parent_info:
            fn(ImageT, *mut c_char, size_t, *mut c_char, size_t, *mut c_char, size_t) -> c_int;
        rbd_metadata_get: fn(ImageT, *const c_char, *mut c_char, *mut size_t) -> c_int;
        rbd_metadata_set: fn(ImageT, *const c_char, *const c_char) -> c_int;
        rbd_config_image_list: fn(ImageT, *mut ConfigOption, *mut c_int) -> c_int;
        rbd_config_image_list_cleanup: fn(*mut ConfigOption, c_int);
        rbd_lock_acquire: fn(ImageT, c_int) -> c_int;
        rbd_lock_release: fn(ImageT) -> c_int;
        rbd_lock_break: fn(ImageT, c_int, *const c_char) -> c_int;
        rbd_lock_get_owners: fn(ImageT, *mut c_int, *mut *mut c_char, *mut size_t) -> c_int;
        rbd_lock_get_owners_cleanup: fn(*mut *mut c_char, size_t);
        rbd_is_exclusive_lock_owner: fn(ImageT, *mut c_int) -> c_int;
        rbd_watchers_list: fn(ImageT, *mut Watcher, *mut size_t) -> c_int;
        rbd_watchers_list_cleanup: fn(*mut Watcher, size_t);
        rbd_aio_create_completion: fn(*mut c_void, Callback, *mut CompletionT) -> c_int;
        rbd_aio_get_return_value: fn(CompletionT) -> ssize_t;
        rbd_aio_release: fn(CompletionT);
        rbd_aio_read: fn(ImageT, u64, size_t, *mut c_char, CompletionT) -> c_int;
        rbd_aio_write: fn(ImageT, u64, size_t, *const c_char, CompletionT) -> c_int;
        rbd_aio_write_zeroes: fn(ImageT, u64, size_t, CompletionT, c_int, c_int) -> c_int;
        rbd_aio_flush: fn(ImageT, CompletionT) -> c_int;
    }
}

fn open(file: &'static str) -> Result<libloading::Library, Missing> {
    // SAFETY: loading runs the initializers of the library, which every program that links it
    // runs at its start.
    let library = unsafe { libloading::Library::new(file) };
    library.map_err(|error| {
        // The message of the loader is behind the name of the file.
        let why = std::error::Error::source(&error);
        let text = why.map_or_else(|| error.to_string(), ToString::to_string);
        Missing::Library { file, text }
    })
}

/// The functions, loaded by the first call. A failure is permanent.
pub(crate) fn functions() -> Result<&'static Functions, Missing> {
    static LOADED: OnceLock<Result<Functions, Missing>> = OnceLock::new();
    LOADED.get_or_init(load).as_ref().map_err(Clone::clone)
}
