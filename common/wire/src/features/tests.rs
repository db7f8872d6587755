//! Tests of the feature values.

use proptest::prelude::*;

use super::*;

#[test]
fn golden_dwords() {
    let queues = NumberOfQueues {
        submission: 4,
        completion: 8,
    };
    assert_eq!(queues.to_dword(), 0x0007_0003);
    assert_eq!(queues.pairs(), 4);
    let weights = Arbitration {
        burst: 7,
        low: 1,
        medium: 2,
        high: 256,
    };
    assert_eq!(weights.to_dword(), 0xff01_0007);
    assert_eq!(PowerManagement { ps: 3, wh: 2 }.to_dword(), 0x43);
    let threshold = TemperatureThreshold {
        tmpth: 343,
        tmpsel: 1,
        thsel: 1,
    };
    assert_eq!(threshold.to_dword(), 0x0011_0157);
    assert_eq!(
        ErrorRecovery {
            tler: 10,
            dulbe: true
        }
        .to_dword(),
        0x0001_000a
    );
    let protection = WriteProtection::from_dword(0xffff_fffa);
    assert_eq!(protection, WriteProtection::UNTIL_POWER_CYCLE);
    let events = AsyncEventConfig::NSAN | AsyncEventConfig::DLPCN;
    assert_eq!(events.bits(), 0x8000_0100);
}

#[test]
fn queue_count_of_65536_is_rejected() {
    for dword in [0x0000_ffff, 0xffff_0000] {
        assert_eq!(
            NumberOfQueues::from_dword(dword),
            Err(Status::INVALID_FIELD)
        );
    }
    let most = NumberOfQueues::from_dword(0xfffe_fffe).unwrap();
    assert_eq!((most.submission, most.completion), (u16::MAX, u16::MAX));
    let none = NumberOfQueues {
        submission: 0,
        completion: 0,
    };
    assert_eq!(none.to_dword(), 0);
}

#[test]
fn keep_alive_rounds_up_to_the_granularity() {
    let rounded = |kato_ms, kas| KeepAliveTimer { kato_ms }.round_up(kas).kato_ms;
    assert_eq!(rounded(0, 10), 0);
    assert_eq!(rounded(1, 10), 1000);
    assert_eq!(rounded(5000, 10), 5000);
    assert_eq!(rounded(5001, 10), 6000);
    assert_eq!(rounded(5001, 0), 5001);
    assert_eq!(rounded(u32::MAX, u16::MAX), u32::MAX);
}

#[test]
fn timestamp_has_48_bits() {
    let now = Timestamp::new(0xabcd_0102_0304_0506, Timestamp::ORIGIN_HOST);
    assert_eq!(now.as_bytes(), [6, 5, 4, 3, 2, 1, 0b10, 0]);
    assert_eq!(now.ms(), 0x0102_0304_0506);
}

#[test]
fn names_and_host_identifier() {
    assert_eq!(FeatureId(0x07).name(), "Number of Queues");
    assert_eq!(FeatureId(0xc0).name(), "unknown");
    assert!(is_extended_host_identifier(1));
    assert!(!is_extended_host_identifier(0xffff_fffe));
}

proptest! {
    #[test]
    fn parsed_values_round_trip(dword: u32) {
        if let Ok(value) = NumberOfQueues::from_dword(dword) {
            prop_assert_eq!(value.to_dword(), dword);
        }
        let value = Arbitration::from_dword(dword);
        prop_assert_eq!(Arbitration::from_dword(value.to_dword()), value);
        let value = PowerManagement::from_dword(dword);
        prop_assert_eq!(PowerManagement::from_dword(value.to_dword()), value);
        let value = TemperatureThreshold::from_dword(dword);
        prop_assert_eq!(TemperatureThreshold::from_dword(value.to_dword()), value);
        let value = ErrorRecovery::from_dword(dword);
        prop_assert_eq!(ErrorRecovery::from_dword(value.to_dword()), value);
        let value = VolatileWriteCache::from_dword(dword);
        prop_assert_eq!(VolatileWriteCache::from_dword(value.to_dword()), value);
        let value = WriteProtection::from_dword(dword);
        prop_assert_eq!(WriteProtection::from_dword(value.to_dword()), value);
        let value = WriteAtomicity::from_dword(dword);
        prop_assert_eq!(WriteAtomicity::from_dword(value.to_dword()), value);
    }

    #[test]
    fn rounding_never_shortens(kato_ms: u32, kas: u16) {
        let rounded = KeepAliveTimer { kato_ms }.round_up(kas).kato_ms;
        prop_assert!(rounded >= kato_ms);
        let granular = kas == 0 || rounded.is_multiple_of(u32::from(kas) * 100);
        prop_assert!(granular || rounded == u32::MAX);
    }
}
