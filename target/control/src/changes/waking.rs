//! Edits that were deferred and can be made again.

use super::ChangeError;
use super::Outcome;
use super::Planned;
use super::effective::{Base, Effective};
use super::keeper::{Keeper, Kept};
use super::state::State;
use super::together::Edited;
use nvmeof_target_api::Deferred;
use nvmeof_target_api::Edit;
use nvmeof_target_config::ConfigError;

/// What became of edits that were deferred.
pub(super) fn told<'a>(
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

impl Kept {
    /// Edits deferred that fit the document once it is `edited`. What they name
    /// may be missing all the same.
    ///
    /// # Errors
    /// When the base by itself cannot be served.
    pub(super) fn waking(&self, edited: &Edited) -> Result<Vec<Deferred>, ConfigError> {
        let Edited {
            state,
            edits,
            resting,
            ..
        } = edited;
        let next = Effective::of(&self.base, &state.edits, resting)?.deferred;
        let has = |all: &[Deferred], edit: &Edit| all.iter().any(|one| one.edit == *edit);
        let mut waking = self.effective.deferred.clone();
        waking.retain(|Deferred { edit, .. }| {
            // One that is given up, and one that was made anew, are none.
            state.edits.contains(edit) && !edits.contains(edit) && !has(&next, edit)
        });
        Ok(waking)
    }
}

impl Keeper {
    /// What serving that would change, and whether `waking` can be in effect then, all of
    /// them. If not, it is with none of them.
    pub(super) fn plan_waking(
        &self,
        base: &Base,
        state: &State,
        resting: &[Deferred],
        waking: &[Deferred],
    ) -> Result<(Planned, bool), ConfigError> {
        let plan = |resting: &[Deferred]| {
            let effective = Effective::of(base, &state.edits, resting)?;
            Ok::<_, ConfigError>(Planned {
                plan: self.manager().plan(&effective.config)?,
                dropped: Vec::new(),
                warnings: effective.defer(&self.kept().effective.deferred),
            })
        };
        match plan(resting) {
            Err(_) if !waking.is_empty() => Ok((plan(&[resting, waking].concat())?, false)),
            planned => Ok((planned?, true)),
        }
    }

    /// As [`serve`](Self::serve), with those of `waking` in effect that can be
    /// served: all, or what is left when each was tried. The others rest, as
    /// `resting` do anyway.
    pub(super) fn serve_waking(
        &self,
        base: &Base,
        state: &State,
        resting: &[Deferred],
        waking: &[Deferred],
    ) -> Result<Outcome, ChangeError> {
        let serve = |resting: Vec<Deferred>| self.serve(base.clone(), state.clone(), resting);
        match serve(resting.to_vec()) {
            Err(ChangeError::Config(_)) if !waking.is_empty() => {}
            served => return served,
        }
        let mut asleep = [resting, waking].concat();
        let mut outcome = serve(asleep.clone())?;
        for Deferred { edit, .. } in waking {
            let mut fewer = asleep.clone();
            fewer.retain(|one| one.edit != *edit);
            match serve(fewer.clone()) {
                Ok(next) => {
                    outcome.goes_on(next);
                    asleep = fewer;
                }
                Err(error) => {
                    let mut its = asleep.iter_mut().filter(|one| one.edit == *edit);
                    if let (Some(one), ChangeError::Config(error)) = (its.next(), error) {
                        error.what().clone_into(&mut one.why);
                    }
                }
            }
        }
        // With the reasons that were found.
        if let Ok(last) = serve(asleep) {
            outcome.goes_on(last);
        }
        Ok(outcome)
    }
}

impl Outcome {
    /// What came of the next part of the same change.
    fn goes_on(&mut self, next: Self) {
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
