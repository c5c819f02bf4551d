//! Starting a worker for each partition, and ending them together.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jobs::{Board, Catalog, Engine, Fold, Job, Layers, TallyFold};
use schemas::seam::Offset;
use schemas::source::{Source, SourceKind};
use serde::Serialize;
use stores::live::SlotId;
use stores::log::{Assigned, LOST_REMEDY, Recogniser, Share};
use stores::relay::Relay;
use stores::telling::Telling;
use stores::views::RunsSeen;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::boards::Boards;
use crate::entities::Entities;
use crate::facts::Facts;
use crate::idle::IdleWatch;
use crate::notices::Deliverer;
use crate::outbox::Outbox;
use crate::processor::BatchProcessor;
use crate::recount::Recounter;
use crate::sums::Sums;
use crate::tell::{Outbox as Told, Teller};
use crate::worker::{LOOKS_WITHOUT_PARTITION, Worker};
use crate::{Error, Result, SpeedOptions, SpeedPorts};

/// Between looks for a partition that was there.
const PARTITION_PAUSE: Duration = Duration::from_millis(500);

/// The speed layer of one source.
#[derive(Debug)]
pub struct Speed {
    ports: SpeedPorts,
    views: Views,
    engine: Engine,
    source: Source,
    options: SpeedOptions,
    /// Where notifications come from.
    outbox: Option<Outbox>,
    /// Where what changes on boards goes.
    telling: Option<Telling>,
    /// Deliver notices of capacities, and alerts.
    deliverers: Vec<Deliverer>,
    /// What counts the athletes of applications anew, where any are counted so.
    recounter: Option<Recounter>,
}

/// What the layer keeps.
#[derive(Debug)]
enum Views {
    Tallies(Vec<Arc<Job>>),
    Boards(Vec<Arc<Job<Board>>>),
}

/// What was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SpeedReport {
    /// Events that were counted, or groups whose state was made anew.
    pub events: u64,
    /// Events that were passed over, since they were in the window already; or notifications that
    /// said what another of their micro-batch had said.
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

