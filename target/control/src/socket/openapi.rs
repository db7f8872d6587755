//! The OpenAPI description of the control socket, generated from routes and types.

use std::collections::BTreeMap;

use utoipa::openapi::schema::{AdditionalProperties, AnyOf, ArrayItems, Object, OneOf, Schema};
use utoipa::openapi::{OpenApi, RefOr};

use super::{ha, reservations, routes};
use crate::watch::http;

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "nvmeof-target",
        description = "Management and monitoring of a running target: HTTP over its control socket."
    ),
    paths(
        routes::status,
        routes::document,
        routes::plan,
        routes::apply,
        routes::reload,
        routes::plan_reload,
        routes::edits,
        routes::forget,
        routes::resize,
        routes::disconnect,
        routes::drain,
        routes::resume,
        routes::save,
        reservations::reservations,
        reservations::clear,
        reservations::import,
        ha::ha,
        ha::ha_move,
        ha::ha_drain,
        ha::ha_resume,
        ha::ha_forget,
        routes::described,
        http::metrics,
        http::healthz,
        http::snapshot,
    ),
    components(schemas(nvmeof_target_api::ErrorBody))
)]
struct Description;

/// The description.
pub(crate) fn description() -> OpenApi {
    let mut description = <Description as utoipa::OpenApi>::openapi();
    if let Some(components) = &mut description.components {
        let named = components.schemas.clone();
        for schema in components.schemas.values_mut() {
            close(schema, &named);
        }
    }
    description
}

/// Declares that an object with known properties has no others. An `allOf` of several objects
/// becomes one object, since none of them alone has all properties.
fn close(schema: &mut RefOr<Schema>, named: &BTreeMap<String, RefOr<Schema>>) {
    let RefOr::T(schema) = schema else { return };
    match schema {
        Schema::Object(object) if !object.properties.is_empty() => {
            object.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
            for property in object.properties.values_mut() {
                close(property, named);
            }
        }
        Schema::Array(array) => {
            if let ArrayItems::RefOrSchema(items) = &mut array.items {
                close(items, named);
            }
        }
        Schema::OneOf(OneOf { items, .. }) | Schema::AnyOf(AnyOf { items, .. }) => {
            for item in items {
                close(item, named);
            }
        }
        Schema::AllOf(all) => {
            let mut whole = Object::default();
            whole.description = all.description.take();
            for part in &all.items {
                if let Some(Schema::Object(part)) = resolved(part, named) {
                    whole.properties.extend(part.properties.clone());
                    whole.required.extend(part.required.clone());
                }
            }
            let mut closed = RefOr::T(Schema::Object(whole));
            close(&mut closed, named);
            if let RefOr::T(closed) = closed {
                *schema = closed;
            }
        }
        _ => {}
    }
}

/// The schema, with a reference resolved.
fn resolved<'a>(
    schema: &'a RefOr<Schema>,
    named: &'a BTreeMap<String, RefOr<Schema>>,
) -> Option<&'a Schema> {
    match schema {
        RefOr::T(schema) => Some(schema),
        RefOr::Ref(it) => match named.get(it.ref_location.rsplit('/').next()?)? {
            RefOr::T(schema) => Some(schema),
            RefOr::Ref(_) => None,
        },
    }
}

/// The description as text, as in docs/openapi.json.
///
/// # Errors
/// If it cannot be serialized, which would be a bug.
pub fn text() -> Result<String, serde_json::Error> {
    Ok(description().to_pretty_json()? + "\n")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    /// The committed description.
    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");

    #[test]
    fn every_route_is_described() {
        let described: BTreeSet<_> = description().paths.paths.into_keys().collect();
        let managing = routes::ROUTES.iter().map(|(path, _)| (*path).into());
        let watching = http::ROUTES.iter().map(|(path, _)| (*path).into());
        let there: BTreeSet<_> = managing.chain(watching).collect();
        assert_eq!(described, there);
    }

    /// Objects without a schema here: this description, health, snapshots and differences.
    fn is_open(place: &str) -> bool {
        let whole = ["/openapi.json", "/healthz", "/snapshot"];
        let is_whole = |path: &&str| place.starts_with(&format!("/paths/{path}/get/responses/"));
        whole.iter().any(is_whole) || place.ends_with("OutcomeOut/properties/changes/items")
    }

    /// Collects the places of all objects that may have other keys.
    fn objects(value: &Value, place: &str, found: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                let is_object = map.get("type").is_some_and(|it| it == "object");
                let is_closed = map.get("additionalProperties") == Some(&Value::Bool(false));
                let is_schema = is_object || map.get("properties").is_some_and(Value::is_object);
                if is_schema && !is_closed && !place.ends_with("/properties") {
                    found.push(place.to_owned());
                }
                assert!(
                    !map.contains_key("allOf"),
                    "{place}: no part of it can be closed"
                );
                for (key, value) in map {
                    objects(value, &format!("{place}/{key}"), found);
                }
            }
            Value::Array(all) => {
                for (at, value) in all.iter().enumerate() {
                    objects(value, &format!("{place}/{at}"), found);
                }
            }
            _ => {}
        }
    }

    #[test]
    fn described_objects_have_no_additional_properties() {
        let description = serde_json::to_value(description()).unwrap();
        let mut open = Vec::new();
        objects(&description, "", &mut open);
        open.retain(|place| !is_open(place));
        assert_eq!(open, Vec::<String>::new());
    }

    #[test]
    fn namespace_add_schema_has_keys_and_edit_name() {
        let description = serde_json::to_value(description()).unwrap();
        let edits = &description["components"]["schemas"]["Edit"]["oneOf"];
        let mut edits = edits.as_array().unwrap().iter();
        let named = |one: &&Value| one["properties"]["edit"]["enum"][0] == "namespace_add";
        let add = edits.find(named).unwrap();
        assert_eq!(add["required"], serde_json::json!(["path", "edit"]));
        assert!(add["properties"]["block_size"].is_object(), "{add}");
        assert_eq!(add["additionalProperties"], false);
    }

    #[test]
    fn committed_description_is_up_to_date() {
        let now = text().unwrap();
        if std::env::var_os("NVMEOF_WRITE").is_some() {
            std::fs::write(FILE, &now).unwrap();
        }
        let committed = std::fs::read_to_string(FILE).unwrap();
        let hint = "`NVMEOF_WRITE=1 cargo test -p nvmeof-target-control openapi` writes it";
        assert!(
            committed == now,
            "docs/openapi.json differs from the routes: {hint}"
        );
    }
}
