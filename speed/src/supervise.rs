//! Starts a worker for each partition and stops them together.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use jobs::{AggregateFold, Board, Catalog, Engine, Fold, Job, Layers};
use schemas::seam::Offset;
use schemas::source::{Source, SourceKind};
use stores::live::PartitionId;
use stores::log::{Assignment, GroupMembership, LOST_REMEDY, LogIdentityVerifier};
use stores::outbox_publisher::OutboxPublisher;
use stores::relay::OutboxRelay;
use stores::views::RunRecords;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::changes::ChangeOutbox;
use crate::entities::EntityProcessor;
use crate::entity_outbox::EntityOutbox;
use crate::events::EventProcessor;
use crate::idle::IdleWatch;
use crate::notices::Deliverer;
use crate::processor::BatchProcessor;
use crate::recount::Recounter;
use crate::report::{Counts, SpeedReport};
use crate::worker::{MISSING_PARTITION_CHECKS, Worker};
use crate::{Error, Result, SpeedOptions, SpeedPorts};

/// Pause between checks for a missing partition.
const PARTITION_RETRY_PAUSE: Duration = Duration::from_millis(500);

/// The speed layer of one source.
#[derive(Debug)]
pub struct Speed {
    ports: SpeedPorts,
    views: Views,
    engine: Engine,
    source: Source,
    options: SpeedOptions,
    /// Sends leftover notifications.
    outbox: Option<EntityOutbox>,
    /// Publishes board changes.
    change_publisher: Option<OutboxPublisher>,
    /// Deliver capacity notices and alerts.
    deliverers: Vec<Deliverer>,
    /// Recounts the athletes of applications, if a class recounts.
    recounter: Option<Recounter>,
}

/// The views that the layer updates.
#[derive(Debug)]
enum Views {
    Aggregates(Vec<Arc<Job>>),
    Boards(Vec<Arc<Job<Board>>>),
}

