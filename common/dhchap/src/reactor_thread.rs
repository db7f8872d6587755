//! Marks threads that must not exponentiate: those of reactors.

use std::cell::Cell;

thread_local! {
    static IS_REACTOR: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as one that serves others. In a debug build, an exponentiation on it panics:
/// it would delay all of them by up to tens of milliseconds.
pub fn mark_reactor_thread() {
    IS_REACTOR.set(true);
}

/// An exponentiation begins.
pub(crate) fn check() {
    debug_assert!(
        !IS_REACTOR.get(),
        "exponentiation on the thread of a reactor"
    );
}

#[cfg(test)]
mod tests {
    use nvmeof_wire::auth::GroupId;

    use super::*;
    use crate::{Exchange, SystemRandom};

    #[test]
    #[cfg(debug_assertions)]
    fn exponentiation_on_reactor_thread_panics() {
        let generate = || Exchange::generate(GroupId::FFDHE2048, &mut SystemRandom).map(drop);
        let thread = std::thread::spawn(move || {
            mark_reactor_thread();
            generate()
        });
        assert!(thread.join().is_err());
        assert!(generate().is_ok(), "the mark is that of one thread");
    }

    #[test]
    #[cfg(debug_assertions)]
    fn agreement_on_reactor_thread_panics() {
        let exchange = Exchange::generate(GroupId::FFDHE2048, &mut SystemRandom).unwrap();
        let public = exchange.public().to_vec();
        let thread = std::thread::spawn(move || {
            mark_reactor_thread();
            exchange.agree(&public).map(drop)
        });
        assert!(thread.join().is_err());
    }
}
