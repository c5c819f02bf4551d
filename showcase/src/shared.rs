//! State that the traffic and the recount share: the installation, and the summary of the
//! verification.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use schemas::source::Source;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::client::{Answer, Client, Parameters};
use crate::compare::compare;
use crate::rows::{ExpectedRows, Row};
use crate::{DemoSetup, Line};

/// The minimum of batch runs during the verification: one of each source with a log, and a second
/// one of the first.
pub(crate) const RUNS_MIN: u64 = Source::LOGGED.len() as u64 + 1;
/// The number of kinds of queries, all of which must have been verified.
const KINDS: usize = 12;
/// Upper limit of reported differences.
const DIFFERENCES_MAX: usize = 10;
/// Upper limit of the length of a reported difference.
const DIFFERENCE_CHARS_MAX: usize = 1_000;
const QUERY_TIMEOUT_MS: u64 = 60_000;
/// Upper limit of the time without any progress of the speed layer.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(60);

/// Counts of lines, runs and answers, and the differences.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Summary {
    listening: String,
    lines: u64,
    rejected: u64,
    pub(crate) batch_runs: u64,
    answers: BTreeMap<&'static str, u64>,
    answers_during_a_run: u64,
    differences: u64,
    first_differences: Vec<String>,
}

impl Summary {
    pub(crate) fn record_difference(&mut self, difference: &str) {
        self.differences += 1;
        if self.first_differences.len() < DIFFERENCES_MAX {
            self.first_differences
                .push(difference.chars().take(DIFFERENCE_CHARS_MAX).collect());
        }
    }

    /// Checks that there are no differences, and that enough answers were verified.
    ///
    /// # Errors
    /// Fails if there are differences, or too few batch runs or answers.
    pub fn check_result(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.differences == 0,
            "{} served values differ from the recount; this is a bug in Backstitch, please report it",
            self.differences
        );
        anyhow::ensure!(
            self.batch_runs >= RUNS_MIN && self.answers.len() >= KINDS,
            "only {} batch runs were published and {:?} answers verified, which is too few; increase --seconds",
            self.batch_runs,
            self.answers
        );
        Ok(())
    }

    /// Formats the summary as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        format!(
            "{} lines ({} of them rejected), {} batch runs\n\
             {} answers compared with a recount, {} of them during a batch run: {} differences\n\
             {:?}\n{}",
            self.lines,
            self.rejected,
            self.batch_runs,
            self.answers.values().sum::<u64>(),
            self.answers_during_a_run,
            self.differences,
            self.answers,
            self.first_differences.join("\n")
        )
    }
}

