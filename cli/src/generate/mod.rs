//! Made-up input that looks like real traffic: deterministic for a seed, written as a stream.
//!
//! Each source has a module that makes its rows; [`rows`] is what they share. A row is written as a line
//! of JSON ([`lines`]); lines become columns of Parquet ([`columns`]). Inputs that are made with one seed fit together: what
//! one refers to by an id is what another makes under it.

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

/// Writes what the arguments ask for.
///
/// # Errors
/// Arguments that can't be fulfilled, a file that can't be written, or a signal to end.
pub(crate) fn generate(
    args: &GenerateArgs,
    bar: &ProgressBar,
    stop: &CancellationToken,
) -> anyhow::Result<Written> {
    let format = format_of(&args.output, args.format, |_| {
        format!(
            "compressed files are not written; compress what is written, as in: backstitch generate {} … -o - | gzip > FILE",
            args.source
        )
    })?;
    let request = Request::of(args)?;
    if args.output == Path::new("-") {
        // Not the locked handle: it could not go to the Parquet writer.
        let target = Target::new(format, std::io::stdout(), bar, stop);
        return write(&request, target).or_else(|error| {
            let error = error.downcast::<std::io::Error>()?;
            closed(Err(error)).map(|()| Written::default())
        });
    }
    let shown = args.output.display();
    let file = File::create(&args.output)
        .map_err(|error| anyhow::anyhow!("{shown}: {error}; name a file that can be written"))?;
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

fn write_entities<M: entities::Make, W: Write + Send>(
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
