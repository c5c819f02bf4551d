//! `batch run`, `batch schedule`, `batch list`, `batch show`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use batch::{Batch, Cause, Drift, DriftedKey, RunReport, RunRequest};
use schemas::json_value::format_timestamp_ms;
use schemas::source::Source;
use serde::Serialize;
use stores::lease::run_lease;
use stores::views::RunDetails;
use tokio_util::sync::CancellationToken;

use super::Context;
use crate::args::{BatchCommand, BatchRunArgs, BatchScheduleArgs};
use crate::engine::BatchEngine;
use crate::failure::{join_lines, usage_error};
use crate::installation::Installation;
use crate::progress::StageBars;
use crate::roles::{BatchStatus, Roles, Schedule};

/// Runs the command.
pub(super) async fn run(
    command: &BatchCommand,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    match command {
        BatchCommand::Run(args) => run_batch(args, context, stop).await,
        BatchCommand::Schedule(args) => schedule(args, context, stop).await,
        BatchCommand::List { limit, source } => list(context, *limit, *source).await,
        BatchCommand::Show { run, source } => show(context, *run, *source).await,
    }
}

/// A published run in the output.
#[derive(Debug, Serialize)]
struct PublishedRun {
    source: Source,
    #[serde(flatten)]
    report: RunReport,
}

/// Starts batch runs at an interval until `stop`.
async fn schedule(
    args: &BatchScheduleArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let schedule = Schedule {
        first_delay: Duration::ZERO,
        interval: args.every,
        engine: BatchEngine::parse(&args.engine.engine)?,
    };
    let installation = Installation::open(context.settings()).await?;
    let engine = installation.create_engine()?;
    let mut roles = Roles::new(stop);
    let status = Arc::new(BatchStatus::default());
    roles
        .start_batch(&installation, &engine, schedule, &status)
        .await?;
    roles.join().await
}

async fn run_batch(
    args: &BatchRunArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let engine = BatchEngine::parse(&args.engine.engine)?;
    let requests = build_requests(args, context)?;
    let installation = Installation::open(context.settings()).await?;
    let mut batch = installation.create_batch(&installation.create_engine()?)?;
    // A run that has started would have to wait for executors.
    let executors = engine.create_executors(&context.settings().batch);
    if let Some(executors) = &executors {
        executors.connect(&stop).await?;
        batch = batch.with_workers(Arc::clone(executors) as _);
    }
    let runs = run_all(args, &batch, requests, &stop).await;
    if let Some(executors) = &executors {
        executors.cancel().await;
    }
    let (runs, failure) = runs?;
    match (runs.as_slice(), &failure) {
        ([], Some(_)) => {}
        ([run], None) => context.output().print_result(run, format_run)?,
        _ => context
            .output()
            .print_result(&runs, |runs| runs.iter().map(format_run).collect())?,
    }
    failure.map_or(Ok(()), Err)
}

/// Runs one source after another. A failure does not stop the others; errors are returned in the
/// end.
async fn run_all(
    args: &BatchRunArgs,
    batch: &Batch,
    mut requests: BTreeMap<Source, Vec<String>>,
    stop: &CancellationToken,
) -> anyhow::Result<(Vec<PublishedRun>, Option<anyhow::Error>)> {
    if args.jobs.is_empty() {
        requests = drop_empty_sources(batch, requests).await?;
    }
    let (mut runs, mut failures) = (Vec::new(), Vec::new());
    for (source, jobs) in requests {
        let request = RunRequest {
            jobs,
            full: args.full,
            force: args.force,
            ..RunRequest::default()
        };
        let stages = StageBars::default();
        match batch.run(source, &request, &stages, stop).await {
            Ok(report) => runs.push(PublishedRun { source, report }),
            Err(error) => {
                let error = anyhow::Error::from(error);
                failures.push(format!("the run of {source}: {error:#}"));
            }
        }
        if stop.is_cancelled() {
            break;
        }
    }
    let failure = (!failures.is_empty()).then(|| anyhow!(failures.join("; ")));
    Ok((runs, failure))
}

