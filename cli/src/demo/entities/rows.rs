//! Rows as the lines and requests leave them: plain collections, and the rule of versions.
//!
//! A line is the whole row; one with an older version than the stored one changes nothing, and one
//! that would move an effort or an authorization is refused. It shares no code with the stores.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use jiff::Timestamp;
use jiff::civil::Date;
use schemas::source::Source;
use serde_json::{Value, json};

/// An effort.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Effort {
    pub(super) segment: i64,
    pub(super) athlete: i64,
    pub(super) activity: i64,
    pub(super) elapsed_time: i64,
    pub(super) started_at: Timestamp,
    /// The day of `started_at` where the effort was made.
    pub(super) day: Date,
    /// Neither deleted nor hidden.
    pub(super) visible: bool,
    version: i64,
}

/// What an athlete tells.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Athlete {
    pub(super) gender: Option<String>,
    pub(super) birth_year: Option<i64>,
    pub(super) weight_kg: Option<f64>,
    pub(super) disqualified: bool,
    pub(super) deleted: bool,
    version: i64,
}

/// That one belongs to another: an athlete to a club, a followed one to a follower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tie {
    deleted: bool,
    version: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Authorization {
    application: i64,
    athlete: i64,
    revoked: bool,
    version: i64,
}

/// An application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Application {
    pub(super) name: String,
    pub(super) owner: Value,
    pub(super) capacity: i64,
    version: i64,
}

/// What became of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Became {
    /// It is the row now.
    Stored,
    /// It was older than the row.
    Older,
    /// It would have moved the row.
    Refused,
}

/// All rows.
#[derive(Debug, Clone, Default)]
pub(in crate::demo) struct Rows {
    pub(super) efforts: BTreeMap<i64, Effort>,
    pub(super) athletes: BTreeMap<i64, Athlete>,
    clubs: BTreeMap<(i64, i64), Tie>,
    follows: BTreeMap<(i64, i64), Tie>,
    authorizations: BTreeMap<i64, Authorization>,
    pub(super) applications: BTreeMap<i64, Application>,
    /// Athletes of whom something came in since this was cleared, be they on boards or not.
    pub(super) touched: BTreeSet<i64>,
}

impl Rows {
    /// Takes a line.
    ///
    /// # Errors
    /// A line that is no row: no such line is given here.
    pub(super) fn take(&mut self, source: Source, line: &str) -> anyhow::Result<Became> {
        let row: Value = serde_json::from_str(line).with_context(|| format!("{source}: {line}"))?;
        let int = |name: &str| row.get(name).and_then(Value::as_i64);
        let id = |name: &str| int(name).with_context(|| format!("{name} of {line}"));
        let text = |name: &str| row.get(name).and_then(Value::as_str);
        let is_true = |name: &str| row.get(name) == Some(&json!(true));
        let (version, deleted) = (int("version").unwrap_or(0), is_true("deleted"));
        let tie = Tie { deleted, version };
        self.touched.extend(match source {
            Source::Athletes => int("id"),
            _ => int("athlete_id"),
        });
        Ok(match source {
            Source::Efforts => {
                let effort = effort(&row, version, !deleted)?;
                let stored = self.efforts.get(&id("id")?);
                if stored.is_some_and(|stored| {
                    (stored.segment, stored.athlete) != (effort.segment, effort.athlete)
                }) {
                    return Ok(Became::Refused);
                }
                put(&mut self.efforts, id("id")?, effort, |row| row.version)
            }
            Source::Athletes => {
                let athlete = Athlete {
                    gender: text("gender").map(str::to_owned),
                    birth_year: int("birth_year"),
                    weight_kg: row.get("weight_kg").and_then(Value::as_f64),
                    disqualified: is_true("disqualified"),
                    deleted,
                    version,
                };
                put(&mut self.athletes, id("id")?, athlete, |row| row.version)
            }
            Source::Clubs => {
                let key = (id("club_id")?, id("athlete_id")?);
                put(&mut self.clubs, key, tie, |tie| tie.version)
            }
            Source::Follows => {
                let key = (id("follower_id")?, id("followed_id")?);
                put(&mut self.follows, key, tie, |tie| tie.version)
            }
            Source::Authorizations => {
                let authorization = Authorization {
                    application: id("application_id")?,
                    athlete: id("athlete_id")?,
                    revoked: row.get("revoked_at").is_some_and(|at| !at.is_null()),
                    version,
                };
                let to = (authorization.application, authorization.athlete);
                let stored = self.authorizations.get(&id("id")?);
                if stored.is_some_and(|stored| (stored.application, stored.athlete) != to) {
                    return Ok(Became::Refused);
                }
                put(&mut self.authorizations, id("id")?, authorization, |row| {
                    row.version
                })
            }
            Source::Applications => {
                let application = Application {
                    name: text("name").unwrap_or_default().to_owned(),
                    owner: row.get("owner").cloned().unwrap_or_default(),
                    capacity: int("athlete_capacity").unwrap_or(1),
                    version,
                };
                put(&mut self.applications, id("id")?, application, |row| {
                    row.version
                })
            }
            Source::Plays => anyhow::bail!("plays are no rows: {line}"),
        })
    }

