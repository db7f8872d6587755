//! The HTTP paths of the control socket and their handlers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Bytes;
use axum::extract::{FromRequest, Request, State};
use axum::http::StatusCode;
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use nvmeof_target_config::Config;
use nvmeof_target_core::{AuthenticationReport, Model, Port, Subsystem};
use nvmeof_wire::Nqn;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use super::queue::Permit;
use super::{Shared, ha, openapi, reservations};
use crate::changes::{ChangeError, Edit, Keeper, Outcome, Planned, Resize, Stalled};
use crate::http::{Fault, Refusals, finished, unfinished, work};
use nvmeof_target_address::port_address;
use nvmeof_target_api::NamespaceState;
use nvmeof_target_api::{
    AnaGroupOut, ControllerOut, DocumentIn, DocumentOut, EditsIn, ForgetIn, HostIn, HostKeysOut,
    LostOut, NamespaceOut, OutcomeCount, OutcomeOut, PortOut, SavedOut, StatusOut, SubsystemOut,
    WaitingOut,
};
use nvmeof_target_manage::{Drained, Manager};

/// A path and its handler.
type Route = (&'static str, fn() -> MethodRouter<Shared>);

/// All paths; the OpenAPI description has the same.
pub(super) const ROUTES: &[Route] = &[
    ("/v1/status", || get(status)),
    ("/v1/document", || get(document)),
    ("/v1/plan", || post(plan)),
    ("/v1/apply", || post(apply)),
    ("/v1/reload", || post(reload)),
    ("/v1/reload/plan", || post(plan_reload)),
    ("/v1/edits", || post(edits)),
    ("/v1/forget", || post(forget)),
    ("/v1/resize", || post(resize)),
    ("/v1/disconnect", || post(disconnect)),
    ("/v1/drain", || post(drain)),
    ("/v1/resume", || post(resume)),
    ("/v1/save", || post(save)),
    ("/v1/reservations", || get(reservations::reservations)),
    ("/v1/reservations/clear", || post(reservations::clear)),
    ("/v1/reservations/import", || post(reservations::import)),
    ("/v1/ha", || get(ha::ha)),
    ("/v1/ha/move", || post(ha::ha_move)),
    ("/v1/ha/drain", || post(ha::ha_drain)),
    ("/v1/ha/resume", || post(ha::ha_resume)),
    ("/v1/ha/forget", || post(ha::ha_forget)),
    ("/openapi.json", || get(described)),
];

/// The router of the control socket, including metrics and health.
pub(super) fn router(shared: &Shared) -> Router {
    let all = ROUTES.iter();
    let router = all.fold(Router::new(), |router, (path, replies)| {
        router.route(path, replies())
    });
    let watched = crate::watch::routes(&shared.watch);
    finished(
        router.with_state(shared.clone()).merge(watched),
        "GET /openapi.json lists the paths",
    )
}

pub(super) type JsonResult<T> = Result<Json<T>, Fault>;

/// Status of the target: ports, subsystems, namespaces and connected hosts.
#[utoipa::path(get, path = "/v1/status", responses((status = 200, body = StatusOut)))]
pub(super) async fn status(State(shared): State<Shared>, _: NoBody) -> JsonResult<StatusOut> {
    ask(shared, |keeper| Ok(status_of(keeper))).await
}

/// The served configuration, with all run-time changes.
#[utoipa::path(get, path = "/v1/document", responses((status = 200, body = DocumentOut)))]
pub(super) async fn document(State(shared): State<Shared>, _: NoBody) -> JsonResult<DocumentOut> {
    ask(shared, |keeper| {
        let shown = keeper.show();
        Ok(DocumentOut {
            name: shown.name.display().to_string(),
            text: shown.text,
            file: shown.file.display().to_string(),
            applied: shown.applied,
            edits: shown.edits,
            deferred: shown.deferred,
        })
    })
    .await
}

/// Plans to apply a document: reports what would change.
///
/// Opens the backing stores of the document to find errors, and closes them again.
#[utoipa::path(
    post,
    path = "/v1/plan",
    request_body = DocumentIn,
    responses((status = 200, body = OutcomeOut), Refusals)
)]
pub(super) async fn plan(
    State(shared): State<Shared>,
    Body(document): Body<DocumentIn>,
) -> JsonResult<OutcomeOut> {
    with_permit(shared, move |keeper| {
        Ok(planned_out(keeper.plan(&document.name, document.text)?))
    })
    .await
}

