//! The fields of features, with their names in nvme-cli.
//!
//! Every value may come from a hostile target: a number without a meaning is reserved, and
//! data that are too short have no fields.

use nvmeof_wire::features::{
    Arbitration, AsyncEventConfig, ErrorRecovery, FeatureId, HOST_IDENTIFIER_LEN, HostBehavior,
    PowerManagement, TemperatureThreshold, Timestamp, VolatileWriteCache, WriteAtomicity,
    WriteProtection,
};
use nvmeof_wire::reservation::NoticeMask;
use serde_json::Value;
use zerocopy::FromBytes;

use crate::output::{self, Fields};

/// The fields of `fid`: its dword 0 `value` and its `data`. Empty for other features.
pub(super) fn of(fid: FeatureId, value: u32, data: &[u8]) -> Fields {
    let mut fields = Fields::default();
    match fid {
        FeatureId::ARBITRATION => add_arbitration(&mut fields, value),
        FeatureId::POWER_MANAGEMENT => add_power(&mut fields, value),
        FeatureId::TEMPERATURE_THRESHOLD => add_threshold(&mut fields, value),
        FeatureId::ERROR_RECOVERY => add_error_recovery(&mut fields, value),
        FeatureId::VOLATILE_WRITE_CACHE => {
            let enabled = VolatileWriteCache::from_dword(value).enabled;
            fields.add("Volatile Write Cache Enable (WCE)", enabled_text(enabled));
        }
        FeatureId::NUMBER_OF_QUEUES => add_queues(&mut fields, value),
        FeatureId::WRITE_ATOMICITY => {
            let disabled = WriteAtomicity::from_dword(value).disable_normal;
            fields.add("Disable Normal (DN)", truth(disabled));
        }
        FeatureId::ASYNC_EVENT_CONFIG => add_events(&mut fields, value),
        FeatureId::TIMESTAMP => add_timestamp(&mut fields, data),
        FeatureId::KEEP_ALIVE_TIMER => {
            fields.add("Keep Alive Timeout (KATO) in milliseconds", value);
        }
        FeatureId::HOST_BEHAVIOR => add_host_behavior(&mut fields, data),
        FeatureId::IO_COMMAND_SET_PROFILE => {
            fields.add("I/O Command Set Profile", truth(value & 1 != 0));
        }
        FeatureId::HOST_IDENTIFIER => add_host_identifier(&mut fields, data),
        FeatureId::RESERVATION_NOTIFICATION_MASK => add_notice_mask(&mut fields, value),
        FeatureId::RESERVATION_PERSISTENCE => {
            fields.add("Persist Through Power Loss (PTPL)", truth(value & 1 != 0));
        }
        FeatureId::NAMESPACE_WRITE_PROTECTION => {
            let state = write_protection(WriteProtection::from_dword(value));
            fields.add("Namespace Write Protect", state);
        }
        _ => {}
    }
    fields
}

/// Base 2.1, 5.1.25.1.29.
fn add_notice_mask(fields: &mut Fields, value: u32) {
    let mask = NoticeMask::from_bits_retain(value);
    for (name, notice) in [
        (
            "Mask Reservation Preempted Notification (RESPRE)",
            NoticeMask::RESERVATION_PREEMPTED,
        ),
        (
            "Mask Reservation Released Notification (RESREL)",
            NoticeMask::RESERVATION_RELEASED,
        ),
        (
            "Mask Registration Preempted Notification (REGPRE)",
            NoticeMask::REGISTRATION_PREEMPTED,
        ),
    ] {
        fields.add(name, truth(mask.contains(notice)));
    }
}

fn enabled_text(enabled: bool) -> &'static str {
    if enabled { "Enabled" } else { "Disabled" }
}

