//! In-capsule data of each port.

use super::build::wrong;
use super::{Model, ModelError, Place, PortAddress};

impl Model {
    /// The same with ports that take so many bytes of in-capsule data, in order;
    /// `None` is what [`Limits::in_capsule`](crate::Limits::in_capsule) says.
    ///
    /// # Errors
    /// [`ModelError`] for the first that receives have no room for.
    pub fn with_in_capsule(
        mut self,
        ports: impl IntoIterator<Item = Option<u32>>,
    ) -> Result<Self, ModelError> {
        let most = self.limits.in_capsule;
        let mut all = self.ports.to_vec();
        for (at, (port, given)) in all.iter_mut().zip(ports).enumerate() {
            let bytes = given.unwrap_or(most);
            let bad = |why: &str| Err(wrong(Place::Port(at), "in_capsule", bytes, why));
            if bytes > most {
                return bad(&format!(
                    "receives have room for {most}; raise limits.in_capsule to this much, and give \
                     other ports less"
                ));
            }
            // Identify Controller, IOCCSZ: "in 16 byte units".
            if !bytes.is_multiple_of(16) {
                return bad("must be a multiple of 16");
            }
            port.in_capsule = bytes;
        }
        self.ports = all.into();
        Ok(self)
    }

    /// Bytes of in-capsule data of one command from hosts that come by the port
    /// there.
    #[must_use]
    pub fn in_capsule_at(&self, address: &PortAddress) -> u32 {
        let port = self.port(address);
        port.map_or(self.limits.in_capsule, |port| port.in_capsule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{port, subsystem};
    use crate::{Limits, PortSpec};

    fn built(sizes: [Option<u32>; 2]) -> Result<Model, ModelError> {
        let limits = Limits {
            in_capsule: 8192,
            max_descriptors: 1,
            ..Limits::default()
        };
        let other = PortSpec {
            trsvcid: 4421,
            ..port()
        };
        Model::build(limits, &[port(), other], &[subsystem()])?.with_in_capsule(sizes)
    }

    #[test]
    fn a_port_has_its_own_size_or_that_of_all() {
        let model = built([Some(512), None]).unwrap();
        let at = |trsvcid| {
            let traddr = port().traddr;
            model.in_capsule_at(&PortAddress { traddr, trsvcid })
        };
        assert_eq!([at(4420), at(4421), at(9)], [512, 8192, 8192]);
        let other = built([Some(512), Some(0)]).unwrap();
        let changes = model.difference(&other);
        let lines: Vec<_> = changes.iter().map(ToString::to_string).collect();
        assert_eq!(lines, ["port 127.0.0.1:4421 has another in_capsule"]);
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        for bytes in [8, 8208] {
            let error = built([None, Some(bytes)]).unwrap_err();
            assert_eq!((error.place, error.key), (Place::Port(1), "in_capsule"));
        }
    }
}