/// Applies a document instead of the configuration file and all run-time changes.
///
/// It is applied completely or not at all.
#[utoipa::path(
    post,
    path = "/v1/apply",
    request_body = DocumentIn,
    responses((status = 200, body = OutcomeOut), Refusals)
)]
pub(super) async fn apply(
    State(shared): State<Shared>,
    Body(document): Body<DocumentIn>,
) -> JsonResult<OutcomeOut> {
    change(shared, move |keeper| {
        logged("apply", keeper.apply(document.name, document.text))
    })
    .await
}

/// Reads the configuration file again and applies the run-time changes to it.
///
/// It replaces a document of `POST /v1/apply`.
#[utoipa::path(post, path = "/v1/reload", responses((status = 200, body = OutcomeOut), Refusals))]
pub(super) async fn reload(State(shared): State<Shared>, _: NoBody) -> JsonResult<OutcomeOut> {
    change(shared, |keeper| logged("reload", keeper.reload())).await
}

/// Plans a reload: reports what would change.
#[utoipa::path(
    post,
    path = "/v1/reload/plan",
    responses((status = 200, body = OutcomeOut), Refusals)
)]
pub(super) async fn plan_reload(State(shared): State<Shared>, _: NoBody) -> JsonResult<OutcomeOut> {
    with_permit(shared, |keeper| Ok(planned_out(keeper.plan_reload()?))).await
}

/// Makes run-time changes, all or none.
///
/// One request can add a subsystem with its namespaces: `subsystem_add`, then `namespace_add`
/// for each. Such a request may be repeated if its response was lost.
#[utoipa::path(
    post,
    path = "/v1/edits",
    request_body = EditsIn,
    responses((status = 200, body = OutcomeOut), Refusals)
)]
pub(super) async fn edits(
    State(shared): State<Shared>,
    Body(EditsIn { edits, plan }): Body<EditsIn>,
) -> JsonResult<OutcomeOut> {
    if plan {
        return with_permit(shared, move |keeper| {
            Ok(planned_out(keeper.plan_edit(edits)?))
        })
        .await;
    }
    edit(shared, edits).await
}

/// Removes deferred changes, all or none.
///
/// Each is given as in `deferred` of `GET /v1/document`.
#[utoipa::path(
    post,
    path = "/v1/forget",
    request_body = ForgetIn,
    responses((status = 200, body = OutcomeOut), Refusals)
)]
pub(super) async fn forget(
    State(shared): State<Shared>,
    Body(ForgetIn { edits }): Body<ForgetIn>,
) -> JsonResult<OutcomeOut> {
    change(shared, move |keeper| {
        logged("forget", keeper.forget(&edits))
    })
    .await
}

/// Adopts the size of a file or device, or resizes a file first.
#[utoipa::path(
    post,
    path = "/v1/resize",
    request_body = Resize,
    responses((status = 200, body = OutcomeOut), Refusals)
)]
pub(super) async fn resize(
    State(shared): State<Shared>,
    Body(wanted): Body<Resize>,
) -> JsonResult<OutcomeOut> {
    change(shared, move |keeper| {
        logged("resize", keeper.resize(&wanted))
    })
    .await
}

/// Deletes the controllers of a host.
///
/// The host may reconnect.
#[utoipa::path(
    post,
    path = "/v1/disconnect",
    request_body = HostIn,
    responses((status = 200, body = LostOut), Refusals)
)]
pub(super) async fn disconnect(
    State(shared): State<Shared>,
    Body(HostIn { host, subsystem }): Body<HostIn>,
) -> JsonResult<LostOut> {
    change(shared, move |keeper| {
        let host = nqn("host", &host)?;
        let subsystem = subsystem.map(|name| nqn("subsystem", &name)).transpose()?;
        Ok(keeper.disconnect(&host, subsystem.as_ref())[..].into())
    })
    .await
}

/// Stops accepting connections, completes commands in flight and disconnects all hosts.
///
/// The configuration stays for `POST /v1/resume`.
#[utoipa::path(post, path = "/v1/drain", responses((status = 200, body = LostOut), Refusals))]
pub(super) async fn drain(State(shared): State<Shared>, _: NoBody) -> JsonResult<LostOut> {
    let notify = shared.notify_status;
    // A drain does not wait for other changes, and bounds its own time.
    let permit = shared.queue.enter()?.acquire().await;
    ask(shared, move |keeper| {
        let _permit = permit;
        let lost = keeper.drain();
        notify(&keeper.manager().status());
        Ok(lost?[..].into())
    })
    .await
}

