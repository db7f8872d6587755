//! Changes that are served when it shows that they cannot be kept.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use nvmeof_atomic_file::{Files, Readers, Real};

/// A file system on which the last steps of a save fail while that is wanted.
#[derive(Clone, Debug, Default)]
struct Failing {
    rename: Arc<AtomicBool>,
    sync_folder: Arc<AtomicBool>,
}

fn unless(failing: &AtomicBool) -> io::Result<()> {
    if failing.load(Ordering::SeqCst) {
        return Err(io::Error::other("the disk has no more"));
    }
    Ok(())
}

impl Files for Failing {
    fn write(&self, path: &Path, bytes: &[u8], old: &Path, readers: Readers) -> io::Result<()> {
        Real.write(path, bytes, old, readers)
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        Real.sync(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        unless(&self.rename)?;
        Real.rename(from, to)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        unless(&self.sync_folder)?;
        Real.sync_folder(folder)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        Real.remove(path)
    }
}

/// What is in the folder of changes.
fn kept(scene: &Scene) -> Vec<String> {
    let names = std::fs::read_dir(scene.path("kept")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    names
}

#[test]
fn what_is_in_effect_and_not_saved_is_told_until_it_is() {
    let state = "kept/state.json";
    for (by_save, renames) in [(true, false), (true, true), (false, false), (false, true)] {
        let scene = Scene::new();
        let mut daemon = scene.start();
        let failing = Failing::default();
        daemon.keeper.keep_on(failing.clone());
        let (fails, named) = match renames {
            true => (&failing.rename, scene.path(state)),
            false => (&failing.sync_folder, scene.path("kept")),
        };
        fails.store(true, Ordering::SeqCst);
        let outcome = daemon.edit(add("ram:2M")).unwrap();
        let named = format!("{}: the disk has no more", named.display());
        let told = format!("in effect, but not saved: {named}; `ctl save` tries again");
        assert_eq!((outcome.saved, outcome.warnings), (false, vec![told]));
        // It is served, and nobody is told that it is kept: also not by what is refused.
        let unsaved = |daemon: &Daemon| {
            assert!(!daemon.keeper.show().saved);
            assert_eq!(daemon.nsids(), [1, 2]);
        };
        unsaved(&daemon);
        let error = daemon.keeper.save().unwrap_err();
        assert!(matches!(error, ChangeError::StillUnsaved(_)));
        let error = error.to_string();
        let said = error.contains(&named) && error.contains("until the target ends");
        assert!(said, "{error}");
        assert!(daemon.edit(add("ram:what")).is_err());
        unsaved(&daemon);
        let saved = std::fs::read(scene.path(state)).is_ok();
        assert_eq!(saved, !renames);
        // What is new took the place of the old one or is gone.
        let mut left = vec!["state.json.lock".to_owned()];
        left.splice(0..0, saved.then(|| "state.json".to_owned()));
        assert_eq!(kept(&scene), left);
        // The next change, or who asks for it, keeps all of it.
        fails.store(false, Ordering::SeqCst);
        if by_save {
            assert_eq!(daemon.keeper.save().unwrap(), scene.path(state));
        } else {
            let outcome = daemon.edit(add("ram:3M")).unwrap();
            assert!(outcome.saved && outcome.warnings.is_empty());
        }
        assert!(daemon.keeper.show().saved);
        let nsids = daemon.nsids();
        drop(daemon);
        assert_eq!(scene.start().nsids(), nsids);
    }
}

/// Whoever could not save it finds the old state or the new one.
#[test]
fn what_was_not_saved_is_as_it_was_or_as_it_was_told() {
    for (renames, expected) in [(true, vec![1]), (false, vec![1, 2])] {
        let scene = Scene::new();
        let mut daemon = scene.start();
        let failing = Failing::default();
        daemon.keeper.keep_on(failing.clone());
        let fails = if renames {
            &failing.rename
        } else {
            &failing.sync_folder
        };
        fails.store(true, Ordering::SeqCst);
        assert!(!daemon.edit(add("ram:2M")).unwrap().saved);
        drop(daemon);
        assert_eq!(scene.start().nsids(), expected);
    }
}
