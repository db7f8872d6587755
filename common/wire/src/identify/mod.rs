//! Data structures that Identify returns (NVMe Base 2.0, 5.17; NVM command set 1.0,
//! 4.1.5).

pub mod capabilities;
pub mod controller;
pub mod descriptors;
pub mod independent;
pub mod lists;
pub mod namespace;
pub mod nvm;

pub use capabilities::{Cmic, Ctratt, Fcattr, Fuses, Lpa, Oacs, Oaes, Ofcs, Oncs, Sgls, Vwc};
pub use controller::{ControllerType, IdentifyController, PowerState};
pub use descriptors::{DescriptorList, NamespaceIdentifiers};
pub use independent::IdentifyNamespaceIndependent;
pub use lists::{ControllerList, NamespaceList};
pub use namespace::{IdentifyNamespace, LbaFormat};
pub use nvm::{IdentifyControllerNvm, IdentifyNamespaceNvm};

/// Length of every Identify data structure in bytes.
pub const IDENTIFY_LEN: usize = 4096;