/// Accepts connections again after a drain.
#[utoipa::path(post, path = "/v1/resume", responses((status = 200, body = StatusOut), Refusals))]
pub(super) async fn resume(State(shared): State<Shared>, _: NoBody) -> JsonResult<StatusOut> {
    change(shared, |keeper| {
        keeper.resume()?;
        Ok(status_of(keeper))
    })
    .await
}

/// Saves the run-time changes if that failed before.
#[utoipa::path(post, path = "/v1/save", responses((status = 200, body = SavedOut), Refusals))]
pub(super) async fn save(State(shared): State<Shared>, _: NoBody) -> JsonResult<SavedOut> {
    with_permit(shared, |keeper| {
        let file = keeper.save()?.display().to_string();
        Ok(SavedOut { file })
    })
    .await
}

/// This OpenAPI description.
#[utoipa::path(get, path = "/openapi.json", responses((status = 200, body = Object)))]
pub(super) async fn described(_: NoBody) -> Json<utoipa::openapi::OpenApi> {
    Json(openapi::description())
}

fn names(all: &[Nqn]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

/// Remarks on files that were deleted, renamed or replaced, by subsystem and NSID.
type Unlinked = BTreeMap<(String, u32), String>;

/// All namespaces of a subsystem, including disabled ones, by NSID.
fn namespaces(
    subsystem: &Subsystem,
    model: &Model,
    config: &Config,
    unlinked: &Unlinked,
) -> Vec<NamespaceOut> {
    let nqn = subsystem.nqn.as_str();
    let path_of = |nsid| config.paths().find(|(of, _)| *of == (nqn, nsid));
    let all = subsystem.namespaces().iter().chain(subsystem.disabled());
    let namespaces = all.map(|namespace| NamespaceOut {
        nsid: namespace.nsid,
        // The model may be a change ahead of the configuration.
        path: path_of(namespace.nsid).map_or_else(String::new, |(_, path)| path.to_owned()),
        bytes: namespace.bytes(),
        block_size: namespace.block_size(),
        readonly: namespace.readonly,
        state: NamespaceState::name_of(namespace.state).to_owned(),
        unlinked: unlinked
            .get(&(subsystem.nqn.as_str().to_owned(), namespace.nsid))
            .cloned(),
        ana_group: namespace.group(),
        ana_state: ana_state(model, &subsystem.nqn, namespace.group()),
        hosts: namespace.hosts.as_deref().map(names),
    });
    let mut namespaces: Vec<_> = namespaces.collect();
    namespaces.sort_unstable_by_key(|one| one.nsid);
    namespaces
}

/// The state of a group on the ports that reach the subsystem, if it is the same on all.
fn ana_state(model: &Model, nqn: &Nqn, group: u32) -> Option<String> {
    let reaches = |port: &&Port| {
        let subsystems = port.subsystems.as_ref();
        subsystems.is_none_or(|all| all.contains(nqn))
    };
    let mut states = model.ports().iter().filter(reaches);
    let first = states.next().map(|port| port.ana_state(group))?;
    let is_same = states.all(|port| port.ana_state(group) == first);
    is_same.then(|| first.name().to_owned())
}

fn ports(manager: &Manager, model: &Model) -> Vec<PortOut> {
    let ports = manager.ports().into_iter().filter_map(|served| {
        let address = port_address(served.address);
        // The model may be a change behind the ports.
        let port = model.ports().iter().find(|one| one.is_at(&address))?;
        let groups = port.ana_groups.iter().map(|one| AnaGroupOut {
            group: one.id,
            state: one.state.name().to_owned(),
        });
        Some(PortOut {
            id: port.id,
            address: address.to_string(),
            providers: served.provider_names(),
            ana_groups: groups.collect(),
            subsystems: port.subsystems.as_deref().map(names),
        })
    });
    ports.collect()
}

fn status_of(keeper: &Keeper) -> StatusOut {
    let (shown, manager) = (keeper.show(), keeper.manager());
    let (model, drained) = (manager.model(), manager.drained());
    let unlinked = manager.unlinked();
    let subsystems = model.subsystems().iter().map(|one| SubsystemOut {
        nqn: one.nqn.as_str().to_owned(),
        allowed_hosts: one.allowed_hosts.as_deref().map(names),
        require_authentication: model.authentication().subsystems.contains(&one.nqn),
        namespaces: namespaces(one, &model, &shown.config, &unlinked),
    });
    let waiting = manager.waiting().into_iter().map(|one| WaitingOut {
        kind: one.what.kind().to_owned(),
        name: one.what.to_string(),
        why: one.waits.why,
    });
    let controllers = manager.connected().into_iter().map(|one| ControllerOut {
        controller: one.cntlid,
        host: one.hostnqn.as_str().to_owned(),
        subsystem: one.subnqn.as_str().to_owned(),
        io_queues: one.io_queues,
        authentication: one.authentication.map(Into::into),
    });
    let report = manager.authentication_report();
    StatusOut {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        serving: manager.status(),
        drained: drained == Drained::Done,
        high_availability: manager.ha().map(|it| ha::summary(&it.status())),
        not_drained: drained.failure().map(str::to_owned),
        file: shown.file.display().to_string(),
        applied: shown.applied,
        edits: shown.edits.len(),
        deferred: shown.deferred.len(),
        state: shown.state.map(|path| path.display().to_string()),
        saved: shown.saved,
        ports: ports(manager, &model),
        waiting: waiting.collect(),
        subsystems: subsystems.collect(),
        controllers: controllers.collect(),
        host_keys: host_keys(manager, &report),
        authentications: OutcomeCount::of(report.all),
        key_warnings: manager.key_warnings(SystemTime::now()),
        host_id_warnings: manager.host_id_warnings(),
    }
}

/// The hosts that have a key.
fn host_keys(manager: &Manager, report: &AuthenticationReport) -> Vec<HostKeysOut> {
    let counts = |host: &Nqn| {
        let mut all = report.hosts.iter();
        let counted = all.find(|(of, _)| of == host);
        counted.map(|(_, counts)| *counts).unwrap_or_default()
    };
    let hosts = manager.host_keys().into_iter();
    hosts
        .map(|one| HostKeysOut {
            authentications: OutcomeCount::of(counts(&one.host)),
            host: one.host.as_str().to_owned(),
            old_key: one.has_old_key,
            old_key_until: one.old_key_until,
            controller_key: one.has_controller_key,
        })
        .collect()
}

fn planned_out(planned: Planned) -> OutcomeOut {
    let remarks = planned.plan.remarks.iter().cloned();
    OutcomeOut {
        changes: planned.plan.to_json_list(),
        dropped: planned.dropped,
        warnings: remarks.chain(planned.warnings).collect(),
        ..OutcomeOut::default()
    }
}

/// The response to a change, which is logged.
fn logged(what: &str, outcome: Result<Outcome, ChangeError>) -> Result<OutcomeOut, Fault> {
    let outcome = outcome.inspect(|outcome| outcome.log(what));
    response(what, outcome)
}

/// The response to a change that was logged already, unless it was refused.
fn response(what: &str, outcome: Result<Outcome, ChangeError>) -> Result<OutcomeOut, Fault> {
    let outcome = outcome.inspect_err(|error| tracing::warn!("{what} refused: {error}"))?;
    let remarks = outcome.report.remarks.iter().cloned();
    Ok(OutcomeOut {
        changes: outcome.report.to_json_list(),
        disconnected: outcome.report.disconnected.iter().map(Into::into).collect(),
        edits: outcome.edits,
        dropped: outcome.dropped,
        saved: outcome.saved,
        warnings: remarks.chain(outcome.warnings).collect(),
    })
}

pub(super) fn nqn(key: &str, name: &str) -> Result<Nqn, Fault> {
    Nqn::new(name).map_err(|error| Fault::invalid(key, &format!("{name:?}: {error}")))
}

/// Executes a change and notifies the service manager, also after a failure: that may have
/// changed what is served, too.
async fn change<T: Send + 'static>(
    shared: Shared,
    operation: impl FnOnce(&Keeper) -> Result<T, Fault> + Send + 'static,
) -> JsonResult<T> {
    let notify = shared.notify_status;
    with_permit(shared, move |keeper| {
        let result = operation(keeper);
        notify(&keeper.manager().status());
        result
    })
    .await
}

