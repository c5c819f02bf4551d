//! `ingest` and `backfill`.

use std::path::Path;

use anyhow::Context as _;
use batch::BackfillReport;
use schemas::source::SourceKind;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::Context;
use crate::args::IngestArgs;
use crate::failure::usage;
use crate::ingest::{Input, Report, backfill, ingest};
use crate::installation::Installation;

/// Runs `ingest`. All inputs are looked at before any is taken.
pub(super) async fn run(
    args: &IngestArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let inputs = inputs(args)?;
    let installation = Installation::open(context.settings()).await?;
    let intake = installation.intake(args.source).await?;
    let intake = intake.until(stop.clone());
    let mut report = Report::new(args.source);
    let mut outcome = Ok(());
    for input in inputs {
        outcome = ingest(&intake, input, &mut report, &stop).await;
        if outcome.is_err() {
            break;
        }
    }
    report.end();
    // Also after a failure it is told what was taken.
    let printed = context.output().result(&report, Report::text);
    outcome.and(printed)
}

/// What a backfill brought.
#[derive(Debug, Serialize)]
struct Backfilled {
    #[serde(flatten)]
    report: Report,
    #[serde(flatten)]
    backfill: BackfillReport,
}

/// Runs `backfill`: all of it counts, or nothing.
pub(super) async fn backfilled(
    args: &IngestArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    if args.source.kind() != SourceKind::Facts {
        return Err(usage(format!(
            "{} are rows, not events: `backstitch ingest {}` takes them into the canonical store",
            args.source, args.source
        )));
    }
    let inputs = inputs(args)?;
    let installation = Installation::open(context.settings()).await?;
    let intake = installation.intake(args.source).await?;
    let batch = installation.batch(&installation.engine()?)?;
    let mut writing = batch.backfill(args.source).await?;
    let mut report = Report::new(args.source);
    for input in inputs {
        let taken = backfill(&intake, &mut writing, input, &mut report, &stop).await;
        if taken.is_err() {
            writing.abandon().await;
            return taken.context("nothing of this backfill counts");
        }
    }
    let done = writing.finish().await?;
    report.end();
    let backfilled = Backfilled {
        report,
        backfill: done,
    };
    context.output().result(&backfilled, |backfilled| {
        let mut text = backfilled.report.text();
        text.push_str(&match backfilled.backfill.backfill {
            0 => "there was no event, so nothing changes".to_owned(),
            number => format!(
                "backfill {number} is in the archive, {} files; the next `backstitch batch run` takes it in",
                backfilled.backfill.files
            ),
        });
        text
    })
}

/// The inputs that are named; they are there.
fn inputs(args: &IngestArgs) -> anyhow::Result<Vec<Input>> {
    let dashes = args.files.iter().filter(|file| *file == Path::new("-"));
    if dashes.count() > 1 {
        return Err(usage(
            "- stands twice among the files; standard input can be read once",
        ));
    }
    let files = args.files.iter();
    files
        .map(|file| Input::open(args.source, file, args.format))
        .collect()
}
