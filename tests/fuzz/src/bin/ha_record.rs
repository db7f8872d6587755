//! The record that gateways share: any contents are refused, or lead to records that can be read
//! again, within the limits.
#![no_main]

use std::collections::BTreeMap;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use nvmeof_target_ha::{
    Action, Config, ControllerIds, Facts, Failback, GroupConfig, Incarnation, LostState, MAX_BYTES,
    Machine, Record, Time, Timing, Written,
};

/// Polls of one input.
const POLLS: u64 = 60;

fn machine() -> Machine {
    let group = |id, gateways: [&str; 2]| GroupConfig {
        id,
        gateways: gateways.map(str::to_owned).to_vec(),
    };
    let config = Config {
        name: "gw1".to_owned(),
        facts: Facts {
            controller_ids: ControllerIds { first: 1, last: 99 },
            shared: BTreeMap::new(),
            has_others: false,
        },
        groups: vec![group(1, ["gw1", "gw2"]), group(2, ["gw2", "gw1"])],
        timing: Timing::default(),
        failback: Failback::After(Duration::from_secs(1)),
    };
    Machine::new(config, Incarnation(7), Time::default()).unwrap()
}

fuzz_target!(|input: &[u8]| {
    if let Ok(record) = Record::parse(input) {
        let bytes = record.to_bytes().unwrap();
        assert_eq!(Record::parse(&bytes), Ok(record));
    }
    // Each read returns the input again, as if another gateway had written it last.
    let (mut machine, mut lost) = (machine(), None);
    for step in 0..POLLS {
        let now = Time {
            monotonic: Duration::from_millis(100 * step),
            unix_s: step,
        };
        while let Some(action) = machine.poll(now) {
            match action {
                Action::Read { number } => {
                    machine.handle_record(now, number, Ok(Some((step, input.to_vec()))));
                }
                Action::Write { number, bytes, .. } => {
                    assert!(bytes.len() <= MAX_BYTES && Record::parse(&bytes).is_ok());
                    machine.handle_written(now, number, Written::Done(step));
                }
                Action::Fence { group, number, .. } => {
                    machine.handle_fenced(now, group, number, Ok(vec![format!("{group}:{step}")]));
                }
                Action::Open { group, number } => machine.handle_opened(now, group, number, Ok(())),
                Action::Close { group, number, .. } => {
                    machine.handle_closed(group, number, &Ok(()))
                }
                Action::Disconnect { number } => machine.handle_disconnected(number),
                Action::Serve { .. } | Action::StopServing { .. } => {}
            }
        }
        let asked = lost.as_mut().map(|lost| machine.judge_lost(now, lost));
        if asked.is_none_or(|state| state != LostState::Pending) {
            lost = machine.ask_lost(now, 102);
        }
        for group in [1, 2] {
            let _ = machine.why(now, group).map(|why| why.to_string());
        }
    }
});
