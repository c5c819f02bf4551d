//! Erasing somebody from every layer.
//!
//! First the person is suppressed: whatever comes from then on comes without them, out of the log, a file or
//! a copy ([`stores::erasures`]). Then what there is goes. For a listener that is a batch run: it ends the
//! epochs that may hold the listener's live counts, writes the archive's files once more without the
//! listener, fills tables of its own with the rows that follow, and deletes those before, with the results
//! that they were made of. What is left are the log below the run's cuts, records of restorations, dead letters, and reports.
//!
//! That nobody who did not know of the erasure brings the listener back rests on the fence: what a worker
//! folds with an older list is of an epoch that the run ends, since the worker reads slot and list anew
//! before it fills the next one.
//!
//! Every step may be repeated. Whoever is killed runs it again: the number is the same, and what is done
//! already is found done.

mod listener;
mod receipt;
mod restorations;
mod search;

use std::sync::Arc;
use std::time::Duration;

use schemas::source::Source;
use stores::erasures::{Asked, Erasure, Kind, Person};
use stores::log::Log;
use tokio_util::sync::CancellationToken;

use crate::run::while_held;
use crate::{Batch, Error, Progress, Result, RunReport, RunRequest};

use self::receipt::LOG as LOG_PLACE;
pub use receipt::{Erased, Finding, Receipt};

/// How often to look whether a run that is under way has ended.
const RUN_PAUSE: Duration = Duration::from_millis(500);

/// Erases people.
#[derive(Debug)]
pub struct Eraser {
    batch: Batch,
    log: Arc<dyn Log>,
}

/// How somebody is erased.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EraseRequest {
    /// Who wants it, and why.
    pub asked: Asked,
    /// Leave the records of the log until its own time: they hold the person, and nobody makes anything of
    /// that any more.
    pub keep_log: bool,
}

impl Eraser {
    /// What erases from the stores that a batch layer works with. `log` must be the same log.
    #[must_use]
    pub fn build(batch: Batch, log: Arc<dyn Log>) -> Self {
        Self { batch, log }
    }

    /// Erases listeners, by their ids, from every store, all by the same batch run, and answers a receipt for
    /// each. One whose `finished_at_ms` is missing says what is left.
    ///
    /// # Errors
    /// Those of the stores and of the run. The people are suppressed then, as soon as that was written down;
    /// run it again.
    pub async fn erase(
        &self,
        listeners: &[i64],
        request: &EraseRequest,
        progress: &dyn Progress,
        stop: &CancellationToken,
    ) -> Result<Vec<Receipt>> {
        let mut begun = Vec::new();
        for id in listeners {
            let person = listener(*id);
            let now_ms = self.batch.ports.clock.now_ms();
            let list = &self.batch.ports.suppressions;
            let erasure = list.begin(person, &request.asked, now_ms).await?;
            let mut receipt = Receipt::of(&erasure);
            receipt.keep_log = request.keep_log;
            begun.push((person, receipt));
        }
        progress.stage("search", 0);
        self.look(&mut begun, "searched").await?;
        self.erase_listeners(request, (progress, stop)).await?;
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

    /// Searches every store for listeners, and answers where each is found.
    ///
    /// # Errors
    /// Those of the stores.
    pub async fn verify(&self, listeners: &[i64]) -> Result<Vec<(i64, Vec<Finding>)>> {
        let mut found = Vec::new();
        for id in listeners {
            let mut all = self.search(listener(*id)).await?;
            all.retain(|finding| finding.found > 0);
            found.push((*id, all));
        }
        Ok(found)
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
        for (person, receipt) in begun {
            let found = self.search(*person).await?;
            receipt.note(&found, &*self.batch.ports.clock);
            step.clone_into(&mut receipt.step);
            self.note(receipt).await?;
        }
        Ok(())
    }

    async fn note(&self, receipt: &Receipt) -> Result<()> {
        let value = serde_json::to_value(receipt).map_err(|e| Error::fault("a receipt", e))?;
        let list = &self.batch.ports.suppressions;
        Ok(list
            .note(receipt.number, receipt.finished_at_ms, &value)
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
        notes
    }

    /// Takes all who are suppressed out of the records of restorations, once neither a run nor a restoration is under way.
    async fn redact_restorations(&self, source: Source, stop: &CancellationToken) -> Result<()> {
        let lease = loop {
            match self.batch.lease(source).await {
                Err(Error::Busy(why)) => self.wait(&why, stop).await?,
                lease => break lease?,
            }
        };
        let ports = &self.batch.ports;
        let work = async {
            let suppressed = ports.suppressions.now().await?;
            restorations::redact(&ports.archive, |id| suppressed.has_listener(id)).await
        };
        let done = while_held(&*lease, &stop.child_token(), work).await;
        lease.let_go().await;
        done
    }

    /// Waits a little for somebody else.
    async fn wait(&self, why: &str, stop: &CancellationToken) -> Result<()> {
        tracing::info!(why, "waiting for a run to end");
        tokio::select! {
            () = tokio::time::sleep(RUN_PAUSE) => Ok(()),
            () = stop.cancelled() => Err(Error::Stopped),
        }
    }

    /// A batch run once no other one is under way.
    async fn run_when_free(
        &self,
        source: Source,
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<RunReport> {
        loop {
            let request = RunRequest::default();
            match self.batch.run(source, &request, progress, stop).await {
                Err(Error::Busy(why)) => self.wait(&why, stop).await?,
                done => return done,
            }
        }
    }
}

const fn listener(id: i64) -> Person {
    let kind = Kind::Listener;
    Person { kind, id }
}