/// Builds the requested jobs by source; an empty list means all jobs.
fn build_requests(
    args: &BatchRunArgs,
    context: &Context,
) -> anyhow::Result<BTreeMap<Source, Vec<String>>> {
    if args.jobs.is_empty() {
        return Ok(Source::LOGGED.map(|source| (source, Vec::new())).into());
    }
    let catalog = Installation::load_catalog_from(context.settings())?;
    let mut requests: BTreeMap<Source, Vec<String>> = BTreeMap::new();
    for name in &args.jobs {
        let Some((_, source)) = catalog.names().find(|(known, _)| known == name) else {
            let known: Vec<&str> = catalog.names().map(|(name, _)| name).collect();
            return Err(usage_error(format!(
                "--job {name}: unknown job; known jobs: {}",
                known.join(", ")
            )));
        };
        let jobs = requests.entry(source).or_default();
        if !jobs.contains(name) {
            jobs.push(name.clone());
        }
    }
    Ok(requests)
}

/// Removes sources whose log is empty. If all are, plays remain, and their run reports it.
async fn drop_empty_sources(
    batch: &Batch,
    requests: BTreeMap<Source, Vec<String>>,
) -> anyhow::Result<BTreeMap<Source, Vec<String>>> {
    let mut remaining = BTreeMap::new();
    for (source, jobs) in &requests {
        if batch.has_log(*source).await? {
            remaining.insert(*source, jobs.clone());
        }
    }
    if remaining.is_empty() {
        remaining.insert(Source::Plays, Vec::new());
    }
    Ok(remaining)
}

fn format_run(run: &PublishedRun) -> String {
    let report = &run.report;
    let seconds: f64 = report.seconds.0.iter().map(|(_, seconds)| seconds).sum();
    let mut text = format!(
        "{} run {} is published: {} records read ({} duplicates), {} rows written, {} unchanged, in {seconds:.2} s\n",
        run.source,
        report.epoch,
        report.rows_read,
        report.duplicates,
        report.rows_written,
        report.rows_skipped,
    );
    let stages: Vec<String> = report
        .seconds
        .0
        .iter()
        .map(|(stage, seconds)| format!("{stage} {seconds:.2} s"))
        .collect();
    text.push_str(&format!("  {}\n", stages.join(", ")));
    text.push_str(&format_drift(&report.drift));
    for warning in &report.warnings {
        text.push_str(&format!("  warning: {warning}\n"));
    }
    text
}

fn format_drift(drift: &Drift) -> String {
    let mut text = match (&drift.unknown, drift.total) {
        (Some(reason), _) => format!("  drift unknown: {reason}\n"),
        // A run of single jobs does not compare.
        (None, None) => String::new(),
        (None, Some(0)) if !drift.is_lower_bound => {
            "  drift 0: live state had the same counts\n".to_owned()
        }
        (None, Some(0)) => {
            "  drift 0 among the compared keys: more keys had changed than one run compares\n"
                .to_owned()
        }
        (None, Some(total)) => format!(
            "  drift {}{} over {} keys: live state had different counts\n",
            if drift.is_lower_bound {
                "at least "
            } else {
                ""
            },
            total,
            drift.keys
        ),
    };
    for view in drift.views.iter().filter(|view| view.keys > 0) {
        let causes = view.causes.iter();
        let causes = causes.map(|(cause, events)| format!("{events} {}", describe_cause(*cause)));
        let causes: Vec<String> = causes.collect();
        text.push_str(&format!("    {}: {}\n", view.job, causes.join(", ")));
    }
    for key in &drift.worst {
        let DriftedKey {
            job,
            key,
            batch,
            live,
            cause,
        } = key;
        let cause = describe_cause(*cause);
        text.push_str(&format!("    {job} {key}: {batch}, live {live}: {cause}\n"));
    }
    text
}

/// Describes a cause.
const fn describe_cause(cause: Cause) -> &'static str {
    match cause {
        Cause::Duplicate => "counted twice: the event was repeated after the deduplication window",
        Cause::OtherPartition => "counted twice: the event was repeated in another partition",
        Cause::LostLive => "missing in live state",
        Cause::Unexplained => "unexplained",
    }
}

/// A run in the output of `list` and `show`.
#[derive(Debug, Serialize)]
struct RunEntry {
    source: Source,
    epoch: u64,
    state: &'static str,
    started_at: String,
    ended_at: Option<String>,
    cuts: Vec<i64>,
    /// Cause of a run that is not published.
    reason: Option<String>,
    /// Remedy, if one is needed.
    to_do: Option<String>,
    report: serde_json::Value,
}

