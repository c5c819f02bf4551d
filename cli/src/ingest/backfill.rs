//! Backfill: checks past events like all events, and writes them directly to the archive, without
//! the log.

use arrow::array::RecordBatch;
use batch::Backfill;
use schemas::clock::Clock as _;
use schemas::line::skip_blank_lines;
use schemas::plays::{BEFORE_THE_LOG, Decoder, Line};
use stores::intake::{Intake, IntakeReport};
use tokio_util::sync::CancellationToken;

use super::chunk::Chunk;
use super::{EarlyEnd, IngestReport, Input, process};
use crate::clock::SystemClock;

/// Accepted events, and rejected lines with their numbers, reasons and bytes.
struct CheckedChunk {
    events: RecordBatch,
    rejected: Vec<(u64, String, Vec<u8>)>,
}

/// Adds one input to a backfill and to the report.
///
/// # Errors
/// An unreadable input, errors of the stores, or an interruption.
pub(crate) async fn backfill(
    intake: &Intake,
    backfill: &mut Backfill,
    input: Input,
    report: &mut IngestReport,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let origin = input.origin();
    let write = async |checked: CheckedChunk| {
        let accepted = checked.events.num_rows() as u64;
        let rejected = intake.dead_letter_lines(&origin, checked.rejected).await?;
        backfill.add(checked.events).await?;
        Ok(IntakeReport {
            accepted,
            rejected,
            superseded: 0,
            erased: 0,
        })
    };
    let end = EarlyEnd {
        stop,
        interrupted: "none of which count; run the backfill again",
        unreadable: "were read, and none after them",
    };
    process(input, check, write, report, end).await
}

fn check(chunk: &Chunk) -> anyhow::Result<CheckedChunk> {
    let logged_at_ms = SystemClock.now_ms();
    let lines: Vec<(u64, &[u8])> = skip_blank_lines(chunk.lines()).collect();
    let input_lines = lines.iter().map(|(_, bytes)| Line {
        offset: BEFORE_THE_LOG,
        logged_at_ms,
        bytes,
    });
    let decoded = Decoder::new(0).decode(input_lines)?;
    let rejected = decoded.rejected.into_iter().filter_map(|rejected| {
        let (number, bytes) = lines.get(rejected.index)?;
        Some((*number, rejected.reason, bytes.to_vec()))
    });
    Ok(CheckedChunk {
        rejected: rejected.chain(chunk.unreadable()).collect(),
        events: decoded.events,
    })
}
