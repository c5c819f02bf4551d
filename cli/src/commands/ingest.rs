//! `ingest` and `backfill`.

use std::path::Path;

use anyhow::Context as _;
use batch::BackfillReport;
use schemas::source::SourceKind;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::Context;
use crate::args::IngestArgs;
use crate::failure::usage_error;
use crate::ingest::{IngestReport, Input, backfill, ingest};
use crate::installation::Installation;

/// Runs `ingest`. It opens all inputs before it ingests any.
pub(super) async fn run(
    args: &IngestArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let inputs = open_inputs(args)?;
    let installation = Installation::open(context.settings()).await?;
    let intake = installation.open_intake(args.source).await?;
    let intake = intake.with_stop(stop.clone());
    let mut report = IngestReport::new(args.source);
    let mut outcome = Ok(());
    for input in inputs {
        outcome = ingest(&intake, input, &mut report, &stop).await;
        if outcome.is_err() {
            break;
        }
    }
    report.set_duration();
    // A failure also prints the report of the ingested lines.
    let printed = context
        .output()
        .print_result(&report, IngestReport::to_text);
    outcome.and(printed)
}

/// Result of a backfill.
#[derive(Debug, Serialize)]
struct BackfillOutput {
    #[serde(flatten)]
    report: IngestReport,
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
        return Err(usage_error(format!(
            "{} are rows, not events; `backstitch ingest {}` writes them to the entity store",
            args.source, args.source
        )));
    }
    let inputs = open_inputs(args)?;
    let installation = Installation::open(context.settings()).await?;
    let intake = installation.open_intake(args.source).await?;
    let batch = installation.create_batch(&installation.create_engine()?)?;
    let mut batch_backfill = batch.backfill(args.source).await?;
    let mut report = IngestReport::new(args.source);
    for input in inputs {
        let outcome = backfill(&intake, &mut batch_backfill, input, &mut report, &stop).await;
        if outcome.is_err() {
            batch_backfill.abandon().await;
            return outcome.context("no event of this backfill counts");
        }
    }
    let backfill_report = batch_backfill.finish().await?;
    report.set_duration();
    let output = BackfillOutput {
        report,
        backfill: backfill_report,
    };
    context.output().print_result(&output, |output| {
        let mut text = output.report.to_text();
        text.push_str(&match output.backfill.backfill {
            0 => "no events, so nothing changed".to_owned(),
            number => format!(
                "backfill {number} is in the archive, {} files; the next `backstitch batch run` counts its events",
                output.backfill.files
            ),
        });
        text
    })
}

/// Opens the named inputs.
fn open_inputs(args: &IngestArgs) -> anyhow::Result<Vec<Input>> {
    let dashes = args.files.iter().filter(|file| *file == Path::new("-"));
    if dashes.count() > 1 {
        return Err(usage_error(
            "- is named twice; standard input can be read only once",
        ));
    }
    let files = args.files.iter();
    files
        .map(|file| Input::open(args.source, file, args.format))
        .collect()
}
