//! `nvmeof id-ctrl`, `id-ns` and `list-ns`

use nvmeof_initiator::{Controller, ControllerInfo, Error};
use nvmeof_wire::Ascii;
use nvmeof_wire::admin::Cns;
use nvmeof_wire::identify::{
    DescriptorList, IdentifyController, IdentifyNamespace, NamespaceIdentifiers, PowerState,
};
use nvmeof_wire::registers::Vs;
use nvmeof_wire::text::Escaped;
use serde_json::{Value, json};
use uuid::Uuid;
use zerocopy::FromBytes;

use crate::args::{self, Format};
use crate::failure::Failure;
use crate::output::{self, Fields};

/// `nvmeof id-ctrl`
pub(crate) async fn controller(args: &args::Admin) -> Result<(), Failure> {
    let controller = connect(&args.subsystem).await?;
    let fields = controller_fields(controller.info());
    controller.disconnect().await;
    fields.print(args.subsystem.target.output_format)
}

/// All fields, with their names in nvme-cli.
fn controller_fields(info: &ControllerInfo) -> Fields {
    let id = &info.identify;
    let mut fields = Fields::default();
    add_general_fields(&mut fields, info);
    add_admin_fields(&mut fields, info);
    add_capacity_fields(&mut fields, id);
    add_io_fields(&mut fields, id);
    add_tracking_fields(&mut fields, id);
    add_fabrics_fields(&mut fields, id);
    add_power_states(&mut fields, id);
    fields
}

/// Adds a field that is padded with spaces: unchanged in JSON, trimmed in text.
fn add_padded<const N: usize>(fields: &mut Fields, name: &'static str, field: &Ascii<N>) {
    fields.with(name, output::text(field.as_array()), field.to_string());
}

/// Base 2.1, figure 313, bytes 0 to 255.
fn add_general_fields(fields: &mut Fields, info: &ControllerInfo) {
    let id = &info.identify;
    let version = Vs(id.ver.get());
    let [a, b, c] = id.ieee;
    fields.hex("vid", id.vid.get()).hex("ssvid", id.ssvid.get());
    add_padded(fields, "sn", &id.sn);
    add_padded(fields, "mn", &id.mn);
    add_padded(fields, "fr", &id.fr);
    fields
        .add("rab", id.rab)
        .with(
            "ieee",
            u32::from_le_bytes([a, b, c, 0]),
            output::hex(&[c, b, a]),
        )
        .hex("cmic", id.cmic)
        .with("mdts", id.mdts, mdts(info))
        .hex("cntlid", id.cntlid.get())
        .with(
            "ver",
            id.ver.get(),
            format!("{:#x} (NVMe {version})", version.0),
        )
        .add("rtd3r", id.rtd3r.get())
        .add("rtd3e", id.rtd3e.get())
        .hex("oaes", id.oaes.get())
        .hex("ctratt", id.ctratt.get())
        .hex("rrls", id.rrls.get())
        .hex("bpcap", id.bpcap)
        .add("nssl", id.nssl.get())
        .hex("plsi", id.plsi)
        .add("cntrltype", id.cntrltype.0)
        .add("fguid", Uuid::from_bytes(id.fguid).to_string())
        .add("crdt1", id.crdt1.get())
        .add("crdt2", id.crdt2.get())
        .add("crdt3", id.crdt3.get())
        .hex("crcap", id.crcap)
        .hex("nvmsr", id.nvmsr)
        .hex("vwci", id.vwci)
        .hex("mec", id.mec);
}

/// Bytes 256 to 279, and 320.
fn add_admin_fields(fields: &mut Fields, info: &ControllerInfo) {
    let id = &info.identify;
    fields
        .hex("oacs", id.oacs.get())
        .add("acl", id.acl)
        .add("aerl", id.aerl)
        .hex("frmw", id.frmw)
        .hex("lpa", id.lpa)
        .add("elpe", id.elpe)
        .add("npss", id.npss)
        .hex("avscc", id.avscc)
        .hex("apsta", id.apsta)
        .add("wctemp", id.wctemp.get())
        .add("cctemp", id.cctemp.get())
        .add("mtfa", id.mtfa.get())
        .add("hmpre", id.hmpre.get())
        .add("hmmin", id.hmmin.get());
}

