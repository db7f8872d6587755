//! The description of everything that the socket does, in the format of
//! OpenAPI, made from the routes and the types themselves.

use utoipa::OpenApi;

use super::{fault, routes};
use crate::watch::http;

#[derive(OpenApi)]
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
    components(schemas(fault::ErrorBody))
)]
struct Description;

/// The description.
pub(crate) fn description() -> utoipa::openapi::OpenApi {
    Description::openapi()
}

/// The same as text: what is in docs/openapi.json.
///
/// # Errors
/// When it is no JSON, which would be a mistake of ours.
pub(crate) fn text() -> Result<String, serde_json::Error> {
    Ok(description().to_pretty_json()? + "\n")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::collections::BTreeSet;

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

    #[test]
    fn the_committed_description_is_this_one() {
        let now = text().unwrap();
        if std::env::var_os("NVMEOF_WRITE").is_some() {
            std::fs::write(FILE, &now).unwrap();
        }
        let committed = std::fs::read_to_string(FILE).unwrap();
        let hint = "NVMEOF_WRITE=1 cargo test -p nvmeof-target openapi writes it anew";
        assert!(
            committed == now,
            "docs/openapi.json is not what the routes say: {hint}"
        );
    }
}
