//! Command lines of Get Features, Set Features and the ANA log page.

use std::path::PathBuf;

use clap::Args;
use nvmeof_wire::admin::Select;

use super::Subsystem;
use super::numbers::{number, size};
use crate::failure::Failure;

/// Most bytes of data of a feature: the length of a page.
const MOST_DATA: u64 = 4096;

/// `get-feature`
#[derive(Args, Debug)]
pub(crate) struct GetFeature {
    #[command(flatten)]
    pub(crate) subsystem: Subsystem,
    /// Feature identifier, such as 7 or 0x84 [default: all that the controller
    /// supports]
    #[arg(short = 'f', long, value_name = "ID", value_parser = number::<u8>(1..=255))]
    pub(crate) feature_id: Option<u8>,
    /// Namespace ID, for a feature of namespaces; 0 for the controller
    #[arg(long, value_name = "N", default_value_t = 0,
          value_parser = number::<u32>(0..=u32::MAX.into()))]
    pub(crate) namespace_id: u32,
    /// Value to read: current, default, saved or supported (capabilities), or 0 to 3
    /// in this order [default: current]
    #[arg(long, value_name = "VALUE", value_parser = select)]
    sel: Option<Select>,
    /// Command dword 11 [default: 0; 1 for the Host Identifier, which has 128 bits
    /// over fabrics]
    #[arg(short = 'c', long, value_name = "N",
          value_parser = number::<u32>(0..=u32::MAX.into()))]
    pub(crate) cdw11: Option<u32>,
    /// Bytes of data to read, up to 4096 [default: length of the feature's data]
    #[arg(short = 'l', long, value_name = "SIZE", requires = "feature_id",
          value_parser = size::<u16>(0..=MOST_DATA))]
    pub(crate) data_len: Option<u16>,
    /// Print the data of the feature as raw bytes
    #[arg(short = 'b', long, requires = "feature_id")]
    pub(crate) raw_binary: bool,
    /// Print the fields of the value
    #[arg(short = 'H', long)]
    pub(crate) human_readable: bool,
}

/// `set-feature`
#[derive(Args, Debug)]
pub(crate) struct SetFeature {
    #[command(flatten)]
    pub(crate) subsystem: Subsystem,
    /// Feature identifier, such as 7 or 0x84
    #[arg(short = 'f', long, value_name = "ID", value_parser = number::<u8>(1..=255))]
    pub(crate) feature_id: u8,
    /// Namespace ID, for a feature of namespaces; 0xffffffff for all namespaces, 0
    /// for the controller
    #[arg(long, value_name = "N", default_value_t = 0,
          value_parser = number::<u32>(0..=u32::MAX.into()))]
    pub(crate) namespace_id: u32,
    /// Value: command dword 11; of the Timestamp, milliseconds since 1970
    #[arg(short = 'V', long, value_name = "N", value_parser = number::<u64>(0..=u64::MAX))]
    pub(crate) value: Option<u64>,
    /// Command dword 12
    #[arg(short = 'c', long, value_name = "N", default_value_t = 0,
          value_parser = number::<u32>(0..=u32::MAX.into()))]
    pub(crate) cdw12: u32,
    /// Save the value, so that it persists across resets (no -s, which is the port)
    #[arg(long)]
    pub(crate) save: bool,
    /// File with the data of the feature, or - for standard input
    #[arg(short = 'd', long, value_name = "FILE")]
    pub(crate) data: Option<PathBuf>,
    /// Bytes of data, up to 4096 [default: length of the feature's data]
    #[arg(short = 'l', long, value_name = "SIZE", requires = "data",
          value_parser = size::<u16>(1..=MOST_DATA))]
    pub(crate) data_len: Option<u16>,
}

/// `ana-log`
#[derive(Args, Debug)]
pub(crate) struct AnaLog {
    #[command(flatten)]
    pub(crate) subsystem: Subsystem,
    /// Read the groups without their namespaces
    #[arg(short = 'g', long)]
    pub(crate) groups: bool,
}

impl GetFeature {
    /// The value to read.
    pub(crate) fn select(&self) -> Select {
        self.sel.unwrap_or(Select::Current)
    }

    /// Refuses a port that may be meant as `--sel`, whose short form in nvme-cli is `-s`.
    /// With `--sel`, the port is a port.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match self.subsystem.target.trsvcid {
            Some(port @ 1..=3) if self.sel.is_none() => Err(Failure::usage(format!(
                "-s {port} is the port (--trsvcid); it may be meant as the value to read, as in \
                 nvme-cli"
            ))
            .with_remedy(format!(
                "replace -s by --sel, or add --sel current if {port} is the port"
            ))),
            _ => Ok(()),
        }
    }
}

fn select(text: &str) -> Result<Select, String> {
    match text {
        "current" => return Ok(Select::Current),
        "default" => return Ok(Select::Default),
        "saved" => return Ok(Select::Saved),
        "supported" => return Ok(Select::Capabilities),
        _ => {}
    }
    match number::<u8>(0..=3)(text) {
        Ok(0) => Ok(Select::Current),
        Ok(1) => Ok(Select::Default),
        Ok(2) => Ok(Select::Saved),
        Ok(_) => Ok(Select::Capabilities),
        Err(_) => Err("write current, default, saved, supported, or 0 to 3".to_owned()),
    }
}
