//! CSV responses (RFC 4180), written in chunks while they are sent. A header holds the provenance
//! as JSON.

use std::io;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use csv::QuoteStyle;
use schemas::provenance::Provenance;
use serde::Serialize;
use serde_json::Value;
use xxhash_rust::xxh3::Xxh3;

use super::accept::prefers_to_json;
use super::etag;
use super::params::find_first_value;
use crate::answer::{BreakdownRow, Total, Uniques};

/// The header with the provenance of a CSV response.
pub(crate) const PROVENANCE_HEADER: HeaderName = HeaderName::from_static("backstitch-provenance");

/// Rows per chunk, which bounds the text in memory.
const CHUNK_ROWS: usize = 512;

/// Adds `format=csv` to a request that prefers CSV by its header `Accept` and has no `format`.
pub(crate) async fn negotiate(mut request: Request, next: Next) -> Response {
    let uri = request.uri();
    let wants_csv = prefers_to_json(request.headers(), "text/csv");
    if wants_csv && find_first_value(uri, "format").is_none() {
        let query = uri.query().map(|query| format!("{query}&"));
        let query = query.unwrap_or_default();
        let target = format!("{}?{query}format=csv", uri.path());
        if let Ok(uri) = target.parse::<Uri>() {
            *request.uri_mut() = uri;
        }
    }
    let mut response = next.run(request).await;
    let by_accept = HeaderValue::from_static("accept");
    response.headers_mut().append(header::VARY, by_accept);
    response
}

/// Writes a total.
pub(crate) fn write_total(total: &Total) -> Response {
    write_objects("count,previous,change", [total], Some(&total.provenance))
}

/// Writes an estimated number of distinct values.
pub(crate) fn write_unique_count(uniques: &Uniques) -> Response {
    let header = "count,relative_error,previous,previous_relative_error,change";
    write_objects(header, [uniques], Some(&uniques.provenance))
}

/// Writes the points of a period, followed by those of the previous period if periods are compared.
/// A column `period` is then `current` or `previous`.
pub(crate) fn write_points<P: Serialize>(
    header: &str,
    points: &[P],
    previous: Option<&[P]>,
    provenance: &Provenance,
) -> Response {
    let Some(previous) = previous else {
        return write_objects(header, points, Some(provenance));
    };
    let with_period = |points: &[P], period: &str| -> Vec<Value> {
        let points = points.iter().map(|point| {
            let mut point = serde_json::to_value(point).unwrap_or_default();
            if let Some(fields) = point.as_object_mut() {
                fields.insert("period".to_owned(), period.into());
            }
            point
        });
        points.collect()
    };
    let rows = [
        with_period(points, "current"),
        with_period(previous, "previous"),
    ]
    .concat();
    write_objects(&format!("{header},period"), rows, Some(provenance))
}

/// Writes the rows of a breakdown. Quotes tell the row of the empty text from the row without a
/// key.
pub(crate) fn write_rows(
    rows: &[BreakdownRow],
    provenance: &Provenance,
    has_previous: bool,
) -> Response {
    let header = match has_previous {
        true => "key,count,share,previous,change,source",
        false => "key,count,share,source",
    };
    let names: Vec<&str> = header.split(',').collect();
    let rows = rows.iter().map(|row| read_fields(&names, row)).collect();
    let is_empty = |fields: &Vec<Option<String>>| fields.first() == Some(&Some(String::new()));
    write_list_quoted(&names, rows, Some(provenance), is_empty)
}

/// Writes the fields of objects that the header line names. A missing field and null are empty;
/// blanks separate the items of an array.
pub(crate) fn write_objects<T: Serialize>(
    header: &str,
    objects: impl IntoIterator<Item = T>,
    provenance: Option<&Provenance>,
) -> Response {
    let names: Vec<&str> = header.split(',').collect();
    let rows = objects
        .into_iter()
        .map(|object| read_fields(&names, &object));
    write_list(&names, rows.collect(), provenance)
}

fn read_fields(names: &[&str], object: &impl Serialize) -> Vec<Option<String>> {
    let object = serde_json::to_value(object).unwrap_or_default();
    let fields = names.iter().map(|name| object.get(name));
    let fields = fields.map(|field| field.filter(|value| !value.is_null()));
    fields.map(|field| field.map(format_value)).collect()
}

fn format_value(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(format_value).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

/// Writes a list under the names of its columns.
fn write_list<R: Serialize + Send + 'static>(
    names: &[&str],
    rows: Vec<R>,
    provenance: Option<&Provenance>,
) -> Response {
    write_list_quoted(names, rows, provenance, |_| false)
}

