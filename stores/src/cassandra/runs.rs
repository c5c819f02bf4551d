//! Run records: one partition per source, changed by compare-and-set.
//!
//! A change reads the partition serially, decides by [`crate::run_rules`], and writes if the
//! version is still the same. After a write with an unknown outcome, another serial read shows it:
//! the summary contains the ids of the last changes.
//!
//! Readers read summary and runs concurrently, and repeat unless both have the same version. So
//! runs and newest epochs are from one moment. They read with the ordinary consistency: a quorum
//! sees every acknowledged change, and an undecided change counts as not done.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use schemas::seam::{Epoch, Run, RunState, Runs};
use schemas::source::Source;
use scylla::DeserializeRow;
use scylla::value::MaybeUnset;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::session::{CasOutcome, Cql};
use crate::run_rules::{self, expect_last_publishing};
use crate::views::{RunDetails, RunRecords, TableResults};
use crate::{Error, Result};

/// The maximum number of remembered change ids: more than can occur while one change waits for a
/// response.
const CHANGE_IDS_MAX: usize = 16;
/// The maximum number of attempts of a reader that finds changes.
const READ_TRIES_MAX: usize = 8;

/// State of a source besides its runs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Summary {
    pub(super) last_stamp_us: Option<i64>,
    /// The newest complete run.
    pub(super) complete: Epoch,
    pub(super) newest: BTreeMap<String, Epoch>,
    pub(super) results: BTreeMap<String, TableResults>,
    /// Endings of the names of the tables that are being dropped.
    pub(super) dropping: BTreeSet<String>,
    changes: VecDeque<String>,
}

impl Summary {
    pub(super) fn floor(&self) -> Epoch {
        run_rules::find_oldest_visible_run(self.complete, self.newest.values().copied())
    }

    /// Assigns a new stamp, and returns it in microseconds.
    pub(super) fn assign_stamp(&mut self, now_ms: i64) -> i64 {
        let stamp_us = run_rules::next_stamp_us(self.last_stamp_us, now_ms);
        self.last_stamp_us = Some(stamp_us);
        stamp_us
    }
}

/// State on which a change decides.
#[derive(Debug, Default)]
pub(super) struct RunsSnapshot {
    version: Option<i64>,
    pub(super) summary: Summary,
    /// The newest record in any state.
    pub(super) last: Option<Run>,
    /// The record of the requested run.
    pub(super) run: Option<Run>,
}

/// State that a change writes.
#[derive(Debug, Default)]
pub(super) struct RunsChange {
    pub(super) summary: Summary,
    pub(super) run: Option<RunUpdate>,
}

/// A record to write. Details of an existing run are preserved.
#[derive(Debug)]
pub(super) struct RunUpdate {
    pub(super) run: Run,
    /// Set for a new run.
    pub(super) started_at_ms: Option<i64>,
    /// Set for a complete or abandoned run.
    pub(super) ended_at_ms: Option<i64>,
    /// A run whose record is deleted, because the partition must not grow forever.
    pub(super) expired: Option<Epoch>,
}

/// Reads run records. Remembers which records are still in use.
#[derive(Debug, Default)]
pub(super) struct RunRecordReader {
    /// The epoch from which records were read last, by source.
    floors: Mutex<HashMap<Source, Epoch>>,
}

const COLUMNS: &str = "version, summary, epoch, state, cuts, stamp_us, proposal";

/// A row: version and summary of the partition, and the columns of a run.
#[derive(DeserializeRow)]
struct Row {
    version: Option<i64>,
    summary: Option<String>,
    epoch: Option<i64>,
    state: Option<String>,
    cuts: Option<String>,
    stamp_us: Option<i64>,
    proposal: Option<String>,
}

/// Columns of a run.
struct RunColumns {
    epoch: Option<i64>,
    state: Option<String>,
    cuts: Option<String>,
    stamp_us: Option<i64>,
    token: Option<String>,
}

