//! Declarations of the C headers: the only file that uses `rdma-sys`, and declarations that
//! are missing or wrong in that crate.

pub(super) use rdma_sys::{
    bind_mw_t, ibv_access_flags, ibv_comp_channel, ibv_context, ibv_context_ops, ibv_cq,
    ibv_device, ibv_device_attr, ibv_device_cap_flags, ibv_mr, ibv_mw, ibv_mw_bind_info,
    ibv_mw_type, ibv_pd, ibv_poll_cq, ibv_port_attr, ibv_port_state, ibv_post_recv, ibv_post_send,
    ibv_post_srq_recv, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr,
    ibv_qp_state, ibv_qp_type, ibv_recv_wr, ibv_req_notify_cq, ibv_send_flags, ibv_send_wr,
    ibv_sge, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_transport_type, ibv_wc, ibv_wc_flags,
    ibv_wr_opcode, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param,
    rdma_event_channel, rdma_port_space, rdma_t,
};

/// `IBV_LINK_LAYER_ETHERNET`, an anonymous enum in C.
pub(super) const LINK_LAYER_ETHERNET: u8 = 2;

/// `IBV_ACCESS_RELAXED_ORDERING`: "Allow system to reorder accesses to the MR to improve
/// performance" (`ibv_reg_mr(3)`). Kernels that do not know it get requests without it only
/// from `ibv_reg_mr_iova2`.
pub(super) const ACCESS_RELAXED_ORDERING: libc::c_uint = 1 << 20;

/// `RDMA_OPTION_ID`.
pub(super) const OPTION_ID: libc::c_int = 0;
/// `RDMA_OPTION_ID_TOS`, one byte.
pub(super) const OPTION_ID_TOS: libc::c_int = 0;
/// `RDMA_OPTION_ID_AFONLY`, an int.
pub(super) const OPTION_ID_AFONLY: libc::c_int = 2;
/// `RDMA_OPTION_ID_REUSEADDR`, an int.
pub(super) const OPTION_ID_REUSEADDR: libc::c_int = 1;
/// `RDMA_OPTION_ID_ACK_TIMEOUT`, one byte.
pub(super) const OPTION_ID_ACK_TIMEOUT: libc::c_int = 3;

/// `struct ibv_async_event` with the event as a number: `rdma-sys` has a Rust
/// enum there, and a kernel may send what that does not name.
#[repr(C)]
pub(super) struct AsyncEvent {
    pub(super) element: AsyncElement,
    pub(super) event: libc::c_int,
}

/// What an asynchronous event is about.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union AsyncElement {
    pub(super) qp: *mut ibv_qp,
    pub(super) cq: *mut ibv_cq,
    pub(super) port: libc::c_int,
    pub(super) srq: *mut ibv_srq,
}

const _: () = {
    assert!(size_of::<AsyncEvent>() == size_of::<rdma_sys::ibv_async_event>());
    assert!(size_of::<AsyncElement>() == size_of::<rdma_sys::ibv_async_event_element_t>());
};

/// `enum ibv_event_type`, as numbers.
pub(crate) mod event {
    use rdma_sys::ibv_event_type;

    pub(crate) const CQ_ERR: i32 = ibv_event_type::IBV_EVENT_CQ_ERR as i32;
    pub(crate) const QP_FATAL: i32 = ibv_event_type::IBV_EVENT_QP_FATAL as i32;
    pub(crate) const QP_REQ_ERR: i32 = ibv_event_type::IBV_EVENT_QP_REQ_ERR as i32;
    pub(crate) const QP_ACCESS_ERR: i32 = ibv_event_type::IBV_EVENT_QP_ACCESS_ERR as i32;
    pub(crate) const COMM_EST: i32 = ibv_event_type::IBV_EVENT_COMM_EST as i32;
    pub(crate) const SQ_DRAINED: i32 = ibv_event_type::IBV_EVENT_SQ_DRAINED as i32;
    pub(crate) const PATH_MIG: i32 = ibv_event_type::IBV_EVENT_PATH_MIG as i32;
    pub(crate) const PATH_MIG_ERR: i32 = ibv_event_type::IBV_EVENT_PATH_MIG_ERR as i32;
    pub(crate) const SRQ_ERR: i32 = ibv_event_type::IBV_EVENT_SRQ_ERR as i32;
    pub(crate) const DEVICE_FATAL: i32 = ibv_event_type::IBV_EVENT_DEVICE_FATAL as i32;
    pub(crate) const PORT_ACTIVE: i32 = ibv_event_type::IBV_EVENT_PORT_ACTIVE as i32;
    pub(crate) const PORT_ERR: i32 = ibv_event_type::IBV_EVENT_PORT_ERR as i32;
    pub(crate) const LAST_WQE: i32 = ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED as i32;
}

/// `enum ibv_wc_status`, as numbers.
pub(crate) mod status {
    use rdma_sys::ibv_wc_status as raw;

    pub(crate) const SUCCESS: u32 = raw::IBV_WC_SUCCESS;
    pub(crate) const LOC_LEN: u32 = raw::IBV_WC_LOC_LEN_ERR;
    pub(crate) const LOC_QP_OP: u32 = raw::IBV_WC_LOC_QP_OP_ERR;
    pub(crate) const LOC_PROT: u32 = raw::IBV_WC_LOC_PROT_ERR;
    pub(crate) const FLUSH: u32 = raw::IBV_WC_WR_FLUSH_ERR;
    pub(crate) const MW_BIND: u32 = raw::IBV_WC_MW_BIND_ERR;
    pub(crate) const BAD_RESP: u32 = raw::IBV_WC_BAD_RESP_ERR;
    pub(crate) const LOC_ACCESS: u32 = raw::IBV_WC_LOC_ACCESS_ERR;
    pub(crate) const REM_INV_REQ: u32 = raw::IBV_WC_REM_INV_REQ_ERR;
    pub(crate) const REM_ACCESS: u32 = raw::IBV_WC_REM_ACCESS_ERR;
    pub(crate) const REM_OP: u32 = raw::IBV_WC_REM_OP_ERR;
    pub(crate) const RETRY: u32 = raw::IBV_WC_RETRY_EXC_ERR;
    pub(crate) const RNR_RETRY: u32 = raw::IBV_WC_RNR_RETRY_EXC_ERR;
    pub(crate) const REM_ABORT: u32 = raw::IBV_WC_REM_ABORT_ERR;
    pub(crate) const FATAL: u32 = raw::IBV_WC_FATAL_ERR;
    pub(crate) const RESP_TIMEOUT: u32 = raw::IBV_WC_RESP_TIMEOUT_ERR;
    pub(crate) const GENERAL: u32 = raw::IBV_WC_GENERAL_ERR;
}
