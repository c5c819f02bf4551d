//! Starting a worker for each partition, and ending them together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jobs::{Catalog, Engine, Fold, Job, Layers};
use schemas::source::Source;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::worker::Worker;
use crate::{Error, Result, SpeedOptions, SpeedPorts};

/// The speed layer of one source.
#[derive(Debug)]
pub struct Speed {
    ports: SpeedPorts,
    jobs: Vec<Arc<Job>>,
    engine: Engine,
    source: Source,
    options: SpeedOptions,
}

/// What was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SpeedReport {
    /// Events that were counted.
    pub events: u64,
    /// Events that were passed over, since they were in the window already.
    pub duplicates: u64,
    /// Records that could not be taken.
    pub dead_letters: u64,
    /// Micro-batches that were applied.
    pub micro_batches: u64,
    /// Slots that were started anew.
    pub heals: u64,
    /// Times that a slot stood elsewhere than a worker believed.
    pub refusals: u64,
}

/// What all workers count together.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) events: AtomicU64,
    pub(crate) duplicates: AtomicU64,
    pub(crate) dead_letters: AtomicU64,
    pub(crate) micro_batches: AtomicU64,
    pub(crate) heals: AtomicU64,
    pub(crate) refusals: AtomicU64,
}

impl Speed {
    /// The speed layer of `source`, with every view of it that this layer runs.
    ///
    /// # Errors
    /// If a view's query can't be planned.
    pub async fn build(
        ports: SpeedPorts,
        catalog: &Catalog,
        engine: &Engine,
        source: Source,
        options: SpeedOptions,
    ) -> Result<Self> {
        let jobs: Vec<Arc<Job>> = catalog
            .of_layer(source, Layers::Speed)
            .map(Arc::clone)
            .collect();
        Fold::new(engine, &jobs).await?;
        Ok(Self {
            ports,
            jobs,
            engine: engine.clone(),
            source,
            options,
        })
    }

    /// Works until `shutdown`, or with `until_caught_up` until every partition's end was reached.
    /// What is under way is finished first.
    ///
    /// # Errors
    /// What a worker can't get over by itself; then all workers end.
    pub async fn run(
        &self,
        until_caught_up: bool,
        shutdown: CancellationToken,
    ) -> Result<SpeedReport> {
        let counts = Arc::new(Counts::default());
        let stop = shutdown.child_token();
        let mut workers: JoinSet<Result<()>> = JoinSet::new();
        let mut started = 0;
        let outcome = loop {
            match self
                .start_missing(&mut started, &mut workers, &counts, until_caught_up, &stop)
                .await
            {
                Ok(()) => {}
                Err(error) if error.may_pass() && !until_caught_up => {
                    tracing::warn!(%error, "what is to be counted can't be looked up; trying again");
                }
                Err(error) => break Err(error),
            }
            if until_caught_up && workers.is_empty() {
                break Ok(());
            }
            let wait = Duration::from_millis(self.options.look_interval_ms.max(1));
            tokio::select! {
                ended = workers.join_next(), if !workers.is_empty() => match ended {
                    Some(Ok(Ok(()))) if until_caught_up => {
                        if workers.is_empty() { break Ok(()); }
                    }
                    Some(Ok(Err(error))) => break Err(error),
                    Some(Err(error)) => break Err(Error::Fault(format!("a worker ended: {error}"))),
                    Some(Ok(Ok(()))) | None => {}
                },
                () = stop.cancelled() => break Ok(()),
                () = tokio::time::sleep(wait), if !until_caught_up => {}
            }
        };
        stop.cancel();
        // Every worker finishes the step that it is at: a store write is never dropped half-way.
        let mut outcome = outcome;
        while let Some(ended) = workers.join_next().await {
            if let (Ok(()), Ok(Err(error))) = (&outcome, ended) {
                outcome = Err(error);
            }
        }
        outcome.map(|()| counts.report())
    }

    /// Starts workers for partitions that have none yet.
    async fn start_missing(
        &self,
        started: &mut u32,
        workers: &mut JoinSet<Result<()>>,
        counts: &Arc<Counts>,
        until_caught_up: bool,
        stop: &CancellationToken,
    ) -> Result<()> {
        let topic = self.source.topic();
        // The runs first: no run has cuts in partitions that came after.
        let recorded = self.ports.views.runs(self.source).await?.runs.partitions();
        let partitions = self.ports.log.spans(topic).await?.len();
        let partitions = u32::try_from(partitions).unwrap_or(u32::MAX);
        if (partitions as usize) < recorded {
            return Err(Error::OtherLog {
                topic,
                partition: partitions,
                what: format!(
                    "a batch run has a cut here, and the log has only {partitions} partitions: it was lost. Restore it, or begin anew with an empty data folder"
                ),
            });
        }
        for partition in *started..partitions {
            let worker = Worker {
                ports: self.ports.clone(),
                fold: Fold::new(&self.engine, &self.jobs).await?,
                source: self.source,
                partition,
                options: self.options.clone(),
                counts: Arc::clone(counts),
                window: None,
            };
            workers.spawn(worker.run(until_caught_up, stop.clone()));
        }
        *started = partitions.max(*started);
        Ok(())
    }
}

impl Counts {
    fn report(&self) -> SpeedReport {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        SpeedReport {
            events: of(&self.events),
            duplicates: of(&self.duplicates),
            dead_letters: of(&self.dead_letters),
            micro_batches: of(&self.micro_batches),
            heals: of(&self.heals),
            refusals: of(&self.refusals),
        }
    }
}
