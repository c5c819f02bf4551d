//! What developers ask for, and what becomes of it.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use stores::admin::{By, CapacityRequest, Decided, Decision, RequestState, Requested, RequestsOf};
use utoipa::ToSchema;

use super::admin::{by, in_range};
use super::{CANONICAL, Canonical, refused, unknown, usage_of};
use crate::answer::shown_ms;
use crate::http::boards::id;
use crate::http::params::{PageQuery, Params, Path};
use crate::http::problem::{Kind, Problem, ProblemShape};
use crate::http::{Api, Caller, body, csv, cursor};

/// What is asked for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ask {
    /// How many athletes the application would like to connect at once: more than it may now.
    athlete_capacity: i64,
    /// Why: at most 1,024 bytes.
    reason: Option<String>,
    /// Who asks: at most 1,024 bytes; "http" if left out.
    by: Option<String>,
}

/// What is decided.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Decide {
    /// granted or refused.
    state: String,
    /// The capacity that is granted, where it is not the one that was asked for.
    athlete_capacity: Option<i64>,
    /// For who asked: at most 1,024 bytes.
    answer: Option<String>,
    /// Who decides: at most 1,024 bytes; "http" if left out.
    by: Option<String>,
}

/// A request for a higher capacity.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct RequestShown {
    /// Its number, which rises.
    id: i64,
    application_id: i64,
    /// The capacity that is asked for.
    athlete_capacity: i64,
    reason: Option<String>,
    asked_by: String,
    /// In UTC.
    asked_at: String,
    /// open, granted or refused.
    state: &'static str,
    /// The capacity that the application had from then on, where it was granted.
    granted_capacity: Option<i64>,
    decided_by: Option<String>,
    /// In UTC.
    decided_at: Option<String>,
    answer: Option<String>,
}

/// A page of requests.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct Requests {
    /// Newest first.
    requests: Vec<RequestShown>,
    /// Where the next page begins; null on the last one.
    cursor: Option<String>,
    provenance: Canonical,
}

impl From<CapacityRequest> for RequestShown {
    fn from(request: CapacityRequest) -> Self {
        let (decided_by, answer) = match request.decided {
            Some(By { actor, reason }) => (Some(actor), reason),
            None => (None, None),
        };
        Self {
            id: request.id,
            application_id: request.application_id,
            athlete_capacity: request.athlete_capacity,
            reason: request.asked.reason,
            asked_by: request.asked.actor,
            asked_at: shown_ms(request.asked_at_ms),
            state: request.state.name(),
            granted_capacity: request.granted_capacity,
            decided_by,
            decided_at: request.decided_at_ms.map(shown_ms),
            answer,
        }
    }
}

/// Asks for a higher capacity. Of an application one request is open at most.
#[utoipa::path(
    post,
    path = "/api/v1/applications/{id}/capacity-requests",
    tag = "applications",
    params(("id" = i64, Path, description = "The application")),
    request_body = Ask,
    responses(
        (status = 201, description = "Written down", body = RequestShown),
        (status = 400, description = "The body can't be used, or asks for no more than there is", body = ProblemShape, content_type = "application/problem+json"),
        (status = 404, description = "No such application", body = ProblemShape, content_type = "application/problem+json"),
        (status = 409, description = "There is an open one, which stands in the problem as `request`", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn ask(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Path(application): Path<String>,
    uri: Uri,
    request: Request,
) -> Result<Response, Problem> {
    Params::read(&uri, &[])?;
    let application = id("id", &application)?;
    let example = "{\"athlete_capacity\": 100, \"reason\": \"we launch in May\"}";
    let asked: Ask = body::object(&api, request, example).await?;
    in_range("athlete_capacity", asked.athlete_capacity)?;
    let by = by(&caller, asked.by, ("reason", asked.reason))?;
    let now_ms = api.ports.clock.now_ms();
    let canon = &api.ports.canon;
    let made = canon.request_capacity(application, asked.athlete_capacity, &by, now_ms);
    match made.await? {
        Requested::New(request) => {
            Ok((StatusCode::CREATED, Json(RequestShown::from(request))).into_response())
        }
        Requested::Open(request) => {
            let detail = format!(
                "application {application} asked for a capacity of {} already, and nobody has decided: wait for it",
                request.athlete_capacity
            );
            Err(with_request(
                Kind::RequestOpen.with_detail(detail),
                request,
            ))
        }
        Requested::Enough { athlete_capacity } => Err(Kind::BadBody.with_detail(format!(
                "athlete_capacity: application {application} has a capacity of {athlete_capacity} already; ask for more than that"
            ))),
        Requested::UnknownApplication => Err(unknown(application)),
    }
}

/// The problem with the request that it is about.
fn with_request(problem: Problem, request: CapacityRequest) -> Problem {
    let shown = serde_json::to_value(RequestShown::from(request));
    problem.with("request", shown.unwrap_or_default())
}

/// Requests of all applications for a higher capacity.
#[utoipa::path(
    get,
    path = "/api/v1/capacity-requests",
    tag = "applications",
    params(
        ("state" = Option<String>, Query, description = "open, granted or refused; all if left out"),
        PageQuery
    ),
    responses(
        (status = 200, description = "Requests, newest first", body = Requests)
    )
)]
pub(crate) async fn all(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    listed(&api, &uri, None).await
}