    /// Notes the answer to an athlete's wish to connect.
    ///
    /// # Errors
    /// What is wrong with the answer.
    pub(super) fn connect(
        &mut self,
        application: i64,
        athlete: i64,
        answer: &(u16, Value),
    ) -> Result<(), String> {
        let connected = self.connected(application);
        let capacity = self.applications.get(&application).map(|row| row.capacity);
        let expected = match capacity {
            None => 404,
            Some(_) if self.is_deleted(athlete) => 409,
            Some(_) if connected.contains(&athlete) => 200,
            Some(capacity) if connected.len() as u64 >= capacity.unsigned_abs() => 403,
            Some(_) => 201,
        };
        let (status, body) = answer;
        if *status != expected {
            return Err(format!(
                "answered {status} {body}, expected {expected}: {} are connected, capacity {capacity:?}",
                connected.len()
            ));
        }
        if expected == 403 {
            let told = (body.get("connected_athletes"), body.get("athlete_capacity"));
            let right = (json!(connected.len()), json!(capacity));
            return (told == (Some(&right.0), Some(&right.1)))
                .then_some(())
                .ok_or_else(|| format!("answered {body}, expected {right:?}"));
        }
        if expected == 201 {
            let id = body.get("id").and_then(Value::as_i64);
            let Some(id) = id.filter(|id| !self.authorizations.contains_key(id)) else {
                return Err(format!("answered {body}, which holds no new id"));
            };
            let authorization = Authorization {
                application,
                athlete,
                revoked: false,
                version: 0,
            };
            self.authorizations.insert(id, authorization);
        }
        Ok(())
    }

    /// Notes the answer to an athlete's wish to disconnect.
    ///
    /// # Errors
    /// What is wrong with the answer.
    pub(super) fn disconnect(
        &mut self,
        application: i64,
        athlete: i64,
        answer: &(u16, Value),
    ) -> Result<(), String> {
        for row in self.authorizations.values_mut() {
            row.revoked |= (row.application, row.athlete) == (application, athlete);
        }
        let known = self.applications.contains_key(&application);
        let expected = if known { 204 } else { 404 };
        (answer.0 == expected)
            .then_some(())
            .ok_or_else(|| format!("answered {answer:?}, expected {expected}"))
    }

    /// Notes the answer to a change of a capacity.
    ///
    /// # Errors
    /// What is wrong with the answer.
    pub(super) fn allow(
        &mut self,
        application: i64,
        capacity: i64,
        answer: &(u16, Value),
    ) -> Result<(), String> {
        let known = self.applications.get_mut(&application);
        let expected = if known.is_some() { 200 } else { 404 };
        if let Some(known) = known {
            known.capacity = capacity;
        }
        let told = answer.1.get("athlete_capacity");
        (answer.0 == expected && (expected == 404 || told == Some(&json!(capacity))))
            .then_some(())
            .ok_or_else(|| format!("answered {answer:?}, expected {expected}"))
    }

    /// The different athletes that are connected to an application; who is deleted is connected to none.
    pub(super) fn connected(&self, application: i64) -> BTreeSet<i64> {
        let rows = self.authorizations.values();
        rows.filter(|row| row.application == application && !row.revoked)
            .map(|row| row.athlete)
            .filter(|athlete| !self.is_deleted(*athlete))
            .collect()
    }

    fn is_deleted(&self, athlete: i64) -> bool {
        let known = self.athletes.get(&athlete);
        known.is_some_and(|athlete| athlete.deleted)
    }

    /// Whether an athlete is in a club.
    pub(super) fn is_in(&self, club: i64, athlete: i64) -> bool {
        let tie = self.clubs.get(&(club, athlete));
        tie.is_some_and(|tie| !tie.deleted)
    }

    /// Whether an athlete follows another.
    pub(super) fn follows(&self, follower: i64, followed: i64) -> bool {
        let tie = self.follows.get(&(follower, followed));
        tie.is_some_and(|tie| !tie.deleted)
    }
}

fn effort(row: &Value, version: i64, is_there: bool) -> anyhow::Result<Effort> {
    let int = |name: &str| row.get(name).and_then(Value::as_i64);
    let id = |name: &str| int(name).with_context(|| format!("{name} of {row}"));
    let text = |name: &str| row.get(name).and_then(Value::as_str);
    let started_at = instant(text("started_at").context("no start")?)?;
    Ok(Effort {
        segment: id("segment_id")?,
        athlete: id("athlete_id")?,
        activity: id("activity_id")?,
        elapsed_time: id("elapsed_time")?,
        started_at,
        day: started_at.in_tz(text("tz").unwrap_or("UTC"))?.date(),
        visible: is_there && text("visibility") != Some("only_me"),
        version,
    })
}

/// Finer digits than microseconds are cut off.
fn instant(text: &str) -> anyhow::Result<Timestamp> {
    let at: Timestamp = text.parse()?;
    Ok(Timestamp::from_microsecond(i64::try_from(
        at.as_nanosecond().div_euclid(1_000),
    )?)?)
}

fn put<K: Ord, R>(
    rows: &mut BTreeMap<K, R>,
    key: K,
    row: R,
    version: impl Fn(&R) -> i64,
) -> Became {
    let stored = rows.get(&key).map(&version);
    if stored.is_some_and(|stored| stored > version(&row)) {
        return Became::Older;
    }
    rows.insert(key, row);
    Became::Stored
}
