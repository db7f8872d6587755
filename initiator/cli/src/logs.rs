//! `nvmeof smart-log`, `error-log` and `get-log`

use nvmeof_initiator::Controller;
use nvmeof_wire::admin::LogId;
use nvmeof_wire::log::error::ERROR_ENTRY_LEN;
use nvmeof_wire::log::smart::SMART_LEN;
use nvmeof_wire::log::{ErrorEntry, SmartLog};
use serde::Serialize;
use serde_json::json;
use zerocopy::FromBytes;

use crate::args::{self, Format};
use crate::failure::Failure;
use crate::output::{self, Fields};

/// `nvmeof smart-log`
pub(crate) async fn smart(args: &args::Admin) -> Result<(), Failure> {
    let page = read(&args.subsystem, LogId::SMART, None, SMART_LEN).await?;
    let log = SmartLog::read_from_bytes(&page)
        .map_err(|_| Failure::new("the SMART log has an unexpected length"))?;
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
        .with("percent_used", log.pused, format!("{} %", log.pused))
        .hex("endurance_grp_critical_warning_summary", log.egcws);
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
        fields.large(name, value.get());
    }
    fields
        .add("warning_temp_time", log.wctt.get())
        .add("critical_comp_time", log.cctt.get());
    // An absent sensor reports 0.
    for (name, sensor) in SENSORS.iter().zip(log.tsen) {
        if sensor.get() != 0 {
            fields.add(name, sensor.get());
        }
    }
    fields
        .add("thm_temp1_trans_count", log.tmt1tc.get())
        .add("thm_temp2_trans_count", log.tmt2tc.get())
        .add("thm_temp1_total_time", log.tttmt1.get())
        .add("thm_temp2_total_time", log.tttmt2.get());
    fields
}

const SENSORS: [&str; 8] = [
    "temperature_sensor_1",
    "temperature_sensor_2",
    "temperature_sensor_3",
    "temperature_sensor_4",
    "temperature_sensor_5",
    "temperature_sensor_6",
    "temperature_sensor_7",
    "temperature_sensor_8",
];

/// The error log as JSON.
#[derive(Serialize)]
struct Errors {
    errors: Vec<Fields>,
}

/// `nvmeof error-log`
pub(crate) async fn error(args: &args::ErrorLog) -> Result<(), Failure> {
    let len = usize::from(args.log_entries) * ERROR_ENTRY_LEN;
    let page = read(&args.subsystem, LogId::ERROR, None, len).await?;
    let entries = page.chunks_exact(ERROR_ENTRY_LEN);
    let entries = entries.filter_map(|entry| ErrorEntry::read_from_bytes(entry).ok());
    let entries: Vec<ErrorEntry> = entries.collect();
    match args.subsystem.target.output_format {
        Format::Normal => {
            // An error count of 0 marks an unused entry.
            let used = entries.iter().filter(|entry| entry.ecnt.get() != 0);
            let entries: Vec<&ErrorEntry> = used.collect();
            let mut text = format!("Error Log: {} entries\n", entries.len());
            for (number, entry) in entries.iter().enumerate() {
                text.push_str(&format!("===== Entry {number} =====\n"));
                text.push_str(&error_fields(entry).to_text());
            }
            output::print(text.as_bytes())
        }
        Format::Json => {
            let errors = entries.iter().map(error_fields).collect();
            output::json(&Errors { errors })
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
        .add("phase_tag", entry.sts.get() & 1)
        .hex("parm_error_location", entry.pel.get())
        .add("lba", entry.lba.get())
        .hex("nsid", entry.nsid.get())
        .hex("vs", entry.vsia)
        .with("trtype", entry.trtype.0, entry.trtype.name())
        .hex("cs", entry.csinfo.get())
        .hex("trtype_spec_info", entry.ttsi.get());
    // Base 2.1: a log page of an older version has no opcode.
    if entry.lpver > 0 {
        fields.hex("csi", entry.csi).hex("opcode", entry.opc);
    }
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
        let text = fields.to_text();
        let temperature = text.lines().find(|line| line.starts_with("temperature "));
        assert!(temperature.unwrap().ends_with(" : 27 C"), "{text}");
        assert_eq!(serde_json::to_value(&fields).unwrap()["data_units_read"], 5);
    }

    #[test]
    fn error_entry_has_status_name() {
        let entry = ErrorEntry::new(3, Status::LBA_OUT_OF_RANGE);
        let text = error_fields(&entry).to_text();
        assert!(text.contains("error_count         : 3\n"), "{text}");
        assert!(text.contains("LBA Out of Range"), "{text}");
    }
}
