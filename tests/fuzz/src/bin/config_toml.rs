//! The daemon's configuration: any text is parsed, or refused with a position.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use nvmeof_target_config::Config;
use nvmeof_target_manage::buffers;

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let lines = text.matches('\n').count() + 1;
    match Config::parse(Path::new("target.toml"), text.to_owned()) {
        Ok(config) => {
            assert!(!config.addresses().is_empty());
            // There may be no subsystem yet; each one has a name.
            assert!(config.subsystems().all(|name| !name.is_empty()));
            let (settings, limits) = (config.reactor_settings(), config.limits());
            let sizes = buffers(&settings, &limits);
            assert!(sizes.capsules > 0 && !sizes.data.is_empty());
        }
        Err(error) => {
            assert!(error.to_string().starts_with("target.toml:"));
            assert!(error.line().is_none_or(|line| (1..=lines).contains(&line)));
        }
    }
});
