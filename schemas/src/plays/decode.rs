//! JSON lines to Arrow columns, strictly: a line is taken whole or not at all, and then with the
//! reason.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Int32Array, Int64Array, Int64Builder, RecordBatch, StringBuilder,
    TimestampMicrosecondArray, TimestampMillisecondArray,
};
use arrow::error::ArrowError;
use jiff::Timestamp;
use serde::Deserialize;

use super::{
    AMOUNT_MAX, AT_SECONDS, EVENT_ID_BYTES_MAX, LINE_BYTES_MAX, REFERRER_BYTES_MAX, schema,
};

/// The most characters of a reason.
const REASON_CHARS_MAX: usize = 400;
const NANO_DIGITS: usize = 9;
const DAY_SECONDS: i64 = 86_400;

/// A line with its place in the log; the place is zero where it has none yet.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    /// The record's offset.
    pub offset: i64,
    /// When the record was logged, in milliseconds since the Unix epoch.
    pub logged_at_ms: i64,
    /// The line's bytes, without the end of line.
    pub bytes: &'a [u8],
}

/// A line that was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// The line's index among those given.
    pub index: usize,
    /// Field, fault and what is expected.
    pub reason: String,
}

/// What became of the lines.
#[derive(Debug)]
pub struct Decoded {
    /// The events that were taken, in the order of their lines, with the columns of
    /// [`super::schema`].
    pub events: RecordBatch,
    /// The lines that were not.
    pub rejected: Vec<Rejected>,
}

/// Decodes lines into columns. One decoder serves one partition of the log.
#[derive(Debug)]
pub struct Decoder {
    partition: i32,
}

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// A play as it stands in a line. Unknown fields are ignored.
#[derive(Deserialize)]
struct RawPlay<'a> {
    #[serde(borrow)]
    event_id: Text<'a>,
    track_id: i64,
    owner_id: i64,
    #[serde(default)]
    listener_id: Option<i64>,
    #[serde(borrow, default)]
    country: Option<Text<'a>>,
    #[serde(borrow, default)]
    referrer: Option<Text<'a>>,
    #[serde(default)]
    app_id: Option<i64>,
    #[serde(borrow)]
    kind: Text<'a>,
    #[serde(borrow)]
    at: Text<'a>,
    #[serde(default)]
    amount: Option<i64>,
}

impl Decoder {
    /// A decoder for a partition of the log.
    #[must_use]
    pub fn new(partition: u32) -> Self {
        Self {
            partition: i32::try_from(partition).unwrap_or(i32::MAX),
        }
    }

    /// Decodes `lines` into one batch.
    ///
    /// # Errors
    /// Only where Arrow cannot build the batch, such as more than 2 GiB of text in one column: give
    /// fewer lines at a time.
    pub fn decode<'a>(
        &self,
        lines: impl IntoIterator<Item = Line<'a>>,
    ) -> Result<Decoded, ArrowError> {
        let lines = lines.into_iter();
        let mut columns = Columns::with_capacity(lines.size_hint().0);
        let mut rejected = Vec::new();
        for (index, line) in lines.enumerate() {
            if let Err(reason) = check(line.bytes).map(|play| columns.push(&line, &play)) {
                rejected.push(Rejected { index, reason });
            }
        }
        Ok(Decoded {
            events: columns.finish(self.partition)?,
            rejected,
        })
    }
}

/// Checks one line and answers the owner, which is the log key.
///
/// # Errors
/// The reason for which the line is not taken.
pub fn check_line(bytes: &[u8]) -> Result<i64, String> {
    check(bytes).map(|play| play.raw.owner_id)
}

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// A play whose every field was checked.
struct Play<'a> {
    raw: RawPlay<'a>,
    at_us: i64,
    amount: i64,
}

fn check(bytes: &[u8]) -> Result<Play<'_>, String> {
    checked(bytes).map_err(clip)
}

/// A reason may quote what it is about, but not all of it.
fn clip(mut reason: String) -> String {
    if let Some((end, _)) = reason.char_indices().nth(REASON_CHARS_MAX) {
        reason.truncate(end);
        reason.push('…');
    }
    reason
}

