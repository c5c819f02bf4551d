//! Run records: one partition for each source, changed by compare-and-set.
//!
//! A change reads the partition serially, decides by [`crate::run_rules`], and writes on condition
//! that the version is still the one it read. What the server does not tell of a write that timed out
//! is found by reading serially once more: the summary holds the ids of the last changes.
//!
//! Readers read summary and runs at once, and begin anew unless both tell the same version: so runs
//! and newest epochs are of one moment. They read with the ordinary consistency: what a change has
//! answered is seen by a quorum, and what is still undecided counts as not done yet.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use schemas::seam::{Epoch, Run, RunState, Runs};
use schemas::source::Source;
use scylla::DeserializeRow;
use scylla::value::MaybeUnset;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::session::{Cql, Outcome};
use crate::run_rules::{self, expect_at};
use crate::views::{RunStory, RunsSeen, TableResults};
use crate::{Error, Result};

/// Ids of changes that are remembered: more than can be made while one of them waits for an answer.
const CHANGES: usize = 16;
/// Readers that meet a change begin anew, so often.
const READ_AGAIN: usize = 8;

/// What is known of a source besides its runs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Summary {
    pub(super) last_stamp_us: Option<i64>,
    /// The newest complete run.
    pub(super) complete: Epoch,
    pub(super) newest: BTreeMap<String, Epoch>,
    pub(super) results: BTreeMap<String, TableResults>,
    /// What the tables end in that are about to go.
    pub(super) dropping: BTreeSet<String>,
    changes: VecDeque<String>,
}

impl Summary {
    pub(super) fn floor(&self) -> Epoch {
        run_rules::floor(self.complete, self.newest.values().copied())
    }

    /// Takes a new stamp.
    pub(super) fn stamp(&mut self, now_ms: i64) -> i64 {
        let stamp_us = run_rules::next_stamp(self.last_stamp_us, now_ms);
        self.last_stamp_us = Some(stamp_us);
        stamp_us
    }
}

/// What a change sees.
#[derive(Debug, Default)]
pub(super) struct Seen {
    version: Option<i64>,
    pub(super) summary: Summary,
    /// The newest record, whatever its state.
    pub(super) last: Option<Run>,
    /// The record that the change is about.
    pub(super) run: Option<Run>,
}

/// What a change writes.
#[derive(Debug, Default)]
pub(super) struct Change {
    pub(super) summary: Summary,
    pub(super) run: Option<Put>,
}

/// A record to write; the story of one that is there goes on.
#[derive(Debug)]
pub(super) struct Put {
    pub(super) run: Run,
    /// For a run that was not there before.
    pub(super) started_at_ms: Option<i64>,
    /// For a run that is over.
    pub(super) ended_at_ms: Option<i64>,
    /// A run whose record goes: they are in one partition, which must not grow for ever.
    pub(super) outlived: Option<Epoch>,
}

/// The run records.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// By source: from which run on records were read last.
    floors: Mutex<HashMap<Source, Epoch>>,
}

const COLUMNS: &str = "version, summary, epoch, state, cuts, stamp_us, proposal";

/// A row: version and summary of the partition, and the columns of its run.
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

/// The columns of a run.
type RunColumns = (
    Option<i64>,
    Option<String>,
    Option<String>,
    Option<i64>,
    Option<String>,
);

impl Records {
    /// The records and the newest epochs, as of one moment.
    pub(super) async fn seen(&self, cql: &Cql, source: Source) -> Result<RunsSeen> {
        let doing = "reading run records";
        for _ in 0..READ_AGAIN {
            let known = self.floors().get(&source).copied();
            let from = match known {
                Some(from) => from,
                None => summary(cql, doing, source).await?.1.floor(),
            };
            let (told, runs) = tokio::join!(
                summary(cql, doing, source),
                runs_from(cql, doing, source, from)
            );
            let ((version, summary), (versions, runs)) = (told?, runs?);
            let right = summary.floor();
            self.floors().insert(source, right);
            if right >= from && versions.iter().all(|seen| *seen == version) {
                return Ok(RunsSeen {
                    runs,
                    newest: summary.newest,
                });
            }
        }
        Err(cql
            .patience()
            .unavailable(doing, "they changed with every try"))
    }

