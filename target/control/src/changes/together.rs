//! Edits of several clients, applied as one change.
//!
//! The edits of each client are validated separately, so that an error fails only its own client.
//! The valid ones are served with one new model and one save. If that fails, each half is tried
//! separately, down to the client that causes the failure.

use std::time::Instant;

use nvmeof_target_core::{Change, Subject};
use nvmeof_wire::Nqn;

use super::document::{Document, refusal};
use super::host_keys::{forced, removes_old_key};
use super::keeper::{Keeper, ServedState};
use super::ready::remarks_on_deferred;
use super::state::State;
use super::{ChangeError, Outcome, compact, host_keys};
use nvmeof_target_api::Deferred;
use nvmeof_target_api::{Edit, Slot};
use nvmeof_target_config::{Config, ConfigError, RELATIVE, is_relative};
use nvmeof_target_manage::{FORGET, ForgetError, Removal, Removed, Report};

/// The state with more edits.
pub(super) struct Edited {
    pub(super) state: State,
    /// The new edits, with defaults filled in.
    pub(super) edits: Vec<Edit>,
    pub(super) held: Vec<Deferred>,
    /// Deferred edits that the new ones replace.
    pub(super) forgotten: Vec<Edit>,
}

/// The document to which the edits of each client are applied in turn.
struct Draft<'a> {
    kept: &'a ServedState,
    document: Document,
    base: Document,
    /// Edits in effect.
    state: State,
    /// Deferred edits, which come after those in effect.
    late: Vec<Edit>,
    /// All new edits.
    edits: Vec<Edit>,
    forgotten: Vec<Edit>,
}

/// The result of the edits of one client.
#[derive(Default)]
struct EditResult {
    /// With defaults filled in; none if everything exists already.
    edits: Vec<Edit>,
    forgotten: Vec<Edit>,
    /// A remark for the client.
    remark: Option<String>,
}

/// The record of what hosts set could not be written.
#[derive(Debug, thiserror::Error)]
#[error(
    "write protection and reservations that hosts set of a removed namespace may apply again when \
     it is added: {0}"
)]
struct StillSet(ForgetError);

impl<'a> Draft<'a> {
    fn new(kept: &'a ServedState) -> Result<Self, ConfigError> {
        let document = Document::parse(&kept.effective.text)
            .map_err(|what| ConfigError::plain(&kept.effective.name, what))?;
        let mut state = kept.state.clone();
        let late = compact::take_late(&mut state.edits, &kept.effective.deferred);
        Ok(Self {
            kept,
            document,
            base: kept.base.document()?,
            state,
            late,
            edits: Vec::new(),
            forgotten: Vec::new(),
        })
    }

    /// Applies all of these edits, or none. Deferred edits come after them; one about the same
    /// object is forgotten.
    fn make(&mut self, mut edits: Vec<Edit>) -> Result<EditResult, ChangeError> {
        if let Some(nqn) = exists(&self.document, &edits) {
            let remark = format!("subsystem {nqn} exists already as requested; nothing changed");
            return Ok(EditResult {
                remark: Some(remark),
                ..EditResult::default()
            });
        }
        let mut document = self.document.clone();
        let mut all = self.state.edits.clone();
        let mut late = self.late.clone();
        let mut forgotten = Vec::new();
        for edit in &mut edits {
            let made = check_path(edit)
                .and_then(|()| document.settle(edit, &late))
                .and_then(|()| document.make(edit));
            made.map_err(|refusal| ChangeError::Edit {
                edit: edit.to_string(),
                refusal,
            })?;
            forgotten.extend(late.extract_if(.., |one| edit.displaces(one)));
            compact::add(&self.base, &mut all, edit.clone());
        }
        // An error of new edits refuses them; they are not deferred.
        let parsed = Config::parse(&self.kept.base.edited(), document.text());
        let parsed =
            parsed.map_err(|error| error.of_change(&named(std::slice::from_ref(&edits))))?;
        host_keys::check_ends(&edits, &parsed)?;
        (self.document, self.state.edits, self.late) = (document, all, late);
        self.edits.extend(edits.iter().cloned());
        self.forgotten.extend(forgotten.iter().cloned());
        Ok(EditResult {
            edits,
            forgotten,
            remark: None,
        })
    }

