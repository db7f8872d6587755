//! Functions for programs that do not know the provider.

use std::ffi::{CStr, c_char};

use super::bench::{Bench, Shape};
use crate::ibverbs::ibv_get_device_name;
use crate::programs::{
    ibv_close_device, ibv_event_type_str, ibv_free_device_list, ibv_get_device_list,
    ibv_open_device, ibv_resize_cq, ibv_wc_status_str, rdma_get_dst_port, rdma_get_src_port,
};
use crate::raw::{event, ibv_device, rdma_cm_id, rdma_port_space, status};

fn text(name: *const c_char) -> String {
    // SAFETY: a string that lives as long as its device, or for ever.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().unwrap().to_owned()
}

/// The device of this name in the list of all.
fn listed(name: &str) -> Option<*mut ibv_device> {
    let mut count = 0;
    // SAFETY: a place for the number.
    let list = unsafe { ibv_get_device_list(&raw mut count) };
    let count = usize::try_from(count).unwrap();
    let entry = |index| {
        // SAFETY: one of `count` entries, or the null behind them.
        let place = unsafe { list.add(index) };
        // SAFETY: as above.
        unsafe { place.read() }
    };
    assert!(entry(count).is_null());
    // SAFETY: a device.
    let is_named = |device: &_| text(unsafe { ibv_get_device_name(*device) }) == name;
    let found = (0..count).map(entry).find(is_named);
    // SAFETY: the list.
    unsafe { ibv_free_device_list(list) };
    found
}

#[test]
fn listed_device_is_opened_until_it_is_removed() {
    let bench = Bench::new("profile=roce", Shape::default());
    let device = listed(&bench.device).unwrap();
    // SAFETY: a device of the list.
    assert_eq!(unsafe { ibv_open_device(device) }, bench.a.context);
    assert_eq!(ibv_close_device(bench.a.context), 0);
    bench.set("remove");
    assert_eq!(listed(&bench.device), None);
    // SAFETY: devices are never freed.
    assert!(unsafe { ibv_open_device(device) }.is_null());
    bench.finish();
}

#[test]
fn both_ends_of_a_connection_have_the_same_ports_and_port_space() {
    let bench = Bench::new("profile=roce", Shape::default());
    let ports = |id| {
        // SAFETY: an id of the bench.
        let own = unsafe { rdma_get_src_port(id) };
        // SAFETY: as above.
        [own, unsafe { rdma_get_dst_port(id) }]
    };
    // SAFETY: as above.
    let space = |id: *mut rdma_cm_id| unsafe { (*id).ps };
    let tcp = rdma_port_space::RDMA_PS_TCP;
    assert_eq!([bench.a.id, bench.b.id].map(space), [tcp; 2]);
    let [own, peer] = ports(bench.a.id);
    assert_ne!(own, 0);
    assert_ne!(peer, 0);
    assert_eq!(ports(bench.b.id), [peer, own]);
    bench.finish();
}

#[test]
fn numbers_have_names() {
    let flushed = text(ibv_wc_status_str(status::IBV_WC_WR_FLUSH_ERR));
    assert_eq!(flushed, "Work Request Flushed Error");
    assert_eq!(text(ibv_wc_status_str(99)), "unknown");
    assert_eq!(text(ibv_event_type_str(event::CQ_ERR)), "CQ error");
    let bench = Bench::new("profile=roce", Shape::default());
    assert_eq!(ibv_resize_cq(bench.a.cq, 64), libc::ENOSYS);
    bench.finish();
}
