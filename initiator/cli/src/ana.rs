//! `nvmeof ana-log`: prints the Asymmetric Namespace Access log page.

use nvmeof_initiator_core::multipath::{AnaLog, AnaLogGroup};

use crate::args::{self, Format};
use crate::failure::Failure;
use crate::output::{self, Fields};

/// `nvmeof ana-log`
pub(crate) async fn run(args: &args::AnaLog) -> Result<(), Failure> {
    let host = args.subsystem.target.host()?;
    let options = args.subsystem.options()?;
    let device = options.addr.to_string();
    let controller = host.connect(options).await?;
    let log = controller.ana_log(args.groups).await;
    controller.disconnect().await;
    let log = log?.ok_or_else(not_supported)?;
    match args.subsystem.target.output_format {
        Format::Normal => output::print(to_text(&log, &device).as_bytes()),
        Format::Json => output::json(&to_fields(&log, &device)),
    }
}

fn not_supported() -> Failure {
    Failure::new("the controller does not report ANA states (CMIC bit 3 is 0)").with_remedy(
        "all of its namespaces are accessible through this path; nvmeof id-ctrl shows CMIC",
    )
}

fn to_text(log: &AnaLog, device: &str) -> String {
    let mut text = format!("ANA log of {device}\n");
    let mut head = Fields::default();
    head.add("chgcnt", log.changes)
        .add("ngrps", log.groups.len());
    text.push_str(&head.to_text());
    for group in &log.groups {
        text.push_str(&format!("===== ANA group {} =====\n", group.id));
        let mut fields = head_of(group);
        if !group.nsids.is_empty() {
            fields.with("nsids", "", ranges(&group.nsids));
        }
        text.push_str(&fields.to_text());
    }
    text
}

/// The keys of nvme-cli, one of which ends with a space.
fn to_fields(log: &AnaLog, device: &str) -> Fields {
    let groups = log.groups.iter().map(|group| {
        let mut fields = head_of(group);
        let nsids = group.nsids.iter().map(|nsid| {
            let mut fields = Fields::default();
            fields.add("nsid", *nsid);
            fields
        });
        fields.objects("NSIDS", nsids.collect());
        fields
    });
    let mut fields = Fields::default();
    fields
        .add(
            "Asymmetric Namespace Access Log for NVMe device",
            device.to_owned(),
        )
        .add("chgcnt", log.changes)
        .add("ngrps", log.groups.len())
        .objects("ANA DESC LIST ", groups.collect());
    fields
}

fn head_of(group: &AnaLogGroup) -> Fields {
    let state = match group.state.name() {
        "reserved" => format!("reserved {:#x}", group.state.0),
        name => name.to_owned(),
    };
    let mut fields = Fields::default();
    fields
        .add("grpid", group.id)
        .add("nnsids", group.nsids.len())
        .add("chgcnt", group.changes)
        .add("state", state);
    fields
}

/// Numbers as ranges, in lines that fit a terminal: `1-3, 7`.
fn ranges(nsids: &[u32]) -> String {
    /// Columns after `nsids  : `.
    const WIDTH: usize = 70;
    let mut sorted = nsids.to_vec();
    sorted.sort_unstable();
    let runs = sorted.chunk_by(|one, next| one.checked_add(1) == Some(*next));
    let words = runs.filter_map(|run| match run {
        [] => None,
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first}-{last}")),
    });
    let mut text = String::new();
    let mut column = 0;
    for word in words {
        if column + word.len() + 2 > WIDTH && column > 0 {
            text.push_str(",\n         ");
            column = 0;
        } else if column > 0 {
            text.push_str(", ");
            column += 2;
        }
        column += word.len();
        text.push_str(&word);
    }
    text
}

#[cfg(test)]
mod tests {
    use nvmeof_wire::log::ana::AnaState;

    use super::*;

    fn group(id: u32, state: AnaState, nsids: &[u32]) -> AnaLogGroup {
        AnaLogGroup {
            id,
            changes: 5,
            state,
            nsids: nsids.to_vec(),
        }
    }

    /// Keys as in nvme-cli 2.13.
    #[test]
    fn json_has_keys_of_nvme_cli() {
        let log = AnaLog {
            changes: 7,
            groups: vec![
                group(1, AnaState::OPTIMIZED, &[2]),
                group(3, AnaState(0x7), &[]),
            ],
        };
        let json = serde_json::to_string(&to_fields(&log, "addr")).unwrap();
        assert_eq!(
            json,
            "{\"Asymmetric Namespace Access Log for NVMe device\":\"addr\",\"chgcnt\":7,\
             \"ngrps\":2,\"ANA DESC LIST \":[\
             {\"grpid\":1,\"nnsids\":1,\"chgcnt\":5,\"state\":\"optimized\",\
             \"NSIDS\":[{\"nsid\":2}]},\
             {\"grpid\":3,\"nnsids\":0,\"chgcnt\":5,\"state\":\"reserved 0x7\",\"NSIDS\":[]}]}"
        );
    }

    #[test]
    fn text_fits_eighty_columns() {
        let odd: Vec<u32> = (0..300).map(|n| u32::MAX - 2 * n).collect();
        let log = AnaLog {
            changes: u64::MAX,
            groups: vec![
                group(1, AnaState::INACCESSIBLE, &[3, 1, 2, 9]),
                group(2, AnaState::CHANGE, &odd),
            ],
        };
        let text = to_text(&log, "[2001:db8::1]:4420");
        assert!(text.starts_with(
            "ANA log of [2001:db8::1]:4420\n\
             chgcnt : 18446744073709551615\n\
             ngrps  : 2\n\
             ===== ANA group 1 =====\n\
             grpid  : 1\n\
             nnsids : 4\n\
             chgcnt : 5\n\
             state  : inaccessible\n\
             nsids  : 1-3, 9\n"
        ));
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        assert!(text.contains("\n         42949"), "{text}");
    }
}
