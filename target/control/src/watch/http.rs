//! The HTTP paths of metrics and health.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use axum::{Json, Router};

use super::Watch;
use crate::http::{Fault, work};

/// A path and its handler.
type Route = (&'static str, fn() -> MethodRouter<Arc<Watch>>);

/// All paths; the OpenAPI description has the same.
pub(crate) const ROUTES: &[Route] = &[
    ("/metrics", || get(metrics)),
    ("/healthz", || get(healthz)),
    ("/snapshot", || get(snapshot)),
];

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The router of all paths.
pub(crate) fn routes(watch: &Arc<Watch>) -> Router {
    let all = ROUTES.iter();
    let router = all.fold(Router::new(), |router, (path, replies)| {
        router.route(path, replies())
    });
    router.with_state(Arc::clone(watch))
}

/// Counters and present values for Prometheus.
///
/// The format is OpenMetrics. If the header Accept names `text/plain` and not OpenMetrics, it is
/// Prometheus text 0.0.4.
#[utoipa::path(
    get,
    path = "/metrics",
    responses((
        status = 200,
        description = "OpenMetrics 1.0, or Prometheus text 0.0.4",
        content((String = "application/openmetrics-text"), (String = "text/plain"))
    ))
)]
pub(crate) async fn metrics(
    State(watch): State<Arc<Watch>>,
    headers: HeaderMap,
) -> Result<Response, Fault> {
    let plain = accepts_plain_only(&headers);
    let text = move || {
        let snapshot = watch.snapshot();
        Ok(match plain {
            true => super::plain::to_prometheus(&snapshot),
            false => super::openmetrics::to_openmetrics(&snapshot),
        })
    };
    let kind = if plain { PLAIN } else { OPENMETRICS };
    let headers = [(header::CONTENT_TYPE, kind), (header::VARY, "accept")];
    Ok((headers, work(text).await?).into_response())
}

/// Whether the client accepts Prometheus text and not OpenMetrics.
fn accepts_plain_only(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).into_iter();
    let accepted: Vec<&str> = accepted.filter_map(|value| value.to_str().ok()).collect();
    let names = |kind: &str| accepted.iter().any(|value| value.contains(kind));
    names("text/plain") && !names("application/openmetrics-text")
}

/// Whether every reactor responds.
#[utoipa::path(
    get,
    path = "/healthz",
    responses(
        (status = 200, body = Object, description = "Every reactor responds"),
        (status = 503, body = Object, description = "`stalled` lists reactors that do not respond")
    )
)]
pub(crate) async fn healthz(State(watch): State<Arc<Watch>>) -> Result<Response, Fault> {
    let health = work(move || Ok(watch.health())).await?;
    let status = if health.healthy {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    Ok((status, Json(health)).into_response())
}

/// State and counters of the whole target, down to single queues.
#[utoipa::path(get, path = "/snapshot", responses((status = 200, body = Object)))]
pub(crate) async fn snapshot(State(watch): State<Arc<Watch>>) -> Result<Response, Fault> {
    let snapshot = work(move || Ok(watch.snapshot())).await?;
    Ok(Json(&*snapshot).into_response())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn openmetrics_is_the_default_unless_only_plain_text_is_accepted() {
        let wants = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.append(header::ACCEPT, accept.parse().unwrap());
            accepts_plain_only(&headers)
        };
        assert!(!accepts_plain_only(&HeaderMap::new()));
        for (accept, plain) in [
            ("*/*", false),
            ("text/html,application/xhtml+xml,*/*;q=0.8", false),
            (
                "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5",
                false,
            ),
            ("text/plain;version=0.0.4", true),
            ("text/plain, */*;q=0.1", true),
        ] {
            assert_eq!(wants(accept), plain, "{accept}");
        }
    }
}
