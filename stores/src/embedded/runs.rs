//! Run records in `views.db`, which change by compare-and-set within a transaction.

use schemas::seam::{Epoch, Run, RunState, Runs};
use schemas::source::Source;
use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, Row};

use super::session::Session;
use super::statement::stored;
use crate::views::RunStory;
use crate::{Error, Result, run_rules};

const US_PER_MS: i64 = 1000;

/// A record of a run.
struct Record(Run);

impl FromRow<'_, SqliteRow> for Record {
    fn from_row(row: &SqliteRow) -> Result<Self, sqlx::Error> {
        run_of(row).map(Self).map_err(sqlx::Error::Decode)
    }
}

/// The record of a run that must be there.
pub(super) async fn expect(tx: &mut Session, source: Source, epoch: Epoch) -> Result<Run> {
    let query = sqlx::query(
        "SELECT epoch, state, cuts, stamp_us, token FROM runs WHERE source = ? AND epoch = ?",
    );
    let query = query.bind(source.name()).bind(stored(epoch)?);
    let found: Option<Record> = tx.first(query).await?;
    run_rules::expect(source, epoch, found.map(|found| found.0))
}

/// The newest record, whatever its state.
pub(super) async fn last(tx: &mut Session, source: Source) -> Result<Option<Run>> {
    let query = sqlx::query(
        "SELECT epoch, state, cuts, stamp_us, token FROM runs WHERE source = ?
         ORDER BY epoch DESC LIMIT 1",
    );
    let found: Option<Record> = tx.first(query.bind(source.name())).await?;
    Ok(found.map(|found| found.0))
}

/// The record of run `epoch`, if no newer run has been recorded.
pub(super) async fn expect_last(tx: &mut Session, source: Source, epoch: Epoch) -> Result<Run> {
    run_rules::expect_last(source, epoch, last(tx, source).await?)
}

/// All run records but complete ones that are older than any that is still referred to.
pub(super) async fn recent(
    tx: &mut Session,
    source: Source,
    newest_of_views: impl Iterator<Item = Epoch>,
) -> Result<Runs> {
    let newest = "SELECT max(epoch) FROM runs WHERE source = ? AND state = 'complete'";
    let newest = sqlx::query(newest).bind(source.name());
    let (newest,): (Option<i64>,) = tx.one(newest).await?;
    let newest = newest.map_or(0, i64::cast_unsigned);
    let floor = run_rules::floor(newest, newest_of_views);
    let query = sqlx::query(
        "SELECT epoch, state, cuts, stamp_us, token FROM runs WHERE source = ?1 AND epoch >= ?2
         UNION ALL
         SELECT epoch, state, cuts, stamp_us, token FROM runs
         WHERE source = ?1 AND epoch < ?2 AND state IN ('proposed', 'sealed', 'abandoned')",
    );
    let query = query.bind(source.name()).bind(stored(floor)?);
    let found: Vec<Record> = tx.all(query).await?;
    Ok(found.into_iter().map(|found| found.0).collect())
}

/// Deletes the record of the run that is outlived once `epoch` is proposed.
pub(super) async fn forget_outlived(
    tx: &mut Session,
    source: Source,
    epoch: Epoch,
    kept: u64,
) -> Result<()> {
    let newest = sqlx::query(
        "SELECT min(epoch) FROM (
             SELECT coalesce(max(epoch), 0) AS epoch FROM runs WHERE source = ?1 AND state = 'complete'
             UNION ALL
             SELECT epoch FROM newest WHERE source = ?1)",
    );
    let (newest,): (Option<i64>,) = tx.one(newest.bind(source.name())).await?;
    let newest = newest.map_or(0, i64::cast_unsigned);
    let floor = run_rules::floor(newest, std::iter::empty());
    let Some(outlived) = run_rules::outlived(epoch, kept, floor) else {
        return Ok(());
    };
    let query = sqlx::query("DELETE FROM runs WHERE source = ? AND epoch = ?")
        .bind(source.name())
        .bind(stored(outlived)?);
    tx.execute(query).await.map(drop)
}

/// The stories of runs up to `epoch`, newest first.
pub(super) async fn stories(
    session: &mut Session,
    source: Source,
    epochs: (Epoch, Epoch),
    limit: usize,
) -> Result<Vec<RunStory>> {
    let query = sqlx::query(
        "SELECT epoch, state, cuts, stamp_us, token, started_at_ms, ended_at_ms, report FROM runs
         WHERE source = ? AND epoch BETWEEN ? AND ? ORDER BY epoch DESC LIMIT ?",
    )
    .bind(source.name())
    .bind(stored(epochs.0)?)
    .bind(i64::try_from(epochs.1).unwrap_or(i64::MAX))
    .bind(i64::try_from(limit).unwrap_or(i64::MAX));
    let story = |row: &SqliteRow| -> Result<RunStory, BoxError> {
        Ok(RunStory {
            run: run_of(row)?,
            started_at_ms: row.try_get(5)?,
            ended_at_ms: row.try_get(6)?,
            report: serde_json::from_str(row.try_get(7)?)?,
        })
    };
    let mut stories = Vec::new();
    session
        .each(query, |row| {
            stories.push(story(row).map_err(sqlx::Error::Decode)?);
            Ok(())
        })
        .await?;
    Ok(stories)
}

/// Writes a record; the story of one that is there goes on.
pub(super) async fn put(tx: &mut Session, source: Source, run: &Run, now_ms: i64) -> Result<()> {
    let cuts = serde_json::to_string(&run.cuts);
    let cuts = cuts.map_err(|error| Error::broken("writing a run record", error))?;
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
    .bind(stored(run.epoch)?)
    .bind(run.state.name())
    .bind(cuts)
    .bind(run.stamp_us)
    .bind(&run.token)
    .bind(now_ms)
    .bind(ended_at_ms);
    tx.execute(query).await.map(drop)
}

/// A stamp that is larger than all before it, also where the clock went back.
pub(super) async fn next_stamp(tx: &mut Session, source: Source, now_ms: i64) -> Result<i64> {
    let query = sqlx::query(
        "INSERT INTO stamps (source, last_us) VALUES (?, ?)
         ON CONFLICT DO UPDATE SET last_us = max(last_us + 1, excluded.last_us)
         RETURNING last_us",
    )
    .bind(source.name())
    .bind(now_ms.saturating_mul(US_PER_MS));
    let (stamp_us,) = tx.one(query).await?;
    Ok(stamp_us)
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
