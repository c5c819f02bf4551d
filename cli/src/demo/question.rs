//! Questions as a client asks them, made up so that they have answers.

use std::sync::Arc;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use rand::Rng;
use rand::rngs::StdRng;

use super::calendar::{Interval, Period};
use super::ledger::Event;

/// Zones whose days begin at very different instants.
pub(super) const ZONES: [&str; 8] = [
    "UTC",
    "America/New_York",
    "Europe/Berlin",
    "Asia/Kathmandu",
    "America/St_Johns",
    "Asia/Tokyo",
    "Pacific/Chatham",
    "Pacific/Honolulu",
];
const QUARTER_SECONDS: i64 = 900;

/// What is counted apart in a breakdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    Track,
    Listener,
    Country,
    Referrer,
    App,
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Total { compared: bool },
    Series(Interval),
    Breakdown(By),
}

/// Which events are asked about; a missing field holds for all.
#[derive(Debug, Clone, Default)]
pub(super) struct Filter {
    pub(super) owner: Option<i64>,
    pub(super) track: Option<i64>,
    pub(super) listener: Option<i64>,
    pub(super) country: Option<Arc<str>>,
    pub(super) referrer: Option<Arc<str>>,
    pub(super) app: Option<i64>,
    pub(super) kind: Option<Arc<str>>,
}

/// A question.
#[derive(Debug, Clone)]
pub(super) struct Question {
    pub(super) filter: Filter,
    pub(super) period: Period,
    pub(super) zone_name: &'static str,
    pub(super) zone: TimeZone,
    pub(super) form: Form,
}

impl Question {
    /// The total of all time, of an owner or a track.
    pub(super) fn all_time(owner: Option<i64>, track: Option<i64>) -> Self {
        Self {
            filter: Filter {
                owner,
                track,
                ..Filter::default()
            },
            period: Period::All,
            zone_name: "UTC",
            zone: TimeZone::UTC,
            form: Form::Total { compared: false },
        }
    }

    /// A question that the event is part of the answer to, most of the time.
    pub(super) fn about(event: &Event, now: i64, rng: &mut StdRng) -> anyhow::Result<Self> {
        let zone_name = ZONES
            .get(rng.random_range(0..2 * ZONES.len()))
            .copied()
            .unwrap_or("UTC");
        let zone = TimeZone::get(zone_name)?;
        let period = period_around(event.at, now, &zone, rng)?;
        let form = form(period, &zone, now, rng)?;
        Ok(Self {
            filter: filter(event, rng),
            period,
            zone_name,
            zone,
            form,
        })
    }

    /// The path.
    pub(super) const fn path(&self) -> &'static str {
        match self.form {
            Form::Total { .. } => "/api/v1/stats/plays/total",
            Form::Series(_) => "/api/v1/stats/plays/series",
            Form::Breakdown(_) => "/api/v1/stats/plays/breakdown",
        }
    }

    /// The parameters.
    pub(super) fn parameters(&self) -> Vec<(&'static str, String)> {
        let filter = &self.filter;
        let mut all = Vec::new();
        let ids = [
            ("owner_id", filter.owner),
            ("track_id", filter.track),
            ("listener_id", filter.listener),
            ("app_id", filter.app),
        ];
        all.extend(
            ids.into_iter()
                .filter_map(|(name, id)| Some((name, id?.to_string()))),
        );
        let texts = [
            ("country", &filter.country),
            ("referrer", &filter.referrer),
            ("kind", &filter.kind),
        ];
        all.extend(
            texts
                .into_iter()
                .filter_map(|(name, text)| Some((name, text.as_deref()?.to_owned()))),
        );
        if self.zone_name != "UTC" {
            all.push(("tz", self.zone_name.to_owned()));
        }
        all.extend(self.period_parameters());
        match self.form {
            Form::Total { compared: true } => all.push(("compare", "previous".to_owned())),
            Form::Total { compared: false } => {}
            Form::Series(interval) => {
                let name = format!("{interval:?}").to_lowercase();
                all.push(("interval", name));
            }
            Form::Breakdown(by) => {
                all.push(("by", format!("{by:?}").to_lowercase()));
                all.push(("limit", "1000".to_owned()));
            }
        }
        all
    }

    fn period_parameters(&self) -> Vec<(&'static str, String)> {
        let named =
            |name: &str, date: Date| vec![("period", name.to_owned()), ("date", date.to_string())];
        let instant = |at: i64| Timestamp::from_second(at).unwrap_or_default().to_string();
        match self.period {
            Period::All => vec![("period", "all".to_owned())],
            Period::Day(date) => named("today", date),
            Period::Days7(date) => named("7d", date),
            Period::Days30(date) => named("30d", date),
            Period::Month(date) => named("month", date),
            Period::Year(date) => named("year", date),
            Period::Dates(from, to) => vec![("from", from.to_string()), ("to", to.to_string())],
            Period::Instants(from, to) => vec![
                ("period", "custom".to_owned()),
                ("from", instant(from)),
                ("to", instant(to)),
            ],
            Period::Since(date) => vec![("from", date.to_string())],
            Period::Until(at) => vec![("to", instant(at))],
        }
    }
}

