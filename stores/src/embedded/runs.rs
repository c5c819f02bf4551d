//! Run records in `views.db`, which change by compare-and-set within a transaction.

use schemas::seam::{Epoch, Run, RunState, Runs};
use schemas::source::Source;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

use super::db::Opened;
use super::statement::stored;
use crate::views::RunStory;
use crate::{Error, Result, run_rules};

const US_PER_MS: i64 = 1000;

/// The record of a run.
pub(super) async fn find(
    connection: &mut SqliteConnection,
    db: &Opened,
    source: Source,
    epoch: Epoch,
) -> Result<Option<Run>> {
    let doing = "reading a run record";
    let row = sqlx::query(
        "SELECT epoch, state, cuts, stamp_us, token FROM runs WHERE source = ? AND epoch = ?",
    )
    .bind(source.name())
    .bind(stored(epoch)?)
    .fetch_optional(connection)
    .await
    .map_err(db.fault(doing))?;
    row.map(|row| run_of(&row).map_err(|error| db.damaged(doing, error)))
        .transpose()
}

/// The record of a run that must be there.
pub(super) async fn expect(
    connection: &mut SqliteConnection,
    db: &Opened,
    source: Source,
    epoch: Epoch,
) -> Result<Run> {
    let found = find(connection, db, source, epoch).await?;
    run_rules::expect(source, epoch, found)
}

/// The newest record, whatever its state.
pub(super) async fn last(
    connection: &mut SqliteConnection,
    db: &Opened,
    source: Source,
) -> Result<Option<Run>> {
    let doing = "reading the last run record";
    let row = sqlx::query(
        "SELECT epoch, state, cuts, stamp_us, token FROM runs WHERE source = ?
         ORDER BY epoch DESC LIMIT 1",
    )
    .bind(source.name())
    .fetch_optional(connection)
    .await
    .map_err(db.fault(doing))?;
    row.map(|row| run_of(&row).map_err(|error| db.damaged(doing, error)))
        .transpose()
}

/// The record of run `epoch`, if no newer run has been recorded.
pub(super) async fn expect_last(
    connection: &mut SqliteConnection,
    db: &Opened,
    source: Source,
    epoch: Epoch,
) -> Result<Run> {
    run_rules::expect_last(source, epoch, last(connection, db, source).await?)
}

/// All run records but complete ones that are older than any that is still referred to.
pub(super) async fn recent(
    connection: &mut SqliteConnection,
    db: &Opened,
    source: Source,
    newest_of_views: impl Iterator<Item = Epoch>,
) -> Result<Runs> {
    let doing = "reading run records";
    let fault = db.fault(doing);
    let newest: Option<i64> =
        sqlx::query_scalar("SELECT max(epoch) FROM runs WHERE source = ? AND state = 'complete'")
            .bind(source.name())
            .fetch_one(&mut *connection)
            .await
            .map_err(fault)?;
    let newest = newest.map_or(0, i64::cast_unsigned);
    let floor = run_rules::floor(newest, newest_of_views);
    let rows = sqlx::query(
        "SELECT epoch, state, cuts, stamp_us, token FROM runs WHERE source = ?1 AND epoch >= ?2
         UNION ALL
         SELECT epoch, state, cuts, stamp_us, token FROM runs
         WHERE source = ?1 AND epoch < ?2 AND state IN ('proposed', 'sealed', 'abandoned')",
    )
    .bind(source.name())
    .bind(stored(floor)?)
    .fetch_all(connection)
    .await
    .map_err(fault)?;
    rows.iter()
        .map(|row| run_of(row).map_err(|error| db.damaged(doing, error)))
        .collect()
}

