//! Events and rows that come in over HTTP: read line by line as they come, events into the log and
//! rows into the canonical store.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Uri};
use axum::{Extension, Json};
use bytes::BytesMut;
use schemas::plays::LINE_BYTES_MAX;
use schemas::source::Source;
use serde::Serialize;
use stores::intake::{Intake, IntakePorts};
use utoipa::ToSchema;

use super::body::{Pieces, check_events};
use super::params::{Params, Path};
use super::places::NoPlace;
use super::problem::{Kind, Problem, ProblemShape};
use super::{Api, Caller, Place};

/// How much is read before it is written: a few thousand events.
const CHUNK_BYTES: usize = 1024 * 1024;
pub(crate) const IDEMPOTENCY_KEY: &str = "idempotency-key";
const KEY_BYTES_MAX: usize = 128;
/// The most rejected lines that an answer lists.
const REJECTED_MAX: usize = 10_000;

/// What became of the lines of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Ingested {
    /// Lines that are in the log or in the canonical store now.
    accepted: u64,
    /// Lines that are dead letters now: the first 10,000 of them.
    rejected: Vec<Rejected>,
    /// How many lines are dead letters now, also those that are not listed.
    rejected_count: u64,
    /// Lines that were left out: they are of athletes who were erased.
    erased: u64,
}

/// A line that was not taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Rejected {
    /// The line's number, counted from 1.
    line: u64,
    /// Field, fault and what is expected.
    reason: String,
}

