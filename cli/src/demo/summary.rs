//! What a demo that ends by itself says: how much there was, and what differed.

use std::net::SocketAddr;

use schemas::source::Source;
use serde::Serialize;

use super::entities::EntityCounts;
use super::findings::Findings;
use super::producer::Counts;

/// Batch runs that the comparison must have met: one of each source with a log, and a second one
/// of the first of them.
pub(super) const RUNS_MIN: u64 = Source::LOGGED.len() as u64 + 1;
/// Of a difference that is printed as text: so many characters.
const TOLD_CHARS_MAX: usize = 1_000;

/// What a demo that ends by itself prints.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    listening: String,
    events: u64,
    duplicates: u64,
    rejected: u64,
    rows: u64,
    rows_older: u64,
    rows_rejected: u64,
    connected: u64,
    turned_away: u64,
    batch_runs: u64,
    answers: u64,
    answers_of_boards: u64,
    answers_during_a_run: u64,
    differences: u64,
    first_differences: Vec<String>,
}

impl Summary {
    /// Sums up what was given and what was found.
    pub(super) fn new(
        address: SocketAddr,
        batch_runs: u64,
        (events, rows): (Counts, EntityCounts),
        findings: Findings,
        answers_of_boards: u64,
    ) -> Self {
        Self {
            listening: format!("http://{address}"),
            events: events.events,
            duplicates: events.duplicates,
            rejected: events.rejected,
            rows: rows.rows,
            rows_older: rows.older,
            rows_rejected: rows.rejected,
            connected: rows.connected,
            turned_away: rows.turned_away,
            batch_runs,
            answers: findings.answers,
            answers_of_boards,
            answers_during_a_run: findings.during_a_run,
            differences: findings.differences + events.misjudged,
            first_differences: findings.first,
        }
    }

    /// Whether everything that was served was right, and enough of it was compared.
    pub(super) fn verdict(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.differences == 0,
            "{} served values differ from the recount; this is a fault of Backstitch, please report it",
            self.differences
        );
        anyhow::ensure!(
            self.batch_runs >= RUNS_MIN
                && self.answers > self.answers_of_boards
                && self.answers_of_boards > 0,
            "only {} batch runs were published and {} answers compared, which shows little; try more --seconds",
            self.batch_runs,
            self.answers
        );
        Ok(())
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{} events ({} of them duplicates, {} lines rejected), {} batch runs\n\
             {} rows of entities ({} of them too old, {} lines rejected), {} athletes connected, {} turned away\n\
             {} answers compared with a recount, {} of them of boards, {} during a batch run: {} differences\n",
            self.events,
            self.duplicates,
            self.rejected,
            self.batch_runs,
            self.rows,
            self.rows_older,
            self.rows_rejected,
            self.connected,
            self.turned_away,
            self.answers,
            self.answers_of_boards,
            self.answers_during_a_run,
            self.differences,
        );
        for difference in &self.first_differences {
            let told: String = difference.chars().take(TOLD_CHARS_MAX).collect();
            text.push_str(&format!("  {told}\n"));
        }
        text
    }
}
