//! Configurable identification of a subsystem, and its limit of I/O queues.

use nvmeof_wire::Ascii;

use super::build::{padded, wrong};
use super::{Location, ModelError, SubsystemSpec};
use crate::Limits;

/// The default firmware revision: the version of the target.
pub(crate) const FIRMWARE: &str = env!("CARGO_PKG_VERSION");

/// I/O queues of one controller: at most the limit of all subsystems, which is the default.
pub(super) fn io_queues(
    location: Location,
    spec: &SubsystemSpec,
    limits: &Limits,
) -> Result<u16, ModelError> {
    let most = limits.io_queues;
    let Some(wanted) = spec.io_queues else {
        return Ok(most);
    };
    let fits = u16::try_from(wanted).ok();
    fits.filter(|one| (1..=most).contains(one)).ok_or_else(|| {
        let why = format!("must be 1 to {most} (limits.io_queues)");
        wrong(location, "io_queues", wanted, &why)
    })
}

/// Identify Controller, FR: eight ASCII characters.
pub(super) fn firmware_revision(
    location: Location,
    spec: &SubsystemSpec,
) -> Result<Ascii<8>, ModelError> {
    let text = spec.firmware_revision.as_deref().unwrap_or(FIRMWARE);
    padded(location, "firmware_revision", text)
}

/// Identify Controller, IEEE: the vendor's identifier, lowest byte first (Base 2.1,
/// 1.5 and 5.1.13.2.1); 0 for none.
pub(super) fn ieee_oui(location: Location, spec: &SubsystemSpec) -> Result<[u8; 3], ModelError> {
    let Some(text) = &spec.ieee_oui else {
        return Ok([0; 3]);
    };
    parse_oui(text).ok_or_else(|| {
        let why = "must be six hexadecimal digits, such as \"00-a0-b8\"";
        wrong(location, "ieee_oui", text, why)
    })
}

/// The bytes as they are sent, of a text with the digits in the usual order.
fn parse_oui(text: &str) -> Option<[u8; 3]> {
    let digits = match text.split(['-', ':']).collect::<Vec<_>>()[..] {
        [high, middle, low] if [high, middle, low].iter().all(|pair| pair.len() == 2) => {
            [high, middle, low].concat()
        }
        [all] if all.len() == 6 => all.to_owned(),
        _ => return None,
    };
    if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let [low, middle, high, _] = u32::from_str_radix(&digits, 16).ok()?.to_le_bytes();
    Some([low, middle, high])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Model;
    use crate::testing::{port, subsystem};

    fn built(spec: SubsystemSpec) -> Result<Model, ModelError> {
        Model::build(Limits::default(), &[port()], &[spec])
    }

    #[test]
    fn a_subsystem_grants_fewer_queues_than_the_target_and_not_more() {
        let of = |io_queues| {
            let spec = SubsystemSpec {
                io_queues,
                ..subsystem()
            };
            built(spec).map(|model| model.subsystems()[0].io_queues)
        };
        let most = Limits::default().io_queues;
        assert_eq!(of(None).unwrap(), most);
        assert_eq!(of(Some(3)).unwrap(), 3);
        assert_eq!(of(Some(most.into())).unwrap(), most);
        for wrong in [0, u32::from(most) + 1, 65_537] {
            let error = of(Some(wrong)).unwrap_err();
            assert_eq!((error.key, error.value), ("io_queues", wrong.to_string()));
            assert!(error.why.contains("limits.io_queues"), "{}", error.why);
        }
    }

    #[test]
    fn a_firmware_revision_has_eight_characters() {
        let of = |text: Option<&str>| {
            let spec = SubsystemSpec {
                firmware_revision: text.map(str::to_owned),
                ..subsystem()
            };
            built(spec).map(|model| model.subsystems()[0].firmware_revision)
        };
        assert_eq!(of(None).unwrap(), Ascii::new(FIRMWARE));
        assert_eq!(of(Some("6.12-lts")).unwrap(), Ascii::new("6.12-lts"));
        for wrong in ["", "123456789", "caf\u{e9}", "a\nb"] {
            assert_eq!(of(Some(wrong)).unwrap_err().key, "firmware_revision");
        }
    }

    #[test]
    fn vendor_oui_is_three_bytes_lowest_first() {
        let of = |text: &str| {
            let spec = SubsystemSpec {
                ieee_oui: Some(text.to_owned()),
                ..subsystem()
            };
            built(spec).map(|model| model.subsystems()[0].ieee_oui)
        };
        for text in ["00-a0-b8", "00:A0:B8", "00a0b8"] {
            assert_eq!(of(text).unwrap(), [0xb8, 0xa0, 0x00], "{text}");
        }
        for wrong in [
            "",
            "0-a0-b8",
            "00a0b",
            "00-a0b8",
            "00-a0-bx",
            "+0a0b8",
            "00-a0-b8-",
        ] {
            assert_eq!(of(wrong).unwrap_err().key, "ieee_oui", "{wrong}");
        }
        assert_eq!(built(subsystem()).unwrap().subsystems()[0].ieee_oui, [0; 3]);
    }
}
