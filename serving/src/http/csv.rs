//! Lists as CSV (RFC 4180), written piece by piece as they are sent. Where the values come from stands
//! in a header, as JSON.

use std::io;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use schemas::provenance::{Origin, Provenance};
use serde::Serialize;
use xxhash_rust::xxh3::Xxh3;

use super::etag;
use crate::answer::{Page, Point, Row, RowKey, Series, UniquesPoint, UniquesSeries};

/// The header with the provenance of a CSV answer.
pub(crate) const PROVENANCE: HeaderName = HeaderName::from_static("backstitch-provenance");

/// Rows that are written at once: what is in memory as text.
const PIECE_ROWS: usize = 512;

/// Points as `at,count,source`; where periods were compared, with `period` (`current` or `previous`).
pub(crate) fn points(series: &Series) -> Response {
    let fields = |point: &Point| (point.at.clone(), point.count, point.source.name());
    let both = (series.points.as_slice(), series.previous.as_deref());
    in_periods(&["at", "count", "source"], both, fields, &series.provenance)
}

/// Points as `at,count,relative_error,source`; where periods were compared, with `period`.
pub(crate) fn uniques(series: &UniquesSeries) -> Response {
    let fields = |point: &UniquesPoint| {
        let number = (point.count, point.relative_error);
        (point.at.clone(), number, point.source.name())
    };
    let both = (series.points.as_slice(), series.previous.as_deref());
    let names = ["at", "count", "relative_error", "source"];
    in_periods(&names, both, fields, &series.provenance)
}

/// Points of the period, and then those of the period before where there are such.
fn in_periods<P, R: Serialize + Send + 'static>(
    names: &[&str],
    (points, previous): (&[P], Option<&[P]>),
    fields: impl Fn(&P) -> R,
    provenance: &Provenance,
) -> Response {
    let Some(previous) = previous else {
        return list(names, points.iter().map(fields).collect(), Some(provenance));
    };
    let current = points.iter().map(|point| (fields(point), "current"));
    let before = previous.iter().map(|point| (fields(point), "previous"));
    let names = [names, &["period"]].concat();
    list(&names, current.chain(before).collect(), Some(provenance))
}

/// Rows as `key,count,share,source`, with `previous,change` where they were compared. A missing
/// value is an empty field.
pub(crate) fn rows(page: &Page, compared: bool) -> Response {
    let key = |row: &Row| match &row.key {
        None => String::new(),
        Some(RowKey::Int(n)) => n.to_string(),
        Some(RowKey::Text(text)) => text.clone(),
    };
    let fields = |row: &Row| (key(row), row.count, row.share);
    let source = |row: &Row| Origin::name(row.source);
    let provenance = Some(&page.provenance);
    if compared {
        let names = ["key", "count", "share", "previous", "change", "source"];
        let rows = page.rows.iter().map(|row| {
            let before = (row.previous.flatten(), row.change.flatten());
            (fields(row), before, source(row))
        });
        return list(&names, rows.collect(), provenance);
    }
    let rows = page.rows.iter().map(|row| (fields(row), source(row)));
    list(
        &["key", "count", "share", "source"],
        rows.collect(),
        provenance,
    )
}

/// A list under the names of its columns.
pub(crate) fn list<R: Serialize + Send + 'static>(
    names: &[&str],
    rows: Vec<R>,
    provenance: Option<&Provenance>,
) -> Response {
    let provenance = provenance.and_then(|provenance| serde_json::to_string(provenance).ok());
    let tag = tag(names, &rows, provenance.as_deref());
    let head = written(|writer| writer.write_record(names));
    let mut rows = rows.into_iter().peekable();
    let pieces = std::iter::once(head).chain(std::iter::from_fn(move || {
        rows.peek()?;
        let mut piece = rows.by_ref().take(PIECE_ROWS);
        Some(written(|writer| {
            piece.try_for_each(|row| writer.serialize(row))
        }))
    }));
    let kind = HeaderValue::from_static("text/csv; charset=utf-8");
    let body = Body::from_stream(futures::stream::iter(pieces));
    let mut response = ([(header::CONTENT_TYPE, kind), (header::ETAG, tag)], body).into_response();
    if let Some(json) = provenance.and_then(|json| HeaderValue::try_from(json).ok()) {
        response.headers_mut().insert(PROVENANCE, json);
    }
    response
}

