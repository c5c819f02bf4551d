//! Random boards, and their recount by a plain sort of the rows of the entity store.

use std::collections::BTreeSet;

use anyhow::Context as _;
use jiff::Timestamp;
use jiff::civil::Date;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IteratorRandom;
use serde_json::{Value, json};

use crate::client::Parameters;
use crate::compare::compare;
use crate::rows::Row;
use crate::shared::SharedState;
use crate::{CLUBS, SEGMENTS};

/// The boards of a segment.
const BOARDS: &str = "overall gender:F gender:M gender:X age:0-19 age:20-24 age:25-34 age:35-44 \
    age:45-54 age:55-64 age:65-69 age:70-74 age:75+ weight:0-54 weight:55-64 weight:65-74 \
    weight:75-84 weight:85-94 weight:95-104 weight:105-114 weight:115+";
/// The calendar windows of boards, and the length of the date prefix that identifies a window.
const WINDOWS: [(&str, usize); 4] = [("all", 0), ("year", 4), ("month", 7), ("day", 10)];
const COLUMNS: &str = "e.athlete_id, e.elapsed_time_s, e.id, e.activity_id, e.started_at_us, e.tz, \
    a.birth_year, e.version, a.version";
/// Selects the visible efforts with their athletes.
const VISIBLE: &str = "FROM efforts e LEFT JOIN athletes a ON a.id = e.athlete_id \
    WHERE NOT e.is_deleted AND NOT e.is_hidden AND NOT coalesce(a.is_deleted, false) \
    AND NOT EXISTS (SELECT 1 FROM disqualified d WHERE d.athlete_id = e.athlete_id)";

/// A board.
#[derive(Debug, Clone)]
pub(crate) struct Board {
    pub(crate) segment: i64,
    name: &'static str,
    window: (&'static str, usize),
    /// A day in the window.
    date: Date,
    /// Restricts the board to athletes of a club.
    club: Option<i64>,
    /// Restricts the board to an athlete and the athletes followed by that athlete.
    following: Option<i64>,
}

impl Board {
    /// A random board. A plain one includes all athletes.
    pub(crate) fn random(today: Date, is_plain: bool, rng: &mut StdRng) -> Self {
        let days = rng.random_range(0..40) * i64::from(rng.random_bool(0.3));
        let probability = if is_plain { 0.0 } else { 0.2 };
        let mut filter = |last| {
            rng.random_bool(probability)
                .then(|| rng.random_range(1..=last))
        };
        Self {
            club: filter(CLUBS),
            following: filter(20),
            segment: rng.random_range(1..=SEGMENTS),
            name: BOARDS.split(' ').choose(rng).unwrap_or("overall"),
            window: WINDOWS[rng.random_range(0..4)],
            date: today.saturating_sub(jiff::Span::new().days(days)),
        }
    }

    /// Lists all boards of all time, each also in one other window of today. The window alternates
    /// between segments.
    pub(crate) fn list_all(today: Date) -> Vec<Self> {
        let mut boards = Vec::new();
        for (segment, first) in (1..=SEGMENTS).zip(0..) {
            for (number, name) in (first..).zip(BOARDS.split(' ')) {
                let (date, club, following) = (today, None, None);
                boards.extend([WINDOWS[0], WINDOWS[1 + number % 3]].map(|window| Self {
                    segment,
                    name,
                    window,
                    date,
                    club,
                    following,
                }));
            }
        }
        boards
    }

    pub(crate) fn path(&self) -> String {
        format!("/boards/segments/{}", self.segment)
    }

    pub(crate) fn parameters(&self) -> Parameters {
        let mut parameters = vec![("board", self.name.to_owned())];
        if self.window != WINDOWS[0] {
            parameters.push(("window", self.window.0.to_owned()));
            parameters.push(("date", self.date.to_string()));
        }
        parameters.extend(self.club.map(|club| ("club_id", club.to_string())));
        parameters.extend(self.following.map(|id| ("following", id.to_string())));
        parameters
    }

    /// Computes all entries in the order of ranks: the best effort of each athlete by time, then
    /// id.
    pub(crate) async fn recount(&self, shared: &SharedState) -> anyhow::Result<Vec<Value>> {
        self.rank_rows(&shared.query(&self.build_sql()).await?)
    }

    fn build_sql(&self) -> String {
        let segment = self.segment;
        let mut sql = format!("SELECT {COLUMNS} {VISIBLE} AND e.segment_id = {segment}");
        if let Some(club) = self.club {
            let members = format!("SELECT athlete_id FROM clubs WHERE club_id = {club}");
            sql += &format!(" AND e.athlete_id IN ({members} AND NOT is_deleted)");
        }
        if let Some(id) = self.following {
            let followed = format!("SELECT followed_id FROM follows WHERE follower_id = {id}");
            sql += &format!(
                " AND (e.athlete_id = {id} OR e.athlete_id IN ({followed} AND NOT is_deleted))"
            );
        }
        match self.parse_class() {
            ("gender", class, ..) => sql += &format!(" AND a.gender = '{class}'"),
            ("weight", _, lower, upper) => {
                sql += &format!(" AND a.weight_kg >= {lower} AND a.weight_kg < {upper}");
            }
            _ => {}
        }
        sql
    }