/// Bytes 280 to 511.
fn add_capacity_fields(fields: &mut Fields, id: &IdentifyController) {
    let kas = id.kas.get();
    fields
        .large("tnvmcap", id.tnvmcap.get())
        .large("unvmcap", id.unvmcap.get())
        .hex("rpmbs", id.rpmbs.get())
        .add("edstt", id.edstt.get())
        .add("dsto", id.dsto)
        .add("fwug", id.fwug)
        .with("kas", kas, format!("{kas} ({} ms)", u32::from(kas) * 100))
        .hex("hctma", id.hctma.get())
        .add("mntmt", id.mntmt.get())
        .add("mxtmt", id.mxtmt.get())
        .hex("sanicap", id.sanicap.get())
        .add("hmminds", id.hmminds.get())
        .add("hmmaxd", id.hmmaxd.get())
        .add("nsetidmax", id.nsetidmax.get())
        .add("endgidmax", id.endgidmax.get())
        .add("anatt", id.anatt)
        .hex("anacap", id.anacap)
        .add("anagrpmax", id.anagrpmax.get())
        .add("nanagrpid", id.nanagrpid.get())
        .add("pels", id.pels.get())
        .add("domainid", id.domainid.get())
        .hex("kpioc", id.kpioc)
        .add("mptfawr", id.mptfawr.get())
        .large("megcap", id.megcap.get())
        .hex("tmpthha", id.tmpthha)
        .add("cqt", id.cqt.get());
}

/// Bytes 512 to 567.
fn add_io_fields(fields: &mut Fields, id: &IdentifyController) {
    fields
        .hex("sqes", id.sqes)
        .hex("cqes", id.cqes)
        .add("maxcmd", id.maxcmd.get())
        .add("nn", id.nn.get())
        .hex("oncs", id.oncs.get())
        .hex("fuses", id.fuses.get())
        .hex("fna", id.fna)
        .hex("vwc", id.vwc)
        .add("awun", id.awun.get())
        .add("awupf", id.awupf.get())
        .hex("icsvscc", id.icsvscc)
        .hex("nwpc", id.nwpc)
        .add("acwu", id.acwu.get())
        // CDFS since Base 2.1, OCFS before.
        .hex("ocfs", id.cdfs.get())
        .hex("sgls", id.sgls.get())
        .add("mnan", id.mnan.get())
        .large("maxdna", id.maxdna.get())
        .add("maxcna", id.maxcna.get())
        .add("oaqd", id.oaqd.get());
}

/// Bytes 568 to 767.
fn add_tracking_fields(fields: &mut Fields, id: &IdentifyController) {
    fields
        .add("rhiri", id.rhiri)
        .add("hirt", id.hirt)
        .add("cmmrtd", id.cmmrtd.get())
        .add("nmmrtd", id.nmmrtd.get())
        .add("minmrtg", id.minmrtg)
        .add("maxmrtg", id.maxmrtg)
        .hex("trattr", id.trattr)
        .add("mcudmq", id.mcudmq.get())
        .add("mnsudmq", id.mnsudmq.get())
        .add("mcmr", id.mcmr.get())
        .add("nmcmr", id.nmcmr.get())
        .add("mcdqpc", id.mcdqpc.get());
}

/// Bytes 768 to 2047.
fn add_fabrics_fields(fields: &mut Fields, id: &IdentifyController) {
    let subnqn = output::text(&id.subnqn);
    if !subnqn.is_empty() {
        fields.add("subnqn", subnqn);
    }
    fields
        .add("ioccsz", id.ioccsz.get())
        .add("iorcsz", id.iorcsz.get())
        .add("icdoff", id.icdoff.get())
        .hex("fcatt", id.fcattr)
        .add("msdbd", id.msdbd)
        .hex("ofcs", id.ofcs.get());
}

/// Bytes 2048 to 3071: NPSS is zero-based.
fn add_power_states(fields: &mut Fields, id: &IdentifyController) {
    let states = id.psd.iter().take(usize::from(id.npss) + 1);
    let json: Vec<Value> = states.clone().map(power_state).collect();
    let text: Vec<String> = states
        .enumerate()
        .map(|(number, state)| format!("{number}: mp {}, flags {:#x}", state.mp, state.flags))
        .collect();
    fields.with("psds", json, text.join("; "));
}

/// Figure 314.
fn power_state(state: &PowerState) -> Value {
    json!({
        "max_power": state.mp.get(),
        "max_power_scale": state.flags & 1,
        "non-operational_state": state.flags >> 1 & 1,
        "entry_lat": state.enlat.get(),
        "exit_lat": state.exlat.get(),
        "read_tput": state.rrt,
        "read_lat": state.rrl,
        "write_tput": state.rwt,
        "write_lat": state.rwl,
        "idle_power": state.idlp.get(),
        "idle_scale": state.ips >> 6,
        "active_power": state.actp.get(),
        "active_power_work": state.apw & 7,
        "active_scale": state.apw >> 6,
        "emerg_power_fail_recover_time": state.epfrt,
        "emerg_power_fail_recover_scale": state.epfr_fqv_ts & 0xf,
        "force_quiesce_vault_time": state.fqvt,
        "force_quiesce_vault_scale": state.epfr_fqv_ts >> 4,
        "emerg_power_fail_vault_time": state.epfvt,
        "emerg_power_fail_vault_scale": state.epfvts & 0xf,
    })
}