#[derive(Debug)]
pub(crate) struct SharedState {
    pub(crate) setup: DemoSetup,
    pub(crate) client: Client,
    /// Locked while rows must not change.
    pub(crate) row_changes: tokio::sync::Mutex<()>,
    pub(crate) summary: Mutex<Summary>,
    /// For each line of plays, how many more times it was appended to the log than read back.
    pub(crate) unread: Mutex<HashMap<Vec<u8>, i64>>,
    /// The expected rows of the entity store, for a demo with verification.
    pub(crate) rows: Mutex<ExpectedRows>,
    /// By source, the log ends that answers about rows must reach.
    ends: Mutex<BTreeMap<Source, Vec<i64>>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedState {
    pub(crate) fn new(setup: DemoSetup) -> Self {
        let summary = Summary {
            listening: format!("http://{}", setup.address),
            ..Summary::default()
        };
        Self {
            client: Client::new(setup.address),
            setup,
            row_changes: tokio::sync::Mutex::default(),
            summary: Mutex::new(summary),
            unread: Mutex::default(),
            rows: Mutex::default(),
            ends: Mutex::default(),
        }
    }

    /// Runs a query of the entity store.
    pub(crate) async fn query(&self, sql: &str) -> anyhow::Result<Vec<Row>> {
        let entities = &self.setup.stores.entities;
        let rows = entities.query(sql, QUERY_TIMEOUT_MS).await?.rows;
        let blocks: Vec<Vec<Row>> = futures::TryStreamExt::try_collect(rows).await?;
        Ok(blocks.concat())
    }

    /// Ingests lines, and verifies that the intake rejects exactly the invalid ones.
    pub(crate) async fn ingest(&self, source: Source, lines: &[Line]) -> anyhow::Result<()> {
        let intake = self.setup.intakes.get(&source);
        let Some(intake) = intake.filter(|_| !lines.is_empty()) else {
            return Ok(());
        };
        let valid = lines.iter().filter(|line| line.is_valid);
        for line in valid.filter(|_| self.setup.seconds.is_some()) {
            match source {
                Source::Plays => self.count_line(&line.bytes, 1),
                _ => lock(&self.rows).apply(source, &line.bytes),
            }
        }
        let numbered = (1..).zip(lines.iter().map(|line| line.bytes.as_slice()));
        let outcome = intake.ingest("demo", numbered).await?;
        let rejected: BTreeSet<u64> = outcome.rejected.iter().map(|line| line.line).collect();
        let mut summary = lock(&self.summary);
        summary.lines += lines.len() as u64;
        summary.rejected += rejected.len() as u64;
        for (number, line) in (1..).zip(lines) {
            if rejected.contains(&number) == line.is_valid {
                let text = String::from_utf8_lossy(&line.bytes);
                let problem = match line.is_valid {
                    true => "rejected a valid line",
                    false => "accepted an invalid line",
                };
                summary.record_difference(&format!("{source}: {problem}: {text}"));
            }
        }
        Ok(())
    }

    /// Adds 1 to the count of a line of plays that is appended to the log, or -1 if it was read
    /// back.
    pub(crate) fn count_line(&self, line: &[u8], delta: i64) {
        let mut unread = lock(&self.unread);
        let count = unread.entry(line.to_vec()).or_default();
        *count += delta;
        if *count == 0 {
            unread.remove(line);
        }
    }

    /// Sends a query, and counts the answer by its kind.
    pub(crate) async fn fetch(
        &self,
        kind: &'static str,
        path: &str,
        parameters: &Parameters,
    ) -> anyhow::Result<Answer> {
        let was_running = self.setup.batch.is_running();
        let answer = self.client.get(path, parameters).await?;
        self.count_answer(kind, was_running);
        Ok(answer)
    }

    /// Sends a query about rows that do not change, and verifies status and body. The answer must
    /// reach the log ends that
    /// [`SharedState::catch_up`] recorded.
    pub(crate) async fn check(
        &self,
        kind: &'static str,
        path: &str,
        parameters: &Parameters,
        expected: (u16, Value),
    ) -> anyhow::Result<()> {
        let answer = self.fetch(kind, path, parameters).await?;
        let (status, mut body) = expected;
        if status == 200 {
            body["provenance"] = json!({"complete": true});
        }
        let request = format!("{path} {parameters:?}");
        self.compare(&request, &(status, body), &answer);
        let source = match path.starts_with("/applications") {
            true => Source::Authorizations,
            false => Source::Efforts,
        };
        let ends = lock(&self.ends).get(&source).cloned().unwrap_or_default();
        if status == 200 && !answer.reaches(source, &ends) {
            let position = answer.position(source);
            let difference = format!("{request}: position {position:?} does not reach {ends:?}");
            lock(&self.summary).record_difference(&difference);
        }
        Ok(())
    }

    /// Counts a verified answer. `was_running` says whether a batch run was in progress before the
    /// request.
    pub(crate) fn count_answer(&self, kind: &'static str, was_running: bool) {
        let mut summary = lock(&self.summary);
        *summary.answers.entry(kind).or_default() += 1;
        let is_during_a_run = was_running || self.setup.batch.is_running();
        summary.answers_during_a_run += u64::from(is_during_a_run);
    }

    /// Waits until the API counts all records that are in the logs of some sources. A demo with
    /// verification fails if there is no progress.
    pub(crate) async fn catch_up(&self, sources: &[Source]) -> anyhow::Result<()> {
        let stores = &self.setup.stores;
        let all_time = vec![("owner_id", "1".to_owned()), ("period", "all".to_owned())];
        for source in sources {
            let (probe, parameters) = match source {
                Source::Plays => ("/stats/plays/total", &all_time),
                Source::Authorizations => ("/applications/1", &Vec::new()),
                _ => ("/segments/1/counts", &Vec::new()),
            };
            let mut last_progress = Instant::now();
            let mut last_state = (0, Vec::new());
            loop {
                let waiting = stores.entities.outbox_status(*source).await?.notifications;
                let spans = stores.log.spans(source.topic()).await?;
                let ends: Vec<i64> = spans.iter().map(|span| span.end).collect();
                let answer = self.client.get(probe, parameters).await?;
                if waiting == 0 && answer.reaches(*source, &ends) {
                    lock(&self.ends).insert(*source, ends);
                    break;
                }
                let state = (waiting, answer.position(*source));
                if last_state != state {
                    last_progress = Instant::now();
                    last_state = state;
                }
                anyhow::ensure!(
                    self.setup.seconds.is_none() || last_progress.elapsed() < PROGRESS_TIMEOUT,
                    "the speed layer makes no progress: {waiting} changes of {source} wait, and {} does not reach {ends:?}",
                    answer.body
                );
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        Ok(())
    }

    /// Compares the status and the body of an answer with the expected ones.
    pub(crate) fn compare(&self, request: &str, expected: &(u16, Value), answer: &Answer) {
        let expected = json!({"status": expected.0, "body": expected.1});
        let served = json!({"status": answer.status, "body": answer.body});
        if let Err(difference) = compare(&expected, &served) {
            lock(&self.summary).record_difference(&format!("{request}: {difference}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_and_missing_kinds_fail_the_demo() {
        let kinds = "abcdefghijkl".split_inclusive(|_: char| true);
        let mut summary = Summary {
            batch_runs: RUNS_MIN,
            answers: kinds.map(|kind| (kind, 1)).collect(),
            ..Summary::default()
        };
        assert!(summary.check_result().is_ok());
        summary.answers.remove("b");
        assert!(summary.check_result().is_err());
        summary.answers.insert("b", 1);
        summary.record_difference("/stats: count: served 4, recounted 3");
        assert!(summary.check_result().is_err());
        assert!(
            summary
                .to_text()
                .ends_with("\n/stats: count: served 4, recounted 3")
        );
    }
}
