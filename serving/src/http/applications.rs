//! Applications: their connected athletes and capacity, and connecting athletes.

pub(crate) mod admin;
mod counting;
mod entity_store;
pub(crate) mod history;
pub(crate) mod limit;
pub(crate) mod list;
pub(crate) mod notices;
pub(crate) mod requests;
mod response;

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use stores::entities::{AuthorizeOutcome, Notification, RevokeOutcome};
use utoipa::ToSchema;

use self::entity_store::{find_usage, map_write_error, unknown_application};
pub(crate) use self::response::ApplicationResponse;
use self::response::build_application_response;
use super::accept::wants_page;
use super::boards::parse_id;
use super::params::{Params, Path};
use super::problem::{Problem, ProblemKind, ProblemShape};
use super::{Api, body};

/// The athlete to connect.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConnectBody {
    athlete_id: i64,
}

/// A connected athlete.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ConnectResponse {
    /// The id of the new authorization; null if the athlete was already connected.
    id: Option<i64>,
    application_id: i64,
    athlete_id: i64,
}

/// One application.
#[utoipa::path(
    get,
    path = "/api/v1/applications/{id}",
    tag = "applications",
    params(
        ("id" = i64, Path, description = "The application"),
        ("format" = Option<String>, Query, description = "json (default) or csv")
    ),
    responses(
        (status = 200, description = "The application", body = ApplicationResponse),
        (status = 404, description = "Unknown application", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn show_application(
    State(api): State<Arc<Api>>,
    Path(application): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let format = Params::parse(&uri, &["format"])?.parse_format()?;
    let application_id = parse_id("id", &application)?;
    let usage = find_usage(&api, application_id).await?;
    let application = build_application_response(&api, usage).await?;
    Ok(format.respond(application, |application| {
        list::write_csv(std::slice::from_ref(&application), &application.provenance)
    }))
}

/// Connects an athlete, unless the capacity is reached.
#[utoipa::path(
    post,
    path = "/api/v1/applications/{id}/authorizations",
    tag = "applications",
    params(("id" = i64, Path, description = "The application")),
    request_body = ConnectBody,
    responses(
        (status = 201, description = "Connected", body = ConnectResponse),
        (status = 200, description = "Was already connected", body = ConnectResponse),
        (status = 403, description = "The capacity is reached. The response is an HTML page if the client prefers text/html to JSON", body = ProblemShape, content_type = "application/problem+json"),
        (status = 404, description = "Unknown application", body = ProblemShape, content_type = "application/problem+json"),
        (status = 409, description = "The athlete was deleted or erased", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn connect_athlete(
    State(api): State<Arc<Api>>,
    Path(application): Path<String>,
    uri: Uri,
    request: Request,
) -> Result<Response, Problem> {
    Params::parse(&uri, &[])?;
    let application_id = parse_id("id", &application)?;
    let wants_page = wants_page(request.headers());
    let ConnectBody { athlete_id } =
        body::parse_object(&api, request, "{\"athlete_id\": 42}").await?;
    let now_ms = api.ports.clock.now_ms();
    let entities = &api.ports.entities;
    let result = entities.authorize(application_id, athlete_id, now_ms).await;
    let (status, id) = match result.map_err(map_write_error)? {
        AuthorizeOutcome::New { id, notification } => {
            publish_change(&api, &notification).await;
            (StatusCode::CREATED, Some(id))
        }
        AuthorizeOutcome::AlreadyConnected => (StatusCode::OK, None),
        AuthorizeOutcome::CapacityReached {
            connected,
            capacity,
        } => {
            if wants_page {
                let mut usage = find_usage(&api, application_id).await?;
                usage.connected = Some(connected);
                usage.application.athlete_capacity = capacity;
                usage.is_enforced = true;
                let now_ms = api.ports.clock.now_ms();
                return Ok(limit::render_page(StatusCode::FORBIDDEN, &usage, now_ms));
            }
            return Err(capacity_exceeded(application_id, connected, capacity));
        }
        AuthorizeOutcome::UnknownApplication => return Err(unknown_application(application_id)),
        AuthorizeOutcome::AthleteErased => {
            let detail = "the athlete was erased, so this id can't connect to applications: use a new athlete id";
            return Err(ProblemKind::AthleteErased.with_detail(detail));
        }
        AuthorizeOutcome::AthleteDeleted => {
            return Err(ProblemKind::AthleteDeleted.with_detail(format!(
                    "athlete {athlete_id} was deleted and can't connect to application {application_id}: to restore the athlete, ingest a line of `athletes` without `deleted`"
                )));
        }
    };
    let connected = ConnectResponse {
        id,
        application_id,
        athlete_id,
    };
    Ok((status, Json(connected)).into_response())
}

/// Builds the problem of a reached capacity, which tells the developer how to continue.
fn capacity_exceeded(application_id: i64, connected: i64, capacity: i64) -> Problem {
    let detail = format!(
        "application {application_id} has {connected} connected athletes and a capacity of {capacity}: its developer can request a higher capacity (POST to capacity_requests), or disconnect athletes"
    );
    let path = format!("/api/v1/applications/{application_id}");
    ProblemKind::CapacityExceeded
        .with_detail(detail)
        .with_extension("application_id", application_id)
        .with_extension("capacity_requests", format!("{path}/capacity-requests"))
        .with_extension("page", format!("{path}/limit"))
        .with_extension("connected_athletes", connected)
        .with_extension("athlete_capacity", capacity)
}

/// Revokes all authorizations of an athlete for an application.
///
/// A line of one of them that is ingested later applies again, unless its version is older.
#[utoipa::path(
    delete,
    path = "/api/v1/applications/{id}/authorizations/{athlete_id}",
    tag = "applications",
    params(
        ("id" = i64, Path, description = "The application"),
        ("athlete_id" = i64, Path, description = "The athlete")
    ),
    responses(
        (status = 204, description = "The athlete is no longer connected"),
        (status = 404, description = "Unknown application", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn disconnect_athlete(
    State(api): State<Arc<Api>>,
    Path((application, athlete)): Path<(String, String)>,
    uri: Uri,
) -> Result<StatusCode, Problem> {
    Params::parse(&uri, &[])?;
    let application_id = parse_id("id", &application)?;
    let athlete_id = parse_id("athlete_id", &athlete)?;
    let now_ms = api.ports.clock.now_ms();
    let result = api
        .ports
        .entities
        .revoke(application_id, athlete_id, now_ms)
        .await;
    match result.map_err(map_write_error)? {
        RevokeOutcome::Done(notification) => {
            if let Some(notification) = &notification {
                publish_change(&api, notification).await;
            }
            Ok(StatusCode::NO_CONTENT)
        }
        RevokeOutcome::UnknownApplication => Err(unknown_application(application_id)),
    }
}

/// Publishes a committed change to the log. If that fails, the speed layer publishes it from the
/// outbox later.
async fn publish_change(api: &Arc<Api>, notification: &Notification) {
    if let Err(error) = api.relay.send(std::slice::from_ref(notification)).await {
        tracing::warn!(%error, "cannot publish a change to the log: it remains in the outbox");
    }
}
