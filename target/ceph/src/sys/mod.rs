//! The C interface: functions, types and constants of librados.h and librbd.h.

mod exit;
mod library;

use std::ffi::{CStr, CString};

use libc::{c_char, c_int, c_void};

pub(crate) use library::{Functions, functions};

/// `rados_t`.
pub(crate) type RadosT = *mut c_void;
/// `rados_ioctx_t`.
pub(crate) type IoCtxT = *mut c_void;
/// `rbd_image_t`.
pub(crate) type ImageT = *mut c_void;
/// `rbd_completion_t`.
pub(crate) type CompletionT = *mut c_void;
/// `rbd_callback_t`.
pub(crate) type Callback = unsafe extern "C" fn(CompletionT, *mut c_void);

/// `rbd_image_info_t`.
#[repr(C)]
pub(crate) struct ImageInfo {
    pub(crate) size: u64,
    pub(crate) obj_size: u64,
    pub(crate) num_objs: u64,
    pub(crate) order: c_int,
    pub(crate) block_name_prefix: [c_char; 24],
    pub(crate) parent_pool: i64,
    pub(crate) parent_name: [c_char; 96],
}

/// `rbd_image_watcher_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Watcher {
    pub(crate) addr: *mut c_char,
    pub(crate) id: i64,
    pub(crate) cookie: u64,
}

/// `rbd_config_option_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ConfigOption {
    pub(crate) name: *mut c_char,
    pub(crate) value: *mut c_char,
    pub(crate) source: c_int,
}

const _: () = {
    assert!(size_of::<ImageInfo>() == 160);
    assert!(size_of::<Watcher>() == 24);
    assert!(size_of::<ConfigOption>() == 24);
};

/// `RBD_LOCK_MODE_EXCLUSIVE`.
pub(crate) const LOCK_EXCLUSIVE: c_int = 0;
/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`.
pub(crate) const THICK_PROVISION: c_int = 1;
/// `LIBRADOS_CMPXATTR_OP_EQ`.
pub(crate) const CMP_EQUAL: u8 = 1;
/// `LIBRADOS_CREATE_IDEMPOTENT`.
pub(crate) const CREATE_IDEMPOTENT: c_int = 0;

/// A string for a C function. `None` if it has a NUL character.
pub(crate) fn c_string(text: &str) -> Option<CString> {
    CString::new(text).ok()
}

/// A copy of a string of a C function; empty for a null pointer.
///
/// # Safety
/// `text` is null, or a string that ends with a NUL character.
pub(crate) unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: by the contract of this function.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}
