//! Applications: how many athletes are connected, how many may be, and connecting them.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use schemas::entities::Application;
use schemas::provenance::Provenance;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stores::canon::{Authorized, Notification, Revoked};
use stores::relay::Relay;
use utoipa::ToSchema;

use super::boards::{find, id, read_boards, whole_section};
use super::layers::in_time;
use super::params::{Format, Params, Path};
use super::problem::{Kind, Problem, ProblemShape};
use super::stats::link_to_next;
use super::{Api, body, csv, cursor};
use crate::answer::ProvenanceShape;
use crate::board::answer::of_reading;
use crate::board::read::{BoardQuestion, Want};
use crate::read::Standing;

/// The board of connected athletes.
const APPLICATIONS: &str = "applications";
/// The largest capacity: a number that every JSON reader holds exactly.
const CAPACITY_MAX: i64 = 9_007_199_254_740_991;
/// Applications whose athletes are counted at once: bounds how many live states are in memory.
const KEYS_MAX: usize = 32;

/// An application.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct ApplicationShown {
    id: i64,
    name: String,
    /// Whose it is, as it was given: a text or a number.
    #[schema(value_type = Object)]
    owner: Value,
    /// Different athletes with an authorization that was not taken back.
    connected_athletes: u64,
    /// How many may be connected at once.
    athlete_capacity: i64,
    #[schema(value_type = ProvenanceShape)]
    provenance: Provenance,
}

/// A page of applications.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct Applications {
    /// By id.
    applications: Vec<ApplicationShown>,
    /// Where the next page begins; null on the last one.
    cursor: Option<String>,
    #[schema(value_type = ProvenanceShape)]
    provenance: Provenance,
}

/// What can be changed of an application.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Change {
    /// How many athletes may be connected at once, from 0 on. Those that are connected stay.
    athlete_capacity: i64,
}

/// Who is to be connected.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Connect {
    athlete_id: i64,
}

/// That an athlete is connected.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Connected {
    /// The new authorization; null if the athlete was connected already.
    id: Option<i64>,
    application_id: i64,
    athlete_id: i64,
}

