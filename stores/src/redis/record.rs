//! The record of a partition state: the value of its `:slot` key, and its format.

use std::collections::BTreeMap;
use std::fmt;

use schemas::seam::{Epoch, PartitionState};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::packed::VIEWS_MAX;
use crate::board_cache::Revision;
use crate::live::PartitionId;
use crate::namespace::Namespace;
use crate::{Error, Result};

/// The format of the records that are written.
///
/// An older program would silently damage newer data. With format 1 it would not change cached
/// boards when it applies changes. With format 2 it would number the changes of their register.
/// With format 3 it would not change live counts. With formats 4 and 5 it would not read packed
/// rows and chunks.
const FORMAT: u32 = 6;
/// Formats that can be read.
const FORMATS: std::ops::RangeInclusive<u32> = 1..=FORMAT;

/// The value of a removed live entry.
pub(super) const REMOVED_ENTRY: &[u8] = b"0";
/// The first byte of the value of a live entry.
pub(super) const ENTRY_PREFIX: u8 = b'1';

/// The contents of a container: the deltas or entries of one generation, epoch and view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContainerKind {
    /// Deltas, one field per row.
    Deltas,
    /// Chunks of packed deltas.
    Chunks,
    /// Live entries, one field per member.
    Entries,
}

impl ContainerKind {
    /// The first letter of the container's name.
    pub(super) const fn letter(self) -> &'static str {
        match self {
            Self::Deltas => "d",
            Self::Chunks => CHUNKS_LETTER,
            Self::Entries => "s",
        }
    }
}

/// The first letter of the name of a container with chunks.
const CHUNKS_LETTER: &str = "c";
/// The first letter of the name of a shared container, whose groups are strings of packed rows.
const SHARED_LETTER: char = 'p';
/// Separates the name of a shared container from the number of a view.
const VIEW_NUMBER_SEPARATOR: char = '#';

/// Returns the view's number if this is the name of a shared container.
pub(super) fn parse_view_number(container: &str) -> Option<usize> {
    let (_, number) = container
        .strip_prefix(SHARED_LETTER)?
        .split_once(VIEW_NUMBER_SEPARATOR)?;
    number.parse().ok()
}

/// Returns whether the name is that of a container with chunks.
pub(super) fn has_chunks(container: &str) -> bool {
    container.starts_with(CHUNKS_LETTER)
}

/// A container that the views of one family share in one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SharedContainer {
    family: String,
    epoch: Epoch,
    /// The number of views that have a number in it.
    views: usize,
    /// True if an increment was too large to be packed. From then on no more rows are packed, so
    /// that sums are checked.
    #[serde(default)]
    is_closed: bool,
}

/// The shared container for packed rows of some views.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PackedContainer {
    pub(super) container: String,
    /// The views' numbers, in the order of the views.
    pub(super) numbers: Vec<usize>,
}

/// A partition state and the list of its containers. Scripts read `live` and `garbage`. They must
/// not write the record, because Lua's numbers are doubles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    format: u32,
    /// Changes with every write, so no two records have the same bytes, and the writer recognizes
    /// its record.
    mark: String,
    #[serde(rename = "slot")]
    pub(super) state: PartitionState,
    /// The number of the next container of this generation.
    #[serde(rename = "next_place")]
    next_container: u64,
    /// The name and epoch of each readable container by view. For a shared container, the view's
    /// number follows the name.
    live: BTreeMap<String, Vec<(String, Epoch)>>,
    /// Shared containers by name. Each belongs to one epoch and is pruned with it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    shared: BTreeMap<String, SharedContainer>,
    /// Names of containers, outboxes and hashes of live counts that can no longer be read.
    pub(super) garbage: Vec<String>,
    /// Revision of the register of cached boards.
    #[serde(default)]
    pub(super) boards_revision: Revision,
    /// The name of the outbox, once it was used in this generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) outbox: Option<String>,
    /// The name of the hash of live counts by view, once it was used in this generation.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[serde(rename = "sums")]
    live_count_hashes: BTreeMap<String, String>,
}

