//! Run records in `views.db`, which change by compare-and-set within a transaction.

use schemas::seam::{Epoch, Run, RunState, Runs};
use schemas::source::Source;
use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, Row};

use super::session::Session;
use super::statement::to_stored;
use crate::views::RunDetails;
use crate::{Error, Result, run_rules};

const US_PER_MS: i64 = 1000;

/// A decoded run record.
struct RunRow(Run);

impl FromRow<'_, SqliteRow> for RunRow {
    fn from_row(row: &SqliteRow) -> Result<Self, sqlx::Error> {
        decode_run(row).map(Self).map_err(sqlx::Error::Decode)
    }
}

/// Returns the record of a run, or an error if it does not exist.
pub(super) async fn expect(tx: &mut Session, source: Source, epoch: Epoch) -> Result<Run> {
    let query = sqlx::query(
        "SELECT epoch, state, cuts, stamp_us, token FROM runs WHERE source = ? AND epoch = ?",
    );
    let query = query.bind(source.name()).bind(to_stored(epoch)?);
    let row: Option<RunRow> = tx.fetch_first(query).await?;
    run_rules::expect(source, epoch, row.map(|row| row.0))
}

/// Returns the newest record in any state.
pub(super) async fn read_last(tx: &mut Session, source: Source) -> Result<Option<Run>> {
    let query = sqlx::query(
        "SELECT epoch, state, cuts, stamp_us, token FROM runs WHERE source = ?
         ORDER BY epoch DESC LIMIT 1",
    );
    let row: Option<RunRow> = tx.fetch_first(query.bind(source.name())).await?;
    Ok(row.map(|row| row.0))
}

/// Returns the record of run `epoch`, or an error if a newer run exists.
pub(super) async fn expect_last(tx: &mut Session, source: Source, epoch: Epoch) -> Result<Run> {
    run_rules::expect_last(source, epoch, read_last(tx, source).await?)
}

/// Returns all run records except complete ones that are older than any record still in use.
pub(super) async fn read_recent(
    tx: &mut Session,
    source: Source,
    newest_of_views: impl Iterator<Item = Epoch>,
) -> Result<Runs> {
    let newest = "SELECT max(epoch) FROM runs WHERE source = ? AND state = 'complete'";
    let newest = sqlx::query(newest).bind(source.name());
    let (newest,): (Option<i64>,) = tx.fetch_one(newest).await?;
    let newest = newest.map_or(0, i64::cast_unsigned);
    let floor = run_rules::find_oldest_visible_run(newest, newest_of_views);
    let query = sqlx::query(
        "SELECT epoch, state, cuts, stamp_us, token FROM runs WHERE source = ?1 AND epoch >= ?2
         UNION ALL
         SELECT epoch, state, cuts, stamp_us, token FROM runs
         WHERE source = ?1 AND epoch < ?2 AND state IN ('proposed', 'sealed', 'abandoned')",
    );
    let query = query.bind(source.name()).bind(to_stored(floor)?);
    let rows: Vec<RunRow> = tx.fetch_all(query).await?;
    Ok(rows.into_iter().map(|row| row.0).collect())
}

/// Deletes the record of the run that expires when `epoch` is proposed.
pub(super) async fn delete_expired(
    tx: &mut Session,
    source: Source,
    epoch: Epoch,
    retained: u64,
) -> Result<()> {
    let newest = sqlx::query(
        "SELECT min(epoch) FROM (
             SELECT coalesce(max(epoch), 0) AS epoch FROM runs WHERE source = ?1 AND state = 'complete'
             UNION ALL
             SELECT epoch FROM newest WHERE source = ?1)",
    );
    let (newest,): (Option<i64>,) = tx.fetch_one(newest.bind(source.name())).await?;
    let newest = newest.map_or(0, i64::cast_unsigned);
    let floor = run_rules::find_oldest_visible_run(newest, std::iter::empty());
    let Some(expired) = run_rules::find_expired_run(epoch, retained, floor) else {
        return Ok(());
    };
    let query = sqlx::query("DELETE FROM runs WHERE source = ? AND epoch = ?")
        .bind(source.name())
        .bind(to_stored(expired)?);
    tx.execute(query).await.map(drop)
}

/// Returns the details of the runs within some epochs, newest first.
pub(super) async fn run_details(
    session: &mut Session,
    source: Source,
    epochs: (Epoch, Epoch),
    limit: usize,
) -> Result<Vec<RunDetails>> {
    let query = sqlx::query(
        "SELECT epoch, state, cuts, stamp_us, token, started_at_ms, ended_at_ms, report FROM runs
         WHERE source = ? AND epoch BETWEEN ? AND ? ORDER BY epoch DESC LIMIT ?",
    )
    .bind(source.name())
    .bind(to_stored(epochs.0)?)
    .bind(i64::try_from(epochs.1).unwrap_or(i64::MAX))
    .bind(i64::try_from(limit).unwrap_or(i64::MAX));
    let decode_details = |row: &SqliteRow| -> Result<RunDetails, BoxError> {
        Ok(RunDetails {
            run: decode_run(row)?,
            started_at_ms: row.try_get(5)?,
            ended_at_ms: row.try_get(6)?,
            report: serde_json::from_str(row.try_get(7)?)?,
        })
    };
    let mut details = Vec::new();
    session
        .for_each_row(query, |row| {
            details.push(decode_details(row).map_err(sqlx::Error::Decode)?);
            Ok(())
        })
        .await?;
    Ok(details)
}

/// Writes a record. The details of an existing run are preserved.
pub(super) async fn put(tx: &mut Session, source: Source, run: &Run, now_ms: i64) -> Result<()> {
    let cuts = serde_json::to_string(&run.cuts);
    let cuts = cuts.map_err(|error| Error::broken("encoding a run record", error))?;
    let ended_at_ms =
        matches!(run.state, RunState::Complete | RunState::Abandoned).then_some(now_ms);
    let query = sqlx::query(
        "INSERT INTO runs (source, epoch, state, cuts, stamp_us, token, started_at_ms, ended_at_ms,
                           report)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'null')
         ON CONFLICT DO UPDATE
         SET state = excluded.state, cuts = excluded.cuts, stamp_us = excluded.stamp_us,
             token = excluded.token, ended_at_ms = excluded.ended_at_ms",
    )
    .bind(source.name())
    .bind(to_stored(run.epoch)?)
    .bind(run.state.name())
    .bind(cuts)
    .bind(run.stamp_us)
    .bind(&run.token)
    .bind(now_ms)
    .bind(ended_at_ms);
    tx.execute(query).await.map(drop)
}

/// Returns a stamp that is larger than all earlier ones, even if the clock went back.
pub(super) async fn next_stamp(tx: &mut Session, source: Source, now_ms: i64) -> Result<i64> {
    let query = sqlx::query(
        "INSERT INTO stamps (source, last_us) VALUES (?, ?)
         ON CONFLICT DO UPDATE SET last_us = max(last_us + 1, excluded.last_us)
         RETURNING last_us",
    )
    .bind(source.name())
    .bind(now_ms.saturating_mul(US_PER_MS));
    let (stamp_us,) = tx.fetch_one(query).await?;
    Ok(stamp_us)
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

fn decode_run(row: &SqliteRow) -> Result<Run, BoxError> {
    let state: String = row.try_get(1)?;
    Ok(Run {
        epoch: row.try_get::<i64, _>(0)?.cast_unsigned(),
        state: serde_json::from_value(state.into())?,
        cuts: serde_json::from_str(row.try_get(2)?)?,
        stamp_us: row.try_get(3)?,
        token: row.try_get(4)?,
    })
}
