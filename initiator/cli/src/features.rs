//! `nvmeof get-feature` and `set-feature`

mod fields;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use nvmeof_initiator::{Controller, Error, Status};
use nvmeof_wire::admin::{GetFeatures, NSID_ALL, Select, SetFeatures};
use nvmeof_wire::features::{
    FeatureCapabilities, FeatureId, HOST_IDENTIFIER_LEN, HostBehavior, Timestamp,
    is_extended_host_identifier,
};

use crate::args::{self, Format};
use crate::failure::Failure;
use crate::output::{self, Fields};

/// Features with a value for each namespace.
const OF_NAMESPACES: [FeatureId; 5] = [
    FeatureId::LBA_RANGE_TYPE,
    FeatureId::ERROR_RECOVERY,
    FeatureId::RESERVATION_NOTIFICATION_MASK,
    FeatureId::RESERVATION_PERSISTENCE,
    FeatureId::NAMESPACE_WRITE_PROTECTION,
];

/// A feature that was read.
struct Feature {
    fid: FeatureId,
    select: Select,
    value: u32,
    data: Vec<u8>,
}

/// `nvmeof get-feature`
pub(crate) async fn get(args: &args::GetFeature) -> Result<(), Failure> {
    args.check()?;
    let controller = connect(&args.subsystem).await?;
    let features = match args.feature_id {
        Some(fid) => match get_one(&controller, args, FeatureId(fid)).await {
            Ok(feature) => Ok(vec![feature]),
            Err(error) => Err(failed(error, FeatureId(fid), args.namespace_id)),
        },
        None => get_all(&controller, args).await,
    };
    controller.disconnect().await;
    print(args, &features?)
}

async fn get_one(
    controller: &Controller,
    args: &args::GetFeature,
    fid: FeatureId,
) -> Result<Feature, Error> {
    // Base 2.1, 5.1.25.1.28: fabrics have 128-bit host identifiers only.
    let default = u32::from(fid == FeatureId::HOST_IDENTIFIER);
    let cdw11 = args.cdw11.unwrap_or(default);
    let len = match args.select() {
        Select::Capabilities => 0,
        _ => args
            .data_len
            .map_or_else(|| data_len(fid, cdw11, false), usize::from),
    };
    let get = GetFeatures {
        fid,
        select: args.select(),
        cdw11,
        nsid: args.namespace_id,
    };
    let (value, data) = controller.get_feature(get, len).await?;
    Ok(Feature {
        fid,
        select: args.select(),
        value,
        data,
    })
}

/// The features that the controller supports, and that exist for the namespace of `args`.
async fn get_all(
    controller: &Controller,
    args: &args::GetFeature,
) -> Result<Vec<Feature>, Failure> {
    let nsid = args.namespace_id;
    // Without this check, features of a namespace that does not exist would be left out.
    if nsid != 0 && nsid != NSID_ALL && !controller.namespaces().await?.contains(&nsid) {
        return Err(
            Failure::new(format!("the subsystem has no namespace {nsid}"))
                .with_remedy("choose an active namespace (nvmeof list-ns)"),
        );
    }
    let mut features = Vec::new();
    for fid in (1..=u8::MAX).map(FeatureId) {
        match get_one(controller, args, fid).await {
            Ok(feature) => features.push(feature),
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(failed(error, fid, nsid)),
        }
    }
    if features.is_empty() {
        return Err(Failure::new("the controller reports no feature")
            .with_remedy("give one with --feature-id to see why"));
    }
    Ok(features)
}

/// Whether the error is that of a feature that the controller does not support, or that it
/// does not have without a namespace.
fn is_absent(error: &Error) -> bool {
    let absent = [Status::INVALID_FIELD, Status::INVALID_NAMESPACE];
    matches!(error, Error::Command(error) if absent.contains(&error.status.kind()))
}

fn print(args: &args::GetFeature, features: &[Feature]) -> Result<(), Failure> {
    if let ([feature], true) = (features, args.raw_binary)
        && !feature.data.is_empty()
    {
        return output::print(&feature.data);
    }
    match args.subsystem.target.output_format {
        Format::Normal => {
            let texts = features
                .iter()
                .map(|feature| feature.to_text(args.human_readable));
            output::print(texts.collect::<String>().as_bytes())
        }
        Format::Json => {
            let mut all = Fields::default();
            for feature in features {
                feature.add_to(&mut all);
            }
            output::json(&all)
        }
    }
}

