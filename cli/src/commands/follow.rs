//! `speed`, `archive` and `snapshot`.

use std::collections::BTreeMap;

use schemas::source::{Source, SourceKind};
use serde::Serialize;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Context;
use crate::args::FollowArgs;
use crate::failure::usage;
use crate::installation::Installation;
use crate::progress::Stages;

/// Reports by source.
type Reports = BTreeMap<&'static str, Value>;

/// Runs the speed layer until `stop`, or until it has caught up.
pub(super) async fn speed(
    args: &FollowArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let sources = args.sources();
    if let Some(other) = sources
        .iter()
        .find(|source| !Source::LOGGED.contains(source))
    {
        return Err(usage(format!(
            "--source {other}: this source has no log to follow; omit it, its rows are read with the efforts or by lookup"
        )));
    }
    let installation = Installation::open(context.settings()).await?;
    let engine = installation.engine()?;
    let mut tasks = JoinSet::new();
    for source in sources {
        let speed = installation.speed(&engine, source).await?;
        let (until_caught_up, stop) = (args.until_caught_up, stop.clone());
        tasks.spawn(async move {
            let report = speed.run(until_caught_up, stop).await?;
            anyhow::Ok((source.name(), serde_json::to_value(report)?))
        });
    }
    join(tasks, args, context, &stop).await
}

/// Runs the archiver until `stop`, or until it has caught up.
pub(super) async fn archive(
    args: &FollowArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let installation = Installation::open(context.settings()).await?;
    let batch = std::sync::Arc::new(installation.batch(&installation.engine()?)?);
    let mut tasks = JoinSet::new();
    for source in sources_of_kind(args, SourceKind::Events)? {
        let batch = std::sync::Arc::clone(&batch);
        let (until_caught_up, stop) = (args.until_caught_up, stop.clone());
        tasks.spawn(async move {
            let report = batch.archive(source, until_caught_up, stop).await?;
            anyhow::Ok((source.name(), serde_json::to_value(report)?))
        });
    }
    join(tasks, args, context, &stop).await
}

/// Takes one snapshot of each source.
pub(super) async fn snapshot(
    args: &FollowArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let sources = sources_of_kind(args, SourceKind::Entities)?;
    let installation = Installation::open(context.settings()).await?;
    let batch = installation.batch(&installation.engine()?)?;
    let mut reports = Reports::new();
    for source in sources {
        let report = batch.snapshot(source, &Stages::default(), &stop).await?;
        reports.insert(source.name(), serde_json::to_value(report)?);
    }
    print(context, &reports)
}

/// The named sources, all of which must be of a kind, or all sources of that kind.
fn sources_of_kind(args: &FollowArgs, kind: SourceKind) -> anyhow::Result<Vec<Source>> {
    let (fit, other): (Vec<_>, Vec<_>) = args
        .sources()
        .into_iter()
        .partition(|source| Source::LOGGED.contains(source) && source.kind() == kind);
    match (args.sources.is_empty(), other.first()) {
        (false, Some(other)) => Err(usage(format!(
            "--source {other}: {}",
            match kind {
                SourceKind::Events =>
                    "only events are archived; `backstitch snapshot` copies rows of the entity store",
                SourceKind::Entities =>
                    "this source has no snapshot; `backstitch archive` copies events",
            }
        ))),
        _ => Ok(fit),
    }
}

/// Waits for all tasks and prints their reports. A failure stops the others.
async fn join(
    mut tasks: JoinSet<anyhow::Result<(&'static str, Value)>>,
    args: &FollowArgs,
    context: &Context,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let mut reports = Reports::new();
    let mut failed = None;
    while let Some(ended) = tasks.join_next().await {
        match ended.unwrap_or_else(|error| Err(error.into())) {
            Ok((source, report)) => {
                reports.insert(source, report);
            }
            Err(error) => {
                stop.cancel();
                failed.get_or_insert(error);
            }
        }
    }
    if let Some(error) = failed {
        return Err(error);
    }
    print(context, &reports)?;
    anyhow::ensure!(
        !(args.until_caught_up && stop.is_cancelled()),
        "interrupted before the end of the log; run the command again to continue"
    );
    Ok(())
}

fn print(context: &Context, reports: &Reports) -> anyhow::Result<()> {
    context.output().result(reports, |reports| {
        reports
            .iter()
            .map(|(source, report)| format!("{source}: {}\n", fields_line(report)))
            .collect()
    })
}

/// Formats the fields of a report on one line.
fn fields_line(report: &(impl Serialize + ?Sized)) -> String {
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
