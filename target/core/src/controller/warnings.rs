//! Critical warnings of the SMART / Health Information log page, and their events.

use nvmeof_wire::log::smart::CriticalWarning;

use super::Features;
use super::notices::{Notice, RELIABILITY, TEMPERATURE};
use crate::namespace_view::NamespaceView;

/// The reported composite temperature in kelvin: there is no sensor.
pub(crate) const COMPOSITE_TEMPERATURE: u16 = 298;

/// Warning Composite Temperature Threshold in kelvin. Base 2.0, Identify Controller, WCTEMP
/// and CCTEMP: implementations of revision 1.2 or later "shall report a non-zero value in
/// this field", and "It is recommended that implementations report a value of 0157h"
/// (WCTEMP). A host can set a threshold at the reported temperature to get a warning.
pub(crate) const WARNING_TEMPERATURE: u16 = 0x157;
/// Critical Composite Temperature Threshold (CCTEMP).
pub(crate) const CRITICAL_TEMPERATURE: u16 = WARNING_TEMPERATURE + 15;

const _: () = assert!(COMPOSITE_TEMPERATURE < WARNING_TEMPERATURE);

/// The critical warnings for a host. Media read-only (AMRO) is never reported: read-only
/// namespaces are intended, and the warning is not for "a change in the write protection
/// state of a namespace".
pub(crate) fn critical(namespace_view: &NamespaceView, features: &Features) -> CriticalWarning {
    let mut warnings = CriticalWarning::empty();
    // "Greater than or equal to an over temperature threshold" or "less than or
    // equal to an under temperature threshold".
    let inside = features.under_temperature < COMPOSITE_TEMPERATURE
        && COMPOSITE_TEMPERATURE < features.over_temperature;
    warnings.set(CriticalWarning::TTC, !inside);
    // A namespace whose backing store is gone: "any internal error that degrades NVM
    // subsystem reliability".
    let lost = namespace_view
        .list()
        .iter()
        .any(|one| !one.namespace.is_ready());
    warnings.set(CriticalWarning::NDR, lost);
    warnings
}

/// The events of these warnings. Each is enabled by the bit of Asynchronous Event
/// Configuration with the number of its warning bit.
pub(super) fn events(warnings: CriticalWarning) -> impl Iterator<Item = Notice> {
    let all = [
        (CriticalWarning::TTC, TEMPERATURE),
        (CriticalWarning::NDR, RELIABILITY),
    ];
    let there = all
        .into_iter()
        .filter(move |(warning, _)| warnings.contains(*warning));
    there.map(|(_, notice)| notice)
}