/// The field with its meaning in bytes.
fn mdts(info: &ControllerInfo) -> String {
    let page = 1u64.checked_shl(info.cap.min_page_shift()).unwrap_or(4096);
    match info.identify.max_transfer_len(page) {
        Some(bytes) => format!("{} ({} KiB)", info.identify.mdts, bytes >> 10),
        None => format!("{} (no limit)", info.identify.mdts),
    }
}

/// `nvmeof id-ns`
pub(crate) async fn namespace(args: &args::AdminNamespace) -> Result<(), Failure> {
    let controller = connect(&args.subsystem).await?;
    let fields = read_namespace(&controller, args.namespace_id).await;
    controller.disconnect().await;
    fields?.print(args.subsystem.target.output_format)
}

async fn read_namespace(controller: &Controller, nsid: u32) -> Result<Fields, Failure> {
    // Reports the available namespaces if this one does not exist.
    let namespace = controller.namespace(nsid).await?;
    let identifiers = match controller.identify_page(Cns::DESCRIPTORS, nsid).await {
        Ok(page) => DescriptorList::read_from_bytes(&page)
            .ok()
            .and_then(|list| NamespaceIdentifiers::parse(&list).ok()),
        // Controllers before NVMe 1.3 do not have descriptors.
        Err(Error::Command(_)) => None,
        Err(error) => return Err(error.into()),
    };
    let uuid = identifiers.and_then(|identifiers| identifiers.uuid);
    Ok(namespace_fields(namespace.identify(), uuid))
}

fn namespace_fields(id: &IdentifyNamespace, uuid: Option<[u8; 16]>) -> Fields {
    let mut fields = Fields::default();
    add_size_fields(&mut fields, id);
    add_limits(&mut fields, id);
    fields
        .add("anagrpid", id.anagrpid.get())
        .hex("nsattr", id.nsattr)
        .add("nvmsetid", id.nvmsetid.get())
        .add("endgid", id.endgid.get())
        .add("nguid", output::hex(&id.nguid))
        .add("eui64", output::hex(&id.eui64));
    if let Some(uuid) = uuid {
        fields.add("uuid", Uuid::from_bytes(uuid).to_string());
    }
    add_formats(&mut fields, id);
    let vendor = output::vendor_lines(&id.vs);
    let text = Escaped(&vendor.concat()).to_string();
    fields.with("vs", vendor, text);
    fields
}

/// NVM Command Set 1.1, figure 114, bytes 0 to 63.
fn add_size_fields(fields: &mut Fields, id: &IdentifyNamespace) {
    let block_size = id.format().and_then(|format| format.block_len());
    let size = block_size.map_or_else(String::new, |block_size| {
        let bytes = u128::from(id.nsze.get()) * u128::from(block_size);
        format!(" ({bytes} bytes)")
    });
    fields
        .with("nsze", id.nsze.get(), format!("{:#x}{size}", id.nsze.get()))
        .hex("ncap", id.ncap.get())
        .hex("nuse", id.nuse.get())
        .hex("nsfeat", id.nsfeat)
        .add("nlbaf", id.nlbaf)
        .hex("flbas", id.flbas)
        .hex("mc", id.mc)
        .hex("dpc", id.dpc)
        .hex("dps", id.dps)
        .hex("nmic", id.nmic)
        .hex("rescap", id.rescap)
        .hex("fpi", id.fpi)
        .hex("dlfeat", id.dlfeat)
        .add("nawun", id.nawun.get())
        .add("nawupf", id.nawupf.get())
        .add("nacwu", id.nacwu.get())
        .add("nabsn", id.nabsn.get())
        .add("nabo", id.nabo.get())
        .add("nabspf", id.nabspf.get())
        .add("noiob", id.noiob.get())
        .large("nvmcap", id.nvmcap.get());
}

/// Bytes 64 to 87. NSFEAT.OPTPERF says which of the first ones are defined.
fn add_limits(fields: &mut Fields, id: &IdentifyNamespace) {
    let optperf = id.nsfeat >> 4 & 0b11;
    if optperf != 0 {
        fields.add("npwg", id.npwg.get()).add("npwa", id.npwa.get());
        if optperf & 1 != 0 {
            fields.add("npdg", id.npdg.get());
        }
        fields.add("npda", id.npda.get()).add("nows", id.nows.get());
    }
    fields
        .add("mssrl", id.mssrl.get())
        .add("mcl", id.mcl.get())
        .add("msrc", id.msrc)
        .hex("kpios", id.kpios)
        .add("nulbaf", id.nulbaf)
        .add("kpiodaag", id.kpiodaag.get());
}

