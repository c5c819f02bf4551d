//! Generates input that resembles real traffic, deterministic for a seed, as a stream.
//!
//! Each source has a module that generates its rows; [`rows`] is shared. A row becomes a line of JSON ([`lines`]), and lines
//! become Parquet columns ([`columns`]). Inputs with the same seed fit together: an id in one is the same thing in another.

mod applications;
mod article;
mod athletes;
mod authorizations;
mod clubs;
mod columns;
mod draw;
mod efforts;
mod entities;
mod fault;
mod follows;
mod format;
mod lines;
mod live;
mod pairs;
mod plays;
mod request;
mod rhythm;
mod rows;
mod writing;

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use indicatif::ProgressBar;
use schemas::source::Source;
use tokio_util::sync::CancellationToken;

use crate::args::GenerateArgs;
use crate::output::closed;
use applications::Applications;
use athletes::Athletes;
use authorizations::Authorizations;
use clubs::Clubs;
use efforts::Efforts;
use entities::Entities;
use follows::Follows;
pub(crate) use format::format_of;
pub(crate) use live::Live;
use plays::Plays;
use request::Request;
pub(crate) use writing::Written;
use writing::{Target, write_rows};

/// Generates the requested input.
///
/// # Errors
/// Contradictory arguments, a file that cannot be written, or an interruption.
pub(crate) fn generate(
    args: &GenerateArgs,
    bar: &ProgressBar,
    stop: &CancellationToken,
) -> anyhow::Result<Written> {
    let format = format_of(&args.output, args.format, |_| {
        format!(
            "cannot write compressed files; compress the output: backstitch generate {} … -o - | gzip > FILE",
            args.source
        )
    })?;
    let request = Request::new(args)?;
    if args.output == Path::new("-") {
        // The locked handle cannot be sent to the Parquet writer.
        let target = Target::new(format, std::io::stdout(), bar, stop);
        return write(&request, target).or_else(|error| {
            let error = error.downcast::<std::io::Error>()?;
            closed(Err(error)).map(|()| Written::default())
        });
    }
    let shown = args.output.display();
    let file = File::create(&args.output)
        .map_err(|error| anyhow::anyhow!("{shown}: {error}; name a writable file"))?;
    let target = Target::new(format, file, bar, stop);
    write(&request, target).with_context(|| format!("writing {shown}"))
}

/// Writes the rows of the source.
fn write<W: Write + Send>(request: &Request, target: Target<'_, W>) -> anyhow::Result<Written> {
    match request.source {
        Source::Plays => write_rows(Plays::new(request)?, request, target),
        Source::Efforts => write_entities(Efforts::new(request), request, target),
        Source::Athletes => write_entities(Athletes::new(), request, target),
        Source::Clubs => write_entities(Clubs::new(request)?, request, target),
        Source::Follows => write_entities(Follows::new(request)?, request, target),
        Source::Authorizations => write_entities(Authorizations::new(request), request, target),
        Source::Applications => write_entities(Applications, request, target),
    }
}

fn write_entities<M: entities::RowGenerator, W: Write + Send>(
    source: M,
    request: &Request,
    target: Target<'_, W>,
) -> anyhow::Result<Written> {
    write_rows(Entities::new(source, request), request, target)
}

#[cfg(test)]
mod shape_tests;
#[cfg(test)]
mod tests;
