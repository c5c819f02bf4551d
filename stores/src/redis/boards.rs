//! The cache of boards in Redis.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use redis::Value;
use schemas::seam::{Epoch, Fence, Moved};
use schemas::source::Source;

use super::fault;
use super::live::{RedisLive, Seen};
use super::live_read::pairs;
use super::live_write::Decided;
use super::nodes::Request;
use super::record::Record;
use super::script::{BOARDS, FILL, LEAST_USED, MEASURE, NOTE_USE, REGISTER};
use crate::board_cache::{
    BoardAnswer, BoardCache, BoardCacheRead, BoardChanges, BoardName, BoardQuery, BoardRow,
    BoardWant, Cached, CachedBoard, Register, Registered, Revision,
};
use crate::live::SlotId;
use crate::{Error, Result};

/// The bytes of one number of a score.
const NUMBER_BYTES: usize = 8;

/// Sorted sets rank by doubles: larger numbers would be rounded.
const NUMBER_MAX: u64 = 1 << 53;
/// A double that is larger than all of them.
const NUMBER_BEYOND: i64 = 1 << 60;

/// What a board takes besides the memory of its keys, in bytes, about: so that none is free.
const BOARD_BYTES: u64 = 2_048;

/// The first letter of what the register says of a board.
const FILLING: char = 'f';
const READY: char = 'r';

impl RedisLive {
    /// What is asked of one slot by those of the queries that are of its partition.
    fn boards_request(
        &self,
        slot: SlotId,
        known: Option<&Arc<Seen>>,
        queries: &[BoardQuery],
    ) -> Request {
        let keys = self.keys(slot);
        let record = known.and_then(|seen| seen.record.as_ref());
        let mark = record.map_or("", |record| record.mark());
        let mut arguments = vec![Bytes::copy_from_slice(mark.as_bytes())];
        let own = queries
            .iter()
            .filter(|query| query.partition == slot.partition);
        for query in own {
            arguments.push(field(&query.name).into());
            arguments.push(text(rest_bytes(query.score_bytes)));
            match &query.want {
                BoardWant::Sums => arguments.push(Bytes::from_static(b"s")),
                BoardWant::Page { offset, limit } => {
                    let page = [Bytes::from_static(b"p"), text(*offset), text(*limit)];
                    arguments.extend(page);
                }
                BoardWant::After {
                    score,
                    member,
                    limit,
                } => {
                    let (number, rest) = split_score(score);
                    // A number that no row has must not be rounded to one that some have.
                    let number = match number.unsigned_abs() <= NUMBER_MAX {
                        true => number,
                        false => number.signum() * NUMBER_BEYOND,
                    };
                    let ranked = Bytes::from([rest, member].concat());
                    let after = [Bytes::from_static(b"f"), text(number), ranked, text(*limit)];
                    arguments.extend(after);
                }
                BoardWant::Around { member, around } => {
                    arguments.push(Bytes::from_static(b"a"));
                    arguments.push(Bytes::copy_from_slice(member));
                    arguments.push(text(*around));
                }
                BoardWant::Members(members) | BoardWant::Places(members) => {
                    let has_places = matches!(query.want, BoardWant::Places(_));
                    let letter: &[u8] = if has_places { b"r" } else { b"m" };
                    arguments.push(Bytes::from_static(letter));
                    arguments.push(text(members.len()));
                    arguments.extend(members.iter().map(|m| Bytes::copy_from_slice(m)));
                }
            }
        }
        Request::script_on_keys(&keys, &BOARDS, arguments)
    }

    /// The record that a script answers with, which may be the one that was known.
    pub(super) fn answered_seen(
        &self,
        doing: &str,
        (slot, known): (SlotId, Option<&Arc<Seen>>),
        answer: Option<Value>,
    ) -> Result<Arc<Seen>> {
        let strange = || fault::strange(&self.nodes.patience, doing);
        let bytes = match answer {
            Some(Value::Int(1)) => return known.cloned().ok_or_else(strange),
            Some(Value::BulkString(bytes)) => Bytes::from(bytes),
            Some(Value::Nil) => Bytes::new(),
            _ => return Err(strange()),
        };
        if let Some(known) = known.filter(|known| known.bytes == bytes) {
            return Ok(Arc::clone(known));
        }
        let seen = Arc::new(self.seen_as(doing, &self.keys(slot), bytes)?);
        self.read_last().insert(slot, Arc::clone(&seen));
        Ok(seen)
    }

