//! `nvmeof id-ctrl`, `id-ns` and `list-ns`

use nvmeof_initiator::{Controller, ControllerInfo, Error};
use nvmeof_wire::admin::Cns;
use nvmeof_wire::identify::{DescriptorList, IdentifyNamespace, NamespaceIdentifiers};
use nvmeof_wire::registers::Vs;
use serde_json::{Value, json};
use uuid::Uuid;
use zerocopy::FromBytes;

use crate::args::{self, Format};
use crate::failure::Failure;
use crate::output::{self, Fields, large};

/// `nvmeof id-ctrl`
pub(crate) async fn controller(args: &args::Admin) -> Result<(), Failure> {
    let controller = connect(&args.subsystem).await?;
    let fields = controller_fields(controller.info());
    controller.disconnect().await;
    fields.print(args.subsystem.target.output_format)
}

fn controller_fields(info: &ControllerInfo) -> Fields {
    let mut fields = Fields::default();
    add_general_fields(&mut fields, info);
    add_admin_fields(&mut fields, info);
    add_io_fields(&mut fields, info);
    fields
}

/// Base 2.1, figure 313, bytes 0 to 255.
fn add_general_fields(fields: &mut Fields, info: &ControllerInfo) {
    let id = &info.identify;
    let version = Vs(id.ver.get());
    let [a, b, c] = id.ieee;
    fields
        .hex("vid", id.vid.get())
        .hex("ssvid", id.ssvid.get())
        .add("sn", id.sn.to_string())
        .add("mn", id.mn.to_string())
        .add("fr", id.fr.to_string())
        .add("rab", id.rab)
        .add("ieee", output::hex(&[c, b, a]))
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
        .add("cntrltype", id.cntrltype.0)
        .add("fguid", output::hex(&id.fguid));
}

/// Bytes 256 to 511.
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
        .add("wctemp", id.wctemp.get())
        .add("cctemp", id.cctemp.get())
        .add("tnvmcap", large(id.tnvmcap.get()))
        .add("unvmcap", large(id.unvmcap.get()))
        .with(
            "kas",
            id.kas.get(),
            format!("{} ({} ms)", id.kas, u32::from(id.kas.get()) * 100),
        )
        .add("anatt", id.anatt)
        .hex("anacap", id.anacap)
        .add("anagrpmax", id.anagrpmax.get())
        .add("nanagrpid", id.nanagrpid.get());
}

/// Bytes 512 to 2047.
fn add_io_fields(fields: &mut Fields, info: &ControllerInfo) {
    let id = &info.identify;
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
        .add("acwu", id.acwu.get())
        .hex("sgls", id.sgls.get())
        .add("mnan", id.mnan.get())
        .add("subnqn", output::text(&id.subnqn))
        .add("ioccsz", id.ioccsz.get())
        .add("iorcsz", id.iorcsz.get())
        .add("icdoff", id.icdoff.get())
        .hex("fcattr", id.fcattr)
        .add("msdbd", id.msdbd)
        .hex("ofcs", id.ofcs.get());
}

/// What the field means in bytes.
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
    // This one knows which namespaces there are.
    let namespace = controller.namespace(nsid).await?;
    let identifiers = match controller.identify_page(Cns::DESCRIPTORS, nsid).await {
        Ok(page) => DescriptorList::read_from_bytes(&page)
            .ok()
            .and_then(|list| NamespaceIdentifiers::parse(&list).ok()),
        // A controller older than NVMe 1.3 does not have them.
        Err(Error::Command(_)) => None,
        Err(error) => return Err(error.into()),
    };
    let uuid = identifiers.and_then(|identifiers| identifiers.uuid);
    Ok(namespace_fields(namespace.identify(), uuid))
}

fn namespace_fields(id: &IdentifyNamespace, uuid: Option<[u8; 16]>) -> Fields {
    let block_size = id.format().and_then(|format| format.block_len());
    let size = block_size.map_or_else(String::new, |block_size| {
        let bytes = u128::from(id.nsze.get()) * u128::from(block_size);
        format!(" ({bytes} bytes)")
    });
    let mut fields = Fields::default();
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
        .hex("dlfeat", id.dlfeat)
        .add("nawun", id.nawun.get())
        .add("nawupf", id.nawupf.get())
        .add("noiob", id.noiob.get())
        .add("nvmcap", large(id.nvmcap.get()))
        .add("anagrpid", id.anagrpid.get())
        .hex("nsattr", id.nsattr)
        .add("nguid", output::hex(&id.nguid))
        .add("eui64", output::hex(&id.eui64));
    if let Some(uuid) = uuid {
        fields.add("uuid", Uuid::from_bytes(uuid).to_string());
    }
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
    if let Some(block_size) = block_size {
        fields.add("block_size", block_size);
    }
    fields
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

    #[test]
    fn a_namespace_says_its_size_in_words() {
        let id = IdentifyNamespace::with_format(8, 12);
        let fields = namespace_fields(&id, Some([0x11; 16]));
        let text = fields.to_text();
        assert!(text.contains("nsze       : 0x8 (32768 bytes)\n"), "{text}");
        assert!(text.contains("uuid       : 11111111-1111-1111-1111-111111111111\n"));
        assert!(text.contains("lbafs      : 0: 4096 bytes, metadata 0 (in use)\n"));
        assert!(text.lines().all(|line| line.len() <= 80));
        let json = fields.to_json();
        assert_eq!(
            (&json["nsze"], &json["lbafs"][0]["ds"]),
            (&8.into(), &12.into())
        );
        assert_eq!(json["block_size"], 4096);
    }
}
