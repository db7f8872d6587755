//! The paths there are, and what is done at each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request, State};
use axum::http::StatusCode;
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use nvmeof_target_config::Config;
use nvmeof_target_core::{Model, Port, Subsystem};
use nvmeof_wire::Nqn;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use super::queue::Turn;
use super::{Shared, openapi};
use crate::changes::{ChangeError, Edit, Keeper, Outcome, Planned, Resize, Stalled};
use crate::http::{Fault, Refusals, finished, unfinished, work};
use nvmeof_target_address::port_address;
use nvmeof_target_api::NamespaceState;
use nvmeof_target_api::{
    AnaGroupOut, ControllerOut, DocumentIn, DocumentOut, EditsIn, ForgetIn, HostIn, LostOut,
    NamespaceOut, OutcomeOut, PortOut, SavedOut, StatusOut, SubsystemOut, WaitingOut,
};
use nvmeof_target_manage::{Drained, Manager};

/// A path of [`ROUTES`]: what it is, and what answers there.
type Route = (&'static str, fn() -> MethodRouter<Shared>);

/// Every path there is; the OpenAPI description has the same.
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
    ("/openapi.json", || get(described)),
];

/// Everything that is served. More is merged here.
pub(super) fn router(shared: &Shared) -> Router {
    let all = ROUTES.iter();
    let router = all.fold(Router::new(), |router, (path, answers)| {
        router.route(path, answers())
    });
    let watched = crate::watch::routes(&shared.watch);
    finished(
        router.with_state(shared.clone()).merge(watched),
        "GET /openapi.json lists the paths",
    )
}

type Answer<T> = Result<Json<T>, Fault>;

/// What is served, and to whom.
#[utoipa::path(get, path = "/v1/status", responses((status = 200, body = StatusOut)))]
pub(super) async fn status(State(shared): State<Shared>, _: NoBody) -> Answer<StatusOut> {
    ask(shared, |keeper| Ok(status_of(keeper))).await
}

/// The document that is served, with every change made at run time.
#[utoipa::path(get, path = "/v1/document", responses((status = 200, body = DocumentOut)))]
pub(super) async fn document(State(shared): State<Shared>, _: NoBody) -> Answer<DocumentOut> {
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

/// What applying a document would change. Everything it names is opened, so
/// that what is wrong with it is found, and let go again.
#[utoipa::path(
    post,
    path = "/v1/plan",
    request_body = DocumentIn,
    responses((status = 200, body = OutcomeOut), Refusals)
)]
pub(super) async fn plan(
    State(shared): State<Shared>,
    Body(document): Body<DocumentIn>,
) -> Answer<OutcomeOut> {
    in_turn(shared, move |keeper| {
        Ok(planned_out(keeper.plan(&document.name, document.text)?))
    })
    .await
}

/// Serves a document from now on, in the place of the administrator's file and
/// of every change since: all of it, or nothing changes.
#[utoipa::path(
    post,
    path = "/v1/apply",
    request_body = DocumentIn,
    responses((status = 200, body = OutcomeOut), Refusals)
)]
pub(super) async fn apply(
    State(shared): State<Shared>,
    Body(document): Body<DocumentIn>,
) -> Answer<OutcomeOut> {
    change(shared, move |keeper| {
        changed("apply", keeper.apply(document.name, document.text))
    })
    .await
}

/// Reads the administrator's file again and serves what it says, with the
/// changes made at run time.
#[utoipa::path(post, path = "/v1/reload", responses((status = 200, body = OutcomeOut), Refusals))]
pub(super) async fn reload(State(shared): State<Shared>, _: NoBody) -> Answer<OutcomeOut> {
    change(shared, |keeper| changed("reload", keeper.reload())).await
}

/// What a reload would change.
#[utoipa::path(
    post,
    path = "/v1/reload/plan",
    responses((status = 200, body = OutcomeOut), Refusals)
)]
pub(super) async fn plan_reload(State(shared): State<Shared>, _: NoBody) -> Answer<OutcomeOut> {
    in_turn(shared, |keeper| Ok(planned_out(keeper.plan_reload()?))).await
}

/// Changes single things: all of them, or nothing changes. A subsystem with its
/// namespaces is one request: `subsystem_add`, then `namespace_add` for each. To repeat
/// such a request whose answer did not come is no error.
#[utoipa::path(
    post,
    path = "/v1/edits",
    request_body = EditsIn,
    responses((status = 200, body = OutcomeOut), Refusals)
)]
pub(super) async fn edits(
    State(shared): State<Shared>,
    Body(EditsIn { edits, plan }): Body<EditsIn>,
) -> Answer<OutcomeOut> {
    if plan {
        return in_turn(shared, move |keeper| {
            Ok(planned_out(keeper.plan_edit(edits)?))
        })
        .await;
    }
    edit(shared, edits).await
}

