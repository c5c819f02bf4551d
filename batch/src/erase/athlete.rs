//! Erasing athletes: the steps, each of which may be repeated.
//!
//! The canonical rows go as if they had been deleted: groups are told of, counters fall, places get free. Once the speed
//! layer has come to that, no live state says anything of the athlete but that there is nothing, and a run of each
//! source, which ends the epoch, lets go of that too. Keys of which any row is stored that names an athlete are
//! written anew by the run, and keep nothing of an earlier day.

use std::collections::BTreeSet;

use schemas::achievement::{ACHIEVEMENTS, BOARD_CHANGES};
use schemas::seam::{Cut, Offset};
use schemas::source::Source;
use stores::dead_letters::erase::rewrite;
use stores::erasures::{Kind, Suppressed};
use tokio_util::sync::CancellationToken;

use super::{EraseRequest, Eraser};
use crate::run::go_on;
use crate::{Progress, Result, RunRequest};

/// The sources whose rows make boards.
pub(super) const SOURCES: [Source; 2] = [Source::Efforts, Source::Authorizations];
/// The sources of which lines name athletes.
pub(super) const LINES: [Source; 5] = [
    Source::Efforts,
    Source::Athletes,
    Source::Clubs,
    Source::Follows,
    Source::Authorizations,
];
/// The column that names them.
pub(super) const MEMBER: &str = "athlete_id";
/// Rows that are deleted in one transaction.
const ROWS: usize = 2_000;

impl Eraser {
    /// Takes athletes out of every store; they are suppressed.
    pub(super) async fn erase_athletes(
        &self,
        athletes: &BTreeSet<i64>,
        request: &EraseRequest,
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<()> {
        let ports = &self.batch.ports;
        // Whoever took lines with an older list has written them by now, or almost certainly.
        self.batch.grace(stop).await;
        go_on(stop)?;
        progress.stage("rows", 0);
        for athlete in athletes {
            self.erase_rows(*athlete, (progress, stop)).await?;
        }
        let mut cuts: Vec<(Source, Vec<Offset>)> = Vec::new();
        for source in SOURCES {
            if !self.batch.has_log(source).await? {
                continue;
            }
            progress.stage("wait", 0);
            self.wait_for_counted(source, stop).await?;
            let run = RunRequest {
                rewrite: self.keys_with(source, athletes).await?,
                forget_earlier: true,
                ..RunRequest::default()
            };
            let of_run = self.run_since(source, &run, (progress, stop)).await?;
            cuts.push((source, of_run));
        }
        go_on(stop)?;
        let suppressed = ports.suppressions.now().await?;
        if !request.keep_log {
            progress.stage("log", 0);
            let is_gone = |id: i64| suppressed.has_athlete(id);
            for (source, cuts) in &cuts {
                let ends = |partition: usize| cuts.get(partition).copied().unwrap_or(0);
                self.trim_naming(source.topic(), ends, is_gone).await?;
            }
            // A slot that begins anew looks up what was told of what lies after the cuts.
            self.trim_told(BOARD_CHANGES, &cuts, is_gone).await?;
            self.trim_naming(ACHIEVEMENTS, |_| Offset::MAX, is_gone)
                .await?;
        }
        progress.stage("achievements", 0);
        for athlete in athletes {
            self.achievements.erase(*athlete).await?;
        }
        progress.stage("dead letters", 0);
        for source in LINES {
            self.redact_athletes(source, &suppressed, stop).await?;
        }
        Ok(self.data_folder.truncate_wals().await?)
    }

    /// Takes athletes out of what is left of a source beside rows, logs and boards. The lease keeps erasures apart also
    /// where a source has no runs.
    async fn redact_athletes(
        &self,
        source: Source,
        suppressed: &Suppressed,
        stop: &CancellationToken,
    ) -> Result<()> {
        let (now_ms, kind) = (self.batch.ports.clock.now_ms(), Kind::Athlete);
        let is_gone = |id: i64| suppressed.has_athlete(id);
        self.under_lease(source, stop, async |stop| {
            rewrite(&*self.log, source, suppressed, now_ms, &stop).await?;
            go_on(&stop)?;
            if SOURCES.contains(&source) {
                self.redact_reports(source, kind, is_gone).await?;
                self.redact_comparisons(source, kind, is_gone).await?;
            }
            Ok(())
        })
        .await
    }

    /// Deletes the canonical rows of an athlete that are ours, and brings what that tells into the log.
    async fn erase_rows(
        &self,
        athlete: i64,
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<()> {
        let clock = &self.batch.ports.clock;
        loop {
            go_on(stop)?;
            let found = self.canon.erase_rows(athlete, ROWS, clock.now_ms()).await?;
            progress.advance(found);
            if found == 0 {
                break;
            }
        }
        self.canon.tell_of(athlete, clock.now_ms()).await?;
        for source in SOURCES {
            // What app's tables tell has no number yet when it is looked for.
            self.relay.drain(source, i64::MAX, stop).await?;
        }
        Ok(())
    }

    /// Waits until the speed layer has come to where the log ends now and has told what that changed, for as long as it
    /// goes on.
    async fn wait_for_counted(&self, source: Source, stop: &CancellationToken) -> Result<()> {
        let ends = self.batch.spans(source).await?.into_iter();
        let ends: Vec<Cut> = ends
            .map(|next_offset| Cut {
                next_offset,
                last: None,
            })
            .collect();
        self.batch.wait_for_speed(source, &ends, stop).await?;
        go_on(stop)
    }
}
