//! Erasure: removes people from every store.
//!
//! First the person enters the list of suppressed people ([`stores::erasures`]): later data is
//! ingested without the person, from the log, a file or a restored copy. Then existing data is
//! removed.
//!
//! For a listener, a batch run ends the epochs that may contain the listener's live deltas,
//! rewrites archive files without the listener, and fills tables of a new generation. The old
//! tables and their results are deleted. The log below the run's cuts, records of repairs, dead
//! letters and reports remain, and are deleted or rewritten afterwards.
//!
//! For an athlete, the rows are deleted first, like those of a deleted athlete, and the speed layer
//! is notified as usual. Then a run of each source publishes the boards without the athlete, also
//! those of earlier days. Nodes that no head leads to are deleted, with live entries, snapshots and
//! results.
//!
//! A worker with the old list cannot restore a listener. Its deltas belong to an epoch that the run
//! ends, because a worker reads the partition state and the list again before it fills the next
//! epoch.
//!
//! Every step may be repeated. An interrupted erasure continues under the same number and finds
//! finished steps done.

mod athlete;
mod athlete_boards;
mod athlete_search;
mod comparisons;
mod findings;
mod listener;
mod receipt;
mod repair_records;
mod reports;
mod search;
mod topic_scan;
mod topics;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use schemas::seam::Offset;
use schemas::source::Source;
use stores::achievements::AchievementsWrite;
use stores::embedded::DataFolder;
use stores::entities::{EntityErase, EntityWrite};
use stores::erasures::{Attribution, Erasure, Person, PersonKind};
use stores::log::Log;
use stores::relay::OutboxRelay;
use tokio_util::sync::CancellationToken;

use crate::run::run_under_lease;
use crate::{Batch, Error, Progress, Result, RunReport, RunRequest};

use self::findings::Findings;
use self::receipt::{APPS, LOG};
pub use receipt::{ErasedPlace, Finding, Receipt};

/// How long to wait before checking again whether another run has ended.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Returns the column with ids of a kind of person.
const fn person_column(kind: PersonKind) -> &'static str {
    match kind {
        PersonKind::Listener => "listener_id",
        PersonKind::Athlete => athlete::MEMBER,
    }
}

/// Erases people.
#[derive(Debug)]
pub struct Eraser {
    batch: Batch,
    log: Arc<dyn Log>,
    entity_eraser: Arc<dyn EntityErase>,
    relay: OutboxRelay,
    achievements: Arc<dyn AchievementsWrite>,
    data_folder: DataFolder,
}

/// The stores that an erasure changes, besides those of the batch layer.
#[derive(Debug, Clone)]
pub struct ErasePorts {
    /// The log that the batch layer reads.
    pub log: Arc<dyn Log>,
    /// The entity store without suppressed people.
    pub entities: Arc<dyn EntityWrite>,
    /// The entity store including suppressed people.
    pub entity_eraser: Arc<dyn EntityErase>,
    /// The achievements of athletes.
    pub achievements: Arc<dyn AchievementsWrite>,
    /// The folder of the embedded stores.
    pub data_folder: DataFolder,
    /// The partition count of topics that are created.
    pub partitions: u32,
}

/// The options of an erasure.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EraseRequest {
    /// The requester and the reason.
    pub attribution: Attribution,
    /// Leaves the records of the log until its retention deletes them. They contain the
    /// person, but no process uses that.
    pub keep_log: bool,
}

impl Eraser {
    /// Creates an eraser for the stores of a batch layer.
    #[must_use]
    pub fn new(batch: Batch, ports: ErasePorts) -> Self {
        let clock = Arc::clone(&batch.ports.clock);
        let log = Arc::clone(&ports.log) as _;
        Self {
            relay: OutboxRelay::new(ports.entities, log, clock, ports.partitions),
            batch,
            log: ports.log,
            entity_eraser: ports.entity_eraser,
            achievements: ports.achievements,
            data_folder: ports.data_folder,
        }
    }

