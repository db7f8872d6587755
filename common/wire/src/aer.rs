//! The result of an Asynchronous Event Request (NVMe Base 2.0, 5.2.1).

use crate::admin::LogId;

/// Event type: bits 2:0 of dword 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventType(pub u8);

impl EventType {
    /// Error status.
    pub const ERROR: Self = Self(0);
    /// SMART / health status.
    pub const SMART: Self = Self(1);
    /// Notice.
    pub const NOTICE: Self = Self(2);
    /// Immediate: reported without a log page to read (NVMe Base 2.1).
    pub const IMMEDIATE: Self = Self(3);
    /// I/O command specific status.
    pub const IO_COMMAND: Self = Self(6);
    /// Vendor specific.
    pub const VENDOR: Self = Self(7);
}

/// An event, and the log page with its details. Reading that page without Retain
/// Asynchronous Event allows the next event of its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AsyncEvent {
    /// Type, which defines the meaning of `info`.
    pub kind: EventType,
    /// Asynchronous event information.
    pub info: u8,
    /// Log page to read.
    pub log: LogId,
}

impl AsyncEvent {
    /// Error: a diagnostic failure.
    pub const DIAGNOSTIC_FAILURE: Self = Self::new(EventType::ERROR, 0x02, LogId::ERROR);
    /// Error: persistent internal error.
    pub const PERSISTENT_ERROR: Self = Self::new(EventType::ERROR, 0x03, LogId::ERROR);
    /// Error: transient internal error.
    pub const TRANSIENT_ERROR: Self = Self::new(EventType::ERROR, 0x04, LogId::ERROR);
    /// SMART: reliability of the subsystem is compromised.
    pub const RELIABILITY: Self = Self::new(EventType::SMART, 0x00, LogId::SMART);
    /// SMART: a temperature is beyond its threshold.
    pub const TEMPERATURE: Self = Self::new(EventType::SMART, 0x01, LogId::SMART);
    /// SMART: available spare is below its threshold.
    pub const SPARE: Self = Self::new(EventType::SMART, 0x02, LogId::SMART);
    /// Notice: an attached namespace changed, was added or was removed.
    pub const NAMESPACE_CHANGED: Self =
        Self::new(EventType::NOTICE, 0x00, LogId::CHANGED_NAMESPACES);
    /// Notice: firmware activation starts.
    pub const FIRMWARE_ACTIVATION: Self = Self::new(EventType::NOTICE, 0x01, LogId::FIRMWARE);
    /// Notice: asymmetric namespace access changed.
    pub const ANA_CHANGED: Self = Self::new(EventType::NOTICE, 0x03, LogId::ANA);
    /// Notice: a Cross-Controller Reset completed (NVMe Base 2.3).
    pub const CROSS_CONTROLLER_RESET: Self =
        Self::new(EventType::NOTICE, 0xf4, LogId::CROSS_CONTROLLER_RESET);
    /// Notice: a controller lost communication with the host (NVMe Base 2.3).
    pub const LOST_HOST_COMMUNICATION: Self =
        Self::new(EventType::NOTICE, 0xf5, LogId::LOST_HOST_COMMUNICATION);
    /// Notice: the discovery log page changed.
    pub const DISCOVERY_CHANGED: Self = Self::new(EventType::NOTICE, 0xf0, LogId::DISCOVERY);

    /// I/O command specific: a page of reservation notifications is available.
    pub const RESERVATION: Self = Self::new(EventType::IO_COMMAND, 0x00, LogId::RESERVATION);

    const fn new(kind: EventType, info: u8, log: LogId) -> Self {
        Self { kind, info, log }
    }

    /// Reads dword 0 of the completion.
    #[must_use]
    pub const fn from_dword(dword: u32) -> Self {
        let [kind, info, log, _] = dword.to_le_bytes();
        Self {
            kind: EventType(kind & 0x07),
            info,
            log: LogId(log),
        }
    }

    /// Dword 0 of the completion.
    #[must_use]
    pub const fn to_dword(self) -> u32 {
        u32::from_le_bytes([self.kind.0 & 0x07, self.info, self.log.0, 0])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_notices() {
        assert_eq!(AsyncEvent::NAMESPACE_CHANGED.to_dword(), 0x0004_0002);
        assert_eq!(AsyncEvent::DISCOVERY_CHANGED.to_dword(), 0x0070_f002);
        assert_eq!(AsyncEvent::from_dword(0x000c_0302), AsyncEvent::ANA_CHANGED);
        assert_eq!(AsyncEvent::RESERVATION.to_dword(), 0x0080_0006);
        assert_eq!(AsyncEvent::CROSS_CONTROLLER_RESET.to_dword(), 0x001e_f402);
        assert_eq!(AsyncEvent::LOST_HOST_COMMUNICATION.to_dword(), 0x001f_f502);
    }

    proptest! {
        #[test]
        fn reserved_bits_are_ignored_and_written_as_zero(dword: u32) {
            let event = AsyncEvent::from_dword(dword);
            prop_assert!(event.kind.0 < 8);
            prop_assert_eq!(event.to_dword(), dword & 0x00ff_ff07);
        }
    }
}
