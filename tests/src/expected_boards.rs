//! Expected boards: a sort of the raw lines.
//!
//! It shares no code with the jobs, the layers or serving. It is slow and written to be read.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use jiff::civil::Date;
use serde_json::{Value, json};

/// A board query in the terms of the API.
#[derive(Debug, Clone, Default)]
pub struct BoardQuery {
    /// The segment.
    pub segment: i64,
    /// `overall`, `gender:F`, `age:35-44`, `weight:75-84`.
    pub board: String,
    /// `all`, `year`, `month` or `day`.
    pub window: String,
    /// A day within the year, month or day.
    pub date: Date,
    /// Only athletes of this club.
    pub club: Option<i64>,
    /// Only this athlete and the athletes that this athlete follows.
    pub following: Option<i64>,
}

impl BoardQuery {
    /// Returns the query string for the API.
    #[must_use]
    pub fn query(&self) -> String {
        let mut query = format!(
            "board={}&window={}&date={}",
            self.board.replace('+', "%2B"),
            self.window,
            self.date
        );
        if let Some(club) = self.club {
            query.push_str(&format!("&club_id={club}"));
        }
        if let Some(athlete) = self.following {
            query.push_str(&format!("&following={athlete}"));
        }
        query
    }
}

/// The expected rows of the entity store after the ingested lines.
#[derive(Debug, Clone, Default)]
pub struct ExpectedEntities {
    efforts: BTreeMap<i64, Value>,
    athletes: BTreeMap<i64, Value>,
    clubs: BTreeMap<(i64, i64), Value>,
    follows: BTreeMap<(i64, i64), Value>,
    authorizations: BTreeMap<i64, Value>,
}

fn int(row: &Value, name: &str) -> Option<i64> {
    row.get(name).and_then(Value::as_i64)
}

fn is_deleted(row: &Value) -> bool {
    row.get("deleted") == Some(&json!(true))
}

/// Returns whether an athlete's efforts are excluded from all boards.
fn is_excluded(athlete: &Value) -> bool {
    is_deleted(athlete) || athlete.get("disqualified") == Some(&json!(true))
}

impl ExpectedEntities {
    /// Applies a line by the documented rules: a row with an older version changes nothing, one
    /// that would move to another group is rejected. Returns whether it was accepted.
    pub fn apply_line(&mut self, source: &str, line: &str) -> bool {
        let row: Value = serde_json::from_str(line).expect("a line");
        let id = |name: &str| int(&row, name).expect(name);
        let version = |row: &Value| int(row, "version").unwrap_or(0);
        let (stored, immutable_columns): (Option<&Value>, &[&str]) = match source {
            "efforts" => (self.efforts.get(&id("id")), &["segment_id", "athlete_id"]),
            "athletes" => (self.athletes.get(&id("id")), &[]),
            "clubs" => (self.clubs.get(&(id("club_id"), id("athlete_id"))), &[]),
            "follows" => (
                self.follows.get(&(id("follower_id"), id("followed_id"))),
                &[],
            ),
            "authorizations" => (
                self.authorizations.get(&id("id")),
                &["application_id", "athlete_id"],
            ),
            other => panic!("{other}"),
        };
        if let Some(stored) = stored {
            if immutable_columns
                .iter()
                .any(|name| stored.get(*name) != row.get(*name))
            {
                return false;
            }
            if version(stored) > version(&row) {
                return true;
            }
        }
        match source {
            "efforts" => drop(self.efforts.insert(id("id"), row)),
            "athletes" => drop(self.athletes.insert(id("id"), row)),
            "clubs" => drop(self.clubs.insert((id("club_id"), id("athlete_id")), row)),
            "follows" => {
                drop(
                    self.follows
                        .insert((id("follower_id"), id("followed_id")), row),
                );
            }
            _ => drop(self.authorizations.insert(id("id"), row)),
        }
        true
    }

    /// Returns all efforts, including deleted ones.
    pub fn efforts(&self) -> impl Iterator<Item = &Value> {
        self.efforts.values()
    }

    /// Copies club memberships and follows.
    pub fn copy_lists_from(&mut self, other: &Self) {
        self.clubs.clone_from(&other.clubs);
        self.follows.clone_from(&other.follows);
    }

    fn is_visible(&self, effort: &Value) -> bool {
        let athlete = int(effort, "athlete_id").and_then(|id| self.athletes.get(&id));
        !is_deleted(effort)
            && effort.get("visibility") != Some(&json!("only_me"))
            && !athlete.is_some_and(is_excluded)
    }

    /// Returns the number of efforts and of distinct athletes of a segment.
    #[must_use]
    pub fn counts(&self, segment: i64) -> (u64, u64) {
        let visible = self
            .efforts
            .values()
            .filter(|effort| int(effort, "segment_id") == Some(segment) && self.is_visible(effort));
        let athletes: Vec<i64> = visible.filter_map(|row| int(row, "athlete_id")).collect();
        let distinct: BTreeSet<&i64> = athletes.iter().collect();
        (athletes.len() as u64, distinct.len() as u64)
    }