impl Record {
    /// Creates a record without containers.
    pub(super) fn new(state: PartitionState) -> Self {
        Self {
            format: FORMAT,
            mark: String::new(),
            state,
            next_container: 0,
            live: BTreeMap::new(),
            shared: BTreeMap::new(),
            garbage: Vec::new(),
            boards_revision: Revision::default(),
            outbox: None,
            live_count_hashes: BTreeMap::new(),
        }
    }

    /// Parses a record. Returns `None` for empty bytes.
    ///
    /// # Errors
    /// A description of the damage.
    pub(super) fn parse(bytes: &[u8]) -> std::result::Result<Option<Self>, String> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let mut record: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if !FORMATS.contains(&record.format) {
            return Err(format!(
                "its format is {}, and this version reads formats up to {FORMAT}",
                record.format
            ));
        }
        record.format = FORMAT;
        Ok(Some(record))
    }

    /// Encodes the record with a new mark.
    pub(super) fn encode(&mut self) -> Result<Vec<u8>> {
        self.mark = Uuid::new_v4().simple().to_string();
        serde_json::to_vec(self).map_err(|error| Error::broken("encoding a partition state", error))
    }

    /// The mark that no other record has.
    pub(super) fn mark(&self) -> &str {
        &self.mark
    }

    /// The readable containers of a view, with their epochs.
    pub(super) fn containers(
        &self,
        view: &str,
        kind: ContainerKind,
    ) -> impl Iterator<Item = &(String, Epoch)> {
        let containers = self.live.get(view).into_iter().flatten();
        containers.filter(move |(name, _)| {
            let is_packed = name.starts_with(SHARED_LETTER) || has_chunks(name);
            kind == ContainerKind::Deltas && is_packed || name.starts_with(kind.letter())
        })
    }

    /// Returns the shared container of a family for the current epoch, and adds it if it does not
    /// exist. Returns `None` if the rows must not be packed; `is_long` says that an increment is
    /// too large.
    pub(super) fn ensure_shared_container(
        &mut self,
        family: &str,
        views: &[String],
        is_long: bool,
    ) -> Option<PackedContainer> {
        let (epoch, generation) = (self.state.epoch, self.state.generation);
        let is_match =
            |container: &SharedContainer| container.epoch == epoch && container.family == family;
        let existing = self
            .shared
            .iter()
            .find(|(_, container)| is_match(container));
        let container_name = existing.map_or_else(
            || format!("{SHARED_LETTER}{generation}.{}", self.next_container),
            |(container_name, _)| container_name.clone(),
        );
        let container = self
            .shared
            .entry(container_name.clone())
            .or_insert_with(|| {
                self.next_container += 1;
                let family = family.to_owned();
                SharedContainer {
                    family,
                    epoch,
                    views: 0,
                    is_closed: false,
                }
            });
        container.is_closed |= is_long;
        let numbered = format!("{container_name}{VIEW_NUMBER_SEPARATOR}");
        let mut numbers = Vec::with_capacity(views.len());
        for view in views {
            let containers = self.live.entry(view.clone()).or_default();
            let existing_number = containers
                .iter()
                .find_map(|(name, _)| name.strip_prefix(&numbered)?.parse().ok());
            let number = existing_number.unwrap_or_else(|| {
                containers.push((format!("{numbered}{}", container.views), epoch));
                container.views += 1;
                container.views - 1
            });
            numbers.push(number);
        }
        let is_open = !container.is_closed && container.views <= VIEWS_MAX;
        is_open.then_some(PackedContainer {
            container: container_name,
            numbers,
        })
    }

    /// The family of a shared container, if it belongs to the current epoch.
    pub(super) fn current_family(&self, container: &str) -> Option<&str> {
        let shared = self.shared.get(container)?;
        (shared.epoch == self.state.epoch).then_some(&shared.family)
    }

    /// The views in a shared container, by number.
    pub(super) fn views_in_container(&self, container: &str) -> BTreeMap<usize, &str> {
        let containers = self.live.iter();
        let containers = containers
            .flat_map(|(view, containers)| containers.iter().map(move |(name, _)| (view, name)));
        let numbered = containers.filter_map(|(view, name)| {
            let (container_name, _) = name.split_once(VIEW_NUMBER_SEPARATOR)?;
            Some((
                parse_view_number(name).filter(|_| container_name == container)?,
                view.as_str(),
            ))
        });
        numbered.collect()
    }

    /// The view of a container, if it belongs to the current epoch.
    pub(super) fn current_view(&self, container: &str) -> Option<&str> {
        let is_match =
            |(name, epoch): &(String, Epoch)| name == container && *epoch == self.state.epoch;
        let mut views = self.live.iter();
        let container_view = views.find(|(_, containers)| containers.iter().any(is_match));
        container_view.map(|(view, _)| view.as_str())
    }

    /// True if the current epoch has an increment that is too large to be packed.
    pub(super) fn has_unpackable(&self) -> bool {
        let mut shared = self.shared.values();
        shared.any(|container| container.is_closed && container.epoch == self.state.epoch)
    }

    /// True if the record lists a shared container, or one with chunks, under this name.
    pub(super) fn has_container(&self, container: &str) -> bool {
        let mut containers = self.live.values().flatten();
        self.shared.contains_key(container) || containers.any(|(name, _)| name == container)
    }

    /// Returns the container of a view for the current epoch, and adds it if it does not exist.
    pub(super) fn ensure_container(&mut self, view: &str, kind: ContainerKind) -> String {
        let epoch = self.state.epoch;
        let mut containers = self.containers(view, kind);
        let is_match = |(name, container_epoch): &&(String, Epoch)| {
            *container_epoch == epoch
                && name.starts_with(kind.letter())
                && parse_view_number(name).is_none()
        };
        if let Some((name, _)) = containers.find(is_match) {
            return name.clone();
        }
        drop(containers);
        let name = format!(
            "{}{}.{}",
            kind.letter(),
            self.state.generation,
            self.next_container
        );
        self.next_container += 1;
        let containers = self.live.entry(view.to_owned()).or_default();
        containers.push((name.clone(), epoch));
        name
    }

    /// Changes the revision of the register of cached boards.
    pub(super) fn renew_boards_revision(&mut self) -> Revision {
        self.boards_revision = Revision::random();
        self.boards_revision
    }

    /// Adds a cached board. Returns its id and the new revision of the register.
    pub(super) fn add_board(&mut self) -> (String, Revision) {
        let unique = Uuid::new_v4().simple();
        let id = format!("{}.{unique}", self.state.generation);
        (id, self.renew_boards_revision())
    }

    /// True if an id belongs to a board of the current generation.
    pub(super) fn has_board(&self, id: &str) -> bool {
        let generation = id.split_once('.').map(|(generation, _)| generation);
        generation.is_some_and(|text| text.parse() == Ok(self.state.generation))
    }

    /// Returns the outbox of this generation, and adds it if it does not exist.
    pub(super) fn ensure_outbox(&mut self) -> String {
        let name = format!("o{}", self.state.generation);
        self.outbox.get_or_insert(name).clone()
    }

    /// The hash of live counts of a view, if it exists in this generation.
    pub(super) fn live_count_hash(&self, view: &str) -> Option<&str> {
        self.live_count_hashes.get(view).map(String::as_str)
    }

    /// Returns the hash of live counts of a view, and adds it if it does not exist.
    pub(super) fn ensure_live_counts(&mut self, view: &str) -> String {
        if let Some(name) = self.live_count_hashes.get(view) {
            return name.clone();
        }
        let name = format!("m{}.{}", self.state.generation, self.next_container);
        self.next_container += 1;
        self.live_count_hashes.insert(view.to_owned(), name.clone());
        name
    }

    /// Returns the record with another partition state. Containers that it does not retain become
    /// garbage, and so do the live counts of views without containers, which may be retired.
    pub(super) fn with_state(&self, state: PartitionState) -> Self {
        let mut next = self.clone();
        let (is_same_generation, oldest) =
            (state.generation == self.state.generation, state.oldest);
        for containers in next.live.values_mut() {
            let removed =
                containers.extract_if(.., |(_, epoch)| !is_same_generation || *epoch < oldest);
            let named = removed.filter(|(name, _)| parse_view_number(name).is_none());
            next.garbage.extend(named.map(|(name, _)| name));
        }
        let removed = next.shared.extract_if(.., |_, container| {
            !is_same_generation || container.epoch < oldest
        });
        next.garbage.extend(removed.map(|(name, _)| name));
        next.live.retain(|_, containers| !containers.is_empty());
        if !is_same_generation {
            next.garbage.extend(next.outbox.take());
        }
        let live = &next.live;
        let removed = next
            .live_count_hashes
            .extract_if(.., |view, _| !live.contains_key(view));
        next.garbage.extend(removed.map(|(_, name)| name));
        next.state = state;
        next
    }
}

