//! Deferred edits that fit again.

use super::ChangeError;
use super::Outcome;
use super::Planned;
use super::effective::{Base, Effective};
use super::keeper::{Keeper, ServedState};
use super::state::State;
use super::together::Edited;
use nvmeof_target_api::Deferred;
use nvmeof_target_api::Edit;
use nvmeof_target_config::ConfigError;
use nvmeof_target_manage::KeysToRead;

/// Remarks on deferred edits that were forgotten or applied.
pub(super) fn remarks_on_deferred<'a>(
    forgotten: &[Edit],
    made: impl IntoIterator<Item = &'a Edit>,
) -> Vec<String> {
    let forgotten = forgotten
        .iter()
        .map(|edit| format!("forgotten: the deferred change that this one replaces: {edit}"));
    let made = made.into_iter();
    let made = made.map(|edit| format!("applied: the deferred change that fits now: {edit}"));
    forgotten.chain(made).collect()
}

impl ServedState {
    /// Deferred edits that fit the `edited` document. Their objects may still be unavailable.
    ///
    /// # Errors
    /// If the base alone is invalid.
    pub(super) fn ready(&self, edited: &Edited) -> Result<Vec<Deferred>, ConfigError> {
        let Edited {
            state, edits, held, ..
        } = edited;
        let next = Effective::of(&self.base, &state.edits, held)?.deferred;
        let has = |all: &[Deferred], edit: &Edit| all.iter().any(|one| one.edit == *edit);
        let mut ready = self.effective.deferred.clone();
        ready.retain(|Deferred { edit, .. }| {
            // Not one that was forgotten, and not one that was requested again.
            state.edits.contains(edit) && !edits.contains(edit) && !has(&next, edit)
        });
        Ok(ready)
    }
}

impl Keeper {
    /// Plans serving `state`, and returns whether all edits of `ready` can take effect with it. If
    /// not, the plan is without any of them.
    pub(super) fn plan_with_ready(
        &self,
        base: &Base,
        state: &State,
        held: &[Deferred],
        ready: &[Deferred],
        keys: &KeysToRead,
    ) -> Result<(Planned, bool), ConfigError> {
        let plan = |held: &[Deferred]| {
            let effective = Effective::of(base, &state.edits, held)?;
            Ok::<_, ConfigError>(Planned {
                plan: self.manager().plan_with(&effective.config, keys)?,
                dropped: Vec::new(),
                warnings: effective.warnings(&self.kept().effective.deferred),
            })
        };
        match plan(held) {
            Err(_) if !ready.is_empty() => Ok((plan(&[held, ready].concat())?, false)),
            planned => Ok((planned?, true)),
        }
    }

    /// As [`serve`](Self::serve), with the edits of `ready` that can be served: all of them, or
    /// those that succeed when each is tried separately. The others stay deferred, as those of
    /// `held` do.
    pub(super) fn serve_with_ready(
        &self,
        base: &Base,
        state: &State,
        held: &[Deferred],
        ready: &[Deferred],
        keys: &KeysToRead,
    ) -> Result<Outcome, ChangeError> {
        let serve = |held: Vec<Deferred>| self.serve(base.clone(), state.clone(), held, keys);
        match serve(held.to_vec()) {
            Err(ChangeError::Config(_)) if !ready.is_empty() => {}
            served => return served,
        }
        let mut held = [held, ready].concat();
        let mut outcome = serve(held.clone())?;
        for Deferred { edit, .. } in ready {
            let mut fewer = held.clone();
            fewer.retain(|one| one.edit != *edit);
            match serve(fewer.clone()) {
                Ok(next) => {
                    outcome.append(next);
                    held = fewer;
                }
                Err(error) => {
                    let mut its = held.iter_mut().filter(|one| one.edit == *edit);
                    if let (Some(one), ChangeError::Config(error)) = (its.next(), error) {
                        error.what().clone_into(&mut one.why);
                    }
                }
            }
        }
        // With the reasons of the failures.
        if let Ok(last) = serve(held) {
            outcome.append(last);
        }
        Ok(outcome)
    }
}

impl Outcome {
    /// Adds the outcome of the next part of the same change.
    fn append(&mut self, next: Self) {
        let Self {
            report,
            saved,
            warnings,
            ..
        } = next;
        self.report.changes.extend(report.changes);
        self.report.disconnected.extend(report.disconnected);
        self.report.remarks = report.remarks;
        (self.saved, self.warnings) = (saved, warnings);
    }
}
