//! Adding changes to a piece.

use arrow::array::{BinaryBuilder, Int64Builder};

use schemas::time::Seconds;

use super::read::Cursor;
use super::write::PieceWriter;
use crate::{Error, Result};

const BATCH_ROWS: usize = 32_768;

/// Writes the rows of `held` with `changes` added to them, as the piece that begins at `start`.
pub(crate) async fn add(
    start: Seconds,
    mut held: Cursor,
    mut changes: Cursor,
    writer: &mut PieceWriter<'_>,
) -> Result<()> {
    let mut groups = BinaryBuilder::new();
    let mut rows = BinaryBuilder::new();
    let mut counts = Int64Builder::new();
    let mut buffered = 0;
    loop {
        let (take_held, take_change, sum) = match (held.at(), changes.at()) {
            (None, None) => break,
            (Some((_, n)), None) => (true, false, Some(n)),
            (None, Some((_, n))) => (false, true, Some(n)),
            (Some((at, h)), Some((other, c))) => match at.cmp(&other) {
                std::cmp::Ordering::Less => (true, false, Some(h)),
                std::cmp::Ordering::Greater => (false, true, Some(c)),
                std::cmp::Ordering::Equal => (true, true, h.checked_add(c)),
            },
        };
        let key = if take_held { held.at() } else { changes.at() };
        if let Some(((_, group, row), _)) = key {
            groups.append_value(group);
            rows.append_value(row);
            counts.append_value(sum.ok_or_else(|| {
                Error::Fault("a count is beyond the range of 64-bit integers".to_owned())
            })?);
            buffered += 1;
        }
        if take_held {
            held.advance().await?;
        }
        if take_change {
            changes.advance().await?;
        }
        if buffered == BATCH_ROWS {
            let keyed = (groups.finish(), rows.finish(), counts.finish());
            writer.write_keyed(start, &keyed).await?;
            buffered = 0;
        }
    }
    if buffered > 0 {
        let keyed = (groups.finish(), rows.finish(), counts.finish());
        writer.write_keyed(start, &keyed).await?;
    }
    Ok(())
}
