//! Reads and stores partition states.

use schemas::seam::PartitionState;

use super::session::Session;
use super::statement::to_stored;
use crate::live::PartitionId;
use crate::{Error, Result};

/// A stored partition state with its row id.
#[derive(Debug)]
pub(super) struct StoredState {
    pub(super) id: i64,
    pub(super) state: PartitionState,
}

pub(super) async fn load(
    session: &mut Session,
    partition_id: PartitionId,
) -> Result<Option<StoredState>> {
    let query = sqlx::query("SELECT id, state FROM slots WHERE source = ? AND partition = ?")
        .bind(partition_id.source.name())
        .bind(partition_id.partition);
    let row: Option<(i64, String)> = session.fetch_first(query).await?;
    let Some((id, json)) = row else {
        return Ok(None);
    };
    let state = serde_json::from_str(&json).map_err(|error| session.damaged(error))?;
    Ok(Some(StoredState { id, state }))
}

pub(super) async fn store(
    tx: &mut Session,
    partition_id: PartitionId,
    state: &PartitionState,
) -> Result<()> {
    let json = serde_json::to_string(state);
    let json = json.map_err(|error| Error::broken("encoding a partition state", error))?;
    let query = sqlx::query(
        "INSERT INTO slots (source, partition, generation, oldest, state) VALUES (?, ?, ?, ?, ?)
         ON CONFLICT DO UPDATE
         SET generation = excluded.generation, oldest = excluded.oldest, state = excluded.state",
    )
    .bind(partition_id.source.name())
    .bind(partition_id.partition)
    .bind(to_stored(state.generation)?)
    .bind(to_stored(state.oldest)?)
    .bind(json);
    tx.execute(query).await.map(drop)
}
