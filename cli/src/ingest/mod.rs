//! Ingests files: reads, checks and writes in parallel, with bounded queues.

mod backfill;
mod chunk;
pub(crate) mod fields;
mod lines;
mod parquet;
mod report;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use indicatif::ProgressBar;
use schemas::source::Source;
use stores::intake::{CheckedLines, Intake, IntakeReport};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::args::Format;
use crate::failure::usage;
use crate::generate::format_of;
use crate::progress;
pub(crate) use backfill::backfill;
use chunk::Chunk;
use lines::{LineReader, Slow};
pub(crate) use report::Report;

/// Maximum waiting chunks between two steps.
const CHUNKS_WAITING: usize = 2;

/// An input that exists and has a known format.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    source: Source,
    path: PathBuf,
    format: Format,
    bytes: Option<u64>,
}

impl Input {
    /// Checks that the file can be ingested.
    ///
    /// # Errors
    /// A missing or unreadable file, or an unknown or unsupported format.
    pub(crate) fn open(
        source: Source,
        path: &Path,
        format: Option<Format>,
    ) -> anyhow::Result<Self> {
        let shown = path.display();
        let unpack = |cat: &str| {
            format!("decompress it first: {cat} {shown} | backstitch ingest {source} -")
        };
        let format = format_of(path, format, |extension| {
            let cat = match extension {
                "zst" => "zstdcat",
                "bz2" => "bzcat",
                "xz" => "xzcat",
                _ => "zcat",
            };
            format!("compressed files are not supported; {}", unpack(cat))
        })?;
        if path == Path::new("-") {
            return Ok(Self {
                source,
                path: path.to_path_buf(),
                format,
                bytes: None,
            });
        }
        let named =
            |error: std::io::Error| anyhow::anyhow!("{shown}: {error}; name readable files");
        let mut file = File::open(path).map_err(named)?;
        let meta = file.metadata().map_err(named)?;
        anyhow::ensure!(!meta.is_dir(), "{shown} is a folder; name the files in it");
        let mut head = [0; 2];
        if meta.is_file() && file.read(&mut head).map_err(named)? == 2 && head == [0x1f, 0x8b] {
            return Err(usage(format!(
                "{shown} is compressed with gzip; {}",
                unpack("zcat")
            )));
        }
        Ok(Self {
            source,
            path: path.to_path_buf(),
            format,
            bytes: meta.is_file().then_some(meta.len()),
        })
    }

    /// Name of the input in reports and dead letters.
    fn origin(&self) -> String {
        if self.is_standard_input() {
            "stdin".to_owned()
        } else {
            self.path.display().to_string()
        }
    }

    fn is_standard_input(&self) -> bool {
        self.path == Path::new("-")
    }

    /// Reads the input and passes chunks to `send`, until `send` returns false.
    fn read(&self, mut send: impl FnMut(Chunk) -> bool) -> anyhow::Result<()> {
        let (source, send) = (self.source, &mut send);
        let mut read = || match (self.format, self.is_standard_input()) {
            (Format::Jsonl, true) => {
                LineReader::new(Slow::new(std::io::stdin()), source).read(send)
            }
            (Format::Jsonl, false) => LineReader::new(File::open(&self.path)?, source).read(send),
            (Format::Parquet, true) => {
                // Parquet needs a seekable file: its footer is read first.
                let mut file = tempfile::tempfile()?;
                std::io::copy(&mut std::io::stdin().lock(), &mut file)?;
                parquet::read(file, source, send)
            }
            (Format::Parquet, false) => parquet::read(File::open(&self.path)?, source, send),
        };
        read().context(self.origin())
    }
}

/// Ingests one input and adds to the report.
///
/// # Errors
/// An unreadable input, errors of the log, or an interruption; the report has the ingested lines.
pub(crate) async fn ingest(
    intake: &Intake,
    input: Input,
    report: &mut Report,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let (checker, origin) = (intake.clone(), input.origin());
    let check = move |chunk: &Chunk| {
        let mut checked = checker.check(&origin, chunk.lines());
        checked.add_unreadable(chunk.unreadable());
        Ok(checked)
    };
    let write = async |checked: CheckedLines| Ok(intake.write(checked).await?);
    let end = EarlyEnd {
        stop,
        interrupted: "which are ingested; ingest the same input again for the rest: repeated lines count once",
        unreadable: "are ingested, and none after them; ingest the file again when it is readable: repeated lines count once",
    };
    process(input, check, write, report, end).await
}

/// Early end of an input, and its consequence for the processed lines.
#[derive(Clone, Copy)]
struct EarlyEnd<'a> {
    stop: &'a CancellationToken,
    /// After an interruption.
    interrupted: &'static str,
    /// After a read error.
    unreadable: &'static str,
}

/// Processes one input with a progress bar.
async fn process<C: Send + 'static>(
    input: Input,
    check: impl FnMut(&Chunk) -> anyhow::Result<C> + Send + 'static,
    write: impl AsyncFnMut(C) -> anyhow::Result<IntakeReport>,
    report: &mut Report,
    end: EarlyEnd<'_>,
) -> anyhow::Result<()> {
    report.begin(&input.origin());
    let bar = progress::bytes(&input.origin(), input.bytes);
    let outcome = run_steps(input, check, write, report, &bar, end).await;
    bar.finish_and_clear();
    outcome
}

/// Reads, checks and writes in parallel.
async fn run_steps<C: Send + 'static>(
    input: Input,
    mut check: impl FnMut(&Chunk) -> anyhow::Result<C> + Send + 'static,
    mut write: impl AsyncFnMut(C) -> anyhow::Result<IntakeReport>,
    report: &mut Report,
    bar: &ProgressBar,
    end: EarlyEnd<'_>,
) -> anyhow::Result<()> {
    let (read, mut to_check) = mpsc::channel::<Chunk>(CHUNKS_WAITING);
    let (checked, mut to_write) = mpsc::channel::<(C, u64, u64)>(CHUNKS_WAITING);
    let origin = input.origin();
    let unit = match input.format {
        Format::Jsonl => "lines",
        Format::Parquet => "rows",
    };
    let mut last_line = 0;
    let mut steps: JoinSet<anyhow::Result<()>> = JoinSet::new();
    steps.spawn_blocking(move || input.read(|chunk| read.blocking_send(chunk).is_ok()));
    steps.spawn_blocking(move || {
        while let Some(chunk) = to_check.blocking_recv() {
            let done = check(&chunk)?;
            let next = (done, chunk.bytes_read(), chunk.last_line());
            if checked.blocking_send(next).is_err() {
                break;
            }
        }
        Ok(())
    });
    loop {
        // A write is never cancelled; a read may be.
        let next = tokio::select! {
            biased;
            () = end.stop.cancelled() => anyhow::bail!(
                "interrupted after {} lines, {}",
                report.accepted + report.rejected,
                end.interrupted
            ),
            next = to_write.recv() => next,
        };
        let Some((checked, bytes, line)) = next else {
            break;
        };
        let taken = write(checked).await?;
        last_line = line;
        report.add(&origin, &taken, last_line);
        bar.set_position(bytes);
    }
    while let Some(ended) = steps.join_next().await {
        match ended? {
            Err(error) if last_line > 0 => {
                return Err(error.context(format!(
                    "{unit} 1 to {last_line} of {origin} {}",
                    end.unreadable
                )));
            }
            ended => ended?,
        }
    }
    report.complete();
    Ok(())
}