fn filter(event: &Event, rng: &mut StdRng) -> Filter {
    let (owner, track) = match rng.random_range(0..20_u32) {
        0..9 => (Some(event.owner), None),
        9..16 => (None, Some(event.track)),
        _ => (Some(event.owner), Some(event.track)),
    };
    let mut seldom = || rng.random_range(0..8_u32) == 0;
    Filter {
        owner,
        track,
        listener: event.listener.filter(|_| seldom()),
        country: event.country.clone().filter(|_| seldom()),
        referrer: event.referrer.clone().filter(|_| seldom()),
        app: event.app.filter(|_| seldom()),
        kind: Some(Arc::clone(&event.kind)).filter(|_| seldom()),
    }
}

fn period_around(at: i64, now: i64, zone: &TimeZone, rng: &mut StdRng) -> anyhow::Result<Period> {
    // Half of the questions are about today: there the layers meet.
    let about = if rng.random() { at } else { now };
    let date = Timestamp::from_second(about)?.to_zoned(zone.clone()).date();
    let quarter = about.div_euclid(QUARTER_SECONDS) * QUARTER_SECONDS;
    Ok(match rng.random_range(0..11_u32) {
        0 | 1 => Period::All,
        2 => Period::Day(date),
        3 => Period::Days7(date),
        4 => Period::Days30(date),
        5 => Period::Month(date),
        6 => Period::Year(date),
        7 => {
            let first = date.checked_sub(rng.random_range(0..4_i64).days())?;
            Period::Dates(first, date.checked_add(rng.random_range(1..3_i64).days())?)
        }
        8 => {
            let before = rng.random_range(0..300) * QUARTER_SECONDS;
            let after = rng.random_range(1..30) * QUARTER_SECONDS;
            Period::Instants(quarter - before, quarter + after)
        }
        9 => Period::Since(date),
        _ => Period::Until(quarter),
    })
}

fn form(period: Period, zone: &TimeZone, now: i64, rng: &mut StdRng) -> anyhow::Result<Form> {
    let range = period.range(zone)?;
    let (closed, days) = match (range.from, range.to) {
        (Some(from), Some(to)) => (true, (to - from) / 86_400),
        _ => (false, 0),
    };
    Ok(match rng.random_range(0..10_u32) {
        0..4 => Form::Total {
            // What is compared with a period that still runs depends on the very moment.
            compared: closed && !range.holds(now) && !range.holds(now + 60),
        },
        4..7 if closed => Form::Series(match rng.random_range(0..4_u32) {
            0 if days <= 31 => Interval::Hour,
            1 => Interval::Week,
            2 => Interval::Month,
            _ => Interval::Day,
        }),
        4..7 => Form::Total { compared: false },
        _ => Form::Breakdown(match rng.random_range(0..5_u32) {
            0 => By::Track,
            1 => By::Listener,
            2 => By::Country,
            3 => By::Referrer,
            _ => By::App,
        }),
    })
}
