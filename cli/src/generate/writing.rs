//! Rows into a file, step by step, so that it can be interrupted and its progress is seen.

use std::io::{BufWriter, Write};

use indicatif::ProgressBar;
use tokio_util::sync::CancellationToken;

use super::columns;
use super::lines::write_line;
use super::request::Request;
use super::rows::{Row, Rows};
use crate::args::Format;

/// Rows between two looks at whether to end.
const ROWS_PER_STEP: u32 = 65_536;

const BUFFER_BYTES: usize = 1 << 20;

/// Report of the written rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Written {
    /// All rows.
    pub(crate) rows: u64,
    /// Rows that repeat an earlier one.
    pub(crate) duplicates: u64,
    /// Of these: newer versions.
    pub(crate) edits: u64,
    /// Rows that come late.
    pub(crate) late: u64,
    /// Rows that can't be taken.
    pub(crate) malformed: u64,
}

/// Where rows go, and who looks on.
pub(super) struct Target<'a, W: Write> {
    format: Format,
    out: BufWriter<W>,
    bar: &'a ProgressBar,
    stop: &'a CancellationToken,
}

impl<'a, W: Write> Target<'a, W> {
    pub(super) fn new(
        format: Format,
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
/// Those of the output, or a signal to end.
pub(super) fn write_rows<R: Rows, W: Write + Send>(
    rows: R,
    request: &Request,
    target: Target<'_, W>,
) -> anyhow::Result<Written> {
    let Target {
        format,
        mut out,
        bar,
        stop,
    } = target;
    let mut steps = Steps {
        rows,
        count: request.rows,
        bar,
        stop,
        written: Written::default(),
    };
    let (source, mut lines) = (request.source, Vec::new());
    match format {
        Format::Jsonl => {
            while steps.step(|row| write_line(&mut lines, source, &row))? {
                out.write_all(&lines)?;
                lines.clear();
            }
            out.flush()?;
        }
        Format::Parquet => {
            let mut file = columns::Writer::new(out, source, usize::try_from(ROWS_PER_STEP)?)?;
            while steps.step(|row| {
                let fault = row.fault.map(|fault| fault.in_columns(source));
                write_line(&mut lines, source, &Row { fault, ..row });
            })? {
                file.write(&lines)?;
                lines.clear();
            }
            file.finish()?;
        }
    }
    Ok(steps.written)
}

/// The requested rows in batches.
struct Steps<'a, R> {
    rows: R,
    count: u64,
    bar: &'a ProgressBar,
    stop: &'a CancellationToken,
    written: Written,
}

impl<R: Rows> Steps<'_, R> {
    /// Hands out the next rows; answers whether there were any.
    fn step(&mut self, mut take: impl FnMut(Row<R::Record>)) -> anyhow::Result<bool> {
        let written = &mut self.written;
        anyhow::ensure!(
            !self.stop.is_cancelled(),
            "interrupted after {} of {} rows; the output is incomplete",
            written.rows,
            self.count
        );
        let end = self.count.min(written.rows + u64::from(ROWS_PER_STEP));
        if written.rows == end {
            return Ok(false);
        }
        while written.rows < end {
            let row = self.rows.next();
            written.rows += 1;
            written.duplicates += u64::from(row.repeated);
            written.edits += u64::from(row.edited);
            written.late += u64::from(row.late);
            written.malformed += u64::from(row.fault.is_some());
            take(row);
        }
        self.bar.set_position(end);
        Ok(true)
    }
}
