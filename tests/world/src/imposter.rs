//! Hostile peers that use the name of an honest host without having its key.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_initiator::polled::{AdminConfig, AdminQueue, IoConfig, IoQueue};
use nvmeof_initiator_core::{ControllerInfo, Names, QueueShape};
use nvmeof_rdma::Address;
use nvmeof_rdma_layers::{Dice, OneIn};

use crate::host::{Host, authentication_refusal};
use crate::keys::Keys;
use crate::medium::Medium;
use crate::oracle::Wrong;

/// The address of all of them, which no honest host has.
pub(crate) const IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 1, 1));

/// They attack for this time, and are away for the same time: the oracle expects least of writes
/// that were lost while the target has only the queue pairs of honest hosts.
const SPELL: Duration = Duration::from_millis(150);
/// Attempts of all of them in a run, which take real time.
const MOST: u32 = 300;
/// How long one that stopped is silent before it leaves.
const SILENCE: Duration = Duration::from_millis(120);

/// All of them.
pub(crate) struct Imposters {
    all: Vec<Imposter>,
    medium: Medium,
    dice: Dice,
    attempts: u32,
    /// How often a wrong key was refused.
    pub(crate) refused: u64,
}

enum Imposter {
    Away { until: Duration },
    Attacks(Attack),
}

/// One connection.
struct Attack {
    queue: Queue,
    /// It stops after so many polls with progress: at any step of the authentication.
    polls: usize,
    /// When it leaves after it stopped.
    until: Duration,
}

enum Queue {
    /// As a new controller.
    Admin(Box<AdminQueue>),
    /// As a queue of the honest host's controller.
    Io(Box<IoQueue>),
}

impl Imposters {
    pub(crate) fn new(count: usize, medium: &Medium, seed: u64) -> Self {
        let one = || Imposter::Away {
            until: Duration::ZERO,
        };
        Self {
            all: (0..count).map(|_| one()).collect(),
            medium: medium.clone(),
            dice: Dice::new(seed),
            attempts: 0,
            refused: 0,
        }
    }

    pub(crate) fn are_none(&self) -> bool {
        self.all.is_empty()
    }

    /// All leave for good.
    pub(crate) fn leave(&mut self) {
        self.all.clear();
    }

    /// Makes progress. Returns whether there was any.
    ///
    /// # Errors
    /// When one got a controller or a queue.
    pub(crate) fn poll(&mut self, hosts: &[Host], now: Duration) -> Result<bool, Wrong> {
        let mut progress = false;
        for at in 0..self.all.len() {
            let attack = match &mut self.all[at] {
                Imposter::Away { until } if now < *until => continue,
                Imposter::Away { .. } => {
                    progress = true;
                    self.all[at] = self.begin(hosts, now);
                    continue;
                }
                Imposter::Attacks(attack) => attack,
            };
            let ends = attack.polls == 0 && now >= attack.until;
            progress |= attack.poll(now)?;
            if attack.is_refused() {
                self.refused += 1;
            }
            if ends || attack.is_over() || !is_time(now) {
                let pause = [0, 3, 20][self.dice.below(3)];
                self.all[at] = Imposter::Away {
                    until: next_time(now + Duration::from_millis(pause)),
                };
                progress = true;
            }
        }
        Ok(progress)
    }

    /// When the first of them must be polled.
    pub(crate) fn next_deadline(&self, now: Duration) -> Option<Duration> {
        let times = self.all.iter().filter_map(|one| match one {
            Imposter::Away { until } => (*until < Duration::MAX).then_some(*until),
            Imposter::Attacks(attack) => {
                let end = spell_end(now);
                Some(attack.next_deadline().map_or(end, |at| at.min(end)))
            }
        });
        times.min()
    }

    fn begin(&mut self, hosts: &[Host], now: Duration) -> Imposter {
        self.attempts += 1;
        let away = |until| Imposter::Away { until };
        if self.attempts > MOST {
            return away(Duration::MAX);
        }
        let victim = &hosts[self.dice.below(hosts.len())];
        let keys = (!self.dice.happens(OneIn(4))).then(Keys::wrong);
        let names = Names {
            keys,
            ..victim.names()
        };
        let info = victim.info().filter(|_| self.dice.happens(OneIn(2)));
        let Some(queue) = self.connect(victim, names, info, now) else {
            return away(now + Duration::from_millis(5));
        };
        let polls = match self.dice.below(2) {
            0 => self.dice.below(12),
            _ => usize::MAX,
        };
        Imposter::Attacks(Attack {
            queue,
            polls,
            until: now + SILENCE,
        })
    }

    fn connect(
        &mut self,
        victim: &Host,
        names: Names,
        info: Option<Arc<ControllerInfo>>,
        now: Duration,
    ) -> Option<Queue> {
        let provider = self.medium.provider(IP);
        let target: Address = victim.target;
        let Some(info) = info else {
            let mut config: AdminConfig = victim.admin_config();
            config.setup.names = names;
            let queue = AdminQueue::connect(provider, target, config, now);
            return Some(Queue::Admin(Box::new(queue.ok()?)));
        };
        let config = IoConfig {
            names,
            queue: QueueShape {
                qid: 1 + u16::try_from(self.dice.below(4)).unwrap(),
                size: 8,
                flow_control: true,
            },
            command_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(2),
            trusts_target: false,
        };
        let queue = IoQueue::connect(provider, target, &info, config, now);
        Some(Queue::Io(Box::new(queue.ok()?)))
    }
}

/// Whether they attack at this time.
fn is_time(now: Duration) -> bool {
    (now.as_millis() / SPELL.as_millis()).is_multiple_of(2)
}

/// The end of the spell in which `now` is.
fn spell_end(now: Duration) -> Duration {
    let spells = u32::try_from(now.as_millis() / SPELL.as_millis()).unwrap();
    SPELL * (spells + 1)
}

/// `at`, or the begin of the next attack.
fn next_time(at: Duration) -> Duration {
    if is_time(at) { at } else { spell_end(at) }
}

impl Attack {
    fn poll(&mut self, now: Duration) -> Result<bool, Wrong> {
        if self.polls == 0 {
            return Ok(false);
        }
        let mut done = Vec::new();
        let (progress, has_it) = match &mut self.queue {
            Queue::Admin(queue) => (queue.poll(now, &mut done), queue.info().is_some()),
            Queue::Io(queue) => (queue.poll(now, &mut done), queue.is_ready()),
        };
        if has_it {
            return Err(Wrong(format!(
                "a peer without the key got {}",
                match self.queue {
                    Queue::Admin(_) => "a controller",
                    Queue::Io(_) => "a queue",
                }
            )));
        }
        self.polls -= usize::from(progress);
        Ok(progress)
    }

    fn error(&self) -> Option<&nvmeof_initiator::Error> {
        match &self.queue {
            Queue::Admin(queue) => queue.error(),
            Queue::Io(queue) => queue.error(),
        }
    }

    fn is_over(&self) -> bool {
        self.error().is_some()
    }

    fn is_refused(&self) -> bool {
        self.error()
            .is_some_and(|error| authentication_refusal(error).is_some())
    }

    fn next_deadline(&self) -> Option<Duration> {
        if self.polls == 0 {
            return Some(self.until);
        }
        match &self.queue {
            Queue::Admin(queue) => queue.next_deadline(),
            Queue::Io(queue) => queue.next_deadline(),
        }
    }
}