/// Deletes the record of the run that is outlived once `epoch` is proposed.
pub(super) async fn forget_outlived(
    connection: &mut SqliteConnection,
    db: &Opened,
    source: Source,
    epoch: Epoch,
    kept: u64,
) -> Result<()> {
    let fault = db.fault("deleting an old run record");
    let newest: Option<i64> = sqlx::query_scalar(
        "SELECT min(epoch) FROM (
             SELECT coalesce(max(epoch), 0) AS epoch FROM runs WHERE source = ?1 AND state = 'complete'
             UNION ALL
             SELECT epoch FROM newest WHERE source = ?1)",
    )
    .bind(source.name())
    .fetch_one(&mut *connection)
    .await
    .map_err(fault)?;
    let newest = newest.map_or(0, i64::cast_unsigned);
    let floor = run_rules::floor(newest, std::iter::empty());
    let Some(outlived) = run_rules::outlived(epoch, kept, floor) else {
        return Ok(());
    };
    sqlx::query("DELETE FROM runs WHERE source = ? AND epoch = ?")
        .bind(source.name())
        .bind(stored(outlived)?)
        .execute(connection)
        .await
        .map_err(fault)?;
    Ok(())
}

/// The stories of runs up to `epoch`, newest first.
pub(super) async fn stories(
    connection: &mut SqliteConnection,
    db: &Opened,
    source: Source,
    epochs: (Epoch, Epoch),
    limit: usize,
) -> Result<Vec<RunStory>> {
    let doing = "reading the stories of runs";
    let rows = sqlx::query(
        "SELECT epoch, state, cuts, stamp_us, token, started_at_ms, ended_at_ms, report FROM runs
         WHERE source = ? AND epoch BETWEEN ? AND ? ORDER BY epoch DESC LIMIT ?",
    )
    .bind(source.name())
    .bind(stored(epochs.0)?)
    .bind(i64::try_from(epochs.1).unwrap_or(i64::MAX))
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .fetch_all(connection)
    .await
    .map_err(db.fault(doing))?;
    let story = |row: &SqliteRow| -> Result<RunStory, BoxError> {
        Ok(RunStory {
            run: run_of(row)?,
            started_at_ms: row.try_get(5)?,
            ended_at_ms: row.try_get(6)?,
            report: serde_json::from_str(row.try_get(7)?)?,
        })
    };
    rows.iter()
        .map(|row| story(row).map_err(|error| db.damaged(doing, error)))
        .collect()
}

/// Writes a record; the story of one that is there goes on.
pub(super) async fn put(
    connection: &mut SqliteConnection,
    db: &Opened,
    source: Source,
    run: &Run,
    now_ms: i64,
) -> Result<()> {
    let doing = "writing a run record";
    let cuts = serde_json::to_string(&run.cuts).map_err(|error| Error::broken(doing, error))?;
    let ended_at_ms =
        matches!(run.state, RunState::Complete | RunState::Abandoned).then_some(now_ms);
    sqlx::query(
        "INSERT INTO runs (source, epoch, state, cuts, stamp_us, token, started_at_ms, ended_at_ms,
                           report)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'null')
         ON CONFLICT DO UPDATE
         SET state = excluded.state, cuts = excluded.cuts, stamp_us = excluded.stamp_us,
             token = excluded.token, ended_at_ms = excluded.ended_at_ms",
    )
    .bind(source.name())
    .bind(stored(run.epoch)?)
    .bind(run.state.name())
    .bind(cuts)
    .bind(run.stamp_us)
    .bind(&run.token)
    .bind(now_ms)
    .bind(ended_at_ms)
    .execute(connection)
    .await
    .map_err(db.fault(doing))?;
    Ok(())
}

/// A stamp that is larger than all before it, also where the clock went back.
pub(super) async fn next_stamp(
    connection: &mut SqliteConnection,
    db: &Opened,
    source: Source,
    now_ms: i64,
) -> Result<i64> {
    sqlx::query_scalar(
        "INSERT INTO stamps (source, last_us) VALUES (?, ?)
         ON CONFLICT DO UPDATE SET last_us = max(last_us + 1, excluded.last_us)
         RETURNING last_us",
    )
    .bind(source.name())
    .bind(now_ms.saturating_mul(US_PER_MS))
    .fetch_one(connection)
    .await
    .map_err(db.fault("taking a stamp"))
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

fn run_of(row: &SqliteRow) -> Result<Run, BoxError> {
    let state: String = row.try_get(1)?;
    Ok(Run {
        epoch: row.try_get::<i64, _>(0)?.cast_unsigned(),
        state: serde_json::from_value(state.into())?,
        cuts: serde_json::from_str(row.try_get(2)?)?,
        stamp_us: row.try_get(3)?,
        token: row.try_get(4)?,
    })
}
