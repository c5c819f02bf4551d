//! Applications: their connected athletes and capacity, and connecting athletes.

pub(crate) mod admin;
mod counting;
pub(crate) mod history;
pub(crate) mod limit;
pub(crate) mod list;
pub(crate) mod notices;
pub(crate) mod requests;

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use jobs::{Board, Job};
use schemas::provenance::Provenance;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stores::admin::ApplicationUsage;
use stores::entities::{AuthorizeOutcome, Notification, RevokeOutcome};
use stores::relay::OutboxRelay;
use utoipa::ToSchema;

use self::counting::{CountingResponse, read_recounts};
use super::boards::{count_question, find_board, parse_id, read_boards};
use super::params::{Params, Path};
use super::problem::{Problem, ProblemKind, ProblemShape};
use super::{Api, body};
use crate::answer::{ProvenanceShape, entity_store_provenance};
use crate::board::answer::provenance_of_readings;
use crate::read::ReadPosition;

/// The board of connected athletes.
const APPLICATIONS: &str = "applications";
/// The largest capacity: a number that every JSON reader holds exactly.
const CAPACITY_MAX: i64 = 9_007_199_254_740_991;
/// Maximum number of applications per read of boards, which bounds the live states in memory.
const KEYS_MAX: usize = 64;

/// The owner of an application, for the OpenAPI description.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only describes the schema")]
pub(crate) enum OwnerShape {
    /// A number.
    Id(i64),
    /// A text.
    Name(String),
}

/// An application.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ApplicationResponse {
    pub(crate) id: i64,
    pub(crate) name: String,
    /// The owner as it was ingested: a text or a number.
    #[schema(value_type = OwnerShape)]
    pub(crate) owner: Value,
    /// Number of athletes with at least one authorization that is not revoked.
    pub(crate) connected_athletes: u64,
    /// How the athletes were counted.
    pub(crate) counting: CountingResponse,
    /// Maximum number of connected athletes.
    pub(crate) athlete_capacity: i64,
    /// True if the capacity is enforced.
    pub(crate) enforced: bool,
    /// Connected athletes / capacity, rounded to four decimals. Null if the capacity is 0.
    pub(crate) usage: Option<f64>,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

impl ApplicationResponse {
    fn new(
        usage: ApplicationUsage,
        connected_athletes: u64,
        counting: CountingResponse,
        provenance: Provenance,
    ) -> Self {
        let application = usage.application;
        #[expect(clippy::cast_precision_loss, reason = "it is rounded")]
        let part = connected_athletes as f64 / application.athlete_capacity as f64;
        Self {
            id: application.id,
            name: application.name,
            owner: application.owner,
            connected_athletes,
            counting,
            athlete_capacity: application.athlete_capacity,
            enforced: usage.is_enforced,
            usage: (application.athlete_capacity > 0).then_some((part * 1e4).round() / 1e4),
            provenance,
        }
    }

    /// Updates all fields except the number of athletes and its provenance.
    fn updated(self, usage: ApplicationUsage) -> Self {
        Self::new(
            usage,
            self.connected_athletes,
            self.counting,
            self.provenance,
        )
    }
}

/// The provenance of a response from the entity store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct EntityProvenance {
    /// canonical
    source: &'static str,
    /// Always true: the response has everything that was committed before it.
    complete: bool,
}

const CANONICAL: EntityProvenance = EntityProvenance {
    source: "canonical",
    complete: true,
};

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
    let format = Params::read(&uri, &["format"])?.format()?;
    let application = parse_id("id", &application)?;
    let found = find_usage(&api, application).await?;
    let application = application_response(&api, found).await?;
    Ok(format.respond(application, |application| {
        list::as_csv(std::slice::from_ref(&application), &application.provenance)
    }))
}

