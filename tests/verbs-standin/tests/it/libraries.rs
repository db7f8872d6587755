//! The shared object as both libraries of a whole process.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The shared object, which cargo builds beside the tests.
fn shared_object() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let folder = tests.parent().unwrap();
    let places = [folder, folder.parent().unwrap()];
    let file = |folder: &std::path::Path| folder.join("libnvmeof_verbs_standin.so");
    let found = places.map(file).into_iter().find(|file| file.exists());
    found.expect("cargo built the shared object")
}

/// A folder for the links of one test, empty.
fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A folder with both libraries by their names.
fn libraries(name: &str) -> PathBuf {
    let folder = folder(name);
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        symlink(shared_object(), folder.join(name)).unwrap();
    }
    folder
}

/// Another process of this program finds the libraries by their names, and the devices in the
/// environment.
#[test]
fn process_uses_shared_object_by_names_of_libraries() {
    if std::env::var_os("ASAN_OPTIONS").is_some() {
        // The runtime of AddressSanitizer does not find the links.
        return;
    }
    let folder = libraries("libraries");
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "libraries::devices_of_process",
            "--nocapture",
        ])
        .env("LD_LIBRARY_PATH", &folder)
        .env(
            nvmeof_verbs_standin::VARIABLE,
            "mlx5_0 profile=roce addr=10.9.0.1; cxgb4_0 profile=iwarp addr=10.9.1.1",
        )
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    for line in ["mlx5_0 port 1: RoceV2", "cxgb4_0 port 1: Iwarp"] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
#[ignore = "started by another test, with devices of its own"]
fn devices_of_process() {
    // In this process nothing provides the functions but the libraries.
    for device in nvmeof_rdma_verbs::devices().unwrap() {
        println!("{} port {}: {:?}", device.name, device.port, device.kind);
    }
}

/// `rping` of rdma-core, as both sides: it reads and writes the memory of its peer, and checks
/// what arrives. It knows nothing of the provider.
#[test]
fn rping_runs_between_two_processes() {
    if std::env::var_os("ASAN_OPTIONS").is_some() || Command::new("rping").output().is_err() {
        // The package rdmacm-utils is not installed.
        return;
    }
    let folder = libraries("rping");
    for profile in ["roce", "no-windows", "iwarp"] {
        let rping = |line: &str, addr: &str| {
            let links = folder.display();
            let device = format!("dev0 profile={profile} addr={addr} links={links}");
            let mut command = Command::new("rping");
            command
                .args("-a 10.77.0.1 -p 7174 -C 100 -V -v".split(' '))
                .arg(line)
                .env("LD_LIBRARY_PATH", &folder)
                .env(nvmeof_verbs_standin::VARIABLE, device)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            command
        };
        let server = rping("-s", "10.77.0.1").spawn().unwrap();
        let socket = folder.join("10.77.0.1:7174");
        for _ in 0..60_000 {
            if socket.exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let client = rping("-c", "10.77.0.2").output().unwrap();
        let server = server.wait_with_output().unwrap();
        assert!(client.status.success() && server.status.success());
        let text = String::from_utf8_lossy(&client.stdout);
        assert_eq!(text.matches("ping data: ").count(), 100, "{text}");
        let _ = std::fs::remove_file(socket);
    }
}

/// Every function that programs need is exported, and those of the stand-in.
#[test]
fn shared_object_exports_its_own_functions() {
    let output = Command::new("nm")
        .args(["--dynamic", "--defined-only"])
        .arg(shared_object())
        .output();
    let Ok(output) = output else {
        // binutils are not installed.
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    for name in [
        "nvmeof_standin",
        "nvmeof_standin_configure",
        "nvmeof_standin_counters",
        "nvmeof_standin_violations",
        "ibv_query_device",
        "rdma_create_event_channel",
    ] {
        let exported = text.lines().any(|line| line.ends_with(&format!(" {name}")));
        assert!(exported, "{name} is not exported");
    }
    let count = |prefix: &str| {
        let mut names = text.lines().filter_map(|line| line.rsplit(' ').next());
        names
            .by_ref()
            .filter(|name| name.starts_with(prefix))
            .count()
    };
    assert_eq!((count("ibv_"), count("rdma_")), (30, 28));
}
