//! Command lines of the reservation commands.

use clap::{Arg, Args};
use nvmeof_initiator::{
    AcquireAction, Identity, PersistChange, RegisterAction, ReleaseAction, ReservationAcquire,
    ReservationRegister, ReservationRelease, ReservationType,
};

use super::numbers::{is_number, number};
use super::{Io, Target};
use crate::failure::Failure;

/// `resv-register`
#[derive(Args, Debug)]
#[command(mut_arg("hostid", registered_hostid))]
pub(crate) struct ResvRegister {
    #[command(flatten)]
    pub(crate) io: Io,
    /// Action: register (0), unregister (1) or replace (2) the key of this host
    #[arg(short = 'r', long, value_name = "ACTION", default_value = "register",
          value_parser = choice(REGISTER_ACTIONS))]
    rrega: u8,
    /// New key, to register or replace; not 0
    #[arg(long, value_name = "N", value_parser = number::<u64>(0..=u64::MAX))]
    nrkey: Option<u64>,
    /// Current key, to unregister or replace
    #[arg(short = 'c', long, value_name = "N", value_parser = number::<u64>(0..=u64::MAX))]
    crkey: Option<u64>,
    /// Unregister or replace without a check of the current key
    #[arg(long)]
    iekey: bool,
    /// Reservations and registrations of the namespace after a loss of power: keep (0)
    /// the setting, clear (2) them, or set (3): they persist
    #[arg(short = 'p', long, value_name = "CHANGE", default_value = "keep",
          value_parser = choice(PERSIST_CHANGES))]
    cptpl: u8,
}

/// `resv-acquire`
#[derive(Args, Debug)]
#[command(mut_arg("hostid", registered_hostid))]
pub(crate) struct ResvAcquire {
    #[command(flatten)]
    pub(crate) io: Io,
    /// Action: acquire (0), preempt (1), or preempt-and-abort (2)
    #[arg(long, value_name = "ACTION", default_value = "acquire",
          value_parser = choice(ACQUIRE_ACTIONS))]
    racqa: u8,
    /// Type: write-exclusive (1), exclusive-access (2), write-exclusive-reg-only (3),
    /// exclusive-access-reg-only (4), write-exclusive-all-regs (5) or
    /// exclusive-access-all-regs (6)
    #[arg(long, value_name = "TYPE", value_parser = choice(TYPES))]
    rtype: u8,
    /// Key with which this host is registered
    #[arg(short = 'c', long, value_name = "N", value_parser = number::<u64>(0..=u64::MAX))]
    crkey: u64,
    /// Key of the hosts to preempt; 0 for all others, if all registrants hold the
    /// reservation
    #[arg(short = 'p', long, value_name = "N", value_parser = number::<u64>(0..=u64::MAX))]
    prkey: Option<u64>,
}

/// `resv-release`
#[derive(Args, Debug)]
#[command(mut_arg("hostid", registered_hostid))]
pub(crate) struct ResvRelease {
    #[command(flatten)]
    pub(crate) io: Io,
    /// Action: release (0) the reservation of this host, or clear (1) reservation and
    /// registrations of all hosts
    #[arg(long, value_name = "ACTION", default_value = "release",
          value_parser = choice(RELEASE_ACTIONS))]
    rrela: u8,
    /// Type of the reservation to release, with the names and numbers of resv-acquire
    #[arg(long, value_name = "TYPE", value_parser = choice(TYPES))]
    rtype: Option<u8>,
    /// Key with which this host is registered
    #[arg(short = 'c', long, value_name = "N", value_parser = number::<u64>(0..=u64::MAX))]
    crkey: u64,
}

/// `resv-report`
#[derive(Args, Debug)]
pub(crate) struct ResvReport {
    #[command(flatten)]
    pub(crate) io: Io,
    /// Length of the report in dwords as in nvme-cli, counted from 0: only registrants
    /// that fit are listed [default: all]
    #[arg(short = 'd', long, value_name = "N", value_parser = number::<u32>(0..=u32::MAX.into()))]
    pub(crate) numd: Option<u32>,
    /// Extended report; implied, for compatibility with nvme-cli
    #[arg(short = 'e', long)]
    pub(crate) eds: bool,
}

const REGISTER_ACTIONS: [(&str, u8); 3] = [
    ("register", RegisterAction::REGISTER.0),
    ("unregister", RegisterAction::UNREGISTER.0),
    ("replace", RegisterAction::REPLACE.0),
];
const PERSIST_CHANGES: [(&str, u8); 3] = [
    ("keep", PersistChange::KEEP.0),
    ("clear", PersistChange::CLEAR.0),
    ("set", PersistChange::SET.0),
];
const ACQUIRE_ACTIONS: [(&str, u8); 3] = [
    ("acquire", AcquireAction::ACQUIRE.0),
    ("preempt", AcquireAction::PREEMPT.0),
    ("preempt-and-abort", AcquireAction::PREEMPT_AND_ABORT.0),
];
const RELEASE_ACTIONS: [(&str, u8); 2] = [
    ("release", ReleaseAction::RELEASE.0),
    ("clear", ReleaseAction::CLEAR.0),
];
/// The names are those of `blkpr` and Linux.
const TYPES: [(&str, u8); 6] = [
    ("write-exclusive", ReservationType::WRITE_EXCLUSIVE.0),
    ("exclusive-access", ReservationType::EXCLUSIVE_ACCESS.0),
    (
        "write-exclusive-reg-only",
        ReservationType::WRITE_EXCLUSIVE_REGISTRANTS.0,
    ),
    (
        "exclusive-access-reg-only",
        ReservationType::EXCLUSIVE_ACCESS_REGISTRANTS.0,
    ),
    (
        "write-exclusive-all-regs",
        ReservationType::WRITE_EXCLUSIVE_ALL.0,
    ),
    (
        "exclusive-access-all-regs",
        ReservationType::EXCLUSIVE_ACCESS_ALL.0,
    ),
];