fn checked(bytes: &[u8]) -> Result<Play<'_>, String> {
    if bytes.len() > LINE_BYTES_MAX {
        return Err(format!(
            "the line has {} bytes; at most {LINE_BYTES_MAX} are taken",
            bytes.len()
        ));
    }
    // Some editors put a byte order mark at the beginning of a file.
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    // A derived decoder takes an array in the place of an object; a line must be an object.
    if !bytes.trim_ascii_start().starts_with(b"{") {
        return Err(not_an_object(bytes));
    }
    let raw: RawPlay<'_> = serde_json::from_slice(bytes).map_err(|_| explain(bytes))?;
    let id = &raw.event_id.0;
    if id.is_empty() || id.len() > EVENT_ID_BYTES_MAX {
        return Err(format!(
            "event_id: has {} bytes; 1 to {EVENT_ID_BYTES_MAX} are expected",
            id.len()
        ));
    }
    if let Some(Text(country)) = &raw.country
        && !(country.len() == 2 && country.bytes().all(|b| b.is_ascii_uppercase()))
    {
        return Err(format!(
            "country: {country:?} is not an ISO 3166 alpha-2 code such as \"DE\""
        ));
    }
    if let Some(Text(referrer)) = &raw.referrer
        && referrer.len() > REFERRER_BYTES_MAX
    {
        return Err(format!(
            "referrer: has {} bytes; at most {REFERRER_BYTES_MAX} are taken",
            referrer.len()
        ));
    }
    if !matches!(&*raw.kind.0, "play" | "download") {
        return Err(format!(
            "kind: {:?} is neither \"play\" nor \"download\"",
            raw.kind.0
        ));
    }
    let amount = raw.amount.unwrap_or(1);
    if !(-AMOUNT_MAX..=AMOUNT_MAX).contains(&amount) {
        return Err(format!(
            "amount: {amount} is not within ±{AMOUNT_MAX}; split it into several events"
        ));
    }
    let at_us = instant_us(&raw.at.0)?;
    Ok(Play { raw, at_us, amount })
}

/// An RFC 3339 instant in microseconds; finer digits are cut off. The parser behind it takes more
/// forms than the standard has and fewer digits, so the form is checked first.
fn instant_us(text: &str) -> Result<i64, String> {
    let bad = |why: &str| {
        format!("at: {text:?} is not an RFC 3339 instant such as \"2026-11-21T09:30:00Z\"{why}")
    };
    let Some(fraction) = fraction_of_instant(text.as_bytes()) else {
        return Err(bad(""));
    };
    let parsed = match (
        text.get(..fraction.start + NANO_DIGITS),
        text.get(fraction.end..),
    ) {
        (Some(kept), Some(offset)) if fraction.len() > NANO_DIGITS => {
            format!("{kept}{offset}").parse()
        }
        _ => text.parse(),
    };
    let instant: Timestamp = parsed.map_err(|error: jiff::Error| bad(&format!(": {error}")))?;
    // Leap seconds are the last of a UTC day; such a play counts in the second before.
    let leap = text.get(17..19) == Some("60");
    if leap && instant.as_second().rem_euclid(DAY_SECONDS) != DAY_SECONDS - 1 {
        return Err(bad(
            ": only the last minute of a UTC day can have a second 60",
        ));
    }
    if !AT_SECONDS.contains(&instant.as_second()) {
        return Err(format!(
            "at: {text:?} is not a time between the years 1678 and 2261"
        ));
    }
    i64::try_from(instant.as_nanosecond().div_euclid(1000)).map_err(|_| bad(": out of range"))
}

/// Where the digits of the fraction stand, which may be none, if the text has the form of an
/// instant.
fn fraction_of_instant(bytes: &[u8]) -> Option<Range<usize>> {
    let digits = |range: Range<usize>| {
        bytes
            .get(range)
            .is_some_and(|part| part.iter().all(u8::is_ascii_digit))
    };
    let is = |at: usize, any: &[u8]| bytes.get(at).is_some_and(|byte| any.contains(byte));
    let date_time = digits(0..4)
        && is(4, b"-")
        && digits(5..7)
        && is(7, b"-")
        && digits(8..10)
        && is(10, b"Tt ")
        && digits(11..13)
        && is(13, b":")
        && digits(14..16)
        && is(16, b":")
        && digits(17..19);
    if !date_time {
        return None;
    }
    let mut fraction = 19..19;
    if is(19, b".") {
        let rest = bytes.get(20..)?;
        let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if length == 0 {
            return None;
        }
        fraction = 20..20 + length;
    }
    let end = fraction.end;
    let whole = if is(end, b"Zz") {
        bytes.len() == end + 1
    } else {
        is(end, b"+-")
            && digits(end + 1..end + 3)
            && bytes.get(end + 1..end + 3) < Some(b"24")
            && is(end + 3, b":")
            && digits(end + 4..end + 6)
            && bytes.len() == end + 6
    };
    whole.then_some(fraction)
}

