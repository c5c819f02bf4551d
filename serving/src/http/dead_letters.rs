//! Dead letters: lists, counts, details, and replays.

mod replay;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use schemas::dead_letter::{DeadLetterId, DeadLetterIdError, reason_kind};
use schemas::source::Source;
use serde::{Deserialize, Serialize};
use stores::dead_letters::{
    self, DeadLetterCounts, DeadLetterFilter, KindCount, NewestDeadLetters, StoredDeadLetter,
};
use utoipa::ToSchema;

use super::params::{PageQuery, Params, Path};
use super::problem::{Problem, ProblemKind, ProblemShape};
use super::{Api, csv, cursor};
use crate::answer::format_ms;
pub(crate) use replay::{__path_replay_dead_letters, ReplayResponse, replay_dead_letters};

/// Maximum number of dead letters that a request examines.
const EXAMINED_LETTERS_MAX: u64 = 200_000;
/// Maximum bytes of an input in a list.
const LISTED_INPUT_BYTES_MAX: usize = 1_024;
/// A page ends with the dead letter that reaches this number of bytes.
const PAGE_BYTES_MAX: usize = 16 << 20;

/// Bytes in a readable form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DeadLetterBytes {
    /// UTF-8 text.
    Text(String),
    /// Other bytes, in hexadecimal.
    Hex(String),
}

/// A dead letter: a rejected input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct DeadLetterResponse {
    /// The id, which is its log position: `TOPIC/PARTITION@OFFSET`.
    pub(crate) id: String,
    /// The source of the input.
    #[schema(value_type = String)]
    pub(crate) source: Source,
    /// The reason without numbers and quoted texts, by which dead letters are counted.
    pub(crate) kind: String,
    /// Why it was rejected: the field, the fault, and the expected value.
    pub(crate) reason: String,
    /// The origin: `FILE:LINE`, or `TOPIC/PARTITION@OFFSET` in the log.
    pub(crate) origin: String,
    /// When it was rejected, in UTC. For a record of the log, when the record was appended.
    pub(crate) at: String,
    /// Number of stored bytes of the input.
    pub(crate) raw_bytes: u64,
    /// The input; in a list its first 1,024 bytes.
    pub(crate) raw: DeadLetterBytes,
    /// True if the record is not a dead letter of Backstitch, but was written by another program.
    pub(crate) broken: bool,
}

/// A page of dead letters.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct DeadLettersPage {
    /// Newest first, by log position. Duplicates appear once per page.
    pub(crate) dead_letters: Vec<DeadLetterResponse>,
    /// The cursor of the next page; null on the last one. A page before the last may have fewer
    /// dead letters than `limit`, or none.
    pub(crate) cursor: Option<String>,
}

/// Dead letters with the same kind of reason.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct DeadLetterKind {
    #[schema(value_type = String)]
    pub(crate) source: Source,
    /// The reason without numbers and quoted texts.
    pub(crate) kind: String,
    /// Number of dead letters.
    pub(crate) letters: u64,
    /// When the first one was rejected, in UTC.
    pub(crate) first_at: String,
    /// When the last one was rejected, in UTC.
    pub(crate) last_at: String,
    /// The id of the last one.
    pub(crate) example: String,
}

/// Numbers of dead letters.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = DeadLetterCounts)]
pub(crate) struct CountsResponse {
    /// By source; the most frequent kind first.
    pub(crate) counts: Vec<DeadLetterKind>,
    /// Number of dead letters of all kinds.
    pub(crate) letters: u64,
    /// Number of examined dead letters, newest first, including those that do not match the
    /// filters.
    pub(crate) looked_at: u64,
    /// True if all dead letters were examined. Otherwise each count is a lower bound.
    pub(crate) complete: bool,
}

impl DeadLetterBytes {
    /// Returns the text, or the hexadecimal digits.
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Text(text) | Self::Hex(text) => text,
        }
    }

    fn new(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Hex(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
        }
    }
}

impl DeadLetterResponse {
    /// Builds the response with at most `raw_bytes_max` bytes of the input.
    fn new(letter: &StoredDeadLetter, raw_bytes_max: usize) -> Self {
        let content = &letter.content;
        Self {
            id: letter.id.to_string(),
            source: letter.id.source,
            kind: reason_kind(&content.reason),
            reason: content.reason.clone(),
            origin: content.origin.clone(),
            at: format_ms(content.at_ms),
            raw_bytes: content.raw.len() as u64,
            raw: DeadLetterBytes::new(content.raw_prefix(raw_bytes_max)),
            broken: letter.is_broken,
        }
    }
}

