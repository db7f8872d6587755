//! Edits of the keys of hosts: paths only, never a key.

use std::fs::File;
use std::path::Path;
use std::time::SystemTime;

use nvmeof_rdma::explain;
use nvmeof_target_core::{Connected, KeyState};
use nvmeof_wire::Nqn;
use nvmeof_wire::text::ShellWord;
use toml_edit::{Array, ArrayOfTables, Item, Table, Value, value};

use super::document::{Document, EditError, is, refusal, remove};
use super::keeper::Keeper;
use super::{ChangeError, Outcome};
use nvmeof_target_api::{Edit, HostKeys, KEY_PREFIX, KeyFiles};
use nvmeof_target_config::{CREDENTIAL, Config, HostKey, RELATIVE};
use nvmeof_target_manage::KeysToRead;

const KEY: &str = "key_file";
const OLD_KEY: &str = "old_key_file";
const OLD_UNTIL: &str = "old_key_until";
const CONTROLLER_KEY: &str = "controller_key_file";

/// Applies an edit of the keys of a host to `all` tables of hosts, or leaves them unchanged.
///
/// # Errors
/// [`EditError`] if the host has no keys, or no old key, or others than those that the edit
/// replaces or removes.
pub(super) fn make(all: &mut ArrayOfTables, edit: &Edit) -> Result<(), EditError> {
    let host = edit.host_of_keys().unwrap_or_default();
    let present = all.iter().find(|table| is(table, "nqn", host));
    if let Some(replaced) = edit.replaces() {
        let found = concerned(present, edit);
        let is_made = is_made(present, edit);
        if found != *replaced && !is_made {
            return other_keys(host, &found, replaced);
        }
        if found != *replaced {
            // The administrator made it in the configuration file as well, which then decides.
            return Ok(());
        }
    }
    match edit {
        Edit::HostSetKey(keys) => set(all, keys),
        Edit::HostRotateKey {
            host,
            key_file,
            old_key_file,
            old_key_until,
            ..
        } => {
            let table = of(all, host)?;
            let present = table.get(KEY).and_then(Item::as_str);
            let old = old_key_file.as_deref().or(present).map(str::to_owned);
            put(table, KEY, Some(key_file.into()));
            put(table, OLD_KEY, old.map(Value::from));
            put(table, OLD_UNTIL, old_key_until.as_ref().map(Value::from));
            Ok(())
        }
        Edit::HostRemoveOldKey { host, .. } => {
            let table = of(all, host)?;
            if table.remove(OLD_KEY).is_none() {
                let what = format!("host {host} has no old key; `ctl host list` shows the keys");
                return refusal(OLD_KEY, what);
            }
            table.remove(OLD_UNTIL);
            Ok(())
        }
        Edit::HostRemoveKey { host, .. } => {
            let removed = remove(all, |table| is(table, "nqn", host));
            if removed { Ok(()) } else { none(host) }
        }
        _ => Ok(()),
    }
}

/// Fills in the key that a rotation replaces, and clears what belongs to the request and not to the
/// state. `present` is the table of the host.
///
/// # Errors
/// Those of [`replaced`].
pub(super) fn settle(present: Option<&Table>, edit: &mut Edit) -> Result<(), EditError> {
    match edit {
        Edit::HostRotateKey {
            host,
            key_file,
            old_key_file,
            ..
        } => {
            let old = replaced(present, host, key_file, old_key_file.as_deref())?;
            *old_key_file = Some(old);
        }
        Edit::HostRemoveOldKey { force, .. } | Edit::HostSetKey(HostKeys { force, .. }) => {
            *force = false;
        }
        _ => {}
    }
    Ok(())
}

/// Records what the edit replaces or removes of the table of its host.
pub(super) fn record(present: Option<&Table>, edit: &mut Edit) {
    let found = concerned(present, edit);
    if let Some(replaces) = edit.replaces_mut() {
        *replaces = Some(found);
    }
}

/// The files of the table that the edit replaces or removes.
fn concerned(present: Option<&Table>, edit: &Edit) -> KeyFiles {
    let all = files(present);
    match edit {
        Edit::HostRotateKey { .. } => KeyFiles {
            controller_key_file: None,
            ..all
        },
        Edit::HostRemoveOldKey { .. } => KeyFiles {
            old_key_file: all.old_key_file,
            ..KeyFiles::default()
        },
        _ => all,
    }
}

