//! `nvmeof gen-dhchap-key` and `nvmeof check-dhchap-key`

use crate::args;
use crate::failure::Failure;
use crate::format::Format;
use crate::output::{self, Fields};

/// Prints a new key.
pub(crate) fn generate(args: &args::GenKey) -> Result<(), Failure> {
    let key = args.key()?;
    let text = key.to_text();
    match args.output_format {
        Format::Normal => output::print(format!("{}\n", text.as_str()).as_bytes()),
        Format::Json => {
            let mut fields = Fields::default();
            fields.add("key", text.as_str());
            output::json(&fields)
        }
    }
}

/// Checks a key. Prints what it is, not the key.
pub(crate) fn check(args: &args::CheckKey) -> Result<(), Failure> {
    let key = args.read()?;
    let hmac = key.transformation().map_or(0, |id| id.0);
    let mut fields = Fields::default();
    fields.add("hmac", hmac).add("length", key.bytes());
    match args.output_format {
        Format::Normal => {
            let by = match key.transformation() {
                None => "not transformed".to_owned(),
                Some(id) => format!("transformed with {}", id.name()),
            };
            let text = format!("the key is valid: {} bytes, {by}\n", key.bytes());
            output::print(text.as_bytes())
        }
        Format::Json => output::json(&fields),
    }
}