impl Feature {
    fn to_text(&self, with_fields: bool) -> String {
        let (fid, value) = (self.fid.0, dword(self.value));
        let (name, select) = (self.fid.name(), select_name(self.select));
        let line = format!("get-feature:{fid:#04x} ({name}), {select} value:{value}\n");
        match self.select {
            Select::Capabilities => {
                let words = self.capabilities().into_iter();
                let lines = words.map(|word| format!("  Feature is {word}\n"));
                line + &lines.collect::<String>()
            }
            _ if with_fields => line + &self.fields().to_indented_text(),
            _ => line + &output::dump(&self.data),
        }
    }

    /// Adds the objects of nvme-cli.
    fn add_to(&self, all: &mut Fields) {
        let fid = self.fid.0;
        let mut object = Fields::default();
        object.add("name", self.fid.name());
        object.add(select_name(self.select), dword(self.value));
        all.objects(format!("feature: {fid:#04x}"), vec![object]);
        if self.select == Select::Capabilities {
            let key = format!("Feature: {fid:#04x}: select");
            all.with(key, self.capabilities(), "");
        } else {
            all.objects(format!("Feature: {fid:#04x}"), vec![self.fields()]);
        }
    }

    fn fields(&self) -> Fields {
        fields::of(self.fid, self.value, &self.data)
    }

    fn capabilities(&self) -> Vec<&'static str> {
        let all = FeatureCapabilities::from_bits_retain(self.value);
        let names = [
            (FeatureCapabilities::SAVEABLE, "saveable"),
            (FeatureCapabilities::NAMESPACE_SPECIFIC, "per-namespace"),
            (FeatureCapabilities::CHANGEABLE, "changeable"),
        ];
        let names = names.into_iter().filter(|(one, _)| all.contains(*one));
        names.map(|(_, name)| name).collect()
    }
}

fn select_name(select: Select) -> &'static str {
    match select {
        Select::Current => "Current",
        Select::Default => "Default",
        Select::Saved => "Saved",
        Select::Capabilities => "Supported capabilities",
        Select::Reserved(_) => "Reserved",
    }
}

/// A dword as nvme-cli prints it: 0 has no prefix.
fn dword(value: u32) -> String {
    match value {
        0 => "00000000".to_owned(),
        value => format!("{value:#010x}"),
    }
}

/// Bytes of data of a feature in the commands Get Features and Set Features.
fn data_len(fid: FeatureId, cdw11: u32, sets: bool) -> usize {
    match fid {
        FeatureId::LBA_RANGE_TYPE => 4096,
        FeatureId::AUTONOMOUS_POWER_STATE => 256,
        // The attributes of the buffer; Set Features has them in dwords.
        FeatureId::HOST_MEMORY_BUFFER if !sets => 4096,
        FeatureId::TIMESTAMP => size_of::<Timestamp>(),
        FeatureId::HOST_BEHAVIOR => size_of::<HostBehavior>(),
        FeatureId::HOST_IDENTIFIER if is_extended_host_identifier(cdw11) => HOST_IDENTIFIER_LEN,
        FeatureId::HOST_IDENTIFIER => HOST_IDENTIFIER_LEN / 2,
        _ => 0,
    }
}

/// `nvmeof set-feature`
pub(crate) async fn set(args: &args::SetFeature) -> Result<(), Failure> {
    let fid = FeatureId(args.feature_id);
    let (cdw11, data) = content(args).map_err(|failure| failure.about(&object(fid)))?;
    let set = SetFeatures {
        fid,
        save: args.save,
        cdw11,
        cdw12: args.cdw12,
        nsid: args.namespace_id,
    };
    let controller = connect(&args.subsystem).await?;
    let result = controller.set_feature(set, &data).await;
    controller.disconnect().await;
    result.map_err(|error| failed(error, fid, args.namespace_id))?;
    let line = format!(
        "set-feature:{:#04x} ({}), value:{}, cdw12:{}, save:{}",
        fid.0,
        fid.name(),
        dword(cdw11),
        dword(set.cdw12),
        if set.save { "0x1" } else { "0" }
    );
    match args.subsystem.target.output_format {
        Format::Normal => output::print((line + "\n" + &output::dump(&data)).as_bytes()),
        // As in nvme-cli 3.0; before, it prints the line.
        Format::Json => {
            let mut fields = Fields::default();
            fields.add("result", line);
            output::json(&fields)
        }
    }
}

