//! Bounds of commands and queues on a port.

use super::build::wrong;
use super::{Location, Model, ModelError, PortAddress};

/// Bounds of a port; `None` stands for the value of [`Limits`](crate::Limits).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortBounds {
    /// Bytes of in-capsule data of one command.
    pub in_capsule: Option<u32>,
    /// Entries of the longest submission queue, from 2.
    pub queue_depth: Option<u32>,
}

impl Model {
    /// The same model, with these bounds of its ports, in order.
    ///
    /// # Errors
    /// [`ModelError`] for the first one that exceeds the limits.
    pub fn with_port_bounds(
        mut self,
        ports: impl IntoIterator<Item = PortBounds>,
    ) -> Result<Self, ModelError> {
        let mut all = self.ports.to_vec();
        for (at, (port, given)) in all.iter_mut().zip(ports).enumerate() {
            let location = Location::Port(at);
            if let Some(bytes) = given.in_capsule {
                port.in_capsule = in_capsule(location, bytes, self.limits.in_capsule)?;
            }
            if let Some(entries) = given.queue_depth {
                port.queue_depth = queue_depth(location, entries, self.limits.queue_depth)?;
            }
        }
        self.ports = all.into();
        Ok(self)
    }

    /// Bytes of in-capsule data of one command on the port with this address.
    #[must_use]
    pub fn in_capsule_at(&self, address: &PortAddress) -> u32 {
        let port = self.port(address);
        port.map_or(self.limits.in_capsule, |port| port.in_capsule)
    }

    /// Entries of the longest submission queue on the port with this address; the limit of
    /// all ports if the port is not known.
    #[must_use]
    pub fn queue_depth_at(&self, address: Option<&PortAddress>) -> u16 {
        let port = address.and_then(|address| self.port(address));
        port.map_or(self.limits.queue_depth, |port| port.queue_depth)
    }
}

fn in_capsule(location: Location, bytes: u32, most: u32) -> Result<u32, ModelError> {
    let bad = |why: &str| Err(wrong(location, "in_capsule", bytes, why));
    if bytes > most {
        return bad(&format!(
            "exceeds limits.in_capsule, which is {most}; raise that, and set smaller values for \
             other ports"
        ));
    }
    // Identify Controller, IOCCSZ: "in 16 byte units".
    if !bytes.is_multiple_of(16) {
        return bad("must be a multiple of 16");
    }
    Ok(bytes)
}

fn queue_depth(location: Location, entries: u32, most: u16) -> Result<u16, ModelError> {
    let fits = u16::try_from(entries).ok();
    fits.filter(|one| (2..=most).contains(one)).ok_or_else(|| {
        let why = format!("must be 2 to {most} (limits.queue_depth)");
        wrong(location, "queue_depth", entries, &why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{port, subsystem};
    use crate::{Limits, PortSpec};

    fn built(bounds: [PortBounds; 2]) -> Result<Model, ModelError> {
        let limits = Limits {
            in_capsule: 8192,
            max_descriptors: 1,
            ..Limits::default()
        };
        let other = PortSpec {
            trsvcid: 4421,
            ..port()
        };
        Model::build(limits, &[port(), other], &[subsystem()])?.with_port_bounds(bounds)
    }

    fn bytes(in_capsule: u32) -> PortBounds {
        PortBounds {
            in_capsule: Some(in_capsule),
            ..PortBounds::default()
        }
    }

    fn entries(queue_depth: u32) -> PortBounds {
        PortBounds {
            queue_depth: Some(queue_depth),
            ..PortBounds::default()
        }
    }

    fn at(trsvcid: u16) -> PortAddress {
        let traddr = port().traddr;
        PortAddress { traddr, trsvcid }
    }

    /// The differences from another model, in words.
    fn difference(old: &Model, new: [PortBounds; 2]) -> Vec<String> {
        let changes = old.difference(&built(new).unwrap());
        changes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_port_has_its_own_size_or_that_of_all() {
        let model = built([bytes(512), PortBounds::default()]).unwrap();
        let size = |trsvcid| model.in_capsule_at(&at(trsvcid));
        assert_eq!([size(4420), size(4421), size(9)], [512, 8192, 8192]);
        let lines = difference(&model, [bytes(512), bytes(0)]);
        assert_eq!(lines, ["port 127.0.0.1:4421 is changed: in_capsule"]);
    }

    #[test]
    fn invalid_in_capsule_sizes_are_refused() {
        for size in [8, 8208] {
            let error = built([PortBounds::default(), bytes(size)]).unwrap_err();
            assert_eq!(
                (error.location, error.key),
                (Location::Port(1), "in_capsule")
            );
        }
    }

    #[test]
    fn a_port_has_its_own_depth_or_that_of_all() {
        let model = built([entries(32), PortBounds::default()]).unwrap();
        let depth = |trsvcid| model.queue_depth_at(Some(&at(trsvcid)));
        assert_eq!([depth(4420), depth(4421), depth(9)], [32, 256, 256]);
        assert_eq!(model.queue_depth_at(None), 256);
        let lines = difference(&model, [entries(32), entries(2)]);
        assert_eq!(lines, ["port 127.0.0.1:4421 is changed: queue_depth"]);
    }

    #[test]
    fn invalid_queue_depths_are_refused() {
        for wrong in [0, 1, 257, 65_536 + 32] {
            let error = built([PortBounds::default(), entries(wrong)]).unwrap_err();
            assert_eq!(
                (error.location, error.key),
                (Location::Port(1), "queue_depth")
            );
        }
    }
}
