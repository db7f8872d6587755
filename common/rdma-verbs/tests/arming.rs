//! An owner of a completion queue that sleeps while the queue is empty, in every order of its
//! steps and those of the device (loom). It must not sleep when no event can wake it any more.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../src/arming.rs"]
mod arming;

use arming::Arming;
use loom::sync::{Arc, Mutex};
use loom::thread;

/// What an owner does wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// It does not arm.
    NoArm,
    /// It does not poll after arming.
    NoPoll,
    /// It takes completions and events, and believes that the queue is still armed.
    StillArmed,
}

/// The queue of a device, and the events in its channel.
#[derive(Default)]
struct Queue {
    completions: u32,
    armed: bool,
    events: u32,
    /// Completions that the device will add.
    left: u32,
}

struct Device(Mutex<Queue>);

impl Device {
    fn complete(&self) {
        let mut queue = self.0.lock().unwrap();
        queue.completions += 1;
        queue.left -= 1;
        queue.events += u32::from(std::mem::take(&mut queue.armed));
    }

    /// `ibv_poll_cq` until it returns nothing.
    fn poll(&self) -> u32 {
        std::mem::take(&mut self.0.lock().unwrap().completions)
    }

    /// `ibv_req_notify_cq`
    fn arm(&self) {
        self.0.lock().unwrap().armed = true;
    }

    /// Takes the events of the channel; returns whether there were any.
    fn take_events(&self) -> bool {
        std::mem::take(&mut self.0.lock().unwrap().events) > 0
    }

    fn sleep(&self) {
        loop {
            let queue = self.0.lock().unwrap();
            if queue.events > 0 {
                return;
            }
            assert!(queue.left > 0, "the owner sleeps for ever");
            drop(queue);
            thread::yield_now();
        }
    }
}

/// Completions of the device.
const COUNT: u32 = 3;

/// The owner, in the order of `Verbs`: a poll takes completions, and looks at the channel now
/// and then. Before a sleep everything is armed, and polled once more.
fn own(device: &Device, looks_first: bool, mistake: Mistake) {
    let mut arming = Arming::default();
    let mut taken = 0;
    let mut looks = looks_first;
    let reap = |arming: &mut Arming, taken: &mut u32| {
        let count = device.poll();
        *taken += count;
        if count > 0 && mistake != Mistake::StillArmed {
            arming.used();
        }
        count > 0
    };
    while taken < COUNT {
        if looks && device.take_events() && mistake != Mistake::StillArmed {
            arming.used();
        }
        looks = true;
        if reap(&mut arming, &mut taken) {
            continue;
        }
        if arming.arm() {
            if mistake != Mistake::NoArm {
                device.arm();
            }
            if mistake != Mistake::NoPoll && reap(&mut arming, &mut taken) {
                continue;
            }
        }
        device.sleep();
    }
}

fn run(mistake: Mistake) {
    for looks_first in [false, true] {
        loom::model(move || {
            let queue = Queue {
                left: COUNT,
                ..Queue::default()
            };
            let device = Arc::new(Device(Mutex::new(queue)));
            let of_thread = Arc::clone(&device);
            let thread = thread::spawn(move || (0..COUNT).for_each(|_| of_thread.complete()));
            own(&device, looks_first, mistake);
            thread.join().unwrap();
        });
    }
}

#[test]
fn owner_of_armed_queue_takes_every_completion() {
    run(Mistake::None);
}

#[test]
#[should_panic(expected = "the owner sleeps for ever")]
fn owner_that_does_not_arm_sleeps_for_ever() {
    run(Mistake::NoArm);
}

#[test]
#[should_panic(expected = "the owner sleeps for ever")]
fn owner_that_does_not_poll_after_arming_sleeps_for_ever() {
    run(Mistake::NoPoll);
}

#[test]
#[should_panic(expected = "the owner sleeps for ever")]
fn owner_that_does_not_arm_again_sleeps_for_ever() {
    run(Mistake::StillArmed);
}
