//! Erasing somebody from every layer.
//!
//! First the person is suppressed: whatever comes from then on comes without them, out of the log, a file or
//! a copy ([`stores::erasures`]). Then what there is goes. For a listener that is a batch run: it ends the
//! epochs that may hold the listener's live counts, writes the archive's files once more without the
//! listener, fills tables of its own with the rows that follow, and deletes those before, with the results
//! that they were made of. What is left are the log below the run's cuts, records of restorations, dead letters, and reports.
//! For an athlete the canonical rows go first, as if they had been deleted, which the speed layer is told of as always;
//! then a run of each source publishes the boards without, also those of earlier days, and what no head leads to any
//! more goes with live states, snapshots and results.
//!
//! That nobody who did not know of the erasure brings the listener back rests on the fence: what a worker
//! folds with an older list is of an epoch that the run ends, since the worker reads slot and list anew
//! before it fills the next one.
//!
//! Every step may be repeated. Whoever is killed runs it again: the number is the same, and what is done
//! already is found done.

mod athlete;
mod athlete_boards;
mod athlete_search;
mod comparisons;
mod findings;
mod listener;
mod receipt;
mod reports;
mod restorations;
mod search;
mod stretch;
mod topics;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use schemas::seam::Offset;
use schemas::source::Source;
use stores::achievements::AchievementsWrite;
use stores::canon::{CanonErase, CanonWrite};
use stores::embedded::DataFolder;
use stores::erasures::{Attribution, Erasure, Kind, Person};
use stores::log::Log;
use stores::relay::Relay;
use tokio_util::sync::CancellationToken;

use crate::run::while_held;
use crate::{Batch, Error, Progress, Result, RunReport, RunRequest};

use self::findings::Findings;
use self::receipt::{APPS, LOG as LOG_PLACE};
pub use receipt::{Erased, Finding, Receipt};

/// How often to look whether a run that is under way has ended.
const RUN_PAUSE: Duration = Duration::from_millis(500);

/// The column that names somebody of a kind.
const fn column_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Listener => "listener_id",
        Kind::Athlete => athlete::MEMBER,
    }
}

/// Erases people.
#[derive(Debug)]
pub struct Eraser {
    batch: Batch,
    log: Arc<dyn Log>,
    canon: Arc<dyn CanonErase>,
    relay: Relay,
    achievements: Arc<dyn AchievementsWrite>,
    data_folder: DataFolder,
}

/// What an erasure changes besides what a batch layer does.
#[derive(Debug, Clone)]
pub struct ErasePorts {
    /// The log, which must be the one that the batch layer reads.
    pub log: Arc<dyn Log>,
    /// The canonical store as everybody sees it.
    pub canon: Arc<dyn CanonWrite>,
    /// The same with those who are suppressed.
    pub canon_erase: Arc<dyn CanonErase>,
    /// What athletes have achieved.
    pub achievements: Arc<dyn AchievementsWrite>,
    /// The folder of the embedded stores.
    pub data_folder: DataFolder,
    /// How many partitions topics have that are not there yet.
    pub partitions: u32,
}

/// How somebody is erased.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EraseRequest {
    /// The requester and the reason.
    pub attribution: Attribution,
    /// Leave the records of the log until its own time: they hold the person, and nobody makes anything of
    /// that any more.
    pub keep_log: bool,
}

impl Eraser {
    /// What erases from the stores that a batch layer works with.
    #[must_use]
    pub fn build(batch: Batch, ports: ErasePorts) -> Self {
        let clock = Arc::clone(&batch.ports.clock);
        let log = Arc::clone(&ports.log) as _;
        Self {
            relay: Relay::new(ports.canon, log, clock, ports.partitions),
            batch,
            log: ports.log,
            canon: ports.canon_erase,
            achievements: ports.achievements,
            data_folder: ports.data_folder,
        }
    }

    /// Erases people from every store, all of a kind by the same batch runs, and answers a receipt for each. One whose
    /// `finished_at_ms` is missing says what is left.
    ///
    /// # Errors
    /// Those of the stores and of the run. The people are suppressed then, as soon as that was written down;
    /// run it again.
    pub async fn erase(
        &self,
        people: &[Person],
        request: &EraseRequest,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<Vec<Receipt>> {
        let mut begun = Vec::new();
        for person in people {
            let now_ms = self.batch.ports.clock.now_ms();
            let list = &self.batch.ports.suppressions;
            let erasure = list.begin(*person, &request.attribution, now_ms).await?;
            let mut receipt = Receipt::of(&erasure);
            receipt.keep_log = request.keep_log;
            begun.push((*person, receipt));
        }
        progress.stage("search", 0);
        self.look(&mut begun, "searched").await?;
        let of = |kind: Kind| people.iter().filter(move |one| one.kind == kind);
        if of(Kind::Listener).next().is_some() {
            self.erase_listeners(request, (progress, stop)).await?;
        }
        let athletes: BTreeSet<i64> = of(Kind::Athlete).map(|one| one.id).collect();
        if !athletes.is_empty() {
            self.erase_athletes(&athletes, request, (progress, stop))
                .await?;
        }
        progress.stage("verify", 0);
        self.look(&mut begun, "erased").await?;
        let mut receipts = Vec::new();
        for (_, mut receipt) in begun {
            receipt.notes = self.notes(&receipt);
            if receipt.is_clean() {
                receipt.finished_at_ms = Some(self.batch.ports.clock.now_ms());
            }
            self.note(&receipt).await?;
            receipts.push(receipt);
        }
        Ok(receipts)
    }

    /// Searches every store for people, and answers where each is found.
    ///
    /// # Errors
    /// Those of the stores.
    pub async fn verify(&self, people: &[Person]) -> Result<Vec<(Person, Vec<Finding>)>> {
        let all = self.search(people).await?;
        let found = people.iter().map(|person| {
            let found = all.of(*person).iter().filter(|finding| finding.found > 0);
            (*person, found.cloned().collect())
        });
        Ok(found.collect())
    }

    /// Every place where people can be, with what is found there of each: all of a kind are searched for at once.
    async fn search(&self, people: &[Person]) -> Result<Findings> {
        let of = |kind: Kind| people.iter().filter(move |one| one.kind == kind);
        let ids = |kind: Kind| of(kind).map(|one| one.id);
        let mut all = Findings::default();
        if of(Kind::Listener).next().is_some() {
            self.search_listeners(ids(Kind::Listener), &mut all).await?;
        }
        if of(Kind::Athlete).next().is_some() {
            self.search_athletes(ids(Kind::Athlete), &mut all).await?;
        }
        Ok(all)
    }

    /// All erasures, the newest first.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn list(&self) -> Result<Vec<Receipt>> {
        let all: Vec<Erasure> = self.batch.ports.suppressions.all().await?;
        Ok(all.iter().rev().map(Receipt::of).collect())
    }