/// The counts of all workers.
pub(crate) type Counts = Mutex<SpeedReport>;

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
        let views = match source.kind() {
            SourceKind::Facts => {
                let jobs = catalog.of_layer(source, Layers::Speed);
                Views::Tallies(jobs.map(Arc::clone).collect())
            }
            SourceKind::Entities => {
                let jobs = catalog.boards_of_layer(source, Layers::Speed);
                Views::Boards(jobs.map(Arc::clone).collect())
            }
        };
        let outbox = matches!(views, Views::Boards(_)).then(|| Outbox {
            canon: Arc::clone(&ports.canon) as _,
            relay: Relay::new(
                Arc::clone(&ports.canon) as _,
                Arc::clone(&ports.log_writes),
                Arc::clone(&ports.clock),
                options.partitions,
            ),
            source,
            look_interval_ms: options.look_interval_ms.max(1),
        });
        let telling = matches!(views, Views::Boards(_)).then(|| {
            Telling::new(
                Arc::clone(&ports.live),
                Arc::clone(&ports.achievements),
                Arc::clone(&ports.log_writes),
                Arc::clone(&ports.clock),
                options.partitions,
            )
        });
        let is_connecting = source == Source::Authorizations;
        let notices = is_connecting.then(|| Deliverer::of_capacities(&ports, &options));
        let deliverers = notices
            .into_iter()
            .chain([Deliverer::of_alerts(&ports, &options)]);
        let deliverers = deliverers.collect();
        let recounter = is_connecting.then(|| catalog.counting());
        let recounter = recounter.and_then(|of| Recounter::new(&ports, of, &options));
        let speed = Self {
            ports,
            views,
            engine: engine.clone(),
            source,
            options,
            outbox,
            telling,
            deliverers,
            recounter,
        };
        speed.processor(0).await?;
        Ok(speed)
    }

    const fn slot(&self, partition: u32) -> SlotId {
        SlotId {
            source: self.source,
            partition,
        }
    }

    /// What waits to be told of a partition, where boards are kept.
    fn told(&self, partition: u32) -> Option<Told> {
        let telling = self.telling.clone()?;
        let interval_ms = self.options.look_interval_ms;
        Some(Told::new(self.slot(partition), telling, interval_ms))
    }

    /// The processor of a partition's micro-batches.
    async fn processor(&self, partition: u32) -> Result<Box<dyn BatchProcessor>> {
        Ok(match &self.views {
            Views::Tallies(jobs) => {
                let fold = TallyFold::new(&self.engine, jobs).await?;
                let schemas = Arc::clone(&self.ports.schemas);
                Box::new(Facts::new(partition, fold, schemas))
            }
            Views::Boards(jobs) => {
                let fold = Fold::new(&self.engine, jobs).await?;
                Box::new(self.entities(partition, jobs, fold))
            }
        })
    }

    fn entities(&self, partition: u32, jobs: &[Arc<Job<Board>>], fold: Fold<Board>) -> Entities {
        let (slot, ports) = (self.slot(partition), &self.ports);
        let entities = Entities::new(
            slot,
            (Arc::clone(&ports.canon) as _, Arc::clone(&ports.schemas)),
            fold,
            (self.options.groups_max.max(1), self.options.rows_max),
            (
                Teller::new(slot, ports),
                Boards::new(slot, ports, jobs.to_vec(), &self.options),
                Sums::new(slot, ports, &self.options),
            ),
        );
        let recounter = self.recounter.as_ref();
        entities.telling(recounter.map(|of| Arc::clone(of.touched())))
    }

    /// Works until `shutdown`, or with `until_caught_up` until every partition's end was reached.
    /// What is under way is finished first.
    ///
    /// Several processes share the partitions, each with the workers of its own; who is to reach the
    /// ends works on all of them.
    ///
    /// # Errors
    /// What a worker can't get over by itself; then all workers end.
    pub async fn run(
        &self,
        until_caught_up: bool,
        shutdown: CancellationToken,
    ) -> Result<SpeedReport> {
        let mut share = if until_caught_up {
            Share::everything()
        } else {
            self.ports.log.share(self.source.topic()).await?
        };
        let idle = Arc::new(IdleWatch::new(&self.ports, self.source, &self.options));
        let mut workers = Workers::new(until_caught_up, shutdown.child_token(), idle);
        if !until_caught_up {
            self.spawn_services(&mut workers);
        } else if let Some(outbox) = &self.outbox {
            outbox.send_all(&workers.stop).await?;
        }
        let mut outcome = self.supervise(&mut share, &mut workers).await;
        if until_caught_up && outcome.is_ok() {
            outcome = self.finish_services(&workers.stop).await;
        }
        let outcome = workers.end(outcome).await;
        share.leave().await;
        outcome.map(|()| {
            *workers
                .counts
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        })
    }

    /// Starts what runs beside the workers.
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

    /// Does once what services do, after the workers have caught up.
    async fn finish_services(&self, stop: &CancellationToken) -> Result<()> {
        if let Some(recounter) = &self.recounter {
            recounter.finish(stop).await?;
        }
        for deliverer in &self.deliverers {
            deliverer.deliver(stop).await?;
        }
        Ok(())
    }

    /// Keeps a worker at each partition that is this process's, until the end or an error.
    async fn supervise(&self, share: &mut Share, workers: &mut Workers) -> Result<()> {
        let wait = Duration::from_millis(self.options.look_interval_ms.max(1));
        let until_caught_up = workers.until_caught_up;
        let stop = workers.stop.clone();
        loop {
            match self.assign(&share.assigned(), workers).await {
                Ok(()) => {}
                Err(error) if error.may_pass() && !until_caught_up => {
                    tracing::warn!(%error, "what is to be counted can't be looked up; trying again");
                }
                Err(error) => return Err(error),
            }
            if until_caught_up && workers.tasks.is_empty() {
                return Ok(());
            }
            tokio::select! {
                ended = workers.ended() => ended?,
                () = stop.cancelled() => return Ok(()),
                () = share.changed() => {}
                () = tokio::time::sleep(wait), if !until_caught_up => {}
            }
        }
    }

    /// How many partitions the log has: no fewer than were counted, or it is not the log that was.
    async fn partitions(&self) -> Result<u32> {
        let mut looks = 0;
        loop {
            // The runs first: no run has cuts in partitions that came after.
            let recorded = self.ports.views.runs(self.source).await?.runs.partitions();
            let partitions = self.ports.partitions(self.source).await?;
            let what = if (partitions as usize) < recorded {
                "a batch run has a cut here".to_owned()
            } else if let Some(counted) = self.counted_in(partitions).await? {
                format!("live state stands at offset {counted} here")
            } else {
                return Ok(partitions);
            };
            // A broker may not have heard of them yet.
            looks += 1;
            if looks >= LOOKS_WITHOUT_PARTITION {
                return Err(Error::OtherLog {
                    topic: self.source.topic(),
                    partition: partitions,
                    what: format!(
                        "{what}, and the log has only {partitions} partitions: it was lost. {LOST_REMEDY}"
                    ),
                });
            }
            tokio::time::sleep(PARTITION_PAUSE).await;
        }
    }

    /// Where live state of a partition stands, if anything of it was counted.
    async fn counted_in(&self, partition: u32) -> Result<Option<Offset>> {
        let slot = self.ports.slot(self.slot(partition)).await?;
        let next_offset = slot.map(|slot| slot.position.next_offset);
        Ok(next_offset.filter(|next_offset| *next_offset > 0))
    }

    /// Starts workers at partitions that came, and stops those at partitions that went: each
    /// finishes its step.
    async fn assign(&self, assigned: &Assigned, workers: &mut Workers) -> Result<()> {
        for (partition, stop) in &workers.at {
            if !assigned.has(*partition) {
                stop.cancel();
            }
        }
        let partitions = self.partitions().await?;
        for partition in 0..partitions {
            // One that is stopping is started anew when it has ended.
            if workers.at.contains_key(&partition) || !assigned.has(partition) {
                continue;
            }
            let worker = Worker {
                ports: self.ports.clone(),
                processor: self.processor(partition).await?,
                recogniser: Recogniser::default(),
                source: self.source,
                partition,
                options: self.options.clone(),
                counts: Arc::clone(&workers.counts),
                partitions,
                runs: RunsSeen::default(),
                idle: Arc::clone(&workers.idle),
                outbox: self.told(partition),
                full_looks: 0,
                until_caught_up: workers.until_caught_up,
                failures: 0,
            };
            let stop = workers.stop.child_token();
            workers.at.insert(partition, stop.clone());
            workers.spawn(Some(partition), worker.run(stop));
        }
        Ok(())
    }
}

