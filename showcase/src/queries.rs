//! Queries of play statistics, and their recount: it adds events one by one.

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

/// Time zones whose days start at very different instants.
const ZONES: &str = "UTC America/New_York Europe/Berlin Asia/Kathmandu America/St_Johns \
    Asia/Tokyo Pacific/Chatham Pacific/Honolulu";
/// The number of rows of a page of a breakdown.
const ROWS_MAX: usize = 1_000;
const OWNER: usize = 0;
const TRACK: usize = 1;
const KIND: usize = 6;

/// A query of play statistics.
#[derive(Debug, Clone)]
pub(crate) struct PlaysQuery {
    pub(crate) kind: &'static str,
    /// For each of [`FIELDS`], the index of the required value.
    filter: [Option<usize>; 7],
    period: Period,
    zone: TimeZone,
    /// The interval of a series.
    interval: &'static str,
    /// The field of a breakdown.
    by: usize,
}

impl PlaysQuery {
    /// Creates a query of the total of all time of an owner or a track.
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

    /// Creates a query of each kind for the owner of an event, for the week until the day before
    /// yesterday.
    pub(crate) fn every_kind(event: &Event, now_s: i64) -> anyhow::Result<Vec<Self>> {
        let today = Timestamp::from_second(now_s)?
            .to_zoned(TimeZone::UTC)
            .date();
        let last = today.checked_sub(2.days())?;
        let period = Period::from_name("7d", last, &TimeZone::UTC)?;
        let kinds = ["total", "change of a total", "series", "breakdown"];
        let query = |kind| Self {
            kind,
            period: period.clone(),
            ..Self::all_time(OWNER, event.values[OWNER])
        };
        Ok(kinds.map(query).to_vec())
    }

    /// Creates a random query. Its answer usually includes the event.
    pub(crate) fn random(event: &Event, now_s: i64, rng: &mut StdRng) -> anyhow::Result<Self> {
        let zone = TimeZone::get(ZONES.split(' ').choose(rng).unwrap_or("UTC"))?;
        // Half of the queries are about the present, where answers combine the layers.
        let time_s = if rng.random() { event.time_s } else { now_s };
        let period = Period::random(time_s, &zone, rng)?;
        let length_s = period
            .end_s
            .unwrap_or(i64::MAX)
            .saturating_sub(period.start_s.unwrap_or(0));
        let kind = match rng.random_range(0..10) {
            // The previous period of a current one depends on the time of the request, which the
            // recount does not know.
            0..4 if period.previous_start_s.is_none() || period.end_s > Some(now_s - 60) => "total",
            0..4 => "change of a total",
            4..7 if period.previous_start_s.is_some() => "series",
            _ => "breakdown",
        };
        let choice = rng.random_range(0..20);
        // For all owners, plays are counted by kind only.
        let includes_all_owners = choice == 0 && kind != "breakdown";
        let mut filter = [None; 7];
        for (field, value) in event.values.into_iter().enumerate() {
            let is_chosen = match field {
                _ if includes_all_owners => field == KIND,
                OWNER => choice < 12,
                TRACK => choice >= 8,
                _ => rng.random_ratio(1, 8),
            };
            // Index 0 is null, for which there is no filter.
            filter[field] = Some(value).filter(|value| is_chosen && *value > 0);
        }
        let intervals = if length_s <= 31 * 86_400 { 0..4 } else { 1..4 };
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
        let to_text = |value: &Value| value.as_str().map_or(value.to_string(), str::to_owned);
        let filters = FIELDS.into_iter().zip(self.filter);
        let filters = filters.filter_map(|(name, value)| Some((name, to_text(&values[value?]))));
        let mut parameters: Parameters = filters.chain(self.period.parameters.clone()).collect();
        parameters.extend(self.zone.iana_name().map(|zone| ("tz", zone.to_owned())));
        match self.kind {
            "change of a total" => parameters.push(("compare", "previous".to_owned())),
            "series" => parameters.push(("interval", self.interval.to_owned())),
            "breakdown" => {
                parameters.push(("by", FIELDS[self.by].trim_end_matches("_id").to_owned()));
                parameters.push(("limit", ROWS_MAX.to_string()));
            }
            _ => {}
        }
        parameters
    }

