//! Whether subsystem and namespace are the same ones over each path, and the size of the namespace
//! over all of them.

use std::fmt::Display;

use nvmeof_wire::Nqn;
use nvmeof_wire::identify::{IdentifyController, NamespaceIdentifiers};

use crate::SetupError;

/// Checks that Identify Controller names subsystem `subnqn`, which was connected to. Its controller
/// identifier was compared with that of Connect before (NVMe Base 2.1, 5.1.13.2.1, SUBNQN and
/// CNTLID).
///
/// # Errors
/// [`SetupError::InvalidResponse`] when it names another one.
pub fn check_subsystem(subnqn: &Nqn, identify: &IdentifyController) -> Result<(), SetupError> {
    let field = &identify.subnqn;
    // Some targets leave the field empty.
    if field.starts_with(&[0]) || *field == subnqn.to_field() {
        return Ok(());
    }
    let reported = match Nqn::from_field(field) {
        Ok(reported) => reported.to_string(),
        Err(error) => error.to_string(),
    };
    Err(SetupError::InvalidResponse(format!(
        "Identify returned a controller of subsystem {reported}, Connect requested {subnqn}"
    )))
}

/// Checks that none of the `connected` controllers, each with its address, has the identifier
/// `cntlid` of a new one: within a subsystem identifiers are unique (NVMe Base 2.1, 3.1.2), so the
/// targets of both paths would not be one subsystem. A reset to fence one of them could end the
/// other one.
///
/// # Errors
/// [`SetupError::InvalidResponse`] when one has it.
pub fn check_unique<A: Display>(cntlid: u16, connected: &[(A, u16)]) -> Result<(), SetupError> {
    let Some((addr, _)) = connected.iter().find(|(_, known)| *known == cntlid) else {
        return Ok(());
    };
    Err(SetupError::InvalidResponse(format!(
        "controller {cntlid} is connected over {addr} already: identifiers are unique in a \
         subsystem"
    )))
}

/// What the paths to a namespace must agree on, as one path reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedNamespace {
    /// Namespace identifier.
    pub nsid: u32,
    /// Its UUID, NGUID and EUI-64.
    pub identifiers: NamespaceIdentifiers,
    /// Bytes of a block.
    pub block_size: u32,
    /// Number of blocks (NSZE).
    pub blocks: u64,
}

/// Why a path is not used for a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    /// Another namespace has the identifier.
    #[error(
        "namespace {nsid} has other identifiers (UUID, NGUID, EUI-64) than over the other paths"
    )]
    Identifiers {
        /// Namespace identifier.
        nsid: u32,
    },
    /// It was formatted with another block size.
    #[error("namespace {nsid} has blocks of {found} bytes, of {known} bytes over the other paths")]
    BlockSize {
        /// Namespace identifier.
        nsid: u32,
        /// Bytes of a block over this path.
        found: u32,
        /// Bytes of a block over the other paths.
        known: u32,
    },
    /// It shrank.
    #[error("namespace {nsid} has {found} blocks, fewer than the {known} that it had")]
    Shrunk {
        /// Namespace identifier.
        nsid: u32,
        /// Number of blocks over this path.
        found: u64,
        /// Number of blocks over the other paths.
        known: u64,
    },
}

impl SharedNamespace {
    /// Checks that `found`, reported by another path, is the same namespace with at least as many
    /// blocks.
    ///
    /// # Errors
    /// [`Difference`].
    pub fn check(&self, found: &Self) -> Result<(), Difference> {
        let nsid = self.nsid;
        if (found.nsid, found.identifiers) != (nsid, self.identifiers) {
            return Err(Difference::Identifiers { nsid });
        }
        if found.block_size != self.block_size {
            return Err(Difference::BlockSize {
                nsid,
                found: found.block_size,
                known: self.block_size,
            });
        }
        if found.blocks < self.blocks {
            return Err(Difference::Shrunk {
                nsid,
                found: found.blocks,
                known: self.blocks,
            });
        }
        Ok(())
    }
}

