//! The suppressed people, and the search for their ids in input.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use hmac::{Hmac, KeyInit, Mac};
use schemas::avro::is_framed;
use schemas::dead_letter::DeadLetter;
use schemas::source::Source;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use sha2::Sha256;

use super::{Erasure, Key, Person, PersonHash, PersonKind, numbers};

/// The number of cached results: the same ids are repeated often, and a hash is expensive.
const CACHED_PEOPLE_MAX: usize = 1 << 16;
/// Larger binary data is redacted without a search, which would take too long.
const BINARY_BYTES_MAX: usize = 64 << 10;

/// Fields that name no person, unless the source uses them for one.
const OTHER_FIELDS: [&str; 27] = [
    "id",
    "event_id",
    "track_id",
    "owner_id",
    "country",
    "referrer",
    "app_id",
    "kind",
    "at",
    "amount",
    "segment_id",
    "activity_id",
    "elapsed_time",
    "started_at",
    "tz",
    "visibility",
    "deleted",
    "version",
    "name",
    "gender",
    "birth_year",
    "weight_kg",
    "disqualified",
    "club_id",
    "application_id",
    "created_at",
    "revoked_at",
];

/// The reason of a redacted dead letter.
const REDACTED_REASON: &str =
    "redacted: it contained, or may have contained, an erased person; its bytes are deleted";

/// The suppressed people at one moment. The serialized form contains the list and its key, so it is
/// only for processes of the same installation.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct SuppressedPeople {
    key: Key,
    newest: u64,
    newest_listener: u64,
    newest_athlete: u64,
    people: HashSet<(PersonKind, PersonHash)>,
    #[serde(skip)]
    cache: Mutex<std::collections::HashMap<Person, bool>>,
}

impl SuppressedPeople {
    pub(super) fn new(key: Key, erasures: &[Erasure]) -> Self {
        let newest = |mut condition: Box<dyn FnMut(&&Erasure) -> bool>| {
            let numbers = erasures.iter().filter(|erasure| condition(erasure));
            numbers.map(|erasure| erasure.number).max().unwrap_or(0)
        };
        Self {
            key,
            newest: newest(Box::new(|_| true)),
            newest_listener: newest(Box::new(|erasure| erasure.kind == PersonKind::Listener)),
            newest_athlete: newest(Box::new(|erasure| erasure.kind == PersonKind::Athlete)),
            people: erasures.iter().map(|e| (e.kind, e.person)).collect(),
            cache: Mutex::default(),
        }
    }

    /// The number of the newest erasure; 0 if there is none.
    #[must_use]
    pub const fn newest(&self) -> u64 {
        self.newest
    }

    /// The number of the newest erasure of a listener; 0 if there is none. Results of plays from
    /// before it may contain a suppressed person.
    #[must_use]
    pub const fn newest_listener(&self) -> u64 {
        self.newest_listener
    }

    /// The number of the newest erasure of an athlete; 0 if there is none.
    #[must_use]
    pub const fn newest_athlete(&self) -> u64 {
        self.newest_athlete
    }

    /// Returns whether a person is suppressed.
    #[must_use]
    pub fn contains(&self, person: Person) -> bool {
        if self.people.is_empty() {
            return false;
        }
        let cache = || self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(is_suppressed) = cache().get(&person) {
            return *is_suppressed;
        }
        let is_suppressed = self
            .people
            .contains(&(person.kind, hash_person(&self.key, person)));
        let mut cache = cache();
        if cache.len() >= CACHED_PEOPLE_MAX {
            cache.clear();
        }
        cache.insert(person, is_suppressed);
        is_suppressed
    }

    /// Returns whether a listener is suppressed.
    #[must_use]
    pub fn contains_listener(&self, id: i64) -> bool {
        let kind = PersonKind::Listener;
        self.contains(Person { kind, id })
    }

    /// Returns whether an athlete is suppressed.
    #[must_use]
    pub fn contains_athlete(&self, id: i64) -> bool {
        let kind = PersonKind::Athlete;
        self.newest_athlete > 0 && self.contains(Person { kind, id })
    }

