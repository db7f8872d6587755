//! Identity of subsystems and namespaces.

use super::*;

/// By default the kernel reports its own release, which is not imported.
#[test]
fn configured_firmware_and_vendor_are_imported() {
    let of = |key: &str, value: &str, ours: &str| {
        let saved = saved_with(&format!("/subsystems/0/attr/{key}"), json!(value));
        let (text, report) = import(&saved, &small_blocks);
        let about = report
            .remarks
            .iter()
            .any(|it| it.location == format!("subsystems[0].attr.{key}"));
        let chosen = imported(&text)["subsystem"][0].get(ours).cloned();
        (chosen.map(|it| it.as_str().unwrap().to_owned()), about)
    };
    for (value, expected) in [
        ("lab-7", Some("lab-7")),
        ("4.2", Some("4.2")),
        ("2026-11", Some("2026-11")),
        ("6.12", None),
        ("5.17.0-1", None),
        ("", None),
    ] {
        let is_left_out = expected.is_none() && !value.is_empty();
        let expected = (expected.map(str::to_owned), is_left_out);
        assert_eq!(
            of("firmware", value, "firmware_revision"),
            expected,
            "{value}"
        );
    }
    for (value, expected) in [("0x00a0b8", Some("00-a0-b8")), ("0x000000", None)] {
        let expected = (expected.map(str::to_owned), false);
        assert_eq!(of("ieee_oui", value, "ieee_oui"), expected, "{value}");
    }
    for wrong in ["0x1000000", "vendor"] {
        assert_eq!(of("ieee_oui", wrong, "ieee_oui"), (None, true), "{wrong}");
    }
}

#[test]
fn namespace_with_derived_identifiers_is_noted() {
    let nil = "00000000-0000-0000-0000-000000000000";
    let location = "subsystems[0].namespaces[0].device";
    let mut saved: Value = serde_json::from_str(SAVED).unwrap();
    let about = |saved: &Value| {
        let (text, report) = import(saved, &small_blocks);
        let _ = imported(&text);
        let mut remarks = report.remarks.iter();
        remarks.any(|it| it.location == location && it.weight == Weight::Note)
    };
    let device = "/subsystems/0/namespaces/0/device";
    let identifier = |saved: &Value, key: &str| {
        let (text, _) = import(saved, &small_blocks);
        let namespace = imported(&text)["subsystem"][0]["namespace"][0].clone();
        namespace.get(key).map(|it| it.as_str().unwrap().to_owned())
    };
    saved.pointer_mut(device).unwrap()["nguid"] = json!(nil);
    assert!(!about(&saved), "it has a uuid");
    assert_eq!(identifier(&saved, "nguid").as_deref(), Some(nil));
    saved.pointer_mut(device).unwrap()["nguid"].take();
    assert_eq!(identifier(&saved, "nguid").as_deref(), Some(nil));
    saved.pointer_mut(device).unwrap()["uuid"] = json!(nil);
    assert!(about(&saved));
    assert_eq!(identifier(&saved, "uuid"), None);
    let given = "ef90689c-6c46-d44c-89c1-4067801309a8";
    saved.pointer_mut(device).unwrap()["nguid"] = json!(given);
    assert!(about(&saved));
    assert_eq!(identifier(&saved, "nguid").as_deref(), Some(given));
}
