//! All queues of a controller end with its admin queue.

use super::*;

#[test]
fn io_calls_end_with_the_association_when_keep_alive_fails() {
    let mut world = World::new(9);
    world.options.keep_alive = Duration::from_secs(4);
    let mut admin = world.ready_admin();
    let mut queues = [1, 2].map(|_| world.ready_io(&admin, 8));
    for queue in &mut queues {
        queue.join(admin.association());
    }
    world.target.manners.silent = true;
    let submitted = world.net.now();
    for (user, queue) in (0..).zip(&mut queues) {
        let buf = world.buf(BLOCK);
        let read = run(Operation::Read, 0, 1);
        queue.submit(read, Some(buf), user, submitted).unwrap();
    }
    // The whole target stalls.
    world.alive = false;
    let (mut done, mut none) = (Vec::new(), Vec::new());
    while done.len() < 2 {
        while admin.poll(world.net.now(), &mut none) {}
        let mut deadline = admin.next_deadline();
        for queue in &mut queues {
            while queue.poll(world.net.now(), &mut done) {}
            deadline = deadline.into_iter().chain(queue.next_deadline()).min();
        }
        world.poll_once(deadline);
        let waited = world.net.now() - submitted;
        assert!(waited < Duration::from_secs(9), "{waited:?}: {done:?}");
    }
    done.sort_by_key(|call| call.user);
    for (user, call) in (0..).zip(&done) {
        assert_eq!(
            (call.user, call.buf.as_ref().map(|buf| buf.len())),
            (user, Some(BLOCK))
        );
        assert!(matches!(cause(&call.result), LostCause::KeepAlive { .. }));
        let text = call.result.as_ref().unwrap_err().to_string();
        assert!(
            text.starts_with(
                "controller 1 at 10.0.0.1:4420 did not complete Keep Alive within 4 s"
            ),
            "{text}"
        );
    }
    for queue in &mut queues {
        let now = world.net.now();
        let refused = queue.submit(run(Operation::Read, 0, 1), Some(world.buf(BLOCK)), 9, now);
        assert!(matches!(
            refused.unwrap_err().why,
            SubmitError::NotConnected(_)
        ));
    }
}

#[test]
fn keep_alive_is_sent_and_its_time_out_ends_the_controller() {
    let mut world = World::new(9);
    let mut admin = world.ready_admin();
    let mut done = Vec::new();
    let start = world.net.now();
    while world.net.now() < start + Duration::from_secs(60) {
        while admin.poll(world.net.now(), &mut done) {}
        world.poll_once(admin.next_deadline());
    }
    assert!(admin.error().is_none());
    world.target.manners.deaf = true;
    while !admin.is_closed() {
        while admin.poll(world.net.now(), &mut done) {}
        world.poll_once(admin.next_deadline());
    }
    let error = admin.error().unwrap().to_string();
    assert!(error.contains("did not complete Keep Alive"), "{error}");
    assert!(world.net.now() < start + Duration::from_secs(60 + 10));
}