    /// Redacts a dead letter of a source if it contains, or may contain, a suppressed person, and
    /// returns whether it did. The origin stays, because it marks the record that does not count
    /// any more. `source` is the source of the topic; the dead letter itself may name any source.
    pub fn redact(&self, source: Source, letter: &mut DeadLetter) -> bool {
        let is_erased = |kind| match kind {
            PersonKind::Listener => self.newest_listener > 0,
            PersonKind::Athlete => self.newest_athlete > 0,
        };
        // The cache is not used: the numbers in dead letters would evict those of valid events.
        let is_suppressed = |person: Person| {
            self.people
                .contains(&(person.kind, hash_person(&self.key, person)))
        };
        let raw = &letter.raw;
        let is_mentioned = list_person_fields(source).is_some_and(|(kind, _)| is_erased(kind))
            && ((raw.len() > BINARY_BYTES_MAX && !numbers::is_text(raw))
                || may_mention(source, raw, is_suppressed));
        if is_mentioned {
            letter.raw.clear();
            letter.reason = REDACTED_REASON.to_owned();
        }
        is_mentioned
    }
}

/// Returns whether the bytes that a source received mention a person, or may. In a JSON object, the
/// search covers the person's fields, unknown fields, nested objects and lists, and the names of
/// fields. In other data, any number may be an id, in each form that [`numbers`] finds. So there
/// are false positives, but no false negatives.
pub(crate) fn may_mention(source: Source, raw: &[u8], matches: impl Fn(Person) -> bool) -> bool {
    let Some((kind, fields)) = list_person_fields(source) else {
        return false;
    };
    let matches = |id: i64| matches(Person { kind, id });
    if is_framed(raw) || !numbers::is_text(raw) {
        return numbers::any_in_binary(raw, &matches);
    }
    let Ok(JsonFields(object)) = serde_json::from_slice(raw) else {
        return numbers::any_in_text(raw, &matches);
    };
    object.iter().any(|(name, value)| {
        let (name, value) = (name.as_str(), value.get());
        let is_person = fields.contains(&name);
        let is_other = OTHER_FIELDS.contains(&name);
        if is_other && !is_person && !value.starts_with(['{', '[']) {
            return false;
        }
        let name_mentions =
            !is_person && !is_other && numbers::any_in_text(name.as_bytes(), &matches);
        name_mentions
            || match value.parse() {
                Ok(id) => matches(id),
                Err(_) => numbers::any_in_text(value.as_bytes(), &matches),
            }
    })
}

/// The fields of a JSON object in their written form, including repeated names.
struct JsonFields<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for JsonFields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = JsonFields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonFields<'de>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(JsonFields(pairs))
            }
        }

        deserializer.deserialize_map(Object)
    }
}

/// Returns whether the bytes that a source received mention a person of a kind, or may: the same
/// search as [`SuppressedPeople::redact`].
#[must_use]
pub fn may_mention_kind(
    source: Source,
    raw: &[u8],
    kind: PersonKind,
    is_searched: impl Fn(i64) -> bool,
) -> bool {
    may_mention(source, raw, |person| {
        person.kind == kind && is_searched(person.id)
    })
}

/// The fields in which lines of a source name a person.
fn list_person_fields(source: Source) -> Option<(PersonKind, &'static [&'static str])> {
    Some(match source {
        Source::Plays => (PersonKind::Listener, &["listener_id"]),
        Source::Efforts | Source::Clubs | Source::Authorizations => {
            (PersonKind::Athlete, &["athlete_id"])
        }
        Source::Athletes => (PersonKind::Athlete, &["id"]),
        Source::Follows => (PersonKind::Athlete, &["follower_id", "followed_id"]),
        Source::Applications => return None,
    })
}

/// The hash of a person in the list.
pub(super) fn hash_person(key: &Key, person: Person) -> PersonHash {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        // A key may have any length.
        return PersonHash::default();
    };
    mac.update(person.kind.name().as_bytes());
    mac.update(&person.id.to_be_bytes());
    let mut hash = PersonHash::default();
    for (target, byte) in hash.iter_mut().zip(mac.finalize().into_bytes()) {
        *target = byte;
    }
    hash
}
