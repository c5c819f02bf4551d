//! Made-up input that looks like real traffic: deterministic for a seed, written as a stream.

mod columns;
mod lines;
mod rhythm;
mod traffic;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use indicatif::ProgressBar;
use tokio_util::sync::CancellationToken;

use crate::args::{Format, GenerateArgs};
use crate::failure::usage;
use crate::output::closed;
pub(crate) use lines::write_line;
pub(crate) use rhythm::Rhythm;
pub(crate) use traffic::{Mix, Row, Shape, Traffic};

/// How long the made-up time is unless said: it ends where `--until` says.
const SPAN_MS: i64 = 28 * 24 * 3_600_000;
/// Rows between two looks at whether to end.
const ROWS_PER_STEP: u64 = 65_536;

/// What was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Written {
    /// All rows.
    pub(crate) rows: u64,
    /// Rows that repeat an earlier one.
    pub(crate) duplicates: u64,
    /// Rows that can't be taken.
    pub(crate) malformed: u64,
}

/// The format of a file: as said, else by its name.
///
/// # Errors
/// A name that does not tell.
pub(crate) fn format_of(path: &Path, said: Option<Format>) -> anyhow::Result<Format> {
    if let Some(said) = said {
        return Ok(said);
    }
    if path == Path::new("-") {
        return Ok(Format::Jsonl);
    }
    let extension = path
        .extension()
        .map(|extension| extension.to_string_lossy().to_lowercase());
    match extension.as_deref() {
        Some("jsonl" | "ndjson" | "json") => Ok(Format::Jsonl),
        Some("parquet") => Ok(Format::Parquet),
        Some("gz" | "zst" | "bz2" | "xz") => Err(usage(format!(
            "{}: compressed files are not read; unpack it first, as in: zcat FILE | backstitch ingest plays -",
            path.display()
        ))),
        _ => Err(usage(format!(
            "{}: the name does not tell the format; add --format jsonl or --format parquet",
            path.display()
        ))),
    }
}

/// Writes what the arguments ask for.
///
/// # Errors
/// A file that can't be written, or a signal to end.
pub(crate) fn generate(
    args: &GenerateArgs,
    bar: &ProgressBar,
    stop: &CancellationToken,
) -> anyhow::Result<Written> {
    let format = format_of(&args.output, args.format)?;
    let from = args.from.unwrap_or(args.until.saturating_sub(SPAN_MS));
    if from >= args.until {
        return Err(usage("--from must be before --until"));
    }
    let shape = Shape {
        owners: args.owners,
        tracks: args.tracks,
        ..Shape::default()
    };
    let mix = Mix {
        duplicates: args.duplicates,
        late: args.late,
        malformed: args.malformed,
    };
    let mut source = Rows {
        traffic: Traffic::new(args.seed, shape, mix)?,
        rhythm: Rhythm::new(from, args.until),
        rows: args.rows,
        written: Written::default(),
    };
    if args.output == Path::new("-") {
        // Not the locked handle: it could not go to the Parquet writer.
        let out = std::io::stdout();
        let written = write(
            &mut source,
            format,
            BufWriter::with_capacity(1 << 20, out),
            bar,
            stop,
        );
        return match written {
            Err(error) => match error.downcast::<std::io::Error>() {
                Ok(error) => closed(Err(error)).map(|()| source.written),
                Err(error) => Err(error),
            },
            Ok(()) => Ok(source.written),
        };
    }
    let shown = args.output.display();
    let file = File::create(&args.output)
        .map_err(|error| anyhow::anyhow!("{shown}: {error}; name a file that can be written"))?;
    write(
        &mut source,
        format,
        BufWriter::with_capacity(1 << 20, file),
        bar,
        stop,
    )
    .map_err(|error| error.context(format!("writing {shown}")))?;
    Ok(source.written)
}

fn write<W: Write + Send>(
    rows: &mut Rows,
    format: Format,
    mut out: W,
    bar: &ProgressBar,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    match format {
        Format::Jsonl => {
            let mut buffer = Vec::with_capacity(1 << 20);
            while rows.step(bar, stop, |row| write_line(&mut buffer, row))? {
                out.write_all(&buffer)?;
                buffer.clear();
            }
            out.flush()?;
        }
        Format::Parquet => {
            let mut file = columns::Writer::new(out)?;
            while rows.step(bar, stop, |row| file.push(row))? {
                file.flush()?;
            }
            file.finish()?;
        }
    }
    Ok(())
}

/// The rows that are asked for, in their order.
struct Rows {
    traffic: Traffic,
    rhythm: Rhythm,
    rows: u64,
    written: Written,
}

impl Rows {
    /// Hands out the next rows; answers whether there were any.
    fn step(
        &mut self,
        bar: &ProgressBar,
        stop: &CancellationToken,
        mut take: impl FnMut(&Row),
    ) -> anyhow::Result<bool> {
        anyhow::ensure!(
            !stop.is_cancelled(),
            "interrupted after {} of {} rows; what was written is incomplete",
            self.written.rows,
            self.rows
        );
        let end = self.rows.min(self.written.rows + ROWS_PER_STEP);
        if self.written.rows == end {
            return Ok(false);
        }
        while self.written.rows < end {
            let at_ms = self.rhythm.at(self.written.rows, self.rows);
            let row = self.traffic.next(at_ms);
            self.written.rows += 1;
            self.written.duplicates += u64::from(row.repeated);
            self.written.malformed += u64::from(row.fault.is_some());
            take(&row);
        }
        bar.set_position(end);
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