    /// Returns the number of an athlete's efforts on a segment.
    #[must_use]
    pub fn efforts_of(&self, segment: i64, athlete: i64) -> u64 {
        let efforts = self.efforts.values().filter(|effort| {
            int(effort, "segment_id") == Some(segment)
                && int(effort, "athlete_id") == Some(athlete)
                && self.is_visible(effort)
        });
        efforts.count() as u64
    }

    /// Returns the number of distinct athletes connected to an application.
    #[must_use]
    pub fn connected(&self, application: i64) -> u64 {
        self.connected_to(application).len() as u64
    }

    /// Returns whether an athlete is connected to an application.
    #[must_use]
    pub fn is_connected(&self, application: i64, athlete: i64) -> bool {
        self.connected_to(application).contains(&athlete)
    }

    fn connected_to(&self, application: i64) -> BTreeSet<i64> {
        let live = self.authorizations.values().filter(|row| {
            int(row, "application_id") == Some(application)
                && row.get("revoked_at").is_none_or(Value::is_null)
        });
        let athletes = live.filter_map(|row| int(row, "athlete_id"));
        athletes
            .filter(|id| !self.athletes.get(id).is_some_and(is_deleted))
            .collect()
    }

    /// Returns the entries of a board by rank, as the API shows them.
    #[must_use]
    pub fn board(&self, query: &BoardQuery) -> Vec<Value> {
        let mut best: BTreeMap<i64, (i64, i64, &Value)> = BTreeMap::new();
        for (id, effort) in &self.efforts {
            if int(effort, "segment_id") != Some(query.segment)
                || !self.is_visible(effort)
                || !self.matches(query, effort)
            {
                continue;
            }
            let athlete = int(effort, "athlete_id").expect("an athlete");
            let time = int(effort, "elapsed_time").expect("a time");
            let best_effort = best.entry(athlete).or_insert((time, *id, effort));
            if (time, *id) < (best_effort.0, best_effort.1) {
                *best_effort = (time, *id, effort);
            }
        }
        let mut rows: Vec<(i64, i64, i64, &Value)> = best
            .into_iter()
            .map(|(athlete, (time, id, effort))| (time, id, athlete, effort))
            .collect();
        rows.sort_by_key(|row| (row.0, row.1));
        let entry = |(rank, (time, id, athlete, effort)): (u64, &(i64, i64, i64, &Value))| {
            json!({
                "rank": rank,
                "athlete_id": athlete,
                "elapsed_time": time,
                "effort_id": id,
                "activity_id": effort["activity_id"],
                "started_at": started_at(effort).to_string(),
            })
        };
        (1..).zip(rows.iter()).map(entry).collect()
    }

    fn matches(&self, query: &BoardQuery, effort: &Value) -> bool {
        let tz = effort.get("tz").and_then(Value::as_str).unwrap_or("UTC");
        let day = started_at(effort).in_tz(tz).expect("a zone").date();
        let in_window = match query.window.as_str() {
            "all" => true,
            "year" => day.year() == query.date.year(),
            "month" => (day.year(), day.month()) == (query.date.year(), query.date.month()),
            "day" => day == query.date,
            other => panic!("{other}"),
        };
        let athlete = int(effort, "athlete_id").expect("an athlete");
        let in_club = query.club.is_none_or(|club| {
            let member = self.clubs.get(&(club, athlete));
            member.is_some_and(|row| !is_deleted(row))
        });
        let is_followed = query.following.is_none_or(|follower| {
            let follow = self.follows.get(&(follower, athlete));
            athlete == follower || follow.is_some_and(|row| !is_deleted(row))
        });
        in_window && in_club && is_followed && self.is_on_board(&query.board, athlete, day)
    }

    fn is_on_board(&self, board: &str, athlete: i64, day: Date) -> bool {
        let Some((kind, division)) = board.split_once(':') else {
            return true;
        };
        let athlete = self.athletes.get(&athlete);
        let number = |name: &str| {
            athlete
                .and_then(|row| row.get(name))
                .and_then(Value::as_f64)
        };
        if kind == "gender" {
            return athlete.and_then(|row| row.get("gender")) == Some(&json!(division));
        }
        let (lowest, highest) = match division.split_once('-') {
            Some((lowest, highest)) => (
                lowest.parse::<f64>().expect("a number"),
                highest.parse::<f64>().expect("a number"),
            ),
            None => (
                division.trim_end_matches('+').parse().expect("a number"),
                f64::MAX,
            ),
        };
        match kind {
            "age" => number("birth_year").is_some_and(|born| {
                let age = f64::from(day.year()) - born;
                lowest <= age && age <= highest
            }),
            // A class ends just below the first kg of the next one.
            _ => number("weight_kg").is_some_and(|kg| lowest <= kg && kg < highest + 1.0),
        }
    }
}

fn started_at(effort: &Value) -> Timestamp {
    let text = effort["started_at"].as_str().expect("a time");
    let instant: Timestamp = text.parse().expect("an instant");
    let micros = instant.as_nanosecond().div_euclid(1000);
    Timestamp::from_microsecond(micros.try_into().expect("in range")).expect("in range")
}
