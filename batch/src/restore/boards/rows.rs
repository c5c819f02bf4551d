//! The rows of boards: what the canonical store gives, and what is served.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use jobs::board::{BoardRows, RankedEntry, ReadError};
use schemas::json_value;
use schemas::key::{KeyShape, KeyValue};
use schemas::partition::partition_of;
use serde_json::{Map, Value};
use stores::boards::{LoadedBoards, NodesError, StoredNodes, load_boards};
use stores::live::PartitionId;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_128;

use super::look::Look;
use crate::board::{self, BoardComputation, encode_key};
use crate::lease::check_stop;
use crate::{Error, Result};

/// Rows that are read of a file at once.
const READ_ROWS: usize = 32_768;
/// Keys whose boards are read side by side.
pub(super) const AT_ONCE: usize = 16;
/// How often a read is made that does not join.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(50);
/// A member's column is an id.
const MEMBER_BYTES: usize = 8;

/// A row of a board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) score: Vec<u8>,
    pub(super) payload: Vec<u8>,
    pub(super) weight: i64,
}

/// The rows of a key, by member and board.
pub(super) type Rows = BTreeMap<(Vec<u8>, Vec<u8>), Row>;

/// Rows, added up by a hash of each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) rows: u64,
    hashes: u128,
}

impl Sum {
    pub(super) fn add(
        &mut self,
        board: &[u8],
        member: &[u8],
        (score, payload, weight): (&[u8], &[u8], i64),
    ) {
        let mut bytes = Vec::with_capacity(64);
        for part in [board, member, score, payload, &weight.to_be_bytes()] {
            bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
            bytes.extend_from_slice(part);
        }
        self.rows += 1;
        self.hashes = self.hashes.wrapping_add(xxh3_128(&bytes));
    }
}

/// Why the boards of a key can't be read.
#[derive(Debug)]
pub(super) enum Unread {
    /// Live state does not join the batch rows.
    Live(String),
    /// Batch rows are missing or damaged.
    Damaged(String),
}

type Failed = ReadError<NodesError>;

/// A key as it was served.
pub(super) struct Served {
    pub(super) rows: Rows,
    pub(super) loaded: LoadedBoards,
}

