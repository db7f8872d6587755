//! A thread that lets time pass on devices that nobody polls: their owners sleep until a
//! completion arrives, and work that is delayed, or to be given up, would never complete.

use std::sync::Once;
use std::thread;
use std::time::Duration;

use crate::connection;
use crate::world::{World, lock};

/// Time without a poll after which the thread lets one pass.
const INTERVAL: Duration = Duration::from_millis(1);

static STARTED: Once = Once::new();

/// Watches a device if it has work that waits for time to pass.
pub(crate) fn watch(world: &World, device: usize) {
    let waits = |device: &crate::device::Device| {
        let profile = &device.profile;
        let delayed = profile.delay > 0 || profile.read_delay > 0 || profile.local_delay > 0;
        !device.active.is_empty() && (delayed || profile.retry_polls > 0)
    };
    if world.devices.get(device).is_some_and(waits) {
        STARTED.call_once(|| {
            // Without it only sleeping owners of delayed work wait.
            let _ = thread::Builder::new()
                .name("verbs-standin".to_owned())
                .spawn(keep_ticking);
        });
    }
}

fn keep_ticking() {
    let mut seen: Vec<u64> = Vec::new();
    loop {
        thread::sleep(INTERVAL);
        let mut world = lock();
        seen.resize(world.devices.len(), 0);
        for (device, seen) in seen.iter_mut().enumerate() {
            let Some(one) = world.devices.get(device) else {
                continue;
            };
            if one.time == *seen && !one.active.is_empty() {
                connection::tick(&mut world, device);
            }
            if let Some(one) = world.devices.get(device) {
                *seen = one.time;
            }
        }
    }
}