    fn floors(&self) -> std::sync::MutexGuard<'_, HashMap<Source, Epoch>> {
        self.floors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The summary, with the version that it is of.
pub(super) async fn summary(
    cql: &Cql,
    doing: &str,
    source: Source,
) -> Result<(Option<i64>, Summary)> {
    let text = "SELECT version, summary FROM runs WHERE source = ? LIMIT 1";
    let row: Option<(_, Option<String>)> = cql.first(doing, text, (source.name(),)).await?;
    let (version, told) = row.unwrap_or_default();
    Ok((version, summary_of(cql, doing, told.as_deref())?))
}

fn summary_of(cql: &Cql, doing: &str, text: Option<&str>) -> Result<Summary> {
    let Some(text) = text else {
        return Ok(Summary::default());
    };
    serde_json::from_str(text).map_err(|error| damaged(cql, doing, error))
}

fn damaged(cql: &Cql, doing: &str, why: impl std::fmt::Display) -> Error {
    let advice = "restore the keyspace from a copy";
    cql.broken(doing, format!("a run record is damaged: {why}; {advice}"))
}

/// The runs from one on, with the versions that they are of.
async fn runs_from(
    cql: &Cql,
    doing: &str,
    source: Source,
    from: Epoch,
) -> Result<(Vec<Option<i64>>, Runs)> {
    let text = "SELECT version, epoch, state, cuts, stamp_us, proposal FROM runs
                WHERE source = ? AND epoch >= ?";
    let values = (source.name(), from.cast_signed());
    let statement = cql.prepare(doing, text).await?;
    let (mut versions, mut runs) = (Vec::new(), Vec::new());
    let rows = cql.all(doing, &statement, &values).await?;
    for (version, epoch, state, cuts, stamp_us, token) in rows {
        versions.push(version);
        runs.extend(run_of(cql, doing, (epoch, state, cuts, stamp_us, token))?);
    }
    Ok((versions, runs.into_iter().collect()))
}

/// The run of a row; none in a row that only tells of the partition.
fn run_of(
    cql: &Cql,
    doing: &str,
    (epoch, state, cuts, stamp_us, token): RunColumns,
) -> Result<Option<Run>> {
    let (Some(epoch), Some(state)) = (epoch, state) else {
        return Ok(None);
    };
    let broken = |why: &dyn std::fmt::Display| damaged(cql, doing, why);
    let state = serde_json::from_value(state.into()).map_err(|error| broken(&error))?;
    let cuts = cuts.ok_or_else(|| broken(&"no cuts"))?;
    Ok(Some(Run {
        epoch: epoch.cast_unsigned(),
        state,
        cuts: serde_json::from_str(&cuts).map_err(|error| broken(&error))?,
        stamp_us: stamp_us.ok_or_else(|| broken(&"no stamp"))?,
        token: token.unwrap_or_default(),
    }))
}

impl Row {
    fn run(self, cql: &Cql, doing: &str) -> Result<Option<Run>> {
        let Self {
            epoch,
            state,
            cuts,
            stamp_us,
            proposal,
            ..
        } = self;
        run_of(cql, doing, (epoch, state, cuts, stamp_us, proposal))
    }
}

/// What stands now, read serially.
pub(super) async fn look(
    cql: &Cql,
    doing: &str,
    source: Source,
    epoch: Option<Epoch>,
) -> Result<Seen> {
    let text = format!("SELECT {COLUMNS} FROM runs WHERE source = ? LIMIT 1");
    let row: Option<Row> = cql.first_serial(doing, &text, (source.name(),)).await?;
    let Some(mut row) = row else {
        return Ok(Seen::default());
    };
    let (version, summary) = (row.version, row.summary.take());
    let last = row.run(cql, doing)?;
    let run = match (epoch, &last) {
        (Some(epoch), Some(last)) if last.epoch == epoch => Some(last.clone()),
        // Nothing but its report changes in a run that another one follows.
        (Some(epoch), Some(_)) => find(cql, doing, source, epoch).await?,
        _ => None,
    };
    Ok(Seen {
        version,
        summary: summary_of(cql, doing, summary.as_deref())?,
        last,
        run,
    })
}

async fn find(cql: &Cql, doing: &str, source: Source, epoch: Epoch) -> Result<Option<Run>> {
    let text = format!("SELECT {COLUMNS} FROM runs WHERE source = ? AND epoch = ?");
    let values = (source.name(), epoch.cast_signed());
    let row: Option<Row> = cql.first_serial(doing, &text, values).await?;
    row.map_or(Ok(None), |row| row.run(cql, doing))
}

/// The run if it may be published with this stamp: the last one, sealed or complete.
pub(super) async fn expect_stamp(
    cql: &Cql,
    source: Source,
    epoch: Epoch,
    stamp_us: i64,
) -> Result<Run> {
    let seen = look(cql, "reading the run that is published", source, None).await?;
    expect_at(source, (epoch, stamp_us), seen.last)
}

/// Changes the records of a source. `decide` sees them, and run `epoch` among them; it may be asked
/// several times. Without a change it only answers.
pub(super) async fn change<T>(
    cql: &Cql,
    doing: &str,
    (source, epoch): (Source, Option<Epoch>),
    decide: impl Fn(&Seen) -> Result<(Option<Change>, T)>,
) -> Result<T> {
    let deadline = Instant::now() + cql.patience().call_for();
    let mut pauses = cql.patience().pauses();
    loop {
        let seen = look(cql, doing, source, epoch).await?;
        let (change, answer) = decide(&seen)?;
        let Some(mut change) = change else {
            return Ok(answer);
        };
        let id = Uuid::new_v4().simple().to_string();
        change.summary.changes.push_back(id.clone());
        while change.summary.changes.len() > CHANGES {
            change.summary.changes.pop_front();
        }
        let undone = match write(cql, doing, source, seen.version, &change).await? {
            Outcome::Applied => return Ok(answer),
            Outcome::NotApplied(_) => cql
                .patience()
                .unavailable(doing, "others changed the records with every try"),
            Outcome::Unknown(error) => {
                let now = look(cql, doing, source, None).await?;
                if now.summary.changes.contains(&id) {
                    return Ok(answer);
                }
                error
            }
        };
        let pause = pauses.next().unwrap_or_default();
        if Instant::now() + pause > deadline {
            return Err(undone);
        }
        sleep(pause).await;
    }
}

async fn write(
    cql: &Cql,
    doing: &str,
    source: Source,
    version: Option<i64>,
    change: &Change,
) -> Result<Outcome> {
    let broken = |error| cql.broken(doing, error);
    let summary = serde_json::to_string(&change.summary).map_err(broken)?;
    let set = "UPDATE runs SET version = ?, summary = ? WHERE source = ? IF version = ?";
    let of_partition = (version.unwrap_or(0) + 1, &summary, source.name(), version);
    let Some(put) = &change.run else {
        return cql.agree(doing, set, of_partition).await;
    };
    let text = "INSERT INTO runs
                (source, epoch, state, cuts, stamp_us, proposal, started_at_ms, ended_at_ms)
                VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
    let mut statements = vec![
        cql.prepare(doing, set).await?,
        cql.prepare(doing, text).await?,
    ];
    let cuts = serde_json::to_string(&put.run.cuts).map_err(broken)?;
    let of_run = (
        source.name(),
        put.run.epoch.cast_signed(),
        put.run.state.name(),
        &cuts,
        put.run.stamp_us,
        &put.run.token,
        MaybeUnset::from_option(put.started_at_ms),
        MaybeUnset::from_option(put.ended_at_ms),
    );
    let Some(outlived) = put.outlived else {
        return cql
            .agree_all(doing, statements, (of_partition, of_run))
            .await;
    };
    let delete = "DELETE FROM runs WHERE source = ? AND epoch = ?";
    statements.push(cql.prepare(doing, delete).await?);
    let of_outlived = (source.name(), outlived.cast_signed());
    cql.agree_all(doing, statements, (of_partition, of_run, of_outlived))
        .await
}

/// Records of which a run's state, but not its story, is all that changes.
pub(super) fn put(run: Run, now_ms: i64) -> Put {
    let is_over = matches!(run.state, RunState::Complete | RunState::Abandoned);
    Put {
        run,
        started_at_ms: None,
        ended_at_ms: is_over.then_some(now_ms),
        outlived: None,
    }
}

/// Replaces a run's report.
pub(super) async fn report(
    cql: &Cql,
    source: Source,
    epoch: Epoch,
    report: &serde_json::Value,
) -> Result<()> {
    let doing = "writing the report of a run";
    let text = "UPDATE runs SET report = ? WHERE source = ? AND epoch = ? IF EXISTS";
    let report = report.to_string();
    let values = (&report, source.name(), epoch.cast_signed());
    match cql.agree_again(doing, text, values).await? {
        true => Ok(()),
        false => Err(run_rules::refused(source, epoch, "there is no such run")),
    }
}

/// The stories of runs, newest first: the newest of some.
pub(super) async fn stories(
    cql: &Cql,
    source: Source,
    (first, last): (Epoch, Epoch),
    limit: usize,
) -> Result<Vec<RunStory>> {
    let doing = "reading the stories of runs";
    let text = "SELECT epoch, state, cuts, stamp_us, proposal, started_at_ms, ended_at_ms, report
                FROM runs WHERE source = ? AND epoch >= ? AND epoch <= ? LIMIT ?";
    let bound = |epoch: Epoch| i64::try_from(epoch).unwrap_or(i64::MAX);
    let limit = i32::try_from(limit).unwrap_or(i32::MAX);
    let values = (source.name(), bound(first), bound(last), limit);
    let statement = cql.prepare(doing, text).await?;
    let mut stories = Vec::new();
    let rows = cql.all(doing, &statement, &values).await?;
    for (epoch, state, cuts, stamp_us, token, started, ended, report) in rows {
        let (started, report): (Option<i64>, Option<String>) = (started, report);
        let Some(run) = run_of(cql, doing, (epoch, state, cuts, stamp_us, token))? else {
            continue;
        };
        let report = report.as_deref().unwrap_or("null");
        stories.push(RunStory {
            run,
            started_at_ms: started.unwrap_or_default(),
            ended_at_ms: ended,
            report: serde_json::from_str(report).map_err(|error| damaged(cql, doing, error))?,
        });
    }
    Ok(stories)
}