/// Keys of a partition state.
#[derive(Debug, Clone)]
pub(super) struct PartitionKeys {
    /// `{NAMESPACE:SOURCE:PARTITION}:`.
    pub(super) prefix: String,
    /// The key of the record.
    pub(super) record: String,
    /// The hash slot of all keys in a cluster.
    pub(super) hash_slot: u16,
}

impl PartitionKeys {
    pub(super) fn new(namespace: &Namespace, partition_id: PartitionId) -> Self {
        Self::from_tag(&namespace.key(&format!(
            "{}:{}",
            partition_id.source.name(),
            partition_id.partition
        )))
    }

    /// The key of a group in a container.
    pub(super) fn group_key(&self, container: &str, group: &[u8]) -> Vec<u8> {
        [self.prefix.as_bytes(), container.as_bytes(), b":", group].concat()
    }

    /// Builds the keys from a hash tag.
    pub(super) fn from_tag(tag: &str) -> Self {
        let prefix = format!("{{{tag}}}:");
        Self {
            record: format!("{prefix}slot"),
            hash_slot: hash_slot(tag.as_bytes()),
            prefix,
        }
    }
}

impl fmt::Display for PartitionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.record)
    }
}

/// Number of hash slots in a cluster.
pub(super) const HASH_SLOTS: u16 = 16_384;