/// Requests of an application for a higher capacity.
#[utoipa::path(
    get,
    path = "/api/v1/applications/{id}/capacity-requests",
    tag = "applications",
    params(
        ("id" = i64, Path, description = "The application"),
        ("state" = Option<String>, Query, description = "open, granted or refused; all if left out"),
        PageQuery
    ),
    responses(
        (status = 200, description = "Requests, newest first", body = Requests),
        (status = 404, description = "No such application", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn of_application(
    State(api): State<Arc<Api>>,
    Path(application): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let application = id("id", &application)?;
    listed(&api, &uri, Some(application)).await
}

async fn listed(
    api: &Arc<Api>,
    uri: &Uri,
    application_id: Option<i64>,
) -> Result<Response, Problem> {
    let (params, query) = PageQuery::read(uri, &["state"])?;
    let states = RequestState::ALL.map(|state| (state.name(), state));
    let of = RequestsOf {
        application_id,
        state: params.choice("state", &states)?,
    };
    let question = format!("requests of {application_id:?}?{}", params.question());
    let fingerprint = cursor::fingerprint(&question);
    let before = query.start(fingerprint, cursor::last)?;
    let limit = query.limit;
    let canon = &api.ports.canon;
    let mut found = canon.capacity_requests(of, before, limit + 1).await?;
    if let (Some(application), true) = (application_id, found.is_empty()) {
        usage_of(api, application).await?;
    }
    let after = |last: &CapacityRequest| cursor::after(fingerprint, &last.id);
    let next = cursor::page(&mut found, limit, after);
    let page = Requests {
        requests: found.into_iter().map(RequestShown::from).collect(),
        cursor: next.clone(),
        provenance: CANONICAL,
    };
    Ok(query.answer(uri, next.as_deref(), page, |page| {
        let header = "id,application_id,athlete_capacity,reason,asked_by,asked_at,state,granted_capacity,decided_by,decided_at,answer";
        csv::objects(header, page.requests, None)
    }))
}

/// Grants a request or refuses it. What is granted is the application's capacity from then on, with a record
/// of it; a capacity that is higher already stays.
#[utoipa::path(
    patch,
    path = "/api/v1/capacity-requests/{id}",
    tag = "applications",
    params(("id" = i64, Path, description = "The request")),
    request_body = Decide,
    responses(
        (status = 200, description = "The request as it is now", body = RequestShown),
        (status = 400, description = "The body can't be used, or grants less than there is", body = ProblemShape, content_type = "application/problem+json"),
        (status = 404, description = "No such request, or its application is gone", body = ProblemShape, content_type = "application/problem+json"),
        (status = 409, description = "Somebody has decided already, as `request` in the problem says; or applications are a view of an app's own table", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn decide(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Path(request_id): Path<String>,
    uri: Uri,
    request: Request,
) -> Result<Json<RequestShown>, Problem> {
    Params::read(&uri, &[])?;
    let request_id = id("id", &request_id)?;
    let example = "{\"state\": \"granted\", \"answer\": \"good luck\"}";
    let asked: Decide = body::object(&api, request, example).await?;
    if let Some(capacity) = asked.athlete_capacity {
        in_range("athlete_capacity", capacity)?;
    }
    let decision = match (RequestState::of_name(&asked.state), asked.athlete_capacity) {
        (Some(RequestState::Granted), capacity) => Decision::Grant(capacity),
        (Some(RequestState::Refused), None) => Decision::Refuse,
        (Some(RequestState::Refused), Some(_)) => {
            let detail = "athlete_capacity: nothing is granted by a refusal; leave it out";
            return Err(Kind::BadBody.with_detail(detail));
        }
        (Some(RequestState::Open) | None, _) => {
            let detail = format!("state: {:?} is not granted or refused", asked.state);
            return Err(Kind::BadBody.with_detail(detail));
        }
    };
    let by = by(&caller, asked.by, ("answer", asked.answer))?;
    let now_ms = api.ports.clock.now_ms();
    let decided = api.ports.canon.decide(request_id, decision, &by, now_ms);
    match decided.await.map_err(refused)? {
        Decided::Done { request, .. } => Ok(Json(request.into())),
        Decided::Already(request) => {
            let detail = format!(
                "request {request_id} is {} already: see `request`",
                request.state.name()
            );
            Err(with_request(
                Kind::AlreadyDecided.with_detail(detail),
                request,
            ))
        }
        Decided::Lowers { athlete_capacity } => Err(Kind::BadBody.with_detail(format!(
                "athlete_capacity: the application has a capacity of {athlete_capacity} already, and request {request_id} is still open: grant at least that, or refuse it"
            ))),
        Decided::Unknown => {
            let detail = format!("there is no request {request_id}, or its application is gone");
            Err(Kind::UnknownRequest.with_detail(detail))
        }
    }
}
