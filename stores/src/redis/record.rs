//! The record of a slot: what stands at its one key that decides.

use std::collections::BTreeMap;
use std::fmt;

use schemas::seam::{Epoch, Slot};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::packed::VIEWS_MAX;
use crate::board_cache::Revision;
use crate::live::SlotId;
use crate::namespace::Namespace;
use crate::{Error, Result};

/// A program that knows format 1 only would leave cached boards as they are when it applies changes, one
/// of format 2 would count the changes of their register, one of format 3 would leave sums of states
/// as they are, one of format 4 would not see packed rows, and one of format 5 would not see chunks of them.
const FORMAT: u32 = 6;
/// The formats that are read.
const FORMATS: std::ops::RangeInclusive<u32> = 1..=FORMAT;

/// What a place holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PlaceKind {
    /// Deltas, each in a field of its own.
    Deltas,
    /// Chunks of packed deltas, which are deltas too.
    Chunks,
    States,
}

impl PlaceKind {
    /// The first letter of a place's name.
    pub(super) const fn letter(self) -> &'static str {
        match self {
            Self::Deltas => "d",
            Self::Chunks => CHUNKS,
            Self::States => "s",
        }
    }
}

/// The first letter of a place of chunks.
const CHUNKS: &str = "c";
/// The first letter of a place of deltas that views share: its groups are strings of packed rows.
const SHARED: char = 'p';
/// What stands between the name of such a place and the number of a view.
const NUMBER: char = '#';

/// The view's number, if this is the name of a place that views share.
pub(super) fn number_of(place: &str) -> Option<usize> {
    let (_, number) = place.strip_prefix(SHARED)?.split_once(NUMBER)?;
    number.parse().ok()
}

/// Whether this is the name of a place of chunks.
pub(super) fn has_chunks(place: &str) -> bool {
    place.starts_with(CHUNKS)
}

/// A place that the views of one family share, in one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SharedPlace {
    family: String,
    epoch: Epoch,
    /// How many views have a number there.
    views: usize,
    /// Whether a count came that can't be packed: from then on nothing is, so that sums are checked.
    #[serde(default)]
    is_closed: bool,
}

/// Where the rows of some views go that may be packed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sharing {
    pub(super) place: String,
    /// The numbers of the views, in their order.
    pub(super) numbers: Vec<usize>,
}

/// The slot of a partition and the places of its parts. Scripts read `live` and `garbage`; they must
/// not write it, since a number of theirs is a double.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    format: u32,
    /// Made anew with every change, so that no two records have the same bytes, and whoever has sent
    /// this one sees that it went through.
    mark: String,
    pub(super) slot: Slot,
    /// The number of the next place of this generation.
    next_place: u64,
    /// By view: the name and the epoch of each place that can be read. The name of one that views share has the
    /// view's number there after it.
    live: BTreeMap<String, Vec<(String, Epoch)>>,
    /// By name: the places that views share, each of one epoch, with which it goes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    shared: BTreeMap<String, SharedPlace>,
    /// The names of places, of outboxes and of hashes of sums that can't be read any more.
    pub(super) garbage: Vec<String>,
    /// The last change of the register of cached boards.
    #[serde(default)]
    pub(super) boards_revision: Revision,
    /// The name of the list of what waits to be told, once there was anything in this life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) outbox: Option<String>,
    /// By view: the name of the hash of the sums of its states, by key, once there was any in this life.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    sums: BTreeMap<String, String>,
}

impl Record {
    /// A record with this slot and no places.
    pub(super) fn new(slot: Slot) -> Self {
        Self {
            format: FORMAT,
            mark: String::new(),
            slot,
            next_place: 0,
            live: BTreeMap::new(),
            shared: BTreeMap::new(),
            garbage: Vec::new(),
            boards_revision: Revision::default(),
            outbox: None,
            sums: BTreeMap::new(),
        }
    }

