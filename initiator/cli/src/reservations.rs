//! `nvmeof resv-register`, `resv-acquire`, `resv-release` and `resv-report`

use nvmeof_initiator::{Error, Registrant, ReservationCommand, ReservationReport};
use uuid::Uuid;

use crate::args::{self, Format};
use crate::failure::Failure;
use crate::output::{self, Fields};
use crate::simple::{open, open_with};

/// Bytes of the longest report: 16383 registrants.
const LONGEST: usize = 1 << 20;

/// `nvmeof resv-register`
pub(crate) async fn register(args: &args::ResvRegister) -> Result<(), Failure> {
    change(&args.io, args.request()?.into()).await
}

/// `nvmeof resv-acquire`
pub(crate) async fn acquire(args: &args::ResvAcquire) -> Result<(), Failure> {
    change(&args.io, args.request()?.into()).await
}

/// `nvmeof resv-release`
pub(crate) async fn release(args: &args::ResvRelease) -> Result<(), Failure> {
    change(&args.io, args.request()?.into()).await
}

async fn change(io: &args::Io, request: ReservationCommand) -> Result<(), Failure> {
    let disk = open(io).await?;
    let namespace = disk.namespace();
    let result = match request {
        ReservationCommand::Register(register) => namespace.reservation_register(register).await,
        ReservationCommand::Acquire(acquire) => namespace.reservation_acquire(acquire).await,
        ReservationCommand::Release(release) => namespace.reservation_release(release).await,
    };
    let object = format!("namespace {}, {}", io.namespace_id, keys(&request));
    let result = result.map_err(|error| {
        let is_unknown = matches!(error, Error::UnknownOutcome(_));
        let failure = Failure::from(error).about(&object);
        match is_unknown {
            true => failure.with_remedy(
                "nvmeof resv-report shows whether it was executed; repeat it if it was not",
            ),
            false => failure,
        }
    });
    disk.close(result).await
}

/// The keys of a command, for messages.
fn keys(request: &ReservationCommand) -> String {
    let (current, other) = match request {
        ReservationCommand::Register(register) => (register.current, ("new key", register.new)),
        ReservationCommand::Acquire(acquire) => {
            (acquire.current, ("key to preempt", acquire.preempted))
        }
        ReservationCommand::Release(release) => (release.current, ("", 0)),
    };
    match (current, other) {
        (current, (_, 0)) => format!("current key {current:#x}"),
        (0, (name, key)) => format!("{name} {key:#x}"),
        (current, (name, key)) => format!("current key {current:#x}, {name} {key:#x}"),
    }
}

/// `nvmeof resv-report`
pub(crate) async fn report(args: &args::ResvReport) -> Result<(), Failure> {
    let disk = open_with(&args.io, LONGEST).await?;
    let hostid = disk.host().config().identity.hostid;
    let object = format!("namespace {}", args.io.namespace_id);
    let result = disk.namespace().reservation_report().await;
    let report = match result {
        Ok(mut report) => {
            report.registrants.truncate(args.most_registrants());
            disk.close(Ok(())).await?;
            report
        }
        Err(error) => return disk.close(Err(Failure::from(error).about(&object))).await,
    };
    match args.io.subsystem.target.output_format {
        Format::Normal => output::print(to_text(&report, hostid).as_bytes()),
        Format::Json => output::json(&to_json(&report)),
    }
}

fn to_text(report: &ReservationReport, own: [u8; 16]) -> String {
    let mut fields = Fields::default();
    let kind = format!("{} ({})", report.kind.0, report.kind.name());
    let persists = match report.persists {
        true => "1 (persists across power loss)",
        false => "0 (cleared by power loss)",
    };
    fields
        .add("gen", report.generation)
        .with("rtype", report.kind.0, kind)
        .add("regctl", report.registered)
        .with("ptpls", u8::from(report.persists), persists);
    let mut text = fields.to_text();
    for (number, registrant) in report.registrants.iter().enumerate() {
        text.push_str(&format!("registrant {number}:\n"));
        text.push_str(&entry_text(registrant, own));
    }
    let left = usize::from(report.registered).saturating_sub(report.registrants.len());
    if left > 0 {
        text.push_str(&format!("{left} more registrants do not fit the report\n"));
    }
    text
}

