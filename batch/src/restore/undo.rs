//! What was restored, and taking it back.

use schemas::source::Source;
use stores::intake::Intake;
use tokio_util::sync::CancellationToken;

use super::applied::Applied;
use super::correct::reversed;
use super::journal::{Journal, Recorded, Restoration, RestorationKind, new_id};
use crate::batch::Batch;
use crate::lease::run_under_lease;
use crate::{Error, Progress, Result};

impl Batch {
    /// The restorations of a source, oldest first.
    ///
    /// # Errors
    /// Those of the archive.
    pub async fn restorations(&self, source: Source) -> Result<Vec<Recorded>> {
        let archive = &self.ports.archive;
        Journal { archive, source }.all().await
    }

    /// The same for whoever holds the lease: those that were cut off are said to be.
    pub(super) async fn settled(&self, journal: &Journal<'_>) -> Result<Vec<Recorded>> {
        let mut recorded = journal.all().await?;
        let now_ms = self.ports.clock.now_ms();
        journal.settle(&mut recorded, now_ms).await?;
        Ok(recorded)
    }

    /// Takes the corrections of a restoration back, by corrections of the other sign; answers what was recorded.
    ///
    /// # Errors
    /// [`Error::Request`] if there is no such restoration or it was taken back, [`Error::Busy`] if a run is under
    /// way, those of the stores.
    pub async fn undo_restoration(
        &self,
        (source, number): (Source, u64),
        (by, reason): (&str, &str),
        intake: &Intake,
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<Restoration> {
        let held = self.acquire_run_lease(source).await?;
        let stop = stop.child_token();
        let archive = &self.ports.archive;
        let journal = Journal { archive, source };
        let work = async {
            let told = (progress, &stop);
            self.append_all(&journal, intake, told).await?;
            let recorded = self.settled(&journal).await?;
            let undone = to_undo(&recorded, number)?;
            let next = recorded.len() as u64 + 1;
            let id = new_id();
            let restoration = Restoration {
                number: next,
                undoes: Some(number),
                by: by.to_owned(),
                reason: reason.to_owned(),
                at_ms: self.ports.clock.now_ms(),
                files: reversed(&journal, undone, &id).await?,
                id,
                ..undone.clone()
            };
            journal.begin(&restoration).await?;
            let mut applied = Applied {
                restoration: Some(next),
                ..Applied::default()
            };
            let done = async {
                let of = (&restoration, &mut applied.corrections);
                self.append(&journal, of, intake, told).await?;
                self.index_corrections(&journal, &journal.all().await?)
                    .await
            };
            match done.await {
                Ok(()) => Ok(restoration),
                Err(error) => Err(Error::with_applied(error, applied)),
            }
        };
        let done = run_under_lease(&*held, &stop, Box::pin(work)).await;
        held.release().await;
        done
    }
}

/// The restoration to be taken back, if that can be.
fn to_undo(recorded: &[Recorded], number: u64) -> Result<&Restoration> {
    let mut all = recorded.iter().map(|one| &one.restoration);
    if let Some(by) = all.clone().find(|one| one.undoes == Some(number)) {
        return Err(Error::Request(format!(
            "restoration {number} was already undone by restoration {}; undo that one to repeat it",
            by.number
        )));
    }
    match all.find(|one| one.number == number) {
        Some(found) if found.kind == RestorationKind::Corrections => Ok(found),
        Some(_) => Err(Error::Request(format!(
            "restoration {number} rewrote rows from events or the database: nothing can be undone"
        ))),
        None => Err(Error::Request(format!(
            "unknown restoration {number}: see `backstitch reconcile list`"
        ))),
    }
}