    fn finish(mut self) -> Edited {
        self.state.edits.extend(self.late);
        let mut held = self.kept.held.clone();
        held.retain(|one| !self.forgotten.contains(&one.edit));
        Edited {
            state: self.state,
            edits: self.edits,
            held,
            forgotten: self.forgotten,
        }
    }
}

impl ServedState {
    /// The state with these edits added.
    pub(super) fn edited(&self, edits: Vec<Edit>) -> Result<Edited, ChangeError> {
        let mut draft = Draft::new(self)?;
        draft.make(edits)?;
        Ok(draft.finish())
    }
}

impl Keeper {
    /// Applies the edits of several clients in order, for each client all or none. `requests` is
    /// called when no other change is in progress, so that requests that arrived meanwhile are
    /// applied together. The outcomes are in the same order.
    pub(crate) fn edit_all<T>(
        &self,
        requests: impl FnOnce() -> Vec<(T, Vec<Edit>)>,
    ) -> Vec<(T, Result<Outcome, ChangeError>)> {
        let (changing, _) = self.change();
        let (clients, requests): (Vec<T>, Vec<Vec<Edit>>) = requests().into_iter().unzip();
        changing.describe(|| named(&requests));
        // Recovering a faulted namespace takes effect before the rest, so it is not combined.
        // Disconnecting hosts takes effect after it. Whether an old key is in use is known before.
        let is_separate = |edits: &Vec<Edit>| {
            edits
                .iter()
                .any(|edit| self.recovers(edit) || forced(edit).is_some() || removes_old_key(edit))
        };
        let combined = requests.chunk_by(|one, next| !is_separate(one) && !is_separate(next));
        let outcomes = combined.flat_map(|requests| self.edit_combined(requests));
        clients.into_iter().zip(outcomes).collect()
    }

    fn edit_combined(&self, requests: &[Vec<Edit>]) -> Vec<Result<Outcome, ChangeError>> {
        let kept = self.kept();
        let mut draft = match Draft::new(&kept) {
            Ok(draft) => draft,
            Err(error) => return vec![Err(error.into()); requests.len()],
        };
        let requested = requests.iter().cloned();
        let made = requested.map(|edits| {
            self.check_keys(&edits)?;
            draft.make(edits)
        });
        let made: Vec<_> = made.collect();
        let counts =
            |made: &&Result<EditResult, _>| matches!(made, Ok(made) if !made.edits.is_empty());
        let several = made.iter().filter(counts).count() > 1;
        let edited = draft.finish();
        let hosts: Vec<_> = requests.iter().flatten().filter_map(forced).collect();
        let served = match edited.edits.is_empty() {
            false => self.serve_edited(&kept, edited, &hosts),
            true => Ok(Outcome::unchanged(kept.saved)),
        };
        match served {
            Ok(outcome) => made
                .into_iter()
                .map(|made| Ok(outcome.of(made?, several)))
                .collect(),
            // One of them causes the failure.
            Err(ChangeError::Config(_) | ChangeError::Edit { .. }) if several => {
                let (first, rest) = requests.split_at(requests.len() / 2);
                let mut outcomes = self.edit_combined(first);
                outcomes.extend(self.edit_combined(rest));
                outcomes
            }
            Err(error) => made
                .into_iter()
                .map(|made| match made? {
                    EditResult { edits, .. } if !edits.is_empty() => {
                        Err(error.clone().of_change(&named(&[edits])))
                    }
                    made => Ok(Outcome::unchanged(kept.saved).of(made, false)),
                })
                .collect(),
        }
    }