/// What tells this list from every other, also from the same one at another position.
fn tag<R: Serialize>(names: &[&str], rows: &[R], provenance: Option<&str>) -> HeaderValue {
    let mut hash = Hash(Xxh3::new());
    hash.0.update(provenance.unwrap_or_default().as_bytes());
    let mut writer = writer(&mut hash);
    // What can't be written is found again when it is sent.
    writer.write_record(names).ok();
    rows.iter().try_for_each(|row| writer.serialize(row)).ok();
    drop(writer);
    etag::of(hash.0.digest128())
}

/// Bytes that are only hashed.
struct Hash(Xxh3);

impl io::Write for Hash {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn writer<W: io::Write>(to: W) -> csv::Writer<W> {
    csv::WriterBuilder::new()
        .has_headers(false)
        .terminator(csv::Terminator::CRLF)
        .from_writer(to)
}

/// A piece of a list. An error ends the answer before its end, so that nobody takes it for whole.
fn written(
    write: impl FnOnce(&mut csv::Writer<Vec<u8>>) -> Result<(), csv::Error>,
) -> io::Result<Bytes> {
    let mut writer = writer(Vec::new());
    write(&mut writer)
        .map_err(io::Error::other)
        .and_then(|()| writer.into_inner().map_err(|error| error.into_error()))
        .map(Bytes::from)
        .inspect_err(|error| tracing::error!(%error, "writing CSV"))
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use schemas::provenance::Provenance;

    use super::*;

    async fn text(response: Response) -> String {
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    }

    fn page(rows: Vec<Row>) -> Page {
        Page {
            rows,
            total: 0,
            last: None,
            provenance: Provenance {
                source: Origin::Merged,
                as_of: None,
                epoch: 0,
                complete: true,
                position: std::collections::BTreeMap::default(),
                backfills: 0,
            },
        }
    }

    #[tokio::test]
    async fn fields_are_quoted_where_they_must_be() {
        let row = |key, count| Row {
            key,
            count,
            share: Some(0.25),
            previous: Some(Some(-1)),
            change: Some(None),
            source: Origin::Merged,
        };
        let list = [
            row(Some(RowKey::Text("a,\"b\"\r\nc".to_owned())), 3),
            row(Some(RowKey::Int(-7)), 2),
            row(None, 1),
        ];
        assert_eq!(
            text(rows(&page(list.to_vec()), true)).await,
            "key,count,share,previous,change,source\r\n\
             \"a,\"\"b\"\"\r\nc\",3,0.25,-1,,merged\r\n\
             -7,2,0.25,-1,,merged\r\n\
             ,1,0.25,-1,,merged\r\n"
        );
        assert_eq!(
            text(rows(&page(list[2..].to_vec()), false)).await,
            "key,count,share,source\r\n,1,0.25,merged\r\n"
        );
    }

    #[tokio::test]
    async fn a_list_comes_whole_in_pieces_and_has_a_tag() {
        let numbers = |count: i64| (0..count).map(|n| (n, "x")).collect::<Vec<_>>();
        for count in [0, 1, 511, 512, 513, 2_000] {
            let lines = (0..count).map(|n| format!("{n},x\r\n"));
            let expected = format!("n,x\r\n{}", lines.collect::<String>());
            assert_eq!(
                text(list(&["n", "x"], numbers(count), None)).await,
                expected
            );
        }
        let tag = |count| list(&["n", "x"], numbers(count), None).headers()[header::ETAG].clone();
        assert_eq!(tag(9), tag(9));
        assert_ne!(tag(9), tag(10));
    }
}