    /// What a script says of one board, by the record of the same moment.
    fn cached(
        &self,
        doing: &str,
        record: Option<&Record>,
        query: &BoardQuery,
        answer: &mut impl Iterator<Item = Value>,
    ) -> Result<Cached> {
        let strange = || fault::strange(&self.nodes.patience, doing);
        let said = match answer.next() {
            Some(Value::BulkString(said)) => String::from_utf8(said).map_err(|_| strange())?,
            _ => return Err(strange()),
        };
        if said.is_empty() {
            return Ok(Cached::Not);
        }
        let (is_ready, id, _) = said_of(&said).ok_or_else(strange)?;
        let is_present = record.is_some_and(|record| record.has_board(id));
        if !is_ready {
            return Ok(if is_present {
                Cached::Filling
            } else {
                Cached::Not
            });
        }
        let mut values = || answer.next().ok_or_else(strange);
        let (sums, first) = (values()?, values()?);
        let (found, rows) = (values()?, values()?);
        let places = match &query.want {
            BoardWant::Places(_) => values()?,
            _ => Value::Array(Vec::new()),
        };
        // A filled board has sums, unless somebody has deleted its keys.
        let has_sums = |sums: &[Value]| !sums.is_empty();
        if !is_present || !sums.as_sequence().is_some_and(has_sums) {
            return Ok(Cached::Not);
        }
        let number = |value| match value {
            Value::Int(number) => Ok(number),
            _ => Err(strange()),
        };
        let (Value::Array(sums), Value::Array(rows)) = (sums, rows) else {
            return Err(strange());
        };
        let natural = |number: i64| u64::try_from(number).map_err(|_| strange());
        let mut board = CachedBoard {
            first: natural(number(first)?)?,
            found: u64::try_from(number(found)?).ok(),
            ..CachedBoard::default()
        };
        for (name, value) in pairs(sums).ok_or_else(strange)? {
            let value = self.count(doing, &value)?;
            match name.as_slice() {
                b"w" => board.weight = value,
                b"c" => board.changed = natural(value)?,
                [b'e', epoch @ ..] => {
                    let epoch = natural(self.count(doing, epoch)?)?;
                    board.count += natural(value)?;
                    board.epochs.push((epoch, natural(value)?));
                }
                _ => {}
            }
        }
        for (member, value) in pairs(rows).ok_or_else(strange)? {
            let row = row_of(member, &value, query.score_bytes).ok_or_else(|| {
                let why = "a row of a cached board does not decode";
                Error::broken(self.nodes.patience.what(doing), why)
            })?;
            board.rows.push(row);
        }
        let Value::Array(places) = places else {
            return Err(strange());
        };
        for place in places {
            board.places.push(natural(number(place)?)?);
        }
        Ok(Cached::Board(board))
    }

    /// Changes the register, if the slot stands and both the record and the register are as believed.
    async fn change_register<T: Clone + Send + Sync>(
        &self,
        doing: &str,
        (slot, believed): (SlotId, (Fence, Revision)),
        next: impl Fn(&mut Record) -> T + Sync,
        arguments: impl Fn(&T) -> Vec<Bytes> + Sync,
    ) -> Result<std::result::Result<T, Moved>> {
        let keys = self.keys(slot);
        let decide = |record: Option<&Record>| {
            let at = record.map(|record| record.slot.fence());
            let Some(record) =
                record.filter(|record| (record.slot.fence(), record.boards_revision) == believed)
            else {
                return Decided::Stays(Err(Moved { at }));
            };
            let mut record = record.clone();
            let answer = next(&mut record);
            Decided::ChangesIf(Box::new(record), Ok(answer), Err(Moved { at }))
        };
        let script = |_: &Seen, _: &mut Record, answer: &std::result::Result<T, Moved>| {
            let mut all = vec![Bytes::from(keys.prefix.clone())];
            if let Ok(answer) = answer {
                all.extend(arguments(answer));
            }
            Ok((&REGISTER, all))
        };
        self.change(doing, slot, script, decide).await
    }
}