/// The files of the keys of a host.
fn files(present: Option<&Table>) -> KeyFiles {
    let path = |key| present?.get(key)?.as_str().map(str::to_owned);
    KeyFiles {
        key_file: path(KEY),
        old_key_file: path(OLD_KEY),
        controller_key_file: path(CONTROLLER_KEY),
    }
}

/// Whether the table has the keys already that the edit gives the host.
fn is_made(present: Option<&Table>, edit: &Edit) -> bool {
    let wanted = match edit {
        Edit::HostSetKey(keys) => KeyFiles {
            key_file: Some(keys.key_file.clone()),
            old_key_file: None,
            controller_key_file: keys.controller_key_file.clone(),
        },
        Edit::HostRotateKey {
            key_file,
            old_key_file,
            ..
        } => KeyFiles {
            key_file: Some(key_file.clone()),
            old_key_file: old_key_file.clone(),
            controller_key_file: None,
        },
        _ => return false,
    };
    concerned(present, edit) == wanted
}

/// The keys of the host are not those that an edit replaces.
fn other_keys<T>(host: &str, found: &KeyFiles, replaced: &KeyFiles) -> Result<T, EditError> {
    let named = |all: &KeyFiles| {
        let KeyFiles {
            key_file,
            old_key_file,
            controller_key_file,
        } = all;
        let all = [
            (KEY, key_file),
            (OLD_KEY, old_key_file),
            (CONTROLLER_KEY, controller_key_file),
        ];
        let all = all
            .iter()
            .filter_map(|(key, path)| Some((key, path.as_ref()?)));
        let all: Vec<_> = all.map(|(key, path)| format!("{key} {path}")).collect();
        match all.is_empty() {
            true => "none".to_owned(),
            false => all.join(", "),
        }
    };
    let what = format!(
        "the keys of host {host} changed since: the change replaces {}, and the configuration has \
         {}; forget the change, or make it again",
        named(replaced),
        named(found)
    );
    refusal("host", what)
}

/// Replaces everything that is known of the keys of a host. Values that do not differ keep their
/// text.
fn set(all: &mut ArrayOfTables, keys: &HostKeys) -> Result<(), EditError> {
    let HostKeys {
        host,
        key_file,
        controller_key_file,
        hash,
        dh_groups,
        ..
    } = keys;
    if !all.iter().any(|table| is(table, "nqn", host)) {
        let mut table = Table::new();
        table.insert("nqn", value(host));
        all.push(table);
    }
    let table = of(all, host)?;
    let list = |names: &[String]| (!names.is_empty()).then(|| names.iter().collect::<Array>());
    put(table, KEY, Some(key_file.into()));
    put(
        table,
        CONTROLLER_KEY,
        controller_key_file.as_ref().map(Value::from),
    );
    put(table, "hash", list(hash).map(Value::Array));
    put(table, "dh_groups", list(dh_groups).map(Value::Array));
    put(table, OLD_KEY, None);
    put(table, OLD_UNTIL, None);
    Ok(())
}

/// Sets or removes a value, unless it is the same.
fn put(table: &mut Table, key: &str, wanted: Option<Value>) {
    let present = table.get(key).and_then(Item::as_value);
    match wanted {
        None => drop(table.remove(key)),
        Some(wanted) if present.is_some_and(|present| is_same(present, &wanted)) => {}
        Some(wanted) => drop(table.insert(key, Item::Value(wanted))),
    }
}

/// Whether both are the same text or list of texts. A text is a list of one.
fn is_same(one: &Value, other: &Value) -> bool {
    let texts = |value: &Value| match value {
        Value::Array(all) => all
            .iter()
            .map(Value::as_str)
            .map(|it| it.map(str::to_owned))
            .collect(),
        value => vec![value.as_str().map(str::to_owned)],
    };
    texts(one) == texts(other)
}

