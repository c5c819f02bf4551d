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
mod eraser;
mod findings;
mod listener;
mod receipt;
mod repair_records;
mod reports;
mod search;
mod sources;
mod topic_scan;
mod topics;

use std::collections::BTreeSet;

use stores::erasures::{Erasure, Person, PersonKind};
use tokio_util::sync::CancellationToken;

use crate::{Error, Progress, Result};

use self::findings::Findings;
use self::receipt::{APPS, LOG};
pub use eraser::{ErasePorts, EraseRequest, Eraser};
pub use receipt::{ErasedPlace, Finding, Receipt};

impl Eraser {
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
            receipt.notes = self.build_notes(&receipt);
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
        let findings = self.search(people).await?;
        let by_person = people.iter().map(|person| {
            let places = findings
                .for_person(*person)
                .iter()
                .filter(|finding| finding.found > 0);
            (*person, places.cloned().collect())
        });
        Ok(by_person.collect())
    }

    /// Searches every place where people can occur, once for all people of a kind.
    async fn search(&self, people: &[Person]) -> Result<Findings> {
        let of_kind = |kind: PersonKind| people.iter().filter(move |person| person.kind == kind);
        let ids = |kind: PersonKind| of_kind(kind).map(|person| person.id);
        let mut findings = Findings::default();
        if of_kind(PersonKind::Listener).next().is_some() {
            self.search_listeners(ids(PersonKind::Listener), &mut findings)
                .await?;
        }
        if of_kind(PersonKind::Athlete).next().is_some() {
            self.search_athletes(ids(PersonKind::Athlete), &mut findings)
                .await?;
        }
        Ok(findings)
    }

    /// Lists all erasures, the newest first.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn list(&self) -> Result<Vec<Receipt>> {
        let erasures: Vec<Erasure> = self.batch.ports.suppressions.all().await?;
        Ok(erasures.iter().rev().map(Receipt::new).collect())
    }

    async fn search_and_record(
        &self,
        receipts: &mut [(Person, Receipt)],
        step: &str,
    ) -> Result<()> {
        let people: Vec<Person> = receipts.iter().map(|(person, _)| *person).collect();
        let findings = self.search(&people).await?;
        for (person, receipt) in receipts {
            receipt.record_findings(findings.for_person(*person), &*self.batch.ports.clock);
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
    fn build_notes(&self, receipt: &Receipt) -> Vec<String> {
        let mut notes = vec![
            "if a store does not respond, a serving process may return cached answers from before the erasure, for up to `serving.kept_for_ms`; restart the process if that is too long".to_owned(),
            "backups of the stores are not searched; data restored from one is ingested without this person".to_owned(),
        ];
        let remains_in = |place: &str| {
            receipt
                .places
                .iter()
                .any(|place_result| place_result.place == place && place_result.left > 0)
        };
        if remains_in(LOG) && receipt.keep_log {
            notes.push("the log keeps its records until its retention deletes them; no process uses their data about this person".to_owned());
        }
        if remains_in(LOG) && !receipt.keep_log {
            notes.push("the log keeps records that the speed layer has not processed yet: run `backstitch speed --until-caught-up`, then erase again".to_owned());
        }
        if remains_in(APPS) {
            notes.push("your own tables, which the entity store reads through views, still contain rows of this person: they are hidden, and only your app can delete them".to_owned());
        }
        notes
    }
}
