//! What a run computes: which views, from which results, over which days.

use std::collections::BTreeMap;
use std::sync::Arc;

use jobs::Job;
use jobs::tables::{Generation, before_erasure, table_name};
use schemas::seam::Run;
use schemas::source::Source;
use schemas::time::{Seconds, Width};

use super::compute::{Plan, View};
use super::result::ViewManifest;
use crate::archive::{ExpiredDays, FileEntry, days_between, format_day};
use crate::results::{Held, earlier};
use crate::{Error, Result, RunRequest};

const DAY_SECONDS: Seconds = 86_400;

/// What the archive has of a source.
#[derive(Debug)]
pub(crate) struct Archived {
    /// How many backfills are among the manifests, and who is not in their events.
    pub(crate) of: Generation,
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
    mut held: BTreeMap<String, Held<ViewManifest>>,
) -> Result<Plan> {
    let Archived { of, files, expired } = archived;
    let views = jobs.into_iter().map(|job| {
        let table = table_name(job.view(), of);
        let published = held.iter().filter(|(_, held)| held.published.is_some());
        let before = before_erasure(published.map(|(name, _)| name), job.view(), of);
        let before = before.and_then(|name| held.get(name)?.published.clone());
        let held = held.remove(&table).unwrap_or_default();
        let wanted = request.wants(job.name());
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
    if !request.jobs.is_empty() && of != Generation::default() && all_begin {
        return Err(Error::Request(
            "a backfill or an erasure is not in any table yet, and all views must take it in together: run `backstitch batch run` first, then single jobs"
                .to_owned(),
        ));
    }
    expect_below(&views, run)?;
    let wanted = || views.iter().filter(|view| view.wanted);
    let full =
        request.full || !request.jobs.is_empty() || wanted().any(|view| view.published.is_none());
    let since = wanted().filter_map(|view| view.published.as_ref());
    let since = since.fold(None, |since, old| Some(earlier(since, &old.cuts)));
    let since = since.unwrap_or_default();
    let dirty = wanted().filter(|view| view.job.piece() == Width::Day);
    let dirty = dirty.flat_map(|view| view.dirty.iter().flat_map(|other| &other.touched));
    let dirty = dirty.map(|start| start.div_euclid(DAY_SECONDS));
    let since = (!full).then_some(since.as_slice());
    let days = days_between(&files, since, &run.cuts, dirty);
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
                "the rows of {name} are of a result that the archive lacks, and would be made anew"
            );
            return Err(refusal(plan.source, bounds, &why));
        }
        if view.base().is_none() {
            let why = format!(
                "{name} has no result yet: it is a new view, one of another version, or a backfill came in"
            );
            return Err(refusal(plan.source, bounds, &why));
        }
    }
    let Some(touched) = plan.days.keys().find(|day| plan.expired.contains(**day)) else {
        return Ok(());
    };
    let bounds = (*touched, *touched);
    let readers = || plan.wanted().filter(|view| view.job.over().is_none());
    let before: Vec<_> = readers().filter_map(View::base).collect();
    let common = before.first().map_or(&[][..], |old| &old.cuts);
    if before.iter().any(|old| old.cuts != common) {
        let why = "its views hold different stretches of the log";
        return Err(refusal(plan.source, bounds, why));
    }
    if plan.expired.reaches_beyond(common, &plan.cuts) {
        let why = "the rows are of an older result than the events that were let go: views or results came back from a copy";
        return Err(refusal(plan.source, bounds, why));
    }
    if let Some(view) = readers().find(|view| view.job.piece() != Width::Day) {
        let why = format!(
            "{} is made of the events of more than a day",
            view.job.name()
        );
        return Err(refusal(plan.source, bounds, &why));
    }
    Ok(())
}

/// Why a request needs the events of all days, if it does.
pub(crate) fn whole_days(request: &RunRequest) -> Option<String> {
    match (request.full, request.jobs.first()) {
        (true, _) => Some("--full computes every day anew".to_owned()),
        (false, Some(job)) => Some(format!("--job {job} computes every day anew")),
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
        "{why}, and events of {source} {of} are no longer in the archive: they expired by retention.archive_days. Nothing was changed, and answers stay right. Restore from a copy the files that the newest object in archive/{source}/versions marks as expired, or leave out what needs them (docs/retention.md)"
    ))
}
