//! `dead-letters replay`: checks rejected input again, and ingests valid lines.

use anyhow::Context as _;
use schemas::dead_letter::DeadLetterId;
use schemas::source::Source;
use stores::dead_letters::{
    DeadLetterFilter, OldestDeadLetters, ReprocessReport, Reprocessor, StoredDeadLetter, find,
};
use stores::intake::Intake;

use super::unknown_dead_letter;
use crate::args::ReplayArgs;
use crate::commands::Context;
use crate::installation::Installation;

/// Replays dead letters.
pub(super) async fn replay(
    context: &Context,
    installation: &Installation,
    args: &ReplayArgs,
) -> anyhow::Result<()> {
    let mut replayer = Replayer::new(installation, args.dry_run);
    if args.ids.is_empty() {
        replayer
            .replay_matching(DeadLetterFilter::from(&args.filter))
            .await?;
    } else {
        replayer.replay_ids(&args.ids).await?;
    }
    context
        .output()
        .print_result(&replayer.reprocessor.finish(), format_report)
}

/// A replay in progress.
struct Replayer<'a> {
    installation: &'a Installation,
    /// The intake of the current source.
    intake: Option<(Source, Intake)>,
    reprocessor: Reprocessor<'a>,
}

impl<'a> Replayer<'a> {
    fn new(installation: &'a Installation, is_dry_run: bool) -> Self {
        Self {
            installation,
            intake: None,
            reprocessor: Reprocessor::new(&*installation.stores().schemas, is_dry_run),
        }
    }

    /// Replays all matching dead letters, the oldest of each partition first.
    async fn replay_matching(&mut self, filter: DeadLetterFilter) -> anyhow::Result<()> {
        let mut letters = OldestDeadLetters::open(&*self.installation.stores().log, filter).await?;
        loop {
            let batch = letters.next_batch().await?;
            let Some(source) = batch.first().map(|letter| letter.id.source) else {
                return Ok(());
            };
            self.replay_batch(source, &batch).await?;
        }
    }

    /// Replays the dead letters with these ids, or none if one of them does not exist.
    async fn replay_ids(&mut self, ids: &[DeadLetterId]) -> anyhow::Result<()> {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids.dedup();
        let log = &*self.installation.stores().log;
        for id in &ids {
            find(log, *id)
                .await?
                .with_context(|| unknown_dead_letter(*id))?;
        }
        for id in ids {
            let letter = find(log, id)
                .await?
                .with_context(|| unknown_dead_letter(id))?;
            self.replay_batch(id.source, &[letter]).await?;
        }
        Ok(())
    }

    async fn replay_batch(
        &mut self,
        source: Source,
        letters: &[StoredDeadLetter],
    ) -> anyhow::Result<()> {
        let current = self
            .intake
            .take()
            .filter(|(current_source, _)| *current_source == source);
        let current = match current {
            Some(current) => current,
            None => (source, self.installation.open_intake(source).await?),
        };
        let (_, intake) = self.intake.insert(current);
        Ok(self.reprocessor.reprocess(source, intake, letters).await?)
    }
}

fn format_report(report: &ReprocessReport) -> String {
    let mut text = match report.dry_run {
        true => format!(
            "{} would be ingested, {} are still invalid\ndry run: nothing was written\n",
            report.accepted, report.still_bad
        ),
        false => format!(
            "{} ingested, {} still invalid\n",
            report.accepted, report.still_bad
        ),
    };
    if report.accepted > 0 && !report.dry_run {
        text.push_str("input that had been ingested before changes nothing\n");
    }
    if report.superseded > 0 {
        text.push_str(&format!(
            "{} skipped: a row with the same id and version exists; ingest the line itself to overwrite it\n",
            report.superseded
        ));
    }
    if report.erased > 0 {
        text.push_str(&format!(
            "{} skipped: they belong to erased athletes\n",
            report.erased
        ));
    }
    if report.broken > 0 {
        text.push_str(&format!(
            "{} records of the topic are not dead letters; `backstitch dead-letters list --reason \"not a dead letter\"` lists them\n",
            report.broken
        ));
    }
    if let Some(first) = &report.first {
        text.push_str(&format!("first invalid one: {first}\n"));
    }
    text
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