/// Gives changes up that are deferred: all of them, or nothing changes. Each is
/// as `GET /v1/document` has it under `deferred`.
#[utoipa::path(
    post,
    path = "/v1/forget",
    request_body = ForgetIn,
    responses((status = 200, body = OutcomeOut), Refusals)
)]
pub(super) async fn forget(
    State(shared): State<Shared>,
    Body(ForgetIn { edits }): Body<ForgetIn>,
) -> Answer<OutcomeOut> {
    change(shared, move |keeper| {
        changed("forget", keeper.forget(&edits))
    })
    .await
}

/// Looks at the size of a file or device again, or changes that of a file.
#[utoipa::path(
    post,
    path = "/v1/resize",
    request_body = Resize,
    responses((status = 200, body = OutcomeOut), Refusals)
)]
pub(super) async fn resize(
    State(shared): State<Shared>,
    Body(wanted): Body<Resize>,
) -> Answer<OutcomeOut> {
    change(shared, move |keeper| {
        changed("resize", keeper.resize(&wanted))
    })
    .await
}

/// Takes the controllers of a host away. It may connect again.
#[utoipa::path(
    post,
    path = "/v1/disconnect",
    request_body = HostIn,
    responses((status = 200, body = LostOut), Refusals)
)]
pub(super) async fn disconnect(
    State(shared): State<Shared>,
    Body(HostIn { host, subsystem }): Body<HostIn>,
) -> Answer<LostOut> {
    change(shared, move |keeper| {
        let host = nqn("host", &host)?;
        let subsystem = subsystem.map(|name| nqn("subsystem", &name)).transpose()?;
        Ok(keeper.disconnect(&host, subsystem.as_ref())[..].into())
    })
    .await
}

/// Takes no new connections, lets commands in flight finish, and lets go of all
/// hosts. What is served stays for when hosts may come again.
#[utoipa::path(post, path = "/v1/drain", responses((status = 200, body = LostOut), Refusals))]
pub(super) async fn drain(State(shared): State<Shared>, _: NoBody) -> Answer<LostOut> {
    let tell = shared.tell;
    // It waits for no other change, and knows itself how long it may take.
    let turn = shared.queue.enter()?.turn().await;
    ask(shared, move |keeper| {
        let _turn = turn;
        let lost = keeper.drain();
        tell(&keeper.manager().status());
        Ok(lost?[..].into())
    })
    .await
}

/// Lets hosts come again after they were let go.
#[utoipa::path(post, path = "/v1/resume", responses((status = 200, body = StatusOut), Refusals))]
pub(super) async fn resume(State(shared): State<Shared>, _: NoBody) -> Answer<StatusOut> {
    change(shared, |keeper| {
        keeper.resume()?;
        Ok(status_of(keeper))
    })
    .await
}

/// Saves the changes made at run time, if they are not.
#[utoipa::path(post, path = "/v1/save", responses((status = 200, body = SavedOut), Refusals))]
pub(super) async fn save(State(shared): State<Shared>, _: NoBody) -> Answer<SavedOut> {
    in_turn(shared, |keeper| {
        let file = keeper.save()?.display().to_string();
        Ok(SavedOut { file })
    })
    .await
}

/// This description.
#[utoipa::path(get, path = "/openapi.json", responses((status = 200, body = Object)))]
pub(super) async fn described(_: NoBody) -> Json<utoipa::openapi::OpenApi> {
    Json(openapi::description())
}