/// A parser of a name or its number.
fn choice<const N: usize>(
    choices: [(&'static str, u8); N],
) -> impl Fn(&str) -> Result<u8, String> + Clone + Send + Sync + 'static {
    move |text| {
        let given = number::<u8>(0..=255)(text).ok();
        let is_it = |(name, value): &&(&str, u8)| *name == text || Some(*value) == given;
        match choices.iter().find(is_it) {
            Some((_, value)) => Ok(*value),
            None => {
                let all = choices.map(|(name, value)| format!("{name} ({value})"));
                Err(format!("write one of: {}", all.join(", ")))
            }
        }
    }
}

/// `--hostid` of commands whose effect belongs to it.
fn registered_hostid(arg: Arg) -> Arg {
    arg.help(
        "Identifier of this host, a UUID. Registrations belong to it: give the same --hostid or \
         --hostnqn in each call [default: /etc/nvme/hostid, or derived from the NQN of this host]",
    )
}

/// Refuses an identity that may be another one in the next call, and an address that is a number.
fn check(target: &Target, option: &str) -> Result<(), Failure> {
    if let Some(number) = target.list().find(|addr| is_number(addr)) {
        let what = format!(
            "-a {number} is the address of the target (--traddr); it may be meant as the action, \
             as in nvme-cli"
        );
        return Err(refused(what, format!("write {option} {number}")));
    }
    if target.hostid.is_none() && target.hostnqn.is_none() {
        Identity::lasting()?;
    }
    Ok(())
}

fn refused(what: impl Into<String>, remedy: impl Into<String>) -> Failure {
    Failure::usage(what).with_remedy(remedy)
}

impl ResvRegister {
    /// The command.
    ///
    /// # Errors
    /// A key is missing or unused, or the host identifier may change.
    pub(crate) fn request(&self) -> Result<ReservationRegister, Failure> {
        check(&self.io.subsystem.target, "--rrega")?;
        let action = RegisterAction(self.rrega);
        let name = name_of(REGISTER_ACTIONS, self.rrega);
        let new = match (action, self.nrkey) {
            (RegisterAction::UNREGISTER, new) => new.unwrap_or(0),
            (_, None) => {
                let what = format!(
                    "--nrkey is missing, which --rrega {name} requires; -k is --keep-alive-tmo"
                );
                return Err(refused(what, "give --nrkey N"));
            }
            (_, Some(0)) => {
                let what = format!("--nrkey 0 is no key: --rrega {name} requires 1 or more");
                let remedy = "give another key; to end a registration, --rrega unregister";
                return Err(refused(what, remedy));
            }
            (_, Some(new)) => new,
        };
        let checks_key = action != RegisterAction::REGISTER && !self.iekey;
        if checks_key && self.crkey.is_none() {
            let what = format!("--crkey is missing, which --rrega {name} checks");
            return Err(refused(what, "give --crkey N, or --iekey"));
        }
        Ok(ReservationRegister {
            action,
            current: self.crkey.unwrap_or(0),
            new,
            ignores_key: self.iekey,
            persist: PersistChange(self.cptpl),
        })
    }
}

impl ResvAcquire {
    /// The command.
    ///
    /// # Errors
    /// A key is missing or unused, or the host identifier may change.
    pub(crate) fn request(&self) -> Result<ReservationAcquire, Failure> {
        check(&self.io.subsystem.target, "--racqa")?;
        let action = AcquireAction(self.racqa);
        let name = name_of(ACQUIRE_ACTIONS, self.racqa);
        let preempted = match (action, self.prkey) {
            (AcquireAction::ACQUIRE, Some(key)) if key != 0 => {
                let what = format!("--prkey {key:#x} is not used by --racqa {name}");
                return Err(refused(what, "give --racqa preempt, or leave --prkey out"));
            }
            (AcquireAction::ACQUIRE, _) => 0,
            (_, Some(key)) => key,
            (_, None) => {
                let what = format!("--prkey is missing, which --racqa {name} requires");
                return Err(refused(what, "give --prkey N"));
            }
        };
        Ok(ReservationAcquire {
            action,
            kind: ReservationType(self.rtype),
            current: self.crkey,
            preempted,
        })
    }
}

impl ResvRelease {
    /// The command.
    ///
    /// # Errors
    /// The type is missing, or the host identifier may change.
    pub(crate) fn request(&self) -> Result<ReservationRelease, Failure> {
        check(&self.io.subsystem.target, "--rrela")?;
        let action = ReleaseAction(self.rrela);
        let kind = match (action, self.rtype) {
            (ReleaseAction::RELEASE, None) => {
                let what = "--rtype is missing, which --rrela release requires; -t is --transport";
                return Err(refused(what, "give --rtype with the type that is held"));
            }
            (_, kind) => kind.unwrap_or(0),
        };
        Ok(ReservationRelease {
            action,
            kind: ReservationType(kind),
            current: self.crkey,
        })
    }
}

impl ResvReport {
    /// The number of registrants that the report has room for: a header of 64 bytes, and 64 bytes
    /// for each of them.
    pub(crate) fn most_registrants(&self) -> usize {
        let len = self.numd.map_or(u64::MAX, |numd| (u64::from(numd) + 1) * 4);
        usize::try_from(len.saturating_sub(64) / 64).unwrap_or(usize::MAX)
    }
}

fn name_of<const N: usize>(choices: [(&'static str, u8); N], value: u8) -> &'static str {
    let found = choices.iter().find(|(_, known)| *known == value);
    found.map_or("unknown", |(name, _)| *name)
}