/// Applies edits, together with the pending ones of other clients.
async fn edit(shared: Shared, edits: Vec<Edit>) -> JsonResult<OutcomeOut> {
    let entry = shared.queue.enter()?;
    let mut awaited = entry.push(edits);
    let making = async {
        let permit = entry.acquire().await;
        let made = work({
            let shared = shared.clone();
            move || {
                apply_all(&shared, permit);
                Ok(())
            }
        });
        drop(made.await);
        // Another request may still be applying them.
        std::future::pending::<()>().await;
    };
    let outcome = tokio::select! {
        biased;
        outcome = &mut awaited.outcome => outcome.ok(),
        () = making => None,
        stalled = stalled(&shared) => {
            if awaited.withdraw() {
                return Err(not_started(&stalled));
            }
            match awaited.outcome.try_recv() {
                Ok(outcome) => Some(outcome),
                Err(_) => return Err(not_finished(&stalled)),
            }
        }
    };
    response("change", outcome.ok_or_else(unfinished)?).map(Json)
}

/// Applies all pending edits.
fn apply_all(shared: &Shared, permit: Permit) {
    // Held until the end, also if the client disconnects.
    let _permit = permit;
    let made = shared.keeper.edit_all(|| shared.queue.take());
    if !made.is_empty() {
        (shared.notify_status)(&shared.keeper.manager().status());
    }
    for (reply, outcome) in made {
        // Fails if the client has disconnected.
        let _ = reply.send(outcome);
    }
}