fn truth(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

fn add_arbitration(fields: &mut Fields, value: u32) {
    let arbitration = Arbitration::from_dword(value);
    let burst = match arbitration.burst {
        7 => "No limit".to_owned(),
        shift => (1u32 << (shift & 7)).to_string(),
    };
    fields
        .add("High Priority Weight (HPW)", arbitration.high)
        .add("Medium Priority Weight (MPW)", arbitration.medium)
        .add("Low Priority Weight (LPW)", arbitration.low)
        .add("Arbitration Burst (AB)", burst);
}

fn add_power(fields: &mut Fields, value: u32) {
    let power = PowerManagement::from_dword(value);
    // Base 2.1, 5.1.25.1.2.
    let hint = match power.wh {
        0 => "No Workload",
        1 => "Workload 1: idle periods and random writes",
        2 => "Workload 2: sequential writes",
        _ => "Reserved",
    };
    fields
        .add("Workload Hint (WH)", power.wh)
        .add("WH description", hint)
        .add("Power State (PS)", power.ps);
}

fn add_threshold(fields: &mut Fields, value: u32) {
    let threshold = TemperatureThreshold::from_dword(value);
    // Base 2.1, 5.1.25.1.3: TMPTHH, bits 24:22.
    let hysteresis = value >> 22 & 7;
    let kind = match threshold.thsel {
        TemperatureThreshold::OVER => "Over Temperature Threshold",
        TemperatureThreshold::UNDER => "Under Temperature Threshold",
        _ => "Reserved",
    };
    let sensor = match threshold.tmpsel {
        0 => "Composite Temperature".to_owned(),
        sensor @ 1..=8 => format!("Temperature Sensor {sensor}"),
        _ => "Reserved".to_owned(),
    };
    let celsius = i32::from(threshold.tmpth) - 273;
    fields
        .add(
            "Temperature Threshold Hysteresis (TMPTHH)",
            format!("{} Celsius", i64::from(hysteresis) - 273),
        )
        .add("TMPTHH kelvin", format!("{hysteresis} K"))
        .add("Threshold Type Select (THSEL)", threshold.thsel)
        .add("THSEL description", kind)
        .add("Threshold Temperature Select (TMPSEL)", threshold.tmpsel)
        .add("TMPSEL description", sensor)
        .add(
            "Temperature Threshold (TMPTH)",
            format!("{celsius} Celsius"),
        )
        .add("TMPTH kelvin", format!("{} K", threshold.tmpth));
}

fn add_error_recovery(fields: &mut Fields, value: u32) {
    let recovery = ErrorRecovery::from_dword(value);
    fields
        .add(
            "Deallocated or Unwritten Logical Block Error Enable (DULBE)",
            enabled_text(recovery.dulbe),
        )
        .add(
            "Time Limited Error Recovery (TLER)",
            format!("{} ms", u32::from(recovery.tler) * 100),
        );
}

/// Counts are 0's based in the dword; 65,535, which is not allowed, is 65,536.
fn add_queues(fields: &mut Fields, value: u32) {
    fields
        .add(
            "Number of IO Completion Queues Allocated (NCQA)",
            (value >> 16) + 1,
        )
        .add(
            "Number of IO Submission Queues Allocated (NSQA)",
            (value & 0xffff) + 1,
        );
}

fn add_events(fields: &mut Fields, value: u32) {
    let bit = |bit: u32| value & 1 << bit != 0;
    let smart = AsyncEventConfig::SMART_SPARE
        | AsyncEventConfig::SMART_TEMPERATURE
        | AsyncEventConfig::SMART_RELIABILITY
        | AsyncEventConfig::SMART_READ_ONLY
        | AsyncEventConfig::SMART_BACKUP
        | AsyncEventConfig::SMART_PMR;
    // Base 2.1, 5.1.25.1.5; in the order of nvme-cli.
    for (name, enabled) in [
        ("Discovery Log Page Change Notices", bit(31)),
        ("Host Discovery Log Page Change Notification", bit(30)),
        ("AVE Discovery Log Page Change Notification", bit(29)),
        (
            "Pull Model DDC Request Log Page Change Notification",
            bit(28),
        ),
        ("Zone Descriptor Changed Notices", bit(27)),
        ("Reachability Group", bit(17)),
        ("Reachability Association", bit(16)),
        ("Normal NVM Subsystem Shutdown", bit(15)),
        (
            "Endurance Group Event Aggregate Log Change Notices",
            bit(14),
        ),
        ("LBA Status Information Notices", bit(13)),
        (
            "Predictable Latency Event Aggregate Log Change Notices",
            bit(12),
        ),
        ("Asymmetric Namespace Access Change Notices", bit(11)),
        ("Telemetry Log Notices", bit(10)),
        ("Firmware Activation Notices", bit(9)),
        ("Namespace Attribute Notices", bit(8)),
        (
            "SMART / Health Critical Warnings",
            value & smart.bits() != 0,
        ),
    ] {
        let json = if enabled {
            "Send async event"
        } else {
            "Do not send async event"
        };
        fields.with(name, json, enabled_text(enabled));
    }
}

/// Base 2.1, 5.1.25.1.7.
fn add_timestamp(fields: &mut Fields, data: &[u8]) {
    let Ok((timestamp, _)) = Timestamp::read_from_prefix(data) else {
        return;
    };
    let ms = timestamp.ms();
    let origin = match timestamp.attributes & 0b1110 {
        Timestamp::ORIGIN_RESET => "counts from the last reset".to_owned(),
        Timestamp::ORIGIN_HOST => "set by a host".to_owned(),
        other => format!("reserved {:#x}", other >> 1),
    };
    let synch = if timestamp.attributes & 1 == 0 {
        "counted without interruption"
    } else {
        "may have stopped at times"
    };
    fields
        .add("timestamp", ms)
        .add("timestamp string", utc(ms))
        .add("timestamp origin", origin)
        .add("synch", synch);
}

/// A time in milliseconds since 1970, such as `2026-11-26 18:46:52 UTC`.
fn utc(ms: u64) -> String {
    let seconds = ms / 1000;
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Proleptic Gregorian calendar in eras of 400 years, which begin on 1 March.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

fn add_host_behavior(fields: &mut Fields, data: &[u8]) {
    let Ok((behavior, _)) = HostBehavior::read_from_prefix(data) else {
        return;
    };
    let formats = behavior.cdfe.get();
    fields
        .add("Host Behavior Support", truth(behavior.acre & 1 != 0))
        .add(
            "Advanced Command Retry Enable (ACRE)",
            truth(behavior.acre != 0),
        )
        .add(
            "Extended Telemetry Data Area 4 Supported (ETDAS)",
            truth(behavior.etdas != 0),
        )
        .add(
            "LBA Format Extension Enable (LBAFEE)",
            truth(behavior.lbafee != 0),
        )
        .add(
            "Host Dispersed Namespace Support (HDISNS)",
            enabled_text(behavior.hdisns != 0),
        );
    for (name, format) in [
        ("Copy Descriptor Format 2h Enable (CDF2E)", 2),
        ("Copy Descriptor Format 3h Enable (CDF3E)", 3),
        ("Copy Descriptor Format 4h Enable (CDF4E)", 4),
    ] {
        fields.add(name, truth(formats & 1 << format != 0));
    }
}

/// In JSON the first 64 bits, as in nvme-cli.
fn add_host_identifier(fields: &mut Fields, data: &[u8]) {
    let Some(low) = data.first_chunk() else {
        return;
    };
    let json: Value = u64::from_le_bytes(*low).into();
    let whole = data.get(..HOST_IDENTIFIER_LEN).unwrap_or(low);
    fields.with("Host Identifier (HOSTID)", json, output::hex(whole));
}

fn write_protection(state: WriteProtection) -> &'static str {
    match state {
        WriteProtection::NONE => "No Write Protect",
        WriteProtection::PROTECTED => "Write Protect",
        WriteProtection::UNTIL_POWER_CYCLE => "Write Protect Until Power Cycle",
        WriteProtection::PERMANENT => "Permanent Write Protect",
        _ => "Reserved",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn json(fid: FeatureId, value: u32, data: &[u8]) -> Value {
        serde_json::to_value(of(fid, value, data)).unwrap()
    }

    #[test]
    fn fields_have_names_and_values_of_nvme_cli() {
        for (fid, value, key, expected) in [
            (
                FeatureId::ARBITRATION,
                0x07,
                "Arbitration Burst (AB)",
                "No limit".into(),
            ),
            (
                FeatureId::ARBITRATION,
                3,
                "Arbitration Burst (AB)",
                "8".into(),
            ),
            (
                FeatureId::ARBITRATION,
                0xff00_0000,
                "High Priority Weight (HPW)",
                256.into(),
            ),
            (
                FeatureId::POWER_MANAGEMENT,
                0x41,
                "Workload Hint (WH)",
                2.into(),
            ),
            (
                FeatureId::POWER_MANAGEMENT,
                0x41,
                "Power State (PS)",
                1.into(),
            ),
            (
                FeatureId::TEMPERATURE_THRESHOLD,
                0x001f_0157,
                "TMPTH kelvin",
                "343 K".into(),
            ),
            (
                FeatureId::TEMPERATURE_THRESHOLD,
                343,
                "Temperature Threshold (TMPTH)",
                "70 Celsius".into(),
            ),
            (
                FeatureId::ERROR_RECOVERY,
                0x1_0003,
                "Time Limited Error Recovery (TLER)",
                "300 ms".into(),
            ),
            (
                FeatureId::NUMBER_OF_QUEUES,
                u32::MAX,
                "Number of IO Submission Queues Allocated (NSQA)",
                65536.into(),
            ),
            (
                FeatureId::WRITE_ATOMICITY,
                1,
                "Disable Normal (DN)",
                "True".into(),
            ),
            (
                FeatureId::ASYNC_EVENT_CONFIG,
                1 << 11,
                "Asymmetric Namespace Access Change Notices",
                "Send async event".into(),
            ),
            (
                FeatureId::KEEP_ALIVE_TIMER,
                5000,
                "Keep Alive Timeout (KATO) in milliseconds",
                5000.into(),
            ),
            (
                FeatureId::RESERVATION_NOTIFICATION_MASK,
                1 << 2,
                "Mask Reservation Released Notification (RESREL)",
                "True".into(),
            ),
            (
                FeatureId::RESERVATION_PERSISTENCE,
                1,
                "Persist Through Power Loss (PTPL)",
                "True".into(),
            ),
            (
                FeatureId::NAMESPACE_WRITE_PROTECTION,
                2,
                "Namespace Write Protect",
                "Write Protect Until Power Cycle".into(),
            ),
            (
                FeatureId::NAMESPACE_WRITE_PROTECTION,
                7,
                "Namespace Write Protect",
                "Reserved".into(),
            ),
        ] {
            let json = json(fid, value, &[]);
            let expected: Value = expected;
            assert_eq!(json[key], expected, "{json}");
        }
    }

    #[test]
    fn data_are_parsed_if_they_are_long_enough() {
        let stamp = Timestamp::new(1_795_718_812_000, Timestamp::ORIGIN_HOST | 1);
        let bytes = zerocopy::IntoBytes::as_bytes(&stamp);
        let stamped = json(FeatureId::TIMESTAMP, 0, bytes);
        assert_eq!(stamped["timestamp"], 1_795_718_812_000_u64);
        assert_eq!(stamped["timestamp string"], "2026-11-26 18:46:52 UTC");
        assert_eq!(stamped["timestamp origin"], "set by a host");
        let mut behavior = [0; 512];
        (behavior[0], behavior[4]) = (1, 0x8);
        let behavior = json(FeatureId::HOST_BEHAVIOR, 0, &behavior);
        assert_eq!(behavior["Advanced Command Retry Enable (ACRE)"], "True");
        assert_eq!(behavior["Copy Descriptor Format 3h Enable (CDF3E)"], "True");
        assert_eq!(
            behavior["Copy Descriptor Format 2h Enable (CDF2E)"],
            "False"
        );
        let host = json(FeatureId::HOST_IDENTIFIER, 0, &[1; 16]);
        assert_eq!(host["Host Identifier (HOSTID)"], 0x0101_0101_0101_0101_u64);
        for fid in [
            FeatureId::TIMESTAMP,
            FeatureId::HOST_BEHAVIOR,
            FeatureId::HOST_IDENTIFIER,
        ] {
            assert_eq!(json(fid, 0, &[1; 7]), serde_json::json!({}), "{fid:?}");
        }
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (951_868_799, "2000-02-29 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(utc(seconds * 1000), text);
        }
        // The largest value, 48 bits.
        assert!(utc((1 << 48) - 1).starts_with("10889-"));
    }

    /// Whatever a target sends: no panic, and lines that fit a terminal.
    #[test]
    fn any_value_has_fields_in_eighty_columns() {
        for fid in (0..=u8::MAX).map(FeatureId) {
            for value in [0, 1, 0x5555_5555, 0xaaaa_aaaa, u32::MAX] {
                for data in [&[][..], &[0xff; 7], &[0xff; 512]] {
                    let text = of(fid, value, data).to_indented_text();
                    let long = text.lines().find(|line| line.len() > 80);
                    assert_eq!(long, None, "{fid:?}");
                }
            }
        }
    }
}
