//! Ingestion over HTTP: the lines of a body are streamed into the log (events) or the entity store
//! (rows).

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

use super::body::{BodyChunks, check_compressible};
use super::params::{Params, Path};
use super::permits::PermitError;
use super::problem::{Problem, ProblemKind, ProblemShape};
use super::{Api, Caller, Permit};

/// Number of bytes, a few thousand events, that are read before a write.
const CHUNK_BYTES: usize = 1024 * 1024;
pub(crate) const IDEMPOTENCY_KEY: &str = "idempotency-key";
const IDEMPOTENCY_KEY_BYTES_MAX: usize = 128;
/// Maximum number of rejected lines in a response.
const REJECTED_MAX: usize = 10_000;

/// The result of an ingest request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Ingested)]
pub(crate) struct IngestResponse {
    /// Number of lines now in the log or the entity store.
    accepted: u64,
    /// The first 10,000 rejected lines, which are dead letters now.
    rejected: Vec<RejectedLine>,
    /// Number of all rejected lines.
    rejected_count: u64,
    /// Number of lines skipped because they concern erased athletes.
    erased: u64,
}

/// A rejected line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Rejected)]
pub(crate) struct RejectedLine {
    /// The number of the line, from 1.
    line: u64,
    /// The field, the fault, and the expected value.
    reason: String,
}