impl From<KindCount> for DeadLetterKind {
    fn from(count: KindCount) -> Self {
        Self {
            source: count.source,
            kind: count.kind,
            letters: count.letters,
            first_at: format_ms(count.first_at_ms),
            last_at: format_ms(count.last_at_ms),
            example: count.example.to_string(),
        }
    }
}

impl From<DeadLetterCounts> for CountsResponse {
    fn from(counts: DeadLetterCounts) -> Self {
        Self {
            counts: counts.kinds.into_iter().map(DeadLetterKind::from).collect(),
            letters: counts.dead_letters,
            looked_at: counts.examined,
            complete: counts.is_complete,
        }
    }
}

/// Dead letters, newest first.
#[utoipa::path(
    get,
    path = "/api/v1/dead-letters",
    tag = "dead-letters",
    params(
        ("source" = Option<String>, Query, description = "plays, efforts, authorizations, athletes, clubs, follows or applications; default all"),
        ("reason" = Option<String>, Query, description = "Only those with this text in their reason or its kind"),
        ("since" = Option<String>, Query, description = "Only those rejected at this time or later: an instant such as 2026-11-21T00:00:00Z, or a date in UTC"),
        PageQuery
    ),
    responses(
        (status = 200, description = "A page of dead letters", body = DeadLettersPage)
    )
)]
pub(crate) async fn list_dead_letters(
    State(api): State<Arc<Api>>,
    uri: Uri,
) -> Result<Response, Problem> {
    let (params, query) = PageQuery::parse(&uri, &["source", "reason", "since"])?;
    let filter = parse_letter_filter(&params)?;
    let fingerprint =
        cursor::compute_fingerprint(&format!("dead letters?{}", params.canonical_query()));
    let start_positions = query.decode_start(fingerprint, cursor::decode)?;
    let _permit = api.dead_letter_read_permits.acquire().await;
    let mut newest =
        NewestDeadLetters::open(&*api.ports.log, filter, start_positions.as_ref()).await?;
    let (mut letters, mut bytes) = (Vec::new(), 0);
    while letters.len() < query.limit && bytes < PAGE_BYTES_MAX {
        let Some(letter) = newest.next(EXAMINED_LETTERS_MAX).await? else {
            break;
        };
        bytes += letter.bytes();
        letters.push(DeadLetterResponse::new(&letter, LISTED_INPUT_BYTES_MAX));
    }
    let next_cursor =
        (!newest.is_exhausted()).then(|| cursor::encode(fingerprint, &newest.positions()));
    let page = DeadLettersPage {
        dead_letters: letters,
        cursor: next_cursor.clone(),
    };
    let write_csv = |page: DeadLettersPage| write_csv(&page.dead_letters);
    Ok(query.respond(&uri, next_cursor.as_deref(), page, write_csv))
}

/// Numbers of dead letters by source and kind of reason.
///
/// Examines the newest 200,000.
#[utoipa::path(
    get,
    path = "/api/v1/dead-letters/counts",
    tag = "dead-letters",
    params(
        ("source" = Option<String>, Query, description = "plays, efforts, authorizations, athletes, clubs, follows or applications; default all"),
        ("reason" = Option<String>, Query, description = "Only those with this text in their reason or its kind"),
        ("since" = Option<String>, Query, description = "Only those rejected at this time or later: an instant such as 2026-11-21T00:00:00Z, or a date in UTC"),
        ("format" = Option<String>, Query, description = "json (default) or csv")
    ),
    responses(
        (status = 200, description = "The counts, and whether all dead letters were examined", body = CountsResponse)
    )
)]
pub(crate) async fn count_dead_letters(
    State(api): State<Arc<Api>>,
    uri: Uri,
) -> Result<Response, Problem> {
    let params = Params::parse(&uri, &["source", "reason", "since", "format"])?;
    let (filter, format) = (parse_letter_filter(&params)?, params.parse_format()?);
    let _permit = api.dead_letter_read_permits.acquire().await;
    let counts = dead_letters::count(&*api.ports.log, filter, EXAMINED_LETTERS_MAX).await?;
    Ok(format.respond(CountsResponse::from(counts), |counts| write_counts(&counts)))
}

