//! Changing slots: what was seen, what becomes of it by the rules of the seam, and one script that puts
//! the one in the place of the other.
//!
//! A try whose outcome is not known is made again, for any call: the record that it would write has a
//! mark of its own, so whoever reads that mark knows that the try went through, and a script that comes
//! late finds another record than it expects and changes nothing. If somebody else has changed the slot
//! meanwhile, the rules decide anew; then a caller can be told that the slot has moved whose own call had
//! moved it, and looks around, which is right.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{Array, BinaryArray};
use bytes::Bytes;
use redis::Value;

use super::boards::change_arguments;
use super::fault;
use super::live::{RedisLive, Seen};
use super::record::{PlaceKind, Record, SlotKeys};
use super::script::{APPLY, CHANGE, COLLECT, Script};
use crate::board_cache::BoardChanges;
use crate::kept_sum::{KeptSum, SumChange};
use crate::live::{Changes, Deltas, SlotId, States};
use crate::{Error, Result};

/// So often one try decides anew because somebody else was faster.
const DECISIONS: usize = 16;

/// So many parts of garbage are deleted by one script.
const GARBAGE_PARTS: usize = 2_000;

/// A command of Redis has about a million arguments at most.
const ARGUMENTS_MAX: usize = 1_000_000;

/// Above so many rows, sorting them is work for a thread of its own.
const HEAVY_ROWS: usize = 2_000;

/// What stands for a member that is gone; a state has a sign before it.
pub(super) const GONE: &[u8] = b"0";
pub(super) const STATE: u8 = b'1';

/// What the rules of the seam make of a record.
pub(super) enum Decided<T> {
    /// Nothing: this is the answer.
    Stays(T),
    /// It becomes this, and then that is the answer.
    Changes(Box<Record>, T),
}

/// What a micro-batch changes of one view, as a script takes it.
#[derive(Debug)]
pub(super) struct Part {
    view: String,
    kind: PlaceKind,
    groups: usize,
    /// For each group: its key, the number of its rows, and these.
    arguments: Vec<Bytes>,
}

/// What a micro-batch changes besides the record.
#[derive(Debug, Default)]
pub(super) struct Parts {
    parts: Vec<Part>,
    /// What is appended to the outbox.
    outbox: Vec<Bytes>,
    boards: BoardChanges,
    sums: Vec<SumChange>,
    /// The view and the key of each group whose states change and of whose sum nothing is said.
    unsaid: Vec<(String, Bytes)>,
}

/// Records that were sent and may have been written, with the answers that go with them.
type Sent<T> = Mutex<Vec<(Bytes, T)>>;

impl RedisLive {
    /// Changes the record of a slot as `decide` says, and nothing else.
    pub(super) async fn change_record<T: Clone + Send>(
        &self,
        doing: &str,
        slot: SlotId,
        decide: impl Fn(Option<&Record>) -> Decided<T> + Sync,
    ) -> Result<T> {
        let alone = |_: &mut Record, _: &T| Ok((&CHANGE, Vec::new()));
        self.change(doing, slot, alone, decide).await
    }