/// The `key_file` that a rotation to the new `key_file` makes the old one; `given` is what the
/// request names.
///
/// # Errors
/// [`EditError`]: the host has no key or still an old one, or the key is no other one.
pub(super) fn replaced(
    present: Option<&Table>,
    host: &str,
    key_file: &str,
    given: Option<&str>,
) -> Result<String, EditError> {
    let KeyFiles {
        key_file: current,
        old_key_file: old,
        ..
    } = files(present);
    if let Some(old) = old {
        let what = format!(
            "host {host} still has the old key {old}; `ctl host remove-old-key {}` removes it",
            ShellWord(host)
        );
        return refusal(OLD_KEY, what);
    }
    let Some(old) = current else {
        return none(host);
    };
    if old == key_file {
        let what = format!("{key_file} has the key of the host already; name another file");
        return refusal(KEY, what);
    }
    match given {
        Some(given) if given != old => {
            let what = format!("{given} is not the key of the host, which is {old}; omit it");
            refusal(OLD_KEY, what)
        }
        _ => Ok(old),
    }
}

/// Checks that an edit contains no key, and that its paths of key files are absolute.
///
/// # Errors
/// [`EditError`], which never contains a key.
pub(super) fn check_texts(edit: &Edit) -> Result<(), EditError> {
    let paths = match edit {
        Edit::HostSetKey(keys) => [
            (KEY, Some(&keys.key_file)),
            (CONTROLLER_KEY, keys.controller_key_file.as_ref()),
        ],
        Edit::HostRotateKey {
            key_file,
            old_key_file,
            ..
        } => [(KEY, Some(key_file)), (OLD_KEY, old_key_file.as_ref())],
        _ => [(KEY, None), (OLD_KEY, None)],
    };
    // It may be anywhere: words may be swapped.
    if serde_json::to_string(edit).is_ok_and(|text| text.contains(KEY_PREFIX)) {
        let in_path =
            |(_, path): &&(_, Option<&String>)| path.is_some_and(|path| path.contains(KEY_PREFIX));
        let key = paths.iter().find(in_path).map_or("host", |(key, _)| key);
        return refusal(key, "must be the path of a file with the key, not the key");
    }
    for (key, path) in paths {
        let Some(path) = path else { continue };
        if !path.starts_with('/') && !path.starts_with(CREDENTIAL) {
            return refusal(key, format!("{path:?} {RELATIVE}"));
        }
    }
    Ok(())
}

/// The host whose controllers the edit disconnects if they use its old key.
pub(super) fn forced(edit: &Edit) -> Option<Nqn> {
    match edit {
        Edit::HostRemoveOldKey {
            host, force: true, ..
        }
        | Edit::HostSetKey(HostKeys {
            host, force: true, ..
        }) => Nqn::new(host).ok(),
        _ => None,
    }
}

/// Whether the edit removes an old key. Controllers that use it are looked for before the request,
/// so no other change may come between.
pub(super) fn removes_old_key(edit: &Edit) -> bool {
    matches!(edit, Edit::HostRemoveOldKey { .. })
}

/// Refuses to remove an old key together with another change of the keys of its host: whether
/// controllers use it is known before the request only.
///
/// # Errors
/// [`EditError`].
fn check_alone(edits: &[Edit], edit: &Edit) -> Result<(), EditError> {
    let its = |one: &&Edit| one.host_of_keys() == edit.host_of_keys();
    if removes_old_key(edit) && edits.iter().filter(its).count() > 1 {
        let what = "cannot be removed in one request with another change of the keys of the host; \
                    send two requests";
        return refusal(OLD_KEY, what);
    }
    Ok(())
}

/// Refuses rotations whose old key has ended already by `config`, the configuration with them.
///
/// # Errors
/// [`ChangeError::Edit`].
pub(super) fn check_ends(edits: &[Edit], config: &Config) -> Result<(), ChangeError> {
    let now = SystemTime::now();
    let ends = config.old_key_ends();
    for edit in edits {
        let Edit::HostRotateKey {
            host,
            old_key_until: Some(until),
            ..
        } = edit
        else {
            continue;
        };
        let mut its = ends.iter().filter(|(of, _)| of.as_str() == host);
        if its.any(|(_, end)| *end <= now) {
            let what = format!(
                "{until} has passed: host {host} could not reconnect with its old key; give a \
                 later date"
            );
            return refusal(OLD_UNTIL, what).map_err(|refusal| of_edit(edit, refusal));
        }
    }
    Ok(())
}

