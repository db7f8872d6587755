//! Ports with providers that no port had when the target started.

use nvmeof_rdma::ListenerId;

use super::puppet::{LONG, Puppet, SHORT, manager};
use super::*;
use crate::ports::{ProviderFactory, Providers};
use nvmeof_target_config::ProviderName;
use nvmeof_target_engine::{Mailbox, Order};

/// The usual configuration with one more port over `provider`.
fn with_port(folder: &Path, provider: &str) -> String {
    let head = format!("[shm]\nfolder = {folder:?}\n");
    let port = format!("[[port]]\ntraddr = \"127.0.0.2\"\ntrsvcid = 0\nprovider = {provider}\n");
    head + &text(&[(1, "ram:1M")]) + &port
}

fn without_port(folder: &Path) -> String {
    let text = with_port(folder, "[]");
    text[..text.rfind("[[port]]").unwrap()].to_owned()
}

/// The providers of each port.
fn served(manager: &Manager) -> Vec<String> {
    let ports = manager.ports();
    ports.iter().map(Port::provider_names).collect()
}

#[test]
fn added_port_may_use_a_new_provider() {
    let folder = tempfile::tempdir().unwrap();
    let sockets = || std::fs::read_dir(folder.path()).unwrap().count();
    let before = parse(&without_port(folder.path()));
    let server = Server::start(&before).unwrap();
    let manager = Arc::clone(server.manager());
    let providers = || manager.reactors.providers.names();
    let next = parse(&with_port(folder.path(), "[\"iwarp\", \"shm\"]"));
    let plan = manager.plan(&next).unwrap();
    assert_eq!(plan.changes.len(), 1, "{:?}", plan.changes);
    // A plan leaves nothing open.
    assert_eq!(providers(), [ProviderName::Iwarp]);
    assert_eq!(sockets(), 0);
    for _ in 0..2 {
        let _ = manager.apply(&next).unwrap();
        assert_eq!(served(&manager), ["iwarp", "iwarp, shm"]);
        assert_eq!(providers(), [ProviderName::Iwarp, ProviderName::Shm]);
        assert!(sockets() > 0);
        // It stays when its port is removed, and the next port uses it.
        let _ = manager.apply(&before).unwrap();
        assert_eq!(served(&manager), ["iwarp"]);
        assert_eq!(sockets(), 0);
    }
    server.stop();
    server.join().unwrap();
}

/// A device that supports iWARP needs the TCP port, so it must listen before software iWARP.
#[test]
fn later_provider_listens_in_provider_order() {
    let names = vec![ProviderName::Iwarp, ProviderName::Shm, ProviderName::Verbs];
    let means = ProviderFactory::new(0, 0);
    let reactors = Reactors::new([].into(), Providers::new(names), means, Vec::new());
    let numbered: Vec<_> = reactors.numbered().collect();
    let verbs = (2, ProviderName::Verbs);
    assert_eq!(
        numbered,
        [verbs, (0, ProviderName::Iwarp), (1, ProviderName::Shm)]
    );
}

/// `auto` does not name it, and would use it for this port at the start of a target.
#[test]
fn auto_selects_the_same_providers_at_run_time() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&parse(&without_port(folder.path()))).unwrap();
    let manager = Arc::clone(server.manager());
    let next = parse(&with_port(folder.path(), "\"auto\""));
    let _ = manager.apply(&next).unwrap();
    assert_eq!(served(&manager), ["iwarp", "iwarp, shm"]);
    server.stop();
    server.join().unwrap();
}

/// Carries out the orders of a manager of one reactor; `adds`: whether it accepts a provider.
fn puppet(mailbox: Mailbox, adds: bool) -> Puppet {
    let mut kept = Vec::new();
    Puppet::new(mailbox, move |order| match order {
        Order::Add { provider, reply } if adds => {
            kept.push(provider);
            let _ = reply.send(());
        }
        Order::Add { reply, .. } => drop(reply),
        Order::Listen { reply, .. } => {
            let _ = reply.send(Ok((ListenerId(1), "127.0.0.2:4420".parse().unwrap())));
        }
        Order::Open { reply, .. } => reply.send(Ok(())).unwrap(),
        _ => {}
    })
}

#[test]
fn provider_not_accepted_by_a_reactor_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let before = with_one_reactor(&without_port(folder.path()));
    let next = with_one_reactor(&with_port(folder.path(), "\"shm\""));
    let (manager, mailbox) = manager(&before, SHORT);
    let unresponsive = puppet(mailbox.clone(), false);
    let error = manager.apply(&parse(&next)).unwrap_err().to_string();
    let line = next
        .lines()
        .position(|line| line.contains("= \"shm\""))
        .unwrap()
        + 1;
    assert!(
        error.starts_with(&format!("target.toml:{line}: provider: shm: ")),
        "{error}"
    );
    assert!(error.contains("a reactor did not respond"), "{error}");
    assert_eq!(manager.reactors.providers.names(), [ProviderName::Iwarp]);
    assert_eq!(served(&manager), ["iwarp"]);
    drop(unresponsive);
    // Its descriptors are available for the next attempt.
    let _takes = puppet(mailbox, true);
    let _ = manager.apply(&parse(&next)).unwrap();
    assert_eq!(served(&manager), ["iwarp", "shm"]);
}

#[test]
fn provider_without_descriptors_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let one = |text: String| parse(&with_one_reactor(&text));
    let before = with_one_reactor(&without_port(folder.path()));
    let (manager, mailbox) = manager(&before, LONG);
    let _takes = puppet(mailbox, true);
    manager.reactors.means.lock().unwrap().files = 1;
    let named = one(with_port(folder.path(), "\"shm\""));
    let error = manager.plan(&named).map(drop).unwrap_err().to_string();
    assert!(
        error.contains("provider: shm: the providers in use"),
        "{error}"
    );
    // If it is optional, the port is served without it.
    let auto = one(with_port(folder.path(), "\"auto\""));
    let _ = manager.apply(&auto).unwrap();
    assert_eq!(served(&manager), ["iwarp", "iwarp"]);
}
