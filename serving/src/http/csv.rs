//! Lists as CSV (RFC 4180), written piece by piece as they are sent. Where the values come from stands
//! in a header, as JSON.

use std::io;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use csv::QuoteStyle;
use schemas::provenance::Provenance;
use serde::Serialize;
use serde_json::Value;
use xxhash_rust::xxh3::Xxh3;

use super::etag;
use crate::answer::{Row, Total, Uniques};

/// The header with the provenance of a CSV answer.
pub(crate) const PROVENANCE: HeaderName = HeaderName::from_static("backstitch-provenance");

/// Rows that are written at once: what is in memory as text.
const PIECE_ROWS: usize = 512;

/// A total.
pub(crate) fn total(total: &Total) -> Response {
    objects("count,previous,change", [total], Some(&total.provenance))
}

/// How many different values there are.
pub(crate) fn unique(uniques: &Uniques) -> Response {
    let header = "count,relative_error,previous,previous_relative_error,change";
    objects(header, [uniques], Some(&uniques.provenance))
}

/// Points of a period, and then those of the period before if periods are compared: `period` is then `current` or `previous`.
pub(crate) fn points<P: Serialize>(
    header: &str,
    points: &[P],
    previous: Option<&[P]>,
    provenance: &Provenance,
) -> Response {
    let Some(previous) = previous else {
        return objects(header, points, Some(provenance));
    };
    let of_period = |points: &[P], period: &str| -> Vec<Value> {
        let points = points.iter().map(|point| {
            let mut point = serde_json::to_value(point).unwrap_or_default();
            if let Some(fields) = point.as_object_mut() {
                fields.insert("period".to_owned(), period.into());
            }
            point
        });
        points.collect()
    };
    let both = [
        of_period(points, "current"),
        of_period(previous, "previous"),
    ]
    .concat();
    objects(&format!("{header},period"), both, Some(provenance))
}

/// Rows of a breakdown. The fields of the row of the empty text are in quotes, unlike those of the row without a key.
pub(crate) fn rows(rows: &[Row], provenance: &Provenance, compared: bool) -> Response {
    let header = match compared {
        true => "key,count,share,previous,change,source",
        false => "key,count,share,source",
    };
    let names: Vec<&str> = header.split(',').collect();
    let rows = rows.iter().map(|row| fields(&names, row)).collect();
    let is_empty = |fields: &Vec<Option<String>>| fields.first() == Some(&Some(String::new()));
    list_quoted(&names, rows, Some(provenance), is_empty)
}

/// A list of objects, with those of their fields that the header line names. A missing field and null are empty; blanks separate
/// the items of an array.
pub(crate) fn objects<T: Serialize>(
    header: &str,
    objects: impl IntoIterator<Item = T>,
    provenance: Option<&Provenance>,
) -> Response {
    let names: Vec<&str> = header.split(',').collect();
    let rows = objects.into_iter().map(|object| fields(&names, &object));
    list(&names, rows.collect(), provenance)
}

fn fields(names: &[&str], object: &impl Serialize) -> Vec<Option<String>> {
    let object = serde_json::to_value(object).unwrap_or_default();
    let fields = names.iter().map(|name| object.get(name));
    let fields = fields.map(|field| field.filter(|value| !value.is_null()));
    fields.map(|field| field.map(text)).collect()
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

/// A list under the names of its columns.
fn list<R: Serialize + Send + 'static>(
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
    use schemas::provenance::Origin;

    use super::*;
    use crate::answer::RowKey;

    async fn text(response: Response) -> String {
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    }

    const PROVENANCE: Provenance = Provenance {
        source: Origin::Merged,
        as_of: None,
        epoch: 0,
        complete: true,
        position: std::collections::BTreeMap::new(),
        backfills: 0,
    };

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
            text(rows(&list, &PROVENANCE, true)).await,
            "key,count,share,previous,change,source\r\n\
             \"a,\"\"b\"\"\r\nc\",3,0.25,-1,,merged\r\n\
             -7,2,0.25,-1,,merged\r\n\
             ,1,0.25,-1,,merged\r\n\
             \"\",\"1\",\"0.25\",\"-1\",\"\",\"merged\"\r\n"
        );
        assert_eq!(
            text(rows(&list[2..], &PROVENANCE, false)).await,
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