    /// Erases people from every store, all of a kind by the same batch runs. Returns a receipt for
    /// each person. A receipt without `finished_at_ms` lists what remains.
    ///
    /// # Errors
    /// Errors of the stores and of the run. The people stay suppressed if they are on the list; run
    /// the erasure again.
    pub async fn erase(
        &self,
        people: &[Person],
        request: &EraseRequest,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<Vec<Receipt>> {
        let mut started = Vec::new();
        for person in people {
            let now_ms = self.batch.ports.clock.now_ms();
            let list = &self.batch.ports.suppressions;
            let erasure = list.begin(*person, &request.attribution, now_ms).await?;
            let mut receipt = Receipt::new(&erasure);
            receipt.keep_log = request.keep_log;
            started.push((*person, receipt));
        }
        progress.stage("search", 0);
        self.search_and_record(&mut started, "searched").await?;
        let of_kind = |kind: PersonKind| people.iter().filter(move |person| person.kind == kind);
        if of_kind(PersonKind::Listener).next().is_some() {
            self.erase_listeners(request, progress, stop).await?;
        }
        let athletes: BTreeSet<i64> = of_kind(PersonKind::Athlete)
            .map(|person| person.id)
            .collect();
        if !athletes.is_empty() {
            self.erase_athletes(&athletes, request, progress, stop)
                .await?;
        }
        progress.stage("verify", 0);
        self.search_and_record(&mut started, "erased").await?;
        let mut receipts = Vec::new();
        for (_, mut receipt) in started {
            receipt.notes = self.notes(&receipt);
            if receipt.is_clean() {
                receipt.finished_at_ms = Some(self.batch.ports.clock.now_ms());
            }
            self.store_receipt(&receipt).await?;
            receipts.push(receipt);
        }
        Ok(receipts)
    }

    /// Searches every store for people. Returns the places with findings for each person.
    ///
    /// # Errors
    /// Errors of the stores.
    pub async fn verify(&self, people: &[Person]) -> Result<Vec<(Person, Vec<Finding>)>> {
        let all = self.search(people).await?;
        let found = people.iter().map(|person| {
            let found = all
                .for_person(*person)
                .iter()
                .filter(|finding| finding.found > 0);
            (*person, found.cloned().collect())
        });
        Ok(found.collect())
    }

    /// Searches every place where people can occur, once for all people of a kind.
    async fn search(&self, people: &[Person]) -> Result<Findings> {
        let of_kind = |kind: PersonKind| people.iter().filter(move |person| person.kind == kind);
        let ids = |kind: PersonKind| of_kind(kind).map(|person| person.id);
        let mut all = Findings::default();
        if of_kind(PersonKind::Listener).next().is_some() {
            self.search_listeners(ids(PersonKind::Listener), &mut all)
                .await?;
        }
        if of_kind(PersonKind::Athlete).next().is_some() {
            self.search_athletes(ids(PersonKind::Athlete), &mut all)
                .await?;
        }
        Ok(all)
    }

    /// Lists all erasures, the newest first.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn list(&self) -> Result<Vec<Receipt>> {
        let all: Vec<Erasure> = self.batch.ports.suppressions.all().await?;
        Ok(all.iter().rev().map(Receipt::new).collect())
    }

    async fn search_and_record(
        &self,
        receipts: &mut [(Person, Receipt)],
        step: &str,
    ) -> Result<()> {
        let people: Vec<Person> = receipts.iter().map(|(person, _)| *person).collect();
        let all = self.search(&people).await?;
        for (person, receipt) in receipts {
            receipt.record_findings(all.for_person(*person), &*self.batch.ports.clock);
            step.clone_into(&mut receipt.step);
            self.store_receipt(receipt).await?;
        }
        Ok(())
    }

    async fn store_receipt(&self, receipt: &Receipt) -> Result<()> {
        let value = serde_json::to_value(receipt).map_err(|e| Error::fault("a receipt", e))?;
        let list = &self.batch.ports.suppressions;
        Ok(list
            .set_receipt(receipt.number, receipt.finished_at_ms, &value)
            .await?)
    }

