//! `ingest`.

use std::path::Path;

use tokio_util::sync::CancellationToken;

use super::Context;
use crate::args::IngestArgs;
use crate::failure::usage;
use crate::ingest::{Input, Report, ingest};
use crate::installation::Installation;

/// Runs the command. All inputs are looked at before any is taken.
pub(super) async fn run(
    args: &IngestArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let dashes = args.files.iter().filter(|file| *file == Path::new("-"));
    if dashes.count() > 1 {
        return Err(usage(
            "- stands twice among the files; standard input can be read once",
        ));
    }
    let inputs = args
        .files
        .iter()
        .map(|file| Input::open(args.source, file, args.format))
        .collect::<anyhow::Result<Vec<_>>>()?;
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
