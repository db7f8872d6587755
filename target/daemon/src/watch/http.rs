//! The paths at which it is told how the target is.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use axum::{Json, Router};

use super::Watch;
use crate::control::{Fault, work};

/// A path, and what answers there.
type Route = (&'static str, fn() -> MethodRouter<Arc<Watch>>);

/// Every path there is.
pub(crate) const ROUTES: &[Route] = &[
    ("/metrics", || get(metrics)),
    ("/healthz", || get(healthz)),
    ("/snapshot", || get(snapshot)),
];

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What tells how the target is.
pub(crate) fn routes(watch: &Arc<Watch>) -> Router {
    let all = ROUTES.iter();
    let router = all.fold(Router::new(), |router, (path, answers)| {
        router.route(path, answers())
    });
    router.with_state(Arc::clone(watch))
}

/// What was counted, and what is there at this moment, for Prometheus.
#[utoipa::path(
    get,
    path = "/metrics",
    responses((
        status = 200,
        body = String,
        content_type = "application/openmetrics-text",
        description = "OpenMetrics 1.0"
    ))
)]
pub(crate) async fn metrics(State(watch): State<Arc<Watch>>) -> Result<Response, Fault> {
    let text = work(move || Ok(watch.snapshot().to_openmetrics())).await?;
    Ok(([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response())
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