/// Connects an athlete to an application, unless its capacity is reached.
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
    Params::read(&uri, &[])?;
    let application_id = parse_id("id", &application)?;
    let wants_page = limit::wants_page(request.headers());
    let ConnectBody { athlete_id } = body::object(&api, request, "{\"athlete_id\": 42}").await?;
    let now_ms = api.ports.clock.now_ms();
    let entities = &api.ports.entities;
    let result = entities.authorize(application_id, athlete_id, now_ms).await;
    let (status, id) = match result.map_err(write_problem)? {
        AuthorizeOutcome::New { id, notification } => {
            publish(&api, &notification).await;
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

/// The problem of a reached capacity, with what the developer can do.
fn capacity_exceeded(application_id: i64, connected: i64, capacity: i64) -> Problem {
    let detail = format!(
        "application {application_id} has {connected} connected athletes and a capacity of {capacity}: its developer can request a higher capacity (POST to capacity_requests), or disconnect athletes"
    );
    let path = format!("/api/v1/applications/{application_id}");
    ProblemKind::CapacityExceeded
        .with_detail(detail)
        .with("application_id", application_id)
        .with("capacity_requests", format!("{path}/capacity-requests"))
        .with("page", format!("{path}/limit"))
        .with("connected_athletes", connected)
        .with("athlete_capacity", capacity)
}

/// Revokes all authorizations of an athlete for an application. A line of one of them that is
/// ingested later applies again, unless its version is older.
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
    Params::read(&uri, &[])?;
    let application = parse_id("id", &application)?;
    let athlete = parse_id("athlete_id", &athlete)?;
    let now_ms = api.ports.clock.now_ms();
    let revoked = api
        .ports
        .entities
        .revoke(application, athlete, now_ms)
        .await;
    match revoked.map_err(write_problem)? {
        RevokeOutcome::Done(notification) => {
            if let Some(notification) = &notification {
                publish(&api, notification).await;
            }
            Ok(StatusCode::NO_CONTENT)
        }
        RevokeOutcome::UnknownApplication => Err(unknown_application(application)),
    }
}

/// Publishes a committed change to the log. If that fails, the speed layer publishes it from the
/// outbox later.
async fn publish(api: &Arc<Api>, notification: &Notification) {
    let relay: &OutboxRelay = &api.relay;
    if let Err(error) = relay.send(std::slice::from_ref(notification)).await {
        tracing::warn!(%error, "cannot publish a change to the log: it remains in the outbox");
    }
}

async fn find_usage(api: &Api, id: i64) -> Result<ApplicationUsage, Problem> {
    let found = api.ports.entities.usages_by_id(&[id]).await?.pop();
    found.ok_or_else(|| unknown_application(id))
}

async fn application_response(
    api: &Arc<Api>,
    usage: ApplicationUsage,
) -> Result<ApplicationResponse, Problem> {
    let id = usage.application.id;
    let (mut responses, _) = application_responses(api, vec![usage]).await?;
    responses.pop().ok_or_else(|| unknown_application(id))
}

/// Builds the responses for applications, and their common provenance.
async fn application_responses(
    api: &Arc<Api>,
    usages: Vec<ApplicationUsage>,
) -> Result<(Vec<ApplicationResponse>, Provenance), Problem> {
    let job = find_board(api, APPLICATIONS)?;
    let counting = job.counting();
    let recounted = read_recounts(api, counting, &usages).await?;
    let is_on_board = |usage: &&ApplicationUsage| !recounted.contains_key(&usage.application.id);
    let board_ids: Vec<i64> = usages
        .iter()
        .filter(is_on_board)
        .map(|usage| usage.application.id)
        .collect();
    let oldest_ms = recounted.values().map(|count| count.counted_at_ms).min();
    let (boards, provenance) = count_by_board(api, job, &board_ids, oldest_ms).await?;
    let mut boards = boards.into_iter();
    let responses = usages.into_iter().filter_map(|usage| {
        let recounted = recounted.get(&usage.application.id).copied();
        let counting = CountingResponse::new(counting, &usage, recounted);
        let (count, provenance) = match recounted {
            Some(recounted) => (
                recounted.connected,
                entity_store_provenance(recounted.counted_at_ms),
            ),
            None => boards.next()?,
        };
        Some(ApplicationResponse::new(usage, count, counting, provenance))
    });
    Ok((responses.collect(), provenance))
}

/// Reads the numbers of athletes on the boards of applications, each with its provenance. Also
/// returns the provenance of a response that includes recounted applications, of which the oldest
/// was counted at `oldest_ms`.
async fn count_by_board(
    api: &Arc<Api>,
    job: &Arc<Job<Board>>,
    ids: &[i64],
    oldest_ms: Option<i64>,
) -> Result<(Vec<(u64, Provenance)>, Provenance), Problem> {
    let mut boards = Vec::with_capacity(ids.len());
    let mut position: Option<ReadPosition> = None;
    for chunk in ids.chunks(KEYS_MAX) {
        let reading = read_boards(api, job, count_question(job, chunk.to_vec())).await?;
        let read_position = &reading.read_position;
        position = Some(match position {
            None => read_position.clone(),
            Some(position) => position.min_with(read_position),
        });
        let each = reading.boards_with_positions();
        boards.extend(each.map(|(board, read_position)| (board.clone(), read_position)));
    }
    if let (None, Some(at_ms)) = (&position, oldest_ms) {
        return Ok((Vec::new(), entity_store_provenance(at_ms)));
    }
    let mut position = position.unwrap_or_else(|| ReadPosition::empty(job.source(), 0));
    if let Some(at_ms) = oldest_ms {
        position.as_of_ms = position.as_of_ms.map(|as_of_ms| as_of_ms.min(at_ms));
        position.complete = false;
    }
    let provenance = provenance_of_readings(boards.iter().map(|(board, _)| board), position);
    let each = boards.into_iter().map(|(board, read_position)| {
        let provenance = provenance_of_readings([&board], read_position);
        (board.sum.count, provenance)
    });
    Ok((each.collect(), provenance))
}

/// The problem of a failed write. Rows in another application's database cannot be changed here.
fn write_problem(error: stores::Error) -> Problem {
    match error {
        stores::Error::Refused(why) => ProblemKind::ManagedElsewhere.with_detail(why),
        error => error.into(),
    }
}

fn unknown_application(application: i64) -> Problem {
    ProblemKind::UnknownApplication.with_detail(format!(
        "unknown application {application}: ingest it as a line of applications first"
    ))
}

#[cfg(test)]
#[path = "applications_tests.rs"]
mod tests;