    /// Reads a record; nothing for no bytes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn parse(bytes: &[u8]) -> std::result::Result<Option<Self>, String> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let mut record: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if !FORMATS.contains(&record.format) {
            return Err(format!(
                "it has format {}, and this version knows those up to {FORMAT}",
                record.format
            ));
        }
        record.format = FORMAT;
        Ok(Some(record))
    }

    /// Its bytes, with a mark of their own.
    pub(super) fn encode(&mut self) -> Result<Vec<u8>> {
        self.mark = Uuid::new_v4().simple().to_string();
        serde_json::to_vec(self).map_err(|error| Error::broken("writing a live slot", error))
    }

    /// What no other record has.
    pub(super) fn mark(&self) -> &str {
        &self.mark
    }

    /// The places of a view that can be read, with their epochs.
    pub(super) fn places(
        &self,
        view: &str,
        kind: PlaceKind,
    ) -> impl Iterator<Item = &(String, Epoch)> {
        let places = self.live.get(view).into_iter().flatten();
        places.filter(move |(name, _)| {
            let is_packed = name.starts_with(SHARED) || has_chunks(name);
            kind == PlaceKind::Deltas && is_packed || name.starts_with(kind.letter())
        })
    }

    /// Where some views of a family keep packed rows in the epoch that is being filled; made if it is not there. Nothing
    /// if these must not be packed: `is_long` says that counts are too large for that.
    pub(super) fn ensure_shared(
        &mut self,
        family: &str,
        views: &[String],
        is_long: bool,
    ) -> Option<Sharing> {
        let (epoch, generation) = (self.slot.epoch, self.slot.generation);
        let is_it = |place: &SharedPlace| place.epoch == epoch && place.family == family;
        let found = self.shared.iter().find(|(_, place)| is_it(place));
        let name = found.map_or_else(
            || format!("{SHARED}{generation}.{}", self.next_place),
            |(name, _)| name.clone(),
        );
        let place = self.shared.entry(name.clone()).or_insert_with(|| {
            self.next_place += 1;
            let family = family.to_owned();
            SharedPlace {
                family,
                epoch,
                views: 0,
                is_closed: false,
            }
        });
        place.is_closed |= is_long;
        let numbered = format!("{name}{NUMBER}");
        let mut numbers = Vec::with_capacity(views.len());
        for view in views {
            let places = self.live.entry(view.clone()).or_default();
            let known = places
                .iter()
                .find_map(|(at, _)| at.strip_prefix(&numbered)?.parse().ok());
            let number = known.unwrap_or_else(|| {
                places.push((format!("{numbered}{}", place.views), epoch));
                place.views += 1;
                place.views - 1
            });
            numbers.push(number);
        }
        let is_open = !place.is_closed && place.views <= VIEWS_MAX;
        is_open.then_some(Sharing {
            place: name,
            numbers,
        })
    }

    /// The family whose views share a place, if that is of the epoch that is being filled.
    pub(super) fn family_of(&self, place: &str) -> Option<&str> {
        let shared = self.shared.get(place)?;
        (shared.epoch == self.slot.epoch).then_some(&shared.family)
    }

    /// The views that share a place, by their numbers there.
    pub(super) fn sharers(&self, place: &str) -> BTreeMap<usize, &str> {
        let places = self.live.iter();
        let places = places.flat_map(|(view, of)| of.iter().map(move |(name, _)| (view, name)));
        let numbered = places.filter_map(|(view, name)| {
            let (of, _) = name.split_once(NUMBER)?;
            Some((number_of(name).filter(|_| of == place)?, view.as_str()))
        });
        numbered.collect()
    }

    /// The view that a place is of, if that is of the epoch that is being filled.
    pub(super) fn view_of(&self, place: &str) -> Option<&str> {
        let is_it = |(name, epoch): &(String, Epoch)| name == place && *epoch == self.slot.epoch;
        let mut views = self.live.iter();
        let found = views.find(|(_, places)| places.iter().any(is_it));
        found.map(|(view, _)| view.as_str())
    }

    /// Whether a count came in the epoch that is being filled that can't be packed.
    pub(super) fn has_closed(&self) -> bool {
        let mut shared = self.shared.values();
        shared.any(|place| place.is_closed && place.epoch == self.slot.epoch)
    }

    /// Whether a place is there that views share, or one of chunks.
    pub(super) fn has_packed(&self, place: &str) -> bool {
        let mut places = self.live.values().flatten();
        self.shared.contains_key(place) || places.any(|(name, _)| name == place)
    }

    /// The place of a view's parts in the epoch that is being filled; made if it is not there.
    pub(super) fn ensure_place(&mut self, view: &str, kind: PlaceKind) -> String {
        let epoch = self.slot.epoch;
        let mut places = self.places(view, kind);
        let is_it = |(name, of): &&(String, Epoch)| {
            *of == epoch && name.starts_with(kind.letter()) && number_of(name).is_none()
        };
        if let Some((name, _)) = places.find(is_it) {
            return name.clone();
        }
        drop(places);
        let name = format!(
            "{}{}.{}",
            kind.letter(),
            self.slot.generation,
            self.next_place
        );
        self.next_place += 1;
        let places = self.live.entry(view.to_owned()).or_default();
        places.push((name.clone(), epoch));
        name
    }

    /// The register of cached boards changes.
    pub(super) fn change_boards(&mut self) -> Revision {
        self.boards_revision = Revision::random();
        self.boards_revision
    }

    /// The id of one more cached board, and the register's change.
    pub(super) fn next_board(&mut self) -> (String, Revision) {
        let own = Uuid::new_v4().simple();
        let id = format!("{}.{own}", self.slot.generation);
        (id, self.change_boards())
    }

    /// Whether an id is of a board of the present generation.
    pub(super) fn has_board(&self, id: &str) -> bool {
        let generation = id.split_once('.').map(|(generation, _)| generation);
        generation.is_some_and(|text| text.parse() == Ok(self.slot.generation))
    }

    /// The outbox of this life; named if it is not yet.
    pub(super) fn ensure_outbox(&mut self) -> String {
        let name = format!("o{}", self.slot.generation);
        self.outbox.get_or_insert(name).clone()
    }

    /// The hash of the sums of a view's states, if there were any in this life.
    pub(super) fn sums(&self, view: &str) -> Option<&str> {
        self.sums.get(view).map(String::as_str)
    }

    /// The same; named if it is not yet.
    pub(super) fn ensure_sums(&mut self, view: &str) -> String {
        if let Some(name) = self.sums.get(view) {
            return name.clone();
        }
        let name = format!("m{}.{}", self.slot.generation, self.next_place);
        self.next_place += 1;
        self.sums.insert(view.to_owned(), name.clone());
        name
    }

    /// The record with another state of the slot: places that it does not keep become garbage, and the sums
    /// of views that have none left, which may be retired.
    pub(super) fn with_slot(&self, slot: Slot) -> Self {
        let mut next = self.clone();
        let (same, oldest) = (slot.generation == self.slot.generation, slot.oldest);
        for places in next.live.values_mut() {
            let gone = places.extract_if(.., |(_, epoch)| !same || *epoch < oldest);
            let gone = gone.filter(|(name, _)| number_of(name).is_none());
            next.garbage.extend(gone.map(|(name, _)| name));
        }
        let gone = next
            .shared
            .extract_if(.., |_, place| !same || place.epoch < oldest);
        next.garbage.extend(gone.map(|(name, _)| name));
        next.live.retain(|_, places| !places.is_empty());
        if !same {
            next.garbage.extend(next.outbox.take());
        }
        let live = &next.live;
        let gone = next.sums.extract_if(.., |view, _| !live.contains_key(view));
        next.garbage.extend(gone.map(|(_, name)| name));
        next.slot = slot;
        next
    }
}

