//! The Restorator of boards: what is served of every key beside what the canonical store gives, row by row.
//!
//! All boards are computed from a snapshot as a run does it, and compared with what readers get: batch rows with live
//! states on top, added up by a hash of each row. Only keys whose sums differ are looked at row by row, between two
//! snapshots: who has the same rows in both, and waits for no notification, must be served just these.
//!
//! What differs is put right by notifications, as if those members had changed just now, and by a run that writes keys
//! anew whose batch rows are wrong.

mod look;
mod rows;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use futures::{StreamExt, TryStreamExt, stream};
use jobs::{Board, Job};
use schemas::entities::Group;
use schemas::key::KeyValue;
use schemas::seam::{Cut, Epoch};
use stores::intake::Intake;
use tokio_util::sync::CancellationToken;

use super::applied::Applied;
use super::cause::Cause;
use super::held_back::held_back;
use super::history::History;
use super::journal::{Journal, Restoration, RestorationKind, new_id};
use super::report::{Difference, OfCause, ReconcileReport};
use super::request::{Expected, ReconcileRequest};
use super::run_again::is_last_complete;
use crate::batch::Batch;
use crate::board::{add_uncounted_groups, encode_key, find_unsent_groups, wait_for_speed};
use crate::lease::check_stop;
use crate::pages::stream_pages;
use crate::results::Results;
use crate::{Error, Progress, Result, RunRequest};
use look::Look;
use rows::{
    AT_ONCE, Row, Rows, Served, Sum, Unread, add_to_sum, differing_members, rows_of, shown_columns,
};

/// Keys that are listed at once.
const LIST_KEYS: usize = 10_000;
/// Keys that are looked at row by row together, and their rows, about.
const EXACT_KEYS: usize = 256;
const EXACT_ROWS: u64 = 500_000;
/// How often a key is looked at that changes meanwhile.
const ROUNDS: u32 = 3;
/// Members that one restoration looks after, at most: they are held in memory.
const MEMBERS_MAX: usize = 1_000_000;
/// Notifications of one step.
const TELL: usize = 10_000;

/// What was found.
#[derive(Debug, Default)]
struct Found {
    rows: u64,
    report: Vec<Difference>,
    causes: BTreeMap<Cause, OfCause>,
    differ: u64,
    /// Who is to be told of.
    groups: BTreeSet<Group>,
    /// Keys whose batch rows are to be written anew.
    rewrite: BTreeSet<i64>,
    /// Members that changed whenever they were looked at, and those that wait for the speed layer.
    moved: u64,
    waiting: BTreeSet<Group>,
    live_unknown: Option<String>,
}

