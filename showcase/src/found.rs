//! What the traffic and the recount share: the installation, and what was found.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use schemas::source::Source;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::client::{Answer, Client, Parameters};
use crate::compare::compare;
use crate::rows::ExpectedRows;
use crate::{Line, Setup};

/// Batch runs that the comparison must have met: one of each source with a log, and a second one of
/// the first of them.
pub(crate) const RUNS_MIN: u64 = Source::LOGGED.len() as u64 + 1;
/// Kinds of questions, all of which must have been asked.
const KINDS: usize = 12;
/// Differences that are reported, and how much of each.
const DIFFERENCES_MAX: usize = 10;
const CHARS_MAX: usize = 1_000;
const QUERY_MS: u64 = 60_000;
/// How long the speed layer may take for any progress.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(60);

/// How much there was, and what differed.
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
    /// Notes a difference.
    pub(crate) fn differs(&mut self, difference: &str) {
        self.differences += 1;
        if self.first_differences.len() < DIFFERENCES_MAX {
            self.first_differences
                .push(difference.chars().take(CHARS_MAX).collect());
        }
    }

    /// Whether everything that was served was right, and enough of it was compared.
    ///
    /// # Errors
    /// What is wrong.
    pub fn verdict(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.differences == 0,
            "{} served values differ from the recount; this is a fault of Backstitch, please report it",
            self.differences
        );
        anyhow::ensure!(
            self.batch_runs >= RUNS_MIN && self.answers.len() >= KINDS,
            "only {} batch runs were published, and answers compared {:?}, which shows little; try more --seconds",
            self.batch_runs,
            self.answers
        );
        Ok(())
    }

    /// The summary for people.
    #[must_use]
    pub fn text(&self) -> String {
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

/// A row of a query, as texts.
pub(crate) type Row = Vec<Option<String>>;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) setup: Setup,
    pub(crate) client: Client,
    /// Who holds this keeps rows from changing.
    pub(crate) row_changes: tokio::sync::Mutex<()>,
    pub(crate) summary: Mutex<Summary>,
    /// By line of plays: how much more often it was appended to the log than read back.
    pub(crate) unread: Mutex<HashMap<Vec<u8>, i64>>,
    /// The rows that the entity store must hold, for a demo that compares.
    pub(crate) rows: Mutex<ExpectedRows>,
    /// By source: ends of the log that answers about rows must reach.
    ends: Mutex<BTreeMap<Source, Vec<i64>>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn new(setup: Setup) -> Self {
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

    /// The rows that a query of the entity store gives.
    pub(crate) async fn query(&self, sql: &str) -> anyhow::Result<Vec<Row>> {
        let rows = self.setup.stores.canon.ask(sql, QUERY_MS).await?.rows;
        let steps: Vec<Vec<Row>> = futures::TryStreamExt::try_collect(rows).await?;
        Ok(steps.concat())
    }

    /// Gives lines to the installation, which must reject exactly those that are not valid.
    pub(crate) async fn give(&self, source: Source, lines: &[Line]) -> anyhow::Result<()> {
        let Some(intake) = self
            .setup
            .intakes
            .get(&source)
            .filter(|_| !lines.is_empty())
        else {
            return Ok(());
        };
        let compared = lines.iter().filter(|line| line.is_valid);
        for line in compared.filter(|_| self.setup.seconds.is_some()) {
            match source {
                Source::Plays => self.count_line(&line.bytes, 1),
                _ => lock(&self.rows).apply(source, &line.bytes),
            }
        }
        let numbered = (1..).zip(lines.iter().map(|line| line.bytes.as_slice()));
        let taken = intake.take("demo", numbered).await?;
        let rejected: BTreeSet<u64> = taken.rejected.iter().map(|line| line.line).collect();
        let mut summary = lock(&self.summary);
        summary.lines += lines.len() as u64;
        summary.rejected += rejected.len() as u64;
        for (number, line) in (1..).zip(lines) {
            if rejected.contains(&number) == line.is_valid {
                let text = String::from_utf8_lossy(&line.bytes);
                summary.differs(&format!("{source}: valid is {}: {text}", line.is_valid));
            }
        }
        Ok(())
    }

    /// Notes that a line of plays is appended to the log, 1, or was read back, -1.
    pub(crate) fn count_line(&self, line: &[u8], times: i64) {
        let mut unread = lock(&self.unread);
        let count = unread.entry(line.to_vec()).or_default();
        *count += times;
        if *count == 0 {
            unread.remove(line);
        }
    }

    /// Asks a question of some kind.
    pub(crate) async fn ask(
        &self,
        kind: &'static str,
        path: &str,
        parameters: &Parameters,
    ) -> anyhow::Result<Answer> {
        let is_before = self.setup.batch.is_running();
        let answer = self.client.get(path, parameters).await?;
        self.count_answer(kind, is_before);
        Ok(answer)
    }

    /// Asks a question of some kind about rows that do not change, and compares status and body. The
    /// answer must reach the ends of the log that [`Shared::catch_up`] found.
    pub(crate) async fn check(
        &self,
        kind: &'static str,
        path: &str,
        parameters: &Parameters,
        (status, mut expected): (u16, Value),
    ) -> anyhow::Result<()> {
        let answer = self.ask(kind, path, parameters).await?;
        if status == 200 {
            expected["provenance"] = json!({"complete": true});
        }
        let question = format!("{path} {parameters:?}");
        self.compare(&question, &(status, expected), &answer);
        let source = match path.starts_with("/applications") {
            true => Source::Authorizations,
            false => Source::Efforts,
        };
        let ends = lock(&self.ends).get(&source).cloned().unwrap_or_default();
        if status == 200 && !answer.reaches(source, &ends) {
            let position = answer.position(source);
            let difference = format!("{question}: position {position:?} does not reach {ends:?}");
            lock(&self.summary).differs(&difference);
        }
        Ok(())
    }

    /// Notes that an answer is compared.
    pub(crate) fn count_answer(&self, kind: &'static str, is_before_during_a_run: bool) {
        let mut summary = lock(&self.summary);
        *summary.answers.entry(kind).or_default() += 1;
        let is_during_a_run = is_before_during_a_run || self.setup.batch.is_running();
        summary.answers_during_a_run += u64::from(is_during_a_run);
    }

    /// Waits until everything so far in the logs of some sources is counted. A demo that compares fails
    /// when there is no progress.
    pub(crate) async fn catch_up(&self, sources: &[Source]) -> anyhow::Result<()> {
        let stores = &self.setup.stores;
        let all = vec![("owner_id", "1".to_owned()), ("period", "all".to_owned())];
        for source in sources {
            let (probe, parameters) = match source {
                Source::Plays => ("/stats/plays/total", &all),
                Source::Authorizations => ("/applications/1", &Vec::new()),
                _ => ("/segments/1/counts", &Vec::new()),
            };
            let mut progress = (Instant::now(), (0, Vec::new()));
            loop {
                let waiting = stores.canon.waiting(*source).await?.notifications;
                let spans = stores.log.spans(source.topic()).await?;
                let ends: Vec<i64> = spans.iter().map(|span| span.end).collect();
                let answer = self.client.get(probe, parameters).await?;
                if waiting == 0 && answer.reaches(*source, &ends) {
                    lock(&self.ends).insert(*source, ends);
                    break;
                }
                let reached = (waiting, answer.position(*source));
                if progress.1 != reached {
                    progress = (Instant::now(), reached);
                }
                anyhow::ensure!(
                    self.setup.seconds.is_none() || progress.0.elapsed() < PROGRESS_TIMEOUT,
                    "{waiting} changes of {source} wait, and {} does not reach {ends:?}",
                    answer.body
                );
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        Ok(())
    }

    /// Compares status and body of an answer with what they must be.
    pub(crate) fn compare(&self, question: &str, expected: &(u16, Value), answer: &Answer) {
        let expected = json!({"status": expected.0, "body": expected.1});
        let served = json!({"status": answer.status, "body": answer.body});
        if let Err(difference) = compare(&expected, &served) {
            lock(&self.summary).differs(&format!("{question}: {difference}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_and_a_kind_that_was_not_compared_fail_the_demo() {
        let kinds = "abcdefghijkl".split_inclusive(|_: char| true);
        let mut summary = Summary {
            batch_runs: RUNS_MIN,
            answers: kinds.map(|kind| (kind, 1)).collect(),
            ..Summary::default()
        };
        assert!(summary.verdict().is_ok());
        summary.answers.remove("b");
        assert!(summary.verdict().is_err());
        summary.answers.insert("b", 1);
        summary.differs("/stats: count: served 4, recounted 3");
        assert!(summary.verdict().is_err());
        assert!(
            summary
                .text()
                .ends_with("\n/stats: count: served 4, recounted 3")
        );
    }
}
