//! `nvmeof discover`

use nvmeof_initiator::Discovery;
use nvmeof_wire::log::DiscoveryEntry;
use nvmeof_wire::log::discovery::{EntryFlags, TransportType, Treq};
use serde::Serialize;

use crate::args::{self, Format};
use crate::failure::Failure;
use crate::output::{self, Fields};

/// Prints the discovery log page.
pub(crate) async fn run(args: &args::Discover) -> Result<(), Failure> {
    let host = args.target.host()?;
    let discovery = host.discover(args.target.addr()?).await?;
    match args.target.output_format {
        Format::Normal => output::print(to_text(&discovery).as_bytes()),
        Format::Json => output::json(&to_json(&discovery)),
    }
}

fn to_text(discovery: &Discovery) -> String {
    let count = discovery.entries.len();
    let generation = discovery.generation;
    let mut text = format!("Discovery Log: {count} records, generation counter {generation}\n");
    for (number, entry) in discovery.entries.iter().enumerate() {
        text.push_str(&format!("===== Discovery Log Entry {number} =====\n"));
        text.push_str(&fields(entry).to_text());
    }
    text
}

/// The discovery log as JSON.
#[derive(Serialize)]
struct Log {
    genctr: u64,
    records: Vec<Fields>,
}

fn to_json(discovery: &Discovery) -> Log {
    Log {
        genctr: discovery.generation,
        records: discovery.entries.iter().map(fields).collect(),
    }
}

fn fields(entry: &DiscoveryEntry) -> Fields {
    let mut fields = Fields::default();
    fields
        .add("trtype", entry.trtype.name())
        .add("adrfam", entry.adrfam.name())
        .add("subtype", entry.subtype.name())
        .add("treq", requirements(entry.treq()))
        .add("portid", entry.portid.get())
        .add("trsvcid", entry.trsvcid.to_string())
        .add("subnqn", output::text(&entry.subnqn))
        .add("traddr", entry.traddr.to_string())
        .add("eflags", flags(entry.eflags()));
    if entry.trtype == TransportType::RDMA {
        fields
            .add("rdma_prtype", entry.tsas.prtype.name())
            .add("rdma_qptype", entry.tsas.qptype.name())
            .add("rdma_cms", entry.tsas.cms.name())
            .hex("rdma_pkey", entry.tsas.pkey.get());
    }
    fields
}

/// With the words of nvme-cli.
fn flags(eflags: EntryFlags) -> String {
    let words: Vec<&str> = [
        (EntryFlags::EPCSD, "explicit discovery connections"),
        (EntryFlags::DUPRETINFO, "duplicate discovery information"),
        (EntryFlags::NCC, "no cdc connectivity"),
    ]
    .into_iter()
    .filter_map(|(flag, word)| eflags.contains(flag).then_some(word))
    .collect();
    if words.is_empty() {
        "none".to_owned()
    } else {
        words.join(", ")
    }
}

fn requirements(treq: Treq) -> String {
    let secure = match (
        treq.contains(Treq::SECURE_REQUIRED),
        treq.contains(Treq::SECURE_NOT_REQUIRED),
    ) {
        (true, _) => "required",
        (false, true) => "not required",
        (false, false) => "not specified",
    };
    if treq.contains(Treq::DISABLE_SQFC) {
        format!("{secure}, sq flow control disable supported")
    } else {
        secure.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use nvmeof_wire::Ascii;
    use nvmeof_wire::log::discovery::{AddressFamily, RdmaProviderType, RdmaTsas, SubsystemType};

    use super::*;

    fn discovery() -> Discovery {
        let mut entry = DiscoveryEntry::zeroed();
        entry.trtype = TransportType::RDMA;
        entry.adrfam = AddressFamily::IPV4;
        entry.subtype = SubsystemType::NVM;
        entry.portid = 1.into();
        entry.trsvcid = Ascii::new("4420");
        entry.traddr = Ascii::new("127.0.0.1");
        entry.tsas = RdmaTsas::connected(RdmaProviderType::IWARP);
        let name = b"nqn.2026-11.org.example:disk";
        entry.subnqn[..name.len()].copy_from_slice(name);
        Discovery {
            generation: 3,
            entries: vec![entry],
        }
    }

    #[test]
    fn text_has_all_fields() {
        assert_eq!(
            to_text(&discovery()),
            "Discovery Log: 1 records, generation counter 3\n\
             ===== Discovery Log Entry 0 =====\n\
             trtype      : rdma\n\
             adrfam      : ipv4\n\
             subtype     : nvme subsystem\n\
             treq        : not specified\n\
             portid      : 1\n\
             trsvcid     : 4420\n\
             subnqn      : nqn.2026-11.org.example:disk\n\
             traddr      : 127.0.0.1\n\
             eflags      : none\n\
             rdma_prtype : iwarp\n\
             rdma_qptype : connected\n\
             rdma_cms    : rdma-cm\n\
             rdma_pkey   : 0x0\n"
        );
    }

    #[test]
    fn json_has_all_fields() {
        let json = serde_json::to_value(to_json(&discovery())).unwrap();
        assert_eq!(json["genctr"], 3);
        assert_eq!(json["records"][0]["subnqn"], "nqn.2026-11.org.example:disk");
        assert_eq!(json["records"][0]["trsvcid"], "4420");
    }
}
