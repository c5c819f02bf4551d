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

/// Runs `ingest`. It opens all inputs before it ingests any.
pub(super) async fn run(
    args: &IngestArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let inputs = open_inputs(args)?;
    let installation = Installation::open(context.settings()).await?;
    let intake = installation.intake(args.source).await?;
    let intake = intake.with_stop(stop.clone());
    let mut report = Report::new(args.source);
    let mut outcome = Ok(());
    for input in inputs {
        outcome = ingest(&intake, input, &mut report, &stop).await;
        if outcome.is_err() {
            break;
        }
    }
    report.end();
    // A failure also prints the report of the ingested lines.
    let printed = context.output().result(&report, Report::text);
    outcome.and(printed)
}

/// Result of a backfill.
#[derive(Debug, Serialize)]
struct Backfilled {
    #[serde(flatten)]
    report: Report,
    #[serde(flatten)]
    backfill: BackfillReport,
}

/// Runs `backfill`. Either all of its events count, or none.
pub(super) async fn run_backfill(
    args: &IngestArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    if args.source.kind() != SourceKind::Events {
        return Err(usage(format!(
            "{} are rows, not events; `backstitch ingest {}` writes them to the entity store",
            args.source, args.source
        )));
    }
    let inputs = open_inputs(args)?;
    let installation = Installation::open(context.settings()).await?;
    let intake = installation.intake(args.source).await?;
    let batch = installation.batch(&installation.engine()?)?;
    let mut writing = batch.backfill(args.source).await?;
    let mut report = Report::new(args.source);
    for input in inputs {
        let taken = backfill(&intake, &mut writing, input, &mut report, &stop).await;
        if taken.is_err() {
            writing.abandon().await;
            return taken.context("no event of this backfill counts");
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
            0 => "no events, so nothing changed".to_owned(),
            number => format!(
                "backfill {number} is in the archive, {} files; the next `backstitch batch run` counts its events",
                backfilled.backfill.files
            ),
        });
        text
    })
}

/// Opens the named inputs.
fn open_inputs(args: &IngestArgs) -> anyhow::Result<Vec<Input>> {
    let dashes = args.files.iter().filter(|file| *file == Path::new("-"));
    if dashes.count() > 1 {
        return Err(usage(
            "- is named twice; standard input can be read only once",
        ));
    }
    let files = args.files.iter();
    files
        .map(|file| Input::open(args.source, file, args.format))
        .collect()
}
