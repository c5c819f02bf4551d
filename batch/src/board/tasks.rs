//! The tasks of a run: one for each file of the snapshot, with every job.

use std::sync::Arc;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use super::compute::{Compute, Files};
use super::manifest::ResultFile;
use super::note::Note;
use crate::errand::{Errand, Outcome};
use crate::hands::{Hands, Work};
use crate::snapshot::{Snapshot, SnapshotFile};
use crate::{Progress, Result};

/// Has every job computed over the snapshot: for each, by file of the snapshot, the files of its rows.
pub(crate) async fn compute(
    compute: &Arc<Compute>,
    hands: &Hands,
    snapshot: &Snapshot,
    (progress, stop): (&dyn Progress, &CancellationToken),
) -> Result<Vec<Vec<Vec<ResultFile>>>> {
    let shared = || Note::of(compute);
    let note = hands.note(&compute.archive, &compute.files, shared).await?;
    let work = Arc::new(OfFile {
        compute: Arc::clone(compute),
        plan: note.path(),
    });
    let mut done: Vec<Files> = vec![Files::new(); snapshot.files.len()];
    let files = snapshot.files.iter().cloned().enumerate();
    let take = |(index, file): (usize, SnapshotFile), files: Files| {
        if let Some(place) = done.get_mut(index) {
            *place = files;
        }
        progress.advance(file.rows);
    };
    let outcome = hands.carry_out(&work, files.collect(), stop, take).await;
    note.remove().await;
    outcome?;
    let mut by_job: Vec<Vec<Vec<ResultFile>>> = vec![Vec::new(); compute.jobs.len()];
    for of_file in done {
        for (stretches, files) in by_job.iter_mut().zip(of_file) {
            stretches.push(files);
        }
    }
    Ok(by_job)
}

/// All jobs over one file of the snapshot, which comes with its number.
struct OfFile {
    compute: Arc<Compute>,
    /// The note of the boards.
    plan: String,
}

#[async_trait]
impl Work for OfFile {
    type Task = (usize, SnapshotFile);
    type Outcome = Files;

    async fn carry_out(&self, (_, file): &Self::Task) -> Result<Files> {
        self.compute.file(file).await
    }

    fn errand(&self, (_, file): &Self::Task) -> Errand {
        Errand::Boards {
            plan: self.plan.clone(),
            file: file.clone(),
        }
    }

    fn outcome(outcome: Outcome) -> Option<Files> {
        match outcome {
            Outcome::Boards(files) => Some(files),
            _ => None,
        }
    }
}
