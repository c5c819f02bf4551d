//! Applications: how many athletes are connected, how many may be, and connecting them.

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
use stores::admin::Usage;
use stores::canon::{Authorized, Notification, Revoked};
use stores::relay::Relay;
use utoipa::ToSchema;

use self::counting::{CountingShown, recounted};
use super::boards::{find, id, read_boards, sums_of};
use super::params::{Params, Path};
use super::problem::{Kind, Problem, ProblemShape};
use super::{Api, body};
use crate::answer::{ProvenanceShape, counted};
use crate::board::answer::of_reading;
use crate::read::Standing;

/// The board of connected athletes.
const APPLICATIONS: &str = "applications";
/// The largest capacity: a number that every JSON reader holds exactly.
const CAPACITY_MAX: i64 = 9_007_199_254_740_991;
/// Applications whose athletes are counted at once. It bounds how many live states are in memory: of most
/// there are few, or a sum. Those whose sums do not answer are read fewer at once.
const KEYS_MAX: usize = 64;

/// Whose an application is, for the API's description.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only describes the schema")]
pub(crate) enum OwnerShape {
    /// As a number.
    Id(i64),
    /// As a text.
    Name(String),
}

/// An application.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ApplicationShown {
    pub(crate) id: i64,
    pub(crate) name: String,
    /// Whose it is, as it was given: a text or a number.
    #[schema(value_type = OwnerShape)]
    pub(crate) owner: Value,
    /// Different athletes with an authorization that was not taken back.
    pub(crate) connected_athletes: u64,
    /// How these were counted.
    pub(crate) counting: CountingShown,
    /// How many may be connected at once.
    pub(crate) athlete_capacity: i64,
    /// Whether no more are let in than that.
    pub(crate) enforced: bool,
    /// Connected athletes by capacity, with four digits: 0.8 for 80 %; null where nobody may be connected.
    pub(crate) usage: Option<f64>,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

impl ApplicationShown {
    fn of(
        usage: Usage,
        connected_athletes: u64,
        (counting, provenance): (CountingShown, Provenance),
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

    /// Shows what has been read later, besides the number of athletes.
    fn now(self, usage: Usage) -> Self {
        let counted = (self.counting, self.provenance);
        Self::of(usage, self.connected_athletes, counted)
    }
}

/// Where an answer comes from that is not of a view: from the canonical store, as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Canonical {
    /// canonical
    source: &'static str,
    /// true: it is what is committed at the moment of the answer.
    complete: bool,
}

const CANONICAL: Canonical = Canonical {
    source: "canonical",
    complete: true,
};

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

