//! Decodes the rows that views read from JSON into columns.
//!
//! SQLite returns many rows as one JSON text. Returning each row with its dozen values takes
//! several times as long, because every value is allocated on one thread and freed on another.

use schemas::entities::{
    AuthorizationBatchBuilder, AuthorizationRow, EffortBatchBuilder, EffortRow, Group,
};
use serde::Deserialize;

use crate::embedded::statement::run_heavy;
use crate::sql::connection::{Sql, decode_error};
use crate::sql::decode::GroupedSource;

/// The approximate size of a row as JSON.
const ROW_BYTES: usize = 64;

/// The position of a row: key, member and id.
pub(super) type RowPosition = (i64, i64, i64);

/// A row of `efforts`, in the order of its JSON array.
#[derive(Debug, Deserialize)]
struct Effort<'a> {
    id: i64,
    segment_id: i64,
    athlete_id: i64,
    activity_id: i64,
    elapsed_time_s: i64,
    started_at_us: i64,
    tz: &'a str,
    is_hidden: u8,
    is_deleted: u8,
    gender: Option<&'a str>,
    birth_year: Option<i64>,
    weight_kg: Option<&'a str>,
    athlete_is_deleted: u8,
    athlete_is_disqualified: u8,
}

/// Id, application, athlete, times of creation and revocation, and whether the athlete is deleted.
type Authorization = (i64, i64, i64, i64, Option<i64>, u8);

/// A row of a group.
trait HasGroup {
    fn group(&self) -> Group;
}

impl HasGroup for Effort<'_> {
    fn group(&self) -> Group {
        Group {
            key: self.segment_id,
            member: self.athlete_id,
        }
    }
}

impl HasGroup for Authorization {
    fn group(&self) -> Group {
        Group {
            key: self.1,
            member: self.2,
        }
    }
}

/// Rows as JSON text from SQLite.
#[derive(Debug)]
pub(super) struct JsonRows {
    pub(super) json: String,
    /// A group whose rows are excluded, because the text may not contain all of them.
    pub(super) excluded: Option<Group>,
}

/// Rows in columns, and the position of the last one.
#[derive(Debug)]
pub(super) struct DecodedRows {
    pub(super) batch: arrow::array::RecordBatch,
    pub(super) last: Option<RowPosition>,
}

/// Decodes JSON texts into columns, sorted by position.
pub(super) async fn decode(source: GroupedSource, texts: Vec<JsonRows>) -> Sql<DecodedRows> {
    let bytes: usize = texts.iter().map(|text| text.json.len()).sum();
    let decoding = run_heavy(bytes / ROW_BYTES, move || {
        Ok(match source {
            GroupedSource::Efforts => decode_efforts(&texts),
            GroupedSource::Authorizations => decode_authorizations(&texts),
        })
    });
    let decoded = decoding
        .await
        .map_err(|error| sqlx::Error::Protocol(error.to_string()))?;
    decoded.map_err(|error| decode_error(format!("invalid rows of {}: {error}", source.table())))
}

fn decode_efforts(texts: &[JsonRows]) -> Result<DecodedRows, String> {
    let mut rows: Vec<Effort<'_>> = parse(texts)?;
    rows.sort_unstable_by_key(|row| (row.segment_id, row.athlete_id, row.id));
    let mut columns = EffortBatchBuilder::default();
    for row in &rows {
        let weight_kg = row.weight_kg.map(str::parse).transpose();
        columns
            .push(&EffortRow {
                id: row.id,
                segment_id: row.segment_id,
                athlete_id: row.athlete_id,
                activity_id: row.activity_id,
                elapsed_time_s: row.elapsed_time_s,
                started_at_us: row.started_at_us,
                tz: row.tz,
                is_hidden: row.is_hidden != 0,
                is_deleted: row.is_deleted != 0,
                gender: row.gender,
                birth_year: row.birth_year,
                weight_kg: weight_kg.map_err(|error| format!("weight_kg: {error}"))?,
                athlete_is_deleted: row.athlete_is_deleted != 0,
                athlete_is_disqualified: row.athlete_is_disqualified != 0,
            })
            .map_err(|error| format!("effort {}: {error}", row.id))?;
    }
    Ok(DecodedRows {
        batch: columns.finish().map_err(|error| error.to_string())?,
        last: rows
            .last()
            .map(|row| (row.segment_id, row.athlete_id, row.id)),
    })
}

fn decode_authorizations(texts: &[JsonRows]) -> Result<DecodedRows, String> {
    let mut rows: Vec<Authorization> = parse(texts)?;
    rows.sort_unstable_by_key(|(id, key, member, ..)| (*key, *member, *id));
    let mut columns = AuthorizationBatchBuilder::default();
    for (id, key, member, created_at_us, revoked_at_us, athlete_is_deleted) in &rows {
        columns.push(&AuthorizationRow {
            id: *id,
            application_id: *key,
            athlete_id: *member,
            created_at_us: *created_at_us,
            revoked_at_us: *revoked_at_us,
            athlete_is_deleted: *athlete_is_deleted != 0,
        });
    }
    Ok(DecodedRows {
        batch: columns.finish().map_err(|error| error.to_string())?,
        last: rows
            .last()
            .map(|(id, key, member, ..)| (*key, *member, *id)),
    })
}

fn parse<'a, T: Deserialize<'a> + HasGroup>(texts: &'a [JsonRows]) -> Result<Vec<T>, String> {
    let mut rows = Vec::new();
    for text in texts {
        let mut parsed: Vec<T> =
            serde_json::from_str(&text.json).map_err(|error| error.to_string())?;
        if let Some(group) = text.excluded {
            parsed.retain(|row| row.group() != group);
        }
        if rows.is_empty() {
            rows = parsed;
        } else {
            rows.extend(parsed);
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use sqlx::{Connection as _, SqliteConnection};

    /// SQLite returns weights as decimal digits.
    #[tokio::test]
    async fn seventeen_digits_preserve_a_weight_exactly() {
        let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        let boundaries = [55.0_f64, 65.0, 75.0, 85.0, 95.0, 105.0, 115.0];
        let near_boundaries = boundaries
            .iter()
            .flat_map(|boundary| [boundary.next_down(), *boundary, boundary.next_up()]);
        // Fractional parts of multiples of the golden ratio are distributed evenly.
        let spread = (1..20_000).map(|n| (f64::from(n) * 0.618_033_988_749_894_9).fract() * 200.0);
        for weight in near_boundaries.chain(spread) {
            let digits: String = sqlx::query_scalar("SELECT printf('%!.17g', ?)")
                .bind(weight)
                .fetch_one(&mut connection)
                .await
                .unwrap();
            assert_eq!(digits.parse(), Ok(weight), "{digits}");
        }
    }
}
