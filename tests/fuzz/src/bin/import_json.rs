//! `nvmeof-target import`: any file is refused, or gives a configuration that parses, unless
//! the report lists losses.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use nvmeof_target_admin::import_fuzzed;
use nvmeof_target_config::Config;

fuzz_target!(|input: &[u8]| {
    if let Some((text, lost)) = import_fuzzed(input) {
        let config = Config::parse(Path::new("imported.toml"), text);
        assert!(config.is_ok() || lost > 0, "{:?}", config.err());
    }
});
