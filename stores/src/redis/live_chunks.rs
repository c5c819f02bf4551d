//! Groups with many packed rows: what a full string holds goes into chunks, a hash for each view.
//!
//! A chunk is a field of that hash, whose value has some kilobytes of packed rows. So a full string costs a few calls for
//! what a hundred micro-batches appended to it, and rows cost none. Rows may be in several chunks, and add up; where there
//! are many chunks, they are put together if that takes less than half of the room.
//!
//! Only who fills the epoch changes strings and chunks, and each time the fence moves. So what is read here before an apply
//! is what is there when it goes through.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use redis::Value;

use super::fault;
use super::live::RedisLive;
use super::live_read::pairs;
use super::live_write::Family;
use super::nodes::{Call, Request};
use super::packed::{self, Sums};
use super::record::{PlaceKind, Record, SlotKeys, has_chunks};
use crate::Result;
use crate::live::SlotId;

/// So many full strings are read before one apply, at most: others go on growing.
const STRINGS_MAX: usize = 1_000;
/// So many hashes of chunks are put together in one apply, at most.
const HASHES_MAX: usize = 32;
/// A hash is looked at when it comes to so many chunks, to twice as many, and so on up to the last number: one that could
/// not be put together until then is of different rows.
const CHUNKS_FIRST: usize = 32;
const CHUNKS_LAST: usize = 4_096;

/// By place: groups of which there is something to do.
pub(super) type NotedGroups = HashMap<String, HashSet<Vec<u8>>>;

/// By place and group.
type ByGroup<T> = HashMap<String, HashMap<Vec<u8>, T>>;

/// What there is of each row.
type RowSums = BTreeMap<Vec<u8>, i64>;

/// What was read of noted groups, by place and group.
#[derive(Debug, Default)]
pub(super) struct TakenIn {
    /// What strings hold.
    strings: ByGroup<Vec<u8>>,
    /// All rows of hashes of chunks that are to be put together.
    hashes: ByGroup<RowSums>,
    /// What is done with these, and where nothing is to be done.
    noted: Vec<(String, Vec<u8>)>,
}

impl TakenIn {
    pub(super) fn string(&self, place: &str, group: &[u8]) -> Option<&[u8]> {
        self.strings.get(place)?.get(group).map(Vec::as_slice)
    }
}

/// What becomes of the chunks of a group.
#[derive(Debug, Default)]
struct OfGroup {
    rows: RowSums,
    /// Whether they take the place of all chunks that are there.
    replaces: bool,
}

/// What becomes chunks in an apply, by view and group.
#[derive(Debug, Default)]
pub(super) struct Chunks(BTreeMap<String, BTreeMap<Vec<u8>, OfGroup>>);

impl Chunks {
    /// Adds packed rows of a group; nothing if they are none.
    pub(super) fn add(&mut self, view: &str, group: &[u8], rows: &[u8]) -> Option<()> {
        let of_view = match self.0.get_mut(view) {
            Some(of_view) => of_view,
            None => self.0.entry(view.to_owned()).or_default(),
        };
        let of_group = match of_view.get_mut(group) {
            Some(of_group) => of_group,
            None => of_view.entry(group.to_vec()).or_default(),
        };
        for row in packed::rows(rows) {
            let (row, count) = row?;
            add(&mut of_group.rows, row, count)?;
        }
        Some(())
    }

    /// What a script is told: from how many chunks up to how many it tells of hashes with as many, how many places there
    /// are, and for each of these its name and how many groups follow; for each group its key, 1 if the chunks that are
    /// there go, how many chunks follow, and these: a name and the rows.
    pub(super) fn arguments(mut self, record: &mut Record, taken: &TakenIn) -> Option<Vec<Bytes>> {
        for (place, groups) in &taken.hashes {
            // Those of epochs that have ended stay as they are.
            let Some(view) = record.view_of(place) else {
                continue;
            };
            for (group, rows) in groups {
                let of_view = self.0.entry(view.to_owned()).or_default();
                let of_group = of_view.entry(group.clone()).or_default();
                of_group.replaces = true;
                for (row, count) in rows {
                    add(&mut of_group.rows, row, *count)?;
                }
            }
        }
        let number = |n: usize| Bytes::from(n.to_string());
        let mut arguments = vec![
            number(CHUNKS_FIRST),
            number(CHUNKS_LAST),
            number(self.0.len()),
        ];
        let at = record.slot.position.next_offset;
        for (view, groups) in self.0 {
            arguments.push(record.ensure_place(&view, PlaceKind::Chunks).into());
            arguments.push(number(groups.len()));
            for (group, of_group) in groups {
                let rows = of_group.rows.iter();
                let chunks = packed::chunks(rows.map(|(row, count)| (row.as_slice(), *count)));
                arguments.push(group.into());
                arguments.push(Bytes::from_static(if of_group.replaces {
                    b"1"
                } else {
                    b""
                }));
                arguments.push(number(chunks.len()));
                for (index, chunk) in chunks.into_iter().enumerate() {
                    // Where the fence moves to there is no other chunk of.
                    arguments.push(format!("{at}.{index}").into());
                    arguments.push(chunk.into());
                }
            }
        }
        Some(arguments)
    }
}

fn add(rows: &mut RowSums, row: &[u8], count: i64) -> Option<()> {
    match rows.get_mut(row) {
        Some(sum) => *sum = sum.checked_add(count)?,
        None => {
            rows.insert(row.to_vec(), count);
        }
    }
    Some(())
}

