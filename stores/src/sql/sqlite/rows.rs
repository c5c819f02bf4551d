//! The rows that views read, from their tables into columns.
//!
//! SQLite hands rows over as one JSON text for many of them: handing each over with a dozen values
//! takes several times as long, since every value is copied on one thread and freed on another.

use schemas::entities::{AuthorizationColumns, AuthorizationRow, EffortColumns, EffortRow, Group};
use serde::Deserialize;

use crate::embedded::statement::heavy;
use crate::sql::connection::{Sql, undecodable};
use crate::sql::decode::Grouped;

/// About as many bytes has a row as JSON.
const ROW_BYTES: usize = 64;

/// The place of a row in the order of key, member and id.
pub(super) type Place = (i64, i64, i64);

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

/// Id, application, athlete, when it was made and revoked, and whether the athlete is deleted.
type Authorization = (i64, i64, i64, i64, Option<i64>, u8);

/// A row that belongs to a group.
trait Grouping {
    fn group(&self) -> Group;
}

impl Grouping for Effort<'_> {
    fn group(&self) -> Group {
        Group {
            key: self.segment_id,
            member: self.athlete_id,
        }
    }
}

impl Grouping for Authorization {
    fn group(&self) -> Group {
        Group {
            key: self.1,
            member: self.2,
        }
    }
}

/// Rows as SQLite handed them over.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) json: String,
    /// A group whose rows are left out, since not all of them may be there.
    pub(super) without: Option<Group>,
}

/// Rows in columns, and the place of the last of them.
#[derive(Debug)]
pub(super) struct DecodedRows {
    pub(super) batch: arrow::array::RecordBatch,
    pub(super) last: Option<Place>,
}

/// Decodes rows as SQLite handed them over into columns, in the order of their places.
pub(super) async fn columns(of: Grouped, texts: Vec<Text>) -> Sql<DecodedRows> {
    let bytes: usize = texts.iter().map(|text| text.json.len()).sum();
    let parsing = heavy(bytes / ROW_BYTES, move || {
        Ok(match of {
            Grouped::Efforts => efforts(&texts),
            Grouped::Authorizations => authorizations(&texts),
        })
    });
    let parsed = parsing
        .await
        .map_err(|error| sqlx::Error::Protocol(error.to_string()))?;
    parsed.map_err(|error| undecodable(format!("rows of {}: {error}", of.table())))
}

fn efforts(texts: &[Text]) -> Result<DecodedRows, String> {
    let mut rows: Vec<Effort<'_>> = parse(texts)?;
    rows.sort_unstable_by_key(|row| (row.segment_id, row.athlete_id, row.id));
    let mut columns = EffortColumns::default();
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

fn authorizations(texts: &[Text]) -> Result<DecodedRows, String> {
    let mut rows: Vec<Authorization> = parse(texts)?;
    rows.sort_unstable_by_key(|(id, key, member, ..)| (*key, *member, *id));
    let mut columns = AuthorizationColumns::default();
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

fn parse<'a, T: Deserialize<'a> + Grouping>(texts: &'a [Text]) -> Result<Vec<T>, String> {
    let mut rows = Vec::new();
    for text in texts {
        let mut some: Vec<T> =
            serde_json::from_str(&text.json).map_err(|error| error.to_string())?;
        if let Some(group) = text.without {
            some.retain(|row| row.group() != group);
        }
        if rows.is_empty() {
            rows = some;
        } else {
            rows.extend(some);
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use sqlx::{Connection as _, SqliteConnection};

    /// Weights of views come from SQLite as digits.
    #[tokio::test]
    async fn seventeen_digits_bring_a_weight_back_to_the_last_bit() {
        let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        let boundaries = [55.0_f64, 65.0, 75.0, 85.0, 95.0, 105.0, 115.0];
        let beside = boundaries
            .iter()
            .flat_map(|at| [at.next_down(), *at, at.next_up()]);
        // The fractional parts of multiples of the golden ratio are spread evenly.
        let spread = (1..20_000).map(|n| (f64::from(n) * 0.618_033_988_749_894_9).fract() * 200.0);
        for weight in beside.chain(spread) {
            let digits: String = sqlx::query_scalar("SELECT printf('%!.17g', ?)")
                .bind(weight)
                .fetch_one(&mut connection)
                .await
                .unwrap();
            assert_eq!(digits.parse(), Ok(weight), "{digits}");
        }
    }
}
