//! Athletes and what they do beside their efforts: clubs, follows, applications.

use std::collections::BTreeMap;

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};

use super::Ids;

/// Of a hundred athletes: so many are never told of.
const UNTOLD: u32 = 4;
/// Authorizations that are remembered, at most.
const AUTHORIZATIONS_MAX: usize = 1_000;
/// How many athletes may be connected to each application at first.
const CAPACITIES: [i64; 5] = [30, 12, 6, 45, 20];
const REVOKED_AT: &str = "2026-01-01T00:00:00Z";

#[derive(Debug, Clone)]
struct Person {
    id: i64,
    gender: Option<&'static str>,
    birth_year: Option<i64>,
    weight_hg: Option<i32>,
    disqualified: bool,
    deleted: bool,
    version: i64,
}

impl Person {
    fn line(&self) -> Value {
        let mut row = json!({"id": self.id, "name": format!("Athlete {}", self.id)});
        let weight_kg = self.weight_hg.map(|weight| f64::from(weight) / 10.0);
        let told = [
            ("gender", self.gender.map(Value::from)),
            ("birth_year", self.birth_year.map(Value::from)),
            ("weight_kg", weight_kg.map(Value::from)),
            (
                "disqualified",
                self.disqualified.then_some(Value::from(true)),
            ),
            ("deleted", self.deleted.then_some(Value::from(true))),
            ("version", (self.version > 0).then(|| self.version.into())),
        ];
        for (name, value) in told {
            if let Some(value) = value {
                row[name] = value;
            }
        }
        row
    }
}

#[derive(Debug, Clone)]
struct Permission {
    id: i64,
    application: i64,
    athlete: i64,
    revoked: bool,
    version: i64,
}

impl Permission {
    fn line(&self) -> Value {
        let mut row = json!({
            "id": self.id,
            "application_id": self.application,
            "athlete_id": self.athlete,
            "created_at": "2025-11-21T08:00:00Z",
            "version": self.version,
        });
        if self.revoked {
            row["revoked_at"] = REVOKED_AT.into();
        }
        row
    }
}

/// Everything about people that is remembered so that it can change.
#[derive(Debug)]
pub(super) struct People {
    ids: Ids,
    persons: Vec<Person>,
    /// By club or follower, and athlete: the version.
    clubs: BTreeMap<(i64, i64), i64>,
    follows: BTreeMap<(i64, i64), i64>,
    permissions: Vec<Permission>,
    permissions_made: i64,
    /// By application: version and capacity.
    applications: BTreeMap<i64, (i64, i64)>,
}

fn gender(rng: &mut StdRng) -> Option<&'static str> {
    let letters = [Some("F"), Some("F"), Some("M"), Some("M"), Some("X"), None];
    letters.choose(rng).copied().flatten()
}

fn birth_year(rng: &mut StdRng) -> Option<i64> {
    rng.random_bool(0.9).then(|| rng.random_range(1945..2012))
}

fn weight_hg(rng: &mut StdRng) -> Option<i32> {
    // Some stand exactly where a class begins.
    let exact = rng.random_bool(0.2);
    let weight = rng.random_range(48..125) * 10 + rng.random_range(0..10);
    let weight = if exact {
        weight / 100 * 100 + 50
    } else {
        weight
    };
    rng.random_bool(0.9).then_some(weight)
}

impl People {
    pub(super) fn new(ids: Ids, rng: &mut StdRng) -> Self {
        let person = |id| Person {
            id,
            gender: gender(rng),
            birth_year: birth_year(rng),
            weight_hg: weight_hg(rng),
            disqualified: false,
            deleted: false,
            version: 0,
        };
        let applications = ids.applications().every().zip(CAPACITIES);
        Self {
            ids,
            persons: ids.athletes().every().map(person).collect(),
            clubs: BTreeMap::new(),
            follows: BTreeMap::new(),
            permissions: Vec::new(),
            permissions_made: 0,
            applications: applications
                .map(|(id, capacity)| (id, (0, capacity)))
                .collect(),
        }
    }

    /// A line for each athlete that is told of.
    pub(super) fn athletes(&self, rng: &mut StdRng) -> Vec<Value> {
        let mut told = |_: &&Person| rng.random_range(0..100) >= UNTOLD;
        self.persons
            .iter()
            .filter(|person| told(person))
            .map(Person::line)
            .collect()
    }

    /// A line for each application.
    pub(super) fn applications(&self) -> Vec<Value> {
        let ids = self.applications.keys();
        ids.map(|id| self.application(*id)).collect()
    }

    fn application(&self, id: i64) -> Value {
        let (version, capacity) = self.applications.get(&id).copied().unwrap_or_default();
        let named = format!("Application {id}");
        let owner = format!("developer{id}@example.com");
        json!({
            "id": id, "name": named, "owner": owner, "athlete_capacity": capacity, "version": version,
        })
    }

