//! Who is suppressed, and where a person's id may stand in what comes.

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

use super::{Erasure, Key, Kind, Person, PersonHash, numbers};

/// Ids whose answer is remembered: the same ones come again and again, and a hash takes a while.
const REMEMBERED_MAX: usize = 1 << 16;
/// Larger binary data is redacted without a search, which would take too long.
const BINARY_BYTES_MAX: usize = 64 << 10;

/// Fields of some source that name no person, unless it is the person's own.
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

/// What takes the place of a dead letter's reason.
const ERASED: &str =
    "erased: it held, or may have held, somebody who was erased; its bytes are gone";

/// Those who are suppressed, at one moment. Whoever can read what is made of it by serde has the list and its key: it is
/// for processes of the same installation alone.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Suppressed {
    key: Key,
    newest: u64,
    newest_listener: u64,
    newest_athlete: u64,
    people: HashSet<(Kind, PersonHash)>,
    #[serde(skip)]
    remembered: Mutex<std::collections::HashMap<Person, bool>>,
}

impl Suppressed {
    pub(super) fn of(key: Key, erasures: &[Erasure]) -> Self {
        let newest = |mut of: Box<dyn FnMut(&&Erasure) -> bool>| {
            let numbers = erasures.iter().filter(|erasure| of(erasure));
            numbers.map(|erasure| erasure.number).max().unwrap_or(0)
        };
        Self {
            key,
            newest: newest(Box::new(|_| true)),
            newest_listener: newest(Box::new(|erasure| erasure.kind == Kind::Listener)),
            newest_athlete: newest(Box::new(|erasure| erasure.kind == Kind::Athlete)),
            people: erasures.iter().map(|one| (one.kind, one.person)).collect(),
            remembered: Mutex::default(),
        }
    }

    /// The number of the newest erasure that it holds; 0 if there is none.
    #[must_use]
    pub const fn newest(&self) -> u64 {
        self.newest
    }

    /// The number of the newest erasure of a listener; 0 if there is none. Whatever was made of plays
    /// before it may hold somebody who is suppressed.
    #[must_use]
    pub const fn newest_listener(&self) -> u64 {
        self.newest_listener
    }

    /// The number of the newest erasure of an athlete; 0 if there is none.
    #[must_use]
    pub const fn newest_athlete(&self) -> u64 {
        self.newest_athlete
    }

    /// Whether a person is suppressed.
    #[must_use]
    pub fn has(&self, person: Person) -> bool {
        if self.people.is_empty() {
            return false;
        }
        let remembered = || {
            self.remembered
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        if let Some(known) = remembered().get(&person) {
            return *known;
        }
        let found = self
            .people
            .contains(&(person.kind, hash(&self.key, person)));
        let mut remembered = remembered();
        if remembered.len() >= REMEMBERED_MAX {
            remembered.clear();
        }
        remembered.insert(person, found);
        found
    }

    /// Whether a listener is suppressed.
    #[must_use]
    pub fn has_listener(&self, id: i64) -> bool {
        let kind = Kind::Listener;
        self.has(Person { kind, id })
    }

    /// Whether an athlete is suppressed.
    #[must_use]
    pub fn has_athlete(&self, id: i64) -> bool {
        let kind = Kind::Athlete;
        self.newest_athlete > 0 && self.has(Person { kind, id })
    }

    /// Puts a mark in the place of a dead letter of a source that holds, or may hold, somebody who is
    /// suppressed, and answers whether it did. Its origin stays: what became a dead letter counts no
    /// more, and that is known by it. `source` is that of the topic: a letter may name any.
    pub fn redact(&self, source: Source, letter: &mut DeadLetter) -> bool {
        let is_erased = |kind| match kind {
            Kind::Listener => self.newest_listener > 0,
            Kind::Athlete => self.newest_athlete > 0,
        };
        // The numbers of a letter are not remembered: they would push out those of good events.
        let has = |person: Person| {
            self.people
                .contains(&(person.kind, hash(&self.key, person)))
        };
        let raw = &letter.raw;
        let holds = fields(source).is_some_and(|(kind, _)| is_erased(kind))
            && ((raw.len() > BINARY_BYTES_MAX && !numbers::is_text(raw))
                || holds(source, raw, has));
        if holds {
            letter.raw.clear();
            letter.reason = ERASED.to_owned();
        }
        holds
    }
}

/// Whether the bytes that came for a source hold a person, or may. In a JSON object the fields of the person tell, those
/// that no source has, whatever is an object or a list itself, and names of fields. In anything else any number may be an id,
/// in each form that [`numbers`] finds. So too much may be found, and never too little.
pub(crate) fn holds(source: Source, raw: &[u8], has: impl Fn(Person) -> bool) -> bool {
    let Some((kind, fields)) = fields(source) else {
        return false;
    };
    let has = |id: i64| has(Person { kind, id });
    if is_framed(raw) || !numbers::is_text(raw) {
        return numbers::any_in_binary(raw, &has);
    }
    let Ok(JsonFields(object)) = serde_json::from_slice(raw) else {
        return numbers::any_in_text(raw, &has);
    };
    object.iter().any(|(name, value)| {
        let (name, value) = (name.as_str(), value.get());
        let is_own = fields.contains(&name);
        let is_other = OTHER_FIELDS.contains(&name);
        if is_other && !is_own && !value.starts_with(['{', '[']) {
            return false;
        }
        let is_named = !is_own && !is_other && numbers::any_in_text(name.as_bytes(), &has);
        is_named
            || match value.parse() {
                Ok(id) => has(id),
                Err(_) => numbers::any_in_text(value.as_bytes(), &has),
            }
    })
}

/// The fields of a JSON object as they are written, also those whose name comes twice.
struct JsonFields<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for JsonFields<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
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

        from.deserialize_map(Object)
    }
}

/// Whether the bytes that came for a source hold such a person of a kind, or may: as [`Suppressed::redact`] looks.
#[must_use]
pub fn mentions(source: Source, raw: &[u8], kind: Kind, has: impl Fn(i64) -> bool) -> bool {
    holds(source, raw, |one| one.kind == kind && has(one.id))
}

/// Where the lines of a source name a person.
fn fields(source: Source) -> Option<(Kind, &'static [&'static str])> {
    Some(match source {
        Source::Plays => (Kind::Listener, &["listener_id"]),
        Source::Efforts | Source::Clubs | Source::Authorizations => {
            (Kind::Athlete, &["athlete_id"])
        }
        Source::Athletes => (Kind::Athlete, &["id"]),
        Source::Follows => (Kind::Athlete, &["follower_id", "followed_id"]),
        Source::Applications => return None,
    })
}

/// What the list holds of a person.
pub(super) fn hash(key: &Key, person: Person) -> PersonHash {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        // A key may have any length.
        return PersonHash::default();
    };
    mac.update(person.kind.name().as_bytes());
    mac.update(&person.id.to_be_bytes());
    let mut hash = PersonHash::default();
    for (to, from) in hash.iter_mut().zip(mac.finalize().into_bytes()) {
        *to = from;
    }
    hash
}