/// Where the keys of a slot begin.
#[derive(Debug, Clone)]
pub(super) struct SlotKeys {
    /// `{NAMESPACE:SOURCE:PARTITION}:`.
    pub(super) prefix: String,
    /// The key of the record.
    pub(super) record: String,
    /// The hash slot that a cluster keeps them in.
    pub(super) hash_slot: u16,
}

impl SlotKeys {
    pub(super) fn new(namespace: &Namespace, slot: SlotId) -> Self {
        Self::of_tag(&namespace.key(&format!("{}:{}", slot.source.name(), slot.partition)))
    }

    /// The key of a group in a place.
    pub(super) fn group(&self, place: &str, group: &[u8]) -> Vec<u8> {
        [self.prefix.as_bytes(), place.as_bytes(), b":", group].concat()
    }

    /// Keys with a hash tag.
    pub(super) fn of_tag(tag: &str) -> Self {
        let prefix = format!("{{{tag}}}:");
        Self {
            record: format!("{prefix}slot"),
            hash_slot: hash_slot(tag.as_bytes()),
            prefix,
        }
    }
}

impl fmt::Display for SlotKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.record)
    }
}

/// How many hash slots a cluster has.
pub(super) const HASH_SLOTS: u16 = 16_384;

/// The hash slot of a hash tag: its CRC-16 (XMODEM).
fn hash_slot(tag: &[u8]) -> u16 {
    let mut crc = 0_u16;
    for byte in tag {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            let carry = crc & 0x8000 != 0;
            crc <<= 1;
            if carry {
                crc ^= 0x1021;
            }
        }
    }
    crc % HASH_SLOTS
}

#[cfg(test)]
mod tests {
    use schemas::seam::{Cut, NewLife};

    use super::*;

    fn slot(generation: u64) -> Slot {
        let life = NewLife {
            newest: 0,
            cut: Cut::start(),
            log_end: 0,
            hint: generation,
        };
        Slot::new_generation(generation, &life)
    }

    #[test]
    fn hash_slots_are_those_of_redis() {
        // From the specification of Redis Cluster.
        assert_eq!(hash_slot(b"123456789"), 0x31C3);
    }

