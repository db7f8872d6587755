//! Many concurrent changes.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use tokio::time::sleep;

use super::*;
use nvmeof_atomic_file::{Files, ReadAccess, Real};

/// A file system that counts saves, and stalls while `stalls` is set.
#[derive(Clone, Debug, Default)]
struct Counting {
    saves: Arc<AtomicUsize>,
    stalls: Arc<AtomicBool>,
    entered: Arc<AtomicBool>,
}

impl Files for Counting {
    fn write(&self, path: &Path, bytes: &[u8], old: &Path, readers: ReadAccess) -> io::Result<()> {
        Real.write(path, bytes, old, readers)
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        self.saves.fetch_add(1, Ordering::SeqCst);
        self.entered.store(true, Ordering::SeqCst);
        while self.stalls.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Real.sync(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Real.rename(from, to)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        Real.sync_folder(folder)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        Real.remove(path)
    }
}

/// A target that saves changes on that file system.
fn saving(files: &Counting) -> (tempfile::TempDir, Server, Shared) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("target.toml");
    let text = format!(
        "[control]\nstate = '{}'\n[[port]]\ntraddr = \"127.0.0.1\"\ntrsvcid = 0\n\
         provider = \"iwarp\"\n",
        folder.path().join("state.json").display()
    );
    std::fs::write(&file, text).unwrap();
    let (server, mut keeper) = LoadedConfig::read(&file).unwrap().serve().unwrap();
    keeper.save_on(files.clone());
    let shared = Shared {
        keeper: Arc::new(keeper),
        watch: Arc::new(Watch::of(&server)),
        notify_status: |_| {},
        queue: ChangeQueue::with_most(400),
    };
    (folder, server, shared)
}

fn nqn(number: usize) -> String {
    format!("nqn.2026-11.org.example:volume-{number}")
}

/// One request for a whole volume.
fn volume(number: usize) -> Vec<Edit> {
    let add = NamespaceAdd {
        subsystem: Some(nqn(number)),
        path: "null:1M".into(),
        ..NamespaceAdd::default()
    };
    let subsystem = Edit::SubsystemAdd {
        nqn: nqn(number),
        serial: None,
        model: None,
        hosts: vec!["any".into()],
    };
    vec![subsystem, Edit::NamespaceAdd(add)]
}

fn ask_for(
    shared: &Shared,
    wanted: Vec<Edit>,
) -> impl Future<Output = Result<OutcomeOut, Fault>> + use<> {
    let body = EditsIn {
        edits: wanted,
        plan: false,
    };
    let response = edits(State(shared.clone()), Body(body));
    async { response.await.map(|Json(outcome)| outcome) }
}

/// Subsystems that are served, and those of them that have a namespace.
fn served_volumes(shared: &Shared) -> (usize, usize) {
    let model = shared.keeper.manager().model();
    let all = model.subsystems();
    let whole = all.iter().filter(|one| one.namespaces().len() == 1);
    (all.len(), whole.count())
}

fn end(server: Server) {
    server.stop();
    server.join().unwrap();
}

#[test]
fn burst_of_changes_needs_few_saves() {
    const CLIENTS: usize = 200;
    let files = Counting::default();
    let (_folder, server, shared) = saving(&files);
    runtime().block_on(async {
        let asked = (0..CLIENTS).map(|one| tokio::spawn(ask_for(&shared, volume(one))));
        let asked: Vec<_> = asked.collect();
        for (number, one) in asked.into_iter().enumerate() {
            let outcome = one.await.unwrap().unwrap();
            assert!(outcome.saved, "{outcome:?}");
            // Each client gets its own outcome.
            let its = |change: &Value| change["text"].as_str().unwrap().contains(&nqn(number));
            assert_eq!(outcome.changes.len(), 3, "{outcome:?}");
            assert!(outcome.changes.iter().all(its), "{outcome:?}");
            assert_eq!(outcome.edits.len(), 2);
        }
    });
    assert_eq!(served_volumes(&shared), (CLIENTS, CLIENTS));
    let saves = files.saves.load(Ordering::SeqCst);
    assert!(saves <= CLIENTS / 10, "{saves} saves");
    end(server);
}

