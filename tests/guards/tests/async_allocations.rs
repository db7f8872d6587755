//! The async interface allocates no memory for reads and writes either. Its runtime may, at
//! intervals.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::Path;

use allocation_counter::measure;
use nvmeof_initiator::{
    Buf, ConnectOptions, Controller, Host, HostConfig, Identity, Namespace, Nqn, RouteOptions,
    Transport, WriteOptions,
};
use nvmeof_rdma::Address;
use nvmeof_target_config::Config;
use nvmeof_target_manage::Server;

const NQN: &str = "nqn.2026-11.org.example:guards";
/// Operations of each task, for warm-up and for the count: a key is not reused until 1024
/// others are free.
const OPERATIONS: u64 = 2048;
/// Allocations of the runtime itself, including entering it: one or two were observed, for
/// any number of operations.
const OF_RUNTIME: u64 = 8;

/// A null device, with its reactor on a thread of its own. Sockets of shared memory
/// are in `folder`.
fn serve(provider: &str, folder: &Path) -> (Server, Address) {
    let folder = folder.display();
    let text = format!(
        "[[port]]\ntraddr = \"127.0.0.1\"\ntrsvcid = 0\nprovider = \"{provider}\"\n\
         [shm]\nfolder = \"{folder}\"\n\
         [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nnsid = 1\npath = \"null:1G\"\nblock_size = 4096\n"
    );
    let config = Config::parse(Path::new("guards.toml"), text).unwrap();
    let server = Server::start(&config).unwrap();
    let address = server.ports().first().unwrap().address;
    (server, address)
}

async fn connect(addr: Address, transport: Transport, folder: &Path) -> Controller {
    let identity = Identity::of_name(Nqn::new("nqn.2026-11.org.example:host").unwrap());
    let mut options = ConnectOptions::new(addr, Nqn::new(NQN).unwrap());
    // Polls would be counted: this test is not about time.
    options.keep_alive = std::time::Duration::ZERO;
    let config = HostConfig {
        transport,
        route_options: RouteOptions {
            shm_folder: Some(folder.to_owned()),
            ..RouteOptions::default()
        },
        ..HostConfig::new(identity)
    };
    Host::new(config).unwrap().connect(options).await.unwrap()
}

/// Writes and reads, one after the other.
async fn work(namespace: &Namespace, mut buf: Buf) -> Buf {
    for lba in 0..OPERATIONS / 2 {
        let options = WriteOptions::default();
        buf = namespace.write(lba, buf, options).await.unwrap();
        buf = namespace.read(lba, buf).await.unwrap();
    }
    buf
}

#[test]
fn awaited_reads_and_writes_allocate_nothing() {
    allocate_nothing("iwarp", Transport::Iwarp);
}

#[test]
fn awaited_reads_and_writes_allocate_nothing_in_shared_memory() {
    allocate_nothing("shm", Transport::Shm);
}

fn allocate_nothing(provider: &str, transport: Transport) {
    let folder = tempfile::tempdir().unwrap();
    let sockets = folder.path().join("meet");
    let (server, addr) = serve(provider, &sockets);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let controller = runtime.block_on(connect(addr, transport, &sockets));
    let namespace = runtime.block_on(controller.namespace(1)).unwrap();
    let mut bufs = [(); 4].map(|()| Some(controller.alloc(4096).unwrap()));
    let mut counted = None;
    for _ in 0..2 {
        let [a, b, c, d] = bufs.each_mut().map(|buf| buf.take().unwrap());
        let mut back = None;
        // Only this thread is counted: the caller and the driver of the queue.
        let info = measure(|| {
            back = Some(runtime.block_on(async {
                let alone = work(&namespace, a).await;
                let together = tokio::join!(
                    work(&namespace, alone),
                    work(&namespace, b),
                    work(&namespace, c),
                    work(&namespace, d)
                );
                <[Buf; 4]>::from(together)
            }));
        });
        bufs = back.unwrap().map(Some);
        counted = Some(info.count_total);
    }
    let counted = counted.unwrap();
    assert!(
        counted <= OF_RUNTIME,
        "{counted} allocations of {} operations",
        5 * OPERATIONS
    );
    runtime.block_on(controller.disconnect());
    server.stop();
    server.join().unwrap();
}
