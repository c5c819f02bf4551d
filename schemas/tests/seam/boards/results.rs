//! The store of results, and the refusal of overtaken tries.

use schemas::seam::{Cut, Epoch};

use super::entity_rows::KEYS;
use super::stores::World;
use crate::simulation::Event;

/// The result of a try of a run.
#[derive(Debug, Clone)]
pub(super) struct RunResult {
    pub(super) cuts: Vec<Cut>,
    /// The computed keys; all if `None`.
    pub(super) keys: Option<[bool; KEYS]>,
}

/// The results of which versions may exist.
#[derive(Debug, Clone, Default)]
pub(super) struct Results {
    /// The result that was published last.
    pub(super) published: Option<RunResult>,
    /// Later results of which some versions may have been written.
    pub(super) started: Vec<RunResult>,
}

impl World {
    /// Begins to publish a result. Returns the stamp of its versions; `None` if a newer run is
    /// recorded.
    pub(super) fn begin_publishing(&mut self, epoch: Epoch, result: RunResult) -> Option<i64> {
        let stamp_us = self.take_stamp(epoch)?;
        self.stores.results.started.push(result);
        Some(stamp_us)
    }

    /// Returns whether a try may still write versions.
    pub(super) fn may_publish(&mut self, epoch: Epoch, stamp: i64) -> bool {
        let is_last = self.last_run().is_some_and(|run| run.epoch == epoch);
        let is_current = is_last && self.is_publishing(epoch, stamp);
        let may_publish = is_current || !self.stores.rules.refuses_overtaken;
        if !may_publish {
            self.count_event(Event::TryOvertaken);
        }
        may_publish
    }

    fn is_publishing(&self, epoch: Epoch, stamp_us: i64) -> bool {
        let run = self.publishable_run(epoch);
        run.is_some_and(|run| run.stamp_us == stamp_us)
    }

    /// Completes a try, unless another try has begun.
    pub(super) fn complete_try(
        &mut self,
        epoch: Epoch,
        stamp: i64,
        result: RunResult,
        ends_epoch: bool,
    ) -> bool {
        if !self.is_publishing(epoch, stamp) {
            self.count_event(Event::TryOvertaken);
            return false;
        }
        self.complete(epoch, &[0], ends_epoch);
        if self.run_records().newest[0] == epoch {
            self.stores.results = Results {
                published: Some(result),
                started: Vec::new(),
            };
        }
        true
    }

    pub(super) fn abandon_run(&mut self, epoch: Epoch) {
        let mut versions = self.stores.versions.iter();
        let is_partly_published = versions.any(|boards| boards.epoch() == epoch);
        if self.abandon(epoch) && is_partly_published {
            self.count_event(Event::PartlyPublishedAbandoned);
        }
    }
}