#[test]
fn invalid_request_in_a_burst_fails_alone() {
    let files = Counting::default();
    let (folder, server, shared) = saving(&files);
    let with_path = |number, path: &str| {
        let mut edits = volume(number);
        if let Edit::NamespaceAdd(add) = &mut edits[1] {
            add.path = path.into();
        }
        edits
    };
    let missing = folder.path().join("missing.img").display().to_string();
    let requests = [
        (volume(0), None),
        // It exists with another namespace by then.
        (with_path(0, "null:2M"), Some("already")),
        (with_path(1, &missing), Some("missing.img")),
        (volume(2), None),
        (with_path(3, "relative.img"), Some("must be absolute")),
        // Repeating a request is no error.
        (volume(0), None),
        (volume(4), None),
    ];
    runtime().block_on(async {
        let asked: Vec<_> = requests
            .iter()
            .map(|(edits, _)| tokio::spawn(ask_for(&shared, edits.clone())))
            .collect();
        for (one, (edits, error)) in asked.into_iter().zip(&requests) {
            let response = one.await.unwrap();
            match (response, error) {
                (Ok(_), None) => {}
                (Err(fault), Some(words)) => {
                    assert!(fault.error.message.contains(words), "{fault:?}");
                }
                (response, _) => panic!("{edits:?}: {response:?}"),
            }
        }
    });
    assert_eq!(served_volumes(&shared), (3, 3));
    end(server);
}

#[test]
fn disconnected_client_leaves_no_partial_change() {
    let files = Counting::default();
    let (_folder, server, shared) = saving(&files);
    runtime().block_on(async {
        files.stalls.store(true, Ordering::SeqCst);
        let first = tokio::spawn(ask_for(&shared, volume(0)));
        while !files.entered.load(Ordering::SeqCst) {
            sleep(Duration::from_millis(1)).await;
        }
        let asked: Vec<_> = (1..20)
            .map(|one| tokio::spawn(ask_for(&shared, volume(one))))
            .collect();
        tokio::task::yield_now().await;
        // One whose change is in progress, and some that are pending.
        first.abort();
        for (number, one) in (1..).zip(&asked) {
            if number % 2 == 0 {
                one.abort();
            }
        }
        tokio::task::yield_now().await;
        files.stalls.store(false, Ordering::SeqCst);
        for (number, one) in (1..).zip(asked) {
            assert_eq!(one.await.is_ok_and(|it| it.is_ok()), number % 2 == 1);
        }
    });
    // The change in progress is complete, the pending ones were withdrawn.
    assert_eq!(served_volumes(&shared), (11, 11));
    end(server);
}

#[test]
fn stalled_change_is_reported_to_waiting_clients() {
    let files = Counting::default();
    let (_folder, server, mut shared) = saving(&files);
    shared.queue.stall_limit = Duration::from_millis(50);
    runtime().block_on(async {
        files.stalls.store(true, Ordering::SeqCst);
        let first = tokio::spawn(ask_for(&shared, volume(0)));
        while !files.entered.load(Ordering::SeqCst) {
            sleep(Duration::from_millis(1)).await;
        }
        let second = ask_for(&shared, volume(1)).await.unwrap_err();
        assert_eq!(second.status.as_u16(), 503, "{second:?}");
        let first = first.await.unwrap().unwrap_err();
        assert_eq!(first.status.as_u16(), 504, "{first:?}");
        for fault in [&first, &second] {
            let named = format!("(subsystem add {}, and 1 more)", nqn(0));
            let message = &fault.error.message;
            assert!(message.contains(&named) && message.contains("has not finished"));
        }
        assert!(
            second.error.message.contains("changed nothing"),
            "{second:?}"
        );
        status(State(shared.clone()), NoBody)
            .await
            .map(drop)
            .unwrap();
        files.stalls.store(false, Ordering::SeqCst);
        // The stalled change may take longer than the limit once more, on a busy machine.
        while let Err(fault) = ask_for(&shared, volume(2)).await {
            assert_eq!(fault.status.as_u16(), 503, "{fault:?}");
        }
    });
    assert_eq!(served_volumes(&shared), (2, 2));
    end(server);
}

#[test]
fn closed_connection_withdraws_its_pending_change() {
    let files = Counting::default();
    let (_folder, server, shared) = saving(&files);
    let bounds = Bounds {
        connections: 16,
        ..FEW
    };
    let scene = Scene::with(bounds, routes::router(&shared));
    let send = |number: usize| {
        let body = json!({ "edits": volume(number) }).to_string();
        let mut stream = scene.connect();
        let head = format!(
            "POST /v1/edits HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
        stream
    };
    files.stalls.store(true, Ordering::SeqCst);
    let mut first = send(0);
    while !files.entered.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (second, mut third) = (send(1), send(2));
    let waiting = |most: usize| {
        let start = Instant::now();
        while shared.queue.waiting() != most {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{}",
                shared.queue.waiting()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    waiting(2);
    drop(second);
    waiting(1);
    files.stalls.store(false, Ordering::SeqCst);
    for stream in [&mut first, &mut third] {
        let reason = read_all(stream);
        assert!(reason.starts_with("HTTP/1.1 200 "), "{reason}");
    }
    assert_eq!(served_volumes(&shared), (2, 2));
    drop(scene);
    end(server);
}
