//! Reprocesses dead letters: valid ones are ingested, and those that are still invalid are only
//! counted, because they are stored already.

use schemas::dead_letter::{DeadLetterId, LogPosition};
use schemas::source::{Source, SourceKind};
use serde::Serialize;

use super::StoredDeadLetter;
use crate::Result;
use crate::intake::{Intake, IntakeReport, ReprocessBatch, ReprocessedIds};
use crate::registry::SchemaSource;

/// The result of reprocessing dead letters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ReprocessReport {
    /// True if nothing was written.
    pub dry_run: bool,
    /// The number of dead letters that are valid now and were ingested.
    pub accepted: u64,
    /// The number of dead letters that are valid now and were skipped, because a row with the same
    /// version is stored.
    pub superseded: u64,
    /// The number of dead letters that are valid now and were skipped, because they name an erased
    /// athlete.
    pub erased: u64,
    /// The number of dead letters that are still invalid.
    pub still_bad: u64,
    /// The number of records in the topics that are not dead letters.
    pub broken: u64,
    /// The origin and reason of the first one that is still invalid.
    pub first: Option<String>,
    /// The id of that one.
    pub first_id: Option<DeadLetterId>,
}

/// Reprocesses dead letters.
#[derive(Debug)]
pub struct Reprocessor<'a> {
    schemas: &'a dyn SchemaSource,
    /// The source of the last dead letters, with the ids that were ingested there.
    ids: Option<(Source, ReprocessedIds)>,
    report: ReprocessReport,
}

impl<'a> Reprocessor<'a> {
    /// Starts; a dry run writes nothing.
    #[must_use]
    pub fn new(schemas: &'a dyn SchemaSource, is_dry: bool) -> Self {
        Self {
            schemas,
            ids: None,
            report: ReprocessReport {
                dry_run: is_dry,
                ..ReprocessReport::default()
            },
        }
    }

    /// The result so far.
    #[must_use]
    pub fn finish(self) -> ReprocessReport {
        self.report
    }

    /// Reprocesses dead letters of one source; `intake` must be of that source.
    ///
    /// # Errors
    /// As [`Intake::check_dead_letters`] and [`Intake::reprocess`].
    pub async fn reprocess(
        &mut self,
        source: Source,
        intake: &Intake,
        dead_letters: &[StoredDeadLetter],
    ) -> Result<()> {
        let (broken, dead_letters): (Vec<&StoredDeadLetter>, Vec<&StoredDeadLetter>) = dead_letters
            .iter()
            .partition(|dead_letter| dead_letter.is_broken);
        self.report.broken += broken.len() as u64;
        let is_notification = |dead_letter: &&StoredDeadLetter| {
            let position = LogPosition::parse(&dead_letter.content.origin);
            source.kind() == SourceKind::Entities
                && position.is_some_and(|position| position.topic == source.topic())
        };
        let (notifications, lines): (Vec<&StoredDeadLetter>, Vec<&StoredDeadLetter>) =
            dead_letters.into_iter().partition(is_notification);
        let earlier = self
            .ids
            .take()
            .filter(|(ids_source, _)| *ids_source == source);
        let (_, ids) = self
            .ids
            .insert(earlier.unwrap_or((source, ReprocessedIds::default())));
        if !lines.is_empty() {
            let batch = intake.check_dead_letters(number_lines(&lines), ids, self.schemas);
            let outcome = write_or_preview(intake, batch.await?, self.report.dry_run).await?;
            self.report.add(&outcome, &lines);
        }
        if !notifications.is_empty() {
            let batch = intake.check_notifications(number_lines(&notifications), self.schemas);
            let outcome = write_or_preview(intake, batch.await?, self.report.dry_run).await?;
            self.report.add(&outcome, &notifications);
        }
        Ok(())
    }
}

/// Writes the batch, or predicts the result in a dry run.
async fn write_or_preview(
    intake: &Intake,
    batch: ReprocessBatch,
    is_dry: bool,
) -> Result<IntakeReport> {
    match is_dry {
        true => Ok(batch.preview()),
        false => intake.reprocess(batch).await,
    }
}

fn number_lines<'a>(letters: &[&'a StoredDeadLetter]) -> impl Iterator<Item = (u64, &'a [u8])> {
    (0..).zip(letters.iter().map(|letter| letter.content.raw.as_slice()))
}

impl ReprocessReport {
    /// Adds the result of some dead letters.
    fn add(&mut self, outcome: &IntakeReport, dead_letters: &[&StoredDeadLetter]) {
        self.accepted += outcome.accepted;
        self.superseded += outcome.superseded;
        self.erased += outcome.erased;
        // Blank lines are skipped, because they contain nothing.
        let valid = outcome.accepted + outcome.superseded + outcome.erased;
        self.still_bad += (dead_letters.len() as u64).saturating_sub(valid);
        if let Some(rejected) = outcome.rejected.first()
            && self.first.is_none()
        {
            let dead_letter = usize::try_from(rejected.line).ok();
            let dead_letter = dead_letter.and_then(|index| dead_letters.get(index));
            let origin = dead_letter.map_or("", |dead_letter| dead_letter.content.origin.as_str());
            self.first = Some(format!("{origin}: {}", rejected.reason));
            self.first_id = dead_letter.map(|dead_letter| dead_letter.id);
        }
    }
}
