//! Rules for the namespaces of HA groups and for their subsystems.

use std::collections::BTreeMap;

use nvmeof_backend_spec::{RbdName, Spec};
use toml::Spanned;

use super::raw::{RawNamespace, RawSubsystem};
use super::{Config, ConfigError};

/// What the gateways of a subsystem must agree on or divide, and how.
const REQUIRED: [(&str, &str); 3] = [
    ("serial", "set the same serial on all gateways"),
    ("cntlid_min", CNTLIDS),
    ("cntlid_max", CNTLIDS),
];
const CNTLIDS: &str = "give each gateway its own range of controller IDs";

const OTHER_GROUP: &str = "set ana_group to a group without [[ha.group]]";

impl Config {
    /// The ANA group of a namespace, if gateways take it over from each other.
    pub(crate) fn ha_group(&self, raw: &RawNamespace) -> Option<u32> {
        let id = raw.ana_group();
        self.ha()?.has_group(id).then_some(id)
    }

    /// Errors in namespaces of HA groups.
    pub(crate) fn ha_namespace_errors(&self) -> Vec<ConfigError> {
        if self.ha().is_none() {
            return Vec::new();
        }
        let mut errors = Vec::new();
        for subsystem in &self.raw.subsystem {
            errors.extend(self.subsystem_errors(subsystem));
            for namespace in &subsystem.get_ref().namespace {
                errors.extend(self.namespace_error(namespace.get_ref()));
            }
        }
        errors.extend(self.shared_image_errors());
        errors
    }

    fn subsystem_errors(&self, subsystem: &Spanned<RawSubsystem>) -> Vec<ConfigError> {
        let namespaces = subsystem.get_ref().namespace.iter().map(Spanned::get_ref);
        let mut grouped = namespaces.filter_map(|raw| Some((raw, self.ha_group(raw)?)));
        let Some((raw, id)) = grouped.next() else {
            return Vec::new();
        };
        let nsid = raw.nsid.get_ref();
        let missing = REQUIRED.into_iter().filter(|(key, _)| {
            let given = subsystem.get_ref().location(key, "");
            given.is_none()
        });
        let errors = missing.map(|(key, remedy)| {
            let what = format!(
                "{key}: missing; required because namespace {nsid} is in HA group {id}; {remedy}"
            );
            self.error_at(Some(subsystem.span().start), &what)
        });
        errors.collect()
    }

    fn namespace_error(&self, raw: &RawNamespace) -> Option<ConfigError> {
        let id = self.ha_group(raw)?;
        let path = raw.path.get_ref();
        let of_path = |rule: &str, remedy: &str| {
            let what = format!(
                "path = {path:?}: a namespace in HA group {id} must be {rule}; {remedy}, or \
                 {OTHER_GROUP}"
            );
            Some(self.error_at(Some(raw.path.span().start), &what))
        };
        match self.spec(raw) {
            Err(error) => Some(error),
            Ok(Spec::Rbd { image, .. }) if image.snapshot.is_some() => {
                of_path("writable", "name the image without @SNAPSHOT")
            }
            Ok(Spec::Rbd { .. }) if *raw.readonly.get_ref() => {
                let what = format!(
                    "readonly = true: a namespace in HA group {id} must be writable, because its \
                     gateway takes the exclusive lock; omit this key, or {OTHER_GROUP}"
                );
                Some(self.error_at(Some(raw.readonly.span().start), &what))
            }
            Ok(Spec::Rbd { .. }) => None,
            Ok(Spec::File { .. } | Spec::Ram { .. } | Spec::Null { .. }) => {
                of_path("an RBD image", "name one as rbd:POOL[/NAMESPACE]/IMAGE")
            }
        }
    }

    /// Images of HA groups that another namespace has as well. The images of a group are opened
    /// only by its owner, so opening them does not detect this.
    fn shared_image_errors(&self) -> Vec<ConfigError> {
        let mut errors = Vec::new();
        let mut seen: BTreeMap<String, (bool, &str, u32)> = BTreeMap::new();
        for (nqn, raw) in self.namespaces() {
            let Some(image) = self.image(raw) else {
                continue;
            };
            let (is_grouped, nsid) = (self.ha_group(raw).is_some(), *raw.nsid.get_ref());
            match seen.get(&image.to_string()) {
                Some((was_grouped, other, other_nsid)) if *was_grouped || is_grouped => {
                    let what = format!(
                        "path = \"rbd:{image}\": namespace {other_nsid} of {other} has this image, \
                         and an image in an HA group belongs to one namespace; name another one"
                    );
                    errors.push(self.error_at(Some(raw.path.span().start), &what));
                }
                Some(_) => {}
                None => {
                    seen.insert(image.to_string(), (is_grouped, nqn, nsid));
                }
            }
        }
        errors
    }

    /// The RBD image of a namespace, unless it is a snapshot.
    fn image(&self, raw: &RawNamespace) -> Option<RbdName> {
        match self.spec(raw) {
            Ok(Spec::Rbd { image, .. }) if image.snapshot.is_none() => Some(image),
            _ => None,
        }
    }
}
