//! Rows of aggregate views: one table for each view, in which the write with the larger stamp wins.
//!
//! The timestamp of each write is the stamp of its run, and only runs write these tables. So a load
//! may be repeated, and a late write of an overtaken run is older than the rows that replaced it.
//! Rows that no event produces any more remain as markers, whose epoch is stored as its complement.
//! No cell of them is ever deleted, so reads find no tombstones. Only rows of other programs, which
//! the view cannot have, are deleted.

use std::ops::Range;

use arrow::array::{
    Array, ArrayBuilder, BinaryBuilder, Int64Builder, UInt32Builder, UInt64Builder,
};
use futures::{TryStreamExt, stream};
use scylla::response::PagingState;
use scylla::response::query_result::QueryRowsResult;

use super::session::{Cql, run_concurrently};
use crate::views::{NewRows, PartitionQuery, RowKeys, ViewRows};
use crate::{Error, Result};

/// The maximum number of rows in a batch of writes. Smaller batches have more overhead, larger ones
/// occupy a server's heap.
const BATCH_ROWS_MAX: usize = 50;
const BATCH_BYTES_MAX: usize = 16 << 10;
/// The maximum number of partitions in a batch of writes. Servers log a warning for more.
const BATCH_PARTITIONS_MAX: usize = 10;
/// The maximum number of concurrent batches or partitions of one call.
const CONCURRENCY_MAX: usize = 128;
/// The number of partitions whose reads are prepared together.
const PARTITIONS_PER_ROUND: usize = 2048;
/// The number of rows in a page. Rows are small, and pages are read one after the other.
const PAGE_ROWS: i32 = 10_000;
/// The maximum number of rows that one call reads.
const ROWS_MAX: usize = 8_000_000;

/// Returns the name of a view's table, and the statement that creates it.
pub(super) fn table(id: &str) -> (String, String) {
    let name = format!("rows_{id}");
    let create = format!(
        "CREATE TABLE IF NOT EXISTS {name} (
            part blob, row blob, count bigint, epoch bigint, PRIMARY KEY (part, row)
        )"
    );
    (name, create)
}

/// Writes rows.
pub(super) async fn write(
    cql: &Cql,
    id: &str,
    (epoch, stamp_us): (u64, i64),
    rows: &NewRows,
) -> Result<()> {
    let operation = "publishing rows";
    let (parts, keys, counts) = (rows.partitions.len(), rows.rows.len(), rows.counts.len());
    if parts != counts || keys != counts {
        return Err(Error::Refused(format!(
            "rows: {parts} partitions, {keys} rows and {counts} counts; the numbers must be equal"
        )));
    }
    let text = format!(
        "INSERT INTO rows_{id} (part, row, count, epoch) VALUES (?, ?, ?, ?) USING TIMESTAMP ?"
    );
    let statement = cql.prepare(operation, &text).await?;
    let (statement, epoch) = (&statement, epoch.cast_signed());
    let values = |index| {
        let (count, epoch) = if rows.counts.is_valid(index) {
            (rows.counts.value(index), epoch)
        } else {
            (0, !epoch)
        };
        let (part, row) = (rows.partitions.value(index), rows.rows.value(index));
        (part, row, count, epoch, stamp_us)
    };
    let token = |index| {
        let token = statement.calculate_token(&values(index));
        let token = token.map_err(|error| cql.broken(operation, &error))?;
        Ok(token.map(|token| token.value()))
    };
    let batches = divide_into_batches(rows, token)?.into_iter();
    let calls = batches.map(|batch| async move {
        let values: Vec<_> = batch.into_iter().flatten().map(values).collect();
        cql.write(operation, statement, &values).await
    });
    stream::iter(calls.map(Ok))
        .try_for_each_concurrent(CONCURRENCY_MAX, |call| call)
        .await
}

/// Deletes rows.
pub(super) async fn delete(cql: &Cql, id: &str, stamp_us: i64, rows: &RowKeys) -> Result<()> {
    let operation = "deleting rows of other programs";
    let text = format!("DELETE FROM rows_{id} USING TIMESTAMP ? WHERE part = ? AND row = ?");
    let statement = cql.prepare(operation, &text).await?;
    let statement = &statement;
    let keys = rows
        .partitions
        .iter()
        .flatten()
        .zip(rows.rows.iter().flatten());
    let calls = keys.map(|(part, row)| async move {
        let values = [(stamp_us, part, row)];
        cql.write(operation, statement, &values).await
    });
    run_concurrently(CONCURRENCY_MAX, calls.collect()).await?;
    Ok(())
}