fn add_formats(fields: &mut Fields, id: &IdentifyNamespace) {
    let used = id.format_index();
    let formats = id.lbaf.iter().take(usize::from(id.nlbaf) + 1).enumerate();
    let json: Vec<Value> = formats
        .clone()
        .map(|(_, format)| json!({ "ms": format.ms.get(), "ds": format.lbads, "rp": format.rp }))
        .collect();
    let text: Vec<String> = formats
        .map(|(number, format)| {
            let mark = if number == used { " (in use)" } else { "" };
            let bytes = format.block_len().unwrap_or_default();
            format!("{number}: {bytes} bytes, metadata {}{mark}", format.ms)
        })
        .collect();
    fields.with("lbafs", json, text.join("; "));
    if let Some(block_size) = id.format().and_then(|format| format.block_len()) {
        fields.add("block_size", block_size);
    }
}

/// `nvmeof list-ns`
pub(crate) async fn list(args: &args::Admin) -> Result<(), Failure> {
    let controller = connect(&args.subsystem).await?;
    let namespaces = controller.namespaces().await;
    controller.disconnect().await;
    let namespaces = namespaces?;
    match args.subsystem.target.output_format {
        Format::Normal => {
            let lines = namespaces.iter().enumerate();
            let text: String = lines
                .map(|(number, nsid)| format!("[{number:4}]:{nsid:#x}\n"))
                .collect();
            output::print(text.as_bytes())
        }
        Format::Json => {
            let list = namespaces.iter().map(|nsid| json!({ "nsid": nsid }));
            output::json(&json!({ "nsid_list": list.collect::<Vec<Value>>() }))
        }
    }
}

async fn connect(subsystem: &args::Subsystem) -> Result<Controller, Failure> {
    let host = subsystem.target.host()?;
    Ok(host.connect(subsystem.options()?).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys and types as in nvme-cli 2.13; the lab compares them with its output.
    #[test]
    fn json_has_keys_and_types_of_nvme_cli() {
        let namespace = IdentifyNamespace::with_format(8, 12);
        let json = serde_json::to_value(namespace_fields(&namespace, None)).unwrap();
        for key in [
            "fpi", "nacwu", "mssrl", "mcl", "msrc", "nulbaf", "endgid", "nvmcap",
        ] {
            assert!(json[key].is_u64(), "{key}: {json}");
        }
        assert!(json["vs"].is_array() && json["nguid"].is_string());
        // Without OPTPERF in NSFEAT preferred sizes are undefined.
        assert!(json.get("npwg").is_none(), "{json}");
        let mut preferring = namespace;
        preferring.nsfeat = 0x10;
        let json = serde_json::to_value(namespace_fields(&preferring, None)).unwrap();
        for key in ["npwg", "npwa", "npdg", "npda", "nows"] {
            assert!(json[key].is_u64(), "{key}: {json}");
        }

        let mut id = IdentifyController::zeroed();
        id.ieee = [0x56, 0x34, 0x12];
        id.sn = Ascii::new("A1");
        id.npss = 1;
        let mut fields = Fields::default();
        add_capacity_fields(&mut fields, &id);
        add_io_fields(&mut fields, &id);
        add_tracking_fields(&mut fields, &id);
        add_fabrics_fields(&mut fields, &id);
        add_power_states(&mut fields, &id);
        add_padded(&mut fields, "sn", &id.sn);
        let json = serde_json::to_value(fields).unwrap();
        for key in [
            "fcatt", "ocfs", "nwpc", "tnvmcap", "maxdna", "cqt", "mcdqpc",
        ] {
            assert!(json[key].is_u64(), "{key}: {json}");
        }
        assert_eq!(json["sn"], "A1                  ");
        assert_eq!(json["psds"].as_array().unwrap().len(), 2);
        assert!(json["psds"][0]["non-operational_state"].is_u64());
        assert!(
            json.get("subnqn").is_none(),
            "an empty name is left out: {json}"
        );
    }

    #[test]
    fn namespace_size_is_in_bytes_and_blocks() {
        let id = IdentifyNamespace::with_format(8, 12);
        let fields = namespace_fields(&id, Some([0x11; 16]));
        let text = fields.to_text();
        assert!(text.contains("nsze       : 0x8 (32768 bytes)\n"), "{text}");
        assert!(text.contains("uuid       : 11111111-1111-1111-1111-111111111111\n"));
        assert!(text.contains("lbafs      : 0: 4096 bytes, metadata 0 (in use)\n"));
        assert!(text.lines().all(|line| line.len() <= 80));
        let json = serde_json::to_value(&fields).unwrap();
        assert_eq!(
            (&json["nsze"], &json["lbafs"][0]["ds"]),
            (&8.into(), &12.into())
        );
        assert_eq!(json["block_size"], 4096);
    }
}