/// As [`write_list`], but puts all fields of some rows in quotes, not only those that need them.
fn write_list_quoted<R: Serialize + Send + 'static>(
    names: &[&str],
    rows: Vec<R>,
    provenance: Option<&Provenance>,
    is_quoted: impl Fn(&R) -> bool + Send + 'static,
) -> Response {
    let provenance = provenance.and_then(|provenance| serde_json::to_string(provenance).ok());
    let mut hash = Xxh3::new();
    hash.update(provenance.as_deref().unwrap_or_default().as_bytes());
    hash.update(names.join(",").as_bytes());
    for chunk in rows.chunks(CHUNK_ROWS) {
        // A row that cannot be written fails again while the response is sent.
        hash.update(&encode_rows(chunk, &is_quoted).unwrap_or_default());
    }
    let tag = etag::from_hash(hash.digest128());
    let header_line = encode_rows(&[names], &|_| false);
    let mut rows = rows.into_iter();
    let chunks = std::iter::once(header_line).chain(std::iter::from_fn(move || {
        let chunk: Vec<R> = rows.by_ref().take(CHUNK_ROWS).collect();
        (!chunk.is_empty()).then(|| encode_rows(&chunk, &is_quoted))
    }));
    let content_type = HeaderValue::from_static("text/csv; charset=utf-8");
    let body = Body::from_stream(futures::stream::iter(chunks));
    let headers = [(header::CONTENT_TYPE, content_type), (header::ETAG, tag)];
    let mut response = (headers, body).into_response();
    if let Some(json) = provenance.and_then(|json| HeaderValue::try_from(json).ok()) {
        response.headers_mut().insert(PROVENANCE_HEADER, json);
    }
    response
}

/// Encodes rows. An error aborts the response, so that no client considers it complete.
fn encode_rows<R: Serialize>(rows: &[R], is_quoted: &impl Fn(&R) -> bool) -> io::Result<Bytes> {
    let write = || {
        let mut text = Vec::new();
        for group in rows.chunk_by(|a, b| is_quoted(a) == is_quoted(b)) {
            let style = match group.first().is_some_and(is_quoted) {
                true => QuoteStyle::Always,
                false => QuoteStyle::Necessary,
            };
            let mut writer = csv::WriterBuilder::new()
                .has_headers(false)
                .terminator(csv::Terminator::CRLF)
                .quote_style(style)
                .from_writer(&mut text);
            group.iter().try_for_each(|row| writer.serialize(row))?;
            writer.flush()?;
        }
        Ok(Bytes::from(text))
    };
    write().map_err(|error: csv::Error| {
        tracing::error!(%error, "cannot write a CSV response");
        io::Error::other(error)
    })
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use schemas::provenance::Origin;

    use super::*;
    use crate::answer::RowKey;

    async fn read_text(response: Response) -> String {
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
    async fn quotes_fields_that_need_it() {
        let row = |key, count| BreakdownRow {
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
            read_text(write_rows(&list, &PROVENANCE, true)).await,
            "key,count,share,previous,change,source\r\n\
             \"a,\"\"b\"\"\r\nc\",3,0.25,-1,,merged\r\n\
             -7,2,0.25,-1,,merged\r\n\
             ,1,0.25,-1,,merged\r\n\
             \"\",\"1\",\"0.25\",\"-1\",\"\",\"merged\"\r\n"
        );
        assert_eq!(
            read_text(write_rows(&list[2..], &PROVENANCE, false)).await,
            "key,count,share,source\r\n,1,0.25,merged\r\n\"\",\"1\",\"0.25\",\"merged\"\r\n"
        );
    }

    #[tokio::test]
    async fn sends_all_chunks_of_a_list_with_a_tag() {
        let numbers = |count: i64| (0..count).map(|n| (n, "x")).collect::<Vec<_>>();
        for count in [0, 1, 511, 512, 513, 2_000] {
            let lines = (0..count).map(|n| format!("{n},x\r\n"));
            let expected = format!("n,x\r\n{}", lines.collect::<String>());
            assert_eq!(
                read_text(write_list(&["n", "x"], numbers(count), None)).await,
                expected
            );
        }
        let tag =
            |count| write_list(&["n", "x"], numbers(count), None).headers()[header::ETAG].clone();
        assert_eq!(tag(9), tag(9));
        assert_ne!(tag(9), tag(10));
    }
}
