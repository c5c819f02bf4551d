//! Writes rows to a file, in batches between which the command shows its progress and can be
//! interrupted.

use std::io::{BufWriter, Write};

use indicatif::ProgressBar;
use tokio_util::sync::CancellationToken;

use super::lines::write_line;
use super::parquet_writer::ParquetWriter;
use super::request::GenerateRequest;
use super::rows::{GeneratedRows, Row};
use crate::args::FileFormat;

const ROWS_PER_BATCH: u32 = 65_536;

const BUFFER_BYTES: usize = 1 << 20;

/// Numbers of written rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct WriteReport {
    /// All rows.
    pub(crate) rows: u64,
    /// Rows that repeat an earlier row.
    pub(crate) duplicates: u64,
    /// Duplicates that are newer versions.
    pub(crate) edits: u64,
    /// Old events, and superseded versions.
    pub(crate) late: u64,
    /// Rows that every source rejects.
    pub(crate) malformed: u64,
}

/// The output file, with the progress bar and the signal to stop.
pub(super) struct RowOutput<'a, W: Write> {
    format: FileFormat,
    out: BufWriter<W>,
    bar: &'a ProgressBar,
    stop: &'a CancellationToken,
}

impl<'a, W: Write> RowOutput<'a, W> {
    pub(super) fn new(
        format: FileFormat,
        out: W,
        bar: &'a ProgressBar,
        stop: &'a CancellationToken,
    ) -> Self {
        Self {
            format,
            out: BufWriter::with_capacity(BUFFER_BYTES, out),
            bar,
            stop,
        }
    }
}

/// Writes the requested number of rows.
///
/// # Errors
/// Those of the output, or a signal to stop.
pub(super) fn write_rows<R: GeneratedRows, W: Write + Send>(
    rows: R,
    request: &GenerateRequest,
    output: RowOutput<'_, W>,
) -> anyhow::Result<WriteReport> {
    let RowOutput {
        format,
        mut out,
        bar,
        stop,
    } = output;
    let mut batches = RowBatches {
        rows,
        row_count: request.row_count,
        bar,
        stop,
        report: WriteReport::default(),
    };
    let (source, mut lines) = (request.source, Vec::new());
    match format {
        FileFormat::Jsonl => {
            while batches.process_next(|row| write_line(&mut lines, source, &row))? {
                out.write_all(&lines)?;
                lines.clear();
            }
            out.flush()?;
        }
        FileFormat::Parquet => {
            let mut file = ParquetWriter::new(out, source, usize::try_from(ROWS_PER_BATCH)?)?;
            while batches.process_next(|row| {
                let fault = row.fault.map(|fault| fault.for_typed_columns(source));
                write_line(&mut lines, source, &Row { fault, ..row });
            })? {
                file.write(&lines)?;
                lines.clear();
            }
            file.finish()?;
        }
    }
    Ok(batches.report)
}

/// The requested rows in batches.
struct RowBatches<'a, R> {
    rows: R,
    row_count: u64,
    bar: &'a ProgressBar,
    stop: &'a CancellationToken,
    report: WriteReport,
}

impl<R: GeneratedRows> RowBatches<'_, R> {
    /// Generates the next batch and passes its rows to `process`. Returns false if no rows are
    /// left.
    fn process_next(&mut self, mut process: impl FnMut(Row<R::Record>)) -> anyhow::Result<bool> {
        let report = &mut self.report;
        anyhow::ensure!(
            !self.stop.is_cancelled(),
            "interrupted after {} of {} rows; the output is incomplete",
            report.rows,
            self.row_count
        );
        let end = self.row_count.min(report.rows + u64::from(ROWS_PER_BATCH));
        if report.rows == end {
            return Ok(false);
        }
        while report.rows < end {
            let row = self.rows.next_row();
            report.rows += 1;
            report.duplicates += u64::from(row.is_repeated);
            report.edits += u64::from(row.is_edited);
            report.late += u64::from(row.is_late);
            report.malformed += u64::from(row.fault.is_some());
            process(row);
        }
        self.bar.set_position(end);
        Ok(true)
    }
}
