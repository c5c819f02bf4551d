//! `speed`, `archive` and `snapshot`.

use std::collections::BTreeMap;

use schemas::source::{Source, SourceKind};
use serde::Serialize;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Context;
use crate::args::FollowArgs;
use crate::failure::usage_error;
use crate::installation::Installation;
use crate::progress::StageBars;

/// Reports by source.
type Reports = BTreeMap<&'static str, Value>;

/// Runs the speed layer until `stop`, or until it has caught up.
pub(super) async fn speed(
    args: &FollowArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let sources = args.sources();
    if let Some(unlogged) = sources
        .iter()
        .find(|source| !Source::LOGGED.contains(source))
    {
        return Err(usage_error(format!(
            "--source {unlogged}: this source has no log to follow; omit it, its rows are read with the efforts or by lookup"
        )));
    }
    let installation = Installation::open(context.settings()).await?;
    let engine = installation.create_engine()?;
    let mut tasks = JoinSet::new();
    for source in sources {
        let speed = installation.create_speed(&engine, source).await?;
        let (until_caught_up, stop) = (args.until_caught_up, stop.clone());
        tasks.spawn(async move {
            let report = speed.run(until_caught_up, stop).await?;
            anyhow::Ok((source.name(), serde_json::to_value(report)?))
        });
    }
    join_tasks(tasks, args, context, &stop).await
}

/// Runs the archiver until `stop`, or until it has caught up.
pub(super) async fn archive(
    args: &FollowArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let installation = Installation::open(context.settings()).await?;
    let batch = std::sync::Arc::new(installation.create_batch(&installation.create_engine()?)?);
    let mut tasks = JoinSet::new();
    for source in sources_of_kind(args, SourceKind::Events)? {
        let batch = std::sync::Arc::clone(&batch);
        let (until_caught_up, stop) = (args.until_caught_up, stop.clone());
        tasks.spawn(async move {
            let report = batch.archive(source, until_caught_up, stop).await?;
            anyhow::Ok((source.name(), serde_json::to_value(report)?))
        });
    }
    join_tasks(tasks, args, context, &stop).await
}

/// Takes one snapshot of each source.
pub(super) async fn snapshot(
    args: &FollowArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let sources = sources_of_kind(args, SourceKind::Entities)?;
    let installation = Installation::open(context.settings()).await?;
    let batch = installation.create_batch(&installation.create_engine()?)?;
    let mut reports = Reports::new();
    for source in sources {
        let report = batch.snapshot(source, &StageBars::default(), &stop).await?;
        reports.insert(source.name(), serde_json::to_value(report)?);
    }
    print_reports(context, &reports)
}

/// Returns the named sources, all of which must be of the kind, or all sources of the kind.
fn sources_of_kind(args: &FollowArgs, kind: SourceKind) -> anyhow::Result<Vec<Source>> {
    let (of_kind, others): (Vec<_>, Vec<_>) = args
        .sources()
        .into_iter()
        .partition(|source| Source::LOGGED.contains(source) && source.kind() == kind);
    match (args.sources.is_empty(), others.first()) {
        (false, Some(other)) => Err(usage_error(format!(
            "--source {other}: {}",
            match kind {
                SourceKind::Events =>
                    "only events are archived; `backstitch snapshot` copies rows of the entity store",
                SourceKind::Entities =>
                    "this source has no snapshot; `backstitch archive` copies events",
            }
        ))),
        _ => Ok(of_kind),
    }
}

/// Waits for all tasks and prints their reports. A failure stops the others.
async fn join_tasks(
    mut tasks: JoinSet<anyhow::Result<(&'static str, Value)>>,
    args: &FollowArgs,
    context: &Context,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let mut reports = Reports::new();
    let mut failure = None;
    while let Some(result) = tasks.join_next().await {
        match result.unwrap_or_else(|error| Err(error.into())) {
            Ok((source, report)) => {
                reports.insert(source, report);
            }
            Err(error) => {
                stop.cancel();
                failure.get_or_insert(error);
            }
        }
    }
    if let Some(error) = failure {
        return Err(error);
    }
    print_reports(context, &reports)?;
    anyhow::ensure!(
        !(args.until_caught_up && stop.is_cancelled()),
        "interrupted before the end of the log; run the command again to continue"
    );
    Ok(())
}

fn print_reports(context: &Context, reports: &Reports) -> anyhow::Result<()> {
    context.output().print_result(reports, |reports| {
        reports
            .iter()
            .map(|(source, report)| format!("{source}: {}\n", format_fields(report)))
            .collect()
    })
}

/// Formats the fields of a report on one line.
fn format_fields(report: &(impl Serialize + ?Sized)) -> String {
    let Ok(Value::Object(fields)) = serde_json::to_value(report) else {
        return String::new();
    };
    let fields: Vec<String> = fields
        .into_iter()
        .map(|(name, value)| match value {
            Value::String(text) => format!("{} {text}", name.replace('_', " ")),
            other => format!("{} {other}", name.replace('_', " ")),
        })
        .collect();
    fields.join(", ")
}
