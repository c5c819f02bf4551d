//! Lists as CSV (RFC 4180). Where the values come from stands in a header, as JSON.

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use schemas::provenance::{Origin, Provenance};
use serde::Serialize;

use super::problem::{Kind, Problem};
use crate::answer::{Point, Row, RowKey};

/// The header with the provenance of a CSV answer.
pub(crate) const PROVENANCE: HeaderName = HeaderName::from_static("backstitch-provenance");

/// Points as `at,count,source`; where periods were compared, with `period` (`current` or `previous`).
pub(crate) fn points(points: &[Point], previous: Option<&[Point]>) -> Result<String, Problem> {
    let Some(previous) = previous else {
        let rows = points
            .iter()
            .map(|point| (&point.at, point.count, point.source.name()));
        return write(&["at", "count", "source"], rows);
    };
    let of = |points: &[Point], period: &'static str| {
        let row = |point: &Point| (point.at.clone(), point.count, point.source.name(), period);
        points.iter().map(row).collect::<Vec<_>>()
    };
    let rows = of(points, "current")
        .into_iter()
        .chain(of(previous, "previous"));
    write(&["at", "count", "source", "period"], rows)
}

/// Rows as `key,count,share,source`, with `previous,change` where they were compared. A missing
/// value is an empty field.
pub(crate) fn rows(rows: &[Row], compared: bool) -> Result<String, Problem> {
    let key = |row: &Row| match &row.key {
        None => String::new(),
        Some(RowKey::Int(n)) => n.to_string(),
        Some(RowKey::Text(text)) => text.clone(),
    };
    let source = |row: &Row| Origin::name(row.source);
    if compared {
        let names = ["key", "count", "share", "previous", "change", "source"];
        return write(
            &names,
            rows.iter().map(|row| {
                let (previous, change) = (row.previous.flatten(), row.change.flatten());
                (
                    key(row),
                    row.count,
                    row.share,
                    previous,
                    change,
                    source(row),
                )
            }),
        );
    }
    write(
        &["key", "count", "share", "source"],
        rows.iter()
            .map(|row| (key(row), row.count, row.share, source(row))),
    )
}

/// Rows under the names of their columns.
pub(crate) fn write<R: Serialize>(
    names: &[&str],
    rows: impl Iterator<Item = R>,
) -> Result<String, Problem> {
    let written = || -> Result<Vec<u8>, csv::Error> {
        let mut writer = csv::WriterBuilder::new()
            .has_headers(false)
            .terminator(csv::Terminator::CRLF)
            .from_writer(Vec::new());
        writer.write_record(names)?;
        for row in rows {
            writer.serialize(row)?;
        }
        Ok(writer.into_inner().map_err(|error| error.into_error())?)
    };
    written()
        .map_err(|error| error.to_string())
        .and_then(|bytes| String::from_utf8(bytes).map_err(|error| error.to_string()))
        .map_err(|error| {
            tracing::error!(error, "writing CSV");
            Problem::new(Kind::Internal, "the list could not be written as CSV")
        })
}

/// A CSV answer.
pub(crate) fn response(text: String, provenance: Option<&Provenance>) -> Response {
    let kind = (header::CONTENT_TYPE, "text/csv; charset=utf-8");
    let mut response = ([kind], text).into_response();
    let provenance = provenance
        .and_then(|provenance| serde_json::to_string(provenance).ok())
        .and_then(|json| HeaderValue::try_from(json).ok());
    if let Some(provenance) = provenance {
        response.headers_mut().insert(PROVENANCE, provenance);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_where_they_must_be() {
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
            rows(&list, true).unwrap(),
            "key,count,share,previous,change,source\r\n\
             \"a,\"\"b\"\"\r\nc\",3,0.25,-1,,merged\r\n\
             -7,2,0.25,-1,,merged\r\n\
             ,1,0.25,-1,,merged\r\n"
        );
        assert_eq!(
            rows(&list[2..], false).unwrap(),
            "key,count,share,source\r\n,1,0.25,merged\r\n"
        );
    }

    #[test]
    fn an_empty_list_has_its_header() {
        assert_eq!(points(&[], None).unwrap(), "at,count,source\r\n");
    }
}
