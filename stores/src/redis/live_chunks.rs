//! Groups with many packed rows: what a full string holds goes into chunks, a hash for each view.
//!
//! A chunk is a field of that hash, whose value is packed rows, up to some kilobytes of them. So a full string costs a few
//! calls for what many micro-batches appended to it, and rows cost none. Rows may be in several chunks, and add up; where
//! there are many chunks, they are put together if that takes less than half of the room.
//!
//! Strings and chunks change only together with the record, of which no two have the same bytes. So what was read under a
//! record is what is there when a script finds that same record; where it would find another, nothing is taken in.

use std::collections::{BTreeMap, HashMap};
use std::sync::{MutexGuard, PoisonError};

use bytes::Bytes;
use redis::Value;
use uuid::Uuid;

use super::fault;
use super::live::RedisLive;
use super::live_read::{Pairs, pairs};
use super::live_write::Family;
use super::nodes::Request;
use super::packed;
use super::record::{PlaceKind, Record, SlotKeys, has_chunks};
use crate::live::SlotId;
use crate::{Error, Result};

/// So many full strings are read before one apply, at most: others go on growing.
const STRINGS_MAX: usize = 1_000;
/// A hash is looked at when it comes to so many chunks, to twice as many, and so on up to the last number, above which it
/// would be much to read at once.
const CHUNKS_FIRST: usize = 32;
const CHUNKS_LAST: usize = 16_384;
/// So many chunks are read before one apply, at most.
const CHUNKS_MAX: usize = 16_384;

/// By place: groups of which there is something to do, with how many chunks they have (none: their string is full).
pub(super) type NotedGroups = HashMap<String, HashMap<Vec<u8>, usize>>;

/// A place, a group, and how many chunks it has.
type Noted = (String, Vec<u8>, usize);

/// By place and group.
type ByGroup<T> = HashMap<String, HashMap<Vec<u8>, T>>;

/// What was read of noted groups, by place and group.
#[derive(Debug, Default)]
pub(super) struct TakenIn {
    /// The record under which it was read.
    pub(super) under: Bytes,
    /// What strings hold.
    strings: ByGroup<Vec<u8>>,
    /// All rows of hashes of chunks that are to be put together, packed, with how many chunks these are.
    hashes: ByGroup<(usize, Vec<u8>)>,
}

impl TakenIn {
    pub(super) fn string(&self, place: &str, group: &[u8]) -> Option<&[u8]> {
        self.strings.get(place)?.get(group).map(Vec::as_slice)
    }
}

/// What becomes of the chunks of a group.
#[derive(Debug, Default)]
struct OfGroup {
    /// Packed; a row may come several times.
    rows: Vec<u8>,
    /// Whether they take the place of all chunks that are there.
    replaces: bool,
}

/// What becomes chunks in an apply, by view and group.
#[derive(Debug, Default)]
pub(super) struct Chunks(BTreeMap<String, BTreeMap<Vec<u8>, OfGroup>>);

impl Chunks {
    /// Adds packed rows of a group.
    pub(super) fn add(&mut self, view: &str, group: &[u8], rows: &[u8]) {
        let of_view = match self.0.get_mut(view) {
            Some(of_view) => of_view,
            None => self.0.entry(view.to_owned()).or_default(),
        };
        let of_group = match of_view.get_mut(group) {
            Some(of_group) => of_group,
            None => of_view.entry(group.to_vec()).or_default(),
        };
        of_group.rows.extend_from_slice(rows);
    }

    /// What a script is told: from how many chunks up to how many it tells of hashes with as many, how many places there
    /// are, and for each of these its name and how many groups follow; for each group its key, 1 if the chunks that are
    /// there go, how many chunks follow, and these: a name and the rows.
    ///
    /// # Errors
    /// [`Error::Broken`] where something that was added is no rows.
    pub(super) fn arguments(mut self, record: &mut Record, taken: &TakenIn) -> Result<Vec<Bytes>> {
        for (place, groups) in &taken.hashes {
            // Those of epochs that have ended stay as they are.
            let Some(view) = record.view_of(place) else {
                continue;
            };
            for (group, (_, rows)) in groups {
                let of_view = self.0.entry(view.to_owned()).or_default();
                let of_group = of_view.entry(group.clone()).or_default();
                of_group.replaces = true;
                of_group.rows.extend_from_slice(rows);
            }
        }
        let number = |n: usize| Bytes::from(n.to_string());
        let mut arguments = vec![
            number(CHUNKS_FIRST),
            number(CHUNKS_LAST),
            number(self.0.len()),
        ];
        // No other apply names chunks so.
        let (own, ..) = Uuid::new_v4().as_fields();
        let own = format!("{}.{own:08x}", record.slot.position.next_offset);
        for (view, groups) in self.0 {
            let place = record.ensure_place(&view, PlaceKind::Chunks);
            arguments.push(place.clone().into());
            arguments.push(number(groups.len()));
            for (group, of_group) in groups {
                let rows = packed::summed([of_group.rows.as_slice()]);
                let chunks = packed::chunks(rows.ok_or_else(|| no_rows(&place, &group))?);
                arguments.push(group.into());
                arguments.push(Bytes::from_static(if of_group.replaces {
                    b"1"
                } else {
                    b""
                }));
                arguments.push(number(chunks.len()));
                for (index, chunk) in chunks.into_iter().enumerate() {
                    arguments.push(format!("{own}.{index}").into());
                    arguments.push(chunk.into());
                }
            }
        }
        Ok(arguments)
    }
}

