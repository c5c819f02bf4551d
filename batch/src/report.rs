//! The report of a run, and the timing of its stages.

use std::time::Instant;

use schemas::seam::{Epoch, Offset};
use schemas::source::Source;
use schemas::traces;
use serde::{Serialize, Serializer};
use tracing::Span;

use crate::Progress;
use crate::drift::Drift;

/// The report of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RunReport {
    /// The run's number, which is its epoch.
    pub epoch: Epoch,
    /// By partition: the run covers all records below this offset.
    pub cuts: Vec<Offset>,
    /// The jobs that were computed.
    pub jobs: Vec<String>,
    /// True if everything was recomputed, not only what changed.
    pub full: bool,
    /// Records that were read from the archive.
    pub rows_read: u64,
    /// Records among them that repeat an event.
    pub duplicates: u64,
    /// Rows of views that were written.
    pub rows_written: u64,
    /// Rows of views that were unchanged.
    pub rows_skipped: u64,
    /// Seconds by stage, in the order of the stages.
    pub seconds: Seconds,
    /// The drift of live state since the previous run.
    pub drift: Drift,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
    /// The findings of the check, because of which the run was abandoned.
    pub faults: Vec<String>,
    /// The error of the last attempt; none once the run is complete.
    pub error: Option<String>,
}

/// Seconds by stage, in the order of the stages.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seconds(pub Vec<(&'static str, f64)>);

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().copied())
    }
}

/// Measures the stages of a run and reports the progress.
pub(crate) struct Stages<'a> {
    pub(crate) progress: &'a dyn Progress,
    /// Name, start and span of the current stage. The span ends with it.
    current: Option<(&'static str, Instant, Span)>,
    seconds: Seconds,
}

impl<'a> Stages<'a> {
    pub(crate) fn new(progress: &'a dyn Progress) -> Self {
        Self {
            progress,
            current: None,
            seconds: Seconds::default(),
        }
    }

    /// Starts a stage and ends the previous one.
    pub(crate) fn begin(&mut self, name: &'static str, total: u64) {
        self.end_current();
        tracing::debug!(stage = name, "stage started");
        self.progress.stage(name, total);
        let span = tracing::info_span!(target: traces::TARGET, "stage", otel.name = name, total);
        self.current = Some((name, Instant::now(), span));
    }

    /// Ends the last stage and returns the seconds of all.
    pub(crate) fn end(mut self) -> Seconds {
        self.end_current();
        self.seconds
    }

    /// Returns the seconds of the ended stages.
    pub(crate) fn seconds(&self) -> Seconds {
        self.seconds.clone()
    }

    fn end_current(&mut self) {
        if let Some((name, since, _)) = self.current.take() {
            self.seconds.0.push((name, since.elapsed().as_secs_f64()));
        }
    }
}

impl RunReport {
    /// Updates the metrics and writes a log line.
    pub(crate) fn emit(&self, source: Source) {
        let labels = || [("source", source.name())];
        let total: f64 = self.seconds.0.iter().map(|(_, seconds)| seconds).sum();
        metrics::counter!("backstitch_batch_runs_total", &labels()).increment(1);
        metrics::gauge!("backstitch_batch_seconds", &labels()).set(total);
        metrics::counter!("backstitch_batch_rows_written_total", &labels())
            .increment(self.rows_written);
        #[expect(clippy::cast_precision_loss, reason = "a gauge")]
        let drift = self.drift.total.map(|total| total as f64);
        let drift = drift.or(self.drift.unknown.as_ref().map(|_| f64::NAN));
        if let Some(drift) = drift {
            metrics::gauge!("backstitch_batch_drift_events", &labels()).set(drift);
        }
        for view in &self.drift.views {
            let job = || ("job", view.job.clone());
            for (cause, events) in &view.causes {
                let labels = [
                    ("source", source.name().to_owned()),
                    job(),
                    ("cause", cause.name().to_owned()),
                ];
                metrics::counter!("backstitch_batch_drifted_events_total", &labels)
                    .increment(*events);
            }
        }
        for (stage, seconds) in &self.seconds.0 {
            let labels = [("source", source.name()), ("stage", *stage)];
            metrics::gauge!("backstitch_batch_stage_seconds", &labels).set(*seconds);
        }
        tracing::info!(
            epoch = self.epoch,
            rows_read = self.rows_read,
            rows_written = self.rows_written,
            rows_skipped = self.rows_skipped,
            drift = self.drift.total,
            seconds = total,
            "batch run complete"
        );
    }
}
