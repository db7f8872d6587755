//! Ranges of controller identifiers of subsystems. Several targets that serve one
//! subsystem use different ranges.

use std::fmt;
use std::ops::RangeInclusive;

use super::build::wrong;
use super::{Location, Model, ModelError, Subsystem};

/// A range of controller identifiers. The default is all valid ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ControllerIds {
    min: u16,
    max: u16,
}

/// The identifiers that a new controller may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice<'a> {
    pub(crate) ids: ControllerIds,
    /// Ranges of other subsystems, used only if no other identifier is free. Sorted and
    /// not adjacent.
    pub(crate) kept: &'a [ControllerIds],
}

impl ControllerIds {
    /// Base 2.1, 3.1.2: FFF0h to FFFFh are reserved. 0 is not used, because Linux takes it
    /// for no identifier.
    pub const ALL: Self = Self {
        min: 1,
        max: 0xffef,
    };

    /// The lowest.
    #[must_use]
    pub fn min(self) -> u16 {
        self.min
    }

    /// The highest.
    #[must_use]
    pub fn max(self) -> u16 {
        self.max
    }

    /// Whether the range contains `cntlid`.
    #[must_use]
    pub fn contains(self, cntlid: u16) -> bool {
        (self.min..=self.max).contains(&cntlid)
    }
}

impl Default for ControllerIds {
    fn default() -> Self {
        Self::ALL
    }
}

impl fmt::Display for ControllerIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.min, self.max)
    }
}

impl Choice<'_> {
    /// The first free identifier, searched from `start` to the end of the range and then
    /// from its begin; from its begin if `start` is outside.
    pub(crate) fn first_free(&self, start: u16, taken: impl Fn(u16) -> bool) -> Option<u16> {
        let ControllerIds { min, max } = self.ids;
        let start = if self.ids.contains(start) { start } else { min };
        let parts = || [start..=max, min..=start.saturating_sub(1)];
        let mut first = parts().into_iter();
        first
            .find_map(|part| free(part, self.kept, &taken))
            .or_else(|| parts().into_iter().find_map(|part| free(part, &[], &taken)))
    }
}

/// The first of `ids` that is neither taken nor reserved. The number of steps is bounded by
/// the taken identifiers and reserved ranges.
fn free(
    ids: RangeInclusive<u16>,
    kept: &[ControllerIds],
    taken: impl Fn(u16) -> bool,
) -> Option<u16> {
    let mut at = *ids.start();
    while at <= *ids.end() {
        let next = kept.partition_point(|one| one.max < at);
        if let Some(one) = kept.get(next).filter(|one| one.contains(at)) {
            at = one.max;
        } else if !taken(at) {
            return Some(at);
        }
        at = at.checked_add(1)?;
    }
    None
}

impl Model {
    /// The identifiers for a controller of `subsystem`; `None` for a discovery controller.
    /// A subsystem without a configured range avoids the ranges of other subsystems.
    pub(crate) fn controller_ids(&self, subsystem: Option<&Subsystem>) -> Choice<'_> {
        let ids = subsystem.map_or(ControllerIds::ALL, |subsystem| subsystem.controller_ids);
        let kept: &[_] = match ids {
            ControllerIds::ALL => &self.reserved_ids,
            _ => &[],
        };
        Choice { ids, kept }
    }
}

/// The configured ranges of subsystems: sorted, with overlapping and adjacent ones merged.
pub(super) fn kept<'a>(subsystems: impl Iterator<Item = &'a Subsystem>) -> Vec<ControllerIds> {
    let all = subsystems.map(|subsystem| subsystem.controller_ids);
    let mut all: Vec<_> = all.filter(|ids| *ids != ControllerIds::ALL).collect();
    all.sort_unstable();
    let mut joined: Vec<ControllerIds> = Vec::new();
    for ids in all {
        match joined.last_mut() {
            Some(last) if ids.min <= last.max.saturating_add(1) => {
                last.max = last.max.max(ids.max);
            }
            _ => joined.push(ids),
        }
    }
    joined
}