/// The error for a group that holds something else than rows.
pub(super) fn no_rows(place: &str, group: &[u8]) -> Error {
    let why = format!(
        "{place}:{} holds no live parts, or counts whose sum is larger than 64 bits can hold; another program has written this key; delete all keys of the slot, and it is made again from the log",
        group.escape_ascii()
    );
    Error::broken("packing live parts", why)
}

impl RedisLive {
    /// Reads what there is to take in of noted groups: strings of groups that get more rows, and chunks to be put together.
    /// What can't be read now is left for another time.
    pub(super) async fn take_in(
        &self,
        doing: &str,
        slot: SlotId,
        families: &[Family],
    ) -> Result<TakenIn> {
        let Some((strings, hashes)) = self.to_take_in(slot, families) else {
            return Ok(TakenIn::default());
        };
        let keys = self.keys(slot);
        let requests: Vec<Request> = requests(&keys, &strings, &hashes);
        let answers = match self.nodes.ask(doing, &requests).await {
            Ok(answers) => answers,
            Err(error) => {
                tracing::debug!(%error, "full strings stay as they are for now");
                self.note(slot, strings);
                return Ok(TakenIn::default());
            }
        };
        let strange = || fault::strange(&self.nodes.patience, doing);
        let mut answers = answers.into_iter();
        let (first, last) = (answers.next(), answers.next_back());
        let (Some(Value::Array(found)), Some(record)) = (first, last) else {
            return Err(strange());
        };
        let mut found = found.into_iter();
        let under = found.next();
        if under.as_ref() != Some(&record) {
            // Somebody else fills the epoch.
            return Ok(TakenIn::default());
        }
        let mut taken = TakenIn::default();
        if let Some(Value::BulkString(bytes)) = under {
            taken.under = bytes.into();
        }
        for ((place, group, _), string) in strings.into_iter().zip(found) {
            let string = match string {
                Value::BulkString(string) => string,
                Value::Nil => Vec::new(),
                _ => return Err(strange()),
            };
            let of_place = taken.strings.entry(place).or_default();
            of_place.insert(group, string);
        }
        let mut read = Vec::new();
        for (hash, found) in hashes.into_iter().zip(answers) {
            let Value::Array(values) = found else {
                return Err(strange());
            };
            read.push((hash, pairs(values).ok_or_else(strange)?));
        }
        if !read.is_empty() {
            let put = tokio::task::spawn_blocking(move || {
                let put = |(hash, chunks): (Noted, Pairs)| (hash, put_together(&chunks));
                read.into_iter().map(put).collect::<Vec<_>>()
            });
            let put = put.await.map_err(|error| Error::broken(doing, error))?;
            for ((place, group, chunks), rows) in put {
                let rows = rows.ok_or_else(|| no_rows(&place, &group))?;
                if let Some(rows) = rows {
                    let of_place = taken.hashes.entry(place).or_default();
                    of_place.insert(group, (chunks, rows));
                }
            }
        }
        Ok(taken)
    }

