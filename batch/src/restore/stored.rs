//! The rows of a view's table.

use std::sync::Arc;

use arrow::array::{Array, BinaryArray, BooleanArray, Int64Array};
use arrow::compute::filter;
use futures::{StreamExt, TryStreamExt};
use schemas::seam::{Epoch, RunState, Runs};
use stores::view_scan::{ScanShare, ScannedRows};
use stores::views::AggregateShape;
use tokio_util::sync::CancellationToken;

use super::side::Side;
use super::sides::Sides;
use super::stray;
use crate::lease::check_stop;
use crate::{BatchPorts, Error, Progress, Result};

/// The runs that rows may be of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known<'a> {
    /// The newest that is complete.
    pub(crate) newest: Epoch,
    pub(crate) runs: &'a Runs,
}

impl Known<'_> {
    /// What a row is of this epoch.
    fn side(self, epoch: Epoch) -> Side {
        if epoch <= self.newest {
            return Side::Stored;
        }
        let run = self.runs.get(epoch);
        match run.is_some_and(|run| run.state != RunState::Proposed) {
            true => Side::Ahead,
            false => Side::OfNoRun,
        }
    }
}

/// Adds all rows of a table to the sides: those up to the newest run as stored, those of a later one as ahead, and those
/// that lie where no row can lie as that. Answers the newest stamp among them.
pub(crate) async fn add_rows(
    ports: &BatchPorts,
    (table, known, rows_max): (&str, Known<'_>, usize),
    sides: &Arc<Sides>,
    (progress, stop): (&dyn Progress, &CancellationToken),
) -> Result<i64> {
    let shares = ports.views.share_scheme().await?.parallel_shares;
    let at_once = usize::try_from(shares.get()).unwrap_or(1);
    futures::stream::iter(ScanShare::list_all(shares))
        .map(|share| {
            add_share(
                ports,
                (table, known, rows_max),
                share,
                sides,
                (progress, stop),
            )
        })
        .buffer_unordered(at_once)
        .try_fold(
            0,
            |newest, stamp_us| async move { Ok(stamp_us.max(newest)) },
        )
        .await
}

async fn add_share(
    ports: &BatchPorts,
    (table, known, rows_max): (&str, Known<'_>, usize),
    share: ScanShare,
    sides: &Sides,
    (progress, stop): (&dyn Progress, &CancellationToken),
) -> Result<i64> {
    let (mut after, mut newest_us) = (None, 0);
    loop {
        check_stop(stop)?;
        let page = ports
            .views
            .scan_rows(table, share, after.as_ref(), rows_max)
            .await?;
        let Some(page) = page else {
            return Err(Error::Request(format!(
                "the table {table} disappeared while it was read: the view was removed, or the table was dropped. Run `backstitch batch run`, then compare again"
            )));
        };
        add_page(&page, known, sides)?;
        newest_us = page
            .stamps_us
            .values()
            .iter()
            .copied()
            .fold(newest_us, i64::max);
        progress.advance(page.rows.len() as u64);
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(newest_us),
        }
    }
}

fn add_page(page: &ScannedRows, known: Known<'_>, sides: &Sides) -> Result<()> {
    let group =
        |part| AggregateShape::split_partition_key(part).map_or(&[][..], |(_, group)| group);
    let groups = BinaryArray::from_iter_values(page.partitions.iter().flatten().map(group));
    let keys = page
        .partitions
        .iter()
        .flatten()
        .zip(page.rows.iter().flatten());
    let of: Vec<Side> = keys
        .zip(page.epochs.values())
        .map(|((part, row), epoch)| {
            // Whatever run it says it is of: no run writes there.
            let stray = stray::side_of(sides.job(), part, row);
            stray.unwrap_or_else(|| known.side(*epoch))
        })
        .collect();
    let is_stray = |of: &Side| matches!(of, Side::Misplaced | Side::Unreadable);
    for side in [
        Side::Stored,
        Side::Ahead,
        Side::OfNoRun,
        Side::Misplaced,
        Side::Unreadable,
    ] {
        // A marker is no row: no event gives it. One of a run that there is not keeps readers waiting all the same.
        let is_kept = |(row, of): (usize, &Side)| match side {
            Side::Stored => *of != Side::Ahead && !is_stray(of) && page.counts.is_valid(row),
            other => *of == other,
        };
        let kept: BooleanArray = of.iter().enumerate().map(is_kept).map(Some).collect();
        if kept.true_count() == 0 {
            continue;
        }
        let fault = |e| Error::fault("leaving rows out", e);
        let only = |array: &BinaryArray| -> Result<BinaryArray> {
            let kept = filter(array, &kept).map_err(fault)?;
            Ok(BinaryArray::from(kept.to_data()))
        };
        let counts = filter(&page.counts, &kept).map_err(fault)?;
        let counts: Int64Array = Int64Array::from(counts.to_data());
        let counts = counts.iter().map(Option::unwrap_or_default).collect();
        let rows = only(&page.rows)?;
        match is_stray(&side) {
            true => sides.add_strays(side, (&only(&page.partitions)?, &rows), &counts)?,
            false => sides.add_encoded(side, &only(&groups)?, &rows, &counts)?,
        }
    }
    Ok(())
}