/// Checks the range of a subsystem at `location`; the default is all identifiers.
pub(super) fn checked(
    location: Location,
    min: Option<u32>,
    max: Option<u32>,
) -> Result<ControllerIds, ModelError> {
    let ControllerIds {
        min: low,
        max: high,
    } = ControllerIds::ALL;
    let one = |key, value: Option<u32>, default| {
        let given = value.unwrap_or_else(|| u32::from(default));
        let fits = u16::try_from(given).ok();
        fits.filter(|one| (low..=high).contains(one))
            .ok_or_else(|| wrong(location, key, given, &format!("must be {low} to {high}")))
    };
    let (min, max) = (one("cntlid_min", min, low)?, one("cntlid_max", max, high)?);
    if min > max {
        let why = format!("exceeds cntlid_max, which is {max}; lower it, or raise cntlid_max");
        return Err(wrong(location, "cntlid_min", min, &why));
    }
    Ok(ControllerIds { min, max })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{port, subsystem};
    use crate::{Limits, SubsystemSpec};

    fn ids(min: u16, max: u16) -> ControllerIds {
        ControllerIds { min, max }
    }

    fn spec(name: usize, min: Option<u32>, max: Option<u32>) -> SubsystemSpec {
        SubsystemSpec {
            nqn: format!("nqn.2026-11.org.example:{name}"),
            cntlid_min: min,
            cntlid_max: max,
            ..subsystem()
        }
    }

    fn built(specs: &[SubsystemSpec]) -> Result<Model, ModelError> {
        Model::build(Limits::default(), &[port()], specs)
    }

    #[test]
    fn subsystem_has_its_configured_range() {
        let of = |min, max| -> Result<_, ModelError> {
            let model = built(&[spec(1, min, max)])?;
            Ok(model.subsystems()[0].controller_ids)
        };
        assert_eq!(of(None, None).unwrap(), ids(1, 65_519));
        assert_eq!(of(Some(100), None).unwrap(), ids(100, 65_519));
        assert_eq!(of(None, Some(99)).unwrap(), ids(1, 99));
        assert_eq!(of(Some(7), Some(7)).unwrap(), ids(7, 7));
        let rows = [
            (Some(0), None, "cntlid_min"),
            (Some(65_520), None, "cntlid_min"),
            (Some(70_000), None, "cntlid_min"),
            (None, Some(65_520), "cntlid_max"),
            (None, Some(0), "cntlid_max"),
            (Some(100), Some(99), "cntlid_min"),
        ];
        for (min, max, key) in rows {
            let error = of(min, max).unwrap_err();
            assert_eq!(error.location, Location::Subsystem(0));
            assert_eq!(error.key, key, "{min:?} {max:?}");
        }
    }

    #[test]
    fn ranges_of_other_subsystems_are_avoided() {
        let model = built(&[
            spec(1, Some(200), Some(300)),
            spec(2, None, None),
            spec(3, Some(1), Some(2)),
            spec(4, Some(3), Some(4)),
            spec(5, Some(250), Some(260)),
        ]);
        let model = model.unwrap();
        let choice = |at: usize| model.controller_ids(model.subsystems().get(at).map(|it| &**it));
        assert_eq!(choice(1).kept, [ids(1, 4), ids(200, 300)]);
        assert_eq!(choice(9).ids, ControllerIds::ALL);
        assert_eq!(choice(9).kept, choice(1).kept);
        assert!(choice(0).kept.is_empty());
        assert_eq!(choice(1).first_free(1, |_| false), Some(5));
        assert_eq!(choice(1).first_free(200, |_| false), Some(301));
        assert_eq!(choice(2).first_free(2, |_| false), Some(2));
        // As a last resort, one of theirs.
        let all = Choice {
            ids: ids(1, 4),
            kept: choice(1).kept,
        };
        assert_eq!(all.first_free(3, |_| false), Some(3));
    }

    proptest! {
        /// A free identifier is found if there is one: the next one after the start.
        #[test]
        fn next_free_identifier_is_found(
            min in 1..40u16,
            len in 0..20u16,
            start in 0..70u16,
            taken in prop::collection::btree_set(1..60u16, 0..60),
            kept in prop::collection::vec((1..60u16, 0..10u16), 0..4),
        ) {
            let mine = ids(min, min + len);
            let specs: Vec<_> = kept.iter().zip(0..).map(|((min, len), name)| {
                let (min, max) = (u32::from(*min), u32::from(min + len));
                spec(name, Some(min), Some(max))
            }).collect();
            let model = built(&specs).unwrap();
            let theirs = model.controller_ids(None).kept;
            let found = Choice { ids: mine, kept: theirs }
                .first_free(start, |one| taken.contains(&one));
            let start = if mine.contains(start) { start } else { min };
            let order: Vec<u16> = (start..=min + len).chain(min..start).collect();
            let free = |one: &&u16| !taken.contains(one);
            let its = |one: &u16| kept.iter().any(|(low, len)| (*low..=low + len).contains(one));
            let alone = |one: &&u16| !its(one);
            let best = order.iter().filter(free).find(alone);
            let expected = best.or_else(|| order.iter().find(free));
            prop_assert_eq!(found.as_ref(), expected);
        }
    }
}