/// Divides rows into batches of writes. Consecutive rows of a partition remain together. A batch
/// may contain several small partitions with adjacent tokens, because these are on the same
/// servers: the cost of a batch hardly depends on its number of rows.
fn divide_into_batches(
    rows: &NewRows,
    token: impl Fn(usize) -> Result<Option<i64>>,
) -> Result<Vec<Vec<Range<usize>>>> {
    let row_bytes = |index| rows.partitions.value(index).len() + rows.rows.value(index).len() + 24;
    let (mut batches, mut small): (Vec<Vec<Range<usize>>>, _) = (Vec::new(), Vec::new());
    let mut from = 0;
    while from < rows.counts.len() {
        let (mut to, mut bytes) = (from + 1, row_bytes(from));
        while to < rows.counts.len() && rows.partitions.value(to) == rows.partitions.value(from) {
            bytes += row_bytes(to);
            if to - from >= BATCH_ROWS_MAX || bytes > BATCH_BYTES_MAX {
                break;
            }
            to += 1;
        }
        if to - from > BATCH_ROWS_MAX / 2 {
            batches.push(single_partition(from..to));
        } else {
            small.push((token(from)?, bytes, from..to));
        }
        from = to;
    }
    small.sort_unstable_by_key(|(token, _, rows)| (*token, rows.start));
    let (mut batch, mut batch_rows, mut batch_bytes) = (Vec::new(), 0, 0);
    for (_, bytes, rows) in small {
        let is_full =
            batch_rows + rows.len() > BATCH_ROWS_MAX || batch_bytes + bytes > BATCH_BYTES_MAX;
        if !batch.is_empty() && (is_full || batch.len() >= BATCH_PARTITIONS_MAX) {
            batches.push(std::mem::take(&mut batch));
            (batch_rows, batch_bytes) = (0, 0);
        }
        batch_rows += rows.len();
        batch_bytes += bytes;
        batch.push(rows);
    }
    if !batch.is_empty() {
        batches.push(batch);
    }
    Ok(batches)
}

/// Returns a batch with rows of one partition.
fn single_partition(rows: Range<usize>) -> Vec<Range<usize>> {
    vec![rows]
}

type Row = (Vec<u8>, Option<i64>, u64);

/// Decodes the count and epoch of a stored row. If another program wrote the row, one of them may
/// be missing: then the row has no count, or belongs to no run. The Reconciler detects it, and
/// other rows remain readable.
pub(super) fn decode_row(count: Option<i64>, epoch: Option<i64>) -> (Option<i64>, u64) {
    // The epoch of a marker is stored as its complement.
    match epoch.unwrap_or(0) {
        epoch @ 0.. => (count, epoch.cast_unsigned()),
        marker => (None, (!marker).cast_unsigned()),
    }
}

/// Reads rows of several partitions.
pub(super) async fn read(cql: &Cql, id: &str, queries: &[PartitionQuery]) -> Result<ViewRows> {
    let (mut indexes, mut epochs) = (UInt32Builder::new(), UInt64Builder::new());
    let (mut rows, mut counts) = (BinaryBuilder::new(), Int64Builder::new());
    let mut query = 0;
    for queries in queries.chunks(PARTITIONS_PER_ROUND) {
        let calls = queries.iter().map(|query| read_part(cql, id, query));
        for part in run_concurrently(CONCURRENCY_MAX, calls.collect()).await? {
            for (row, count, epoch) in part {
                indexes.append_value(query);
                rows.append_value(&row);
                counts.append_option(count);
                epochs.append_value(epoch);
            }
            query += 1;
        }
        if ArrayBuilder::len(&indexes) > ROWS_MAX {
            return Err(Error::Refused(format!(
                "reading batch rows: there are more than {ROWS_MAX}; request fewer"
            )));
        }
    }
    Ok(ViewRows {
        queries: indexes.finish(),
        rows: rows.finish(),
        counts: counts.finish(),
        epochs: epochs.finish(),
    })
}

async fn read_part(cql: &Cql, id: &str, query: &PartitionQuery) -> Result<Vec<Row>> {
    let operation = "reading batch rows";
    let (begin, end) = &query.range;
    let until = if end.is_some() { "AND row < ?" } else { "" };
    let text =
        format!("SELECT row, count, epoch FROM rows_{id} WHERE part = ? AND row >= ? {until}");
    let mut statement = cql.prepare(operation, &text).await?;
    statement.set_page_size(PAGE_ROWS);
    let mut rows = Vec::new();
    let mut next = Some(PagingState::start());
    while let Some(from) = next {
        let (page, after) = match end {
            Some(end) => {
                let values = (&query.partition, begin, end);
                cql.read_page(operation, &statement, &values, from).await?
            }
            None => {
                let values = (&query.partition, begin);
                cql.read_page(operation, &statement, &values, from).await?
            }
        };
        next = after;
        let found = page.rows::<(&[u8], Option<i64>, Option<i64>)>();
        for row in found.map_err(|error| cql.broken(operation, error))? {
            let (row, count, epoch) = row.map_err(|error| cql.broken(operation, error))?;
            let (count, epoch) = decode_row(count, epoch);
            rows.push((row.to_vec(), count, epoch));
        }
        if rows.len() > ROWS_MAX {
            break;
        }
    }
    Ok(rows)
}

