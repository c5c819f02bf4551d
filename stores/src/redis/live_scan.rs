//! Scanning all parts of a view in one slot, page by page: groups in the order of their bytes, all
//! places side by side.
//!
//! A page is the answer of one script, so its rows and its fence are of one moment. Only a group that is too
//! large for one answer is a page, or more, of its own: its rows come in several answers, in no order, and of
//! each page the first ones are kept; then the record must say that they have not changed meanwhile.

use std::collections::BTreeMap;

use bytes::Bytes;
use redis::Value;
use schemas::seam::{Epoch, Slot};

use super::fault;
use super::live::RedisLive;
use super::live_read::{GROUP_TRIES, Pairs, of_chunks, pairs, unpacked};
use super::live_write::STATE;
use super::nodes::Request;
use super::record::{PlaceKind, Record, SlotKeys, has_chunks, number_of};
use super::script::SCAN;
use crate::live::SlotId;
use crate::live_scan::{
    LivePlace, ScannedDeltas, ScannedStates, StateOf, deltas_page, states_page,
};
use crate::{Error, Result};

/// So many groups of one place are scanned at once, at most.
const SCAN_GROUPS: usize = 5_000;

/// So many rows a page has, at most; a group of up to so many rows in a place is scanned as a whole.
const SCAN_ROWS: usize = 10_000;

/// What there is of each row, by group and row: values as they are stored, with their epochs.
type RowsByKey = BTreeMap<LivePlace, Vec<(Epoch, Vec<u8>)>>;

/// What a page is made of.
#[derive(Debug)]
struct Page {
    /// Nothing where it is missing.
    slot: Option<Slot>,
    rows: RowsByKey,
    is_last: bool,
}

/// The rows of a group in a place.
enum Rows {
    All(Pairs),
    /// How many there are; too many for one answer.
    Many(usize),
}

/// The groups of one place from somewhere on.
struct PlaceGroups {
    name: String,
    epoch: Epoch,
    /// Whether these are all.
    is_all: bool,
    groups: Vec<(Vec<u8>, Rows)>,
}

/// Groups from somewhere on, of one moment.
struct Seen {
    bytes: Bytes,
    record: Option<Record>,
    places: Vec<PlaceGroups>,
}

impl Seen {
    /// The last group up to which the groups of all places are known; nothing if that is all.
    fn known_up_to(&self) -> Option<&[u8]> {
        let unfinished = self.places.iter().filter(|place| !place.is_all);
        let last = unfinished.filter_map(|place| place.groups.last());
        last.map(|(group, _)| group.as_slice()).min()
    }

    /// The first group that is too large in a place.
    fn first_large(&self) -> Option<Vec<u8>> {
        let groups = self.places.iter().flat_map(|place| &place.groups);
        let large = groups.filter(|(_, rows)| matches!(rows, Rows::Many(_)));
        large.map(|(group, _)| group.clone()).min()
    }
}

/// A page that is being asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) kind: PlaceKind,
    pub(super) view: &'a str,
    pub(super) epochs: (Epoch, Epoch),
    pub(super) after: Option<&'a LivePlace>,
    pub(super) limit: usize,
}

impl Asked<'_> {
    fn rows_max(&self) -> usize {
        self.limit.clamp(1, SCAN_ROWS)
    }

    fn is_after(&self, group: &[u8], row: &[u8]) -> bool {
        self.after.is_none_or(|(last_group, last_row)| {
            (group, row) > (last_group.as_slice(), last_row.as_slice())
        })
    }

    /// The places that are asked for, with their epochs.
    fn places(&self, record: &Record) -> Vec<(String, Epoch)> {
        let (first, last) = self.epochs;
        let places = record.places(self.view, self.kind);
        let within = places.filter(|(_, epoch)| (first..=last).contains(epoch));
        within.cloned().collect()
    }

    /// Adds rows of a group in an epoch.
    fn add(
        &self,
        rows: &mut RowsByKey,
        (group, epoch): (&[u8], Epoch),
        found: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>,
    ) {
        for (row, value) in found {
            if self.is_after(group, &row) {
                let of_row = rows.entry((group.to_vec(), row)).or_default();
                of_row.push((epoch, value));
            }
        }
    }
}

impl RedisLive {
    /// A page of deltas, added up over epochs.
    pub(super) async fn scan_parts(&self, slot: SlotId, asked: Asked<'_>) -> Result<ScannedDeltas> {
        let doing = "scanning live parts";
        let page = self.scan_page(doing, slot, asked).await?;
        let mut rows = Vec::with_capacity(page.rows.len());
        for (key, values) in page.rows {
            let mut sum = 0_i64;
            for (_, value) in values {
                let count = self.count(doing, &value)?;
                sum = sum
                    .checked_add(count)
                    .ok_or_else(|| self.too_large(doing))?;
            }
            rows.push((key, sum));
        }
        Ok(deltas_page(asked.view, page.slot, rows, page.is_last))
    }

