//! Taking files in: read, check and append side by side, with a bound on what is under way.

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
use stores::intake::{Checked, Intake, Taken};
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

/// Chunks that wait between two steps, at most.
const CHUNKS_WAITING: usize = 2;

/// An input that is there and whose format is known.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    source: Source,
    path: PathBuf,
    format: Format,
    bytes: Option<u64>,
}

impl Input {
    /// Looks whether the file can be taken in.
    ///
    /// # Errors
    /// A file that is not there or can't be read, or whose format can't be told or is not taken.
    pub(crate) fn open(
        source: Source,
        path: &Path,
        format: Option<Format>,
    ) -> anyhow::Result<Self> {
        let shown = path.display();
        let unpack = |cat: &str| {
            format!("unpack it first, as in: {cat} {shown} | backstitch ingest {source} -")
        };
        let format = format_of(path, format, |extension| {
            let cat = match extension {
                "zst" => "zstdcat",
                "bz2" => "bzcat",
                "xz" => "xzcat",
                _ => "zcat",
            };
            format!("compressed files are not read; {}", unpack(cat))
        })?;
        if path == Path::new("-") {
            return Ok(Self {
                source,
                path: path.to_path_buf(),
                format,
                bytes: None,
            });
        }
        let named = |error: std::io::Error| {
            anyhow::anyhow!("{shown}: {error}; name files that can be read")
        };
        let mut file = File::open(path).map_err(named)?;
        let meta = file.metadata().map_err(named)?;
        anyhow::ensure!(!meta.is_dir(), "{shown}: is a folder; name the files in it");
        let mut head = [0; 2];
        if meta.is_file() && file.read(&mut head).map_err(named)? == 2 && head == [0x1f, 0x8b] {
            return Err(usage(format!(
                "{shown}: is compressed with gzip; {}",
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

    /// The name under which its lines are known.
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

    /// Reads all of it and hands it on in chunks, until `hand_on` no longer takes them.
    fn read(&self, mut hand_on: impl FnMut(Chunk) -> bool) -> anyhow::Result<()> {
        let (source, hand_on) = (self.source, &mut hand_on);
        let mut read = || match (self.format, self.is_standard_input()) {
            (Format::Jsonl, true) => {
                LineReader::new(Slow::new(std::io::stdin()), source).read(hand_on)
            }
            (Format::Jsonl, false) => {
                LineReader::new(File::open(&self.path)?, source).read(hand_on)
            }
            (Format::Parquet, true) => {
                // The end of a Parquet file is read first.
                let mut file = tempfile::tempfile()?;
                std::io::copy(&mut std::io::stdin().lock(), &mut file)?;
                parquet::read(file, source, hand_on)
            }
            (Format::Parquet, false) => parquet::read(File::open(&self.path)?, source, hand_on),
        };
        read().context(self.origin())
    }
}

/// Takes one input in and adds to the report.
///
/// # Errors
/// An input that can't be read, those of the log, or a signal to end; what was taken is in the
/// report.
pub(crate) async fn ingest(
    intake: &Intake,
    input: Input,
    report: &mut Report,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let (checking, of) = (intake.clone(), input.origin());
    let check = move |chunk: &Chunk| {
        let mut checked = checking.check(&of, chunk.lines());
        checked.add_unreadable(chunk.unreadable());
        Ok(checked)
    };
    let write = async |checked: Checked| Ok(intake.write(checked).await?);
    let end = EarlyEnd {
        stop,
        interrupted: "which are taken; ingest the same again for the rest: what comes twice counts once",
        broken_off: "are ingested, and none after them; once the file can be read, ingest it again: what comes twice counts once",
    };
    take(input, check, write, report, end).await
}

/// What ends an input early, and what that means for the lines that were processed.
#[derive(Clone, Copy)]
struct EarlyEnd<'a> {
    stop: &'a CancellationToken,
    /// After a signal to end.
    interrupted: &'static str,
    /// Where the input cannot be read further.
    broken_off: &'static str,
}

/// Takes one input: reads, checks and writes side by side.
async fn take<C: Send + 'static>(
    input: Input,
    check: impl FnMut(&Chunk) -> anyhow::Result<C> + Send + 'static,
    write: impl AsyncFnMut(C) -> anyhow::Result<Taken>,
    report: &mut Report,
    end: EarlyEnd<'_>,
) -> anyhow::Result<()> {
    report.begin(&input.origin());
    let bar = progress::bytes(&input.origin(), input.bytes);
    let outcome = follow(input, check, write, (report, &bar), end).await;
    bar.finish_and_clear();
    outcome
}

async fn follow<C: Send + 'static>(
    input: Input,
    mut check: impl FnMut(&Chunk) -> anyhow::Result<C> + Send + 'static,
    mut write: impl AsyncFnMut(C) -> anyhow::Result<Taken>,
    (report, bar): (&mut Report, &ProgressBar),
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
        // A write is never dropped half-way; reading may be.
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
                    end.broken_off
                )));
            }
            ended => ended?,
        }
    }
    report.complete();
    Ok(())
}
