//! `nvmeof smart-log`, `error-log` and `get-log`

use nvmeof_initiator::Controller;
use nvmeof_wire::admin::LogId;
use nvmeof_wire::log::error::ERROR_ENTRY_LEN;
use nvmeof_wire::log::smart::SMART_LEN;
use nvmeof_wire::log::{ErrorEntry, SmartLog};
use serde_json::{Value, json};
use zerocopy::FromBytes;

use crate::args::{self, Format};
use crate::failure::Failure;
use crate::output::{self, Fields, large};

/// `nvmeof smart-log`
pub(crate) async fn smart(args: &args::Admin) -> Result<(), Failure> {
    let page = read(&args.subsystem, LogId::SMART, None, SMART_LEN).await?;
    let log = SmartLog::read_from_bytes(&page)
        .map_err(|_| Failure::new("the SMART log has another length than expected"))?;
    smart_fields(&log).print(args.subsystem.target.output_format)
}

fn smart_fields(log: &SmartLog) -> Fields {
    let mut fields = Fields::default();
    let temperature = log.celsius().map_or_else(
        || "not reported".to_owned(),
        |celsius| format!("{celsius} C"),
    );
    fields
        .hex("critical_warning", log.cw)
        .with("temperature", log.ctemp.get(), temperature)
        .with("avail_spare", log.avsp, format!("{} %", log.avsp))
        .with("spare_thresh", log.avspt, format!("{} %", log.avspt))
        .with("percent_used", log.pused, format!("{} %", log.pused));
    for (name, value) in [
        ("data_units_read", log.dur),
        ("data_units_written", log.duw),
        ("host_read_commands", log.hrc),
        ("host_write_commands", log.hwc),
        ("controller_busy_time", log.cbt),
        ("power_cycles", log.pwrc),
        ("power_on_hours", log.poh),
        ("unsafe_shutdowns", log.upl),
        ("media_errors", log.mdie),
        ("num_err_log_entries", log.neile),
    ] {
        fields.add(name, large(value.get()));
    }
    fields
}

/// `nvmeof error-log`
pub(crate) async fn error(args: &args::ErrorLog) -> Result<(), Failure> {
    let len = usize::from(args.log_entries) * ERROR_ENTRY_LEN;
    let page = read(&args.subsystem, LogId::ERROR, None, len).await?;
    let entries = page.chunks_exact(ERROR_ENTRY_LEN);
    let entries = entries.filter_map(|entry| ErrorEntry::read_from_bytes(entry).ok());
    // An error count of 0 marks an entry that was never used.
    let entries: Vec<ErrorEntry> = entries.filter(|entry| entry.ecnt.get() != 0).collect();
    match args.subsystem.target.output_format {
        Format::Normal => {
            let mut text = format!("Error Log: {} entries\n", entries.len());
            for (number, entry) in entries.iter().enumerate() {
                text.push_str(&format!("===== Entry {number} =====\n"));
                text.push_str(&error_fields(entry).to_text());
            }
            output::print(text.as_bytes())
        }
        Format::Json => {
            let errors = entries.iter().map(|entry| error_fields(entry).to_json());
            output::json(&json!({ "errors": errors.collect::<Vec<Value>>() }))
        }
    }
}

fn error_fields(entry: &ErrorEntry) -> Fields {
    let mut fields = Fields::default();
    let status = entry.status();
    fields
        .add("error_count", entry.ecnt.get())
        .add("sqid", entry.sqid.get())
        .hex("cmdid", entry.cid.get())
        .with("status_field", status.to_field(), status.to_string())
        .hex("parm_err_loc", entry.pel.get())
        .add("lba", entry.lba.get())
        .hex("nsid", entry.nsid.get())
        .hex("opcode", entry.opc)
        .add("trtype", entry.trtype.name());
    fields
}

/// `nvmeof get-log`
pub(crate) async fn any(args: &args::GetLog) -> Result<(), Failure> {
    let (lid, nsid) = (LogId(args.log_id), args.namespace_id);
    let len = usize::try_from(args.log_len).unwrap_or(usize::MAX);
    let page = read(&args.subsystem, lid, nsid, len).await?;
    if args.raw_binary {
        return output::print(&page);
    }
    match args.subsystem.target.output_format {
        Format::Normal => {
            let head = format!("Log page {:#04x}, {} bytes\n", lid.0, page.len());
            output::print((head + &output::dump(&page)).as_bytes())
        }
        Format::Json => output::json(&json!({ "lid": lid.0, "data": output::hex(&page) })),
    }
}

async fn read(
    subsystem: &args::Subsystem,
    lid: LogId,
    nsid: Option<u32>,
    len: usize,
) -> Result<Vec<u8>, Failure> {
    let controller: Controller = subsystem
        .target
        .host()?
        .connect(subsystem.options()?)
        .await?;
    let page = controller.log_page(lid, nsid, len).await;
    controller.disconnect().await;
    Ok(page?)
}

#[cfg(test)]
mod tests {
    use nvmeof_wire::Status;

    use super::*;

    #[test]
    fn smart_has_the_names_of_nvme_cli() {
        let mut log = SmartLog::zeroed();
        log.ctemp = 300.into();
        log.dur = 5.into();
        let fields = smart_fields(&log);
        assert!(fields.to_text().contains("temperature          : 27 C\n"));
        assert_eq!(fields.to_json()["data_units_read"], 5);
    }

    #[test]
    fn an_error_entry_says_its_status_in_words() {
        let entry = ErrorEntry::new(3, Status::LBA_OUT_OF_RANGE);
        let text = error_fields(&entry).to_text();
        assert!(text.contains("error_count  : 3\n"), "{text}");
        assert!(text.contains("LBA Out of Range"), "{text}");
    }
}