    /// Serves the document with these edits, and keeps them. The controllers of `hosts` that use
    /// a key which is not accepted any more are disconnected.
    fn serve_edited(
        &self,
        kept: &ServedState,
        edited: Edited,
        hosts: &[Nqn],
    ) -> Result<Outcome, ChangeError> {
        let ready = kept.ready(&edited)?;
        let Edited {
            state, edits, held, ..
        } = edited;
        let recovered = self.recover(&edits)?;
        let unsynced = host_keys::sync(&edits);
        let keys = host_keys::to_read(&edits);
        let removal = self.manager().begin_removal(removed(&edits));
        let mut outcome = self.with_key_remarks(hosts, || {
            self.serve_with_ready(&kept.base, &state, &held, &ready, &keys)
        })?;
        outcome.report.changes.splice(0..0, recovered);
        let deferred = &self.kept().effective.deferred;
        let made = ready.iter().map(|one| &one.edit);
        let made = made.filter(|edit| !deferred.iter().any(|one| one.edit == **edit));
        outcome.warnings.extend(remarks_on_deferred(&[], made));
        outcome.warnings.extend(self.unprotect(removal));
        outcome.warnings.extend(self.key_remarks(&edits));
        outcome.warnings.extend(unsynced);
        outcome.log("change");
        Ok(outcome)
    }

    /// Whether the edit enables a faulted namespace.
    fn recovers(&self, edit: &Edit) -> bool {
        match edit {
            Edit::NamespaceEnable {
                subsystem,
                nsid,
                enabled: true,
            } => subsystem
                .as_ref()
                .is_none_or(|nqn| self.manager().is_faulted(nqn, *nsid)),
            _ => false,
        }
    }

    /// Reopens the faulted namespaces that are to be enabled. If one fails, the whole change fails.
    fn recover(&self, edits: &[Edit]) -> Result<Vec<Change>, ChangeError> {
        let mut changes = Vec::new();
        for edit in edits {
            if let Edit::NamespaceEnable {
                subsystem: Some(nqn),
                nsid,
                ..
            } = edit
                && self.recovers(edit)
            {
                changes.extend(self.manager().enable(nqn, *nsid)?.changes);
            }
        }
        Ok(changes)
    }

    /// Forgets what hosts set of removed namespaces. Returns a warning for each failure.
    fn unprotect(&self, removal: Removal<'_>) -> Vec<String> {
        let until = Instant::now() + FORGET;
        let failed = removal.names().iter().filter_map(|(subsystem, nsid)| {
            let most = until.saturating_duration_since(Instant::now());
            let forgotten = self.manager().forget_settings(subsystem, *nsid, most);
            Some(StillSet(forgotten.err()?).to_string())
        });
        let failed = failed.collect();
        drop(removal);
        failed
    }
}

/// The namespaces and subsystems that `edits` remove.
fn removed(edits: &[Edit]) -> Vec<Removed> {
    let removed = edits.iter().filter_map(|edit| {
        let (subsystem, nsid) = match edit {
            Edit::SubsystemRemove { nqn } => (nqn, None),
            Edit::NamespaceRemove {
                subsystem: Some(nqn),
                nsid,
            } => (nqn, Some(*nsid)),
            _ => return None,
        };
        Some((Nqn::new(subsystem).ok()?, nsid))
    });
    removed.collect()
}

/// The subsystem that `edits` add, if the document has it already with exactly these namespaces
/// and hosts: a client may repeat a request whose response it did not get.
fn exists(document: &Document, edits: &[Edit]) -> Option<String> {
    let Some(Edit::SubsystemAdd { nqn, .. }) = edits.first() else {
        return None;
    };
    let mut alone = Document::default();
    for edit in edits {
        let mut edit = edit.clone();
        alone.settle(&mut edit, &[]).ok()?;
        alone.make(&edit).ok()?;
    }
    let wanted = parsed(&alone)?;
    let same = subsystem(&wanted, nqn)? == subsystem(&parsed(document)?, nqn)?;
    (same && wanted.len() == 1).then(|| nqn.clone())
}