    /// Computes the expected answer from events.
    ///
    /// # Errors
    /// Fails for times outside the calendar.
    pub(crate) fn recount<'a>(
        &self,
        events: impl Iterator<Item = &'a Event>,
        values: &[Value],
    ) -> anyhow::Result<Value> {
        let (mut count, mut previous) = (0, 0);
        let points = self.period.list_points(self.interval, &self.zone)?;
        let mut points: BTreeMap<i64, i64> = points.into_iter().map(|start| (start, 0)).collect();
        let mut rows: BTreeMap<usize, i64> = BTreeMap::new();
        for event in events {
            let mut pairs = self.filter.iter().zip(event.values);
            if !pairs.all(|(required, value)| required.is_none_or(|required| required == value)) {
                continue;
            }
            if self.period.previous_contains(event.time_s) {
                previous += event.amount;
            }
            if self.period.contains(event.time_s) {
                count += event.amount;
                *rows.entry(event.values[self.by]).or_default() += event.amount;
                if let Some((_, point)) = points.range_mut(..=event.time_s).next_back() {
                    *point += event.amount;
                }
            }
        }
        let point =
            |(start, count)| json!({"at": Timestamp::from_second(start).ok(), "count": count});
        let mut rows: Vec<(&Value, i64)> =
            rows.iter().map(|(key, n)| (&values[*key], *n)).collect();
        rows.retain(|(_, part)| *part != 0);
        // Rows with equal counts are ordered by key: text by its bytes, null last.
        rows.sort_by_key(|&(key, n)| (Reverse(n), key.is_null(), key.as_i64(), key.as_str()));
        rows.truncate(ROWS_MAX);
        let row = |(key, part)| json!({"key": key, "count": part, "share": divide(part, count)});
        Ok(match self.kind {
            "total" => json!({"count": count}),
            "series" => json!({"points": points.into_iter().map(point).collect::<Value>()}),
            "breakdown" => {
                json!({"rows": rows.into_iter().map(row).collect::<Value>(), "total": count})
            }
            _ => {
                let change = divide(count - previous, previous);
                json!({"count": count, "previous": previous, "change": change})
            }
        })
    }
}

/// Divides two counts; `None` if the second is 0.
fn divide(part: i64, total: i64) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    let ratio = part as f64 / total as f64;
    (total != 0).then_some(ratio)
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    #[test]
    fn recount_adds_the_matching_events() {
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
            time_s: at.parse::<Timestamp>().unwrap().as_second(),
            amount,
            values: [1, track, 0, country, 0, 0, 6],
        };
        let events = [
            event("2026-11-20T23:59:59Z", 2, 4, 1),
            event("2026-11-21T00:00:00Z", 2, 0, 5),
            event("2026-11-21T12:00:00Z", 3, 4, 5),
            event("2026-11-21T12:00:00Z", 3, 5, -1),
        ];
        let recount = |query: &PlaysQuery| query.recount(events.iter(), &values).unwrap();
        let mut query = PlaysQuery::all_time(OWNER, 1);
        assert_eq!(recount(&query), json!({"count": 10}));
        let day = date(2026, 11, 21);
        query.period = Period::from_name("today", day, &TimeZone::UTC).unwrap();
        query.kind = "change of a total";
        let expected = json!({"count": 9, "previous": 1, "change": 8.0});
        assert_eq!(recount(&query), expected);
        (query.kind, query.by) = ("breakdown", 3);
        let rows = json!([
            {"key": "DE", "count": 5, "share": 5.0 / 9.0},
            {"key": null, "count": 5, "share": 5.0 / 9.0},
            {"key": "AT", "count": -1, "share": -1.0 / 9.0},
        ]);
        assert_eq!(recount(&query), json!({"rows": rows, "total": 9}));
        query.filter[TRACK] = Some(3);
        query.zone = TimeZone::get("Asia/Tokyo").unwrap();
        query.period = Period::from_name("7d", day, &query.zone).unwrap();
        query.kind = "series";
        let points = recount(&query)["points"].as_array().unwrap().clone();
        let counts: Vec<i64> = points
            .iter()
            .map(|point| point["count"].as_i64().unwrap())
            .collect();
        assert_eq!(counts, [0, 0, 0, 0, 0, 0, 4]);
        assert_eq!(points[6]["at"], "2026-11-20T15:00:00Z");
    }
}
