//! A manager with a fake reactor that a test controls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::*;
use crate::open::open_present;
use crate::ports::{self, ProviderFactory, Providers};
use nvmeof_target_config::ProviderName;
use nvmeof_target_engine::{Mailbox, Order};

/// Time limit for a reply that arrives.
pub(super) const LONG: Duration = Duration::from_secs(120);
/// Time limit for a reply that does not arrive, while others come from a slow thread.
pub(super) const SHORT: Duration = Duration::from_secs(5);

/// The fake reactor, which carries out orders until it is dropped.
pub(super) struct Puppet {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// A manager of a target with that configuration. Its only reactor owns the mailbox, and counts
/// as unresponsive if it does not reply within `timeout`.
pub(super) fn manager(text: &str, timeout: Duration) -> (Arc<Manager>, Mailbox) {
    let config = parse(text);
    let ports = ports::plan(&config).unwrap();
    let specs: Vec<_> = ports.iter().map(Port::to_spec).collect();
    let known = Remembered::default();
    let present = open_present(&config).unwrap();
    let pool = Pool::new(&config, present, &known, Arc::default()).unwrap();
    let target = Target::new(
        model_of(
            &config,
            pool.served(),
            &specs,
            pool.held(),
            config.authentication().unwrap(),
        )
        .unwrap(),
    );
    let mailbox = Mailbox::new().unwrap();
    let mailboxes: Arc<[Mailbox]> = [mailbox.clone()].into();
    let means = ProviderFactory::new(1, 64);
    let providers = Providers::new(vec![ProviderName::Iwarp]);
    let reactors = Reactors::new(mailboxes, providers, means, vec![Vec::new()]);
    let reactors = reactors.with_timeout(timeout);
    let manager = Manager::new(target, reactors, &config, ports, pool, known);
    (Arc::new(manager), mailbox)
}

impl Puppet {
    /// Calls `act` for each order of the manager.
    pub(super) fn new(mailbox: Mailbox, mut act: impl FnMut(Order) + Send + 'static) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let has_ended = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            while !has_ended.load(Ordering::Acquire) {
                mailbox.take_orders().into_iter().for_each(&mut act);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Self {
            ended,
            thread: Some(thread),
        }
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}