    async fn look(&self, begun: &mut [(Person, Receipt)], step: &str) -> Result<()> {
        let people: Vec<Person> = begun.iter().map(|(person, _)| *person).collect();
        let all = self.search(&people).await?;
        for (person, receipt) in begun {
            receipt.note(all.of(*person), &*self.batch.ports.clock);
            step.clone_into(&mut receipt.step);
            self.note(receipt).await?;
        }
        Ok(())
    }

    async fn note(&self, receipt: &Receipt) -> Result<()> {
        let value = serde_json::to_value(receipt).map_err(|e| Error::fault("a receipt", e))?;
        let list = &self.batch.ports.suppressions;
        Ok(list
            .set_receipt(receipt.number, receipt.finished_at_ms, &value)
            .await?)
    }

    /// What a search can't tell.
    fn notes(&self, receipt: &Receipt) -> Vec<String> {
        let mut notes = vec![
            "a process of the serving layer may give an answer of before again while a store does not answer, for as long as `serving.kept_for_ms` says; start it anew if that is too long".to_owned(),
            "copies of the stores that were made before are not searched; what is put back from one is taken without this person".to_owned(),
        ];
        let left = |place: &str| {
            receipt
                .places
                .iter()
                .any(|one| one.place == place && one.left > 0)
        };
        if left(LOG_PLACE) && receipt.keep_log {
            notes.push("the log keeps its records until its own retention deletes them; nobody makes anything of this person in them".to_owned());
        }
        if left(LOG_PLACE) && !receipt.keep_log {
            notes.push("records that the speed layer has not counted yet stay in the log: let it catch up (`backstitch speed --until-caught-up`), then erase again".to_owned());
        }
        if left(APPS) {
            notes.push("rows of your own tables, of which the canonical store has views, are still there: nobody reads them, and only your app can delete them".to_owned());
        }
        notes
    }

    /// Works once no run, restoration or other erasure of a source is under way, and keeps them off meanwhile. The work
    /// looks at the token that it gets, and must not wait for a run: that would need the same lease.
    async fn under_lease<T>(
        &self,
        source: Source,
        stop: &CancellationToken,
        work: impl AsyncFnOnce(CancellationToken) -> Result<T>,
    ) -> Result<T> {
        let lease = loop {
            match self.batch.lease(source).await {
                Err(Error::Busy(why)) => self.wait(&why, stop).await?,
                lease => break lease?,
            }
        };
        let stop = stop.child_token();
        let work = Box::pin(work(stop.clone()));
        let done = while_held(&*lease, &stop, work).await;
        lease.let_go().await;
        done
    }

    /// Waits a little for somebody else.
    async fn wait(&self, why: &str, stop: &CancellationToken) -> Result<()> {
        tracing::info!(why, "waiting until the source is free");
        tokio::select! {
            () = tokio::time::sleep(RUN_PAUSE) => Ok(()),
            () = stop.cancelled() => Err(Error::Stopped),
        }
    }

    /// A batch run whose epoch ended after this was called; answers its cuts.
    async fn run_since(
        &self,
        source: Source,
        request: &RunRequest,
        told: (&dyn Progress, &CancellationToken),
    ) -> Result<Vec<Offset>> {
        let was_rolled = self.may_be_rolled(source).await?;
        let mut report = self.run_when_free(source, request, told).await?;
        if was_rolled {
            // That run's cuts may be older than the erasure: what was counted after them as well.
            report = self.run_when_free(source, request, told).await?;
        }
        Ok(report.cuts)
    }

    /// Whether an epoch may have ended already that the next run covers: a run was not finished, or died
    /// before it was recorded.
    async fn may_be_rolled(&self, source: Source) -> Result<bool> {
        let ports = &self.batch.ports;
        let runs = ports.views.runs(source).await?.runs;
        let partitions = ports.log.partitions_now(source.topic()).await?;
        let slots = ports.live.partition_states(source, 0..partitions).await?;
        let next = runs.next_epoch();
        let is_ahead = slots.iter().flatten().any(|slot| slot.epoch > next);
        Ok(runs.open().is_some() || is_ahead)
    }

    /// A batch run once no other one is under way.
    async fn run_when_free(
        &self,
        source: Source,
        request: &RunRequest,
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<RunReport> {
        loop {
            match self.batch.run(source, request, progress, stop).await {
                Err(Error::Busy(why)) => self.wait(&why, stop).await?,
                done => return done,
            }
        }
    }
}