impl RunRecordReader {
    /// Reads the records and the newest epochs from one moment.
    pub(super) async fn read(&self, cql: &Cql, source: Source) -> Result<RunRecords> {
        let operation = "reading run records";
        for _ in 0..READ_TRIES_MAX {
            let cached = self.floors().get(&source).copied();
            let from = match cached {
                Some(from) => from,
                None => read_summary(cql, operation, source).await?.1.floor(),
            };
            let (summary_read, runs_read) = tokio::join!(
                read_summary(cql, operation, source),
                runs_from(cql, operation, source, from)
            );
            let ((version, summary), (versions, runs)) = (summary_read?, runs_read?);
            let floor = summary.floor();
            self.floors().insert(source, floor);
            if floor >= from && versions.iter().all(|other| *other == version) {
                return Ok(RunRecords {
                    runs,
                    complete_epochs: summary.newest,
                });
            }
        }
        Err(cql
            .retry_policy()
            .unavailable(operation, "the records changed during every attempt"))
    }

    fn floors(&self) -> std::sync::MutexGuard<'_, HashMap<Source, Epoch>> {
        self.floors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the summary and its version.
pub(super) async fn read_summary(
    cql: &Cql,
    operation: &str,
    source: Source,
) -> Result<(Option<i64>, Summary)> {
    let text = "SELECT version, summary FROM runs WHERE source = ? LIMIT 1";
    let row: Option<(_, Option<String>)> =
        cql.fetch_first(operation, text, (source.name(),)).await?;
    let (version, text) = row.unwrap_or_default();
    Ok((version, parse_summary(cql, operation, text.as_deref())?))
}

fn parse_summary(cql: &Cql, operation: &str, text: Option<&str>) -> Result<Summary> {
    let Some(text) = text else {
        return Ok(Summary::default());
    };
    serde_json::from_str(text).map_err(|error| damaged_error(cql, operation, error))
}

fn damaged_error(cql: &Cql, operation: &str, reason: impl std::fmt::Display) -> Error {
    let advice = "restore the keyspace from a backup";
    cql.broken(
        operation,
        format!("a run record is damaged: {reason}; {advice}"),
    )
}

/// Reads the runs from an epoch on, with their versions.
async fn runs_from(
    cql: &Cql,
    operation: &str,
    source: Source,
    from: Epoch,
) -> Result<(Vec<Option<i64>>, Runs)> {
    let text = "SELECT version, epoch, state, cuts, stamp_us, proposal FROM runs
                WHERE source = ? AND epoch >= ?";
    let values = (source.name(), from.cast_signed());
    let statement = cql.prepare(operation, text).await?;
    let (mut versions, mut runs) = (Vec::new(), Vec::new());
    let rows = cql.fetch_all(operation, &statement, &values).await?;
    for (version, epoch, state, cuts, stamp_us, token) in rows {
        versions.push(version);
        runs.extend(decode_run(
            cql,
            operation,
            RunColumns {
                epoch,
                state,
                cuts,
                stamp_us,
                token,
            },
        )?);
    }
    Ok((versions, runs.into_iter().collect()))
}

/// Decodes the run of a row; `None` if the row has only the columns of the partition.
fn decode_run(cql: &Cql, operation: &str, columns: RunColumns) -> Result<Option<Run>> {
    let (Some(epoch), Some(state)) = (columns.epoch, columns.state) else {
        return Ok(None);
    };
    let broken = |reason: &dyn std::fmt::Display| damaged_error(cql, operation, reason);
    let state = serde_json::from_value(state.into()).map_err(|error| broken(&error))?;
    let cuts = columns.cuts.ok_or_else(|| broken(&"it has no cuts"))?;
    Ok(Some(Run {
        epoch: epoch.cast_unsigned(),
        state,
        cuts: serde_json::from_str(&cuts).map_err(|error| broken(&error))?,
        stamp_us: columns.stamp_us.ok_or_else(|| broken(&"it has no stamp"))?,
        token: columns.token.unwrap_or_default(),
    }))
}

impl Row {
    fn run(self, cql: &Cql, operation: &str) -> Result<Option<Run>> {
        let Self {
            epoch,
            state,
            cuts,
            stamp_us,
            proposal,
            ..
        } = self;
        decode_run(
            cql,
            operation,
            RunColumns {
                epoch,
                state,
                cuts,
                stamp_us,
                token: proposal,
            },
        )
    }
}

/// Reads the present state serially.
pub(super) async fn read_snapshot(
    cql: &Cql,
    operation: &str,
    source: Source,
    epoch: Option<Epoch>,
) -> Result<RunsSnapshot> {
    let text = format!("SELECT {COLUMNS} FROM runs WHERE source = ? LIMIT 1");
    let row: Option<Row> = cql
        .fetch_first_serial(operation, &text, (source.name(),))
        .await?;
    let Some(mut row) = row else {
        return Ok(RunsSnapshot::default());
    };
    let (version, summary) = (row.version, row.summary.take());
    let last = row.run(cql, operation)?;
    let run = match (epoch, &last) {
        (Some(epoch), Some(last)) if last.epoch == epoch => Some(last.clone()),
        // Only the report of an older run can change.
        (Some(epoch), Some(_)) => find_run(cql, operation, source, epoch).await?,
        _ => None,
    };
    Ok(RunsSnapshot {
        version,
        summary: parse_summary(cql, operation, summary.as_deref())?,
        last,
        run,
    })
}

async fn find_run(cql: &Cql, operation: &str, source: Source, epoch: Epoch) -> Result<Option<Run>> {
    let text = format!("SELECT {COLUMNS} FROM runs WHERE source = ? AND epoch = ?");
    let values = (source.name(), epoch.cast_signed());
    let row: Option<Row> = cql.fetch_first_serial(operation, &text, values).await?;
    row.map_or(Ok(None), |row| row.run(cql, operation))
}

/// Returns the run if it may be published with this stamp: the last one, sealed or complete.
pub(super) async fn expect_stamp(
    cql: &Cql,
    source: Source,
    epoch: Epoch,
    stamp_us: i64,
) -> Result<Run> {
    let snapshot = read_snapshot(cql, "reading the run that is published", source, None).await?;
    expect_last_publishing(source, (epoch, stamp_us), snapshot.last)
}

/// Changes the records of a source. `decide` gets the present state with run `epoch`, and may be
/// called several times. If it returns no change, only its outcome is returned.
pub(super) async fn change<T>(
    cql: &Cql,
    operation: &str,
    source: Source,
    epoch: Option<Epoch>,
    decide: impl Fn(&RunsSnapshot) -> Result<(Option<RunsChange>, T)>,
) -> Result<T> {
    let deadline = Instant::now() + cql.retry_policy().call_timeout();
    let mut pauses = cql.retry_policy().pauses();
    loop {
        let snapshot = read_snapshot(cql, operation, source, epoch).await?;
        let (change, outcome) = decide(&snapshot)?;
        let Some(mut change) = change else {
            return Ok(outcome);
        };
        let id = Uuid::new_v4().simple().to_string();
        change.summary.changes.push_back(id.clone());
        while change.summary.changes.len() > CHANGE_IDS_MAX {
            change.summary.changes.pop_front();
        }
        let failure = match write(cql, operation, source, snapshot.version, &change).await? {
            CasOutcome::Applied => return Ok(outcome),
            CasOutcome::NotApplied(_) => cql.retry_policy().unavailable(
                operation,
                "other processes changed the records during every attempt",
            ),
            CasOutcome::Unknown(error) => {
                let current = read_snapshot(cql, operation, source, None).await?;
                if current.summary.changes.contains(&id) {
                    return Ok(outcome);
                }
                error
            }
        };
        let pause = pauses.next().unwrap_or_default();
        if Instant::now() + pause > deadline {
            return Err(failure);
        }
        sleep(pause).await;
    }
}

async fn write(
    cql: &Cql,
    operation: &str,
    source: Source,
    version: Option<i64>,
    change: &RunsChange,
) -> Result<CasOutcome> {
    let broken = |error| cql.broken(operation, error);
    let summary = serde_json::to_string(&change.summary).map_err(broken)?;
    let set = "UPDATE runs SET version = ?, summary = ? WHERE source = ? IF version = ?";
    let partition_values = (version.unwrap_or(0) + 1, &summary, source.name(), version);
    let Some(update) = &change.run else {
        return cql.compare_and_set(operation, set, partition_values).await;
    };
    let text = "INSERT INTO runs
                (source, epoch, state, cuts, stamp_us, proposal, started_at_ms, ended_at_ms)
                VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
    let mut statements = vec![
        cql.prepare(operation, set).await?,
        cql.prepare(operation, text).await?,
    ];
    let cuts = serde_json::to_string(&update.run.cuts).map_err(broken)?;
    let run_values = (
        source.name(),
        update.run.epoch.cast_signed(),
        update.run.state.name(),
        &cuts,
        update.run.stamp_us,
        &update.run.token,
        MaybeUnset::from_option(update.started_at_ms),
        MaybeUnset::from_option(update.ended_at_ms),
    );
    let Some(expired) = update.expired else {
        return cql
            .compare_and_set_batch(operation, statements, (partition_values, run_values))
            .await;
    };
    let delete = "DELETE FROM runs WHERE source = ? AND epoch = ?";
    statements.push(cql.prepare(operation, delete).await?);
    let expired_values = (source.name(), expired.cast_signed());
    cql.compare_and_set_batch(
        operation,
        statements,
        (partition_values, run_values, expired_values),
    )
    .await
}

/// Builds an update that changes a run's state and preserves its details.
pub(super) fn build_update(run: Run, now_ms: i64) -> RunUpdate {
    let is_over = matches!(run.state, RunState::Complete | RunState::Abandoned);
    RunUpdate {
        run,
        started_at_ms: None,
        ended_at_ms: is_over.then_some(now_ms),
        expired: None,
    }
}

/// Replaces a run's report.
pub(super) async fn report(
    cql: &Cql,
    source: Source,
    epoch: Epoch,
    report: &serde_json::Value,
) -> Result<()> {
    let operation = "writing the report of a run";
    let text = "UPDATE runs SET report = ? WHERE source = ? AND epoch = ? IF EXISTS";
    let report = report.to_string();
    let values = (&report, source.name(), epoch.cast_signed());
    match cql
        .compare_and_set_until_known(operation, text, values)
        .await?
    {
        true => Ok(()),
        false => Err(run_rules::refused_error(
            source,
            epoch,
            "the run does not exist",
        )),
    }
}

/// Reads the details of the newest runs within some epochs, newest first.
pub(super) async fn run_details(
    cql: &Cql,
    source: Source,
    epochs: (Epoch, Epoch),
    limit: usize,
) -> Result<Vec<RunDetails>> {
    let operation = "reading the details of runs";
    let text = "SELECT epoch, state, cuts, stamp_us, proposal, started_at_ms, ended_at_ms, report
                FROM runs WHERE source = ? AND epoch >= ? AND epoch <= ? LIMIT ?";
    let bound = |epoch: Epoch| i64::try_from(epoch).unwrap_or(i64::MAX);
    let limit = i32::try_from(limit).unwrap_or(i32::MAX);
    let values = (source.name(), bound(epochs.0), bound(epochs.1), limit);
    let statement = cql.prepare(operation, text).await?;
    let mut details = Vec::new();
    let rows = cql.fetch_all(operation, &statement, &values).await?;
    for (epoch, state, cuts, stamp_us, token, started, ended, report) in rows {
        let (started, report): (Option<i64>, Option<String>) = (started, report);
        let Some(run) = decode_run(
            cql,
            operation,
            RunColumns {
                epoch,
                state,
                cuts,
                stamp_us,
                token,
            },
        )?
        else {
            continue;
        };
        let report = report.as_deref().unwrap_or("null");
        details.push(RunDetails {
            run,
            started_at_ms: started.unwrap_or_default(),
            ended_at_ms: ended,
            report: serde_json::from_str(report)
                .map_err(|error| damaged_error(cql, operation, error))?,
        });
    }
    Ok(details)
}