fn of_edit(edit: &Edit, refusal: EditError) -> ChangeError {
    ChangeError::Edit {
        edit: edit.to_string(),
        refusal,
    }
}

/// Writes new files of keys and their folders to disk, as far as they can be read: the state that
/// names them is. Returns a warning for each failure.
pub(super) fn sync(edits: &[Edit]) -> Vec<String> {
    let paths = edits.iter().flat_map(|edit| match edit {
        Edit::HostSetKey(keys) => [Some(&keys.key_file), keys.controller_key_file.as_ref()],
        Edit::HostRotateKey { key_file, .. } => [Some(key_file), None],
        _ => [None, None],
    });
    let paths = paths.flatten().map(Path::new);
    // Opening another kind of file might block. Reading the key reports it.
    let paths = paths.filter(|path| path.is_absolute() && path.is_file());
    let failed = paths.filter_map(|path| {
        let folder = path.parent().into_iter();
        let mut all = std::iter::once(path).chain(folder);
        let error = all.find_map(|one| File::open(one).and_then(|one| one.sync_all()).err())?;
        Some(format!(
            "{} may be lost if the power fails now: {}; run `sync`",
            path.display(),
            explain(&error)
        ))
    });
    failed.collect()
}

/// The key files that a change by these edits reads: those of the hosts whose keys it sets, even if
/// only their contents changed.
pub(super) fn to_read(edits: &[Edit]) -> KeysToRead {
    let hosts = edits.iter().filter_map(Edit::host_of_keys);
    KeysToRead::Of(hosts.filter_map(|host| Nqn::new(host).ok()).collect())
}

/// The hosts whose keys the edits remove for good.
fn without_keys(edits: &[Edit]) -> impl Iterator<Item = Nqn> {
    let removed = edits.iter().filter_map(|edit| match edit {
        Edit::HostRemoveKey { host, .. } => Some(host),
        _ => None,
    });
    let is_set = |host: &str| {
        let mut all = edits.iter();
        all.any(|edit| matches!(edit, Edit::HostSetKey(keys) if keys.host == host))
    };
    let removed = removed.filter(move |host| !is_set(host));
    removed.filter_map(|host| Nqn::new(host).ok())
}

impl Keeper {
    /// Refuses to remove or replace keys that controllers use: their host could not reconnect.
    ///
    /// # Errors
    /// [`ChangeError::Refused`] lists the controllers.
    pub(super) fn check_keys(&self, edits: &[Edit]) -> Result<(), ChangeError> {
        for edit in edits {
            check_alone(edits, edit).map_err(|refusal| of_edit(edit, refusal))?;
            self.check_contents(edit)?;
            let (using, what) = match edit {
                Edit::HostRemoveOldKey {
                    host, force: false, ..
                } => (self.using_old_key(host), "its old key"),
                Edit::HostSetKey(keys) if !keys.force => {
                    (self.using_other_keys(keys), "a key that it replaces")
                }
                _ => continue,
            };
            if using.is_empty() {
                continue;
            }
            let named = |one: &Connected| format!("controller {} of {}", one.cntlid, one.subnqn);
            let using: Vec<_> = using.iter().map(named).collect();
            let remedy = match edit {
                Edit::HostSetKey(_) => {
                    "use `ctl host rotate-key`, which keeps the present key, or disconnect these \
                     with `ctl host set-key NQN --key-file PATH --force`"
                }
                _ => {
                    "give the host its new key, then try again, or disconnect these with `ctl \
                     host remove-old-key NQN --force`"
                }
            };
            return Err(ChangeError::Refused(format!(
                "{edit}: the host still uses {what}: {}; {remedy}",
                using.join(", ")
            )));
        }
        Ok(())
    }

    /// Refuses a change that would also put new contents of the file of the present key into
    /// effect: hosts that use this key could not reconnect.
    fn check_contents(&self, edit: &Edit) -> Result<(), ChangeError> {
        let (Edit::HostRotateKey { host, .. } | Edit::HostRemoveOldKey { host, .. }) = edit else {
            return Ok(());
        };
        let name = Nqn::new(host).ok();
        if !name.is_some_and(|name| self.manager().has_new_key(&name, HostKey::Current)) {
            return Ok(());
        }
        Err(ChangeError::Refused(format!(
            "{edit}: the key file of the host has another key than the one in effect; restore the \
             file, or replace the key: `ctl host set-key {} --key-file PATH --force`",
            ShellWord(host)
        )))
    }

