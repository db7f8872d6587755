//! The description of everything that the socket does, in the format of
//! OpenAPI, made from the routes and the types themselves.

use std::collections::BTreeMap;

use utoipa::openapi::schema::{AdditionalProperties, AnyOf, ArrayItems, Object, OneOf, Schema};
use utoipa::openapi::{OpenApi, RefOr};

use super::routes;
use crate::watch::http;

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "nvmeof-target",
        description = "Managing the target while it runs: HTTP over its control socket."
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

/// Says of every object whose properties are known that it has no others. An object
/// that is put together of several becomes one of its own, since none of these alone
/// has all of the properties.
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

/// The schema itself where another one is referred to.
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

/// The same as text: what is in docs/openapi.json.
///
/// # Errors
/// When it is no JSON, which would be a mistake of ours.
pub fn text() -> Result<String, serde_json::Error> {
    Ok(description().to_pretty_json()? + "\n")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    /// In the folder of documents.
    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");

    #[test]
    fn every_route_is_described() {
        let described: BTreeSet<_> = description().paths.paths.into_keys().collect();
        let managing = routes::ROUTES.iter().map(|(path, _)| (*path).into());
        let watching = http::ROUTES.iter().map(|(path, _)| (*path).into());
        let there: BTreeSet<_> = managing.chain(watching).collect();
        assert_eq!(described, there);
    }

    /// Objects whose content is said elsewhere: this description, what is measured, and
    /// differences.
    fn is_open(place: &str) -> bool {
        let whole = ["/openapi.json", "/healthz", "/snapshot"];
        let is_whole = |path: &&str| place.starts_with(&format!("/paths/{path}/get/responses/"));
        whole.iter().any(is_whole) || place.ends_with("OutcomeOut/properties/changes/items")
    }

    /// Every object, wherever it is in the description.
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
    fn every_object_says_that_it_has_no_other_keys() {
        let description = serde_json::to_value(description()).unwrap();
        let mut open = Vec::new();
        objects(&description, "", &mut open);
        open.retain(|place| !is_open(place));
        assert_eq!(open, Vec::<String>::new());
    }

    #[test]
    fn a_new_namespace_has_its_keys_and_the_name_of_the_edit() {
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
    fn the_committed_description_is_this_one() {
        let now = text().unwrap();
        if std::env::var_os("NVMEOF_WRITE").is_some() {
            std::fs::write(FILE, &now).unwrap();
        }
        let committed = std::fs::read_to_string(FILE).unwrap();
        let hint = "NVMEOF_WRITE=1 cargo test -p nvmeof-target-control openapi writes it anew";
        assert!(
            committed == now,
            "docs/openapi.json is not what the routes say: {hint}"
        );
    }
}
