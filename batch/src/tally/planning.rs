//! What a run computes: which views, from which results, over which days.

use std::collections::BTreeMap;
use std::sync::Arc;

use jobs::Job;
use jobs::tables::{TableGeneration, find_table_before_erasure, table_name};
use schemas::seam::Run;
use schemas::source::Source;
use schemas::time::{BucketWidth, UnixSeconds};

use super::compute::{Plan, View};
use super::result::ViewManifest;
use crate::archive::{ExpiredDays, FileEntry, count_day_events, format_day};
use crate::results::{PublishedState, earliest_cuts};
use crate::{Error, Result, RunRequest};

const DAY_SECONDS: UnixSeconds = 86_400;

/// What the archive has of a source.
#[derive(Debug)]
pub(crate) struct Archived {
    /// How many backfills are among the manifests, and who is not in their events.
    pub(crate) of: TableGeneration,
    pub(crate) files: Vec<FileEntry>,
    /// The days of which events were let go.
    pub(crate) expired: ExpiredDays,
}

/// Plans a run.
pub(crate) fn plan(
    source: Source,
    request: &RunRequest,
    run: &Run,
    jobs: Vec<Arc<Job>>,
    archived: Archived,
    mut held: BTreeMap<String, PublishedState<ViewManifest>>,
) -> Result<Plan> {
    let Archived { of, files, expired } = archived;
    let views = jobs.into_iter().map(|job| {
        let table = table_name(job.view(), of);
        let published = held.iter().filter(|(_, held)| held.published.is_some());
        let before = find_table_before_erasure(published.map(|(name, _)| name), job.view(), of);
        let before = before.and_then(|name| held.get(name)?.published.clone());
        let held = held.remove(&table).unwrap_or_default();
        let wanted = request.includes(job.name());
        View {
            job,
            table,
            published: held.published,
            before,
            dirty: held.dirty,
            is_unknown: held.is_unknown,
            wanted,
        }
    });
    let views: Vec<View> = views.collect();
    let all_begin = views.iter().all(|view| view.published.is_none());
    if !request.jobs.is_empty() && of != TableGeneration::default() && all_begin {
        return Err(Error::Request(
            "the published tables do not include a backfill or an erasure yet, which all views must include together: run `backstitch batch run` first, then single jobs"
                .to_owned(),
        ));
    }
    expect_below(&views, run)?;
    let wanted = || views.iter().filter(|view| view.wanted);
    let full =
        request.full || !request.jobs.is_empty() || wanted().any(|view| view.published.is_none());
    let since = wanted().filter_map(|view| view.published.as_ref());
    let since = since.fold(None, |since, old| Some(earliest_cuts(since, &old.cuts)));
    let since = since.unwrap_or_default();
    let dirty = wanted().filter(|view| view.job.time_partition() == BucketWidth::Day);
    let dirty = dirty.flat_map(|view| view.dirty.iter().flat_map(|other| &other.touched));
    let dirty = dirty.map(|start| start.div_euclid(DAY_SECONDS));
    let since = (!full).then_some(since.as_slice());
    let days = count_day_events(&files, since, &run.cuts, dirty);
    let plan = Plan {
        source,
        epoch: run.epoch,
        cuts: run.cuts.clone(),
        views,
        files,
        expired,
        suppressed: Arc::default(),
        of,
        full,
        days,
    };
    without_events(&plan, request)?;
    Ok(plan)
}

/// Refuses a run of single jobs that leaves out one which another one reads from.
fn expect_below(views: &[View], run: &Run) -> Result<()> {
    for view in views.iter().filter(|view| view.wanted) {
        let below = view
            .job
            .input_job()
            .and_then(|name| views.iter().find(|v| v.job.name() == name));
        if let Some(below) = below
            && !below.wanted
            && below
                .published
                .as_ref()
                .is_none_or(|under| under.epoch != run.epoch)
        {
            return Err(Error::Request(format!(
                "job {} reads from {}, which has no result of run {}: add that job with --job",
                view.job.name(),
                below.job.name(),
                run.epoch
            )));
        }
    }
    Ok(())
}

/// Refuses a run that would need events which were let go: it would count less.
fn without_events(plan: &Plan, request: &RunRequest) -> Result<()> {
    let Some(bounds) = plan.expired.bounds() else {
        return Ok(());
    };
    if let Some(why) = whole_days(request) {
        return Err(refusal(plan.source, bounds, &why));
    }
    for view in plan.wanted() {
        let name = view.job.name();
        if view.is_unknown {
            let why = format!(
                "the archive lacks a result from which rows of {name} were written, so they would be recomputed"
            );
            return Err(refusal(plan.source, bounds, &why));
        }
        if view.base().is_none() {
            let why = format!(
                "{name} has no result yet, because of a new view, another version of it, or a backfill"
            );
            return Err(refusal(plan.source, bounds, &why));
        }
    }
    let Some(touched) = plan.days.keys().find(|day| plan.expired.contains(**day)) else {
        return Ok(());
    };
    let bounds = (*touched, *touched);
    let readers = || plan.wanted().filter(|view| view.job.input_job().is_none());
    let before: Vec<_> = readers().filter_map(View::base).collect();
    let common = before.first().map_or(&[][..], |old| &old.cuts);
    if before.iter().any(|old| old.cuts != common) {
        let why = "its views include different parts of the log";
        return Err(refusal(plan.source, bounds, why));
    }
    if plan.expired.overlaps(common, &plan.cuts) {
        let why = "the rows are from a result older than the expired events, so views or results were restored from a copy";
        return Err(refusal(plan.source, bounds, why));
    }
    if let Some(view) = readers().find(|view| view.job.time_partition() != BucketWidth::Day) {
        let why = format!(
            "the view {} computes time partitions longer than a day from events",
            view.job.name()
        );
        return Err(refusal(plan.source, bounds, &why));
    }
    Ok(())
}

/// Why a request needs the events of all days, if it does.
pub(crate) fn whole_days(request: &RunRequest) -> Option<String> {
    match (request.full, request.jobs.first()) {
        (true, _) => Some("--full recomputes every day".to_owned()),
        (false, Some(job)) => Some(format!("--job {job} recomputes every day")),
        (false, None) => None,
    }
}

/// The error of a run that needs events of days, the first and the last of which are given.
pub(crate) fn refusal(source: Source, (first, last): (i64, i64), why: &str) -> Error {
    let day = |day: i64| format_day(day);
    let of = if first == last {
        format!("of {}", day(first))
    } else {
        format!("between {} and {}", day(first), day(last))
    };
    Error::Request(format!(
        "{why}, but events of {source} {of} expired because of retention.archive_days. Nothing was changed, and answers stay correct. Restore from a copy the files that the newest object in archive/{source}/versions marks as expired, or omit the option or view that needs them (docs/retention.md)"
    ))
}