/// One application.
#[utoipa::path(
    get,
    path = "/api/v1/applications/{id}",
    tag = "applications",
    params(
        ("id" = i64, Path, description = "The application"),
        ("format" = Option<String>, Query, description = "json or csv")
    ),
    responses(
        (status = 200, description = "The application", body = ApplicationShown),
        (status = 404, description = "No such application", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn show(
    State(api): State<Arc<Api>>,
    Path(application): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let format = Params::read(&uri, &["format"])?.format()?;
    let application = id("id", &application)?;
    let found = usage_of(&api, application).await?;
    let shown = one(&api, found).await?;
    Ok(format.answer(shown, |shown| {
        list::as_csv(std::slice::from_ref(&shown), &shown.provenance)
    }))
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
        (status = 403, description = "There is no room: as many athletes are connected as may be. A page instead of a document where text/html is wanted rather than JSON", body = ProblemShape, content_type = "application/problem+json"),
        (status = 404, description = "No such application", body = ProblemShape, content_type = "application/problem+json"),
        (status = 409, description = "The athlete was deleted, or erased", body = ProblemShape, content_type = "application/problem+json")
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
    let wants_page = limit::wants_page(request.headers());
    let Connect { athlete_id } = body::object(&api, request, "{\"athlete_id\": 42}").await?;
    let now_ms = api.ports.clock.now_ms();
    let canon = &api.ports.canon;
    let made = canon.authorize(application_id, athlete_id, now_ms).await;
    let (status, id) = match made.map_err(refused)? {
        Authorized::New { id, notification } => {
            tell(&api, &notification).await;
            (StatusCode::CREATED, Some(id))
        }
        Authorized::Already => (StatusCode::OK, None),
        Authorized::Full {
            connected,
            capacity,
        } => {
            if wants_page {
                let mut usage = usage_of(&api, application_id).await?;
                usage.connected = Some(connected);
                usage.application.athlete_capacity = capacity;
                usage.is_enforced = true;
                let now_ms = api.ports.clock.now_ms();
                return Ok(limit::page(StatusCode::FORBIDDEN, &usage, now_ms));
            }
            return Err(full(application_id, connected, capacity));
        }
        Authorized::UnknownApplication => return Err(unknown(application_id)),
        Authorized::AthleteErased => {
            let what = "this athlete was erased and can't connect to an application; whoever comes back comes under another id";
            return Err(Kind::AthleteErased.with_detail(what));
        }
        Authorized::AthleteDeleted => {
            return Err(Kind::AthleteDeleted.with_detail(format!(
                    "athlete {athlete_id} was deleted and can't connect to application {application_id}; a line of `athletes` that does not say `deleted` brings the athlete back"
                )));
        }
    };
    let connected = Connected {
        id,
        application_id,
        athlete_id,
    };
    Ok((status, Json(connected)).into_response())
}

/// That an application is full, and what its developer can do.
fn full(application_id: i64, connected: i64, capacity: i64) -> Problem {
    let what = format!(
        "application {application_id} has {connected} connected athletes and a capacity of {capacity}: its developer can ask for a higher capacity (POST to capacity_requests), or disconnect athletes"
    );
    let under = format!("/api/v1/applications/{application_id}");
    Kind::CapacityExceeded
        .with_detail(what)
        .with("application_id", application_id)
        .with("capacity_requests", format!("{under}/capacity-requests"))
        .with("page", format!("{under}/limit"))
        .with("connected_athletes", connected)
        .with("athlete_capacity", capacity)
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
        (status = 404, description = "No such application", body = ProblemShape, content_type = "application/problem+json")
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
    let revoked = api.ports.canon.revoke(application, athlete, now_ms).await;
    match revoked.map_err(refused)? {
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
async fn tell(api: &Arc<Api>, notification: &Notification) {
    let relay: &Relay = &api.relay;
    if let Err(error) = relay.send(std::slice::from_ref(notification)).await {
        tracing::warn!(%error, "a change waits in the outbox");
    }
}

async fn usage_of(api: &Api, id: i64) -> Result<Usage, Problem> {
    let found = api.ports.canon.usages_of(&[id]).await?.pop();
    found.ok_or_else(|| unknown(id))
}

async fn one(api: &Arc<Api>, usage: Usage) -> Result<ApplicationShown, Problem> {
    let id = usage.application.id;
    let (mut shown, _) = shown(api, vec![usage]).await?;
    shown.pop().ok_or_else(|| unknown(id))
}

/// Applications with the number of athletes that are connected to each, and where all of it is from.
async fn shown(
    api: &Arc<Api>,
    usages: Vec<Usage>,
) -> Result<(Vec<ApplicationShown>, Provenance), Problem> {
    let job = find(api, APPLICATIONS)?;
    let counting = job.counting();
    let recounted = recounted(api, counting, &usages).await?;
    let of_board = |usage: &&Usage| !recounted.contains_key(&usage.application.id);
    let asked: Vec<i64> = usages
        .iter()
        .filter(of_board)
        .map(|usage| usage.application.id)
        .collect();
    let oldest_ms = recounted.values().map(|of| of.counted_at_ms).min();
    let (boards, provenance) = counted_by_board(api, job, &asked, oldest_ms).await?;
    let mut boards = boards.into_iter();
    let shown = usages.into_iter().filter_map(|usage| {
        let recounted = recounted.get(&usage.application.id).copied();
        let counting = CountingShown::of(counting, &usage, recounted);
        let (count, provenance) = match recounted {
            Some(recounted) => (recounted.connected, counted(recounted.counted_at_ms)),
            None => boards.next()?,
        };
        Some(ApplicationShown::of(usage, count, (counting, provenance)))
    });
    Ok((shown.collect(), provenance))
}

/// The athletes on the boards of applications, each with where it is from; and where all of an answer is from that
/// holds these, and others that were counted anew at `oldest_ms` or later.
async fn counted_by_board(
    api: &Arc<Api>,
    job: &Arc<Job<Board>>,
    asked: &[i64],
    oldest_ms: Option<i64>,
) -> Result<(Vec<(u64, Provenance)>, Provenance), Problem> {
    let mut boards = Vec::with_capacity(asked.len());
    let mut reach: Option<Standing> = None;
    for some in asked.chunks(KEYS_MAX) {
        let reading = read_boards(api, job, sums_of(job, some.to_vec())).await?;
        let standing = &reading.standing;
        reach = Some(match reach {
            None => standing.clone(),
            Some(reach) => reach.least(standing),
        });
        let each = reading.each();
        boards.extend(each.map(|(board, standing)| (board.clone(), standing)));
    }
    if let (None, Some(at_ms)) = (&reach, oldest_ms) {
        return Ok((Vec::new(), counted(at_ms)));
    }
    let mut reach = reach.unwrap_or_else(|| Standing::nothing(job.source(), 0));
    if let Some(at_ms) = oldest_ms {
        reach.as_of_ms = reach.as_of_ms.map(|as_of_ms| as_of_ms.min(at_ms));
        reach.complete = false;
    }
    let provenance = of_reading(boards.iter().map(|(board, _)| board), reach);
    let each = boards.into_iter().map(|(board, standing)| {
        let provenance = of_reading([&board], standing);
        (board.sum.count, provenance)
    });
    Ok((each.collect(), provenance))
}

/// The problem of a change that is refused, since what it would change is an app's own.
fn refused(error: stores::Error) -> Problem {
    match error {
        stores::Error::Refused(why) => Kind::ManagedElsewhere.with_detail(why),
        error => error.into(),
    }
}

fn unknown(application: i64) -> Problem {
    Kind::UnknownApplication.with_detail(format!(
        "there is no application {application}: ingest it as a line of applications first"
    ))
}

#[cfg(test)]
#[path = "applications_tests.rs"]
mod tests;
