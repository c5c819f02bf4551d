//! `generate`.

use std::path::Path;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

use super::Context;
use crate::args::GenerateArgs;
use crate::generate::{WriteReport, generate};
use crate::progress;

/// Runs the command.
pub(super) async fn run(
    args: GenerateArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let to = args.output.clone();
    let work = move || {
        let bar = progress::start_item_bar("generating", args.rows);
        let written = generate(&args, &bar, &stop);
        bar.finish_and_clear();
        written
    };
    let written = tokio::task::spawn_blocking(work)
        .await
        .context("generating")??;
    if to == Path::new("-") {
        return Ok(());
    }
    context
        .output()
        .print_result(&written, |written: &WriteReport| {
            format!(
                "{} rows written to {}: {} duplicates, {} of them edits; {} late, {} malformed",
                written.rows,
                to.display(),
                written.duplicates,
                written.edits,
                written.late,
                written.malformed
            )
        })
}