impl Batch {
    /// Compares boards with the canonical store, and puts right what differs if that is asked for.
    pub(super) async fn restore_boards(
        &self,
        job: &Arc<Job<Board>>,
        results: &Results<'_>,
        (request, intake, history): (&ReconcileRequest, &Intake, &History<'_>),
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<ReconcileReport> {
        let begun = Instant::now();
        let source = job.source();
        let keys = asked_keys(job, request)?;
        let journal = Journal {
            archive: &self.ports.archive,
            source,
        };
        let number = self.settled(&journal).await?.len() as u64 + 1;
        let runs = self.ports.views.runs(source).await?.runs;
        if request.apply && !is_last_complete(&runs) {
            let request = RunRequest::default();
            self.run_again(results, &request, (progress, stop)).await?;
        }
        let (epoch, cuts) = self.newest_of(job).await?;
        let partitions = self.read_checked_log_ends(source).await?.len();
        let look = Look {
            batch: self,
            job,
            results,
            partitions: u32::try_from(partitions).map_err(|e| Error::fault("partitions", e))?,
            progress,
            stop,
        };
        let found = look.compare(keys.as_ref(), &cuts, request.limit).await?;
        let mut report = ReconcileReport {
            view: job.name().to_owned(),
            expected: request.expected.to_string(),
            epoch,
            position: cuts.iter().map(|cut| cut.next_offset).collect(),
            keys: found.rows,
            differ: found.differ,
            total: found.differ,
            warnings: found.warnings(),
            causes: found.causes,
            differences: found.report,
            live_unknown: found.live_unknown,
            ..ReconcileReport::of(source)
        };
        report.held_back = held_back(request, &report);
        if request.apply && report.held_back.is_none() {
            history.begin_to_apply(&report, number).await?;
            let record = self.record(request, &report, number);
            let to_mend = (found.groups, found.rewrite);
            let (ports, told) = ((results, intake), (progress, stop));
            let mut applied = Applied::default();
            let by = (&journal, record);
            let done = self.mend(ports, by, to_mend, (&mut applied, told)).await;
            if let Err(error) = done {
                return Err(error.with_applied(applied));
            }
            report.applied = Some(applied);
        }
        report.seconds = begun.elapsed().as_secs_f64();
        Ok(report)
    }

    /// The newest run that made rows of a view, and its cuts.
    async fn newest_of(&self, job: &Job<Board>) -> Result<(Epoch, Vec<Cut>)> {
        let source = job.source();
        let seen = self.ports.views.runs(source).await?;
        let newest = seen.complete_epochs.get(job.view()).copied().unwrap_or(0);
        match seen.runs.get(newest) {
            Some(run) => Ok((run.epoch, run.cuts.clone())),
            None => Err(Error::Request(format!(
                "no run of {source} has published rows of {} yet: run `backstitch batch run` first",
                job.name()
            ))),
        }
    }

    /// Has members counted again, and keys written anew.
    async fn mend(
        &self,
        (results, intake): (&Results<'_>, &Intake),
        (journal, record): (&Journal<'_>, Restoration),
        (groups, rewrite): (BTreeSet<Group>, BTreeSet<i64>),
        (applied, (progress, stop)): (&mut Applied, (&dyn Progress, &CancellationToken)),
    ) -> Result<()> {
        if groups.is_empty() && rewrite.is_empty() {
            return Ok(());
        }
        let record = Restoration {
            id: new_id(),
            kind: RestorationKind::Notifications,
            changes: groups.len().max(rewrite.len()) as u64,
            total: groups.len() as u64,
            ..record
        };
        journal.begin(&record).await?;
        applied.restoration = Some(record.number);
        progress.stage("tell", groups.len() as u64);
        let groups: Vec<Group> = groups.into_iter().collect();
        for some in groups.chunks(TELL) {
            check_stop(stop)?;
            intake.notify_groups(some).await?;
            applied.notifications += some.len() as u64;
            progress.advance(some.len() as u64);
        }
        let request = RunRequest {
            rewrite,
            ..RunRequest::default()
        };
        let run = self.run_again(results, &request, (progress, stop)).await?;
        applied.run = Some(run);
        let until = self.read_partition_ends(journal.source).await?;
        journal.end(record.number, &until).await
    }
}

impl Look<'_> {
    async fn compare(
        &self,
        keys: Option<&BTreeSet<i64>>,
        cuts: &[Cut],
        limit: usize,
    ) -> Result<Found> {
        let mut found = Found::default();
        let mut candidates = self.candidates(keys, &mut found).await?;
        if found.live_unknown.is_some() || candidates.is_empty() {
            return Ok(found);
        }
        let since_run = self.told_since(cuts).await?;
        while !candidates.is_empty() {
            let (mut some, mut rows) = (BTreeSet::new(), 0);
            while let Some((key, of_key)) = candidates.pop_first() {
                some.insert(key);
                rows += of_key;
                if some.len() >= EXACT_KEYS || rows >= EXACT_ROWS {
                    break;
                }
            }
            self.exactly(some, since_run.as_ref(), (&mut found, limit))
                .await?;
            if found.groups.len() > MEMBERS_MAX {
                return Err(Error::Request(format!(
                    "more than {MEMBERS_MAX} members differ: run `backstitch batch run --full` to recompute all boards, then compare again"
                )));
            }
        }
        Ok(found)
    }

    /// The keys whose sums differ, with how many rows they should have.
    async fn candidates(
        &self,
        keys: Option<&BTreeSet<i64>>,
        found: &mut Found,
    ) -> Result<BTreeMap<i64, u64>> {
        let mut sums: Vec<(Vec<u8>, Sum)> = Vec::new();
        self.each_expected(keys, |rows, row| {
            let key = rows.keys.value(row);
            if sums.last().is_none_or(|(last, _)| last != key) {
                sums.push((key.to_vec(), Sum::default()));
            }
            if let Some((_, sum)) = sums.last_mut() {
                let score = (
                    rows.scores.value(row),
                    rows.payloads.value(row),
                    rows.weights.value(row),
                );
                sum.add(rows.boards.value(row), rows.members.value(row), score);
            }
        })
        .await?;
        found.rows = sums.iter().map(|(_, sum)| sum.rows).sum();
        self.add_others(keys, &mut sums).await?;
        self.progress.stage("compare", sums.len() as u64);
        let mut candidates = BTreeMap::new();
        let calls = sums.into_iter().map(|(key, sum)| async move {
            let served = self.served::<Sum>(&key, add_to_sum).await?;
            Ok::<_, Error>((key, sum, served))
        });
        let mut calls = stream::iter(calls).buffer_unordered(AT_ONCE);
        while let Some((key, sum, served)) = calls.try_next().await? {
            check_stop(self.stop)?;
            self.progress.advance(1);
            match served {
                Ok((served, _)) if served == sum => {}
                Ok(_) | Err(Unread::Damaged(_)) => {
                    candidates.insert(self.id(&key)?, sum.rows);
                }
                Err(Unread::Live(why)) => {
                    found.live_unknown = Some(why);
                    return Ok(candidates);
                }
            }
        }
        Ok(candidates)
    }

    /// Adds the keys that have no rows and may be served all the same.
    async fn add_others(
        &self,
        keys: Option<&BTreeSet<i64>>,
        sums: &mut Vec<(Vec<u8>, Sum)>,
    ) -> Result<()> {
        let known: HashSet<Vec<u8>> = sums.iter().map(|(key, _)| key.clone()).collect();
        let mut add = |key: Vec<u8>| {
            if !known.contains(&key) {
                sums.push((key, Sum::default()));
            }
        };
        if let Some(keys) = keys {
            for key in keys {
                add(encode_key(self.job, *key)?);
            }
            return Ok(());
        }
        let views = &self.batch.ports.views;
        let read = |after| views.keys(self.job.view(), after, LIST_KEYS);
        let mut pages = pin!(stream_pages(read, Vec::clone));
        while let Some(keys) = pages.try_next().await? {
            keys.into_iter().for_each(&mut add);
        }
        Ok(())
    }

    /// The members that were told of since a run; nothing if they are too many.
    async fn told_since(&self, cuts: &[Cut]) -> Result<Option<BTreeSet<Group>>> {
        let ends = self.batch.read_partition_ends(self.source()).await?;
        let from = |partition: usize| cuts.get(partition).map_or(0, |cut| cut.next_offset);
        let from: Vec<_> = (0..ends.len()).map(|at| Some(from(at))).collect();
        add_uncounted_groups(self.batch, self.source(), &from, &ends, Vec::new()).await
    }

    /// Looks at keys row by row.
    async fn exactly(
        &self,
        keys: BTreeSet<i64>,
        since_run: Option<&BTreeSet<Group>>,
        (found, limit): (&mut Found, usize),
    ) -> Result<()> {
        let source = self.source();
        let mut open = keys;
        let mut before = self.expected(&open).await?;
        for round in 1..=ROUNDS {
            // Before the log's end is looked at: then each is in one of both.
            let unsent = find_unsent_groups(self.batch, source).await?;
            let waited = wait_for_speed(self.batch, source, &[], self.stop).await?;
            check_stop(self.stop)?;
            let (counted, ends) = (&waited.counted, &waited.ends);
            let uncounted = add_uncounted_groups(self.batch, source, counted, ends, unsent);
            let Some(pending) = uncounted.await? else {
                found.live_unknown = Some("the lag of the speed layer is too large".to_owned());
                return Ok(());
            };
            let mut served = self.served_keys(&open).await?;
            let after = self.expected(&open).await?;
            let mut moved = BTreeSet::new();
            for id in std::mem::take(&mut open) {
                let none = Rows::new();
                let key = encode_key(self.job, id)?;
                let rows = |of: &HashMap<Vec<u8>, Rows>| of.get(&key).cloned().unwrap_or_default();
                let of_key = OfKey {
                    id,
                    before: rows(&before),
                    after: rows(&after),
                    pending: &pending,
                    since_run,
                };
                match served.remove(&key) {
                    Some(Ok(served)) => {
                        let members = self.members(&of_key, Some(&served), (found, limit))?;
                        if members > 0 && round < ROUNDS {
                            moved.insert(id);
                        } else {
                            found.moved += members;
                        }
                    }
                    Some(Err(Unread::Live(why))) => found.live_unknown = Some(why),
                    Some(Err(Unread::Damaged(why))) => {
                        let rows = of_key.after.len().max(none.len()) as u64;
                        found.note_damaged((self.job, id), rows, &why, limit);
                    }
                    None => {}
                }
            }
            open = moved;
            before = after;
            if open.is_empty() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Notes the members of a key of whom something else is served; answers how many changed meanwhile. These are
    /// looked at again with the whole key, so of such a key only those are noted that were not before.
    fn members(
        &self,
        of: &OfKey<'_>,
        served: Option<&Served>,
        (found, limit): (&mut Found, usize),
    ) -> Result<u64> {
        let Some(served) = served else { return Ok(0) };
        let differing = differing_members(&of.after, &served.rows);
        let mut moved = 0;
        for member in differing {
            let id = match self.job.member().decode_values(&member) {
                Ok(values) => values.first().and_then(|value| match value {
                    KeyValue::Int(id) => Some(*id),
                    _ => None,
                }),
                Err(error) => return Err(Error::fault("a member that is compared", error)),
            };
            let group = Group {
                key: of.id,
                member: id.unwrap_or_default(),
            };
            if of.pending.contains(&group) {
                found.waiting.insert(group);
                continue;
            }
            if rows_of(&of.before, &member) != rows_of(&of.after, &member) {
                moved += 1;
                continue;
            }
            if !found.groups.insert(group) {
                continue;
            }
            let is_live = served.loaded.key_boards.has_live_entry(&member);
            let cause = match (is_live, of.since_run) {
                (true, _) => Cause::ChangedLive,
                (false, Some(since)) if since.contains(&group) => Cause::LostLive,
                (false, _) if !served.loaded.key_boards.has_version() => Cause::MissingRow,
                (false, _) => Cause::NotTold,
            };
            if !is_live && cause != Cause::LostLive {
                found.rewrite.insert(of.id);
            }
            self.note((of, served, &member), (is_live, cause), (found, limit))?;
        }
        Ok(moved)
    }

    /// Notes the rows of a member that differ.
    fn note(
        &self,
        (of, served, member): (&OfKey<'_>, &Served, &[u8]),
        (is_live, cause): (bool, Cause),
        (found, limit): (&mut Found, usize),
    ) -> Result<()> {
        let (expected, rows) = (rows_of(&of.after, member), rows_of(&served.rows, member));
        let boards: BTreeSet<&[u8]> = expected.keys().chain(rows.keys()).copied().collect();
        for board in boards {
            let (expected, row) = (expected.get(board), rows.get(board));
            if expected == row {
                continue;
            }
            found.differ += 1;
            let of_cause = found.causes.entry(cause).or_default();
            of_cause.keys += 1;
            of_cause.total += 1;
            if found.report.len() >= limit {
                continue;
            }
            let job = self.job;
            let mut key = BTreeMap::new();
            for (shape, bytes) in [(job.member(), member), (job.board_columns(), board)] {
                key.extend(shown_columns(shape, bytes)?);
            }
            for column in &job.key().0 {
                key.insert(column.name.clone(), of.id.into());
            }
            let count = |row: Option<&&Row>| i64::from(row.is_some());
            let served = count(row);
            found.report.push(Difference {
                key,
                bucket: None,
                expected: count(expected),
                stored: (!is_live).then_some(served),
                live: is_live.then_some(served),
                served,
                difference: count(expected) - served,
                cause,
                expected_row: expected.map(|row| self.shown_row(row)).transpose()?,
                served_row: row.map(|row| self.shown_row(row)).transpose()?,
            });
        }
        Ok(())
    }
}

/// A key that is looked at row by row.
struct OfKey<'a> {
    id: i64,
    /// What it should have, before and after it was read.
    before: Rows,
    after: Rows,
    /// Members to whose changes the speed layer has not come.
    pending: &'a BTreeSet<Group>,
    /// Members that were told of since the newest run, where that is known.
    since_run: Option<&'a BTreeSet<Group>>,
}

impl Found {
    fn note_damaged(&mut self, (job, id): (&Job<Board>, i64), rows: u64, why: &str, limit: usize) {
        tracing::warn!(view = job.view(), key = id, why, "boards cannot be read");
        self.rewrite.insert(id);
        self.differ += rows.max(1);
        let of_cause = self.causes.entry(Cause::Damaged).or_default();
        of_cause.keys += rows.max(1);
        of_cause.total += rows.max(1);
        if self.report.len() >= limit {
            return;
        }
        let columns = job.key().0.iter();
        let rows = i64::try_from(rows).unwrap_or(i64::MAX);
        self.report.push(Difference {
            key: columns.map(|one| (one.name.clone(), id.into())).collect(),
            bucket: None,
            expected: rows,
            stored: None,
            live: None,
            served: 0,
            difference: rows,
            cause: Cause::Damaged,
            expected_row: None,
            served_row: None,
        });
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if !self.waiting.is_empty() {
            warnings.push(format!(
                "skipped {} members with changes that the speed layer has not processed yet: run `backstitch speed`",
                self.waiting.len()
            ));
        }
        if self.moved > 0 {
            warnings.push(format!(
                "skipped {} members that changed during every read",
                self.moved
            ));
        }
        warnings
    }
}

/// The keys that a request asks for; nothing for all.
fn asked_keys(job: &Job<Board>, request: &ReconcileRequest) -> Result<Option<BTreeSet<i64>>> {
    let refused = |what: String| Err(Error::Request(what));
    if request.expected != Expected::Canonical {
        return refused(format!(
            "--expected {}: the boards of {} are computed from the entity store only: use `--expected canonical`",
            request.expected,
            job.name()
        ));
    }
    if request.from.is_some() || request.to.is_some() || request.sample.is_some() {
        return refused(
            "--from, --to and --sample apply to counts only; use --keys to select keys of boards"
                .to_owned(),
        );
    }
    if !request.set.is_empty() {
        return refused("--set applies to corrections only, and boards have none".to_owned());
    }
    let name = job.key().0.first().map_or("", |column| &column.name);
    let mut keys: Option<BTreeSet<i64>> = None;
    for (column, values) in &request.keys {
        if column != name {
            return refused(format!(
                "--keys {column}: boards are compared by their key, {name}"
            ));
        }
        for value in values {
            match value.parse() {
                Ok(key) => {
                    keys.get_or_insert_default().insert(key);
                }
                Err(_) => return refused(format!("--keys {name}={value}: expected an integer")),
            }
        }
    }
    Ok(keys)
}
