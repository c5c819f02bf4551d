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

use crate::args::FileFormat;
use crate::failure::usage_error;
use crate::generate::detect_format;
use crate::progress;
pub(crate) use backfill::backfill;
use chunk::Chunk;
use lines::{LineReader, ThreadedInput};
pub(crate) use report::IngestReport;

/// Maximum queued chunks between two steps.
const CHUNKS_QUEUED_MAX: usize = 2;

/// An input that exists and has a known format.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    source: Source,
    path: PathBuf,
    format: FileFormat,
    size_bytes: Option<u64>,
}

impl Input {
    /// Checks that the file can be ingested.
    ///
    /// # Errors
    /// A missing or unreadable file, or an unknown or unsupported format.
    pub(crate) fn open(
        source: Source,
        path: &Path,
        format: Option<FileFormat>,
    ) -> anyhow::Result<Self> {
        let shown_path = path.display();
        let decompress_with = |tool: &str| {
            format!("decompress it first: {tool} {shown_path} | backstitch ingest {source} -")
        };
        let format = detect_format(path, format, |extension| {
            let tool = match extension {
                "zst" => "zstdcat",
                "bz2" => "bzcat",
                "xz" => "xzcat",
                _ => "zcat",
            };
            format!(
                "compressed files are not supported; {}",
                decompress_with(tool)
            )
        })?;
        if path == Path::new("-") {
            return Ok(Self {
                source,
                path: path.to_path_buf(),
                format,
                size_bytes: None,
            });
        }
        let with_path =
            |error: std::io::Error| anyhow::anyhow!("{shown_path}: {error}; name readable files");
        let mut file = File::open(path).map_err(with_path)?;
        let metadata = file.metadata().map_err(with_path)?;
        anyhow::ensure!(
            !metadata.is_dir(),
            "{shown_path} is a folder; name the files in it"
        );
        let mut head = [0; 2];
        if metadata.is_file()
            && file.read(&mut head).map_err(with_path)? == 2
            && head == [0x1f, 0x8b]
        {
            return Err(usage_error(format!(
                "{shown_path} is compressed with gzip; {}",
                decompress_with("zcat")
            )));
        }
        Ok(Self {
            source,
            path: path.to_path_buf(),
            format,
            size_bytes: metadata.is_file().then_some(metadata.len()),
        })
    }

    /// Returns the name of the input in reports and dead letters.
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
            (FileFormat::Jsonl, true) => {
                LineReader::new(ThreadedInput::new(std::io::stdin()), source).read(send)
            }
            (FileFormat::Jsonl, false) => {
                LineReader::new(File::open(&self.path)?, source).read(send)
            }
            (FileFormat::Parquet, true) => {
                // Parquet needs a seekable file: its footer is read first.
                let mut file = tempfile::tempfile()?;
                std::io::copy(&mut std::io::stdin().lock(), &mut file)?;
                parquet::read(file, source, send)
            }
            (FileFormat::Parquet, false) => parquet::read(File::open(&self.path)?, source, send),
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
    report: &mut IngestReport,
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

/// Signal to stop, and messages about the lines that were processed before an early end.
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
    report: &mut IngestReport,
    end: EarlyEnd<'_>,
) -> anyhow::Result<()> {
    report.start_input(&input.origin());
    let bar = progress::start_byte_bar(&input.origin(), input.size_bytes);
    let outcome = run_steps(input, check, write, report, &bar, end).await;
    bar.finish_and_clear();
    outcome
}

/// Reads, checks and writes in parallel.
async fn run_steps<C: Send + 'static>(
    input: Input,
    mut check: impl FnMut(&Chunk) -> anyhow::Result<C> + Send + 'static,
    mut write: impl AsyncFnMut(C) -> anyhow::Result<IntakeReport>,
    report: &mut IngestReport,
    bar: &ProgressBar,
    end: EarlyEnd<'_>,
) -> anyhow::Result<()> {
    let (chunk_sender, mut chunks) = mpsc::channel::<Chunk>(CHUNKS_QUEUED_MAX);
    let (checked_sender, mut checked_chunks) = mpsc::channel::<(C, u64, u64)>(CHUNKS_QUEUED_MAX);
    let origin = input.origin();
    let unit = match input.format {
        FileFormat::Jsonl => "lines",
        FileFormat::Parquet => "rows",
    };
    let mut last_line = 0;
    let mut steps: JoinSet<anyhow::Result<()>> = JoinSet::new();
    steps.spawn_blocking(move || input.read(|chunk| chunk_sender.blocking_send(chunk).is_ok()));
    steps.spawn_blocking(move || {
        while let Some(chunk) = chunks.blocking_recv() {
            let checked = check(&chunk)?;
            let next = (checked, chunk.bytes_read(), chunk.last_line());
            if checked_sender.blocking_send(next).is_err() {
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
            next = checked_chunks.recv() => next,
        };
        let Some((checked, bytes_read, line)) = next else {
            break;
        };
        let intake_report = write(checked).await?;
        last_line = line;
        report.add_lines(&origin, &intake_report, last_line);
        bar.set_position(bytes_read);
    }
    while let Some(result) = steps.join_next().await {
        match result? {
            Err(error) if last_line > 0 => {
                return Err(error.context(format!(
                    "{unit} 1 to {last_line} of {origin} {}",
                    end.unreadable
                )));
            }
            result => result?,
        }
    }
    report.complete_input();
    Ok(())
}
