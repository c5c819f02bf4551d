//! The tasks of publishing: some pieces of a view each. Several are written at once, by this process or by workers
//! elsewhere that reach the store of the views.
//!
//! A row is in one piece, and all rows of a run have its stamp: so it does not matter in which order tasks write, nor that
//! one which is thought lost writes once more what another wrote.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use schemas::time::Seconds;
use tokio_util::sync::CancellationToken;

use super::compute::{Compute, Manifests};
use super::note::Note;
use super::publish::{Published, Publisher};
use super::result::ViewManifest;
use super::run::compared;
use crate::errand::{Errand, Outcome};
use crate::hands::{Hands, Work};
use crate::{Error, Progress, Result};

/// Has every view published whose manifest is given; answers by job what became of its touched pieces.
pub(crate) async fn load(
    compute: &Arc<Compute>,
    hands: &Hands,
    manifests: &mut Manifests,
    publisher: Publisher,
    (progress, stop): (&dyn Progress, &CancellationToken),
) -> Result<BTreeMap<String, Published>> {
    let (archive, files) = (&compute.archive, &compute.files);
    let plan = hands.note(archive, files, || Note::of(compute)).await?;
    let computed = hands.note(archive, files, || manifests.clone()).await?;
    let tasks = tasks(compute, manifests);
    let work = Arc::new(Loading {
        compute: Arc::clone(compute),
        manifests: std::mem::take(manifests),
        publisher,
        plan: plan.path(),
        computed: computed.path(),
    });
    let mut done: BTreeMap<String, Published> = BTreeMap::new();
    let take = |task: Part, published: Published| {
        progress.advance(task.pieces.len() as u64);
        done.entry(task.job).or_default().add(published);
    };
    let outcome = hands.carry_out(&work, tasks, stop, take).await;
    plan.remove().await;
    computed.remove().await;
    outcome?;
    let work = Arc::into_inner(work);
    let work = work.ok_or_else(|| Error::Fault("a task that does not end".to_owned()))?;
    *manifests = work.manifests;
    Ok(done)
}

/// Some touched pieces of a view.
#[derive(Debug)]
struct Part {
    job: String,
    pieces: BTreeSet<Seconds>,
}

/// The touched pieces of all views, about as many rows in each task; of a view without any, a task without any: a run that
/// was overtaken must hear it.
fn tasks(compute: &Compute, manifests: &Manifests) -> Vec<Part> {
    let rows_of = |manifest: Option<&ViewManifest>, start: &Seconds| {
        let piece = manifest.and_then(|manifest| manifest.pieces.get(start));
        piece.map_or(0, |piece| piece.rows)
    };
    let mut tasks = Vec::new();
    for view in compute.plan.wanted() {
        let Some(manifest) = manifests.get(view.job.name()) else {
            continue;
        };
        let part = |pieces| Part {
            job: view.job.name().to_owned(),
            pieces,
        };
        let (mut pieces, mut rows) = (BTreeSet::new(), 0);
        for start in &manifest.touched {
            let of_piece = rows_of(Some(manifest), start) + rows_of(view.published.as_ref(), start);
            if !pieces.is_empty() && rows + of_piece > compute.task_rows_max {
                tasks.push(part(std::mem::take(&mut pieces)));
                rows = 0;
            }
            pieces.insert(*start);
            rows += of_piece;
        }
        tasks.push(part(pieces));
    }
    tasks
}

struct Loading {
    compute: Arc<Compute>,
    manifests: Manifests,
    publisher: Publisher,
    /// The note of the plan.
    plan: String,
    /// The note of what was computed.
    computed: String,
}

impl Compute {
    /// Publishes some pieces of a view.
    pub(crate) async fn publish(
        &self,
        publisher: &Publisher,
        manifests: &Manifests,
        (job, pieces): (&str, &BTreeSet<Seconds>),
    ) -> Result<Published> {
        let view = self.plan.view(job)?;
        let unknown = || Error::Fault(format!("{job} was not computed"));
        let manifest = manifests.get(job).ok_or_else(unknown)?;
        publisher
            .publish(view, manifest, pieces, compared(view))
            .await
    }
}

#[async_trait]
impl Work for Loading {
    type Task = Part;
    type Outcome = Published;

    async fn carry_out(&self, part: &Part) -> Result<Published> {
        let of = (part.job.as_str(), &part.pieces);
        let (publisher, manifests) = (&self.publisher, &self.manifests);
        self.compute.publish(publisher, manifests, of).await
    }

    fn errand(&self, part: &Part) -> Errand {
        Errand::Publish {
            plan: self.plan.clone(),
            computed: self.computed.clone(),
            edition: self.publisher.edition,
            job: part.job.clone(),
            pieces: part.pieces.clone(),
        }
    }

    fn outcome(outcome: Outcome) -> Option<Published> {
        match outcome {
            Outcome::Published(published) => Some(published),
            _ => None,
        }
    }
}
