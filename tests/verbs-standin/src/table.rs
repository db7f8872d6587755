//! The exported functions by name, for programs that link this crate.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::Once;

use crate::{control, ibverbs, rdmacm};

macro_rules! find {
    ($name:expr, $($module:ident { $($function:ident)* })*) => {
        match $name {
            $($(stringify!($function) => {
                NonNull::new($module::$function as *mut c_void)
            })*)*
            "nvmeof_standin" => {
                let marker: *const _ = &raw const control::nvmeof_standin;
                NonNull::new(marker.cast_mut().cast())
            }
            _ => None,
        }
    };
}

fn lookup(name: &CStr) -> Option<NonNull<c_void>> {
    find!(name.to_str().ok()?,
        ibverbs {
            ibv_get_device_name ibv_query_device ibv_query_port ibv_get_async_event
            ibv_ack_async_event ibv_alloc_pd ibv_dealloc_pd ibv_reg_mr_iova ibv_reg_mr
            ibv_reg_mr_iova2 ibv_dereg_mr ibv_create_comp_channel ibv_destroy_comp_channel
            ibv_create_cq ibv_destroy_cq ibv_get_cq_event ibv_ack_cq_events ibv_create_srq
            ibv_destroy_srq ibv_modify_qp ibv_query_qp
        }
        rdmacm {
            rdma_get_devices rdma_free_devices rdma_create_event_channel
            rdma_destroy_event_channel rdma_get_cm_event rdma_ack_cm_event rdma_create_id
            rdma_destroy_id rdma_bind_addr rdma_listen rdma_resolve_addr rdma_resolve_route
            rdma_create_qp rdma_destroy_qp rdma_connect rdma_accept rdma_reject
            rdma_disconnect rdma_notify rdma_migrate_id rdma_set_option
        }
    )
}

/// Makes the provider of this process use this crate instead of the system's libraries.
///
/// # Panics
/// If the provider has loaded those already.
pub fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: each function has the type of the one in rdma-core with its name, which the
        // tests of this crate check by using all of them.
        let provided = unsafe { nvmeof_rdma_verbs::provide_functions(lookup) };
        assert!(provided, "libibverbs or librdmacm is in use already");
    });
}
