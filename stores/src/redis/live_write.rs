//! Changing slots: what was seen, what becomes of it by the rules of the seam, and one script that puts
//! the one in the place of the other.
//!
//! A try whose outcome is not known is made again, for any call: the record that it would write has a
//! mark of its own, so whoever reads that mark knows that the try went through, and a script that comes
//! late finds another record than it expects and changes nothing. If somebody else has changed the slot
//! meanwhile, the rules decide anew; then a caller can be told that the slot has moved whose own call had
//! moved it, and looks around, which is right.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::Array;
use bytes::Bytes;
use foldhash::fast::RandomState;
use redis::Value;

use super::boards::change_arguments;
use super::fault;
use super::live::{RedisLive, Seen};
use super::live_chunks::{Chunks, TakenIn, no_rows};
use super::nodes::Request;
use super::packed::{self, FULL_BYTES, Groups};
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

/// Above so many rows, putting them in order is work for a thread of its own.
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
    /// The same, if the script finds what else it expects; if not, nothing changes, and the second is the answer.
    ChangesIf(Box<Record>, T, T),
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

/// What a micro-batch adds to views whose groups are of the same columns.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: String,
    views: Vec<String>,
    pub(super) groups: Groups,
    /// Whether there are counts among them that can't be packed.
    is_long: bool,
}