/// Dword 11 and data.
fn content(args: &args::SetFeature) -> Result<(u32, Vec<u8>), Failure> {
    let fid = FeatureId(args.feature_id);
    if let (FeatureId::TIMESTAMP, Some(ms), None) = (fid, args.value, &args.data) {
        return Ok((0, timestamp(ms)?));
    }
    let cdw11 = u32::try_from(args.value.unwrap_or(0)).map_err(|_| {
        let value = args.value.unwrap_or(0);
        Failure::usage(format!("--value {value:#x} is out of range (0-0xffffffff)"))
            .with_remedy("dword 11 has 32 bits: give a smaller --value")
    })?;
    let of_feature = data_len(fid, cdw11, true);
    let len = args.data_len.map_or(of_feature, usize::from);
    match &args.data {
        Some(_) if len == 0 => Err(Failure::usage("--data: the feature has no data")
            .with_remedy("leave --data out, or give the number of bytes with --data-len")),
        Some(path) => Ok((cdw11, read_exactly(path, len)?)),
        None if len > 0 => Err(Failure::usage(format!(
            "the feature has {len} bytes of data, and there is no --data"
        ))
        .with_remedy("give --data FILE, or --data - for standard input")),
        None if args.value.is_none() => {
            Err(Failure::usage("there is no value").with_remedy("give --value N"))
        }
        None => Ok((cdw11, Vec::new())),
    }
}

fn timestamp(ms: u64) -> Result<Vec<u8>, Failure> {
    let [a, b, c, d, e, f, rest @ ..] = ms.to_le_bytes();
    if rest == [0, 0] {
        return Ok(vec![a, b, c, d, e, f, 0, 0]);
    }
    Err(
        Failure::usage(format!("--value {ms} is out of range (0-281474976710655)"))
            .with_remedy("give milliseconds since 1970, 48 bits"),
    )
}

/// The content of a file or of standard input, which must have `len` bytes.
fn read_exactly(path: &Path, len: usize) -> Result<Vec<u8>, Failure> {
    let failed = |error| Failure::file(path, &error);
    let from: Box<dyn Read> = if path == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(File::open(path).map_err(failed)?)
    };
    let mut bytes = Vec::new();
    let most = u64::try_from(len).unwrap_or(u64::MAX).saturating_add(1);
    from.take(most).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() == len {
        return Ok(bytes);
    }
    let has = match bytes.len() {
        longer if longer > len => format!("more than {len}"),
        shorter => shorter.to_string(),
    };
    Err(Failure::new(format!(
        "{} has {has} bytes, the data of the feature has {len}",
        path.display()
    ))
    .with_remedy("give data of that length, or another --data-len"))
}

fn object(fid: FeatureId) -> String {
    format!("feature {:#04x} ({})", fid.0, fid.name())
}

/// The failure of a command about a feature, with a remedy where the general one does not
/// help.
fn failed(error: Error, fid: FeatureId, nsid: u32) -> Failure {
    let status = match &error {
        Error::Command(error) => Some(error.status.kind()),
        _ => None,
    };
    let failure = Failure::from(error);
    let Some(status) = status else {
        return failure;
    };
    let failure = failure.about(&object(fid));
    let remedy = match status {
        Status::INVALID_NAMESPACE if nsid == 0 && OF_NAMESPACES.contains(&fid) => {
            "each namespace has its own value: give --namespace-id N"
        }
        Status::FEATURE_NOT_SAVEABLE => {
            "leave --save out; nvmeof get-feature --sel supported shows whether it is saveable"
        }
        Status::FEATURE_NOT_CHANGEABLE => {
            "nvmeof get-feature --sel supported shows whether it is changeable"
        }
        Status::FEATURE_NOT_NAMESPACE_SPECIFIC => {
            "it has one value for the controller: leave --namespace-id out"
        }
        // Base 2.1, 3.2.1.4: the status of an inactive namespace as well.
        Status::INVALID_FIELD if nsid != 0 && OF_NAMESPACES.contains(&fid) => {
            "the namespace may not be active (nvmeof list-ns), or the controller may not support \
             this feature or value"
        }
        Status::INVALID_FIELD => {
            "the controller may not support this feature or value; nvmeof get-feature without \
             --feature-id shows the features"
        }
        Status::COMMAND_SEQUENCE_ERROR => "the controller does not allow this change after Connect",
        _ => return failure,
    };
    failure.with_remedy(remedy)
}