/// Takes events or rows, one JSON object a line. When it answers, every line is durably in the log,
/// in the canonical store or among the dead letters. After an error some lines may be taken: sending
/// all again is safe, since an event that comes again counts once, and a row is the same row. With the
/// header Idempotency-Key, the same for each try, a line that is rejected again is the same dead letter,
/// too. While many are writing, others are asked to come again (429).
#[utoipa::path(
    post,
    path = "/api/v1/ingest/{source}",
    tag = "ingest",
    params(
        ("source" = String, Path, description = "plays, efforts, authorizations, athletes, clubs, follows or applications"),
        ("Content-Encoding" = Option<String>, Header, description = "gzip or zstd if the body is compressed, in one frame or several"),
        ("Idempotency-Key" = Option<String>, Header, description = "A name for this body, the same whenever it is sent again: 1 to 128 letters, digits, -, _, . or :")
    ),
    request_body(content = String, content_type = "application/x-ndjson", description = "JSON lines, at most 64 MiB, also when decompressed"),
    responses(
        (status = 200, description = "What became of the lines", body = Ingested),
        (status = 400, description = "The body broke off, or is not compressed as Content-Encoding says", body = ProblemShape, content_type = "application/problem+json"),
        (status = 404, description = "No such source", body = ProblemShape, content_type = "application/problem+json"),
        (status = 408, description = "The body paused, or came too slowly", body = ProblemShape, content_type = "application/problem+json"),
        (status = 415, description = "Content-Encoding is neither gzip nor zstd, or names several: Accept-Encoding lists what is read", body = ProblemShape, content_type = "application/problem+json"),
        (status = 429, description = "Too many are writing at once, in all or with this key: come again after Retry-After seconds", body = ProblemShape, content_type = "application/problem+json"),
        (status = 413, description = "Too large", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn ingest(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Path(source): Path<String>,
    uri: Uri,
    request: Request,
) -> Result<Json<Ingested>, Problem> {
    Params::read(&uri, &[])?;
    let source: Source = source
        .parse()
        .map_err(|error: schemas::source::UnknownSource| {
            Kind::UnknownSource.with_detail(error.to_string())
        })?;
    let limit = api.options.body_bytes_max;
    let coding = check_events(request.headers(), limit)?;
    let origin = origin(request.headers())?;
    let _place = place(&api, &caller)?;
    let intake = intake(&api, source, &caller).await?;
    let mut lines = Lines {
        intake: &intake,
        origin,
        number: 0,
        ingested: Ingested::default(),
    };
    let mut body = Pieces::new(&api, request.into_body(), coding, limit);
    match lines.take_all(&mut body).await {
        Ok(()) => Ok(Json(lines.ingested)),
        Err(problem) => Err(problem
            .with("accepted", lines.ingested.accepted)
            .with("rejected_count", lines.ingested.rejected_count)),
    }
}

/// Takes one of the `ingests_max` places; one key has a share of them.
pub(super) fn place(api: &Api, caller: &Caller) -> Result<Place, Problem> {
    let key = caller.key_id().map(str::to_owned);
    api.ingests.take(key).map_err(|none| {
        let (most, whose) = match none {
            NoPlace::Full => (api.options.ingests_max, ""),
            NoPlace::Share => (api.options.ingests_share(), " of this key"),
        };
        let detail = format!(
            "{most} bodies{whose} are being taken already: send this one again in a second"
        );
        Kind::TooManyWriters.with_detail(detail)
    })
}

/// The way into the stores of a source, for the lines of a caller.
pub(super) async fn intake(api: &Api, source: Source, caller: &Caller) -> Result<Intake, Problem> {
    let cell = Arc::clone(api.intakes.lock().await.entry(source).or_default());
    let opened = cell.get_or_try_init(async || {
        let ports = IntakePorts {
            log: Arc::clone(&api.ports.ingest),
            canon: Arc::clone(&api.ports.canon) as _,
            suppressions: api.ports.suppressions.clone(),
            clock: Arc::clone(&api.ports.clock),
        };
        let opened = Intake::open(ports, source, api.options.partitions).await;
        opened.map(Arc::new)
    });
    let intake = Intake::clone(opened.await?);
    Ok(match caller.actor() {
        Some(key) => intake.by_key(&key),
        None => intake,
    })
}

/// Where dead letters say they come from: those of the same line of the same origin are the same one. So
/// it is what the asker calls the body, and not the id of the request, which is another for each try.
fn origin(headers: &HeaderMap) -> Result<String, Problem> {
    let Some(key) = headers.get(IDEMPOTENCY_KEY) else {
        return Ok(format!("http/{}", uuid::Uuid::new_v4()));
    };
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(byte);
    let bytes = key.as_bytes();
    match key.to_str() {
        Ok(key) if (1..=KEY_BYTES_MAX).contains(&bytes.len()) && bytes.iter().all(is_name) => {
            Ok(format!("http/key/{key}"))
        }
        _ => Err(Problem::parameter(format!(
            "Idempotency-Key is not 1 to {KEY_BYTES_MAX} letters, digits, -, _, . or :"
        ))),
    }
}

/// Lines on their way into the stores.
struct Lines<'a> {
    intake: &'a Intake,
    origin: String,
    /// The last line that was given to the stores.
    number: u64,
    ingested: Ingested,
}

impl Lines<'_> {
    async fn take_all(&mut self, body: &mut Pieces) -> Result<(), Problem> {
        let mut pending = BytesMut::new();
        // Up to here there is no end of a line.
        let mut searched = 0;
        // Whether the rest of the line that is pending is passed over.
        let mut skipping = false;
        while let Some(data) = body.next().await? {
            let data = if skipping {
                let Some(end) = data.iter().position(|byte| *byte == b'\n') else {
                    continue;
                };
                skipping = false;
                data.slice(end..)
            } else {
                data
            };
            pending.extend_from_slice(&data);
            if pending.len() < CHUNK_BYTES {
                continue;
            }
            let news = pending.get(searched..).unwrap_or_default();
            match news.iter().rposition(|byte| *byte == b'\n') {
                Some(end) => {
                    let lines = pending.split_to(searched + end + 1);
                    searched = 0;
                    self.take(&lines).await?;
                }
                // Of a line that is too long no more is needed to say so.
                None if pending.len() > LINE_BYTES_MAX => {
                    pending.truncate(LINE_BYTES_MAX + 1);
                    searched = pending.len();
                    skipping = true;
                }
                None => searched = pending.len(),
            }
        }
        self.take(&pending).await
    }

    async fn take(&mut self, lines: &[u8]) -> Result<(), Problem> {
        if lines.is_empty() {
            return Ok(());
        }
        let before = self.number;
        let numbered = (before + 1..).zip(lines.split(|byte| *byte == b'\n'));
        let taken = self.intake.take(&self.origin, numbered).await?;
        let ends = lines.iter().filter(|byte| **byte == b'\n').count() as u64;
        self.number = before + ends;
        self.ingested.accepted += taken.accepted;
        self.ingested.erased += taken.erased;
        self.ingested.rejected_count += taken.rejected.len() as u64;
        let room = REJECTED_MAX.saturating_sub(self.ingested.rejected.len());
        let listed = taken.rejected.into_iter().take(room);
        self.ingested.rejected.extend(listed.map(|line| Rejected {
            line: line.line,
            reason: line.reason,
        }));
        Ok(())
    }
}