    /// The controllers of the host that authenticated with its old key.
    fn using_old_key(&self, host: &str) -> Vec<Connected> {
        let host = Nqn::new(host).ok();
        host.map_or_else(Vec::new, |host| {
            self.manager().controllers_of_old_key(&host)
        })
    }

    /// The controllers of the host that authenticated with a key which is not among `keys`, or
    /// required a key of the controller which is not.
    fn using_other_keys(&self, keys: &HostKeys) -> Vec<Connected> {
        let kept = self.kept();
        let Ok(document) = Document::parse(&kept.effective.text) else {
            return Vec::new();
        };
        let present = files(document.host(&keys.host));
        let new = Some(&keys.key_file);
        // In another file, or the same one.
        let has_new = |host: &Nqn, key| self.manager().has_new_key(host, key);
        let mut all = self.manager().connected();
        all.retain(|one| one.hostnqn.as_str() == keys.host);
        all.retain(
            |Connected {
                 hostnqn,
                 authentication,
                 ..
             }| {
                let Some(proof) = authentication else {
                    return false;
                };
                let is_lost = match proof.key {
                    KeyState::Current => {
                        present.key_file.as_ref() != new || has_new(hostnqn, HostKey::Current)
                    }
                    KeyState::Old => {
                        present.old_key_file.as_ref() != new || has_new(hostnqn, HostKey::Old)
                    }
                    // The host cannot reconnect already.
                    KeyState::Removed => return false,
                };
                let other_controller = || {
                    present.controller_key_file != keys.controller_key_file
                        || has_new(hostnqn, HostKey::Controller)
                };
                is_lost || proof.is_mutual && other_controller()
            },
        );
        all
    }

    /// Makes a change, then disconnects the controllers of `hosts` that use a key which is not
    /// accepted any more. Warns of controllers whose key the change removed otherwise.
    ///
    /// # Errors
    /// Those of the change.
    pub(super) fn with_key_remarks(
        &self,
        hosts: &[Nqn],
        change: impl FnOnce() -> Result<Outcome, ChangeError>,
    ) -> Result<Outcome, ChangeError> {
        let manager = self.manager();
        let before = manager.controllers_of_removed_keys();
        let mut outcome = change()?;
        for host in hosts {
            let lost = manager.disconnect_removed_key(host);
            outcome.report.disconnected.extend(lost);
        }
        outcome
            .warnings
            .extend(manager.remarks_on_removed_keys(&before));
        Ok(outcome)
    }

    /// Warnings about hosts that have no key after the `edits`: subsystems that require one refuse
    /// them, and others accept every peer with their NQN.
    pub(super) fn key_remarks(&self, edits: &[Edit]) -> Vec<String> {
        let model = self.manager().model();
        let required = &model.authentication().subsystems;
        let mut remarks = Vec::new();
        for host in without_keys(edits) {
            let allowing = model.subsystems().iter().filter(|one| one.allows(&host));
            let (refusing, open): (Vec<_>, Vec<_>) =
                allowing.partition(|one| required.contains(&one.nqn));
            remarks.extend(refusing.iter().map(|one| {
                format!(
                    "{} requires a key: host {host} cannot connect to it again until `ctl host \
                     set-key`",
                    one.nqn
                )
            }));
            if !open.is_empty() {
                let open: Vec<_> = open.iter().map(|one| one.nqn.as_str()).collect();
                remarks.push(format!(
                    "host {host} needs no key: every peer that uses its NQN can connect to {}",
                    open.join(", ")
                ));
            }
        }
        remarks
    }
}

fn of<'a>(all: &'a mut ArrayOfTables, host: &str) -> Result<&'a mut Table, EditError> {
    let found = all.iter_mut().find(|table| is(table, "nqn", host));
    found.map_or_else(|| none(host), Ok)
}

fn none<T>(host: &str) -> Result<T, EditError> {
    let what = format!(
        "no key is configured for {host}; `ctl host set-key {} --key-file PATH` sets one",
        ShellWord(host)
    );
    refusal("host", what)
}
