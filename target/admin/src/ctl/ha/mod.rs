//! `ctl ha`: shows high availability, and moves groups between gateways.

mod progress;
#[cfg(test)]
mod tests;
mod text;

use std::thread::sleep;
use std::time::{Duration, Instant};

use axum::http::Method;
use clap::{Args, Subcommand};
use nvmeof_target_api::{HaGatewayIn, HaMoveIn, HaOut};
use nvmeof_wire::text::Escaped;
use serde_json::{Value, json};

use super::print::{self, wrapped};
use super::{Ctl, Failed, Format};
use progress::{Awaited, Progress, Step};

/// High availability.
#[derive(Debug, Args)]
pub(super) struct OfHa {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show gateways and groups (default).
    Show,
    /// Show why each group is where it is: last takeover, fenced clients, candidates.
    Why {
        /// ANA group ID [default: all groups].
        group: Option<u32>,
    },
    /// Move a group to a gateway, and wait until the gateway serves it.
    ///
    /// Fail-back does not undo it.
    Move {
        /// ANA group ID.
        group: u32,
        /// Name of the gateway.
        gateway: String,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Move all groups of a gateway to others, and wait until it owns none.
    ///
    /// It takes no group until it is resumed. A group that no other gateway can take stays.
    Drain {
        /// Name of the gateway [default: this gateway].
        gateway: Option<String>,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// End a drain.
    ///
    /// Groups return by fail-back or by `ctl ha move`.
    Resume {
        /// Name of the gateway [default: this gateway].
        gateway: Option<String>,
    },
    /// Remove a gateway that no longer exists from the record.
    ///
    /// It must be stopped, or its lease must have expired.
    Forget {
        /// Name of the gateway.
        gateway: String,
    },
}

#[derive(Clone, Copy, Debug, Args)]
struct Waiting {
    /// Return when the order is accepted.
    #[arg(long)]
    no_wait: bool,
}

/// How long a command waits for the effect of an order.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// How often it checks the state.
const INTERVAL: Duration = Duration::from_millis(500);

impl Ctl {
    pub(super) fn ha(&self, it: &OfHa) -> Result<(), Failed> {
        match &it.what {
            None | Some(What::Show) => self.get("/v1/ha", text::show),
            Some(What::Why { group }) => self.ha_why(*group),
            Some(What::Move {
                group,
                gateway,
                waiting,
            }) => {
                let (group, gateway) = (*group, gateway.clone());
                self.ha_order(&Awaited::Move { group, gateway }, *waiting)
            }
            Some(What::Drain { gateway, waiting }) => {
                let gateway = self.or_this(gateway.as_ref())?;
                self.ha_order(&Awaited::Drain { gateway }, *waiting)
            }
            Some(What::Resume { gateway }) => {
                let gateway = self.or_this(gateway.as_ref())?;
                let done = format!(
                    "ordered: end the drain of gateway {}; groups return by fail-back or by \
                     `ctl ha move`",
                    Escaped(&gateway)
                );
                self.ha_post("/v1/ha/resume", gateway, &done)
            }
            Some(What::Forget { gateway }) => {
                let done = format!(
                    "ordered: remove gateway {} from the record; it joins again if it starts again",
                    Escaped(gateway)
                );
                self.ha_post("/v1/ha/forget", gateway.clone(), &done)
            }
        }
    }

    /// The state of one group, or of all.
    fn ha_why(&self, group: Option<u32>) -> Result<(), Failed> {
        let mut all = self.ha_state()?;
        if let Some(group) = group {
            all.groups.retain(|one| one.group == group);
            if all.groups.is_empty() {
                return Err(Failed::Usage(format!(
                    "group {group}: not configured; `ctl ha` lists the groups"
                )));
            }
        }
        self.print(json!(all), text::why)
    }

    fn ha_state(&self) -> Result<HaOut, Failed> {
        let reply = self.caller().ask(Method::GET, "/v1/ha", None)?;
        self.parsed(reply)
    }

    /// The gateway, or the one that this target is.
    fn or_this(&self, gateway: Option<&String>) -> Result<String, Failed> {
        match gateway {
            Some(gateway) => Ok(gateway.clone()),
            None => Ok(self.ha_state()?.gateway),
        }
    }

    fn ha_post(&self, path: &str, gateway: String, done: &str) -> Result<(), Failed> {
        let body = json!(HaGatewayIn { gateway });
        self.post(path, &body, |_: &HaOut| wrapped(done))
    }

    /// Orders a change and waits until the record shows it.
    fn ha_order(&self, awaited: &Awaited, waiting: Waiting) -> Result<(), Failed> {
        let before = match waiting.no_wait {
            true => None,
            false => Some(self.ha_state()?),
        };
        let (path, body) = request(awaited);
        let reply = self.caller().ask(Method::POST, path, Some(&body))?;
        self.say(&awaited.ordered());
        let last = match before {
            None => self.parsed(reply)?,
            Some(before) => self.wait(Progress::new(awaited, &before))?,
        };
        if self.output_format == Format::Json {
            print::out_json(&json!(last));
        }
        Ok(())
    }

    /// Waits, and prints what changes.
    fn wait(&self, mut progress: Progress<'_>) -> Result<HaOut, Failed> {
        let until = Instant::now() + LONGEST_WAIT;
        loop {
            let state = self.ha_state()?;
            match progress.step(&state) {
                Step::Done(text) => {
                    self.say(&text);
                    return Ok(state);
                }
                Step::Failed(text) => return Err(Failed::NotDone(text)),
                Step::Changed(text) => self.say(&text),
                Step::Same => {}
            }
            if Instant::now() >= until {
                return Err(Failed::NotDone(progress.too_late(&state, LONGEST_WAIT)));
            }
            sleep(INTERVAL);
        }
    }

    /// Prints text for people.
    fn say(&self, text: &str) {
        if self.output_format == Format::Normal {
            print::out(&wrapped(text));
        }
    }
}

fn request(awaited: &Awaited) -> (&'static str, Value) {
    match awaited.clone() {
        Awaited::Move { group, gateway } => ("/v1/ha/move", json!(HaMoveIn { group, gateway })),
        Awaited::Drain { gateway } => ("/v1/ha/drain", json!(HaGatewayIn { gateway })),
    }
}