    /// Parses the kind of the class, its name, and for numeric classes the lower bound and the
    /// exclusive upper bound.
    fn parse_class(&self) -> (&'static str, &'static str, i64, i64) {
        let (kind, class) = self.name.split_once(':').unwrap_or((self.name, ""));
        let (lower, upper) = class.split_once('-').unwrap_or((class, ""));
        let lower = lower.trim_end_matches('+').parse().unwrap_or(0);
        let upper = upper.parse().map_or(1_000, |upper: i64| upper + 1);
        (kind, class, lower, upper)
    }

    fn rank_rows(&self, rows: &[Row]) -> anyhow::Result<Vec<Value>> {
        let mut efforts = Vec::new();
        let (kind, _, lower, upper) = self.parse_class();
        for row in rows {
            let int = |column: usize| -> anyhow::Result<i64> {
                Ok(row[column].as_deref().context("no value")?.parse()?)
            };
            let started_at = Timestamp::from_microsecond(int(4)?)?;
            let day = started_at.in_tz(row[5].as_deref().unwrap_or("UTC"))?.date();
            let age = int(6).map_or(-1, |born| i64::from(day.year()) - born);
            let prefix_length = self.window.1;
            let (day_text, date_text) = (day.to_string(), self.date.to_string());
            let is_in_window = day_text[..prefix_length] == date_text[..prefix_length];
            if is_in_window && (kind != "age" || (lower..upper).contains(&age)) {
                efforts.push((int(1)?, int(2)?, int(0)?, int(3)?, started_at));
            }
        }
        efforts.sort_unstable();
        let mut athletes = BTreeSet::new();
        efforts.retain(|(_, _, athlete, ..)| athletes.insert(*athlete));
        let entry = |(rank, (elapsed_time, effort, athlete, activity, started_at)): (u64, _)| {
            json!({
                "rank": rank, "athlete_id": athlete, "elapsed_time": elapsed_time,
                "effort_id": effort, "activity_id": activity, "started_at": started_at,
            })
        };
        Ok((1..).zip(efforts).map(entry).collect())
    }
}

/// Counts the visible efforts and their athletes of a segment.
pub(crate) async fn expected_counts(shared: &SharedState, segment: i64) -> anyhow::Result<Value> {
    let sql = format!("SELECT e.athlete_id {VISIBLE} AND e.segment_id = {segment}");
    let efforts = shared.query(&sql).await?;
    let athletes: BTreeSet<&Row> = efforts.iter().collect();
    Ok(json!({"efforts": efforts.len(), "athletes": athletes.len()}))
}

/// Reads all visible efforts, with their versions.
pub(crate) async fn read_efforts(shared: &SharedState) -> anyhow::Result<BTreeSet<Row>> {
    let efforts = shared.query(&format!("SELECT {COLUMNS} {VISIBLE}")).await?;
    Ok(efforts.into_iter().collect())
}

/// Compares a complete board that was served while efforts changed with its earlier entries.
/// Athletes with changed efforts may have any entry.
///
/// # Errors
/// Returns the first difference.
pub(crate) fn compare_while_changing(
    efforts_before: &BTreeSet<Row>,
    efforts_after: &BTreeSet<Row>,
    entries_before: &[Value],
    body: &Value,
) -> Result<(), String> {
    let changed = efforts_before.symmetric_difference(efforts_after);
    let changed: BTreeSet<String> = changed.filter_map(|row| row[0].clone()).collect();
    let served = body
        .get("entries")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let ranks: Vec<Value> = (1..=served.len())
        .map(|rank| json!({"rank": rank}))
        .collect();
    compare(&json!({"total": served.len(), "entries": ranks}), body)?;
    let sort_key = |entry: &Value| (entry["elapsed_time"].as_i64(), entry["effort_id"].as_i64());
    let athletes: BTreeSet<String> = served
        .iter()
        .map(|entry| entry["athlete_id"].to_string())
        .collect();
    let is_sorted = served.is_sorted_by(|a, b| sort_key(a) < sort_key(b));
    if !is_sorted || athletes.len() < served.len() {
        return Err(format!(
            "served entries are not sorted or contain an athlete twice: {body}"
        ));
    }
    let unchanged = |entries: &[Value]| {
        let mut entries = entries.to_vec();
        entries.retain(|entry| !changed.contains(&entry["athlete_id"].to_string()));
        entries
            .iter_mut()
            .for_each(|entry| entry["rank"] = Value::Null);
        Value::Array(entries)
    };
    compare(&unchanged(entries_before), &unchanged(&served))
}

#[cfg(test)]
#[path = "boards_tests.rs"]
mod tests;