impl Look<'_> {
    pub(super) fn shown_row(&self, row: &Row) -> Result<Value> {
        let mut shown = shown_columns(self.job.score(), &row.score)?;
        shown.extend(shown_columns(self.job.payload(), &row.payload)?);
        if let Some(weight) = self.job.weight() {
            shown.insert(weight.to_owned(), row.weight.into());
        }
        Ok(Value::Object(shown))
    }

    /// What keys should have.
    pub(super) async fn expected(&self, keys: &BTreeSet<i64>) -> Result<HashMap<Vec<u8>, Rows>> {
        let mut expected: HashMap<Vec<u8>, Rows> = HashMap::new();
        self.each_expected(Some(keys), |rows, at| {
            let row = Row {
                score: rows.scores.value(at).to_vec(),
                payload: rows.payloads.value(at).to_vec(),
                weight: rows.weights.value(at),
            };
            let place = (
                rows.members.value(at).to_vec(),
                rows.boards.value(at).to_vec(),
            );
            let key = rows.keys.value(at);
            match expected.get_mut(key) {
                Some(of_key) => {
                    of_key.insert(place, row);
                }
                None => {
                    expected.insert(key.to_vec(), Rows::from([(place, row)]));
                }
            }
        })
        .await?;
        Ok(expected)
    }

    /// Computes the boards of keys, or of all, and gives their rows.
    pub(super) async fn each_expected(
        &self,
        keys: Option<&BTreeSet<i64>>,
        mut take: impl FnMut(&BoardRows, usize) + Send,
    ) -> Result<()> {
        let batch = self.batch;
        let snapshot_taker = batch.snapshot_taker(self.source(), self.results.lease);
        self.progress.stage("snapshot", 0);
        let (snapshot, taken) = snapshot_taker.take(keys, self.progress, self.stop).await?;
        self.progress.stage("compute", snapshot.rows());
        // In the folder of results, where a run deletes what is left of who died.
        let compute = Arc::new(BoardComputation {
            engine: batch.engine.clone(),
            archive: batch.ports.archive.clone(),
            files: format!("{}/{}", self.results.data_folder(), Uuid::new_v4()),
            result_bytes_max: batch.options.result_bytes_max,
            jobs: vec![Arc::clone(self.job)],
        });
        let executor = batch.executor();
        let files =
            board::compute(&compute, &executor, &snapshot, self.progress, self.stop).await?;
        for file in files.into_iter().flatten().flatten() {
            let groups = (0..file.row_groups).collect();
            let archive = &batch.ports.archive;
            let mut batches = archive.read_rows(&file.path, groups, READ_ROWS).await?;
            while let Some(rows) = batches.try_next().await? {
                check_stop(self.stop)?;
                let rows = BoardRows::encode(self.job, &rows)?;
                (0..rows.len()).for_each(|row| take(&rows, row));
            }
            drop(batches);
            archive.delete(&file.path).await?;
        }
        snapshot_taker.delete_others(&taken, self.stop).await
    }

    /// What is served of keys.
    pub(super) async fn served_keys(
        &self,
        keys: &BTreeSet<i64>,
    ) -> Result<HashMap<Vec<u8>, std::result::Result<Served, Unread>>> {
        let keys = keys.iter().map(|key| encode_key(self.job, *key));
        let keys: Vec<Vec<u8>> = keys.collect::<Result<_>>()?;
        let calls = keys.into_iter().map(|key| async move {
            let served = self.served::<Rows>(&key, add_to_rows).await?;
            let served = served.map(|(rows, loaded)| Served { rows, loaded });
            Ok::<_, Error>((key, served))
        });
        let calls = stream::iter(calls).buffer_unordered(AT_ONCE);
        calls.try_collect().await
    }

    /// What is served of a key, put together row by row; or why it can't be.
    pub(super) async fn served<T: Default + Send>(
        &self,
        key: &[u8],
        take: impl Fn(&mut T, &[u8], RankedEntry) + Send + Sync,
    ) -> Result<std::result::Result<(T, LoadedBoards), Unread>> {
        let mut tries = 0;
        loop {
            tries += 1;
            let mut found = T::default();
            let read = self.read(key, |board, row| take(&mut found, board, row));
            let failed = match read.await {
                Ok(loaded) => return Ok(Ok((found, loaded))),
                Err(failed) => failed,
            };
            let why = match failed {
                ReadError::Store(NodesError::Store(error)) => return Err(error.into()),
                // Nobody else publishes meanwhile.
                ReadError::Replaced => Unread::Damaged("some of its nodes are missing".to_owned()),
                ReadError::SeamMismatch(why) => Unread::Live(why.to_string()),
                error => Unread::Damaged(error.to_string()),
            };
            if tries == TRIES {
                return Ok(Err(why));
            }
            tokio::time::sleep(PAUSE).await;
            check_stop(self.stop)?;
        }
    }

    async fn read(
        &self,
        key: &[u8],
        take: impl FnMut(&[u8], RankedEntry) + Send,
    ) -> std::result::Result<LoadedBoards, Failed> {
        let (ports, job) = (&self.batch.ports, self.job);
        let id = self.id(key).unwrap_or_default();
        let slot = PartitionId {
            source: self.source(),
            partition: partition_of(id.to_string().as_bytes(), self.partitions),
        };
        let loaded = load_boards(&*ports.live, &*ports.views, job, slot, key).await?;
        let nodes = StoredNodes::new(&*ports.views, job.view(), key);
        loaded
            .key_boards
            .for_each_entry(&nodes, MEMBER_BYTES, take)
            .await?;
        Ok(loaded)
    }

    pub(super) fn id(&self, key: &[u8]) -> Result<i64> {
        let values = self.job.key().decode_values(key);
        let values = values.map_err(|e| Error::fault("a key that is compared", e))?;
        match values.first() {
            Some(KeyValue::Int(id)) => Ok(*id),
            _ => Err(Error::Fault("a key that is no id".to_owned())),
        }
    }
}

pub(super) fn add_to_sum(sum: &mut Sum, board: &[u8], row: RankedEntry) {
    let of = (row.score.as_slice(), row.payload.as_slice(), row.weight);
    sum.add(board, &row.member, of);
}

fn add_to_rows(rows: &mut Rows, board: &[u8], row: RankedEntry) {
    let of = Row {
        score: row.score,
        payload: row.payload,
        weight: row.weight,
    };
    rows.insert((row.member, board.to_vec()), of);
}

/// A member's rows, by board.
pub(super) fn rows_of<'a>(rows: &'a Rows, member: &[u8]) -> BTreeMap<&'a [u8], &'a Row> {
    let from = (member.to_vec(), Vec::new());
    let of_member = rows.range(from..);
    of_member
        .take_while(|((of, _), _)| of == member)
        .map(|((_, board), row)| (board.as_slice(), row))
        .collect()
}

/// The members that have other rows.
pub(super) fn differing_members(one: &Rows, other: &Rows) -> BTreeSet<Vec<u8>> {
    let differs = |of: &Rows, than: &Rows| -> Vec<Vec<u8>> {
        let rows = of
            .iter()
            .filter(|(place, row)| than.get(*place) != Some(row));
        rows.map(|((member, _), _)| member.clone()).collect()
    };
    let both = differs(one, other).into_iter().chain(differs(other, one));
    both.collect()
}

/// Columns as JSON shows them.
pub(super) fn shown_columns(shape: &KeyShape, bytes: &[u8]) -> Result<Map<String, Value>> {
    let values = shape.decode_values(bytes);
    let values = values.map_err(|e| Error::fault("a row that is compared", e))?;
    let names = shape.0.iter().map(|column| column.name.clone());
    Ok(names.zip(values.iter().map(json_value::from_key)).collect())
}