async fn connect(subsystem: &args::Subsystem) -> Result<Controller, Failure> {
    let host = subsystem.target.host()?;
    Ok(host.connect(subsystem.options()?).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feature(fid: FeatureId, select: Select, value: u32, data: &[u8]) -> Feature {
        let data = data.to_vec();
        Feature {
            fid,
            select,
            value,
            data,
        }
    }

    #[test]
    fn feature_line_is_that_of_nvme_cli() {
        let fid = FeatureId::VOLATILE_WRITE_CACHE;
        let on = feature(fid, Select::Current, 1, &[]);
        assert_eq!(
            on.to_text(false),
            "get-feature:0x06 (Volatile Write Cache), Current value:0x00000001\n"
        );
        assert!(
            on.to_text(true)
                .ends_with("\n  Volatile Write Cache Enable (WCE): Enabled\n")
        );
        let off = feature(fid, Select::Default, 0, &[]);
        let text = off.to_text(false);
        assert!(text.ends_with(", Default value:00000000\n"), "{text}");
        let can = feature(fid, Select::Capabilities, 6, &[]);
        let text = can.to_text(false);
        let expected = "\n  Feature is per-namespace\n  Feature is changeable\n";
        assert!(text.ends_with(expected), "{text}");
        let data = feature(FeatureId::TIMESTAMP, Select::Current, 0, &[7; 8]);
        assert!(
            data.to_text(false)
                .contains("\n000000: 07 07 07 07 07 07 07 07 ")
        );
    }

    /// Keys as in nvme-cli 2.13.
    #[test]
    fn feature_json_has_keys_of_nvme_cli() {
        let mut all = Fields::default();
        let fid = FeatureId::VOLATILE_WRITE_CACHE;
        feature(fid, Select::Current, 1, &[]).add_to(&mut all);
        let fid = FeatureId::NAMESPACE_WRITE_PROTECTION;
        feature(fid, Select::Capabilities, 7, &[]).add_to(&mut all);
        let json = serde_json::to_string(&all).unwrap();
        assert_eq!(
            json,
            "{\"feature: 0x06\":[{\"name\":\"Volatile Write Cache\",\
             \"Current\":\"0x00000001\"}],\
             \"Feature: 0x06\":[{\"Volatile Write Cache Enable (WCE)\":\"Enabled\"}],\
             \"feature: 0x84\":[{\"name\":\"Namespace Write Protection Config\",\
             \"Supported capabilities\":\"0x00000007\"}],\
             \"Feature: 0x84: select\":[\"saveable\",\"per-namespace\",\"changeable\"]}"
        );
    }

    #[test]
    fn data_has_the_length_of_the_specification() {
        for (fid, cdw11, get, set) in [
            (FeatureId::TIMESTAMP, 0, 8, 8),
            (FeatureId::HOST_BEHAVIOR, 0, 512, 512),
            (FeatureId::HOST_IDENTIFIER, 1, 16, 16),
            (FeatureId::HOST_IDENTIFIER, 0, 8, 8),
            (FeatureId::HOST_MEMORY_BUFFER, 0, 4096, 0),
            (FeatureId::VOLATILE_WRITE_CACHE, 0, 0, 0),
            (FeatureId(0xc0), 0, 0, 0),
        ] {
            assert_eq!(data_len(fid, cdw11, false), get, "{fid:?}");
            assert_eq!(data_len(fid, cdw11, true), set, "{fid:?}");
        }
    }

    #[test]
    fn timestamp_has_48_bits() {
        assert_eq!(
            timestamp(0x0605_0403_0201).unwrap(),
            [1, 2, 3, 4, 5, 6, 0, 0]
        );
        assert!(timestamp(1 << 48).is_err());
    }
}
