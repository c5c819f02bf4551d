//! `speed` and `archive`: what follows the log; `snapshot`.

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

/// By source: what was done.
type Reports = BTreeMap<&'static str, Value>;

/// Runs the speed layer until it is told to end, or has caught up.
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
            "--source {other}: it has no log of its own to follow; leave it out, its changes come with the efforts or are looked up"
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
    end(tasks, args, context, &stop).await
}

/// Runs the archiver until it is told to end, or has caught up.
pub(super) async fn archive(
    args: &FollowArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let installation = Installation::open(context.settings()).await?;
    let batch = std::sync::Arc::new(installation.batch(&installation.engine()?)?);
    let mut tasks = JoinSet::new();
    for source in of_kind(args, SourceKind::Facts)? {
        let batch = std::sync::Arc::clone(&batch);
        let (until_caught_up, stop) = (args.until_caught_up, stop.clone());
        tasks.spawn(async move {
            let report = batch.archive(source, until_caught_up, stop).await?;
            anyhow::Ok((source.name(), serde_json::to_value(report)?))
        });
    }
    end(tasks, args, context, &stop).await
}

/// Takes a snapshot of each source: as of one moment, so there is nothing to follow.
pub(super) async fn snapshot(
    args: &FollowArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let sources = of_kind(args, SourceKind::Entities)?;
    let installation = Installation::open(context.settings()).await?;
    let batch = installation.batch(&installation.engine()?)?;
    let mut reports = Reports::new();
    for source in sources {
        let report = batch.snapshot(source, &Stages::default(), &stop).await?;
        reports.insert(source.name(), serde_json::to_value(report)?);
    }
    print(context, &reports)
}

/// The sources of a kind that are named, or all of that kind.
fn of_kind(args: &FollowArgs, kind: SourceKind) -> anyhow::Result<Vec<Source>> {
    let (fit, other): (Vec<_>, Vec<_>) = args
        .sources()
        .into_iter()
        .partition(|source| Source::LOGGED.contains(source) && source.kind() == kind);
    match (args.sources.is_empty(), other.first()) {
        (false, Some(other)) => Err(usage(format!(
            "--source {other}: {}",
            match kind {
                SourceKind::Facts =>
                    "only events are archived; `backstitch snapshot` copies rows of the canonical store",
                SourceKind::Entities =>
                    "it has no snapshot of its own; `backstitch archive` copies events",
            }
        ))),
        _ => Ok(fit),
    }
}

/// Waits for all, and prints what they did. One that fails ends the others.
async fn end(
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
        "interrupted before the end of the log was reached; run it again, and it goes on where it was"
    );
    Ok(())
}

fn print(context: &Context, reports: &Reports) -> anyhow::Result<()> {
    context.output().result(reports, |reports| {
        reports
            .iter()
            .map(|(source, report)| format!("{source}: {}\n", facts(report)))
            .collect()
    })
}

/// The fields of a report, on one line.
fn facts(report: &(impl Serialize + ?Sized)) -> String {
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