/// The workers of this process, and what else runs with them.
#[derive(Debug)]
struct Workers {
    until_caught_up: bool,
    counts: Arc<Counts>,
    /// Wakes those at the end of the log.
    idle: Arc<IdleWatch>,
    /// Ends all of them.
    stop: CancellationToken,
    /// By partition: what ends its worker.
    at: BTreeMap<u32, CancellationToken>,
    tasks: JoinSet<(Option<u32>, Result<()>)>,
}

impl Workers {
    fn new(until_caught_up: bool, stop: CancellationToken, idle: Arc<IdleWatch>) -> Self {
        Self {
            until_caught_up,
            counts: Arc::default(),
            idle,
            stop,
            at: BTreeMap::new(),
            tasks: JoinSet::new(),
        }
    }

    fn spawn(
        &mut self,
        partition: Option<u32>,
        work: impl Future<Output = Result<()>> + Send + 'static,
    ) {
        self.tasks.spawn(async move { (partition, work.await) });
    }

    /// Waits for one that ends; for ever if there is none. It may be dropped at any point.
    async fn ended(&mut self) -> Result<()> {
        let Some(ended) = self.tasks.join_next().await else {
            return std::future::pending().await;
        };
        let (partition, outcome) =
            ended.map_err(|error| Error::Fault(format!("a worker ended: {error}")))?;
        // One that has caught up is not started again.
        if let Some(partition) = partition
            && !self.until_caught_up
        {
            self.at.remove(&partition);
        }
        outcome
    }

    /// Ends them all, and answers the first error. Every worker finishes the step that it is at: a
    /// store write is never dropped half-way.
    async fn end(&mut self, outcome: Result<()>) -> Result<()> {
        self.stop.cancel();
        let mut outcome = outcome;
        while !self.tasks.is_empty() {
            let ended = self.ended().await;
            outcome = outcome.and(ended);
        }
        outcome
    }
}