/// The new number of blocks of a namespace that has `known` blocks, when all paths report more.
/// `reported` has the number of each live path that can be used for it, and `None` for a path that
/// has not reported it yet.
#[must_use]
pub fn grown(known: u64, reported: impl IntoIterator<Item = Option<u64>>) -> Option<u64> {
    let mut smallest = None;
    for blocks in reported {
        let blocks = blocks?;
        smallest = Some(smallest.map_or(blocks, |least: u64| least.min(blocks)));
    }
    smallest.filter(|blocks| *blocks > known)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn known() -> SharedNamespace {
        SharedNamespace {
            nsid: 3,
            identifiers: NamespaceIdentifiers {
                uuid: Some([1; 16]),
                ..NamespaceIdentifiers::default()
            },
            block_size: 512,
            blocks: 100,
        }
    }

    #[test]
    fn controllers_of_another_subsystem_and_twins_are_refused() {
        let subnqn = Nqn::new("nqn.2026-11.org.example:a").unwrap();
        let other = Nqn::new("nqn.2026-11.org.example:b").unwrap();
        let mut identify = IdentifyController::zeroed();
        assert!(check_subsystem(&subnqn, &identify).is_ok(), "empty");
        identify.subnqn = subnqn.to_field();
        assert!(check_subsystem(&subnqn, &identify).is_ok());
        let error = check_subsystem(&other, &identify).unwrap_err().to_string();
        assert!(
            error.contains("of subsystem nqn.2026-11.org.example:a"),
            "{error}"
        );
        let connected = [("a", 1), ("b", 2)];
        assert!(check_unique(3, &connected).is_ok());
        let error = check_unique(2, &connected).unwrap_err().to_string();
        assert!(
            error.contains("controller 2 is connected over b"),
            "{error}"
        );
    }

    #[test]
    fn other_namespaces_and_sizes_are_refused() {
        let mut other = known();
        other.identifiers.uuid = Some([2; 16]);
        // Whatever else differs, it is another namespace.
        other.blocks = 7;
        let nsid = 3;
        assert_eq!(known().check(&other), Err(Difference::Identifiers { nsid }));
        other = SharedNamespace {
            identifiers: NamespaceIdentifiers {
                nguid: Some([9; 16]),
                ..known().identifiers
            },
            ..known()
        };
        assert_eq!(known().check(&other), Err(Difference::Identifiers { nsid }));
        other = SharedNamespace {
            block_size: 4096,
            ..known()
        };
        let (found, known_size) = (4096, 512);
        let error = Difference::BlockSize {
            nsid,
            found,
            known: known_size,
        };
        assert_eq!(known().check(&other), Err(error));
        other = SharedNamespace {
            blocks: 99,
            ..known()
        };
        let error = known().check(&other).unwrap_err();
        assert!(
            error.to_string().contains("99 blocks, fewer than the 100"),
            "{error}"
        );
        other.blocks = 101;
        assert_eq!(known().check(&other), Ok(()));
    }

    #[test]
    fn namespace_grows_when_all_paths_report_it() {
        assert_eq!(grown(100, [Some(200), Some(150)]), Some(150));
        assert_eq!(grown(100, [Some(200), None]), None);
        assert_eq!(grown(100, [Some(200), Some(100)]), None);
        assert_eq!(grown(100, []), None);
    }

    proptest! {
        /// No path has fewer blocks than the new number, so each block can be accessed over each.
        #[test]
        fn grown_namespace_exists_on_every_path(
            known in 0u64..10,
            reported in prop::collection::vec(prop::option::of(0u64..20), 0..5),
        ) {
            let every = |blocks| reported.iter().all(|one| one.is_some_and(|one| one >= blocks));
            match grown(known, reported.iter().copied()) {
                Some(blocks) => prop_assert!(blocks > known && every(blocks)),
                None => prop_assert!(reported.is_empty() || !every(known + 1)),
            }
        }
    }
}