/// What a micro-batch changes besides the record.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) families: Vec<Family>,
    /// Of states.
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
        let alone = |_: &Seen, _: &mut Record, _: &T| Ok((&CHANGE, Vec::new()));
        self.change(doing, slot, alone, decide).await
    }

    /// Changes a slot as `decide` says, with a script that is told the record before and after, and
    /// what `script` says, who is shown both.
    pub(super) async fn change<T: Clone + Send>(
        &self,
        doing: &str,
        slot: SlotId,
        script: impl Fn(&Seen, &mut Record, &T) -> Result<(&'static Script, Vec<Bytes>)> + Sync,
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
        script: &(impl Fn(&Seen, &mut Record, &T) -> Result<(&'static Script, Vec<Bytes>)> + Sync),
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
            let (mut record, answer, refusal) = match decide(seen.record.as_ref()) {
                Decided::Stays(answer) if fresh => {
                    self.remember(slot, Some(seen));
                    return Ok(answer);
                }
                // What was remembered may be old.
                Decided::Stays(_) => continue,
                Decided::Changes(record, answer) => (record, answer, None),
                Decided::ChangesIf(record, answer, refusal) => (record, answer, Some(refusal)),
            };
            let (script, more) = script(&seen, &mut record, &answer)?;
            let bytes = Bytes::from(record.encode()?);
            let records = [seen.bytes.clone(), bytes.clone()];
            let arguments = records.into_iter().chain(more).collect();
            self.remember(slot, None);
            note(sent, &bytes, &answer);
            let reply = self.script(doing, keys, script, arguments).await?;
            let told = match reply {
                Value::Int(1) => Vec::new(),
                Value::Int(0) => {
                    let strange = || fault::strange(&self.nodes.patience, doing);
                    return refusal.ok_or_else(strange);
                }
                Value::Array(answer) if answer.first() == Some(&Value::Int(1)) => answer,
                Value::BulkString(present) => {
                    fresh = true;
                    next = Some(Arc::new(self.seen_as(doing, keys, present.into())?));
                    continue;
                }
                _ => return Err(fault::strange(&self.nodes.patience, doing)),
            };
            self.note_groups(slot, &record, told.into_iter().skip(1));
            let record = Some(*record);
            self.remember(slot, Some(Arc::new(Seen { bytes, record })));
            return Ok(answer);
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
            let arguments = [place.clone().into(), step.to_string().into()];
            let request = Request::script_on_keys(&keys, &COLLECT, arguments);
            let (parts, is_empty) = match self.repeat(doing, request).await? {
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
    taken: &TakenIn,
) -> Result<(&'static Script, Vec<Bytes>)> {
    let Parts {
        families,
        parts,
        outbox,
        boards,
        ..
    } = changes;
    let of_sums = sum_arguments(record, changes);
    let is_alone =
        families.is_empty() && parts.is_empty() && outbox.is_empty() && boards.boards.is_empty();
    if is_alone && of_sums.len() == 1 {
        return Ok((&CHANGE, Vec::new()));
    }
    let of_boards = change_arguments(record.slot.epoch, boards)?;
    let (strings, hashes) = delta_arguments(record, families, taken)?;
    let of_parts = parts.iter().chain(&hashes);
    let of_parts = of_parts.map(|part| part.arguments.len() + 2);
    let all =
        of_parts.sum::<usize>() + strings.len() + outbox.len() + of_boards.len() + of_sums.len();
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
    arguments.extend(strings);
    for part in parts.iter().chain(&hashes) {
        let place = record.ensure_place(&part.view, part.kind);
        arguments.push(place.into());
        arguments.push(part.groups.to_string().into());
        arguments.extend(part.arguments.iter().cloned());
    }
    Ok((&APPLY, arguments))
}

/// What is added to deltas: what is appended to strings of packed rows, after how many places of such there are; which
/// strings go, after how many these are; the chunks; and what goes into hashes by row.
fn delta_arguments(
    record: &mut Record,
    families: &[Family],
    taken: &TakenIn,
) -> Result<(Vec<Bytes>, Vec<Part>)> {
    let (mut strings, mut places) = (Vec::new(), 0_usize);
    let mut emptied: Vec<Bytes> = Vec::new();
    let mut chunks = Chunks::default();
    let mut hashes: BTreeMap<&str, Part> = BTreeMap::new();
    for family in families {
        let sharing = record.ensure_shared(&family.name, &family.views, family.is_long);
        let Some(sharing) = sharing else {
            for (group, segments) in family.groups.each() {
                for (view, rows) in segments {
                    let Some(view) = family.views.get(view) else {
                        continue;
                    };
                    let part = hashes.entry(view).or_insert_with(|| Part::of_deltas(view));
                    part.add_packed(group, rows)?;
                }
            }
            continue;
        };
        let sharers = record.sharers(&sharing.place);
        let (head, mut count) = (strings.len(), 0_usize);
        for (group, segments) in family.groups.each() {
            let bytes: usize = segments.iter().map(|(_, rows)| rows.len()).sum();
            let string = taken.string(&sharing.place, group);
            if string.is_none() && bytes < FULL_BYTES {
                let mut string = Vec::with_capacity(bytes + 4 * segments.len());
                for (view, rows) in segments {
                    let number = sharing.numbers.get(view).copied().unwrap_or_default();
                    packed::put_segment(&mut string, number, rows);
                }
                strings.extend([Bytes::copy_from_slice(group), string.into()]);
                count += 1;
                continue;
            }
            if let Some(string) = string {
                for segment in packed::segments(string) {
                    let named =
                        segment.and_then(|(number, rows)| Some((sharers.get(&number)?, rows)));
                    let (view, rows) = named.ok_or_else(|| no_rows(&sharing.place, group))?;
                    chunks.add(view, group, rows);
                }
                emptied.extend([sharing.place.clone().into(), Bytes::copy_from_slice(group)]);
            }
            for (view, rows) in segments {
                if let Some(view) = family.views.get(view) {
                    chunks.add(view, group, rows);
                }
            }
        }
        if count > 0 {
            let of_place = [sharing.place.into(), count.to_string().into()];
            strings.splice(head..head, of_place);
            places += 1;
        }
    }
    let head = [FULL_BYTES.to_string().into(), places.to_string().into()];
    strings.splice(0..0, head);
    strings.push((emptied.len() / 2).to_string().into());
    strings.extend(emptied);
    strings.extend(chunks.arguments(record, taken)?);
    Ok((strings, hashes.into_values().collect()))
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
    let (families, parts) = if changes.rows() < HEAVY_ROWS {
        parts_of(changes)?
    } else {
        let changes = changes.clone();
        let work = tokio::task::spawn_blocking(move || parts_of(&changes));
        work.await
            .map_err(|error| Error::broken("sorting live parts", error))??
    };
    Ok(Parts {
        families,
        parts,
        outbox: changes.outbox.clone(),
        boards: changes.boards.clone(),
        sums: changes.sums.clone(),
        unsaid: unsaid(changes),
    })
}

fn parts_of(changes: &Changes) -> Result<(Vec<Family>, Vec<Part>)> {
    let mut views = HashSet::new();
    let all = changes.deltas.iter().map(|deltas| (&deltas.view, false));
    let all = all.chain(changes.states.iter().map(|states| (&states.view, true)));
    for (view, is_states) in all {
        if !views.insert((view, is_states)) {
            return Err(Error::Refused(format!(
                "{view} comes twice in a micro-batch"
            )));
        }
    }
    let mut of_families: BTreeMap<&str, Vec<&Deltas>> = BTreeMap::new();
    for deltas in &changes.deltas {
        let rows = (deltas.groups.len(), deltas.rows.len());
        expect_length(&deltas.view, rows, deltas.counts.len())?;
        if !deltas.counts.is_empty() {
            let family = of_families.entry(&deltas.grouped_by);
            family.or_default().push(deltas);
        }
    }
    let families = of_families.into_iter().map(|(name, of)| family(name, &of));
    let parts = changes.states.iter().map(states_part);
    let parts: Vec<Option<Part>> = parts.collect::<Result<_>>()?;
    Ok((families.collect(), parts.into_iter().flatten().collect()))
}

fn family(name: &str, of: &[&Deltas]) -> Family {
    let rows = by_group(of).into_iter().filter_map(|(view, row)| {
        let deltas = of.get(view)?;
        Some((
            deltas.groups.value(row),
            view,
            deltas.rows.value(row),
            deltas.counts.value(row),
        ))
    });
    let mut counts = of.iter().flat_map(|deltas| deltas.counts.values());
    Family {
        name: name.to_owned(),
        views: of.iter().map(|deltas| deltas.view.clone()).collect(),
        groups: Groups::of(rows),
        is_long: counts.any(|count| !packed::is_short(*count)),
    }
}

/// The rows of some views, each by the places of view and row, so that those of a group stand together, view by view.
fn by_group(of: &[&Deltas]) -> Vec<(usize, usize)> {
    let length = of.iter().map(|deltas| deltas.groups.len()).sum();
    let mut numbers: HashMap<&[u8], usize, RandomState> = HashMap::default();
    // How many rows each group has, then where its next one goes.
    let mut next: Vec<usize> = Vec::new();
    let mut group_of: Vec<usize> = Vec::with_capacity(length);
    for group in of.iter().flat_map(|deltas| &deltas.groups) {
        let fresh = next.len();
        let number = *numbers.entry(group.unwrap_or_default()).or_insert(fresh);
        if number == fresh {
            next.push(0);
        }
        if let Some(rows) = next.get_mut(number) {
            *rows += 1;
        }
        group_of.push(number);
    }
    let mut from = 0;
    for rows in &mut next {
        from += std::mem::replace(rows, from);
    }
    let rows = of.iter().enumerate();
    let rows = rows.flat_map(|(view, deltas)| (0..deltas.groups.len()).map(move |row| (view, row)));
    let mut order = vec![(0, 0); length];
    for (number, row) in group_of.into_iter().zip(rows) {
        if let Some(place) = next.get_mut(number) {
            if let Some(slot) = order.get_mut(*place) {
                *slot = row;
            }
            *place += 1;
        }
    }
    order
}

fn expect_length(view: &str, (groups, rows): (usize, usize), values: usize) -> Result<()> {
    if groups == values && rows == values {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "parts of {view}: {groups} and {rows} keys for {values} values; give as many of each"
    )))
}

impl Part {
    fn of_deltas(view: &str) -> Self {
        Self {
            view: view.to_owned(),
            kind: PlaceKind::Deltas,
            groups: 0,
            arguments: Vec::new(),
        }
    }

    /// Adds a group with packed rows.
    fn add_packed(&mut self, group: &[u8], rows: &[u8]) -> Result<()> {
        self.groups += 1;
        self.arguments.push(Bytes::copy_from_slice(group));
        let head = self.arguments.len();
        let mut count = 0_usize;
        for row in packed::rows(rows) {
            let (row, more) = row.ok_or_else(|| Error::broken("packing live parts", "no row"))?;
            self.arguments.push(Bytes::copy_from_slice(row));
            self.arguments.push(more.to_string().into());
            count += 1;
        }
        self.arguments.insert(head, count.to_string().into());
        Ok(())
    }
}

/// The states of one view; nothing if there are none.
fn states_part(of: &States) -> Result<Option<Part>> {
    let length = of.states.len();
    expect_length(&of.view, (of.keys.len(), of.members.len()), length)?;
    let mut order: Vec<usize> = (0..length).collect();
    order.sort_by(|a, b| of.keys.value(*a).cmp(of.keys.value(*b)));
    let of_key: Vec<&[usize]> = order
        .chunk_by(|a, b| of.keys.value(*a) == of.keys.value(*b))
        .collect();
    let mut arguments = Vec::with_capacity(2 * (length + of_key.len()));
    for members in &of_key {
        let Some(first) = members.first() else {
            continue;
        };
        arguments.push(Bytes::copy_from_slice(of.keys.value(*first)));
        arguments.push(Bytes::from(members.len().to_string()));
        for row in *members {
            arguments.push(Bytes::copy_from_slice(of.members.value(*row)));
            arguments.push(match of.state(*row) {
                None => Bytes::from_static(GONE),
                Some(state) => [&[STATE], state].concat().into(),
            });
        }
    }
    Ok((length > 0).then(|| Part {
        view: of.view.clone(),
        kind: PlaceKind::States,
        groups: of_key.len(),
        arguments,
    }))
}