impl RunEntry {
    fn new(source: Source, details: RunDetails, newest: u64, is_running: bool) -> Self {
        let (reason, to_do) = details
            .unpublished_reason(newest, is_running)
            .map_or((None, None), |outcome| {
                (Some(outcome.reason), outcome.to_do)
            });
        Self {
            reason,
            to_do,
            source,
            epoch: details.run.epoch,
            state: details.run.state.name(),
            started_at: format_timestamp_ms(details.started_at_ms),
            ended_at: details.ended_at_ms.map(format_timestamp_ms),
            cuts: details.run.cuts.iter().map(|cut| cut.next_offset).collect(),
            report: details.report,
        }
    }

    /// Formats the reason as the last column, and the remedy on a second line.
    fn format_reason(&self) -> String {
        let reason = self.reason.as_deref().map(join_lines);
        let reason = reason.map_or_else(String::new, |reason| format!("  {reason}"));
        let to_do = self.to_do.as_deref();
        let to_do = to_do.map_or_else(String::new, |to_do| format!("\n        to do: {to_do}"));
        reason + &to_do
    }

    fn format_line(&self) -> String {
        let count = |name: &str| {
            self.report
                .get(name)
                .map_or_else(|| "-".to_owned(), ToString::to_string)
        };
        format!(
            "{:>6}  {:<6}  {:<9}  {:<24}  {:<24}  {:>10}  {:>10}{}\n",
            self.epoch,
            self.source,
            self.state,
            self.started_at,
            self.ended_at.as_deref().unwrap_or("-"),
            count("rows_read"),
            count("rows_written"),
            self.format_reason(),
        )
    }
}

/// Returns whether a process holds the lease of a source's runs.
async fn is_running(installation: &Installation, source: Source) -> anyhow::Result<bool> {
    let leases = &installation.stores().leases;
    Ok(leases.holder(&run_lease(source)).await?.is_some())
}

async fn list(context: &Context, limit: u32, source: Option<Source>) -> anyhow::Result<()> {
    let installation = Installation::open_existing(context.settings()).await?;
    let limit = usize::try_from(limit)?;
    let mut runs = Vec::new();
    for candidate in Source::LOGGED {
        if source.is_none_or(|source| source == candidate) {
            let views = &installation.stores().views;
            let all_details = views.list_run_details(candidate, None, limit).await?;
            let newest = views.runs(candidate).await?.runs.newest_complete();
            let is_running = is_running(&installation, candidate).await?;
            let entry = |details| RunEntry::new(candidate, details, newest, is_running);
            runs.extend(all_details.into_iter().map(entry));
        }
    }
    context.output().print_result(&runs, |runs| {
        if runs.is_empty() {
            return "no runs yet; `backstitch batch run` starts one".to_owned();
        }
        let head = format!(
            "{:>6}  {:<6}  {:<9}  {:<24}  {:<24}  {:>10}  {:>10}  reason\n",
            "run", "source", "state", "started", "ended", "read", "written"
        );
        runs.iter()
            .fold(head, |text, run| text + &run.format_line())
    })
}

/// Returns the only source with runs.
///
/// # Errors
/// [`crate::failure::UsageError`] if several sources have runs.
async fn only_source_with_runs(installation: &Installation) -> anyhow::Result<Source> {
    let mut sources = Vec::new();
    for source in Source::LOGGED {
        let views = &installation.stores().views;
        if !views.list_run_details(source, None, 1).await?.is_empty() {
            sources.push(source);
        }
    }
    match sources.as_slice() {
        [] => anyhow::bail!("there are no batch runs yet; `backstitch batch run` starts one"),
        [source] => Ok(*source),
        several => {
            let names: Vec<&str> = several.iter().map(|source| source.name()).collect();
            Err(usage_error(format!(
                "several sources have runs: {}; choose one with --source",
                names.join(", ")
            )))
        }
    }
}

async fn show(context: &Context, run: u64, source: Option<Source>) -> anyhow::Result<()> {
    let installation = Installation::open_existing(context.settings()).await?;
    let source = match source {
        Some(source) => source,
        None => only_source_with_runs(&installation).await?,
    };
    let details = installation.stores().views.run_details(source, run).await?;
    let Some(details) = details else {
        anyhow::bail!("there is no run {run} of {source}; `backstitch batch list` shows the runs");
    };
    let records = installation.stores().views.runs(source).await?;
    let is_running = is_running(&installation, source).await?;
    let entry = RunEntry::new(source, details, records.runs.newest_complete(), is_running);
    context.output().print_result(&entry, |entry| {
        serde_json::to_string_pretty(entry).unwrap_or_default()
    })
}
