//! The recount of boards: a plain sort of the rows.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use jiff::civil::Date;

use super::question::Asked;
use super::rows::{Athlete, Effort, Rows};

/// A place on a board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) rank: u64,
    pub(super) athlete: i64,
    pub(super) elapsed_time: i64,
    pub(super) effort: i64,
    pub(super) activity: i64,
    pub(super) started_at: Timestamp,
}

/// All places of a board in the order of ranks: each athlete's best effort by time, then id.
pub(super) fn board(rows: &Rows, asked: &Asked) -> Vec<Entry> {
    let mut places: Vec<(i64, &Effort)> = visible(rows, asked.segment)
        .filter(|(_, effort)| holds(rows, asked, effort))
        .collect();
    places.sort_by_key(|(id, effort)| (effort.elapsed_time, *id));
    let mut placed = BTreeSet::new();
    places.retain(|(_, effort)| placed.insert(effort.athlete));
    let entry = |(rank, (id, effort)): (u64, (i64, &Effort))| Entry {
        rank,
        athlete: effort.athlete,
        elapsed_time: effort.elapsed_time,
        effort: id,
        activity: effort.activity,
        started_at: effort.started_at,
    };
    (1..).zip(places).map(entry).collect()
}

/// Efforts and different athletes of a segment.
pub(super) fn counts(rows: &Rows, segment: i64) -> (u64, u64) {
    let mut by_athlete: BTreeMap<i64, u64> = BTreeMap::new();
    for (_, effort) in visible(rows, segment) {
        *by_athlete.entry(effort.athlete).or_default() += 1;
    }
    (by_athlete.values().sum(), by_athlete.len() as u64)
}

/// The efforts on a segment that everybody may see.
fn visible(rows: &Rows, segment: i64) -> impl Iterator<Item = (i64, &Effort)> {
    let efforts = rows.efforts.iter().map(|(id, effort)| (*id, effort));
    efforts.filter(move |(_, effort)| {
        let athlete = rows.athletes.get(&effort.athlete);
        effort.segment == segment
            && effort.visible
            && !athlete.is_some_and(|athlete| athlete.deleted || athlete.disqualified)
    })
}

fn holds(rows: &Rows, asked: &Asked, effort: &Effort) -> bool {
    let who = effort.athlete;
    let athlete = rows.athletes.get(&who);
    asked.window.holds(asked.date, effort.day)
        && asked.club.is_none_or(|club| rows.is_in(club, who))
        && asked
            .following
            .is_none_or(|follower| who == follower || rows.follows(follower, who))
        && is_on(asked.board, athlete, effort.day)
}

/// Whether an athlete is on a board with an effort of that day.
fn is_on(board: &str, athlete: Option<&Athlete>, day: Date) -> bool {
    let Some((kind, which)) = board.split_once(':') else {
        return true;
    };
    let Some(athlete) = athlete else {
        return false;
    };
    if kind == "gender" {
        return athlete.gender.as_deref() == Some(which);
    }
    // From the lowest to just below the first of the next; without end for the last one.
    let (lowest, highest) = which.split_once('-').unwrap_or((which, ""));
    let lowest: i32 = lowest.trim_end_matches('+').parse().unwrap_or(i32::MAX);
    let below = highest.parse().map_or(i32::MAX, |highest: i32| highest + 1);
    if kind == "age" {
        return athlete.birth_year.is_some_and(|born| {
            let age = i64::from(day.year()) - born;
            (i64::from(lowest)..i64::from(below)).contains(&age)
        });
    }
    athlete
        .weight_kg
        .is_some_and(|kg| (f64::from(lowest)..f64::from(below)).contains(&kg))
}

#[cfg(test)]
#[path = "recount_tests.rs"]
mod tests;
