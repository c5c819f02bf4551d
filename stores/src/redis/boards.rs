//! The board cache on Redis.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use redis::Value;
use schemas::seam::{Checkpoint, CheckpointMismatch, Epoch};
use schemas::source::Source;

use super::board_rows::{
    NUMBER_BYTES, NUMBER_MAX, decode_row, encode_row, format_argument, split_score,
};
use super::errors;
use super::live::{RecordSnapshot, RedisLive};
use super::nodes::Request;
use super::pairs::decode_pairs;
use super::record::Record;
use super::record_change::Decision;
use super::script::{BOARDS, FILL, LEAST_USED, MEASURE, RECORD_USE, REGISTER};
use crate::board_cache::{
    BoardCache, BoardCacheRead, BoardName, BoardQuery, BoardRegister, BoardRow, BoardSelection,
    CacheLookup, CachedBoard, CachedBoardSnapshot, RegisteredBoard, Revision,
};
use crate::live::PartitionId;
use crate::{Error, Result};

/// A double that is larger than every number of a score.
const NUMBER_BEYOND: i64 = 1 << 60;

/// The approximate bytes that a board occupies besides its keys. So no board counts as free.
const BOARD_BYTES: u64 = 2_048;

/// The first letter of the register's value for a board.
const FILLING: char = 'f';
const READY: char = 'r';

impl RedisLive {
    /// Builds the request for those queries that concern this partition.
    fn build_boards_request(
        &self,
        partition_id: PartitionId,
        cached: Option<&Arc<RecordSnapshot>>,
        queries: &[BoardQuery],
    ) -> Request {
        let keys = self.keys(partition_id);
        let record = cached.and_then(|snapshot| snapshot.record.as_ref());
        let mark = record.map_or("", |record| record.mark());
        let mut arguments = vec![Bytes::copy_from_slice(mark.as_bytes())];
        let matching = queries
            .iter()
            .filter(|query| query.partition == partition_id.partition);
        for query in matching {
            arguments.push(encode_field(&query.name).into());
            arguments.push(format_argument(count_rest_bytes(query.score_bytes)));
            match &query.selection {
                BoardSelection::TotalsOnly => arguments.push(Bytes::from_static(b"s")),
                BoardSelection::Page { offset, limit } => {
                    let page = [
                        Bytes::from_static(b"p"),
                        format_argument(*offset),
                        format_argument(*limit),
                    ];
                    arguments.extend(page);
                }
                BoardSelection::After {
                    score,
                    member,
                    limit,
                } => {
                    let (number, rest) = split_score(score);
                    // A number that no row has must not be rounded to one that some rows have.
                    let number = match number.unsigned_abs() <= NUMBER_MAX {
                        true => number,
                        false => number.signum() * NUMBER_BEYOND,
                    };
                    let ranked = Bytes::from([rest, member].concat());
                    let after = [
                        Bytes::from_static(b"f"),
                        format_argument(number),
                        ranked,
                        format_argument(*limit),
                    ];
                    arguments.extend(after);
                }
                BoardSelection::Around { member, around } => {
                    arguments.push(Bytes::from_static(b"a"));
                    arguments.push(Bytes::copy_from_slice(member));
                    arguments.push(format_argument(*around));
                }
                BoardSelection::Members(members) | BoardSelection::MembersWithIndexes(members) => {
                    let wants_ranks =
                        matches!(query.selection, BoardSelection::MembersWithIndexes(_));
                    let letter: &[u8] = if wants_ranks { b"r" } else { b"m" };
                    arguments.push(Bytes::from_static(letter));
                    arguments.push(format_argument(members.len()));
                    arguments.extend(members.iter().map(|m| Bytes::copy_from_slice(m)));
                }
            }
        }
        Request::script_on_keys(&keys, &BOARDS, arguments)
    }

