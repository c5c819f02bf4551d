//! What could not be taken: lists, counts and single letters, and taking them once more.

mod replay;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use schemas::dead_letter::{LetterId, NoLetterId, kind_of};
use schemas::source::Source;
use serde::{Deserialize, Serialize};
use stores::dead_letters::{self, Asked, Counts, KindCount, Letter, Newest};
use utoipa::ToSchema;

use super::params::{PageQuery, Params, Path};
use super::problem::{Kind, Problem, ProblemShape};
use super::{Api, csv, cursor};
use crate::answer::shown_ms;
pub(crate) use replay::{__path_replay, LettersReplayed, replay};

/// A request looks at so many letters, at most.
const LOOKED_AT_MAX: u64 = 200_000;
/// Bytes of an input that a list shows, at most.
const LISTED_BYTES: usize = 1_024;
/// Bytes of the letters that a page is made of, at most, but for the last one.
const PAGE_BYTES_MAX: usize = 16 << 20;

/// Bytes as they can be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LetterBytes {
    /// Bytes that are UTF-8.
    Text(String),
    /// Any others, in hexadecimal.
    Hex(String),
}

/// An input that could not be taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct LetterShown {
    /// Its place in the log, by which it goes: `TOPIC/PARTITION@OFFSET`.
    pub(crate) id: String,
    /// The source that the input was meant for.
    #[schema(value_type = String)]
    pub(crate) source: Source,
    /// The reason without numbers and quoted texts, as letters are counted.
    pub(crate) kind: String,
    /// Why it was not taken: field, fault and what is expected.
    pub(crate) reason: String,
    /// Where it came from: `FILE:LINE`, or `TOPIC/PARTITION@OFFSET` in the log.
    pub(crate) origin: String,
    /// When it was set aside, in UTC; of a record of the log when that was appended.
    pub(crate) at: String,
    /// How many bytes of the input are kept.
    pub(crate) raw_bytes: u64,
    /// The bytes; in a list the first 1,024 of them.
    pub(crate) raw: LetterBytes,
    /// Whether the record of the log is no dead letter at all: somebody else has written there.
    pub(crate) broken: bool,
}

/// A page of dead letters.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct LettersPage {
    /// Those that were appended to the log last come first. One that was noted twice comes once in a page.
    pub(crate) dead_letters: Vec<LetterShown>,
    /// Where the next page begins; null on the last one. A page may have fewer letters than were asked
    /// for, also none, and not be the last.
    pub(crate) cursor: Option<String>,
}

/// Dead letters whose reasons are alike.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct LetterKind {
    #[schema(value_type = String)]
    pub(crate) source: Source,
    /// The reasons without numbers and quoted texts.
    pub(crate) kind: String,
    /// How many there are.
    pub(crate) letters: u64,
    /// When the first of them was set aside, in UTC.
    pub(crate) first_at: String,
    /// When the last of them was, in UTC.
    pub(crate) last_at: String,
    /// The id of the one that was appended last.
    pub(crate) example: String,
}

/// How many dead letters there are.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct LetterCounts {
    /// By source, the most frequent kind of each first.
    pub(crate) counts: Vec<LetterKind>,
    /// How many there are of all kinds.
    pub(crate) letters: u64,
    /// How many were looked at, the newest ones, also those that were not asked for.
    pub(crate) looked_at: u64,
    /// Whether these were all; else there may be more of any kind.
    pub(crate) complete: bool,
}

impl LetterBytes {
    /// The text, or the hexadecimal digits.
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Text(text) | Self::Hex(text) => text,
        }
    }

    fn of(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Hex(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
        }
    }
}

impl LetterShown {
    /// A letter with at most so many of its bytes.
    fn of(letter: &Letter, raw_bytes_max: usize) -> Self {
        let content = &letter.content;
        Self {
            id: letter.id.to_string(),
            source: letter.id.source,
            kind: kind_of(&content.reason),
            reason: content.reason.clone(),
            origin: content.origin.clone(),
            at: shown_ms(content.at_ms),
            raw_bytes: content.raw.len() as u64,
            raw: LetterBytes::of(content.beginning(raw_bytes_max)),
            broken: letter.is_broken,
        }
    }
}