impl Speed {
    /// Creates the speed layer of `source`, with every view that it runs.
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
        let views = match source.kind() {
            SourceKind::Events => {
                let jobs = catalog.jobs_in_layer(source, Layers::Speed);
                Views::Aggregates(jobs.map(Arc::clone).collect())
            }
            SourceKind::Entities => {
                let jobs = catalog.boards_in_layer(source, Layers::Speed);
                Views::Boards(jobs.map(Arc::clone).collect())
            }
        };
        let outbox = matches!(views, Views::Boards(_)).then(|| EntityOutbox {
            entities: Arc::clone(&ports.entities) as _,
            relay: OutboxRelay::new(
                Arc::clone(&ports.entities) as _,
                Arc::clone(&ports.log_writes),
                Arc::clone(&ports.clock),
                options.partitions,
            ),
            source,
            look_interval_ms: options.look_interval_ms.max(1),
        });
        let change_publisher = matches!(views, Views::Boards(_)).then(|| {
            OutboxPublisher::new(
                Arc::clone(&ports.live),
                Arc::clone(&ports.achievements),
                Arc::clone(&ports.log_writes),
                Arc::clone(&ports.clock),
                options.partitions,
            )
        });
        let has_applications = source == Source::Authorizations;
        let notices = has_applications.then(|| Deliverer::for_capacities(&ports, &options));
        let deliverers = notices
            .into_iter()
            .chain([Deliverer::for_alerts(&ports, &options)]);
        let deliverers = deliverers.collect();
        let recounter = has_applications.then(|| catalog.counting());
        let recounter = recounter.and_then(|counting| Recounter::new(&ports, counting, &options));
        let speed = Self {
            ports,
            views,
            engine: engine.clone(),
            source,
            options,
            outbox,
            change_publisher,
            deliverers,
            recounter,
        };
        speed.create_processor(0).await?;
        Ok(speed)
    }

    const fn partition_id(&self, partition: u32) -> PartitionId {
        PartitionId {
            source: self.source,
            partition,
        }
    }

    /// Creates the change outbox of a partition, if the views are boards.
    fn create_change_outbox(&self, partition: u32) -> Option<ChangeOutbox> {
        let change_publisher = self.change_publisher.clone()?;
        let interval_ms = self.options.look_interval_ms;
        Some(ChangeOutbox::new(
            self.partition_id(partition),
            change_publisher,
            interval_ms,
        ))
    }

    /// Creates the processor of a partition's micro-batches.
    async fn create_processor(&self, partition: u32) -> Result<Box<dyn BatchProcessor>> {
        Ok(match &self.views {
            Views::Aggregates(jobs) => {
                let fold = AggregateFold::new(&self.engine, jobs).await?;
                let schemas = Arc::clone(&self.ports.schemas);
                Box::new(EventProcessor::new(partition, fold, schemas))
            }
            Views::Boards(jobs) => {
                let fold = Fold::new(&self.engine, jobs).await?;
                Box::new(self.create_entity_processor(partition, fold))
            }
        })
    }

    fn create_entity_processor(&self, partition: u32, fold: Fold<Board>) -> EntityProcessor {
        let id = self.partition_id(partition);
        let processor = EntityProcessor::new(id, &self.ports, &self.options, fold);
        let recounter = self.recounter.as_ref();
        processor.with_recounts(recounter.map(|recounter| Arc::clone(recounter.queue())))
    }

    /// Runs until `shutdown`, or with `until_caught_up` until the end of every partition. Started
    /// steps are finished first.
    ///
    /// Several processes share the partitions, and each runs the workers of its own ones. With
    /// `until_caught_up`, this process runs workers for all partitions.
    ///
    /// # Errors
    /// The first error that a worker can't handle. All workers stop.
    pub async fn run(
        &self,
        until_caught_up: bool,
        shutdown: CancellationToken,
    ) -> Result<SpeedReport> {
        let mut membership = if until_caught_up {
            GroupMembership::all_partitions()
        } else {
            self.ports.log.join_group(self.source.topic()).await?
        };
        let idle = Arc::new(IdleWatch::new(&self.ports, self.source, &self.options));
        let mut workers = Workers::new(until_caught_up, shutdown.child_token(), idle);
        if !until_caught_up {
            self.spawn_services(&mut workers);
        } else if let Some(outbox) = &self.outbox {
            outbox.send_all(&workers.stop).await?;
        }
        let mut outcome = self.supervise(&mut membership, &mut workers).await;
        if until_caught_up && outcome.is_ok() {
            outcome = self.finish_services(&workers.stop).await;
        }
        let outcome = workers.stop_all(outcome).await;
        membership.leave().await;
        outcome.map(|()| {
            *workers
                .counts
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        })
    }

    /// Starts the background services.
    fn spawn_services(&self, workers: &mut Workers) {
        let stop = workers.stop.clone();
        workers.spawn(None, Arc::clone(&workers.idle).run(stop.clone()));
        if let Some(outbox) = &self.outbox {
            workers.spawn(None, outbox.clone().watch(stop.clone()));
        }
        for deliverer in &self.deliverers {
            workers.spawn(None, deliverer.clone().watch(stop.clone()));
        }
        if let Some(recounter) = &self.recounter {
            workers.spawn(None, recounter.clone().watch(stop));
        }
    }

    /// Runs each service once, after the workers have caught up.
    async fn finish_services(&self, stop: &CancellationToken) -> Result<()> {
        if let Some(recounter) = &self.recounter {
            recounter.finish(stop).await?;
        }
        for deliverer in &self.deliverers {
            deliverer.deliver(stop).await?;
        }
        Ok(())
    }

    /// Keeps a worker for each assigned partition, until the end or an error.
    async fn supervise(&self, group: &mut GroupMembership, workers: &mut Workers) -> Result<()> {
        let wait = Duration::from_millis(self.options.look_interval_ms.max(1));
        let until_caught_up = workers.until_caught_up;
        let stop = workers.stop.clone();
        loop {
            match self.update_workers(&group.assigned(), workers).await {
                Ok(()) => {}
                Err(error) if error.is_transient() && !until_caught_up => {
                    tracing::warn!(%error, "partitions can't be assigned; trying again");
                }
                Err(error) => return Err(error),
            }
            if until_caught_up && workers.tasks.is_empty() {
                return Ok(());
            }
            tokio::select! {
                ended = workers.next_result() => ended?,
                () = stop.cancelled() => return Ok(()),
                () = group.changed() => {}
                () = tokio::time::sleep(wait), if !until_caught_up => {}
            }
        }
    }

    /// Counts the partitions of the log. If runs or live state know more, the log was lost.
    async fn count_partitions(&self) -> Result<u32> {
        let mut tries = 0;
        loop {
            // Run records first: no run has cuts in partitions that are added later.
            let recorded = self
                .ports
                .views
                .runs(self.source)
                .await?
                .runs
                .partition_count();
            let partitions = self.ports.partitions(self.source).await?;
            let evidence = if (partitions as usize) < recorded {
                "a batch run has a cut in this partition".to_owned()
            } else if let Some(counted) = self.read_live_offset(partitions).await? {
                format!("live state is at offset {counted}")
            } else {
                return Ok(partitions);
            };
            // A broker may not know new partitions yet.
            tries += 1;
            if tries >= MISSING_PARTITION_CHECKS {
                return Err(Error::LogReplaced {
                    topic: self.source.topic(),
                    partition: partitions,
                    problem: format!(
                        "{evidence}, but the log has only {partitions} partitions: it was lost. {LOST_REMEDY}"
                    ),
                });
            }
            tokio::time::sleep(PARTITION_RETRY_PAUSE).await;
        }
    }

    /// Reads the offset of a partition's live state, if events were counted.
    async fn read_live_offset(&self, partition: u32) -> Result<Option<Offset>> {
        let id = self.partition_id(partition);
        let state = self.ports.partition_state(id).await?;
        let next_offset = state.map(|state| state.position.next_offset);
        Ok(next_offset.filter(|next_offset| *next_offset > 0))
    }

    /// Starts workers for newly assigned partitions. Workers of revoked partitions finish their
    /// step and stop.
    async fn update_workers(&self, assigned: &Assignment, workers: &mut Workers) -> Result<()> {
        for (partition, stop) in &workers.stop_tokens {
            if !assigned.contains(*partition) {
                stop.cancel();
            }
        }
        let partitions = self.count_partitions().await?;
        for partition in 0..partitions {
            // A stopping worker is started again after it ended.
            if workers.stop_tokens.contains_key(&partition) || !assigned.contains(partition) {
                continue;
            }
            let worker = Worker {
                ports: self.ports.clone(),
                processor: self.create_processor(partition).await?,
                log_identity: LogIdentityVerifier::default(),
                source: self.source,
                partition,
                options: self.options.clone(),
                counts: Arc::clone(&workers.counts),
                partitions,
                runs: RunRecords::default(),
                idle: Arc::clone(&workers.idle),
                outbox: self.create_change_outbox(partition),
                full_outbox_refreshes: 0,
                until_caught_up: workers.until_caught_up,
                failures: 0,
            };
            let stop = workers.stop.child_token();
            workers.stop_tokens.insert(partition, stop.clone());
            workers.spawn(Some(partition), worker.run(stop));
        }
        Ok(())
    }
}