#[async_trait]
impl BoardCacheRead for RedisLive {
    async fn read_boards(
        &self,
        source: Source,
        queries: &[BoardQuery],
    ) -> Result<Vec<BoardAnswer>> {
        let doing = "reading cached boards";
        let mut partitions: Vec<u32> = queries.iter().map(|query| query.partition).collect();
        partitions.sort_unstable();
        partitions.dedup();
        let (slots, requests): (Vec<_>, Vec<Request>) = partitions
            .into_iter()
            .map(|partition| {
                let slot = SlotId { source, partition };
                let known = self.read_last().get(&slot).cloned();
                let request = self.boards_request(slot, known.as_ref(), queries);
                ((slot, known), request)
            })
            .unzip();
        let answers = self.nodes.ask_again(doing, &requests).await?;
        let strange = || fault::strange(&self.nodes.patience, doing);
        let mut found: Vec<Option<BoardAnswer>> = queries.iter().map(|_| None).collect();
        for (answer, (slot, known)) in answers.into_iter().zip(slots) {
            let Value::Array(answer) = answer else {
                return Err(strange());
            };
            let mut answer = answer.into_iter();
            let seen = self.answered_seen(doing, (slot, known.as_ref()), answer.next())?;
            let own = queries.iter().zip(&mut found);
            for (query, found) in own.filter(|(query, _)| query.partition == slot.partition) {
                *found = Some(BoardAnswer {
                    board: self.cached(doing, seen.record.as_ref(), query, &mut answer)?,
                    slot: seen.record.as_ref().map(|record| record.slot.clone()),
                });
            }
        }
        found.into_iter().collect::<Option<_>>().ok_or_else(strange)
    }

    async fn note_use(&self, slot: SlotId, name: &BoardName, now_ms: i64) -> Result<()> {
        let arguments = [Bytes::from(field(name)), text(now_ms)];
        let request = Request::script_on_keys(&self.keys(slot), &NOTE_USE, arguments);
        self.one("noting the use of a board", request).await?;
        Ok(())
    }
}

#[async_trait]
impl BoardCache for RedisLive {
    async fn register(&self, slot: SlotId) -> Result<Register> {
        let doing = "reading the register of cached boards";
        let (keys, patience) = (self.keys(slot), &self.nodes.patience);
        let strange = || fault::strange(patience, doing);
        let command = redis::cmd("HGETALL")
            .arg(format!("{}boards", keys.prefix))
            .take();
        // Whoever changes the register changes the record too: one that is read before and is old
        // is noticed at the next change.
        let seen = patience.repeated(doing, || self.look(doing, &keys)).await?;
        let mut register = Register::default();
        let record = seen.record.as_ref();
        register.revision = record.map_or(Revision::default(), |record| record.boards_revision);
        let all = match self.repeat(doing, Request::command(&keys, command)).await? {
            Value::Array(all) => pairs(all).ok_or_else(strange)?,
            Value::Map(all) => all
                .into_iter()
                .filter_map(|pair| match pair {
                    (Value::BulkString(field), Value::BulkString(said)) => Some((field, said)),
                    _ => None,
                })
                .collect(),
            _ => return Err(strange()),
        };
        for (field, said) in all {
            let said = String::from_utf8(said).map_err(|_| strange())?;
            let (is_ready, id, bytes) = said_of(&said).ok_or_else(strange)?;
            let board = Registered {
                name: name_of(&field).ok_or_else(strange)?,
                id: id.to_owned(),
                // One whose memory is not known yet has some.
                bytes: is_ready.then(|| bytes.unwrap_or(BOARD_BYTES)),
            };
            match record {
                Some(record) if record.has_board(id) => register.boards.push(board),
                _ => register.leftovers.push(board),
            }
        }
        Ok(register)
    }

    async fn begin_fill(
        &self,
        slot: SlotId,
        believed: (Fence, Revision),
        name: &BoardName,
    ) -> Result<std::result::Result<(String, Revision), Moved>> {
        let arguments = |(id, _): &(String, Revision)| {
            let said = filling(id, 0).into();
            vec![field(name).into(), Bytes::new(), said, text(0)]
        };
        let doing = "putting a board into the cache";
        self.change_register(doing, (slot, believed), Record::next_board, arguments)
            .await
    }