/// Without comments and the order of keys.
fn parsed(document: &Document) -> Option<toml::Table> {
    document.text().parse().ok()
}

fn subsystem<'a>(document: &'a toml::Table, nqn: &str) -> Option<&'a toml::Value> {
    let mut all = document.get("subsystem")?.as_array()?.iter();
    all.find(|one| one.get("nqn").and_then(toml::Value::as_str) == Some(nqn))
}

/// A short description of the edits of all requests.
pub(super) fn named(requests: &[Vec<Edit>]) -> String {
    let mut edits = requests.iter().flatten();
    let first = edits.next().map(ToString::to_string).unwrap_or_default();
    match edits.count() {
        0 => first,
        more => format!("{first}, and {more} more"),
    }
}

impl Outcome {
    fn unchanged(saved: bool) -> Self {
        Self {
            saved,
            ..Self::default()
        }
    }

    /// The outcome for one client, if `several` were applied together.
    fn of(&self, made: EditResult, several: bool) -> Self {
        let is_its = |subject: &Subject| made.edits.iter().any(|edit| is_about(edit, subject));
        let mut report = self.report.clone();
        if several {
            report.changes.retain(|change| is_its(&change.subject));
            report.disconnected.retain(|one| {
                let nqn = one.subnqn;
                made.edits.is_empty() || is_its(&Subject::Subsystem { nqn })
            });
        }
        if made.edits.is_empty() {
            report = Report::default();
        }
        let mut warnings = self.warnings.clone();
        warnings.extend(remarks_on_deferred(&made.forgotten, []));
        warnings.extend(made.remark);
        Self {
            report,
            edits: made.edits,
            // Only an applied document drops earlier changes.
            dropped: Vec::new(),
            saved: self.saved,
            warnings,
        }
    }
}

/// Whether an edit may have changed the subject. Ports, ANA groups and referrals are not
/// distinguished: an address has several forms.
fn is_about(edit: &Edit, subject: &Subject) -> bool {
    match (edit.slot(), subject) {
        (
            Slot::Namespace(nqn, nsid)
            | Slot::Enabled(nqn, nsid)
            | Slot::KeyOfNamespace(nqn, nsid, _),
            Subject::Namespace {
                nqn: its,
                nsid: number,
            },
        ) => nqn == its.as_str() && nsid == *number,
        (
            Slot::Subsystem(nqn) | Slot::KeyOfSubsystem(nqn, _) | Slot::Host(nqn, _),
            Subject::Namespace { nqn: its, .. }
            | Subject::Subsystem { nqn: its }
            | Subject::Host { nqn: its, .. },
        )
        | (
            Slot::Namespace(nqn, _) | Slot::Enabled(nqn, _) | Slot::KeyOfNamespace(nqn, ..),
            Subject::Subsystem { nqn: its },
        ) => nqn == its.as_str(),
        (
            Slot::HostKeys(host) | Slot::HostKeyFiles(host) | Slot::OldHostKey(host),
            Subject::HostKey { host: its },
        ) => host == its.as_str(),
        (
            Slot::Port(_) | Slot::KeyOfPort(..) | Slot::Ana(..) | Slot::Referral(_),
            Subject::Port { .. }
            | Subject::Discovery
            | Subject::Referral { .. }
            | Subject::AnaGroup { .. },
        ) => true,
        _ => false,
    }
}

/// Refuses relative paths: a client and the target have different working directories, so another
/// file could be served.
fn check_path(edit: &Edit) -> Result<(), super::EditError> {
    host_keys::check_texts(edit)?;
    let path = match edit {
        Edit::NamespaceAdd(add) => &add.path,
        Edit::NamespaceSet {
            key,
            value: Some(value),
            ..
        } if key == "path" => value.trim_matches(['"', '\'']),
        _ => return Ok(()),
    };
    if is_relative(path) {
        return refusal("path", format!("{path:?} {RELATIVE}"));
    }
    Ok(())
}