/// Ingests events or rows, one JSON object per line.
///
/// When the response is sent, every line is durably in the log, in the entity store or among the
/// dead letters. After an error some lines may have been ingested. Sending the body again is safe: a
/// repeated event counts once, and a row is the same row. With the header Idempotency-Key, the same
/// for each attempt, a line that is rejected again is the same dead letter. Responds with 429 when
/// too many clients are writing.
#[utoipa::path(
    post,
    path = "/api/v1/ingest/{source}",
    tag = "ingest",
    params(
        ("source" = String, Path, description = "plays, efforts, authorizations, athletes, clubs, follows or applications"),
        ("Content-Encoding" = Option<String>, Header, description = "gzip or zstd for a compressed body of one or more frames"),
        ("Idempotency-Key" = Option<String>, Header, description = "A name for this body, the same for each attempt: 1 to 128 letters, digits, -, _, . or :")
    ),
    request_body(
        content(
            (String = "application/x-ndjson", example = "{\"id\": 5, \"club_id\": 1, \"athlete_id\": 7}\n"),
            (String = "application/octet-stream")
        ),
        description = "JSON lines, at most 64 MiB after decompression. The content type is not checked"
    ),
    responses(
        (status = 200, description = "Numbers of accepted, rejected and skipped lines", body = IngestResponse),
        (status = 400, description = "The body ended early, or is not compressed as Content-Encoding says", body = ProblemShape, content_type = "application/problem+json"),
        (status = 404, description = "Unknown source", body = ProblemShape, content_type = "application/problem+json"),
        (status = 408, description = "The body paused, or arrived too slowly", body = ProblemShape, content_type = "application/problem+json"),
        (status = 415, description = "Content-Encoding is neither gzip nor zstd, or names several: Accept-Encoding lists the supported ones", body = ProblemShape, content_type = "application/problem+json"),
        (status = 429, description = "Too many concurrent writers, in total or with this key: retry after Retry-After seconds", body = ProblemShape, content_type = "application/problem+json"),
        (status = 413, description = "The body is too large", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn ingest(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Path(source): Path<String>,
    uri: Uri,
    request: Request,
) -> Result<Json<IngestResponse>, Problem> {
    Params::parse(&uri, &[])?;
    let source: Source = source
        .parse()
        .map_err(|error: schemas::source::UnknownSource| {
            ProblemKind::UnknownSource.with_detail(error.to_string())
        })?;
    let limit = api.options.body_bytes_max;
    let coding = check_compressible(request.headers(), limit)?;
    let origin = dead_letter_origin(request.headers())?;
    let _permit = acquire_permit(&api, &caller)?;
    let intake = open_intake(&api, source, &caller).await?;
    let mut ingester = LineIngester {
        intake: &intake,
        origin,
        last_line: 0,
        response: IngestResponse::default(),
    };
    let mut body = BodyChunks::new(&api, request.into_body(), coding, limit);
    match ingester.ingest_all(&mut body).await {
        Ok(()) => Ok(Json(ingester.response)),
        Err(problem) => Err(problem
            .with_extension("accepted", ingester.response.accepted)
            .with_extension("rejected_count", ingester.response.rejected_count)),
    }
}

/// Acquires one of the `ingests_max` permits, of which each key may hold `ingests_per_key`.
pub(super) fn acquire_permit(api: &Api, caller: &Caller) -> Result<Permit, Problem> {
    let key = caller.key_id().map(str::to_owned);
    api.ingest_permits.acquire(key).map_err(|error| {
        let (max, scope) = match error {
            PermitError::PoolLimitReached => (api.options.ingests_max, ""),
            PermitError::OwnerLimitReached => (api.options.ingests_per_key(), " with this key"),
        };
        let detail = format!("{max} bodies{scope} are being ingested already: retry in a second");
        ProblemKind::TooManyWriters.with_detail(detail)
    })
}

/// Returns the intake of a source, which records the caller's key.
pub(super) async fn open_intake(
    api: &Api,
    source: Source,
    caller: &Caller,
) -> Result<Intake, Problem> {
    let cell = Arc::clone(api.intakes.lock().await.entry(source).or_default());
    let opened = cell.get_or_try_init(async || {
        let ports = IntakePorts {
            log: Arc::clone(&api.ports.ingest),
            entities: Arc::clone(&api.ports.entities) as _,
            suppressions: api.ports.suppressions.clone(),
            clock: Arc::clone(&api.ports.clock),
        };
        let opened = Intake::open(ports, source, api.options.partitions).await;
        opened.map(Arc::new)
    });
    let intake = Intake::clone(opened.await?);
    Ok(match caller.actor() {
        Some(key) => intake.with_key(&key),
        None => intake,
    })
}

/// Returns the origin that dead letters record. A line of the same origin is the same dead letter.
/// So the origin is the client's name for the body, not the id of the request, which differs for
/// each attempt.
fn dead_letter_origin(headers: &HeaderMap) -> Result<String, Problem> {
    let Some(key) = headers.get(IDEMPOTENCY_KEY) else {
        return Ok(format!("http/{}", uuid::Uuid::new_v4()));
    };
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(byte);
    let bytes = key.as_bytes();
    match key.to_str() {
        Ok(key)
            if (1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&bytes.len())
                && bytes.iter().all(is_name) =>
        {
            Ok(format!("http/key/{key}"))
        }
        _ => Err(Problem::parameter(format!(
            "Idempotency-Key is not 1 to {IDEMPOTENCY_KEY_BYTES_MAX} letters, digits, -, _, . or :"
        ))),
    }
}

/// Ingests the lines of one body.
struct LineIngester<'a> {
    intake: &'a Intake,
    origin: String,
    /// The number of the last line that was passed to the intake.
    last_line: u64,
    response: IngestResponse,
}

impl LineIngester<'_> {
    async fn ingest_all(&mut self, body: &mut BodyChunks) -> Result<(), Problem> {
        let mut pending = BytesMut::new();
        // The first bytes of `pending`, which contain no end of line.
        let mut searched_bytes = 0;
        // True while the remainder of a too long line is skipped.
        let mut is_skipping = false;
        while let Some(data) = body.next().await? {
            let data = if is_skipping {
                let Some(end) = data.iter().position(|byte| *byte == b'\n') else {
                    continue;
                };
                is_skipping = false;
                data.slice(end..)
            } else {
                data
            };
            pending.extend_from_slice(&data);
            if pending.len() < CHUNK_BYTES {
                continue;
            }
            let unsearched = pending.get(searched_bytes..).unwrap_or_default();
            match unsearched.iter().rposition(|byte| *byte == b'\n') {
                Some(end) => {
                    let lines = pending.split_to(searched_bytes + end + 1);
                    searched_bytes = 0;
                    self.ingest(&lines).await?;
                }
                // The line is too long. Its beginning is enough to reject it.
                None if pending.len() > LINE_BYTES_MAX => {
                    pending.truncate(LINE_BYTES_MAX + 1);
                    searched_bytes = pending.len();
                    is_skipping = true;
                }
                None => searched_bytes = pending.len(),
            }
        }
        self.ingest(&pending).await
    }

    async fn ingest(&mut self, lines: &[u8]) -> Result<(), Problem> {
        if lines.is_empty() {
            return Ok(());
        }
        let last_line = self.last_line;
        let numbered = (last_line + 1..).zip(lines.split(|byte| *byte == b'\n'));
        let outcome = self.intake.ingest(&self.origin, numbered).await?;
        let line_count = lines.iter().filter(|byte| **byte == b'\n').count() as u64;
        self.last_line = last_line + line_count;
        self.response.accepted += outcome.accepted;
        self.response.erased += outcome.erased;
        self.response.rejected_count += outcome.rejected.len() as u64;
        let remaining = REJECTED_MAX.saturating_sub(self.response.rejected.len());
        let listed = outcome.rejected.into_iter().take(remaining);
        self.response
            .rejected
            .extend(listed.map(|line| RejectedLine {
                line: line.line,
                reason: line.reason,
            }));
        Ok(())
    }
}