    async fn fill(
        &self,
        slot: SlotId,
        (board, step): (&Registered, u64),
        rows: &[BoardRow],
    ) -> Result<bool> {
        let doing = "filling a cached board";
        let mut arguments = vec![
            Bytes::from(field(&board.name)),
            Bytes::from(filling(&board.id, step.saturating_sub(1))),
            Bytes::from(filling(&board.id, step)),
            Bytes::from(board.id.clone()),
            text(rows.len()),
        ];
        for row in rows {
            arguments.push(Bytes::copy_from_slice(&row.member));
            arguments.push(value_of(row)?);
        }
        let request = Request::script_on_keys(&self.keys(slot), &FILL, arguments);
        Ok(self.repeat_for_number(doing, request).await? == 1)
    }

    async fn end_fill(
        &self,
        slot: SlotId,
        believed: (Fence, Revision),
        (board, steps): (&Registered, u64),
        changed: Epoch,
    ) -> Result<std::result::Result<Revision, Moved>> {
        let arguments = |_: &Revision| {
            let (before, after) = (filling(&board.id, steps), format!("{READY}{}", board.id));
            let name = field(&board.name).into();
            vec![name, before.into(), after.into(), text(changed)]
        };
        let doing = "ending the filling of a cached board";
        self.change_register(doing, (slot, believed), Record::change_boards, arguments)
            .await
    }

    async fn measure(&self, slot: SlotId, board: &Registered, now_ms: i64) -> Result<Option<u64>> {
        let doing = "measuring a cached board";
        let arguments = [
            Bytes::from(field(&board.name)),
            Bytes::from(board.id.clone()),
            text(now_ms),
            text(BOARD_BYTES),
        ];
        let request = Request::script_on_keys(&self.keys(slot), &MEASURE, arguments);
        let bytes = self.repeat_for_number(doing, request).await?;
        Ok(u64::try_from(bytes).ok())
    }

    async fn drop_boards(
        &self,
        slot: SlotId,
        believed: (Fence, Revision),
        boards: &[Registered],
    ) -> Result<std::result::Result<Revision, Moved>> {
        let arguments = |_: &Revision| {
            let mut all = vec![Bytes::new(), Bytes::new(), Bytes::new(), text(0)];
            for board in boards {
                all.push(Bytes::from(field(&board.name)));
                all.push(Bytes::from(board.id.clone()));
            }
            all
        };
        let doing = "dropping cached boards";
        self.change_register(doing, (slot, believed), Record::change_boards, arguments)
            .await
    }

    async fn least_used(&self, slot: SlotId, limit: usize) -> Result<Vec<BoardName>> {
        let doing = "looking for boards that are not read any more";
        let request = Request::script_on_keys(&self.keys(slot), &LEAST_USED, [text(limit)]);
        let Value::Array(fields) = self.repeat(doing, request).await? else {
            return Err(fault::strange(&self.nodes.patience, doing));
        };
        let fields = fields.into_iter().filter_map(|field| match field {
            Value::BulkString(field) => name_of(&field),
            _ => None,
        });
        Ok(fields.collect())
    }
}

/// What the script that applies changes is told of cached boards.
pub(super) fn change_arguments(epoch: Epoch, changes: &BoardChanges) -> Result<Vec<Bytes>> {
    let mut arguments = vec![
        text(epoch),
        text(changes.covered),
        text(changes.boards.len()),
    ];
    for board in &changes.boards {
        arguments.push(Bytes::from(board.id.clone()));
        arguments.push(text(board.rows.len()));
        for (member, row) in &board.rows {
            arguments.push(Bytes::copy_from_slice(member));
            arguments.push(match row {
                None => Bytes::new(),
                Some(row) => value_of(row)?,
            });
        }
    }
    Ok(arguments)
}

/// The field of a board in the register: view, a zero, the length of the key, the key, the section.
fn field(name: &BoardName) -> Vec<u8> {
    let length = u32::try_from(name.key.len()).unwrap_or(u32::MAX);
    let view = [name.view.as_bytes(), &[0]].concat();
    [
        &view,
        length.to_be_bytes().as_slice(),
        &name.key,
        &name.section,
    ]
    .concat()
}

fn name_of(field: &[u8]) -> Option<BoardName> {
    let end = field.iter().position(|byte| *byte == 0)?;
    let (view, rest) = field.split_at_checked(end)?;
    let (length, rest) = rest.get(1..)?.split_first_chunk()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (key, section) = rest.split_at_checked(length)?;
    Some(BoardName {
        view: String::from_utf8(view.to_vec()).ok()?,
        key: key.to_vec(),
        section: section.to_vec(),
    })
}