    /// Decodes the record from a reply. The reply 1 stands for the known record.
    pub(super) fn snapshot_from_reply(
        &self,
        operation: &str,
        partition_id: PartitionId,
        cached: Option<&Arc<RecordSnapshot>>,
        reply: Option<Value>,
    ) -> Result<Arc<RecordSnapshot>> {
        let unexpected = || errors::unexpected_reply(&self.nodes.retry_policy, operation);
        let bytes = match reply {
            Some(Value::Int(1)) => return cached.cloned().ok_or_else(unexpected),
            Some(Value::BulkString(bytes)) => Bytes::from(bytes),
            Some(Value::Nil) => Bytes::new(),
            _ => return Err(unexpected()),
        };
        if let Some(cached) = cached.filter(|cached| cached.bytes == bytes) {
            return Ok(Arc::clone(cached));
        }
        let snapshot = Arc::new(self.parse_snapshot(operation, &self.keys(partition_id), bytes)?);
        self.reader_snapshots()
            .insert(partition_id, Arc::clone(&snapshot));
        Ok(snapshot)
    }

    /// Decodes the reply for one board, with the record from the same moment.
    fn decode_board(
        &self,
        operation: &str,
        record: Option<&Record>,
        query: &BoardQuery,
        reply: &mut impl Iterator<Item = Value>,
    ) -> Result<CacheLookup> {
        let unexpected = || errors::unexpected_reply(&self.nodes.retry_policy, operation);
        let value_text = match reply.next() {
            Some(Value::BulkString(value_text)) => {
                String::from_utf8(value_text).map_err(|_| unexpected())?
            }
            _ => return Err(unexpected()),
        };
        if value_text.is_empty() {
            return Ok(CacheLookup::Absent);
        }
        let (is_ready, id, _) = parse_register_value(&value_text).ok_or_else(unexpected)?;
        let is_present = record.is_some_and(|record| record.has_board(id));
        if !is_ready {
            return Ok(if is_present {
                CacheLookup::Filling
            } else {
                CacheLookup::Absent
            });
        }
        let mut values = || reply.next().ok_or_else(unexpected);
        let (totals, first_index) = (values()?, values()?);
        let (member_index, rows) = (values()?, values()?);
        let indexes = match &query.selection {
            BoardSelection::MembersWithIndexes(_) => values()?,
            _ => Value::Array(Vec::new()),
        };
        // A filled board has totals, unless its keys were deleted.
        let has_totals = |totals: &[Value]| !totals.is_empty();
        if !is_present || !totals.as_sequence().is_some_and(has_totals) {
            return Ok(CacheLookup::Absent);
        }
        let number = |value| match value {
            Value::Int(number) => Ok(number),
            _ => Err(unexpected()),
        };
        let (Value::Array(totals), Value::Array(rows)) = (totals, rows) else {
            return Err(unexpected());
        };
        let natural = |number: i64| u64::try_from(number).map_err(|_| unexpected());
        let mut board = CachedBoard {
            first_index: natural(number(first_index)?)?,
            member_index: u64::try_from(number(member_index)?).ok(),
            ..CachedBoard::default()
        };
        self.set_totals(operation, &mut board, totals)?;
        for (member, value) in decode_pairs(rows).ok_or_else(unexpected)? {
            let row = decode_row(member, &value, query.score_bytes).ok_or_else(|| {
                let reason =
                    "a row of a cached board does not decode; delete the keys of this board";
                Error::broken(self.nodes.retry_policy.describe(operation), reason)
            })?;
            board.rows.push(row);
        }
        let Value::Array(indexes) = indexes else {
            return Err(unexpected());
        };
        for index in indexes {
            board.indexes.push(natural(number(index)?)?);
        }
        Ok(CacheLookup::Board(board))
    }

