//! Lists as CSV (RFC 4180), written piece by piece as they are sent. Where the values come from stands
//! in a header, as JSON.

use std::io;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use csv::QuoteStyle;
use schemas::provenance::{Origin, Provenance};
use serde::Serialize;
use xxhash_rust::xxh3::Xxh3;

use super::etag;
use crate::answer::{
    Page, Point, Row, RowKey, Series, Total, Uniques, UniquesPoint, UniquesSeries,
};

/// The header with the provenance of a CSV answer.
pub(crate) const PROVENANCE: HeaderName = HeaderName::from_static("backstitch-provenance");

/// Rows that are written at once: what is in memory as text.
const PIECE_ROWS: usize = 512;

/// A total as `count,previous,change`.
pub(crate) fn total(total: &Total) -> Response {
    let row = (
        total.count,
        total.previous.flatten(),
        total.change.flatten(),
    );
    list(
        &["count", "previous", "change"],
        vec![row],
        Some(&total.provenance),
    )
}

/// How many different ones there are as `count,relative_error,previous,previous_relative_error,change`.
pub(crate) fn unique(uniques: &Uniques) -> Response {
    let names = [
        "count",
        "relative_error",
        "previous",
        "previous_relative_error",
        "change",
    ];
    let row = (
        (uniques.count, uniques.relative_error),
        (
            uniques.previous.flatten(),
            uniques.previous_relative_error.flatten(),
        ),
        uniques.change.flatten(),
    );
    list(&names, vec![row], Some(&uniques.provenance))
}

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
/// value is an empty field; the fields of the row of the empty text are in quotes.
pub(crate) fn rows(page: &Page, compared: bool) -> Response {
    let key = |row: &Row| match &row.key {
        None => None,
        Some(RowKey::Int(n)) => Some(n.to_string()),
        Some(RowKey::Text(text)) => Some(text.clone()),
    };
    let is_empty = |key: &Option<String>| key.as_deref() == Some("");
    let fields = |row: &Row| (key(row), row.count, row.share);
    let source = |row: &Row| Origin::name(row.source);
    let provenance = Some(&page.provenance);
    if compared {
        let names = ["key", "count", "share", "previous", "change", "source"];
        let rows = page.rows.iter().map(|row| {
            let before = (row.previous.flatten(), row.change.flatten());
            (fields(row), before, source(row))
        });
        let is_quoted = move |row: &((_, _, _), _, _)| is_empty(&row.0.0);
        return list_quoted(&names, rows.collect(), provenance, is_quoted);
    }
    let rows = page.rows.iter().map(|row| (fields(row), source(row)));
    let is_quoted = move |row: &((_, _, _), _)| is_empty(&row.0.0);
    let names = ["key", "count", "share", "source"];
    list_quoted(&names, rows.collect(), provenance, is_quoted)
}

/// A list under the names of its columns.
pub(crate) fn list<R: Serialize + Send + 'static>(
    names: &[&str],
    rows: Vec<R>,
    provenance: Option<&Provenance>,
) -> Response {
    list_quoted(names, rows, provenance, |_| false)
}

/// A list of which all fields of some rows are in quotes, not only those that must be.
fn list_quoted<R: Serialize + Send + 'static>(
    names: &[&str],
    rows: Vec<R>,
    provenance: Option<&Provenance>,
    is_quoted: impl Fn(&R) -> bool + Send + 'static,
) -> Response {
    let provenance = provenance.and_then(|provenance| serde_json::to_string(provenance).ok());
    let mut hash = Xxh3::new();
    hash.update(provenance.as_deref().unwrap_or_default().as_bytes());
    hash.update(names.join(",").as_bytes());
    for piece in rows.chunks(PIECE_ROWS) {
        // What can't be written is found again when it is sent.
        hash.update(&written(piece, &is_quoted).unwrap_or_default());
    }
    let tag = etag::of(hash.digest128());
    let head = written(&[names], &|_| false);
    let mut rows = rows.into_iter();
    let pieces = std::iter::once(head).chain(std::iter::from_fn(move || {
        let piece: Vec<R> = rows.by_ref().take(PIECE_ROWS).collect();
        (!piece.is_empty()).then(|| written(&piece, &is_quoted))
    }));
    let kind = HeaderValue::from_static("text/csv; charset=utf-8");
    let body = Body::from_stream(futures::stream::iter(pieces));
    let mut response = ([(header::CONTENT_TYPE, kind), (header::ETAG, tag)], body).into_response();
    if let Some(json) = provenance.and_then(|json| HeaderValue::try_from(json).ok()) {
        response.headers_mut().insert(PROVENANCE, json);
    }
    response
}

/// Some lines of a list. An error ends the answer before its end, so that nobody takes it for whole.
fn written<R: Serialize>(rows: &[R], is_quoted: &impl Fn(&R) -> bool) -> io::Result<Bytes> {
    let write = || {
        let mut text = Vec::new();
        for stretch in rows.chunk_by(|one, other| is_quoted(one) == is_quoted(other)) {
            let style = match stretch.first().is_some_and(is_quoted) {
                true => QuoteStyle::Always,
                false => QuoteStyle::Necessary,
            };
            let mut writer = csv::WriterBuilder::new()
                .has_headers(false)
                .terminator(csv::Terminator::CRLF)
                .quote_style(style)
                .from_writer(&mut text);
            stretch.iter().try_for_each(|row| writer.serialize(row))?;
            writer.flush()?;
        }
        Ok(Bytes::from(text))
    };
    write().map_err(|error: csv::Error| {
        tracing::error!(%error, "writing CSV");
        io::Error::other(error)
    })
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
            row(Some(RowKey::Text(String::new())), 1),
        ];
        assert_eq!(
            text(rows(&page(list.to_vec()), true)).await,
            "key,count,share,previous,change,source\r\n\
             \"a,\"\"b\"\"\r\nc\",3,0.25,-1,,merged\r\n\
             -7,2,0.25,-1,,merged\r\n\
             ,1,0.25,-1,,merged\r\n\
             \"\",\"1\",\"0.25\",\"-1\",\"\",\"merged\"\r\n"
        );
        assert_eq!(
            text(rows(&page(list[2..].to_vec()), false)).await,
            "key,count,share,source\r\n,1,0.25,merged\r\n\"\",\"1\",\"0.25\",\"merged\"\r\n"
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
