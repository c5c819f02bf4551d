//! Computes the expected rows of entities from lines and requests.
//!
//! A line is a whole row. A line with an older version than the row changes nothing.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemas::source::Source;
use serde_json::Value;

/// A row of a query; all values are text.
pub(crate) type Row = Vec<Option<String>>;

/// The tables: source, number of key columns, and columns. The last column is the version.
pub(crate) const TABLES: [(Source, usize, &str); 6] = [
    (
        Source::Efforts,
        1,
        "id segment_id athlete_id activity_id elapsed_time_s started_at_us tz is_hidden is_deleted version",
    ),
    (
        Source::Athletes,
        1,
        "id name gender birth_year weight_kg country is_disqualified is_deleted version",
    ),
    (Source::Clubs, 2, "club_id athlete_id is_deleted version"),
    (
        Source::Follows,
        2,
        "follower_id followed_id is_deleted version",
    ),
    (
        Source::Authorizations,
        1,
        "id application_id athlete_id created_at_us revoked_at_us is_revoked version",
    ),
    (
        Source::Applications,
        1,
        "id name owner athlete_capacity version",
    ),
];
/// Placeholder for a value that the server assigns and does not return. Any stored value is
/// correct.
const UNKNOWN: &str = "?";

/// The expected rows by source and key. All values are text.
#[derive(Debug, Default)]
pub(crate) struct ExpectedRows(BTreeMap<Source, BTreeMap<Row, Row>>);

impl ExpectedRows {
    /// Applies a valid line.
    pub(crate) fn apply(&mut self, source: Source, line: &[u8]) {
        let line: Value = serde_json::from_slice(line).unwrap_or_default();
        if let Some((.., columns)) = TABLES.iter().find(|table| table.0 == source) {
            let row = columns
                .split(' ')
                .map(|column| format_column(&line, column));
            self.put(source, row.collect());
        }
    }

    /// Adds a row, or replaces a row that is not newer.
    pub(crate) fn put(&mut self, source: Source, row: Row) {
        let keys = TABLES.iter().find(|table| table.0 == source);
        let key = row[..keys.map_or(1, |table| table.1)].to_vec();
        let version = |row: &Row| -> i64 {
            let version = row.last().and_then(Option::as_deref);
            version.and_then(|text| text.parse().ok()).unwrap_or(0)
        };
        let rows = self.0.entry(source).or_default();
        if rows
            .get(&key)
            .is_none_or(|stored| version(stored) <= version(&row))
        {
            rows.insert(key, row);
        }
    }

    /// Adds the authorization in the answer to a request.
    ///
    /// # Errors
    /// Fails for an answer without a new id.
    pub(crate) fn connect(
        &mut self,
        application: i64,
        athlete: i64,
        body: &Value,
    ) -> Result<(), String> {
        let id = body["id"].as_i64().map(|id| id.to_string());
        let rows = self.0.entry(Source::Authorizations).or_default();
        if id.is_none() || rows.contains_key(&vec![id.clone()]) {
            return Err(format!("the answer {body} contains no new id"));
        }
        let unknown = UNKNOWN.to_owned();
        let (application, athlete) = (application.to_string(), athlete.to_string());
        let (not_revoked, version) = ("0".to_owned(), "0".to_owned());
        let row = [
            id.clone(),
            Some(application),
            Some(athlete),
            Some(unknown),
            None,
            Some(not_revoked),
            Some(version),
        ];
        rows.insert(vec![id], row.to_vec());
        Ok(())
    }

    /// Revokes all authorizations of an athlete for an application.
    pub(crate) fn disconnect(&mut self, application: i64, athlete: i64) {
        let pair = [application, athlete].map(|id| Some(id.to_string()));
        let rows = self.0.entry(Source::Authorizations).or_default();
        for row in rows.values_mut() {
            if row[1..3] == pair && row[5].as_deref() == Some("0") {
                (row[4], row[5]) = (Some(UNKNOWN.to_owned()), Some("1".to_owned()));
            }
        }
    }

    /// Sets the capacity of an application.
    pub(crate) fn set_capacity(&mut self, application: i64, capacity: &Value) {
        let rows = self.0.entry(Source::Applications).or_default();
        if let Some(row) = rows.get_mut(&vec![Some(application.to_string())]) {
            row[3] = Some(capacity.to_string());
        }
    }

    /// Compares the rows of a table with the expected ones, and returns the differences.
    pub(crate) fn compare(&self, source: Source, keys: usize, stored: &[Row]) -> Vec<String> {
        let no_rows = BTreeMap::new();
        let expected = self.0.get(&source).unwrap_or(&no_rows);
        let mut missing: BTreeMap<&[Option<String>], &Row> = expected
            .iter()
            .map(|(key, row)| (key.as_slice(), row))
            .collect();
        let mut differences = Vec::new();
        for row in stored {
            let expected = missing.remove(&row[..keys]);
            let is_same = expected.is_some_and(|expected| {
                let mut pairs = expected.iter().zip(row);
                let is_known = |value: &Option<String>| value.as_deref() != Some(UNKNOWN);
                pairs.all(|(value, stored)| value == stored || !is_known(value))
            });
            if !is_same {
                differences.push(format!("{source}: stored {row:?}, recounted {expected:?}"));
            }
        }
        let missing = missing.values();
        differences
            .extend(missing.map(|row| format!("{source}: stored nothing, recounted {row:?}")));
        differences
    }
}

