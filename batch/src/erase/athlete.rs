//! The steps of erasing athletes. Each may be repeated.
//!
//! The rows are deleted like those of a deleted athlete: groups are notified, counters decrease,
//! capacity becomes free. Once the speed layer has processed the notifications, live entries only
//! mark the athlete as absent. A run of each source ends the epoch and removes these marks. The run
//! rewrites every key with a stored row of the athlete, without a root of an earlier day.

use std::collections::BTreeSet;

use schemas::achievement::{ACHIEVEMENTS_TOPIC, BOARD_CHANGES_TOPIC};
use schemas::seam::{Cut, Offset};
use schemas::source::Source;
use stores::dead_letters::erase::rewrite;
use stores::erasures::{PersonKind, SuppressedPeople};
use tokio_util::sync::CancellationToken;

use super::eraser::{EraseRequest, Eraser};
use super::sources::{ATHLETE_SOURCES, BOARD_SOURCES};
use crate::board::wait_for_speed;
use crate::lease::check_stop;
use crate::{Progress, Result, RunRequest};

/// Rows that are deleted in one transaction.
const TRANSACTION_ROWS: usize = 2_000;

impl Eraser {
    /// Removes suppressed athletes from every store.
    pub(super) async fn erase_athletes(
        &self,
        athletes: &BTreeSet<i64>,
        request: &EraseRequest,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<()> {
        let ports = &self.batch.ports;
        // After the grace period, writers that used an older list have almost certainly finished.
        self.batch.wait_grace_period(stop).await;
        check_stop(stop)?;
        progress.stage("rows", 0);
        for athlete in athletes {
            self.erase_rows(*athlete, progress, stop).await?;
        }
        let mut cuts: Vec<(Source, Vec<Offset>)> = Vec::new();
        for source in BOARD_SOURCES {
            if !self.batch.has_log(source).await? {
                continue;
            }
            progress.stage("wait", 0);
            self.wait_for_speed_layer(source, stop).await?;
            let run = RunRequest {
                rewrite: self.find_keys_naming(source, athletes).await?,
                forget_earlier: true,
                ..RunRequest::default()
            };
            let run_cuts = self
                .run_with_new_epoch(source, &run, progress, stop)
                .await?;
            cuts.push((source, run_cuts));
        }
        check_stop(stop)?;
        let suppressed = ports.suppressions.current().await?;
        if !request.keep_log {
            progress.stage("log", 0);
            let is_erased = |id: i64| suppressed.contains_athlete(id);
            for (source, cuts) in &cuts {
                let ends = |partition: usize| cuts.get(partition).copied().unwrap_or(0);
                self.trim_records_naming(source.topic(), ends, is_erased)
                    .await?;
            }
            // Messages of changes after the cuts stay: a rebuilt partition state looks them up.
            self.trim_messages(BOARD_CHANGES_TOPIC, &cuts, is_erased)
                .await?;
            self.trim_records_naming(ACHIEVEMENTS_TOPIC, |_| Offset::MAX, is_erased)
                .await?;
        }
        progress.stage("achievements", 0);
        for athlete in athletes {
            self.achievements.erase(*athlete).await?;
        }
        progress.stage("dead letters", 0);
        for source in ATHLETE_SOURCES {
            self.redact_athletes(source, &suppressed, stop).await?;
        }
        Ok(self.data_folder.truncate_wals().await?)
    }

    /// Removes athletes from dead letters and reports of a source. The lease excludes other
    /// erasures, also for sources without runs.
    async fn redact_athletes(
        &self,
        source: Source,
        suppressed: &SuppressedPeople,
        stop: &CancellationToken,
    ) -> Result<()> {
        let (now_ms, kind) = (self.batch.ports.clock.now_ms(), PersonKind::Athlete);
        let is_erased = |id: i64| suppressed.contains_athlete(id);
        self.with_run_lease(source, stop, async |stop| {
            rewrite(&*self.log, source, suppressed, now_ms, &stop).await?;
            check_stop(&stop)?;
            if BOARD_SOURCES.contains(&source) {
                self.redact_reports(source, kind, is_erased).await?;
                self.redact_comparisons(source, kind, is_erased).await?;
            }
            Ok(())
        })
        .await
    }

    /// Deletes the rows of an athlete from our own tables, and publishes the notifications to the
    /// log.
    async fn erase_rows(
        &self,
        athlete: i64,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<()> {
        let clock = &self.batch.ports.clock;
        loop {
            check_stop(stop)?;
            let deleted = self
                .entity_eraser
                .erase_rows(athlete, TRANSACTION_ROWS, clock.now_ms())
                .await?;
            progress.advance(deleted);
            if deleted == 0 {
                break;
            }
        }
        self.entity_eraser
            .notify_groups_of(athlete, clock.now_ms())
            .await?;
        for source in BOARD_SOURCES {
            // Notifications from an app's tables have no number yet, so drain without a limit.
            self.relay.drain(source, i64::MAX, stop).await?;
        }
        Ok(())
    }

    /// Waits until the speed layer has processed the log up to its current end and published the
    /// changes, as long as it makes progress.
    async fn wait_for_speed_layer(&self, source: Source, stop: &CancellationToken) -> Result<()> {
        let ends = self.batch.read_partition_ends(source).await?.into_iter();
        let ends: Vec<Cut> = ends
            .map(|next_offset| Cut {
                next_offset,
                last: None,
            })
            .collect();
        wait_for_speed(&self.batch, source, &ends, stop).await?;
        check_stop(stop)
    }
}