impl From<KindCount> for LetterKind {
    fn from(counted: KindCount) -> Self {
        Self {
            source: counted.source,
            kind: counted.kind,
            letters: counted.letters,
            first_at: shown_ms(counted.first_at_ms),
            last_at: shown_ms(counted.last_at_ms),
            example: counted.example.to_string(),
        }
    }
}

impl From<Counts> for LetterCounts {
    fn from(counts: Counts) -> Self {
        Self {
            counts: counts.kinds.into_iter().map(LetterKind::from).collect(),
            letters: counts.letters,
            looked_at: counts.looked_at,
            complete: counts.is_complete,
        }
    }
}

/// What could not be taken, newest first.
#[utoipa::path(
    get,
    path = "/api/v1/dead-letters",
    tag = "dead-letters",
    params(
        ("source" = Option<String>, Query, description = "plays, efforts, authorizations, athletes, clubs, follows or applications; all if left out"),
        ("reason" = Option<String>, Query, description = "Only those in whose reason, or the kind of it, this text is found"),
        ("since" = Option<String>, Query, description = "Only those that were set aside then or later: an instant such as 2026-11-21T00:00:00Z, or a date in UTC"),
        PageQuery
    ),
    responses(
        (status = 200, description = "A page of dead letters", body = LettersPage)
    )
)]
pub(crate) async fn list(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let (params, query) = PageQuery::read(&uri, &["source", "reason", "since"])?;
    let asked = asked(&params)?;
    let fingerprint = cursor::fingerprint(&format!("dead letters?{}", params.question()));
    let after = query.start(fingerprint, cursor::last)?;
    let _turn = api.letter_reads.acquire().await;
    let mut newest = Newest::open(&*api.ports.log, asked, after.as_ref()).await?;
    let (mut shown, mut bytes) = (Vec::new(), 0);
    while shown.len() < query.limit && bytes < PAGE_BYTES_MAX {
        let Some(letter) = newest.next(LOOKED_AT_MAX).await? else {
            break;
        };
        bytes += letter.bytes();
        shown.push(LetterShown::of(&letter, LISTED_BYTES));
    }
    let next = (!newest.is_over()).then(|| cursor::after(fingerprint, &newest.positions()));
    let page = LettersPage {
        dead_letters: shown,
        cursor: next.clone(),
    };
    let as_csv = |page: LettersPage| as_csv(&page.dead_letters);
    Ok(query.answer(&uri, next.as_deref(), page, as_csv))
}

/// How many could not be taken, by source and kind of reason. The newest 200,000 letters are looked at.
#[utoipa::path(
    get,
    path = "/api/v1/dead-letters/counts",
    tag = "dead-letters",
    params(
        ("source" = Option<String>, Query, description = "plays, efforts, authorizations, athletes, clubs, follows or applications; all if left out"),
        ("reason" = Option<String>, Query, description = "Only those in whose reason, or the kind of it, this text is found"),
        ("since" = Option<String>, Query, description = "Only those that were set aside then or later: an instant such as 2026-11-21T00:00:00Z, or a date in UTC"),
        ("format" = Option<String>, Query, description = "json or csv")
    ),
    responses(
        (status = 200, description = "The counts, and whether they are of all letters", body = LetterCounts)
    )
)]
pub(crate) async fn counts(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["source", "reason", "since", "format"])?;
    let (asked, format) = (asked(&params)?, params.format()?);
    let _turn = api.letter_reads.acquire().await;
    let counts = dead_letters::count(&*api.ports.log, asked, LOOKED_AT_MAX).await?;
    Ok(format.answer(LetterCounts::from(counts), |counts| counts_as_csv(&counts)))
}