    /// Changes a slot as `decide` says, with a script that is told the record before and after, and
    /// what `script` says.
    pub(super) async fn change<T: Clone + Send>(
        &self,
        doing: &str,
        slot: SlotId,
        script: impl Fn(&mut Record, &T) -> Result<(&'static Script, Vec<Bytes>)> + Sync,
        decide: impl Fn(Option<&Record>) -> Decided<T> + Sync,
    ) -> Result<T> {
        let (keys, decide, script) = (self.keys(slot), &decide, &script);
        let sent = &Sent::<T>::default();
        let tries = || async {
            self.try_change(doing, (slot, &keys), script, decide, sent)
                .await
        };
        self.nodes.patience.repeated(doing, tries).await
    }

    async fn try_change<T: Clone + Send>(
        &self,
        doing: &str,
        (slot, keys): (SlotId, &SlotKeys),
        script: &(impl Fn(&mut Record, &T) -> Result<(&'static Script, Vec<Bytes>)> + Sync),
        decide: &(impl Fn(Option<&Record>) -> Decided<T> + Sync),
        sent: &Sent<T>,
    ) -> Result<T> {
        let mut fresh = false;
        let mut next = self.seen_last(slot);
        for _ in 0..DECISIONS {
            let seen = match next.take() {
                Some(seen) => seen,
                None => {
                    fresh = true;
                    Arc::new(self.look(doing, keys).await?)
                }
            };
            if let Some(answer) = written(sent, &seen.bytes) {
                self.remember(slot, Some(seen));
                return Ok(answer);
            }
            let (mut record, answer) = match decide(seen.record.as_ref()) {
                Decided::Stays(answer) if fresh => {
                    self.remember(slot, Some(seen));
                    return Ok(answer);
                }
                // What was remembered may be old.
                Decided::Stays(_) => continue,
                Decided::Changes(record, answer) => (record, answer),
            };
            let (script, more) = script(&mut record, &answer)?;
            let bytes = Bytes::from(record.encode()?);
            let records = [seen.bytes.clone(), bytes.clone()];
            let arguments = records.into_iter().chain(more).collect();
            self.remember(slot, None);
            note(sent, &bytes, &answer);
            let reply = self.script(doing, keys, script, arguments).await?;
            match reply {
                Value::Int(1) => {
                    let record = Some(*record);
                    self.remember(slot, Some(Arc::new(Seen { bytes, record })));
                    return Ok(answer);
                }
                Value::BulkString(present) => {
                    fresh = true;
                    next = Some(Arc::new(self.seen_as(doing, keys, present.into())?));
                }
                _ => return Err(fault::strange(&self.nodes.patience, doing)),
            }
        }
        let why = "others change the slot all the time";
        Err(self.nodes.patience.unavailable(doing, why))
    }

    /// Deletes parts of the places that the record calls garbage.
    pub(super) async fn delete_garbage(&self, slot: SlotId, limit: usize) -> Result<usize> {
        let doing = "deleting dropped live parts";
        let keys = self.keys(slot);
        let patience = &self.nodes.patience;
        let mut deleted = 0;
        while deleted < limit {
            let seen = patience.repeated(doing, || self.look(doing, &keys)).await?;
            let garbage = seen
                .record
                .and_then(|record| record.garbage.into_iter().next());
            let Some(place) = garbage else {
                break;
            };
            let step = GARBAGE_PARTS.min(limit - deleted);
            let arguments = vec![
                Bytes::from(keys.prefix.clone()),
                Bytes::from(place.clone()),
                Bytes::from(step.to_string()),
            ];
            let tries = || self.script(doing, &keys, &COLLECT, arguments.clone());
            let (parts, is_empty) = match patience.repeated(doing, tries).await? {
                Value::Array(answer) => match answer.as_slice() {
                    [Value::Int(parts), Value::Int(is_empty)] => (*parts, *is_empty == 1),
                    _ => return Err(fault::strange(patience, doing)),
                },
                _ => return Err(fault::strange(patience, doing)),
            };
            // Where the record has changed meanwhile, the next look tells what is garbage now.
            deleted += usize::try_from(parts).unwrap_or(0);
            if is_empty {
                let decide = |record: Option<&Record>| match record {
                    Some(record) if record.garbage.contains(&place) => {
                        let mut record = record.clone();
                        record.garbage.retain(|of| *of != place);
                        Decided::Changes(Box::new(record), ())
                    }
                    _ => Decided::Stays(()),
                };
                self.change_record(doing, slot, decide).await?;
            }
        }
        Ok(deleted)
    }
}

/// The script that applies changes, and what it is told of them.
pub(super) fn apply_script(
    keys: &SlotKeys,
    record: &mut Record,
    changes: &Parts,
) -> Result<(&'static Script, Vec<Bytes>)> {
    let Parts {
        parts,
        outbox,
        boards,
        ..
    } = changes;
    let of_sums = sum_arguments(record, changes);
    let is_alone = parts.is_empty() && outbox.is_empty() && boards.boards.is_empty();
    if is_alone && of_sums.len() == 1 {
        return Ok((&CHANGE, Vec::new()));
    }
    let of_boards = change_arguments(record.slot.epoch, boards)?;
    let of_parts = parts.iter().map(|part| part.arguments.len() + 2);
    let all = of_parts.sum::<usize>() + outbox.len() + of_boards.len() + of_sums.len();
    if all > ARGUMENTS_MAX {
        return Err(Error::Refused(format!(
            "a micro-batch of {all} values is more than Redis takes at once; give it fewer rows"
        )));
    }
    let mut arguments = Vec::with_capacity(all + 3);
    arguments.push(Bytes::from(keys.prefix.clone()));
    arguments.push(match outbox.is_empty() {
        true => Bytes::new(),
        false => record.ensure_outbox().into(),
    });
    arguments.push(outbox.len().to_string().into());
    arguments.extend(outbox.iter().cloned());
    arguments.extend(of_boards);
    arguments.extend(of_sums);
    for part in parts {
        let place = record.ensure_place(&part.view, part.kind);
        arguments.push(place.into());
        arguments.push(part.groups.to_string().into());
        arguments.extend(part.arguments.iter().cloned());
    }
    Ok((&APPLY, arguments))
}

/// How many sums may change, and these: those of which something is said, and those of other groups whose
/// states change, where there may be one.
fn sum_arguments(record: &mut Record, changes: &Parts) -> Vec<Bytes> {
    let bytes = |sum: Option<&KeptSum>| sum.map_or_else(Bytes::new, |sum| sum.bytes().clone());
    let mut arguments = Vec::new();
    for change in &changes.sums {
        if change.next.is_some() {
            record.ensure_sums(&change.view);
        }
        if let Some(name) = record.sums(&change.view) {
            arguments.push(name.to_owned().into());
            arguments.push(Bytes::copy_from_slice(&change.key));
            arguments.push(bytes(change.believed.as_ref()));
            arguments.push(bytes(change.next.as_ref()));
        }
    }
    for (view, key) in &changes.unsaid {
        if let Some(name) = record.sums(view) {
            let nothing = Bytes::new;
            arguments.extend([name.to_owned().into(), key.clone(), nothing(), nothing()]);
        }
    }
    let count = Bytes::from((arguments.len() / 4).to_string());
    arguments.insert(0, count);
    arguments
}

/// The groups whose states change and of whose sums nothing is said.
fn unsaid(changes: &Changes) -> Vec<(String, Bytes)> {
    let said: HashSet<(&str, &[u8])> = changes
        .sums
        .iter()
        .map(|change| (change.view.as_str(), change.key.as_slice()))
        .collect();
    let mut unsaid = Vec::new();
    for states in &changes.states {
        let keys: HashSet<&[u8]> = states.keys.iter().flatten().collect();
        let keys = keys
            .into_iter()
            .filter(|key| !said.contains(&(states.view.as_str(), *key)));
        unsaid.extend(keys.map(|key| (states.view.clone(), Bytes::copy_from_slice(key))));
    }
    unsaid
}

fn written<T: Clone>(sent: &Sent<T>, present: &Bytes) -> Option<T> {
    let sent = sent.lock().unwrap_or_else(PoisonError::into_inner);
    let mut matching = sent.iter().filter(|(bytes, _)| bytes == present);
    matching.next().map(|(_, answer)| answer.clone())
}

fn note<T: Clone>(sent: &Sent<T>, bytes: &Bytes, answer: &T) {
    let mut sent = sent.lock().unwrap_or_else(PoisonError::into_inner);
    sent.push((bytes.clone(), answer.clone()));
}

/// Rows by group, as scripts take them.
pub(super) async fn prepare(changes: &Changes) -> Result<Parts> {
    let parts = if changes.rows() < HEAVY_ROWS {
        parts_of(changes)?
    } else {
        let changes = changes.clone();
        let work = tokio::task::spawn_blocking(move || parts_of(&changes));
        work.await
            .map_err(|error| Error::broken("sorting live parts", error))??
    };
    Ok(Parts {
        parts,
        outbox: changes.outbox.clone(),
        boards: changes.boards.clone(),
        sums: changes.sums.clone(),
        unsaid: unsaid(changes),
    })
}

fn parts_of(changes: &Changes) -> Result<Vec<Part>> {
    let mut parts = Vec::with_capacity(changes.deltas.len() + changes.states.len());
    for Deltas {
        view,
        groups,
        rows,
        counts,
    } in &changes.deltas
    {
        let value = |row: usize| Bytes::from(counts.value(row).to_string());
        let of_view = (view.as_str(), PlaceKind::Deltas);
        parts.extend(part(of_view, (groups, rows), counts.len(), value)?);
    }
    for states in &changes.states {
        let States {
            view,
            keys,
            members,
            ..
        } = states;
        let value = |row: usize| match states.state(row) {
            None => Bytes::from_static(GONE),
            Some(state) => [&[STATE], state].concat().into(),
        };
        let of_view = (view.as_str(), PlaceKind::States);
        parts.extend(part(of_view, (keys, members), states.states.len(), value)?);
    }
    for (index, part) in parts.iter().enumerate() {
        let same = |other: &Part| other.view == part.view && other.kind == part.kind;
        if parts.iter().skip(index + 1).any(same) {
            let view = &part.view;
            return Err(Error::Refused(format!(
                "{view} comes twice in a micro-batch"
            )));
        }
    }
    Ok(parts)
}

/// The rows of one view; nothing if there are none.
fn part(
    (view, kind): (&str, PlaceKind),
    (groups, rows): (&BinaryArray, &BinaryArray),
    length: usize,
    value: impl Fn(usize) -> Bytes,
) -> Result<Option<Part>> {
    if groups.len() != length || rows.len() != length {
        return Err(Error::Refused(format!(
            "parts of {view}: {} and {} keys for {length} values; give as many of each",
            groups.len(),
            rows.len(),
        )));
    }
    let mut order: Vec<usize> = (0..length).collect();
    order.sort_by(|a, b| groups.value(*a).cmp(groups.value(*b)));
    let of_group: Vec<&[usize]> = order
        .chunk_by(|a, b| groups.value(*a) == groups.value(*b))
        .collect();
    let mut arguments = Vec::with_capacity(2 * (length + of_group.len()));
    for members in &of_group {
        let Some(first) = members.first() else {
            continue;
        };
        arguments.push(Bytes::copy_from_slice(groups.value(*first)));
        arguments.push(Bytes::from(members.len().to_string()));
        for row in *members {
            arguments.push(Bytes::copy_from_slice(rows.value(*row)));
            arguments.push(value(*row));
        }
    }
    Ok((length > 0).then(|| Part {
        view: view.to_owned(),
        kind,
        groups: of_group.len(),
        arguments,
    }))
}