    /// The sum of two counts as they are stored.
    pub(super) fn sum(&self, doing: &str, one: &[u8], other: &[u8]) -> Result<Vec<u8>> {
        let (one, other) = (self.count(doing, one)?, self.count(doing, other)?);
        let sum = one.checked_add(other);
        let sum = sum.ok_or_else(|| self.too_large(doing))?;
        Ok(sum.to_string().into_bytes())
    }

    fn too_large(&self, doing: &str) -> Error {
        let why = "a sum is larger than 64 bits can hold; look for wrong amounts among the events";
        Error::broken(self.nodes.patience.what(doing), why)
    }

    /// A page of states, of each member the newest.
    pub(super) async fn scan_all_states(
        &self,
        slot: SlotId,
        asked: Asked<'_>,
    ) -> Result<ScannedStates> {
        let page = self.scan_page("scanning live states", slot, asked).await?;
        let newest = |(key, values): (LivePlace, Vec<(Epoch, Vec<u8>)>)| {
            let newest = values.into_iter().max_by_key(|(epoch, _)| *epoch);
            let of_state = |(epoch, value): (Epoch, Vec<u8>)| -> StateOf {
                (epoch, value.strip_prefix(&[STATE]).map(<[u8]>::to_vec))
            };
            newest.map(|newest| (key, of_state(newest)))
        };
        let rows = page.rows.into_iter().filter_map(newest);
        Ok(states_page(asked.view, page.slot, rows, page.is_last))
    }

    /// The first rows after a key: whole groups, as many as one answer holds, or rows of a large one.
    async fn scan_page(&self, doing: &str, slot: SlotId, asked: Asked<'_>) -> Result<Page> {
        let (keys, patience) = (self.keys(slot), &self.nodes.patience);
        let mut from = match asked.after {
            None => b"-".to_vec(),
            Some((group, _)) => [b"[", group.as_slice()].concat(),
        };
        let mut tries_left = GROUP_TRIES;
        loop {
            let tries = || Box::pin(self.groups_from(doing, &keys, asked, &from));
            let mut seen = patience.repeated(doing, tries).await?;
            let slot = seen.record.as_ref().map(|record| record.slot.clone());
            let large = seen.first_large();
            let end = seen.known_up_to().map(<[u8]>::to_vec);
            let mut rows = RowsByKey::new();
            let is_before = |group: &[u8]| {
                end.as_deref().is_none_or(|end| group <= end)
                    && large.as_deref().is_none_or(|large| group < large)
            };
            for place in &mut seen.places {
                let before = place.groups.extract_if(.., |(group, _)| is_before(group));
                for (group, found) in before {
                    if let Rows::All(found) = found {
                        asked.add(&mut rows, (&group, place.epoch), found);
                    }
                }
            }
            if !rows.is_empty() {
                return Ok(cut(slot, rows, large.is_none() && end.is_none(), asked));
            }
            // All that came was before the page, which goes on with a large group or later.
            let large = large.filter(|large| end.as_ref().is_none_or(|end| large <= end));
            let passed = match (large, end) {
                (None, None) => return Ok(cut(slot, rows, true, asked)),
                (None, Some(end)) => end,
                (Some(group), _) => {
                    let read = Box::pin(self.large_group(doing, &keys, (seen, &group), asked));
                    match read.await? {
                        Some(rows) if rows.is_empty() => group,
                        Some(rows) => return Ok(cut(slot, rows, false, asked)),
                        None if tries_left > 1 => {
                            tries_left -= 1;
                            continue;
                        }
                        None => return Err(patience.unavailable(doing, CHANGED)),
                    }
                }
            };
            from = [b"(", passed.as_slice()].concat();
        }
    }

    /// The first rows of a group that is too large for one answer; nothing if they may have changed while
    /// they were read.
    async fn large_group(
        &self,
        doing: &str,
        keys: &SlotKeys,
        (seen, group): (Seen, &[u8]),
        asked: Asked<'_>,
    ) -> Result<Option<RowsByKey>> {
        let patience = &self.nodes.patience;
        let mut rows = RowsByKey::new();
        for place in seen.places {
            let mut groups = place.groups.into_iter();
            let Some((_, found)) = groups.find(|(name, _)| name == group) else {
                continue;
            };
            let at = (group, place.epoch);
            match found {
                Rows::All(found) => asked.add(&mut rows, at, found),
                Rows::Many(expected) => {
                    let of_group = (keys, place.name.as_str(), group);
                    let tries = || Box::pin(self.first_rows(doing, of_group, expected, asked));
                    let first = patience.repeated(doing, tries).await?;
                    asked.add(&mut rows, at, first);
                }
            }
        }
        let now = patience.repeated(doing, || self.look(doing, keys)).await?;
        let stands = now.bytes == seen.bytes
            || seen
                .record
                .is_some_and(|before| now.record.is_some_and(|now| stays(&before, &now, asked)));
        Ok(stands.then_some(rows))
    }