/// The workers and services of this process.
#[derive(Debug)]
struct Workers {
    until_caught_up: bool,
    counts: Arc<Counts>,
    /// Wakes workers at the end of the log.
    idle: Arc<IdleWatch>,
    /// Stops everything.
    stop: CancellationToken,
    /// The token that stops the worker of each partition.
    stop_tokens: BTreeMap<u32, CancellationToken>,
    tasks: JoinSet<(Option<u32>, Result<()>)>,
}

impl Workers {
    fn new(until_caught_up: bool, stop: CancellationToken, idle: Arc<IdleWatch>) -> Self {
        Self {
            until_caught_up,
            counts: Arc::default(),
            idle,
            stop,
            stop_tokens: BTreeMap::new(),
            tasks: JoinSet::new(),
        }
    }

    fn spawn(
        &mut self,
        partition: Option<u32>,
        task: impl Future<Output = Result<()>> + Send + 'static,
    ) {
        self.tasks.spawn(async move { (partition, task.await) });
    }

    /// Waits for the next task that ends, or forever if there is none. It is cancellation-safe.
    async fn next_result(&mut self) -> Result<()> {
        let Some(ended) = self.tasks.join_next().await else {
            return std::future::pending().await;
        };
        let (partition, outcome) =
            ended.map_err(|error| Error::Fault(format!("a worker task failed: {error}")))?;
        // A worker that has caught up is not started again.
        if let Some(partition) = partition
            && !self.until_caught_up
        {
            self.stop_tokens.remove(&partition);
        }
        outcome
    }

    /// Stops all tasks and returns the first error. Every worker finishes its current step, so that
    /// no store write is interrupted.
    async fn stop_all(&mut self, outcome: Result<()>) -> Result<()> {
        self.stop.cancel();
        let mut outcome = outcome;
        while !self.tasks.is_empty() {
            let result = self.next_result().await;
            outcome = outcome.and(result);
        }
        outcome
    }
}
