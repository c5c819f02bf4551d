//! Independent recount of raw lines, one at a time.
//!
//! It shares no code with the jobs, the layers or serving. It is slow and written to be read.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ToSpan, Zoned};
use serde_json::Value;

/// A play parsed from a raw line.
#[derive(Debug, Clone, PartialEq)]
pub struct Play {
    /// The log partition of the line.
    pub partition: usize,
    /// The offset of the line.
    pub offset: i64,
    /// The time of the event.
    pub at: Timestamp,
    /// The other fields, as JSON.
    pub fields: Value,
}

impl Play {
    fn parse(partition: usize, offset: i64, line: &str) -> Option<Self> {
        let fields: Value = serde_json::from_str(line).ok()?;
        let at: Timestamp = fields.get("at")?.as_str()?.parse().ok()?;
        let micros =
            Timestamp::from_microsecond(at.as_nanosecond().div_euclid(1000).try_into().ok()?)
                .ok()?;
        let is_valid = fields.get("owner_id")?.is_i64()
            && fields.get("track_id")?.is_i64()
            && fields.get("event_id")?.is_string()
            && matches!(fields.get("kind")?.as_str(), Some("play" | "download"));
        is_valid.then_some(Self {
            partition,
            offset,
            at: micros,
            fields,
        })
    }

    /// Returns the identity of the event: two lines with the same one are duplicates.
    fn identity(&self) -> (String, String, Timestamp) {
        let text = |name: &str| self.field(name).to_string();
        (text("owner_id"), text("event_id"), self.at)
    }

    fn amount(&self) -> i64 {
        self.fields
            .get("amount")
            .and_then(Value::as_i64)
            .unwrap_or(1)
    }

    /// Returns a field; null if it is missing.
    #[must_use]
    pub fn field(&self, name: &str) -> Value {
        self.fields.get(name).cloned().unwrap_or(Value::Null)
    }
}

/// A question in the terms of the API.
#[derive(Debug, Clone, Default)]
pub struct Question {
    /// Required values of fields.
    pub filters: Vec<(&'static str, Value)>,
    /// The first instant, and the one after the last.
    pub range: (Option<Timestamp>, Option<Timestamp>),
}

/// The lines of a log, parsed once for many recounts.
#[derive(Debug)]
pub struct Lines(Vec<Vec<Option<Arc<Play>>>>);

impl Lines {
    /// Parses the lines of each partition, from offset 0.
    #[must_use]
    pub fn parse(partitions: &[Vec<String>]) -> Self {
        let parse_partition = |(partition, lines): (usize, &Vec<String>)| {
            (0..)
                .zip(lines)
                .map(|(offset, line)| Play::parse(partition, offset, line).map(Arc::new))
                .collect()
        };
        Self(partitions.iter().enumerate().map(parse_partition).collect())
    }

    /// Counts only the lines before `position`. Invalid plays are skipped, and duplicates count
    /// once.
    #[must_use]
    pub fn until(&self, position: &[i64]) -> Recount {
        let mut identities = HashSet::new();
        let mut plays = Vec::new();
        for (lines, until) in self.0.iter().zip(position) {
            let lines = (0..*until).zip(lines);
            for play in lines.filter_map(|(_, play)| play.as_ref()) {
                if identities.insert(play.identity()) {
                    plays.push(Arc::clone(play));
                }
            }
        }
        Recount { plays }
    }
}

/// All plays of a log, each event once.
#[derive(Debug, Clone, Default)]
pub struct Recount {
    plays: Vec<Arc<Play>>,
}

impl Recount {
    /// Counts the lines of each partition, from offset 0 up to `position`, as [`Lines::until`].
    #[must_use]
    pub fn new(partitions: &[Vec<String>], position: &[i64]) -> Self {
        Lines::parse(partitions).until(position)
    }

    /// Returns the plays that match a question.
    pub fn matching<'a>(&'a self, question: &'a Question) -> impl Iterator<Item = &'a Play> {
        let plays = self.plays.iter().map(AsRef::as_ref);
        plays.filter(|play: &&Play| {
            let (from, to) = question.range;
            from.is_none_or(|from| play.at >= from)
                && to.is_none_or(|to| play.at < to)
                && question
                    .filters
                    .iter()
                    .all(|(name, value)| play.field(name) == *value)
        })
    }

    /// Returns the sum of the amounts.
    #[must_use]
    pub fn total(&self, question: &Question) -> i64 {
        self.matching(question).map(Play::amount).sum()
    }

    /// Returns the sums by the value of a field, largest first, then by key, null last, without
    /// sums of 0.
    #[must_use]
    pub fn breakdown(&self, question: &Question, field: &str) -> Vec<(Value, i64)> {
        let mut sums: BTreeMap<(bool, i64, String), (Value, i64)> = BTreeMap::new();
        for play in self.matching(question) {
            let key = play.field(field);
            let order = (
                key.is_null(),
                key.as_i64().unwrap_or(0),
                key.as_str().unwrap_or_default().to_owned(),
            );
            sums.entry(order).or_insert((key, 0)).1 += play.amount();
        }
        let sums = sums.into_values().filter(|(_, sum)| *sum != 0);
        let mut rows: Vec<(Value, i64)> = sums.collect();
        rows.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        rows
    }

    /// Returns the sums by local hour, day, week or month of the range: the start of each with its
    /// sum.
    ///
    /// # Panics
    /// If the range is open or leaves the calendar.
    #[must_use]
    pub fn series(
        &self,
        question: &Question,
        interval: &str,
        zone: &TimeZone,
    ) -> Vec<(Timestamp, i64)> {
        let (from, to) = question.range;
        let (from, to) = (from.expect("a bounded range"), to.expect("a bounded range"));
        let mut starts = Vec::new();
        let mut start = from;
        while start < to {
            starts.push(start);
            start = next_start(start, interval, zone);
        }
        let mut sums = vec![0; starts.len()];
        for play in self.matching(question) {
            let index = starts.partition_point(|start| *start <= play.at) - 1;
            sums[index] += play.amount();
        }
        starts.into_iter().zip(sums).collect()
    }
}

/// Returns the first instant after `at` at which a local hour, day, week (from Monday) or month
/// begins.
fn next_start(at: Timestamp, interval: &str, zone: &TimeZone) -> Timestamp {
    if interval == "hour" {
        return next_hour(at, zone);
    }
    let local = at.to_zoned(zone.clone());
    let day = match interval {
        "day" => local.date(),
        "week" => {
            let days_back = i64::from(local.date().weekday().to_monday_zero_offset());
            local
                .date()
                .checked_sub(days_back.days())
                .expect("in range")
        }
        _ => local.date().first_of_month(),
    };
    let step: Span = match interval {
        "day" => 1.day(),
        "week" => 1.week(),
        _ => 1.month(),
    };
    let mut day = day;
    loop {
        day = day.checked_add(step).expect("in range");
        let start = day_start(day.to_zoned(zone.clone()).expect("in range"));
        if start > at {
            return start;
        }
    }
}

fn day_start(day: Zoned) -> Timestamp {
    day.start_of_day().expect("in range").timestamp()
}

/// Returns the next instant at which the local clock shows a full hour or changes its hour.
fn next_hour(at: Timestamp, zone: &TimeZone) -> Timestamp {
    let hour_of = |at: Timestamp| {
        let local = at.to_zoned(zone.clone());
        (local.date(), local.hour(), local.offset())
    };
    let current_hour = hour_of(at);
    let mut next =
        Timestamp::from_second(at.as_second().div_euclid(900) * 900 + 900).expect("in range");
    while hour_of(next) == current_hour {
        next += 15.minutes();
    }
    next
}
