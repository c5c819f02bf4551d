//! What a run computes: which views, from which results, over which days.

use std::collections::BTreeMap;
use std::sync::Arc;

use jobs::Job;
use jobs::tables::{Generation, table_name};
use schemas::seam::{Cut, Run};
use schemas::source::Source;
use schemas::time::{Seconds, Width};

use super::compute::{Plan, View};
use super::result::ViewManifest;
use crate::archive::Manifest;
use crate::results::Held;
use crate::{Error, Result, RunRequest};

const DAY_SECONDS: Seconds = 86_400;

/// Plans a run.
pub(crate) fn plan(
    source: Source,
    request: &RunRequest,
    run: &Run,
    jobs: Vec<Arc<Job>>,
    (of, manifests): (Generation, Vec<Manifest>),
    mut held: BTreeMap<String, Held<ViewManifest>>,
) -> Result<Plan> {
    let mut views = Vec::new();
    for job in jobs {
        let table = table_name(job.view(), of);
        let held = held.remove(&table).unwrap_or_default();
        let wanted = request.jobs.is_empty() || request.jobs.iter().any(|name| name == job.name());
        views.push(View {
            job,
            table,
            published: held.published,
            dirty: held.dirty,
            is_unknown: held.is_unknown,
            wanted,
        });
    }
    let all_begin = views.iter().all(|view| view.published.is_none());
    if !request.jobs.is_empty() && of != Generation::default() && all_begin {
        return Err(Error::Request(
            "a backfill or an erasure is not in any table yet, and all views must take it in together: run `backstitch batch run` first, then single jobs"
                .to_owned(),
        ));
    }
    for view in views.iter().filter(|view| view.wanted) {
        let below = view
            .job
            .over()
            .and_then(|name| views.iter().find(|v| v.job.name() == name));
        if let Some(below) = below
            && !below.wanted
            && below
                .published
                .as_ref()
                .is_none_or(|under| under.epoch != run.epoch)
        {
            return Err(Error::Request(format!(
                "job {} reads from {}, which has no result of run {}: name that one too with --job",
                view.job.name(),
                below.job.name(),
                run.epoch
            )));
        }
    }
    let wanted = || views.iter().filter(|view| view.wanted);
    let full =
        request.full || !request.jobs.is_empty() || wanted().any(|view| view.published.is_none());
    let since = common_start(
        wanted()
            .filter_map(|view| view.published.as_ref())
            .map(|old| old.cuts.as_slice()),
    );
    let days = touched_days(&manifests, wanted(), &run.cuts, (!full).then_some(&since));
    Ok(Plan {
        source,
        epoch: run.epoch,
        cuts: run.cuts.clone(),
        views,
        manifests,
        named: Vec::new(),
        of,
        full,
        days,
    })
}

/// By partition, the least of the cuts.
fn common_start<'a>(cuts: impl Iterator<Item = &'a [Cut]>) -> Vec<Cut> {
    cuts.fold(None, |least: Option<Vec<Cut>>, cuts| {
        let Some(least) = least else {
            return Some(cuts.to_vec());
        };
        let both = least.into_iter().zip(cuts);
        Some(
            both.map(|(a, b)| {
                if a.next_offset <= b.next_offset {
                    a
                } else {
                    *b
                }
            })
            .collect(),
        )
    })
    .unwrap_or_default()
}

/// The days to compute, with the records that the archive has of them: all, or those with a record
/// between `since` and the cuts, and those of which something may have been published.
fn touched_days<'a>(
    manifests: &[Manifest],
    views: impl Iterator<Item = &'a View>,
    cuts: &[Cut],
    since: Option<&Vec<Cut>>,
) -> BTreeMap<i64, u64> {
    let mut days = BTreeMap::new();
    for manifest in manifests {
        // A backfill begins a table, so everything is computed then.
        if since.is_none_or(|since| manifest.overlaps(since, cuts)) {
            days.extend(manifest.days.keys().map(|day| (*day, 0)));
        }
    }
    for view in views.filter(|view| view.job.piece() == Width::Day) {
        let dirty = view.dirty.iter().flat_map(|other| &other.touched);
        days.extend(dirty.map(|start| (start.div_euclid(DAY_SECONDS), 0)));
    }
    for manifest in manifests {
        for (day, held) in &manifest.days {
            if let Some(rows) = days.get_mut(day) {
                *rows += held.rows;
            }
        }
    }
    days
}
