//! Scanning all parts of a view in one slot, page by page: groups in the order of their bytes, all
//! places side by side.

use std::collections::BTreeMap;

use arrow::array::{BinaryBuilder, Int64Array};
use bytes::Bytes;
use redis::Value;
use schemas::seam::Epoch;

use super::fault;
use super::live::RedisLive;
use super::live_read::{Pairs, pairs};
use super::nodes::{Call, Request};
use super::record::{PlaceKind, Record, SlotKeys};
use super::script::SCAN;
use crate::live::{Deltas, SlotId};
use crate::{Error, Result};

/// So many groups of one place are scanned at once, at most.
const SCAN_GROUPS: usize = 5_000;

/// A group of up to so many rows is scanned as a whole.
const SCAN_ROWS: usize = 10_000;

/// A group and a row.
type Key = (Vec<u8>, Vec<u8>);

/// What a page is made of.
#[derive(Debug, Default)]
struct Page {
    sums: BTreeMap<Key, i64>,
    /// Whether every group of every place was read.
    is_last: bool,
}

/// The rows of a group.
enum Rows {
    All(Pairs),
    /// How many there are; too many for one answer.
    Many(usize),
}

/// The groups of one place from somewhere on.
struct Groups {
    /// Whether these are all.
    is_all: bool,
    groups: Vec<(Vec<u8>, Rows)>,
}

/// A page that is being asked for.
#[derive(Debug, Clone, Copy)]
struct Asked<'a> {
    view: &'a str,
    epochs: (Epoch, Epoch),
    after: Option<&'a Key>,
    limit: usize,
}

impl RedisLive {
    pub(super) async fn scan_parts(
        &self,
        slot: SlotId,
        view: &str,
        epochs: (Epoch, Epoch),
        (after, limit): (Option<Key>, usize),
    ) -> Result<Deltas> {
        let doing = "scanning live parts";
        let asked = Asked {
            view,
            epochs,
            after: after.as_ref(),
            limit,
        };
        let tries = || Box::pin(self.try_scan(doing, slot, asked));
        let sums = self.nodes.patience.repeated(doing, tries).await?;
        let (mut groups, mut rows) = (BinaryBuilder::new(), BinaryBuilder::new());
        let mut counts = Vec::with_capacity(sums.len().min(limit));
        for ((group, row), count) in sums.into_iter().take(limit) {
            groups.append_value(group);
            rows.append_value(row);
            counts.push(count);
        }
        Ok(Deltas {
            view: view.to_owned(),
            groups: groups.finish(),
            rows: rows.finish(),
            counts: Int64Array::from(counts),
        })
    }

    /// The first rows of all places together, at least as many as are asked for if there are as many.
    async fn try_scan(
        &self,
        doing: &str,
        slot: SlotId,
        asked: Asked<'_>,
    ) -> Result<BTreeMap<Key, i64>> {
        let keys = self.keys(slot);
        let Some(record) = self.look(doing, &keys).await?.record else {
            return Ok(BTreeMap::new());
        };
        let places = places_of(&record, asked);
        let mut page = Page::default();
        let mut from = match asked.after {
            None => b"-".to_vec(),
            Some((group, _)) => [b"[", group.as_slice()].concat(),
        };
        while !page.is_last && page.sums.len() < asked.limit {
            let requests: Vec<Request> = places
                .iter()
                .map(|place| scan_request(&keys, place, &from, asked.limit))
                .collect();
            let mut read = Vec::with_capacity(places.len());
            for answer in self.nodes.ask(doing, &requests).await? {
                let (now, groups) = self.groups(doing, &keys, answer)?;
                // What was let go meanwhile may be half deleted.
                if now.is_none_or(|now| places_of(&now, asked) != places) {
                    let why = "epochs were let go meanwhile";
                    return Err(self.nodes.patience.unavailable(doing, why));
                }
                read.push(groups);
            }
            let end = read
                .iter()
                .filter(|groups| !groups.is_all)
                .filter_map(|groups| groups.groups.last().map(|(group, _)| group.clone()))
                .min();
            for (place, groups) in places.iter().zip(read) {
                for (group, rows) in groups.groups {
                    if end.as_ref().is_some_and(|end| group > *end) {
                        break;
                    }
                    let of_group = (&keys, place.as_str(), group.as_slice());
                    self.add_group(doing, of_group, rows, asked, &mut page)
                        .await?;
                }
            }
            page.is_last = end.is_none();
            from = [b"(", end.unwrap_or_default().as_slice()].concat();
        }
        Ok(page.sums)
    }