impl RedisLive {
    /// Reads what there is to take in of noted groups: strings of groups that get more rows, and chunks to be put together.
    pub(super) async fn take_in(
        &self,
        doing: &str,
        slot: SlotId,
        families: &[Family],
    ) -> Result<TakenIn> {
        let mut taken = TakenIn::default();
        let Some(noted) = self.noted_groups().get(&slot).map(Arc::clone) else {
            return Ok(taken);
        };
        let Some(seen) = self.seen_last(slot) else {
            return Ok(taken);
        };
        let Some(record) = &seen.record else {
            return Ok(taken);
        };
        let (mut strings, mut hashes) = (Vec::new(), Vec::new());
        for (place, groups) in &*noted {
            if has_chunks(place) {
                let groups = groups.iter().take(HASHES_MAX.saturating_sub(hashes.len()));
                hashes.extend(groups.map(|group| (place.as_str(), group.as_slice())));
                continue;
            }
            let family = record.family_of(place);
            let family = families.iter().find(|of| Some(of.name.as_str()) == family);
            let changing = family.into_iter().flat_map(|of| of.groups.keys());
            let full = changing.filter(|group| groups.contains(*group));
            let full = full.take(STRINGS_MAX.saturating_sub(strings.len()));
            strings.extend(full.map(|group| (place.as_str(), group)));
        }
        if strings.is_empty() && hashes.is_empty() {
            return Ok(taken);
        }
        let keys = self.keys(slot);
        let requests: Vec<Request> = requests(&keys, &strings, &hashes);
        let patience = &self.nodes.patience;
        let answers = patience.repeated(doing, || self.nodes.ask(doing, &requests));
        let mut answers = answers.await?.into_iter();
        let strange = || fault::strange(patience, doing);
        if !strings.is_empty() {
            let Some(Value::Array(found)) = answers.next() else {
                return Err(strange());
            };
            for ((place, group), string) in strings.into_iter().zip(found) {
                let string = match string {
                    Value::BulkString(string) => string,
                    Value::Nil => Vec::new(),
                    _ => return Err(strange()),
                };
                let of_place = taken.strings.entry(place.to_owned()).or_default();
                of_place.insert(group.to_vec(), string);
                taken.noted.push((place.to_owned(), group.to_vec()));
            }
        }
        for ((place, group), found) in hashes.into_iter().zip(answers) {
            let Value::Array(values) = found else {
                return Err(strange());
            };
            let chunks = pairs(values).ok_or_else(strange)?;
            taken.noted.push((place.to_owned(), group.to_vec()));
            if let Some(rows) = put_together(&chunks).ok_or_else(strange)? {
                let of_place = taken.hashes.entry(place.to_owned()).or_default();
                of_place.insert(group.to_vec(), rows);
            }
        }
        Ok(taken)
    }

    /// Forgets groups of which nothing is to be done any more.
    pub(super) fn forget_taken(&self, slot: SlotId, taken: TakenIn) {
        if taken.noted.is_empty() {
            return;
        }
        let mut all = self.noted_groups();
        if let Some(noted) = all.get_mut(&slot) {
            let noted = Arc::make_mut(noted);
            for (place, group) in taken.noted {
                if let Some(groups) = noted.get_mut(&place) {
                    groups.remove(&group);
                }
            }
            noted.retain(|_, groups| !groups.is_empty());
        }
    }

    /// Notes groups that a script tells of, by turns a place and a group: strings that are full, and hashes of many chunks.
    /// What is not noted, since another process wrote before, is told of once more.
    pub(super) fn note_groups(
        &self,
        slot: SlotId,
        record: &Record,
        told: impl Iterator<Item = Value>,
    ) {
        let told = told.filter_map(|value| match value {
            Value::BulkString(bytes) => Some(bytes),
            _ => None,
        });
        let mut told = told.peekable();
        if told.peek().is_none() {
            return;
        }
        let mut all = self.noted_groups();
        let noted = Arc::make_mut(all.entry(slot).or_default());
        noted.retain(|place, _| record.has_packed(place));
        while let (Some(place), Some(group)) = (told.next(), told.next()) {
            let place = String::from_utf8_lossy(&place).into_owned();
            noted.entry(place).or_default().insert(group);
        }
    }

    fn noted_groups(&self) -> std::sync::MutexGuard<'_, HashMap<SlotId, Arc<NotedGroups>>> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One request for strings, and one for each hash.
fn requests(keys: &SlotKeys, strings: &[(&str, &[u8])], hashes: &[(&str, &[u8])]) -> Vec<Request> {
    let key = |(place, group): &(&str, &[u8])| {
        [keys.prefix.as_bytes(), place.as_bytes(), b":", group].concat()
    };
    let request = |command| Request {
        hash_slot: keys.hash_slot,
        call: Call::Command(command),
    };
    let mut get = redis::cmd("MGET");
    for string in strings {
        get.arg(key(string));
    }
    let get = (!strings.is_empty()).then(|| request(get));
    let hashes = hashes.iter().map(|hash| {
        let mut command = redis::cmd("HGETALL");
        command.arg(key(hash));
        request(command)
    });
    get.into_iter().chain(hashes).collect()
}

/// The rows of chunks, if these take less than half of the room together; nothing for what are no chunks.
#[expect(
    clippy::option_option,
    reason = "what is damaged, and what is to be left alone"
)]
fn put_together(chunks: &[(Vec<u8>, Vec<u8>)]) -> Option<Option<RowSums>> {
    let mut sums = Sums::new();
    for (_, chunk) in chunks {
        packed::add_rows(&mut sums, chunk)?;
    }
    let before: usize = chunks.iter().map(|(_, chunk)| chunk.len()).sum();
    let rows = sums.iter().map(|(row, count)| (*row, *count));
    let after: usize = packed::chunks(rows).iter().map(Vec::len).sum();
    let rows = sums.into_iter().map(|(row, count)| (row.to_vec(), count));
    Some((after < before / 2).then(|| rows.collect()))
}