    /// Returns notes on the limits of the search, and on what remains.
    fn notes(&self, receipt: &Receipt) -> Vec<String> {
        let mut notes = vec![
            "if a store does not respond, a serving process may return cached answers from before the erasure, for up to `serving.kept_for_ms`; restart the process if that is too long".to_owned(),
            "backups of the stores are not searched; data restored from one is ingested without this person".to_owned(),
        ];
        let left = |place: &str| {
            receipt
                .places
                .iter()
                .any(|place_result| place_result.place == place && place_result.left > 0)
        };
        if left(LOG) && receipt.keep_log {
            notes.push("the log keeps its records until its retention deletes them; no process uses their data about this person".to_owned());
        }
        if left(LOG) && !receipt.keep_log {
            notes.push("the log keeps records that the speed layer has not processed yet: run `backstitch speed --until-caught-up`, then erase again".to_owned());
        }
        if left(APPS) {
            notes.push("your own tables, which the entity store reads through views, still contain rows of this person: they are hidden, and only your app can delete them".to_owned());
        }
        notes
    }

    /// Runs `work` under the run lease of a source, which excludes runs, reconciliations and other
    /// erasures. `work` must check the token that it gets. It must not wait for a run, which would
    /// need the same lease.
    async fn with_run_lease<T>(
        &self,
        source: Source,
        stop: &CancellationToken,
        work: impl AsyncFnOnce(CancellationToken) -> Result<T>,
    ) -> Result<T> {
        let lease = loop {
            match self.batch.acquire_run_lease(source).await {
                Err(Error::Busy(why)) => self.wait_for_holder(&why, stop).await?,
                lease => break lease?,
            }
        };
        let stop = stop.child_token();
        let work = Box::pin(work(stop.clone()));
        let outcome = run_under_lease(&*lease, &stop, work).await;
        lease.release().await;
        outcome
    }

    /// Waits before another attempt to get the lease.
    async fn wait_for_holder(&self, why: &str, stop: &CancellationToken) -> Result<()> {
        tracing::info!(why, "waiting for the run lease");
        tokio::select! {
            () = tokio::time::sleep(RETRY_PAUSE) => Ok(()),
            () = stop.cancelled() => Err(Error::Stopped),
        }
    }

    /// Executes a batch run whose epoch ends after this call. Returns its cuts.
    async fn run_with_new_epoch(
        &self,
        source: Source,
        request: &RunRequest,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<Vec<Offset>> {
        let may_be_older = self.may_have_ended_epoch(source).await?;
        let mut report = self.run_when_free(source, request, progress, stop).await?;
        if may_be_older {
            // The cuts of the first run may precede the erasure, so a second one covers the later
            // records.
            report = self.run_when_free(source, request, progress, stop).await?;
        }
        Ok(report.cuts)
    }

    /// Returns whether an epoch that the next run covers may have ended already: a run is
    /// unfinished, or was interrupted before it was recorded.
    async fn may_have_ended_epoch(&self, source: Source) -> Result<bool> {
        let ports = &self.batch.ports;
        let runs = ports.views.runs(source).await?.runs;
        let partitions = ports.log.partitions_now(source.topic()).await?;
        let states = ports.live.partition_states(source, 0..partitions).await?;
        let next = runs.next_epoch();
        let is_ahead = states.iter().flatten().any(|state| state.epoch > next);
        Ok(runs.open().is_some() || is_ahead)
    }

    /// Executes a batch run once no other one is under way.
    async fn run_when_free(
        &self,
        source: Source,
        request: &RunRequest,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<RunReport> {
        loop {
            match self.batch.run(source, request, progress, stop).await {
                Err(Error::Busy(why)) => self.wait_for_holder(&why, stop).await?,
                done => return done,
            }
        }
    }
}