    /// Takes out of what is noted what there is to be read: strings and hashes.
    fn to_take_in(&self, slot: SlotId, families: &[Family]) -> Option<(Vec<Noted>, Vec<Noted>)> {
        let seen = self.seen_last(slot)?;
        let record = seen.record.as_ref().filter(|_| !families.is_empty())?;
        let mut all = self.noted_groups();
        let noted = all.get_mut(&slot)?;
        let (mut strings, mut hashes, mut chunks) = (Vec::new(), Vec::new(), 0);
        for (place, groups) in noted.iter_mut() {
            if has_chunks(place) {
                if record.view_of(place).is_none() {
                    groups.clear();
                }
                let fit = groups.extract_if(|_, of_group| {
                    let fits = chunks == 0 || chunks + *of_group <= CHUNKS_MAX;
                    chunks += if fits { *of_group } else { 0 };
                    fits
                });
                hashes.extend(fit.map(|(group, of_group)| (place.clone(), group, of_group)));
                continue;
            }
            let family = record.family_of(place);
            let family = families.iter().find(|of| Some(of.name.as_str()) == family);
            for group in family.into_iter().flat_map(|of| of.groups.keys()) {
                if strings.len() < STRINGS_MAX
                    && let Some((group, none)) = groups.remove_entry(group)
                {
                    strings.push((place.clone(), group, none));
                }
            }
        }
        noted.retain(|_, groups| !groups.is_empty());
        (!strings.is_empty() || !hashes.is_empty()).then_some((strings, hashes))
    }

    /// Notes again what was taken in and did not go through.
    pub(super) fn note_again(&self, slot: SlotId, taken: TakenIn) {
        let strings = each(taken.strings).map(|(place, group, _)| (place, group, 0));
        let hashes = each(taken.hashes).map(|(place, group, (chunks, _))| (place, group, chunks));
        self.note(slot, strings.chain(hashes));
    }

    /// Notes groups that a script tells of, by turns a place, a group, and how many chunks it has: strings that are full,
    /// and hashes of many chunks. A string that is not noted, since another process wrote before, is told of once more; a
    /// hash when it has twice as many.
    pub(super) fn note_groups(
        &self,
        slot: SlotId,
        record: &Record,
        mut told: impl Iterator<Item = Value>,
    ) {
        let mut groups: Vec<Noted> = Vec::new();
        while let (
            Some(Value::BulkString(place)),
            Some(Value::BulkString(group)),
            Some(Value::Int(chunks)),
        ) = (told.next(), told.next(), told.next())
        {
            let place = String::from_utf8_lossy(&place).into_owned();
            groups.push((place, group, usize::try_from(chunks).unwrap_or(usize::MAX)));
        }
        if !groups.is_empty() {
            if let Some(noted) = self.noted_groups().get_mut(&slot) {
                noted.retain(|place, _| record.has_packed(place));
            }
            self.note(slot, groups);
        }
    }

    fn note(&self, slot: SlotId, groups: impl IntoIterator<Item = Noted>) {
        let mut groups = groups.into_iter().peekable();
        if groups.peek().is_none() {
            return;
        }
        let mut all = self.noted_groups();
        let noted = all.entry(slot).or_default();
        for (place, group, chunks) in groups {
            noted.entry(place).or_default().insert(group, chunks);
        }
    }

    fn noted_groups(&self) -> MutexGuard<'_, HashMap<SlotId, NotedGroups>> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Each group with its place.
fn each<T>(of: ByGroup<T>) -> impl Iterator<Item = (String, Vec<u8>, T)> {
    let places = of.into_iter();
    places.flat_map(|(place, groups)| {
        let groups = groups.into_iter();
        groups.map(move |(group, of_group)| (place.clone(), group, of_group))
    })
}

/// One request for the record and strings, one for each hash, and one for the record again.
fn requests(keys: &SlotKeys, strings: &[Noted], hashes: &[Noted]) -> Vec<Request> {
    let key = |(place, group, _): &Noted| keys.group(place, group);
    let mut first = redis::cmd("MGET");
    first.arg(&keys.record);
    for string in strings {
        first.arg(key(string));
    }
    let hashes = hashes.iter().map(|hash| {
        let mut command = redis::cmd("HGETALL");
        command.arg(key(hash));
        command
    });
    let last = redis::cmd("GET").arg(&keys.record).take();
    let all = [first].into_iter().chain(hashes).chain([last]);
    all.map(|command| Request::command(keys, command)).collect()
}

/// The rows of chunks, packed, if these take less than half of the room together; nothing for what are no chunks.
#[expect(
    clippy::option_option,
    reason = "what is damaged, and what is to be left alone"
)]
fn put_together(chunks: &[(Vec<u8>, Vec<u8>)]) -> Option<Option<Vec<u8>>> {
    let chunks = chunks.iter().map(|(_, chunk)| chunk.as_slice());
    let before: usize = chunks.clone().map(<[u8]>::len).sum();
    let mut rows = Vec::new();
    for (row, count) in packed::summed(chunks)? {
        packed::put_row(&mut rows, row, count);
    }
    Some((rows.len() < before / 2).then_some(rows))
}