fn counts_as_csv(counts: &LetterCounts) -> Response {
    let header = "source,kind,letters,first_at,last_at,example,complete";
    let rows = counts.counts.iter().map(|one| {
        let mut row = serde_json::to_value(one).unwrap_or_default();
        row["complete"] = counts.complete.into();
        row
    });
    csv::objects(header, rows, None)
}

/// One dead letter, with all of its bytes that are kept.
#[utoipa::path(
    get,
    path = "/api/v1/dead-letters/{id}",
    tag = "dead-letters",
    params(("id" = String, Path, description = "The letter's id, percent-encoded: backstitch.plays.v1.dlq%2F0@17")),
    responses(
        (status = 200, description = "The letter", body = LetterShown),
        (status = 404, description = "No such letter, or the log holds it no more", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn show(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Json<LetterShown>, Problem> {
    shown(&api, &uri, &id).await
}

/// The same where somebody on the way has decoded the slash of the id.
pub(crate) async fn show_decoded(
    State(api): State<Arc<Api>>,
    Path((topic, place)): Path<(String, String)>,
    uri: Uri,
) -> Result<Json<LetterShown>, Problem> {
    shown(&api, &uri, &format!("{topic}/{place}")).await
}

async fn shown(api: &Api, uri: &Uri, id: &str) -> Result<Json<LetterShown>, Problem> {
    Params::read(uri, &[])?;
    let id: LetterId = id
        .parse()
        .map_err(|error: NoLetterId| Problem::parameter(format!("id: {error}")))?;
    let _turn = api.letter_reads.acquire().await;
    let letter = dead_letters::find(&*api.ports.log, id).await?;
    let letter = letter.ok_or_else(|| unknown(id))?;
    Ok(Json(LetterShown::of(&letter, usize::MAX)))
}

fn unknown(id: LetterId) -> Problem {
    let detail =
        format!("there is no dead letter {id}: /api/v1/dead-letters lists those there are");
    Kind::UnknownDeadLetter.with_detail(detail)
}

fn asked(params: &Params) -> Result<Asked, Problem> {
    Ok(Asked {
        source: params.source()?,
        reason: params.get("reason").map(str::to_owned),
        since_ms: params.parsed("since", |_, text| instant_ms(text))?,
    })
}

/// An instant, or a date as its midnight in UTC; in milliseconds since the Unix epoch.
fn instant_ms(text: &str) -> Result<i64, Problem> {
    let of_date = || {
        let date: Date = text.parse().ok()?;
        Some(date.to_zoned(TimeZone::UTC).ok()?.timestamp())
    };
    let instant = text.parse::<Timestamp>().ok().or_else(of_date);
    let instant = instant.ok_or_else(|| {
        Problem::parameter(format!(
            "since={text:?} is not an instant such as 2026-11-21T00:00:00Z, or a date such as 2026-11-21"
        ))
    });
    instant.map(Timestamp::as_millisecond)
}

fn as_csv(letters: &[LetterShown]) -> Response {
    let header = "id,source,kind,reason,origin,at,raw_bytes,raw_text,raw_hex,broken";
    let rows = letters.iter().map(|letter| {
        let mut row = serde_json::to_value(letter).unwrap_or_default();
        for (name, form) in [("raw_text", "text"), ("raw_hex", "hex")] {
            row[name] = row["raw"][form].clone();
        }
        row
    });
    csv::objects(header, rows, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_instants_or_dates() {
        assert_eq!(instant_ms("1970-01-02").unwrap(), 86_400_000);
        assert_eq!(instant_ms("1970-01-01T00:00:01Z").unwrap(), 1_000);
        assert_eq!(instant_ms("1970-01-01T01:00:00+01:00").unwrap(), 0);
        for wrong in ["", "yesterday", "1970-02-30", "1"] {
            let problem = instant_ms(wrong).unwrap_err();
            assert!(problem.detail().contains(&format!("since={wrong:?}")));
        }
    }
}