/// Lists the keys of rows with a count and a stamp before `stamp_us`, in the order of the table: by
/// the tokens of partitions, then by row.
pub(super) async fn before(
    cql: &Cql,
    id: &str,
    stamp_us: i64,
    after: Option<(Vec<u8>, Vec<u8>)>,
    limit: usize,
) -> Result<RowKeys> {
    let operation = "looking for rows of earlier results";
    let mut keys = Keys {
        parts: BinaryBuilder::new(),
        rows: BinaryBuilder::new(),
        stamp_us,
        limit,
    };
    let columns = "SELECT part, row, epoch, WRITETIME(epoch) FROM";
    let scans: Vec<(String, Vec<Vec<u8>>)> = match after {
        None => vec![(format!("{columns} rows_{id}"), Vec::new())],
        Some((part, row)) => vec![
            (
                format!("{columns} rows_{id} WHERE part = ? AND row > ?"),
                vec![part.clone(), row],
            ),
            (
                format!("{columns} rows_{id} WHERE token(part) > token(?)"),
                vec![part],
            ),
        ],
    };
    for (text, values) in scans {
        let statement = cql.prepare(operation, &text).await?;
        let mut next = Some(PagingState::start());
        while let Some(from) = next
            && !keys.is_full()
        {
            let (page, after) = cql.read_page(operation, &statement, &values, from).await?;
            next = after;
            let added = keys.add(&page);
            added.map_err(|error| cql.broken(operation, error))?;
        }
    }
    Ok(RowKeys {
        partitions: keys.parts.finish(),
        rows: keys.rows.finish(),
    })
}

struct Keys {
    parts: BinaryBuilder,
    rows: BinaryBuilder,
    stamp_us: i64,
    limit: usize,
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Keys {
    fn is_full(&self) -> bool {
        ArrayBuilder::len(&self.rows) >= self.limit
    }

    fn add(&mut self, page: &QueryRowsResult) -> Result<(), BoxError> {
        for row in page.rows::<(&[u8], &[u8], Option<i64>, Option<i64>)>()? {
            let (part, row, epoch, written_us) = row?;
            let is_before = written_us.unwrap_or(0) < self.stamp_us;
            if epoch.unwrap_or(0) >= 0 && is_before && !self.is_full() {
                self.parts.append_value(part);
                self.rows.append_value(row);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{BinaryArray, Int64Array};

    use super::*;

    /// Divides partitions, given by number of rows and bytes per row, with descending tokens.
    fn divide(parts: &[(usize, usize)]) -> Vec<Vec<Range<usize>>> {
        let of = |(part, (rows, bytes)): (usize, &(usize, usize))| {
            let row = move |n: usize| {
                (
                    part.to_be_bytes(),
                    [n.to_be_bytes().to_vec(), vec![0; *bytes]].concat(),
                )
            };
            (0..*rows).map(row).collect::<Vec<_>>()
        };
        let all: Vec<_> = parts.iter().enumerate().flat_map(of).collect();
        let rows = NewRows {
            partitions: BinaryArray::from_iter_values(all.iter().map(|(part, _)| part)),
            rows: BinaryArray::from_iter_values(all.iter().map(|(_, row)| row)),
            counts: Int64Array::from(vec![1; all.len()]),
        };
        let token = |index: usize| Ok(Some(-i64::try_from(index).unwrap()));
        let batches = divide_into_batches(&rows, token).unwrap();
        let mut seen: Vec<usize> = batches.iter().flatten().cloned().flatten().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..all.len()).collect::<Vec<_>>(), "each row once");
        batches
    }

    #[test]
    fn small_partitions_with_adjacent_tokens_share_a_batch() {
        let batches = divide(&[(1, 0); 25]);
        let parts: Vec<usize> = batches.iter().map(Vec::len).collect();
        assert_eq!(parts, [10, 10, 5]);
        assert_eq!(batches[0][0], 24..25, "the smallest token first");
        assert_eq!(divide(&[(20, 0), (20, 0), (20, 0)]).len(), 2);
        assert_eq!(divide(&[]), Vec::<Vec<Range<usize>>>::new());
    }

    #[test]
    fn large_partitions_are_divided() {
        assert_eq!(
            divide(&[(120, 0)]),
            [
                single_partition(0..50),
                single_partition(50..100),
                single_partition(100..120)
            ]
        );
        let batches = divide(&[(40, 0), (1, 0), (30, 0)]);
        assert_eq!(
            batches,
            [
                single_partition(0..40),
                single_partition(41..71),
                single_partition(40..41)
            ]
        );
        assert_eq!(divide(&[(3, 10_000)]).len(), 3, "large rows");
    }
}
