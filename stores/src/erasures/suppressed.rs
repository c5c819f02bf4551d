//! Who is suppressed, and where a person's id may stand in what comes.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use hmac::{Hmac, KeyInit, Mac};
use schemas::avro::is_framed;
use schemas::dead_letter::DeadLetter;
use schemas::source::Source;
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::{Erasure, Key, Kind, Person, PersonHash};

/// Ids whose answer is remembered: the same ones come again and again, and a hash takes a while.
const REMEMBERED_MAX: usize = 1 << 16;
/// The longest text of a 64-bit number.
const DIGITS_MAX: usize = 20;
/// The most bytes that Avro writes a 64-bit number in.
const VARINT_BYTES_MAX: usize = 10;

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
    /// more, and that is known by it.
    pub fn redact(&self, letter: &mut DeadLetter) -> bool {
        let holds = !self.people.is_empty()
            && holds(&letter.source, &letter.raw, |person| self.has(person));
        if holds {
            letter.raw.clear();
            letter.reason = ERASED.to_owned();
        }
        holds
    }
}

/// Whether the bytes that came for a source hold a person, or may. In a JSON object the fields of the person tell,
/// those that no source has, and whatever is an object or a list itself. Of what can't be read so any number may be an
/// id: those that are written in digits and those that Avro would write. So too much may be found, and never too little.
pub(crate) fn holds(source: &str, raw: &[u8], has: impl Fn(Person) -> bool) -> bool {
    let Some((kind, fields)) = fields(source) else {
        return false;
    };
    let has = |id: i64| has(Person { kind, id });
    if is_framed(raw) {
        return varints(raw).any(&has) || numbers(raw).any(&has);
    }
    match serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(raw) {
        Ok(object) => object.iter().any(|(name, value)| {
            let name = name.as_str();
            let tells = fields.contains(&name) || !OTHER_FIELDS.contains(&name);
            (tells || value.is_object() || value.is_array())
                && numbers(value.to_string().as_bytes()).any(&has)
        }),
        Err(_) => numbers(raw).any(&has),
    }
}

/// Whether the bytes that came for a source hold such a person of a kind, or may: as [`Suppressed::redact`] looks.
#[must_use]
pub fn mentions(source: Source, raw: &[u8], kind: Kind, has: impl Fn(i64) -> bool) -> bool {
    holds(source.name(), raw, |one| one.kind == kind && has(one.id))
}

/// Where the lines of a source name a person.
fn fields(source: &str) -> Option<(Kind, &'static [&'static str])> {
    let source = Source::ALL.into_iter().find(|one| one.name() == source)?;
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

/// The whole numbers that are written somewhere in some bytes.
fn numbers(bytes: &[u8]) -> impl Iterator<Item = i64> {
    let is_part = |byte: &u8| byte.is_ascii_digit();
    let stretches = bytes.chunk_by(move |a, b| is_part(a) == is_part(b));
    let mut before = 0_u8;
    stretches.filter_map(move |stretch| {
        let sign = std::mem::replace(&mut before, *stretch.last()?);
        if !is_part(stretch.first()?) || stretch.len() > DIGITS_MAX {
            return None;
        }
        let text = std::str::from_utf8(stretch).ok()?;
        match sign {
            b'-' => format!("-{text}").parse().ok(),
            _ => text.parse().ok(),
        }
    })
}

/// The numbers that Avro may have meant by what stands at each place.
fn varints(bytes: &[u8]) -> impl Iterator<Item = i64> {
    (0..bytes.len()).filter_map(|from| {
        let mut value = 0_u64;
        for (index, byte) in bytes.get(from..)?.iter().take(VARINT_BYTES_MAX).enumerate() {
            value |= u64::from(byte & 0x7f).checked_shl(u32::try_from(7 * index).ok()?)?;
            if byte & 0x80 == 0 {
                return Some((value >> 1).cast_signed() ^ -((value & 1).cast_signed()));
            }
        }
        None
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