    #[test]
    fn what_is_let_go_becomes_garbage() {
        let mut record = Record::new(slot(7));
        let first = record.ensure_place("a@1", PlaceKind::Deltas);
        assert_eq!(first, record.ensure_place("a@1", PlaceKind::Deltas));
        let mut later = record.slot.clone();
        later.roll(1).expect("an end");
        let mut record = record.with_slot(later.clone());
        let second = record.ensure_place("a@1", PlaceKind::Deltas);
        assert_ne!(first, second);
        later.oldest = 2;
        let record = record.with_slot(later);
        assert_eq!(record.garbage.join(" "), first);
        let mut record = record;
        assert_eq!(record.ensure_outbox(), "o7");
        let sums = record.ensure_sums("a@1");
        assert_eq!(record.ensure_sums("a@1"), sums);
        assert_eq!(record.sums("b@1"), None);
        let mut other = record.clone();
        let of_none = other.ensure_sums("b@1");
        let other = other.with_slot(record.slot.clone());
        assert_eq!(other.garbage.last(), Some(&of_none));
        assert_eq!(other.sums("a@1"), Some(sums.as_str()));
        assert_eq!(other.sums("b@1"), None);
        let record = record.with_slot(slot(8));
        assert_eq!(record.garbage, [first, second, "o7".to_owned(), sums]);
        assert_eq!(record.outbox, None);
        assert_eq!(record.sums("a@1"), None);
        assert_eq!(record.places("a@1", PlaceKind::Deltas).count(), 0);
    }

    #[test]
    fn views_of_a_family_share_a_place() {
        let mut record = Record::new(slot(7));
        let [a, b] = ["a@1".to_owned(), "b@1".to_owned()];
        let both = [b.clone(), a.clone()];
        let mut sharing = |views: &[String], is_long| record.ensure_shared("f", views, is_long);
        let first = sharing(&both, false).expect("a place");
        assert_eq!(first.numbers, [0, 1]);
        let again = sharing(std::slice::from_ref(&a), false).expect("a place");
        assert_eq!(
            (&again.place, again.numbers.as_slice()),
            (&first.place, &[1][..])
        );
        assert_eq!(sharing(&both, true), None);
        assert_eq!(sharing(&both, false), None, "it stays closed");
        let other = record.ensure_shared("g", &both, false).expect("a place");
        assert_ne!(other.place, first.place);
        let own = record.ensure_place(&a, PlaceKind::Deltas);
        let places = record.places(&a, PlaceKind::Deltas);
        let numbers: Vec<_> = places.map(|(name, _)| number_of(name)).collect();
        assert_eq!(numbers, [Some(1), Some(1), None]);
        assert_eq!(record.places(&a, PlaceKind::States).count(), 0);
        let many: Vec<String> = (0..VIEWS_MAX).map(|n| format!("{n}@1")).collect();
        assert_eq!(record.ensure_shared("g", &many, false), None);
        let bytes = record.encode().expect("JSON");
        let read = Record::parse(&bytes).expect("a record").expect("a record");
        assert_eq!(read, record);
        let mut later = record.slot.clone();
        later.roll(1).expect("an end");
        let mut record = record.with_slot(later.clone());
        let next = record.ensure_shared("f", &both, false).expect("a place");
        assert_ne!(next.place, first.place);
        later.oldest = 2;
        let record = record.with_slot(later);
        assert_eq!(record.garbage, [own, first.place.clone(), other.place]);
        assert!(record.has_packed(&next.place) && !record.has_packed(&first.place));
        assert_eq!(record.family_of(&next.place), Some("f"));
        let sharers = record.sharers(&next.place).into_iter();
        assert!(sharers.eq([(0, b.as_str()), (1, a.as_str())]));
        let mut record = record;
        let chunks = record.ensure_place(&a, PlaceKind::Chunks);
        assert!(has_chunks(&chunks) && record.has_packed(&chunks));
        assert_ne!(record.ensure_place(&a, PlaceKind::Deltas), chunks);
        assert_eq!(record.ensure_place(&a, PlaceKind::Chunks), chunks);
        assert_eq!(record.view_of(&chunks), Some(a.as_str()));
        assert_eq!(record.places(&a, PlaceKind::Deltas).count(), 3);
    }

    #[test]
    fn no_two_records_are_the_same() {
        let mut record = Record::new(slot(u64::MAX));
        let (one, other) = (
            record.encode().expect("JSON"),
            record.encode().expect("JSON"),
        );
        assert_ne!(one, other);
        let read = Record::parse(&other).expect("a record").expect("a record");
        assert_eq!(read, record);
        assert_eq!(Record::parse(b""), Ok(None));
        let board = record.next_board();
        let read = Record::parse(&record.encode().expect("JSON"));
        let mut read = read.expect("a record").expect("a record");
        assert_eq!(read.boards_revision, board.1);
        assert!(read.has_board(&board.0));
        // Two that go on from the same record never name the same.
        assert_ne!(read.next_board(), record.next_board());
        assert_ne!(read.boards_revision, record.boards_revision);
        assert!(Record::parse(b"{}").is_err());
    }
}
