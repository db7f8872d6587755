//! The paths at which it is told how the target is.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use axum::{Json, Router};

use super::Watch;
use crate::http::{Fault, work};

/// A path, and what answers there.
type Route = (&'static str, fn() -> MethodRouter<Arc<Watch>>);

/// Every path there is.
pub(crate) const ROUTES: &[Route] = &[
    ("/metrics", || get(metrics)),
    ("/healthz", || get(healthz)),
    ("/snapshot", || get(snapshot)),
];

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What tells how the target is.
pub(crate) fn routes(watch: &Arc<Watch>) -> Router {
    let all = ROUTES.iter();
    let router = all.fold(Router::new(), |router, (path, answers)| {
        router.route(path, answers())
    });
    router.with_state(Arc::clone(watch))
}

/// What was counted, and what is there at this moment, for Prometheus: as
/// OpenMetrics, unless the header Accept names `text/plain` alone.
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
    let plain = wants_plain(&headers);
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

/// Whether somebody asks for the format before OpenMetrics, and for no other that
/// we have.
fn wants_plain(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).into_iter();
    let accepted: Vec<&str> = accepted.filter_map(|value| value.to_str().ok()).collect();
    let names = |kind: &str| accepted.iter().any(|value| value.contains(kind));
    names("text/plain") && !names("application/openmetrics-text")
}

/// Whether every reactor does something when it is told to.
#[utoipa::path(
    get,
    path = "/healthz",
    responses(
        (status = 200, body = Object, description = "All of them"),
        (status = 503, body = Object, description = "The numbers of those that do not")
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

/// Everything that is known of the target at this moment, queue by queue.
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
    fn openmetrics_is_told_unless_plain_text_alone_will_do() {
        let wants = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.append(header::ACCEPT, accept.parse().unwrap());
            wants_plain(&headers)
        };
        assert!(!wants_plain(&HeaderMap::new()));
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
