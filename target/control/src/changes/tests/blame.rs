//! Errors name the lines of the document that the administrator wrote.

use nvmeof_backend::{Claim, Spec};

use super::*;

/// A document with settings before and between its ports and subsystems.
fn with_settings(scene: &Scene, port: &str, path: &str) -> String {
    let text = scene.text(&[(1, "ram:1M"), (7, path)], "allow_any_host = true");
    let text = text.replace(
        "# Ours.\n",
        "[limits]\nio_queues = 3\nqueue_depth = 256\n\n[reactor]\n# Short.\ndrain_s = 1\n",
    );
    text.replace("trsvcid = 0\n", port)
}

/// The line of the document that is exactly this.
fn line_of(text: &str, line: &str) -> usize {
    text.lines().position(|one| one == line).unwrap() + 1
}

#[test]
fn errors_in_a_document_name_its_lines() {
    let scene = Scene::new();
    let file = scene.text(&[(1, "ram:1M")], "allow_any_host = true");
    let file = file.replace("# Ours.\n", "# Ours.\nlimits.queue_depth = 64\n");
    std::fs::write(scene.path("target.toml"), &file).unwrap();
    let daemon = scene.start();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("trsvcid = {}\n", listener.local_addr().unwrap().port());
    let locked = scene.file("locked.img", 1 << 20);
    let spec: Spec = locked.parse().unwrap();
    let _lock = Claim::take(&spec, None).unwrap();
    let missing = scene.path("missing").display().to_string();
    let odd = scene.file("odd.img", 4097);
    let path = |path: &str| format!("path = '{path}'");
    let traddr = "traddr = \"127.0.0.1\"".to_owned();
    let deep = "queue_depth = 128".to_owned();
    for (port, path, line, words) in [
        ("", &missing, path(&missing), "path: "),
        ("", &locked, path(&locked), "path: "),
        ("", &odd, path(&odd), "path: "),
        (&taken, &"ram:1M".to_owned(), traddr, "traddr: "),
        // Within the limits of the document, but not within those of the file.
        (
            "queue_depth = 128\n",
            &"ram:1M".to_owned(),
            deep,
            "queue_depth = 128",
        ),
    ] {
        let text = with_settings(&scene, &format!("trsvcid = 0\n{port}"), path);
        let text = text.replace("trsvcid = 0\ntrsvcid", "trsvcid");
        let error = daemon.keeper.apply("/x/other.toml".into(), text.clone());
        let ChangeError::Config(error) = error.unwrap_err() else {
            panic!("{line}: no error of the configuration");
        };
        assert_eq!(error.file(), Some("/x/other.toml".as_ref()), "{error}");
        assert_eq!(error.line(), Some(line_of(&text, &line)), "{error}");
        assert!(
            error.key().is_some() && error.what().contains(words),
            "{error}"
        );
        assert_eq!((daemon.nsids(), scene.state()), (vec![1], String::new()));
    }
    // Without errors it is served, and its lines keep their numbers.
    let text = with_settings(&scene, "trsvcid = 0\n", "ram:1M");
    let _ = daemon
        .keeper
        .apply("/x/other.toml".into(), text.clone())
        .unwrap();
    let shown = daemon.keeper.show();
    assert_eq!(shown.name, PathBuf::from("/x/other.toml"));
    let last = "nsid = 7";
    let lines = |text: &str| text.lines().take_while(|one| *one != last).count();
    assert_eq!(lines(&shown.text), lines(&text));
}

#[test]
fn errors_in_settings_name_their_file() {
    let scene = Scene::new();
    let text = scene.text(&[], "allow_any_host = true");
    let settings = SettingsFile {
        path: "target.toml".into(),
        text: "# 1\n\n[limits]\nqueue_depth = 1\n".into(),
    };
    let merged = format!("{text}[limits]\nqueue_depth = 1\n");
    let error = Config::parse_with("other.toml".as_ref(), merged, Some(settings)).unwrap_err();
    let place = (error.file().unwrap(), error.line(), error.key());
    let expected = ("target.toml".as_ref(), Some(4), Some("limits.queue_depth"));
    assert_eq!(place, expected, "{error}");
}
