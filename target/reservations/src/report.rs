//! The data of Reservation Report (Base 2.1, 7.8).

use nvmeof_wire::reservation::{
    EXTENDED_HEADER_LEN, ExtendedRegistrant, ReportHeader, ReservationType,
};
use zerocopy::IntoBytes;

use crate::Reservations;

impl Reservations {
    /// The report in the extended format, complete: a host may request less. Fabrics hosts have
    /// 128-bit host identifiers, for which there is no other format.
    #[must_use]
    pub fn report(&self) -> Vec<u8> {
        let count = u16::try_from(self.registrants.len()).unwrap_or(u16::MAX);
        let kind = self
            .reservation
            .map_or(ReservationType::NONE, |reservation| reservation.kind);
        let header = ReportHeader::new(self.generation, kind, count, self.persists);
        let mut report = header.as_bytes().to_vec();
        report.resize(EXTENDED_HEADER_LEN, 0);
        for (host, key) in &self.registrants {
            let one = ExtendedRegistrant::new(*host, *key, self.is_holder(host));
            report.extend_from_slice(one.as_bytes());
        }
        report
    }
}
