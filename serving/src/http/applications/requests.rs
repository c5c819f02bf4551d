//! Requests for a higher capacity, and decisions on them.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use stores::admin::{
    AuditContext, CapacityRequest, CapacityRequestFilter, CapacityRequestOutcome, DecisionOutcome,
    RequestDecision, RequestState,
};
use utoipa::ToSchema;

use super::admin::{TextField, build_audit_context, check_capacity};
use super::entity_store::{
    ENTITY_PROVENANCE, EntityProvenance, find_usage, map_write_error, unknown_application,
};
use crate::answer::format_ms;
use crate::http::boards::parse_id;
use crate::http::params::{PageQuery, Params, Path};
use crate::http::problem::{Problem, ProblemKind, ProblemShape};
use crate::http::{Api, Caller, body, csv, cursor};

/// The body of a request for capacity.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CapacityRequestBody {
    /// The requested capacity, which exceeds the present one.
    athlete_capacity: i64,
    /// The reason, at most 1,024 bytes.
    reason: Option<String>,
    /// The requester, at most 1,024 bytes; default "http".
    by: Option<String>,
}

/// The body of a decision.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DecisionBody {
    /// granted or refused.
    state: String,
    /// The granted capacity, if it differs from the requested one.
    athlete_capacity: Option<i64>,
    /// The answer to the requester, at most 1,024 bytes.
    answer: Option<String>,
    /// The person who decides, at most 1,024 bytes; default "http".
    by: Option<String>,
}

/// A request for a higher capacity.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct CapacityRequestResponse {
    /// The id, which increases with each request.
    id: i64,
    application_id: i64,
    /// The requested capacity.
    athlete_capacity: i64,
    reason: Option<String>,
    asked_by: String,
    /// In UTC.
    asked_at: String,
    /// open, granted or refused.
    state: &'static str,
    /// The capacity after the request was granted.
    granted_capacity: Option<i64>,
    decided_by: Option<String>,
    /// In UTC.
    decided_at: Option<String>,
    answer: Option<String>,
}

/// A page of requests.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = Requests)]
pub(crate) struct CapacityRequestsPage {
    /// Newest first.
    requests: Vec<CapacityRequestResponse>,
    /// The cursor of the next page; null on the last one.
    cursor: Option<String>,
    provenance: EntityProvenance,
}

impl From<CapacityRequest> for CapacityRequestResponse {
    fn from(request: CapacityRequest) -> Self {
        let (decided_by, answer) = match request.decided_by {
            Some(AuditContext { actor, reason }) => (Some(actor), reason),
            None => (None, None),
        };
        Self {
            id: request.id,
            application_id: request.application_id,
            athlete_capacity: request.athlete_capacity,
            reason: request.requested_by.reason,
            asked_by: request.requested_by.actor,
            asked_at: format_ms(request.requested_at_ms),
            state: request.state.name(),
            granted_capacity: request.granted_capacity,
            decided_by,
            decided_at: request.decided_at_ms.map(format_ms),
            answer,
        }
    }
}

/// Requests a higher capacity.
///
/// An application has at most one open request.
#[utoipa::path(
    post,
    path = "/api/v1/applications/{id}/capacity-requests",
    tag = "applications",
    params(("id" = i64, Path, description = "The application")),
    request_body = CapacityRequestBody,
    responses(
        (status = 201, description = "The new request", body = CapacityRequestResponse),
        (status = 400, description = "The body is invalid, or the requested capacity does not exceed the present one", body = ProblemShape, content_type = "application/problem+json"),
        (status = 404, description = "Unknown application", body = ProblemShape, content_type = "application/problem+json"),
        (status = 409, description = "A request is already open; the field `request` of the problem has it", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn request_capacity(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Path(application): Path<String>,
    uri: Uri,
    request: Request,
) -> Result<Response, Problem> {
    Params::parse(&uri, &[])?;
    let application_id = parse_id("id", &application)?;
    let example = "{\"athlete_capacity\": 100, \"reason\": \"we launch in May\"}";
    let body: CapacityRequestBody = body::parse_object(&api, request, example).await?;
    check_capacity("athlete_capacity", body.athlete_capacity)?;
    let reason = TextField {
        name: "reason",
        text: body.reason,
    };
    let audit = build_audit_context(&caller, body.by, reason)?;
    let now_ms = api.ports.clock.now_ms();
    let entities = &api.ports.entities;
    let result = entities.request_capacity(application_id, body.athlete_capacity, &audit, now_ms);
    match result.await? {
        CapacityRequestOutcome::Created(request) => {
            Ok((StatusCode::CREATED, Json(CapacityRequestResponse::from(request))).into_response())
        }
        CapacityRequestOutcome::AlreadyOpen(request) => {
            let detail = format!(
                "application {application_id} already has an open request for a capacity of {}: wait for the decision",
                request.athlete_capacity
            );
            Err(add_request(
                ProblemKind::RequestOpen.with_detail(detail),
                request,
            ))
        }
        CapacityRequestOutcome::AlreadySufficient { athlete_capacity } => Err(ProblemKind::BadBody.with_detail(format!(
                "athlete_capacity: application {application_id} already has a capacity of {athlete_capacity}: request more"
            ))),
        CapacityRequestOutcome::UnknownApplication => Err(unknown_application(application_id)),
    }
}

/// Adds the capacity request that a problem is about.
fn add_request(problem: Problem, request: CapacityRequest) -> Problem {
    let response = serde_json::to_value(CapacityRequestResponse::from(request));
    problem.with_extension("request", response.unwrap_or_default())
}

/// Capacity requests of all applications.
#[utoipa::path(
    get,
    path = "/api/v1/capacity-requests",
    tag = "applications",
    params(
        ("state" = Option<String>, Query, description = "open, granted or refused; default all"),
        PageQuery
    ),
    responses(
        (status = 200, description = "Requests, newest first", body = CapacityRequestsPage)
    )
)]
pub(crate) async fn list_capacity_requests(
    State(api): State<Arc<Api>>,
    uri: Uri,
) -> Result<Response, Problem> {
    list_page(&api, &uri, None).await
}

