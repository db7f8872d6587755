//! The C functions, looked up when they are first needed, so that the program starts on
//! machines without rdma-core and can report what is missing.
//!
//! Work requests are posted and completions polled through pointers that the
//! libraries put into their own structures: those calls need no symbol.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::OnceLock;

use libc::{c_char, c_int, c_uint, c_void, sockaddr};

use super::raw::{
    AsyncEvent, ibv_comp_channel, ibv_context, ibv_cq, ibv_device_attr, ibv_mr, ibv_pd,
    ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_srq, ibv_srq_init_attr,
    rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel,
};

/// Why the functions are missing.
#[derive(Clone, Debug)]
pub(crate) enum Missing {
    /// A library cannot be loaded.
    Library { file: &'static str, text: String },
    /// A library lacks a function.
    Symbol {
        file: &'static str,
        name: &'static str,
    },
}

macro_rules! functions {
    ($($file:literal => { $($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)* })*) => {
        /// One pointer for each function.
        #[derive(Debug)]
        pub(super) struct Functions {
            /// They are not those of rdma-core: see [`STAND_IN`].
            pub(super) stand_in: bool,
            /// `ibv_reg_mr_iova2`, which rdma-core has since version 28.
            pub(super) register_relaxed: Option<RegisterRelaxed>,
            $($(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*)*
        }

        fn load() -> Result<Functions, Missing> {
            let mut stand_in = false;
            let mut register_relaxed = None;
            // Checks for every function, in the order of the files.
            $(let library = open($file)?;
            $(let $name = {
                type Function = unsafe extern "C" fn($($argument),*) $(-> $result)?;
                let name = concat!(stringify!($name), "\0");
                let found = library.find(name);
                let missing = Missing::Symbol { file: $file, name: stringify!($name) };
                let found = found.ok_or(missing)?.as_ptr();
                // SAFETY: the type is that of the function in the headers of
                // rdma-core, whose meaning does not change within a version
                // of the file's name.
                unsafe { std::mem::transmute::<*mut c_void, Function>(found) }
            };)*
            stand_in |= library.find(STAND_IN).is_some();
            register_relaxed = register_relaxed.or_else(|| {
                let found = library.find(REGISTER_RELAXED)?.as_ptr();
                // SAFETY: as above.
                Some(unsafe { std::mem::transmute::<*mut c_void, RegisterRelaxed>(found) })
            });
            // Never unloaded: the pointers are valid as long as the program runs.
            std::mem::forget(library);)*
            Ok(Functions { stand_in, register_relaxed, $($($name,)*)* })
        }
    };
}

functions! {
    "libibverbs.so.1" => {
        ibv_get_device_name: fn(*mut c_void) -> *const c_char;
        ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        ibv_get_async_event: fn(*mut ibv_context, *mut AsyncEvent) -> c_int;
        ibv_ack_async_event: fn(*mut AsyncEvent);
        ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
        ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int;
        ibv_reg_mr_iova: fn(*mut ibv_pd, *mut c_void, usize, u64, c_int) -> *mut ibv_mr;
        ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
        ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel;
        ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int;
        ibv_create_cq:
            fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
        ibv_get_cq_event:
            fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events: fn(*mut ibv_cq, c_uint);
        ibv_create_srq: fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
        ibv_destroy_srq: fn(*mut ibv_srq) -> c_int;
        ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        ibv_query_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    }
    "librdmacm.so.1" => {
        rdma_get_devices: fn(*mut c_int) -> *mut *mut ibv_context;
        rdma_free_devices: fn(*mut *mut ibv_context);
        rdma_create_event_channel: fn() -> *mut rdma_event_channel;
        rdma_destroy_event_channel: fn(*mut rdma_event_channel);
        rdma_get_cm_event: fn(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        rdma_ack_cm_event: fn(*mut rdma_cm_event) -> c_int;
        rdma_create_id:
            fn(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_uint) -> c_int;
        rdma_destroy_id: fn(*mut rdma_cm_id) -> c_int;
        rdma_bind_addr: fn(*mut rdma_cm_id, *mut sockaddr) -> c_int;
        rdma_listen: fn(*mut rdma_cm_id, c_int) -> c_int;
        rdma_resolve_addr: fn(*mut rdma_cm_id, *mut sockaddr, *mut sockaddr, c_int) -> c_int;
        rdma_resolve_route: fn(*mut rdma_cm_id, c_int) -> c_int;
        rdma_create_qp: fn(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
        rdma_destroy_qp: fn(*mut rdma_cm_id);
        rdma_connect: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        rdma_accept: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        rdma_reject: fn(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        rdma_disconnect: fn(*mut rdma_cm_id) -> c_int;
        rdma_notify: fn(*mut rdma_cm_id, c_int) -> c_int;
        rdma_migrate_id: fn(*mut rdma_cm_id, *mut rdma_event_channel) -> c_int;
        rdma_set_option: fn(*mut rdma_cm_id, c_int, c_int, *mut c_void, usize) -> c_int;
    }
}

/// A symbol of libraries that replace those of rdma-core in tests. Their devices do not exist
/// for the kernel.
const STAND_IN: &str = "nvmeof_standin\0";

type RegisterRelaxed =
    unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;

const REGISTER_RELAXED: &str = "ibv_reg_mr_iova2\0";

/// Finds a function by its name.
pub type Lookup = fn(&CStr) -> Option<NonNull<c_void>>;

static PROVIDED: OnceLock<Lookup> = OnceLock::new();
static LOADED: OnceLock<Result<Functions, Missing>> = OnceLock::new();

/// Makes this process use other functions than those of the system's libraries. For tests that
/// link a replacement; whole processes can be given other libraries with `LD_LIBRARY_PATH`.
/// Returns whether they will be used: not if the libraries are loaded already.
///
/// # Safety
/// Each function that `lookup` returns has the type and the contract of the one in rdma-core
/// with the same name.
pub unsafe fn provide_functions(lookup: Lookup) -> bool {
    LOADED.get().is_none() && PROVIDED.set(lookup).is_ok()
}

/// Where functions are looked up.
enum Library {
    Loaded(libloading::Library),
    Provided(Lookup),
}

impl Library {
    /// The address of a symbol, whose name ends with a zero.
    fn find(&self, name: &str) -> Option<NonNull<c_void>> {
        match self {
            Self::Loaded(library) => {
                // SAFETY: only the address is used.
                let found = unsafe { library.get::<*mut c_void>(name.as_bytes()) };
                NonNull::new(*found.ok()?)
            }
            Self::Provided(lookup) => lookup(CStr::from_bytes_with_nul(name.as_bytes()).ok()?),
        }
    }
}

fn open(file: &'static str) -> Result<Library, Missing> {
    if let Some(lookup) = PROVIDED.get() {
        return Ok(Library::Provided(*lookup));
    }
    // SAFETY: loading runs the initialisers of rdma-core's libraries, which
    // every program that links them runs at its start.
    let library = unsafe { libloading::Library::new(file) };
    library.map(Library::Loaded).map_err(|error| {
        // The message of the loader is behind the name of the file.
        let why = std::error::Error::source(&error);
        let text = why.map_or_else(|| error.to_string(), ToString::to_string);
        Missing::Library { file, text }
    })
}

/// The functions, loaded by the first call. A failure is permanent.
pub(super) fn functions() -> Result<&'static Functions, Missing> {
    LOADED.get_or_init(load).as_ref().map_err(Clone::clone)
}