/// Executes a request that may have to wait for a change in progress or a backing store, once
/// it has a permit.
pub(super) async fn with_permit<T: Send + 'static>(
    shared: Shared,
    operation: impl FnOnce(&Keeper) -> Result<T, Fault> + Send + 'static,
) -> JsonResult<T> {
    let entry = shared.queue.enter()?;
    let permit = tokio::select! {
        permit = entry.acquire() => permit,
        stalled = stalled(&shared) => return Err(not_started(&stalled)),
    };
    let answered = ask(shared.clone(), move |keeper| {
        // Held until the end, also if the client disconnects.
        let _permit = permit;
        operation(keeper)
    });
    tokio::select! {
        biased;
        answered = answered => answered,
        stalled = stalled(&shared) => Err(not_finished(&stalled)),
    }
}

/// How often the change in progress is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Waits until a change has been in progress for longer than the bound.
async fn stalled(shared: &Shared) -> Stalled {
    loop {
        sleep(CHECK_INTERVAL.min(shared.queue.stall_limit)).await;
        if let Some(stalled) = shared.keeper.stalled(shared.queue.stall_limit) {
            return stalled;
        }
    }
}

fn not_started(stalled: &Stalled) -> Fault {
    let what = format!(
        "{stalled}; this request waited for it and changed nothing: see the log, restore what \
         does not respond, then try again"
    );
    Fault::new(StatusCode::SERVICE_UNAVAILABLE, what)
}

fn not_finished(stalled: &Stalled) -> Fault {
    let what = format!(
        "{stalled}; this request is part of it or waits for it, and completes or fails when that \
         responds: see the log and `ctl changes`"
    );
    Fault::new(StatusCode::GATEWAY_TIMEOUT, what)
}

/// Executes a request on a thread of its own, since it may block.
pub(super) async fn ask<T: Send + 'static>(
    shared: Shared,
    operation: impl FnOnce(&Keeper) -> Result<T, Fault> + Send + 'static,
) -> JsonResult<T> {
    let keeper = Arc::clone(&shared.keeper);
    work(move || operation(&keeper)).await.map(Json)
}

/// A JSON body.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Fault;

    async fn from_request(request: Request, state: &S) -> Result<Self, Fault> {
        parsed(&bytes(request, state).await?).map(Self)
    }
}

/// No body, or an object without keys.
pub(super) struct NoBody;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

impl<S: Send + Sync> FromRequest<S> for NoBody {
    type Rejection = Fault;

    async fn from_request(request: Request, state: &S) -> Result<Self, Fault> {
        let bytes = bytes(request, state).await?;
        if !bytes.is_empty() {
            let Nothing {} = parsed(&bytes)?;
        }
        Ok(Self)
    }
}

async fn bytes<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, Fault> {
    let bytes = Bytes::from_request(request, state).await;
    bytes.map_err(|error| bad(format!("the body could not be read: {error}")))
}

fn parsed<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Fault> {
    // serde also accepts a struct as a list of its values.
    if bytes.trim_ascii_start().starts_with(b"[") {
        let what = "the body is a list and must be an object; see GET /openapi.json";
        return Err(bad(what.to_owned()));
    }
    let parsed = serde_json::from_slice(bytes);
    parsed.map_err(|error| bad(format!("the body is invalid: {error}")))
}

fn bad(what: String) -> Fault {
    Fault::new(StatusCode::BAD_REQUEST, what)
}
