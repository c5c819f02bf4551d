//! Questions about plays as a client asks them, and their recount: events added one by one.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IteratorRandom;
use serde_json::{Value, json};

use crate::calendar::Period;
use crate::client::Parameters;
use crate::ledger::{Event, FIELDS};

/// Zones whose days begin at very different instants.
const ZONES: &str = "UTC America/New_York Europe/Berlin Asia/Kathmandu America/St_Johns \
    Asia/Tokyo Pacific/Chatham Pacific/Honolulu";
/// Rows of a breakdown that are compared: a page.
const ROWS_MAX: usize = 1_000;
const OWNER: usize = 0;
const TRACK: usize = 1;
const KIND: usize = 6;

/// A question about plays.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub(crate) kind: &'static str,
    /// For each of [`FIELDS`] the index of the value that it must have.
    filter: [Option<usize>; 7],
    period: Period,
    zone: TimeZone,
    /// Of a series.
    interval: &'static str,
    /// Of a breakdown, the field.
    by: usize,
}

impl Question {
    /// The total of all time, of an owner or a track.
    pub(crate) fn all_time(field: usize, value: usize) -> Self {
        let mut filter = [None; 7];
        filter[field] = Some(value);
        Self {
            kind: "total",
            filter,
            period: Period::all(),
            zone: TimeZone::UTC,
            interval: "day",
            by: TRACK,
        }
    }

    /// A question of each kind about the owner of an event, of the week until the day before yesterday.
    pub(crate) fn of_every_kind(event: &Event, now: i64) -> anyhow::Result<Vec<Self>> {
        let today = Timestamp::from_second(now)?.to_zoned(TimeZone::UTC).date();
        let last = today.checked_sub(2.days())?;
        let period = Period::named("7d", last, &TimeZone::UTC)?;
        let kinds = ["total", "change of a total", "series", "breakdown"];
        let of_kind = |kind| Self {
            kind,
            period: period.clone(),
            ..Self::all_time(OWNER, event.values[OWNER])
        };
        Ok(kinds.map(of_kind).to_vec())
    }

    /// A question whose answer holds the event, most of the time.
    pub(crate) fn about(event: &Event, now: i64, rng: &mut StdRng) -> anyhow::Result<Self> {
        let zone = TimeZone::get(ZONES.split(' ').choose(rng).unwrap_or("UTC"))?;
        // Half of the questions are about today: there the layers meet.
        let at = if rng.random() { event.at } else { now };
        let period = Period::any(at, &zone, rng)?;
        let length = period
            .to
            .unwrap_or(i64::MAX)
            .saturating_sub(period.from.unwrap_or(0));
        let kind = match rng.random_range(0..10) {
            // What a running period is compared with depends on the very moment.
            0..4 if period.before.is_none() || period.to > Some(now - 60) => "total",
            0..4 => "change of a total",
            4..7 if period.before.is_some() => "series",
            _ => "breakdown",
        };
        let kinds = rng.random_range(0..20);
        // Of all owners, plays are counted by kind only.
        let is_of_all = kinds == 0 && kind != "breakdown";
        let mut filter = [None; 7];
        for (field, value) in event.values.into_iter().enumerate() {
            let is_chosen = match field {
                _ if is_of_all => field == KIND,
                OWNER => kinds < 12,
                TRACK => kinds >= 8,
                _ => rng.random_ratio(1, 8),
            };
            // Index 0 is null, which can't be asked for.
            filter[field] = Some(value).filter(|value| is_chosen && *value > 0);
        }
        let intervals = if length <= 31 * 86_400 { 0..4 } else { 1..4 };
        Ok(Self {
            kind,
            filter,
            period,
            zone,
            interval: ["hour", "day", "week", "month"][rng.random_range(intervals)],
            by: rng.random_range(TRACK..KIND),
        })
    }

    pub(crate) fn path(&self) -> String {
        format!(
            "/stats/plays/{}",
            self.kind.rsplit(' ').next().unwrap_or_default()
        )
    }

    pub(crate) fn parameters(&self, values: &[Value]) -> Parameters {
        let text = |value: &Value| value.as_str().map_or(value.to_string(), str::to_owned);
        let filters = FIELDS.into_iter().zip(self.filter);
        let filters = filters.filter_map(|(name, value)| Some((name, text(&values[value?]))));
        let mut all: Parameters = filters.chain(self.period.parameters.clone()).collect();
        all.extend(self.zone.iana_name().map(|zone| ("tz", zone.to_owned())));
        match self.kind {
            "change of a total" => all.push(("compare", "previous".to_owned())),
            "series" => all.push(("interval", self.interval.to_owned())),
            "breakdown" => {
                all.push(("by", FIELDS[self.by].trim_end_matches("_id").to_owned()));
                all.push(("limit", ROWS_MAX.to_string()));
            }
            _ => {}
        }
        all
    }