    /// Adds the rows of one group in one place to a page.
    async fn add_group(
        &self,
        doing: &str,
        (keys, place, group): (&SlotKeys, &str, &[u8]),
        rows: Rows,
        asked: Asked<'_>,
        page: &mut Page,
    ) -> Result<()> {
        let expected = match rows {
            Rows::All(rows) => return self.add_rows(doing, group, rows, asked, page),
            Rows::Many(expected) => expected,
        };
        // The first rows are enough, and more might not fit into memory.
        let mut first = BTreeMap::new();
        let keep = |row: Vec<u8>, value: Vec<u8>| {
            if is_after(asked, group, &row) {
                first.insert(row, value);
            }
            if first.len() > asked.limit {
                first.pop_last();
            }
            Ok(())
        };
        let of_group = (keys, place, group);
        self.each_row(doing, of_group, expected, keep).await?;
        self.add_rows(doing, group, first, asked, page)
    }

    fn add_rows(
        &self,
        doing: &str,
        group: &[u8],
        rows: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>,
        asked: Asked<'_>,
        page: &mut Page,
    ) -> Result<()> {
        for (row, value) in rows {
            if !is_after(asked, group, &row) {
                continue;
            }
            let count = self.count(doing, &value)?;
            let sum = page.sums.entry((group.to_vec(), row)).or_default();
            *sum = sum.checked_add(count).ok_or_else(|| {
                let why = "the sum over epochs is larger than 64 bits can hold; look for wrong amounts among the events";
                Error::broken(self.nodes.patience.what(doing), why)
            })?;
        }
        Ok(())
    }

    /// The answer of the script.
    fn groups(
        &self,
        doing: &str,
        keys: &SlotKeys,
        answer: Value,
    ) -> Result<(Option<Record>, Groups)> {
        let strange = || fault::strange(&self.nodes.patience, doing);
        let Value::Array(answer) = answer else {
            return Err(strange());
        };
        let mut answer = answer.into_iter();
        let record = self.answered_record(doing, keys, answer.next())?;
        let Some(Value::Int(is_all)) = answer.next() else {
            return Err(strange());
        };
        let mut groups = Vec::new();
        while let Some(group) = answer.next() {
            let Value::BulkString(group) = group else {
                return Err(strange());
            };
            let rows = match answer.next() {
                Some(Value::Int(rows)) => Rows::Many(usize::try_from(rows).unwrap_or(usize::MAX)),
                Some(Value::Array(values)) => Rows::All(pairs(values).ok_or_else(strange)?),
                _ => return Err(strange()),
            };
            groups.push((group, rows));
        }
        let is_all = is_all == 1;
        Ok((record, Groups { is_all, groups }))
    }
}

/// The places of a view within some epochs.
fn places_of(record: &Record, asked: Asked<'_>) -> Vec<String> {
    let (first, last) = asked.epochs;
    record
        .places(asked.view, PlaceKind::Deltas)
        .filter(|(_, epoch)| (first..=last).contains(epoch))
        .map(|(name, _)| name.clone())
        .collect()
}

fn scan_request(keys: &SlotKeys, place: &str, from: &[u8], limit: usize) -> Request {
    Request {
        hash_slot: keys.hash_slot,
        call: Call::Script {
            script: &SCAN,
            key: keys.record.clone(),
            arguments: vec![
                Bytes::from(keys.prefix.clone()),
                Bytes::copy_from_slice(place.as_bytes()),
                Bytes::copy_from_slice(from),
                Bytes::from(limit.clamp(1, SCAN_GROUPS).to_string()),
                Bytes::from(SCAN_ROWS.to_string()),
            ],
        },
    }
}

fn is_after(asked: Asked<'_>, group: &[u8], row: &[u8]) -> bool {
    asked.after.is_none_or(|(last_group, last_row)| {
        (group, row) > (last_group.as_slice(), last_row.as_slice())
    })
}
