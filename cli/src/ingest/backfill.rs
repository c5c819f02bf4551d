//! Events of the past, taken straight into the archive: they are checked as all events are, and never
//! were in the log.

use arrow::array::RecordBatch;
use batch::Backfill;
use schemas::clock::Clock as _;
use schemas::line::without_blanks;
use schemas::plays::{BEFORE_THE_LOG, Decoder, Line};
use stores::intake::{Intake, Taken};
use tokio_util::sync::CancellationToken;

use super::chunk::Chunk;
use super::{EarlyEnd, Input, Report, take};
use crate::clock::SystemClock;

/// Events, and the lines that are none: their numbers, reasons and bytes.
struct Checked {
    events: RecordBatch,
    rejected: Vec<(u64, String, Vec<u8>)>,
}

/// Takes one input into a backfill and adds to the report.
///
/// # Errors
/// An input that can't be read, those of the stores, or a signal to end.
pub(crate) async fn backfill(
    intake: &Intake,
    backfill: &mut Backfill,
    input: Input,
    report: &mut Report,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let origin = input.origin();
    let write = async |checked: Checked| {
        let accepted = checked.events.num_rows() as u64;
        let rejected = intake.set_aside(&origin, checked.rejected).await?;
        backfill.add(checked.events).await?;
        Ok(Taken {
            accepted,
            rejected,
            superseded: 0,
            erased: 0,
        })
    };
    let end = EarlyEnd {
        stop,
        interrupted: "of which nothing counts; run it again from the beginning",
        broken_off: "were read, and none after them",
    };
    take(input, check, write, report, end).await
}

fn check(chunk: &Chunk) -> anyhow::Result<Checked> {
    let logged_at_ms = SystemClock.now_ms();
    let lines: Vec<(u64, &[u8])> = without_blanks(chunk.lines()).collect();
    let places = lines.iter().map(|(_, bytes)| Line {
        offset: BEFORE_THE_LOG,
        logged_at_ms,
        bytes,
    });
    let decoded = Decoder::new(0).decode(places)?;
    let rejected = decoded.rejected.into_iter().filter_map(|rejected| {
        let (number, bytes) = lines.get(rejected.index)?;
        Some((*number, rejected.reason, bytes.to_vec()))
    });
    Ok(Checked {
        rejected: rejected.chain(chunk.unreadable()).collect(),
        events: decoded.events,
    })
}