    /// The answer, from the events that count.
    ///
    /// # Errors
    /// Times beyond the calendar.
    pub(crate) fn recount<'a>(
        &self,
        events: impl Iterator<Item = &'a Event>,
        values: &[Value],
    ) -> anyhow::Result<Value> {
        let (mut count, mut previous) = (0, 0);
        let points = self.period.points(self.interval, &self.zone)?;
        let mut points: BTreeMap<i64, i64> = points.into_iter().map(|at| (at, 0)).collect();
        let mut rows: BTreeMap<usize, i64> = BTreeMap::new();
        for event in events {
            let mut pairs = self.filter.iter().zip(event.values);
            if !pairs.all(|(asked, value)| asked.is_none_or(|asked| asked == value)) {
                continue;
            }
            if self.period.held(event.at) {
                previous += event.amount;
            }
            if self.period.holds(event.at) {
                count += event.amount;
                *rows.entry(event.values[self.by]).or_default() += event.amount;
                if let Some((_, point)) = points.range_mut(..=event.at).next_back() {
                    *point += event.amount;
                }
            }
        }
        let point = |(at, count)| json!({"at": Timestamp::from_second(at).ok(), "count": count});
        let mut rows: Vec<(&Value, i64)> =
            rows.iter().map(|(key, n)| (&values[*key], *n)).collect();
        rows.retain(|(_, part)| *part != 0);
        // Texts are ordered by their bytes; among equals, null is last.
        rows.sort_by_key(|&(key, n)| (Reverse(n), key.is_null(), key.as_i64(), key.as_str()));
        rows.truncate(ROWS_MAX);
        let row = |(key, part)| json!({"key": key, "count": part, "share": ratio(part, count)});
        Ok(match self.kind {
            "total" => json!({"count": count}),
            "series" => json!({"points": points.into_iter().map(point).collect::<Value>()}),
            "breakdown" => {
                json!({"rows": rows.into_iter().map(row).collect::<Value>(), "total": count})
            }
            _ => {
                let change = ratio(count - previous, previous);
                json!({"count": count, "previous": previous, "change": change})
            }
        })
    }
}

fn ratio(part: i64, all: i64) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    let ratio = part as f64 / all as f64;
    (all != 0).then_some(ratio)
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    #[test]
    fn events_are_counted_one_by_one() {
        let values = [
            json!(null),
            json!(1),
            json!(7),
            json!(8),
            json!("DE"),
            json!("AT"),
            json!("play"),
        ];
        let event = |at: &str, track: usize, country: usize, amount: i64| Event {
            offset: 0,
            at: at.parse::<Timestamp>().unwrap().as_second(),
            amount,
            values: [1, track, 0, country, 0, 0, 6],
        };
        let events = [
            event("2026-11-20T23:59:59Z", 2, 4, 1),
            event("2026-11-21T00:00:00Z", 2, 0, 5),
            event("2026-11-21T12:00:00Z", 3, 4, 5),
            event("2026-11-21T12:00:00Z", 3, 5, -1),
        ];
        let recount = |question: &Question| question.recount(events.iter(), &values).unwrap();
        let mut question = Question::all_time(OWNER, 1);
        assert_eq!(recount(&question), json!({"count": 10}));
        let day = date(2026, 11, 21);
        question.period = Period::named("today", day, &TimeZone::UTC).unwrap();
        question.kind = "change of a total";
        let expected = json!({"count": 9, "previous": 1, "change": 8.0});
        assert_eq!(recount(&question), expected);
        (question.kind, question.by) = ("breakdown", 3);
        let rows = json!([
            {"key": "DE", "count": 5, "share": 5.0 / 9.0},
            {"key": null, "count": 5, "share": 5.0 / 9.0},
            {"key": "AT", "count": -1, "share": -1.0 / 9.0},
        ]);
        assert_eq!(recount(&question), json!({"rows": rows, "total": 9}));
        question.filter[TRACK] = Some(3);
        question.zone = TimeZone::get("Asia/Tokyo").unwrap();
        question.period = Period::named("7d", day, &question.zone).unwrap();
        question.kind = "series";
        let points = recount(&question)["points"].as_array().unwrap().clone();
        let counts: Vec<i64> = points
            .iter()
            .map(|point| point["count"].as_i64().unwrap())
            .collect();
        assert_eq!(counts, [0, 0, 0, 0, 0, 0, 4]);
        assert_eq!(points[6]["at"], "2026-11-20T15:00:00Z");
    }
}