/// Formats a column of the row of a line.
fn format_column(line: &Value, column: &str) -> Option<String> {
    let flag = |is_set: bool| Some(u8::from(is_set).to_string());
    let with_default = |text: &str| format_json(&line[column]).or_else(|| Some(text.to_owned()));
    match column {
        "is_deleted" => flag(line["deleted"] == true),
        "is_disqualified" => flag(line["disqualified"] == true),
        "is_hidden" => flag(line["visibility"] == "only_me"),
        "is_revoked" => flag(!line["revoked_at"].is_null()),
        "elapsed_time_s" => format_json(&line["elapsed_time"]),
        "started_at_us" | "created_at_us" | "revoked_at_us" => {
            let time = line[column.trim_end_matches("_us")].as_str()?;
            let time: Timestamp = time.parse().ok()?;
            Some(time.as_microsecond().to_string())
        }
        "weight_kg" => line[column].as_f64().map(|kg| Value::from(kg).to_string()),
        "owner" => Some(line[column].to_string()),
        "tz" => with_default("UTC"),
        "athlete_capacity" => with_default("1"),
        "version" => with_default("0"),
        _ => format_json(&line[column]),
    }
}

fn format_json(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rows(expected: &ExpectedRows, source: Source) -> Vec<Row> {
        expected.0[&source].values().cloned().collect()
    }

    #[test]
    fn finds_missing_added_and_outdated_rows() {
        let line = |id: i64, version: i64, elapsed_time: i64| {
            json!({
                "id": id, "segment_id": 2, "athlete_id": 3, "activity_id": 4, "version": version,
                "elapsed_time": elapsed_time, "started_at": "1970-01-01T00:00:01Z",
            })
        };
        let mut expected = ExpectedRows::default();
        let mut apply = |line: Value| expected.apply(Source::Efforts, line.to_string().as_bytes());
        apply(line(1, 2, 60));
        apply(line(1, 1, 50));
        apply(line(2, 1, 70));
        apply(line(2, 1, 71));
        let row = |columns: &str| -> Row {
            let columns = columns.split(' ').map(|column| Some(column.to_owned()));
            columns.collect()
        };
        let right = row("1 2 3 4 60 1000000 UTC 0 0 2");
        let other = row("2 2 3 4 71 1000000 UTC 0 0 1");
        let older = row("1 2 3 4 50 1000000 UTC 0 0 1");
        let added = row("3 2 3 4 50 1000000 UTC 0 0 1");
        for (stored, count) in [
            (vec![right.clone(), other.clone()], 0),
            (vec![right.clone()], 1),
            (vec![older, other.clone()], 1),
            (vec![right, other, added], 1),
            (vec![], 2),
        ] {
            let differences = expected.compare(Source::Efforts, 1, &stored);
            assert_eq!(differences.len(), count, "{differences:?}");
        }
    }

    #[test]
    fn finds_requests_without_effect() {
        let source = Source::Authorizations;
        let mut expected = ExpectedRows::default();
        let line = json!({"id": 1, "application_id": 5, "athlete_id": 6, "created_at": "1970-01-01T00:00:00Z"});
        expected.apply(source, line.to_string().as_bytes());
        let before = rows(&expected, source);
        expected.connect(5, 7, &json!({"id": 9})).unwrap();
        assert!(expected.connect(5, 8, &json!({"id": 9})).is_err());
        assert!(expected.connect(5, 8, &json!({"id": null})).is_err());
        assert_eq!(expected.compare(source, 1, &before).len(), 1);
        let mut connected = rows(&expected, source);
        connected[1][3] = Some("1234".to_owned());
        assert!(expected.compare(source, 1, &connected).is_empty());
        expected.disconnect(5, 6);
        expected.disconnect(6, 7);
        assert_eq!(expected.compare(source, 1, &connected).len(), 1);
        (connected[0][4], connected[0][5]) = (Some("1234".to_owned()), Some("1".to_owned()));
        assert!(expected.compare(source, 1, &connected).is_empty());

        let source = Source::Applications;
        let line = json!({"id": 5, "name": "a", "owner": "b", "athlete_capacity": 10});
        expected.apply(source, line.to_string().as_bytes());
        let before = rows(&expected, source);
        expected.set_capacity(5, &json!(11));
        assert_eq!(expected.compare(source, 1, &before).len(), 1);
    }
}
