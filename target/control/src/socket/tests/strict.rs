//! Requests with unexpected content.

use super::super::routes::{ROUTES, router};
use super::*;

/// A valid body for each route.
fn request(path: &str) -> Value {
    match path {
        "/v1/plan" | "/v1/apply" => json!({ "name": "a.toml", "text": "" }),
        "/v1/edits" | "/v1/forget" => json!({ "edits": [] }),
        "/v1/resize" => json!({ "nsid": 1 }),
        "/v1/reservations/clear" => json!({ "subsystem": "nqn", "nsid": 1 }),
        "/v1/reservations/import" => json!({ "subsystem": "nqn", "nsid": 1, "reservations": {
            "subsystem": "nqn", "nsid": 1, "uuid": "", "generation": 0, "persistent": false,
            "reservation": null, "registrants": [] } }),
        "/v1/ha/move" => json!({ "group": 1, "gateway": "gw1" }),
        "/v1/ha/drain" | "/v1/ha/resume" | "/v1/ha/forget" => json!({ "gateway": "gw1" }),
        "/v1/disconnect" => json!({ "host": HOST }),
        _ => json!({}),
    }
}

const HOST: &str = "nqn.2026-11.org.example:host";

/// The values of an object as a list, which serde would accept too.
fn in_order(object: &Value) -> Value {
    let values = object.as_object().unwrap().values();
    values.cloned().collect()
}

fn is_changing(path: &str) -> bool {
    ![
        "/v1/status",
        "/v1/document",
        "/v1/reservations",
        "/v1/ha",
        "/openapi.json",
    ]
    .contains(&path)
}

#[track_caller]
fn refused(scene: &Scene, method: &str, path: &str, body: &str) {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let reason = scene.response(request.as_bytes());
    assert!(
        reason.starts_with("HTTP/1.1 400 "),
        "{path} {body}: {reason}"
    );
    let (_, body) = reason.split_once("\r\n\r\n").unwrap();
    let body: Value = serde_json::from_str(body).unwrap();
    assert!(body["error"]["message"].is_string(), "{path}: {body}");
}

#[test]
fn routes_refuse_unknown_keys_and_queries() {
    let folder = tempfile::tempdir().unwrap();
    let (server, shared) = served(&folder, |_| {});
    let scene = Scene::with(FEW, router(&shared));
    for (path, _) in ROUTES {
        let method = if is_changing(path) { "POST" } else { "GET" };
        let mut more = request(path);
        more["more"] = json!(1);
        refused(&scene, method, path, &more.to_string());
        for wrong in ["[]", "null", "1", "{", "\"x\"", "{} {}"] {
            refused(&scene, method, path, wrong);
        }
        refused(&scene, method, path, &in_order(&request(path)).to_string());
        if path.starts_with("/v1/") {
            let (path, body) = (format!("{path}?force=1"), request(path).to_string());
            refused(&scene, method, &path, &body);
        }
    }
    assert!(!shared.keeper.manager().status().contains("drained"));
    drop(scene);
    server.stop();
    server.join().unwrap();
}

#[test]
fn edits_refuse_unknown_keys() {
    let description = serde_json::to_value(openapi::description()).unwrap();
    let edits = description["components"]["schemas"]["Edit"]["oneOf"]
        .as_array()
        .unwrap();
    assert!(edits.len() > 10);
    for schema in edits {
        let mut edit = json!({});
        for key in schema["required"].as_array().unwrap() {
            let key = key.as_str().unwrap();
            let its = &schema["properties"][key];
            edit[key] = match its["type"].as_str() {
                Some("integer") => json!(1),
                Some("boolean") => json!(true),
                _ => its["enum"].get(0).cloned().unwrap_or_else(|| json!("x")),
            };
        }
        let body = |edit: &Value| json!({ "edits": [edit] });
        let parsed: Result<EditsIn, _> = serde_json::from_value(body(&edit));
        assert!(parsed.is_ok(), "{edit}: {parsed:?}");
        // Every order of its keys, the tag first: the order of the fields is one of them.
        let tag = edit["edit"].clone();
        let mut rest = edit.clone();
        rest.as_object_mut().unwrap().remove("edit");
        let mut list = vec![tag];
        list.extend(in_order(&rest).as_array().unwrap().clone());
        for list in [list.clone(), vec![list[0].clone(), rest]] {
            let parsed: Result<EditsIn, _> = serde_json::from_value(body(&json!(list)));
            let error = parsed.unwrap_err().to_string();
            assert!(error.contains("expected an object"), "{list:?}: {error}");
        }
        edit["more"] = json!(1);
        let parsed: Result<EditsIn, _> = serde_json::from_value(body(&edit));
        let error = parsed.unwrap_err().to_string();
        assert!(error.contains("unknown field `more`"), "{edit}: {error}");
    }
}

#[test]
fn a_request_without_content_may_be_an_empty_object() {
    let folder = tempfile::tempdir().unwrap();
    let (server, shared) = served(&folder, |_| {});
    let scene = Scene::with(FEW, router(&shared));
    for body in ["", "{}", " { } "] {
        let request = format!(
            "POST /v1/reload/plan HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let reason = scene.response(request.as_bytes());
        assert!(reason.starts_with("HTTP/1.1 200 "), "{body}: {reason}");
    }
    drop(scene);
    server.stop();
    server.join().unwrap();
}