/// Capacity requests of an application.
#[utoipa::path(
    get,
    path = "/api/v1/applications/{id}/capacity-requests",
    tag = "applications",
    params(
        ("id" = i64, Path, description = "The application"),
        ("state" = Option<String>, Query, description = "open, granted or refused; default all"),
        PageQuery
    ),
    responses(
        (status = 200, description = "Requests, newest first", body = CapacityRequestsPage),
        (status = 404, description = "Unknown application", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn list_application_capacity_requests(
    State(api): State<Arc<Api>>,
    Path(application): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let application = parse_id("id", &application)?;
    list_page(&api, &uri, Some(application)).await
}

async fn list_page(
    api: &Arc<Api>,
    uri: &Uri,
    application_id: Option<i64>,
) -> Result<Response, Problem> {
    let (params, query) = PageQuery::parse(uri, &["state"])?;
    let states = RequestState::ALL.map(|state| (state.name(), state));
    let filter = CapacityRequestFilter {
        application_id,
        state: params.parse_choice("state", &states)?,
    };
    let canonical = format!(
        "requests of {application_id:?}?{}",
        params.canonical_query()
    );
    let fingerprint = cursor::compute_fingerprint(&canonical);
    let before_id = query.decode_start(fingerprint, cursor::decode)?;
    let limit = query.limit;
    let entities = &api.ports.entities;
    let mut requests = entities
        .capacity_requests(filter, before_id, limit + 1)
        .await?;
    if let (Some(application_id), true) = (application_id, requests.is_empty()) {
        find_usage(api, application_id).await?;
    }
    let encode_cursor = |last: &CapacityRequest| cursor::encode(fingerprint, &last.id);
    let next_cursor = cursor::truncate_page(&mut requests, limit, encode_cursor);
    let page = CapacityRequestsPage {
        requests: requests
            .into_iter()
            .map(CapacityRequestResponse::from)
            .collect(),
        cursor: next_cursor.clone(),
        provenance: ENTITY_PROVENANCE,
    };
    Ok(query.respond(uri, next_cursor.as_deref(), page, |page| {
        let header = "id,application_id,athlete_capacity,reason,asked_by,asked_at,state,granted_capacity,decided_by,decided_at,answer";
        csv::write_objects(header, page.requests, None)
    }))
}

/// Grants or refuses a request.
///
/// Granting sets the application's capacity, with a record of the change. A capacity that is
/// already higher stays.
#[utoipa::path(
    patch,
    path = "/api/v1/capacity-requests/{id}",
    tag = "applications",
    params(("id" = i64, Path, description = "The request")),
    request_body = DecisionBody,
    responses(
        (status = 200, description = "The decided request", body = CapacityRequestResponse),
        (status = 400, description = "The body is invalid, or grants less than the present capacity", body = ProblemShape, content_type = "application/problem+json"),
        (status = 404, description = "Unknown request, or its application no longer exists", body = ProblemShape, content_type = "application/problem+json"),
        (status = 409, description = "The request is already decided, see the field `request` of the problem; or applications are managed in another database", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn decide_capacity_request(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Path(request_id): Path<String>,
    uri: Uri,
    request: Request,
) -> Result<Json<CapacityRequestResponse>, Problem> {
    Params::parse(&uri, &[])?;
    let request_id = parse_id("id", &request_id)?;
    let example = "{\"state\": \"granted\", \"answer\": \"good luck\"}";
    let body: DecisionBody = body::parse_object(&api, request, example).await?;
    if let Some(capacity) = body.athlete_capacity {
        check_capacity("athlete_capacity", capacity)?;
    }
    let decision = match (RequestState::from_name(&body.state), body.athlete_capacity) {
        (Some(RequestState::Granted), capacity) => RequestDecision::Grant(capacity),
        (Some(RequestState::Refused), None) => RequestDecision::Refuse,
        (Some(RequestState::Refused), Some(_)) => {
            let detail = "athlete_capacity: a refusal grants nothing; leave the field out";
            return Err(ProblemKind::BadBody.with_detail(detail));
        }
        (Some(RequestState::Open) | None, _) => {
            let detail = format!("state: {:?} is neither granted nor refused", body.state);
            return Err(ProblemKind::BadBody.with_detail(detail));
        }
    };
    let answer = TextField {
        name: "answer",
        text: body.answer,
    };
    let audit = build_audit_context(&caller, body.by, answer)?;
    let now_ms = api.ports.clock.now_ms();
    let result = api
        .ports
        .entities
        .decide_request(request_id, decision, &audit, now_ms);
    match result.await.map_err(map_write_error)? {
        DecisionOutcome::Done { request, .. } => Ok(Json(request.into())),
        DecisionOutcome::AlreadyDecided(request) => {
            let detail = format!(
                "request {request_id} is already {}: see the field `request`",
                request.state.name()
            );
            Err(add_request(
                ProblemKind::AlreadyDecided.with_detail(detail),
                request,
            ))
        }
        DecisionOutcome::WouldLower { athlete_capacity } => Err(ProblemKind::BadBody.with_detail(format!(
                "athlete_capacity: the application already has a capacity of {athlete_capacity}: grant at least that, or refuse request {request_id}"
            ))),
        DecisionOutcome::Unknown => {
            let detail = format!("unknown request {request_id}, or its application no longer exists");
            Err(ProblemKind::UnknownRequest.with_detail(detail))
        }
    }
}