fn entry_text(registrant: &Registrant, own: [u8; 16]) -> String {
    let of_this_host = match registrant.hostid == own {
        true => " (this host)",
        false => "",
    };
    let holds = match registrant.holds {
        true => "1 (holds the reservation)",
        false => "0",
    };
    let hostid = Uuid::from_bytes(registrant.hostid);
    let mut fields = Fields::default();
    fields
        .with("hostid", "", format!("{hostid}{of_this_host}"))
        .hex("rkey", registrant.key)
        .with("rcsts", u8::from(registrant.holds), holds)
        .hex("cntlid", registrant.cntlid);
    fields.to_indented_text()
}

/// The keys of nvme-cli 2.13, and those of nvme-cli 3.0 with the same values.
fn to_json(report: &ReservationReport) -> Fields {
    let mut fields = Fields::default();
    fields
        .add("gen", report.generation)
        .add("rtype", report.kind.0)
        .add("regctl", report.registered)
        .add("ptpls", u8::from(report.persists))
        .objects("regctlext", entries(report))
        .add("regstrnt", report.registered)
        .objects("registrantext", entries(report));
    fields
}

fn entries(report: &ReservationReport) -> Vec<Fields> {
    let entry = |registrant: &Registrant| {
        let mut fields = Fields::default();
        fields
            .add("cntlid", registrant.cntlid)
            .add("rcsts", u8::from(registrant.holds))
            .add("rkey", registrant.key)
            .add("hostid", output::hex(&registrant.hostid));
        fields
    };
    report.registrants.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use nvmeof_initiator::{
        ReservationAcquire, ReservationRegister, ReservationRelease, ReservationType,
    };
    use serde_json::json;

    use super::*;

    fn example() -> ReservationReport {
        let registrant = |byte: u8, key, holds| Registrant {
            hostid: [byte; 16],
            key,
            holds,
            cntlid: 0xffff,
        };
        ReservationReport {
            generation: 3,
            kind: ReservationType::WRITE_EXCLUSIVE_ALL,
            persists: true,
            registered: 3,
            registrants: vec![
                registrant(0x11, u64::MAX, true),
                registrant(0xab, 0x4d2, false),
            ],
        }
    }

    #[test]
    fn report_has_keys_of_both_versions_of_nvme_cli() {
        let json = serde_json::to_value(to_json(&example())).unwrap();
        let entries = json!([
            {
                "cntlid": 65535, "rcsts": 1, "rkey": u64::MAX,
                "hostid": "11111111111111111111111111111111",
            },
            {
                "cntlid": 65535, "rcsts": 0, "rkey": 1234,
                "hostid": "abababababababababababababababab",
            },
        ]);
        let expected = json!({
            "gen": 3, "rtype": 5, "ptpls": 1,
            "regctl": 3, "regctlext": entries,
            "regstrnt": 3, "registrantext": entries,
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn report_as_text_names_holder_and_this_host() {
        let text = to_text(&example(), [0xab; 16]);
        let expected = "\
gen    : 3
rtype  : 5 (Write Exclusive - All Registrants)
regctl : 3
ptpls  : 1 (persists across power loss)
registrant 0:
  hostid: 11111111-1111-1111-1111-111111111111
  rkey: 0xffffffffffffffff
  rcsts: 1 (holds the reservation)
  cntlid: 0xffff
registrant 1:
  hostid: abababab-abab-abab-abab-abababababab (this host)
  rkey: 0x4d2
  rcsts: 0
  cntlid: 0xffff
1 more registrants do not fit the report
";
        assert_eq!(text, expected);
    }

    #[test]
    fn messages_have_the_keys_that_a_command_uses() {
        let kind = ReservationType::WRITE_EXCLUSIVE;
        for (request, said) in [
            (ReservationRegister::register(1).into(), "new key 0x1"),
            (ReservationRegister::unregister(2).into(), "current key 0x2"),
            (
                ReservationRegister::replace(2, 3).into(),
                "current key 0x2, new key 0x3",
            ),
            (
                ReservationAcquire::preempt(kind, 2, 3).into(),
                "current key 0x2, key to preempt 0x3",
            ),
            (ReservationRelease::clear(2).into(), "current key 0x2"),
        ] {
            assert_eq!(keys(&request), said);
        }
    }
}