fn write_counts(counts: &CountsResponse) -> Response {
    let header = "source,kind,letters,first_at,last_at,example,complete";
    let rows = counts.counts.iter().map(|count| {
        let mut row = serde_json::to_value(count).unwrap_or_default();
        row["complete"] = counts.complete.into();
        row
    });
    csv::write_objects(header, rows, None)
}

/// One dead letter, with all its stored bytes.
#[utoipa::path(
    get,
    path = "/api/v1/dead-letters/{id}",
    tag = "dead-letters",
    params(("id" = String, Path, description = "The id, percent-encoded: backstitch.plays.v1.dlq%2F0@17")),
    responses(
        (status = 200, description = "The dead letter", body = DeadLetterResponse),
        (status = 404, description = "Unknown id, or the record has expired", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn show_dead_letter(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Json<DeadLetterResponse>, Problem> {
    read_letter_response(&api, &uri, &id).await
}

/// As [`show_dead_letter`], for clients behind a proxy that decodes the slash of the id.
pub(crate) async fn show_dead_letter_decoded(
    State(api): State<Arc<Api>>,
    Path((topic, position)): Path<(String, String)>,
    uri: Uri,
) -> Result<Json<DeadLetterResponse>, Problem> {
    read_letter_response(&api, &uri, &format!("{topic}/{position}")).await
}

async fn read_letter_response(
    api: &Api,
    uri: &Uri,
    id: &str,
) -> Result<Json<DeadLetterResponse>, Problem> {
    Params::parse(uri, &[])?;
    let id: DeadLetterId = id
        .parse()
        .map_err(|error: DeadLetterIdError| Problem::parameter(format!("id: {error}")))?;
    let _permit = api.dead_letter_read_permits.acquire().await;
    let letter = dead_letters::find(&*api.ports.log, id).await?;
    let letter = letter.ok_or_else(|| unknown_dead_letter(id))?;
    Ok(Json(DeadLetterResponse::new(&letter, usize::MAX)))
}

fn unknown_dead_letter(id: DeadLetterId) -> Problem {
    let detail = format!("unknown dead letter {id}: list them at /api/v1/dead-letters");
    ProblemKind::UnknownDeadLetter.with_detail(detail)
}

fn parse_letter_filter(params: &Params) -> Result<DeadLetterFilter, Problem> {
    Ok(DeadLetterFilter {
        source: params.parse_source()?,
        reason: params.get("reason").map(str::to_owned),
        since_ms: params.parse_with("since", |_, text| parse_instant_ms(text))?,
    })
}

/// Parses an instant, or a date as its midnight in UTC. Returns milliseconds since the Unix epoch.
fn parse_instant_ms(text: &str) -> Result<i64, Problem> {
    let midnight = || {
        let date: Date = text.parse().ok()?;
        Some(date.to_zoned(TimeZone::UTC).ok()?.timestamp())
    };
    let instant = text.parse::<Timestamp>().ok().or_else(midnight);
    let instant = instant.ok_or_else(|| {
        Problem::parameter(format!(
            "since={text:?} is not an instant such as 2026-11-21T00:00:00Z, or a date such as 2026-11-21"
        ))
    });
    instant.map(Timestamp::as_millisecond)
}

fn write_csv(letters: &[DeadLetterResponse]) -> Response {
    let header = "id,source,kind,reason,origin,at,raw_bytes,raw_text,raw_hex,broken";
    let rows = letters.iter().map(|letter| {
        let mut row = serde_json::to_value(letter).unwrap_or_default();
        for (name, encoding) in [("raw_text", "text"), ("raw_hex", "hex")] {
            row[name] = row["raw"][encoding].clone();
        }
        row
    });
    csv::write_objects(header, rows, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_instants_and_dates() {
        assert_eq!(parse_instant_ms("1970-01-02").unwrap(), 86_400_000);
        assert_eq!(parse_instant_ms("1970-01-01T00:00:01Z").unwrap(), 1_000);
        assert_eq!(parse_instant_ms("1970-01-01T01:00:00+01:00").unwrap(), 0);
        for wrong in ["", "yesterday", "1970-02-30", "1"] {
            let problem = parse_instant_ms(wrong).unwrap_err();
            assert!(problem.detail().contains(&format!("since={wrong:?}")));
        }
    }
}