    /// The first rows of a large group in a place: more might not fit into memory.
    async fn first_rows(
        &self,
        doing: &str,
        of_group: (&SlotKeys, &str, &[u8]),
        expected: usize,
        asked: Asked<'_>,
    ) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let mut first = BTreeMap::new();
        let keep = |row: Vec<u8>, value: Vec<u8>| {
            if asked.is_after(of_group.2, &row) {
                // Parts of a row that is among the first at the end were never left out.
                self.add_part(doing, &mut first, (row, value))?;
            }
            if first.len() > asked.rows_max() {
                first.pop_last();
            }
            Ok(())
        };
        self.each_row(doing, of_group, expected, keep).await?;
        Ok(first)
    }

    /// One try of the script.
    async fn groups_from(
        &self,
        doing: &str,
        keys: &SlotKeys,
        asked: Asked<'_>,
        from: &[u8],
    ) -> Result<Seen> {
        let arguments = [
            Bytes::from_static(asked.kind.letter().as_bytes()),
            Bytes::copy_from_slice(asked.view.as_bytes()),
            Bytes::from(asked.epochs.0.to_string()),
            Bytes::from(asked.epochs.1.to_string()),
            Bytes::copy_from_slice(from),
            Bytes::from(asked.rows_max().min(SCAN_GROUPS).to_string()),
            Bytes::from(SCAN_ROWS.to_string()),
        ];
        let request = Request::script_on_keys(keys, &SCAN, arguments);
        let answer = self.one(doing, request).await?;
        let strange = || fault::strange(&self.nodes.patience, doing);
        let Value::Array(answer) = answer else {
            return Err(strange());
        };
        let mut answer = answer.into_iter();
        let Some(Value::BulkString(bytes)) = answer.next() else {
            return Err(strange());
        };
        let bytes = Bytes::from(bytes);
        let record = self.seen_as(doing, keys, bytes.clone())?.record;
        let mut places = Vec::new();
        for (name, epoch) in record.iter().flat_map(|record| asked.places(record)) {
            let of_place = place_groups(name, epoch, answer.next());
            places.push(of_place.ok_or_else(strange)?);
        }
        Ok(Seen {
            bytes,
            record,
            places,
        })
    }
}

const CHANGED: &str = "a group has more live rows than are scanned at one moment, and was written meanwhile each time; scan epochs that have ended";

/// The first rows as a page.
fn cut(slot: Option<Slot>, mut rows: RowsByKey, is_last: bool, asked: Asked<'_>) -> Page {
    let has_more = rows.len() > asked.rows_max();
    while rows.len() > asked.rows_max() {
        rows.pop_last();
    }
    Page {
        slot,
        rows,
        is_last: is_last && !has_more,
    }
}

/// What the script answers of a place.
fn place_groups(name: String, epoch: Epoch, answer: Option<Value>) -> Option<PlaceGroups> {
    let Some(Value::Array(answer)) = answer else {
        return None;
    };
    let mut answer = answer.into_iter();
    let Some(Value::Int(is_all)) = answer.next() else {
        return None;
    };
    let mut groups = Vec::new();
    while let Some(group) = answer.next() {
        let Value::BulkString(group) = group else {
            return None;
        };
        let rows = match answer.next() {
            Some(Value::Int(rows)) => Rows::Many(usize::try_from(rows).unwrap_or(usize::MAX)),
            Some(Value::Array(values)) if has_chunks(&name) => {
                Rows::All(of_chunks(&pairs(values)?)?)
            }
            Some(Value::Array(values)) => Rows::All(pairs(values)?),
            Some(Value::BulkString(string)) => Rows::All(unpacked(&string, number_of(&name)?)?),
            _ => return None,
        };
        groups.push((group, rows));
    }
    Some(PlaceGroups {
        name,
        epoch,
        is_all: is_all == 1,
        groups,
    })
}

/// Whether what was read stands though the record has changed: only the epoch that is being filled changes,
/// and what was let go may be half deleted.
fn stays(before: &Record, now: &Record, asked: Asked<'_>) -> bool {
    let filling = before.slot.epoch.min(now.slot.epoch);
    let places = asked.places(before);
    let are_over = places.iter().all(|(_, epoch)| *epoch < filling);
    are_over && before.slot.generation == now.slot.generation && places == asked.places(now)
}