    /// A change of an athlete, or seldom a line that comes too late.
    pub(super) fn athlete(&mut self, rng: &mut StdRng) -> Value {
        let place = rng.random_range(0..self.persons.len().max(1));
        let place = place.min(rng.random_range(0..self.persons.len().max(1)));
        let Some(person) = self.persons.get_mut(place) else {
            return Value::Null;
        };
        if rng.random_bool(0.1) {
            let mut late = person.clone();
            late.gender = gender(rng);
            late.deleted = !late.deleted;
            let mut row = late.line();
            row["version"] = (person.version - 1).into();
            return row;
        }
        // An equal version is applied, too.
        person.version += i64::from(rng.random_bool(0.8));
        if person.deleted {
            person.deleted = rng.random_bool(0.4);
            return person.line();
        }
        if person.disqualified {
            person.disqualified = rng.random_bool(0.4);
            return person.line();
        }
        match rng.random_range(0..20) {
            0..6 => person.gender = gender(rng),
            6..14 => person.weight_hg = weight_hg(rng),
            14..18 => person.birth_year = birth_year(rng),
            18 => person.disqualified = true,
            _ => person.deleted = true,
        }
        person.line()
    }

    /// An athlete enters a club, or leaves it.
    pub(super) fn club(&mut self, rng: &mut StdRng) -> Value {
        let club = self.ids.clubs().choose(rng);
        let athlete = self.ids.athletes().choose_low(rng);
        tie(
            &mut self.clubs,
            ["club_id", "athlete_id"],
            (club, athlete),
            rng,
        )
    }

    /// An athlete follows another, or ends that.
    pub(super) fn follow(&mut self, rng: &mut StdRng) -> Value {
        let follower = self.ids.followers().choose(rng);
        let followed = self.ids.athletes().choose_low(rng);
        let names = ["follower_id", "followed_id"];
        tie(&mut self.follows, names, (follower, followed), rng)
    }

    /// An authorization that is new, or changes, or comes too late.
    pub(super) fn authorization(&mut self, rng: &mut StdRng) -> Value {
        let is_new = rng.random_bool(0.4) && self.permissions.len() < AUTHORIZATIONS_MAX;
        if is_new || self.permissions.is_empty() {
            self.permissions_made += 1;
            let permission = Permission {
                id: self.ids.of_many(self.permissions_made),
                application: self.ids.applications().choose(rng),
                athlete: self.ids.athletes().choose_low(rng),
                revoked: rng.random_bool(0.1),
                version: 0,
            };
            let line = permission.line();
            self.permissions.push(permission);
            return line;
        }
        let place = rng.random_range(0..self.permissions.len());
        let Some(permission) = self.permissions.get_mut(place) else {
            return Value::Null;
        };
        if rng.random_bool(0.2) {
            let mut late = permission.clone();
            late.version -= 1;
            late.revoked = !late.revoked;
            return late.line();
        }
        permission.version += 1;
        permission.revoked = rng.random_bool(0.6);
        permission.line()
    }

    /// An application with another capacity, or the one it had before, too late.
    pub(super) fn change_application(&mut self, rng: &mut StdRng) -> Value {
        let id = self.ids.applications().choose(rng);
        let mut row = self.application(id);
        let capacity = self.capacity(id, rng);
        row["athlete_capacity"] = capacity.into();
        let Some((version, known)) = self.applications.get_mut(&id) else {
            return row;
        };
        if rng.random_bool(0.3) {
            row["version"] = (*version - 1).into();
        } else {
            (*version, *known) = (*version + 1, capacity);
            row["version"] = (*version).into();
        }
        row
    }

    /// A capacity for an application, near the first one.
    pub(super) fn capacity(&self, id: i64, rng: &mut StdRng) -> i64 {
        let place = usize::try_from(id - self.ids.applications().first()).unwrap_or_default();
        let first = CAPACITIES.get(place).copied().unwrap_or(1);
        (first + rng.random_range(-5..=8)).max(0)
    }
}

fn tie(
    versions: &mut BTreeMap<(i64, i64), i64>,
    names: [&str; 2],
    key: (i64, i64),
    rng: &mut StdRng,
) -> Value {
    let is_late = rng.random_bool(0.1);
    let known = versions.get(&key).copied();
    let version = match known {
        None => 0,
        Some(version) if is_late => version - 1,
        Some(version) => version + i64::from(rng.random_bool(0.7)),
    };
    versions.insert(key, known.unwrap_or(0).max(version));
    let deleted = known.is_some() && rng.random_bool(0.5);
    json!({names[0]: key.0, names[1]: key.1, "deleted": deleted, "version": version})
}