fn not_an_object(bytes: &[u8]) -> String {
    match serde_json::from_slice::<serde::de::IgnoredAny>(bytes) {
        Ok(_) => "not a JSON object: one event a line is expected, as {\"event_id\": …}".to_owned(),
        Err(error) => format!("not JSON: {error}"),
    }
}

/// Why a line does not parse: read again, slowly, with the path of the field.
fn explain(bytes: &[u8]) -> String {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let error = match serde_path_to_error::deserialize::<_, RawPlay<'_>>(&mut json) {
        Ok(_) => match json.end() {
            Ok(()) => return "not taken".to_owned(),
            Err(error) => return format!("more than one JSON value on the line: {error}"),
        },
        Err(error) => error,
    };
    let path = error.path().to_string();
    let inner = error.into_inner();
    if inner.is_data() && path != "." {
        format!("{path}: {inner}")
    } else if inner.is_data() {
        inner.to_string()
    } else {
        format!("not JSON: {inner}")
    }
}

/// The columns while they grow.
struct Columns {
    offset: Vec<i64>,
    logged_at: Vec<i64>,
    event_id: StringBuilder,
    track_id: Vec<i64>,
    owner_id: Vec<i64>,
    listener_id: Int64Builder,
    country: StringBuilder,
    referrer: StringBuilder,
    app_id: Int64Builder,
    kind: StringBuilder,
    at: Vec<i64>,
    amount: Vec<i64>,
}

impl Columns {
    fn with_capacity(rows: usize) -> Self {
        Self {
            offset: Vec::with_capacity(rows),
            logged_at: Vec::with_capacity(rows),
            event_id: StringBuilder::with_capacity(rows, rows * 24),
            track_id: Vec::with_capacity(rows),
            owner_id: Vec::with_capacity(rows),
            listener_id: Int64Builder::with_capacity(rows),
            country: StringBuilder::with_capacity(rows, rows * 2),
            referrer: StringBuilder::with_capacity(rows, rows * 8),
            app_id: Int64Builder::with_capacity(rows),
            kind: StringBuilder::with_capacity(rows, rows * 6),
            at: Vec::with_capacity(rows),
            amount: Vec::with_capacity(rows),
        }
    }

    fn push(&mut self, line: &Line<'_>, play: &Play<'_>) {
        let raw = &play.raw;
        self.offset.push(line.offset);
        self.logged_at.push(line.logged_at_ms);
        self.event_id.append_value(&raw.event_id.0);
        self.track_id.push(raw.track_id);
        self.owner_id.push(raw.owner_id);
        self.listener_id.append_option(raw.listener_id);
        self.country
            .append_option(raw.country.as_ref().map(|t| &t.0));
        self.referrer
            .append_option(raw.referrer.as_ref().map(|t| &t.0));
        self.app_id.append_option(raw.app_id);
        self.kind.append_value(&raw.kind.0);
        self.at.push(play.at_us);
        self.amount.push(play.amount);
    }

    fn finish(mut self, partition: i32) -> Result<RecordBatch, ArrowError> {
        let rows = self.offset.len();
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int32Array::from(vec![partition; rows])),
            Arc::new(Int64Array::from(self.offset)),
            Arc::new(TimestampMillisecondArray::from(self.logged_at).with_timezone("UTC")),
            Arc::new(self.event_id.finish()),
            Arc::new(Int64Array::from(self.track_id)),
            Arc::new(Int64Array::from(self.owner_id)),
            Arc::new(self.listener_id.finish()),
            Arc::new(self.country.finish()),
            Arc::new(self.referrer.finish()),
            Arc::new(self.app_id.finish()),
            Arc::new(self.kind.finish()),
            Arc::new(TimestampMicrosecondArray::from(self.at).with_timezone("UTC")),
            Arc::new(Int64Array::from(self.amount)),
        ];
        RecordBatch::try_new(schema(), columns)
    }
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
