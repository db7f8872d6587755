//! Answers for administrators: the state of a group and its causes.

use std::fmt;

use crate::candidates::{exclusion, failures, ranked};
use crate::config::GroupConfig;
use crate::record::Group;
use crate::view::View;

/// A gateway of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its name.
    pub gateway: String,
    /// Its position among the candidates, from 0; `None` if it is none.
    pub rank: Option<usize>,
    /// Why it is no candidate, or what it failed at.
    pub reason: Option<String>,
}

/// The state of a group as this gateway sees it. Displays as text of several lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// ANAGRPID.
    pub id: u32,
    /// The group in the record.
    pub group: Group,
    /// Its gateways in the order of priority.
    pub candidates: Vec<Candidate>,
    /// The last failure of this gateway.
    pub last_error: Option<String>,
}

impl Why {
    pub(crate) fn new(
        view: &View<'_>,
        config: &GroupConfig,
        group: Group,
        last_error: Option<&str>,
    ) -> Self {
        let order = ranked(view, config, &group);
        let candidate = |name: &String| {
            let failed = || {
                let reason = group.failures.get(name).map(|it| it.reason.as_str());
                let times = failures(view, &group, name);
                (times > 0).then(|| format!("gave up {times} times: {}", reason.unwrap_or("")))
            };
            Candidate {
                gateway: name.clone(),
                rank: order.iter().position(|it| it == name),
                reason: exclusion(view, name).or_else(failed),
            }
        };
        let candidates = config.gateways.iter().map(candidate).collect();
        Self {
            id: config.id,
            candidates,
            group,
            last_error: last_error.map(str::to_owned),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Group {
            owner,
            epoch,
            phase,
            since_s,
            ..
        } = &self.group;
        let owner = owner.as_ref().map_or("none", |owner| &owner.gateway);
        writeln!(
            f,
            "group {}: owner {owner}, epoch {epoch}, {phase:?} since {since_s}",
            self.id
        )?;
        if let Some(last) = &self.group.last {
            let from = last.from.as_deref().unwrap_or("none");
            writeln!(f, "  last takeover: from {from}: {}", last.why)?;
            if let Some(at) = last.fenced_at_s {
                writeln!(f, "  fenced at {at}: {}", last.fenced.join(", "))?;
            }
        }
        if !self.group.to_fence.is_empty() {
            writeln!(f, "  not fenced yet: {}", self.group.to_fence.join(", "))?;
        }
        if let Some(wish) = &self.group.wish {
            writeln!(f, "  moves to {}: {:?}", wish.gateway, wish.reason)?;
        }
        for (name, text) in [("note", &self.group.note), ("error", &self.last_error)] {
            if let Some(text) = text {
                writeln!(f, "  {name}: {text}")?;
            }
        }
        for candidate in &self.candidates {
            let rank = match candidate.rank {
                Some(rank) => format!("candidate {rank}"),
                None => "no candidate".to_owned(),
            };
            let reason = candidate.reason.as_deref();
            let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
            writeln!(f, "  {}: {rank}{reason}", candidate.gateway)?;
        }
        Ok(())
    }
}