/// Hash slot of a hash tag: its CRC-16 (XMODEM).
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
    use schemas::seam::{Cut, GenerationStart};

    use super::*;

    fn new_state(generation: u64) -> PartitionState {
        let start = GenerationStart {
            newest: 0,
            cut: Cut::start(),
            log_end: 0,
            generation_min: generation,
        };
        PartitionState::new_generation(generation, &start)
    }

    #[test]
    fn hash_slots_match_the_redis_specification() {
        // From the specification of Redis Cluster.
        assert_eq!(hash_slot(b"123456789"), 0x31C3);
    }

    #[test]
    fn pruned_containers_become_garbage() {
        let mut record = Record::new(new_state(7));
        let first = record.ensure_container("a@1", ContainerKind::Deltas);
        assert_eq!(first, record.ensure_container("a@1", ContainerKind::Deltas));
        let mut later = record.state.clone();
        later.end_epoch(1).expect("an end");
        let mut record = record.with_state(later.clone());
        let second = record.ensure_container("a@1", ContainerKind::Deltas);
        assert_ne!(first, second);
        later.oldest = 2;
        let record = record.with_state(later);
        assert_eq!(record.garbage.join(" "), first);
        let mut record = record;
        assert_eq!(record.ensure_outbox(), "o7");
        let sums = record.ensure_live_counts("a@1");
        assert_eq!(record.ensure_live_counts("a@1"), sums);
        assert_eq!(record.live_count_hash("b@1"), None);
        let mut other = record.clone();
        let unused = other.ensure_live_counts("b@1");
        let other = other.with_state(record.state.clone());
        assert_eq!(other.garbage.last(), Some(&unused));
        assert_eq!(other.live_count_hash("a@1"), Some(sums.as_str()));
        assert_eq!(other.live_count_hash("b@1"), None);
        let record = record.with_state(new_state(8));
        assert_eq!(record.garbage, [first, second, "o7".to_owned(), sums]);
        assert_eq!(record.outbox, None);
        assert_eq!(record.live_count_hash("a@1"), None);
        assert_eq!(record.containers("a@1", ContainerKind::Deltas).count(), 0);
    }

    #[test]
    fn views_of_a_family_share_a_container() {
        let mut record = Record::new(new_state(7));
        let [a, b] = ["a@1".to_owned(), "b@1".to_owned()];
        let views = [b.clone(), a.clone()];
        let mut sharing = |numbered_views: &[String], is_long| {
            record.ensure_shared_container("f", numbered_views, is_long)
        };
        let first = sharing(&views, false).expect("a container");
        assert_eq!(first.numbers, [0, 1]);
        let again = sharing(std::slice::from_ref(&a), false).expect("a container");
        assert_eq!(
            (&again.container, again.numbers.as_slice()),
            (&first.container, &[1][..])
        );
        assert_eq!(sharing(&views, true), None);
        assert_eq!(sharing(&views, false), None, "it stays closed");
        let other = record
            .ensure_shared_container("g", &views, false)
            .expect("a container");
        assert_ne!(other.container, first.container);
        let unshared = record.ensure_container(&a, ContainerKind::Deltas);
        let containers = record.containers(&a, ContainerKind::Deltas);
        let numbers: Vec<_> = containers
            .map(|(name, _)| parse_view_number(name))
            .collect();
        assert_eq!(numbers, [Some(1), Some(1), None]);
        assert_eq!(record.containers(&a, ContainerKind::Entries).count(), 0);
        let too_many: Vec<String> = (0..VIEWS_MAX).map(|n| format!("{n}@1")).collect();
        assert_eq!(record.ensure_shared_container("g", &too_many, false), None);
        let bytes = record.encode().expect("JSON");
        let read = Record::parse(&bytes).expect("a record").expect("a record");
        assert_eq!(read, record);
        let mut later = record.state.clone();
        later.end_epoch(1).expect("an end");
        let mut record = record.with_state(later.clone());
        let next = record
            .ensure_shared_container("f", &views, false)
            .expect("a container");
        assert_ne!(next.container, first.container);
        later.oldest = 2;
        let record = record.with_state(later);
        assert_eq!(
            record.garbage,
            [unshared, first.container.clone(), other.container]
        );
        assert!(record.has_container(&next.container) && !record.has_container(&first.container));
        assert_eq!(record.current_family(&next.container), Some("f"));
        let numbered_views = record.views_in_container(&next.container).into_iter();
        assert!(numbered_views.eq([(0, b.as_str()), (1, a.as_str())]));
        let mut record = record;
        let chunks = record.ensure_container(&a, ContainerKind::Chunks);
        assert!(has_chunks(&chunks) && record.has_container(&chunks));
        assert_ne!(record.ensure_container(&a, ContainerKind::Deltas), chunks);
        assert_eq!(record.ensure_container(&a, ContainerKind::Chunks), chunks);
        assert_eq!(record.current_view(&chunks), Some(a.as_str()));
        assert_eq!(record.containers(&a, ContainerKind::Deltas).count(), 3);
    }

    #[test]
    fn no_two_records_are_equal() {
        let mut record = Record::new(new_state(u64::MAX));
        let (first, second) = (
            record.encode().expect("JSON"),
            record.encode().expect("JSON"),
        );
        assert_ne!(first, second);
        let read = Record::parse(&second).expect("a record").expect("a record");
        assert_eq!(read, record);
        assert_eq!(Record::parse(b""), Ok(None));
        let board = record.add_board();
        let read = Record::parse(&record.encode().expect("JSON"));
        let mut read = read.expect("a record").expect("a record");
        assert_eq!(read.boards_revision, board.1);
        assert!(read.has_board(&board.0));
        // Two successors of the same record never create the same names.
        assert_ne!(read.add_board(), record.add_board());
        assert_ne!(read.boards_revision, record.boards_revision);
        assert!(Record::parse(b"{}").is_err());
    }
}
