//! Generates input that resembles real traffic, deterministic for a seed, as a stream.
//!
//! Each source has a module that generates its rows; [`rows`] is shared. A row becomes a line of
//! JSON ([`lines`]), and lines become Parquet columns ([`parquet_writer`]). Inputs with the same
//! seed fit together: an id in one has the same meaning in another.

mod applications;
mod article;
mod athletes;
mod authorizations;
mod clubs;
mod demo_lines;
mod efforts;
mod entities;
mod fault;
mod follows;
mod format;
mod lines;
mod pairs;
mod parquet_writer;
mod plays;
mod random_draws;
mod request;
mod rows;
mod time_distribution;
mod writing;

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use indicatif::ProgressBar;
use schemas::source::Source;
use tokio_util::sync::CancellationToken;

use crate::args::GenerateArgs;
use crate::output::check_stdout_write;
use applications::ApplicationGenerator;
use athletes::AthleteGenerator;
use authorizations::AuthorizationGenerator;
use clubs::MembershipGenerator;
pub(crate) use demo_lines::DemoLineGenerator;
use efforts::EffortGenerator;
use entities::{EntityGenerator, EntityStream};
use follows::FollowGenerator;
pub(crate) use format::detect_format;
use plays::PlayStream;
use request::GenerateRequest;
pub(crate) use writing::WriteReport;
use writing::{RowOutput, write_rows};

/// Generates the requested input.
///
/// # Errors
/// Contradictory arguments, a file that cannot be written, or an interruption.
pub(crate) fn generate(
    args: &GenerateArgs,
    bar: &ProgressBar,
    stop: &CancellationToken,
) -> anyhow::Result<WriteReport> {
    let format = detect_format(&args.output, args.format, |_| {
        format!(
            "cannot write compressed files; compress the output: backstitch generate {} … -o - | gzip > FILE",
            args.source
        )
    })?;
    let request = GenerateRequest::new(args)?;
    if args.output == Path::new("-") {
        // The locked handle cannot be sent to the Parquet writer.
        let output = RowOutput::new(format, std::io::stdout(), bar, stop);
        return write(&request, output).or_else(|error| {
            let error = error.downcast::<std::io::Error>()?;
            check_stdout_write(Err(error)).map(|()| WriteReport::default())
        });
    }
    let path = args.output.display();
    let file = File::create(&args.output)
        .map_err(|error| anyhow::anyhow!("{path}: {error}; name a writable file"))?;
    let output = RowOutput::new(format, file, bar, stop);
    write(&request, output).with_context(|| format!("writing {path}"))
}

/// Writes the rows of the source.
fn write<W: Write + Send>(
    request: &GenerateRequest,
    output: RowOutput<'_, W>,
) -> anyhow::Result<WriteReport> {
    match request.source {
        Source::Plays => write_rows(PlayStream::new(request)?, request, output),
        Source::Efforts => write_entities(EffortGenerator::new(request), request, output),
        Source::Athletes => write_entities(AthleteGenerator::new(), request, output),
        Source::Clubs => write_entities(MembershipGenerator::new(request)?, request, output),
        Source::Follows => write_entities(FollowGenerator::new(request)?, request, output),
        Source::Authorizations => {
            write_entities(AuthorizationGenerator::new(request), request, output)
        }
        Source::Applications => write_entities(ApplicationGenerator, request, output),
    }
}

fn write_entities<G: EntityGenerator, W: Write + Send>(
    generator: G,
    request: &GenerateRequest,
    output: RowOutput<'_, W>,
) -> anyhow::Result<WriteReport> {
    write_rows(EntityStream::new(generator, request), request, output)
}

#[cfg(test)]
mod distribution_tests;
#[cfg(test)]
mod tests;