/// The applications.
#[utoipa::path(
    get,
    path = "/api/v1/applications",
    tag = "applications",
    params(
        ("limit" = Option<usize>, Query, description = "Applications of a page, at most 1,000; 50 if left out"),
        ("cursor" = Option<String>, Query, description = "cursor of the page before"),
        ("format" = Option<String>, Query, description = "json or csv; the header Link leads to the next page")
    ),
    responses(
        (status = 200, description = "A page of applications", body = Applications),
        (status = 400, description = "A parameter can't be used", body = ProblemShape, content_type = "application/problem+json"),
        (status = 503, description = "Not whole yet, or a store does not answer", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn list(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["limit", "cursor", "format"])?;
    let (limit, format) = (params.limit()?, params.format()?);
    let fingerprint = cursor::fingerprint("applications");
    let after = params
        .get("cursor")
        .map(|text| cursor::run(fingerprint, text))
        .transpose()?
        .map(u64::cast_signed);
    let mut found = api.ports.canon.applications(after, limit + 1).await?;
    let more = found.len() > limit;
    found.truncate(limit);
    let last = found.last().map(|application| application.id);
    let next = last
        .filter(|_| more)
        .map(|last| cursor::of_run(fingerprint, last.cast_unsigned()));
    let (applications, provenance) = shown(&api, found).await?;
    let link = next
        .as_deref()
        .and_then(|cursor| link_to_next(&uri, cursor, None));
    let answer = match format {
        Format::Json => Json(Applications {
            applications,
            cursor: next,
            provenance,
        })
        .into_response(),
        Format::Csv => {
            let names = [
                "id",
                "name",
                "owner",
                "connected_athletes",
                "athlete_capacity",
            ];
            let rows = applications.iter().map(|application| {
                let owner = match &application.owner {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                let counts = (application.connected_athletes, application.athlete_capacity);
                (application.id, application.name.clone(), owner, counts)
            });
            csv::list(&names, rows.collect(), Some(&provenance))
        }
    };
    Ok((link.map(|link| [link]), answer).into_response())
}

/// One application.
#[utoipa::path(
    get,
    path = "/api/v1/applications/{id}",
    tag = "applications",
    params(("id" = i64, Path, description = "The application")),
    responses(
        (status = 200, description = "The application", body = ApplicationShown),
        (status = 404, description = "No such application", body = ProblemShape, content_type = "application/problem+json"),
        (status = 503, description = "Not whole yet, or a store does not answer", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn show(
    State(api): State<Arc<Api>>,
    Path(application): Path<String>,
    uri: Uri,
) -> Result<Json<ApplicationShown>, Problem> {
    Params::read(&uri, &[])?;
    let application = id("id", &application)?;
    let found = api.ports.canon.application(application).await?;
    let shown = one(&api, found.ok_or_else(|| unknown(application))?).await?;
    Ok(Json(shown))
}

/// Sets how many athletes may be connected to an application, until it is set again or a line of the
/// application is ingested, which says its capacity too.
#[utoipa::path(
    patch,
    path = "/api/v1/applications/{id}",
    tag = "applications",
    params(("id" = i64, Path, description = "The application")),
    request_body = Change,
    responses(
        (status = 200, description = "The application as it is now", body = ApplicationShown),
        (status = 400, description = "The body can't be used", body = ProblemShape, content_type = "application/problem+json"),
        (status = 404, description = "No such application", body = ProblemShape, content_type = "application/problem+json"),
        (status = 503, description = "Not whole yet, or a store does not answer: ask again", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn change(
    State(api): State<Arc<Api>>,
    Path(application): Path<String>,
    uri: Uri,
    request: Request,
) -> Result<Json<ApplicationShown>, Problem> {
    Params::read(&uri, &[])?;
    let application = id("id", &application)?;
    let Change { athlete_capacity } =
        body::object(&api, request, "{\"athlete_capacity\": 100}").await?;
    if !(0..=CAPACITY_MAX).contains(&athlete_capacity) {
        return Err(Problem::new(
            Kind::BadBody,
            format!("athlete_capacity: {athlete_capacity} is not from 0 to {CAPACITY_MAX}"),
        ));
    }
    let canon = &api.ports.canon;
    // What is answered is read before: if that fails nothing has changed.
    let read = async {
        let found = canon.application(application).await?;
        one(&api, found.ok_or_else(|| unknown(application))?).await
    };
    let mut shown = in_time(&api, read).await??;
    let changed = canon.set_capacity(application, athlete_capacity).await?;
    let changed = changed.ok_or_else(|| unknown(application))?;
    shown.name = changed.name;
    shown.owner = changed.owner;
    shown.athlete_capacity = changed.athlete_capacity;
    Ok(Json(shown))
}

/// Connects an athlete to an application, if there is room.
#[utoipa::path(
    post,
    path = "/api/v1/applications/{id}/authorizations",
    tag = "applications",
    params(("id" = i64, Path, description = "The application")),
    request_body = Connect,
    responses(
        (status = 201, description = "Connected", body = Connected),
        (status = 200, description = "Was connected already", body = Connected),
        (status = 400, description = "The body can't be used", body = ProblemShape, content_type = "application/problem+json"),
        (status = 403, description = "There is no room: as many athletes are connected as may be", body = ProblemShape, content_type = "application/problem+json"),
        (status = 404, description = "No such application", body = ProblemShape, content_type = "application/problem+json"),
        (status = 503, description = "A store does not answer", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn connect(
    State(api): State<Arc<Api>>,
    Path(application): Path<String>,
    uri: Uri,
    request: Request,
) -> Result<Response, Problem> {
    Params::read(&uri, &[])?;
    let application_id = id("id", &application)?;
    let Connect { athlete_id } = body::object(&api, request, "{\"athlete_id\": 42}").await?;
    let now_ms = api.ports.clock.now_ms();
    let canon = &api.ports.canon;
    let (status, id) = match canon.authorize(application_id, athlete_id, now_ms).await? {
        Authorized::New { id, notification } => {
            tell(&api, &notification).await;
            (StatusCode::CREATED, Some(id))
        }
        Authorized::Already => (StatusCode::OK, None),
        Authorized::Full {
            connected,
            capacity,
        } => {
            return Err(Problem::new(
                Kind::CapacityExceeded,
                format!(
                    "application {application_id} has {connected} connected athletes and a capacity of {capacity}: its developer can ask for a higher capacity, or disconnect athletes"
                ),
            )
            .with("connected_athletes", connected)
            .with("athlete_capacity", capacity));
        }
        Authorized::UnknownApplication => return Err(unknown(application_id)),
    };
    let connected = Connected {
        id,
        application_id,
        athlete_id,
    };
    Ok((status, Json(connected)).into_response())
}

/// Takes back all authorizations that an athlete gave to an application. A line of one of them that is
/// ingested later decides again, unless its version is older.
#[utoipa::path(
    delete,
    path = "/api/v1/applications/{id}/authorizations/{athlete_id}",
    tag = "applications",
    params(
        ("id" = i64, Path, description = "The application"),
        ("athlete_id" = i64, Path, description = "The athlete")
    ),
    responses(
        (status = 204, description = "The athlete is not connected now"),
        (status = 404, description = "No such application", body = ProblemShape, content_type = "application/problem+json"),
        (status = 503, description = "A store does not answer", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn disconnect(
    State(api): State<Arc<Api>>,
    Path((application, athlete)): Path<(String, String)>,
    uri: Uri,
) -> Result<StatusCode, Problem> {
    Params::read(&uri, &[])?;
    let application = id("id", &application)?;
    let athlete = id("athlete_id", &athlete)?;
    let now_ms = api.ports.clock.now_ms();
    match api.ports.canon.revoke(application, athlete, now_ms).await? {
        Revoked::Done(notification) => {
            if let Some(notification) = &notification {
                tell(&api, notification).await;
            }
            Ok(StatusCode::NO_CONTENT)
        }
        Revoked::UnknownApplication => Err(unknown(application)),
    }
}

/// Tells the log of a change that is committed. If that fails the change stands all the same, and
/// the speed layer relays it from the outbox.
async fn tell(api: &Api, notification: &Notification) {
    let relay: &Relay = &api.relay;
    if let Err(error) = relay.send(std::slice::from_ref(notification)).await {
        tracing::warn!(%error, "a change waits in the outbox");
    }
}

async fn one(api: &Api, application: Application) -> Result<ApplicationShown, Problem> {
    let id = application.id;
    let (mut shown, _) = shown(api, vec![application]).await?;
    shown.pop().ok_or_else(|| unknown(id))
}

/// Applications with the number of athletes that are connected to each, and where all of it is from.
async fn shown(
    api: &Api,
    applications: Vec<Application>,
) -> Result<(Vec<ApplicationShown>, Provenance), Problem> {
    let job = find(api, APPLICATIONS)?;
    let mut boards = Vec::with_capacity(applications.len());
    let mut reach: Option<Standing> = None;
    for some in applications.chunks(KEYS_MAX) {
        let asked = BoardQuestion {
            keys: some.iter().map(|application| application.id).collect(),
            section: whole_section(job),
            members: None,
            want: Want::Sums,
            earlier_than: None,
        };
        let reading = read_boards(api, job, &asked).await?;
        let standing = &reading.standing;
        reach = Some(match reach {
            None => standing.clone(),
            Some(reach) => reach.least(standing),
        });
        let read = reading.boards.into_iter();
        boards.extend(read.map(|board| (board, standing.clone())));
    }
    let reach = reach.unwrap_or_else(|| Standing::nothing(job.source(), 0));
    let provenance = of_reading(boards.iter().map(|(board, _)| board), reach);
    let shown = applications
        .into_iter()
        .zip(boards)
        .map(|(application, (board, standing))| ApplicationShown {
            id: application.id,
            name: application.name,
            owner: application.owner,
            connected_athletes: board.sum.count,
            athlete_capacity: application.athlete_capacity,
            provenance: of_reading([&board], standing),
        });
    Ok((shown.collect(), provenance))
}

fn unknown(application: i64) -> Problem {
    Problem::new(
        Kind::UnknownApplication,
        format!("there is no application {application}: ingest it as a line of applications first"),
    )
}

#[cfg(test)]
#[path = "applications_tests.rs"]
mod tests;