fn names(all: &[Nqn]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

/// What is said of files that lost their names.
type Unlinked = BTreeMap<(String, u32), String>;

/// Those that are switched off as well, in order.
fn namespaces(
    subsystem: &Subsystem,
    model: &Model,
    config: &Config,
    unlinked: &Unlinked,
) -> Vec<NamespaceOut> {
    let nqn = subsystem.nqn.as_str();
    let path_of = |nsid| config.paths().find(|(of, _)| *of == (nqn, nsid));
    let all = subsystem.namespaces().iter().chain(subsystem.disabled());
    let told = all.map(|namespace| NamespaceOut {
        nsid: namespace.nsid,
        // Between two changes one may be there and the other not yet.
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
    let mut told: Vec<_> = told.collect();
    told.sort_unstable_by_key(|one| one.nsid);
    told
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
    let told = manager.ports().into_iter().filter_map(|served| {
        let address = port_address(served.address);
        // Between two changes one may be there and the other not yet.
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
    told.collect()
}

fn status_of(keeper: &Keeper) -> StatusOut {
    let (shown, manager) = (keeper.show(), keeper.manager());
    let (model, drained) = (manager.model(), manager.drained());
    let unlinked = manager.unlinked();
    let subsystems = model.subsystems().iter().map(|one| SubsystemOut {
        nqn: one.nqn.as_str().to_owned(),
        allowed_hosts: one.allowed_hosts.as_deref().map(names),
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
    });
    StatusOut {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        serving: manager.status(),
        drained: drained == Drained::Done,
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
    }
}

fn planned_out(planned: Planned) -> OutcomeOut {
    OutcomeOut {
        changes: planned.plan.to_json_list(),
        dropped: planned.dropped,
        warnings: planned.warnings,
        ..OutcomeOut::default()
    }
}

/// What came of a change, which the log is told too.
fn changed(what: &str, outcome: Result<Outcome, ChangeError>) -> Result<OutcomeOut, Fault> {
    let outcome = outcome.inspect(|outcome| outcome.tell(what));
    told(what, outcome)
}

/// What came of a change that the log knows of unless it was refused.
fn told(what: &str, outcome: Result<Outcome, ChangeError>) -> Result<OutcomeOut, Fault> {
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

fn nqn(key: &str, name: &str) -> Result<Nqn, Fault> {
    Nqn::new(name).map_err(|error| Fault::wrong(key, &format!("{name:?}: {error}")))
}

/// Has the keeper change something, which the service manager hears of: what is
/// served may be other after what failed, too.
async fn change<T: Send + 'static>(
    shared: Shared,
    answer: impl FnOnce(&Keeper) -> Result<T, Fault> + Send + 'static,
) -> Answer<T> {
    let tell = shared.tell;
    in_turn(shared, move |keeper| {
        let answer = answer(keeper);
        tell(&keeper.manager().status());
        answer
    })
    .await
}

/// Has edits made, together with those of others that wait.
async fn edit(shared: Shared, edits: Vec<Edit>) -> Answer<OutcomeOut> {
    let place = shared.queue.enter()?;
    let mut awaited = place.leave(edits);
    let making = async {
        let turn = place.turn().await;
        let made = work({
            let shared = shared.clone();
            move || {
                make_all(&shared, turn);
                Ok(())
            }
        });
        drop(made.await);
        // Others may be making them still.
        std::future::pending::<()>().await;
    };
    let outcome = tokio::select! {
        biased;
        outcome = &mut awaited.outcome => outcome.ok(),
        () = making => None,
        stalled = stalled(&shared) => {
            if awaited.withdraw() {
                return Err(not_begun(&stalled));
            }
            match awaited.outcome.try_recv() {
                Ok(outcome) => Some(outcome),
                Err(_) => return Err(not_finished(&stalled)),
            }
        }
    };
    told("change", outcome.ok_or_else(unfinished)?).map(Json)
}

/// Makes all edits that wait.
fn make_all(shared: &Shared, turn: Turn) {
    // Until it is done, also when nobody waits for the answer any more.
    let _turn = turn;
    let made = shared.keeper.edit_all(|| shared.queue.take());
    if !made.is_empty() {
        (shared.tell)(&shared.keeper.manager().status());
    }
    for (reply, outcome) in made {
        // Where the client is gone there is nobody to be told.
        let _ = reply.send(outcome);
    }
}

/// Has the keeper answer when it is the request's turn: it may wait for a change that is
/// going on, or for a disk.
async fn in_turn<T: Send + 'static>(
    shared: Shared,
    answer: impl FnOnce(&Keeper) -> Result<T, Fault> + Send + 'static,
) -> Answer<T> {
    let place = shared.queue.enter()?;
    let turn = tokio::select! {
        turn = place.turn() => turn,
        stalled = stalled(&shared) => return Err(not_begun(&stalled)),
    };
    let answered = ask(shared.clone(), move |keeper| {
        // Until it is done, also when nobody waits for the answer any more.
        let _turn = turn;
        answer(keeper)
    });
    tokio::select! {
        biased;
        answered = answered => answered,
        stalled = stalled(&shared) => Err(not_finished(&stalled)),
    }
}

/// How often a change that is in progress is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// Waits until a change has been in progress for long.
async fn stalled(shared: &Shared) -> Stalled {
    loop {
        sleep(LOOK.min(shared.queue.patience)).await;
        if let Some(stalled) = shared.keeper.stalled(shared.queue.patience) {
            return stalled;
        }
    }
}

fn not_begun(stalled: &Stalled) -> Fault {
    let what = format!(
        "{stalled}; this request waited for it and changed nothing: see the log, restore what \
         does not respond, then try again"
    );
    Fault::new(StatusCode::SERVICE_UNAVAILABLE, what)
}

fn not_finished(stalled: &Stalled) -> Fault {
    let what = format!(
        "{stalled}; this request is part of it or waits for it, and is done or refused when that \
         responds: see the log and `ctl changes`"
    );
    Fault::new(StatusCode::GATEWAY_TIMEOUT, what)
}

/// Has the keeper answer, on a thread of its own: that may take a while.
async fn ask<T: Send + 'static>(
    shared: Shared,
    answer: impl FnOnce(&Keeper) -> Result<T, Fault> + Send + 'static,
) -> Answer<T> {
    let keeper = Arc::clone(&shared.keeper);
    work(move || answer(&keeper)).await.map(Json)
}

/// A body of JSON.
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
    // serde takes the values of an object as a list, too.
    if bytes.trim_ascii_start().starts_with(b"[") {
        let what = "the body is a list and must be an object; see GET /openapi.json";
        return Err(bad(what.to_owned()));
    }
    let parsed = serde_json::from_slice(bytes);
    parsed.map_err(|error| bad(format!("the body is not what is expected: {error}")))
}

fn bad(what: String) -> Fault {
    Fault::new(StatusCode::BAD_REQUEST, what)
}