/// What the register says of a board that is being filled and has come so far.
fn filling(id: &str, step: u64) -> String {
    format!("{FILLING}{id} {step}")
}

/// What the register says: whether the board is filled, its id, its bytes.
fn said_of(said: &str) -> Option<(bool, &str, Option<u64>)> {
    let is_ready = said.starts_with(READY);
    let rest = said.strip_prefix([READY, FILLING])?;
    let (id, bytes) = rest.split_once(' ').unwrap_or((rest, ""));
    Some((is_ready, id, bytes.parse().ok()))
}

const fn rest_bytes(score_bytes: usize) -> usize {
    score_bytes.saturating_sub(NUMBER_BYTES)
}

/// The value of a row as `board_rows.lua` says.
fn value_of(row: &BoardRow) -> Result<Bytes> {
    let (number, rest) = split_score(&row.score);
    if number.unsigned_abs() > NUMBER_MAX {
        return Err(Error::Refused(format!(
            "a score of {number} is beyond what sorted sets tell apart ({NUMBER_MAX})"
        )));
    }
    let mut value = format!("{number}:{}:{}:{}:", row.epoch, row.weight, rest.len()).into_bytes();
    value.extend_from_slice(rest);
    value.extend_from_slice(&row.payload);
    Ok(value.into())
}

/// The first number of a score, by which a sorted set ranks, and the rest.
fn split_score(score: &[u8]) -> (i64, &[u8]) {
    match score.split_first_chunk::<NUMBER_BYTES>() {
        None => (0, score),
        Some((number, rest)) => (number_of(*number), rest),
    }
}

fn row_of(member: Vec<u8>, value: &[u8], score_bytes: usize) -> Option<BoardRow> {
    let mut parts = value.splitn(5, |byte| *byte == b':');
    let mut number = || -> Option<i64> {
        let part = std::str::from_utf8(parts.next()?).ok()?;
        part.parse().ok()
    };
    let (first, epoch, weight, length) = (number()?, number()?, number()?, number()?);
    let rest = parts.next()?;
    let (rest, payload) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    let mut score = Vec::with_capacity(score_bytes);
    if score_bytes >= NUMBER_BYTES {
        score.extend_from_slice(&bytes_of(first));
    }
    score.extend_from_slice(rest);
    (score.len() == score_bytes).then(|| BoardRow {
        member,
        score,
        payload: payload.to_vec(),
        weight,
        epoch: Epoch::try_from(epoch).unwrap_or_default(),
    })
}

/// The number whose bytes sort as it does ([`schemas::key`]).
const fn number_of(bytes: [u8; NUMBER_BYTES]) -> i64 {
    (u64::from_be_bytes(bytes) ^ (1 << 63)).cast_signed()
}

const fn bytes_of(number: i64) -> [u8; NUMBER_BYTES] {
    (number.cast_unsigned() ^ (1 << 63)).to_be_bytes()
}

fn text(number: impl std::fmt::Display) -> Bytes {
    Bytes::from(number.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rows_come_back(
            number in -(1_i64 << 53)..=1 << 53,
            rest: [u8; 8],
            payload: Vec<u8>,
            weight: i64,
            epoch in 0..1_u64 << 40,
        ) {
            let score = [bytes_of(number), rest].concat();
            let row = BoardRow { member: vec![b':', 7], score, payload, weight, epoch };
            let value = value_of(&row).expect("a value");
            prop_assert_eq!(row_of(row.member.clone(), &value, 16), Some(row));
        }

        #[test]
        fn names_come_back(key: Vec<u8>, section: Vec<u8>) {
            let name = BoardName { view: "a@1".to_owned(), key, section };
            prop_assert_eq!(name_of(&field(&name)), Some(name));
        }

        #[test]
        fn any_bytes_end_without_a_panic(bytes: Vec<u8>) {
            drop(name_of(&bytes));
            drop(row_of(Vec::new(), &bytes, 16));
        }
    }

    #[test]
    fn numbers_beyond_doubles_are_refused() {
        let row = BoardRow {
            member: vec![1],
            score: bytes_of((1 << 53) + 1).to_vec(),
            payload: Vec::new(),
            weight: 1,
            epoch: 0,
        };
        assert!(matches!(value_of(&row), Err(Error::Refused(_))));
    }
}
