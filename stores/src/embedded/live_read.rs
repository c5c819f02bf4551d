//! Reading slots together with their live parts, in one transaction.

use arrow::array::{BinaryBuilder, Int64Builder, UInt32Builder, UInt64Builder};
use futures::TryStreamExt;
use schemas::seam::Slot;
use schemas::source::Source;
use sqlx::{Connection, Row, SqliteConnection};

use super::db::Opened;
use super::statement::unsigned;
use crate::live::{LiveAnswer, LiveParts, LiveQuery};
use crate::Result;

pub(super) async fn read(
    db: &Opened,
    source: Source,
    partitions: u32,
    queries: &[LiveQuery],
) -> Result<LiveAnswer> {
    let fault = db.fault("reading live parts");
    let mut connection = db.reader().await?;
    // One transaction sees one moment of the whole file, however many statements it has.
    let mut tx = connection.begin().await.map_err(fault)?;
    let slots = read_slots(&mut tx, db, source, partitions).await?;
    let mut parts = Vec::with_capacity(queries.len());
    for query in queries {
        let mut found = Found::default();
        for range in &query.ranges {
            let asked = match query.partition {
                Some(partition) => (partition, partitions.min(partition.saturating_add(1))),
                None => (0, partitions),
            };
            read_range(&mut tx, db, source, query, asked, range, &mut found).await?;
        }
        parts.push(found.finish());
    }
    Ok(LiveAnswer { slots, parts })
}