    /// Adds the totals of a board from alternating names and values.
    fn set_totals(
        &self,
        operation: &str,
        board: &mut CachedBoard,
        totals: Vec<Value>,
    ) -> Result<()> {
        let unexpected = || errors::unexpected_reply(&self.nodes.retry_policy, operation);
        let natural = |number: i64| u64::try_from(number).map_err(|_| unexpected());
        for (name, value) in decode_pairs(totals).ok_or_else(unexpected)? {
            let value = self.parse_count(operation, &value)?;
            match name.as_slice() {
                b"w" => board.weight = value,
                b"c" => board.last_changed_epoch = natural(value)?,
                [b'e', epoch @ ..] => {
                    let epoch = natural(self.parse_count(operation, epoch)?)?;
                    board.count += natural(value)?;
                    board.epochs.push((epoch, natural(value)?));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Changes the register if checkpoint and register revision are the expected ones.
    async fn change_register<T: Clone + Send + Sync>(
        &self,
        operation: &str,
        partition_id: PartitionId,
        expected: (Checkpoint, Revision),
        next: impl Fn(&mut Record) -> T + Sync,
        arguments: impl Fn(&T) -> Vec<Bytes> + Sync,
    ) -> Result<std::result::Result<T, CheckpointMismatch>> {
        let keys = self.keys(partition_id);
        let decide = |record: Option<&Record>| {
            let actual = record.map(|record| record.state.checkpoint());
            let Some(record) = record
                .filter(|record| (record.state.checkpoint(), record.boards_revision) == expected)
            else {
                return Decision::Keep(Err(CheckpointMismatch { actual }));
            };
            let mut record = record.clone();
            let outcome = next(&mut record);
            Decision::ReplaceIf(
                Box::new(record),
                Ok(outcome),
                Err(CheckpointMismatch { actual }),
            )
        };
        let script = |_: &RecordSnapshot,
                      _: &mut Record,
                      outcome: &std::result::Result<T, CheckpointMismatch>| {
            let mut script_arguments = vec![Bytes::from(keys.prefix.clone())];
            if let Ok(outcome) = outcome {
                script_arguments.extend(arguments(outcome));
            }
            Ok((&REGISTER, script_arguments))
        };
        self.change(operation, partition_id, script, decide).await
    }
}

#[async_trait]
impl BoardCacheRead for RedisLive {
    async fn read_boards(
        &self,
        source: Source,
        queries: &[BoardQuery],
    ) -> Result<Vec<CachedBoardSnapshot>> {
        let operation = "reading cached boards";
        let mut partitions: Vec<u32> = queries.iter().map(|query| query.partition).collect();
        partitions.sort_unstable();
        partitions.dedup();
        let (targets, requests): (Vec<_>, Vec<Request>) = partitions
            .into_iter()
            .map(|partition| {
                let partition_id = PartitionId { source, partition };
                let cached = self.reader_snapshots().get(&partition_id).cloned();
                let request = self.build_boards_request(partition_id, cached.as_ref(), queries);
                ((partition_id, cached), request)
            })
            .unzip();
        let replies = self.nodes.send_with_retry(operation, &requests).await?;
        let unexpected = || errors::unexpected_reply(&self.nodes.retry_policy, operation);
        let mut results: Vec<Option<CachedBoardSnapshot>> = queries.iter().map(|_| None).collect();
        for (reply, (partition_id, cached)) in replies.into_iter().zip(targets) {
            let Value::Array(reply) = reply else {
                return Err(unexpected());
            };
            let mut reply = reply.into_iter();
            let snapshot =
                self.snapshot_from_reply(operation, partition_id, cached.as_ref(), reply.next())?;
            let matching = queries.iter().zip(&mut results);
            for (query, result) in
                matching.filter(|(query, _)| query.partition == partition_id.partition)
            {
                *result = Some(CachedBoardSnapshot {
                    board: self.decode_board(
                        operation,
                        snapshot.record.as_ref(),
                        query,
                        &mut reply,
                    )?,
                    state: snapshot.record.as_ref().map(|record| record.state.clone()),
                });
            }
        }
        results
            .into_iter()
            .collect::<Option<_>>()
            .ok_or_else(unexpected)
    }

    async fn record_use(
        &self,
        partition_id: PartitionId,
        name: &BoardName,
        now_ms: i64,
    ) -> Result<()> {
        let arguments = [Bytes::from(encode_field(name)), format_argument(now_ms)];
        let request = Request::script_on_keys(&self.keys(partition_id), &RECORD_USE, arguments);
        self.send_one("recording the use of a cached board", request)
            .await?;
        Ok(())
    }
}

#[async_trait]
impl BoardCache for RedisLive {
    async fn read_register(&self, partition_id: PartitionId) -> Result<BoardRegister> {
        let operation = "reading the register of cached boards";
        let (keys, retry_policy) = (self.keys(partition_id), &self.nodes.retry_policy);
        let unexpected = || errors::unexpected_reply(retry_policy, operation);
        let command = redis::cmd("HGETALL")
            .arg(format!("{}boards", keys.prefix))
            .take();
        // Every change of the register changes the record, too. So if this record is outdated, the
        // next change detects it.
        let snapshot = retry_policy
            .retry(operation, || self.load_record(operation, &keys))
            .await?;
        let mut register = BoardRegister::default();
        let record = snapshot.record.as_ref();
        register.revision = record.map_or(Revision::default(), |record| record.boards_revision);
        let stored_boards = match self
            .send_with_retry(operation, Request::command(&keys, command))
            .await?
        {
            Value::Array(all) => decode_pairs(all).ok_or_else(unexpected)?,
            Value::Map(all) => all
                .into_iter()
                .filter_map(|pair| match pair {
                    (Value::BulkString(field), Value::BulkString(value_text)) => {
                        Some((field, value_text))
                    }
                    _ => None,
                })
                .collect(),
            _ => return Err(unexpected()),
        };
        for (field, value_text) in stored_boards {
            let value_text = String::from_utf8(value_text).map_err(|_| unexpected())?;
            let (is_ready, id, bytes) = parse_register_value(&value_text).ok_or_else(unexpected)?;
            let board = RegisteredBoard {
                name: parse_field(&field).ok_or_else(unexpected)?,
                id: id.to_owned(),
                // A board that has not been measured occupies some memory.
                bytes: is_ready.then(|| bytes.unwrap_or(BOARD_BYTES)),
            };
            match record {
                Some(record) if record.has_board(id) => register.boards.push(board),
                _ => register.stale_boards.push(board),
            }
        }
        Ok(register)
    }

    async fn begin_fill(
        &self,
        partition_id: PartitionId,
        expected: (Checkpoint, Revision),
        name: &BoardName,
    ) -> Result<std::result::Result<(String, Revision), CheckpointMismatch>> {
        let arguments = |(id, _): &(String, Revision)| {
            let value_text = encode_filling(id, 0).into();
            vec![
                encode_field(name).into(),
                Bytes::new(),
                value_text,
                format_argument(0),
            ]
        };
        let operation = "adding a board to the cache";
        self.change_register(
            operation,
            partition_id,
            expected,
            Record::add_board,
            arguments,
        )
        .await
    }

    async fn fill(
        &self,
        partition_id: PartitionId,
        (board, step): (&RegisteredBoard, u64),
        rows: &[BoardRow],
    ) -> Result<bool> {
        let operation = "filling a cached board";
        let mut arguments = vec![
            Bytes::from(encode_field(&board.name)),
            Bytes::from(encode_filling(&board.id, step.saturating_sub(1))),
            Bytes::from(encode_filling(&board.id, step)),
            Bytes::from(board.id.clone()),
            format_argument(rows.len()),
        ];
        for row in rows {
            arguments.push(Bytes::copy_from_slice(&row.member));
            arguments.push(encode_row(row)?);
        }
        let request = Request::script_on_keys(&self.keys(partition_id), &FILL, arguments);
        Ok(self.send_for_integer(operation, request).await? == 1)
    }

    async fn end_fill(
        &self,
        partition_id: PartitionId,
        expected: (Checkpoint, Revision),
        (board, steps): (&RegisteredBoard, u64),
        last_changed_epoch: Epoch,
    ) -> Result<std::result::Result<Revision, CheckpointMismatch>> {
        let arguments = |_: &Revision| {
            let (before, after) = (
                encode_filling(&board.id, steps),
                format!("{READY}{}", board.id),
            );
            let name = encode_field(&board.name).into();
            vec![
                name,
                before.into(),
                after.into(),
                format_argument(last_changed_epoch),
            ]
        };
        let operation = "completing the fill of a cached board";
        self.change_register(
            operation,
            partition_id,
            expected,
            Record::renew_boards_revision,
            arguments,
        )
        .await
    }

    async fn measure(
        &self,
        partition_id: PartitionId,
        board: &RegisteredBoard,
        now_ms: i64,
    ) -> Result<Option<u64>> {
        let operation = "measuring a cached board";
        let arguments = [
            Bytes::from(encode_field(&board.name)),
            Bytes::from(board.id.clone()),
            format_argument(now_ms),
            format_argument(BOARD_BYTES),
        ];
        let request = Request::script_on_keys(&self.keys(partition_id), &MEASURE, arguments);
        let bytes = self.send_for_integer(operation, request).await?;
        Ok(u64::try_from(bytes).ok())
    }

    async fn remove_boards(
        &self,
        partition_id: PartitionId,
        expected: (Checkpoint, Revision),
        boards: &[RegisteredBoard],
    ) -> Result<std::result::Result<Revision, CheckpointMismatch>> {
        let arguments = |_: &Revision| {
            let mut all = vec![Bytes::new(), Bytes::new(), Bytes::new(), format_argument(0)];
            for board in boards {
                all.push(Bytes::from(encode_field(&board.name)));
                all.push(Bytes::from(board.id.clone()));
            }
            all
        };
        let operation = "dropping cached boards";
        self.change_register(
            operation,
            partition_id,
            expected,
            Record::renew_boards_revision,
            arguments,
        )
        .await
    }

    async fn least_used(&self, partition_id: PartitionId, limit: usize) -> Result<Vec<BoardName>> {
        let operation = "finding the least recently used boards";
        let request = Request::script_on_keys(
            &self.keys(partition_id),
            &LEAST_USED,
            [format_argument(limit)],
        );
        let Value::Array(fields) = self.send_with_retry(operation, request).await? else {
            return Err(errors::unexpected_reply(
                &self.nodes.retry_policy,
                operation,
            ));
        };
        let fields = fields.into_iter().filter_map(|field| match field {
            Value::BulkString(field) => parse_field(&field),
            _ => None,
        });
        Ok(fields.collect())
    }
}

/// Encodes the register's field for a board: view, a zero byte, length of the key, key, and
/// section.
fn encode_field(name: &BoardName) -> Vec<u8> {
    let length = u32::try_from(name.key.len()).unwrap_or(u32::MAX);
    let view = [name.view.as_bytes(), &[0]].concat();
    [
        &view,
        length.to_be_bytes().as_slice(),
        &name.key,
        &name.filtered_board,
    ]
    .concat()
}

fn parse_field(field: &[u8]) -> Option<BoardName> {
    let end = field.iter().position(|byte| *byte == 0)?;
    let (view, rest) = field.split_at_checked(end)?;
    let (length, rest) = rest.get(1..)?.split_first_chunk()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (key, filtered_board) = rest.split_at_checked(length)?;
    Some(BoardName {
        view: String::from_utf8(view.to_vec()).ok()?,
        key: key.to_vec(),
        filtered_board: filtered_board.to_vec(),
    })
}

/// Encodes the register's value for a board that is being filled, after some steps.
fn encode_filling(id: &str, step: u64) -> String {
    format!("{FILLING}{id} {step}")
}

/// Decodes the register's value: whether the board is filled, its id, and its size in bytes.
fn parse_register_value(value_text: &str) -> Option<(bool, &str, Option<u64>)> {
    let is_ready = value_text.starts_with(READY);
    let rest = value_text.strip_prefix([READY, FILLING])?;
    let (id, bytes) = rest.split_once(' ').unwrap_or((rest, ""));
    Some((is_ready, id, bytes.parse().ok()))
}

const fn count_rest_bytes(score_bytes: usize) -> usize {
    score_bytes.saturating_sub(NUMBER_BYTES)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn names_round_trip(key: Vec<u8>, filtered_board: Vec<u8>) {
            let name = BoardName { view: "a@1".to_owned(), key, filtered_board };
            prop_assert_eq!(parse_field(&encode_field(&name)), Some(name));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
            drop(parse_field(&bytes));
        }
    }
}
