//! Generated plays with few distinct values, so that they collide often, and random queries about
//! them.

use std::fmt::Write as _;

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::http::Client;
use crate::recount::{Question, Recount};
use crate::world::World;

/// Lines that are invalid plays, each for another reason.
pub const BAD_LINES: [&str; 8] = [
    "{",
    "[1,2]",
    "null",
    r#"{"event_id":"x","track_id":"10","owner_id":1,"kind":"play","at":"2026-03-01T00:00:00Z"}"#,
    r#"{"event_id":"x","track_id":10,"owner_id":1,"kind":"stream","at":"2026-03-01T00:00:00Z"}"#,
    r#"{"event_id":"x","track_id":10,"owner_id":1,"kind":"play","at":"2026-02-30T00:00:00Z"}"#,
    r#"{"event_id":"x","track_id":10,"kind":"play","at":"2026-03-01T00:00:00Z"}"#,
    r#"{"event_id":"x","track_id":10,"owner_id":99999999999999999999,"kind":"play","at":"2026-03-01T00:00:00Z"}"#,
];

const ZONES: [&str; 5] = [
    "UTC",
    "Europe/Berlin",
    "Asia/Kathmandu",
    "America/St_Johns",
    "America/Sao_Paulo",
];
const BREAKDOWNS: [(&str, &str); 5] = [
    ("track", "track_id"),
    ("listener", "listener_id"),
    ("country", "country"),
    ("referrer", "referrer"),
    ("app", "app_id"),
];
/// 2026-02-26T00:00:00Z
const FIRST_SECOND: i64 = 1_772_064_000;
const SECONDS: i64 = 7 * 86_400;

/// A generator of plays.
#[derive(Debug)]
pub struct PlayGenerator {
    rng: SmallRng,
    next_id: u64,
    sent: Vec<String>,
}

impl PlayGenerator {
    /// Returns a generator with the same plays for the same seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            rng: SmallRng::seed_from_u64(seed),
            next_id: 0,
            sent: Vec::new(),
        }
    }

    /// Returns plays with event ids that no other generator uses.
    pub fn generate_with_prefix(&mut self, prefix: &str, count: usize) -> Vec<String> {
        let lines = self.lines(count).into_iter();
        lines
            .map(|line| line.replace("\"event_id\":\"e", &format!("\"event_id\":\"{prefix}")))
            .collect()
    }

    /// Returns some lines: mostly new plays, some duplicates, some invalid lines.
    pub fn lines(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.line()).collect()
    }

    fn line(&mut self) -> String {
        let rng = &mut self.rng;
        match rng.random_range(0..20) {
            0 => return (*BAD_LINES.choose(rng).expect("lines")).to_owned(),
            1..=3 if !self.sent.is_empty() => {
                return self.sent.choose(rng).expect("lines").clone();
            }
            _ => {}
        }
        let seconds = FIRST_SECOND + rng.random_range(0..SECONDS / 300) * 300;
        let time = Timestamp::from_second(seconds).expect("in range");
        let mut play = json!({
            "event_id": format!("e{}", self.next_id),
            "track_id": rng.random_range(10..14),
            "owner_id": rng.random_range(1..5),
            "kind": if rng.random_bool(0.8) { "play" } else { "download" },
            "at": time.to_string(),
        });
        let mut maybe = |name: &str, values: &[Value]| {
            if rng.random_bool(0.6) {
                play[name] = values.choose(rng).expect("values").clone();
            }
        };
        maybe("country", &[json!("DE"), json!("FR"), json!("BR")]);
        maybe("listener_id", &[json!(100), json!(101), json!(-5)]);
        maybe(
            "referrer",
            &[json!("https://a.example/?q=1&r=2"), json!("é"), json!("")],
        );
        maybe("app_id", &[json!(7), json!(8)]);
        if rng.random_bool(0.1) {
            play["amount"] = json!(rng.random_range(-3..10));
        }
        self.next_id += 1;
        let line = play.to_string();
        self.sent.push(line.clone());
        line
    }
}

/// A query, as a request path and as the recount's question.
#[derive(Debug, Clone)]
pub struct PlayQuery {
    /// The request path.
    pub path: String,
    kind: Kind,
    question: Question,
}

#[derive(Debug, Clone)]
enum Kind {
    Total {
        before: Option<Question>,
    },
    Series {
        interval: &'static str,
        zone: TimeZone,
    },
    Breakdown {
        field: &'static str,
    },
    Listeners,
    /// The value of one layer.
    SingleLayer(&'static str),
}

/// Runs one random query and compares the answer with a recount of everything before its position.
/// An answer includes everything that was counted before the request. Only after live state was
/// lost may it declare itself incomplete, or be refused.
///
/// # Panics
/// If the answer differs from the recount.
pub async fn check_random_query(world: &World, client: &Client, rng: &mut SmallRng) {
    let query = PlayQuery::random_query(rng);
    if matches!(query.kind, Kind::SingleLayer("realtime")) && world.was_live_damaged() {
        return;
    }
    let counted = world.counted_positions().await;
    let Some(answer) = ask(world, client, &query.path).await else {
        return;
    };
    let provenance = &answer["provenance"];
    let position = position_of(&answer);
    if let Kind::SingleLayer(layer) = query.kind {
        // Two runs at once, while one is being published.
        if provenance["complete"] != json!(true) {
            return;
        }
        let source = &provenance["source"];
        assert!(
            layer == "realtime" && source == "realtime" || layer == "batch" && source != "merged",
            "{}: {answer}",
            query.path
        );
        if source == "batch" {
            // Its position is that of the newest run.
            let truth = world.recount(provenance, &position).await;
            query.check(&answer, &truth);
            return;
        }
    }
    if provenance["complete"] == json!(true) {
        let holds = position
            .iter()
            .zip(&counted)
            .all(|(read, counted)| read >= counted);
        assert!(holds, "{}: {counted:?} were counted: {answer}", query.path);
    } else {
        assert!(world.is_disturbed(), "{}: {answer}", query.path);
    }
    let truth = world.recount(provenance, &position).await;
    query.check(&answer, &truth);
}

/// Returns the position of an answer in the log of plays.
///
/// # Panics
/// If the answer has no position.
#[must_use]
pub fn position_of(answer: &Value) -> Vec<i64> {
    let position = answer["provenance"]["position"]["plays"].clone();
    serde_json::from_value(position).unwrap_or_else(|e| panic!("{e} in {answer}"))
}

impl PlayQuery {
    /// Generates a query over both layers.
    #[must_use]
    pub fn random_over_both_layers(rng: &mut SmallRng) -> Self {
        loop {
            let query = Self::random_query(rng);
            if !matches!(query.kind, Kind::SingleLayer(_)) {
                return query;
            }
        }
    }

    /// Generates any query.
    #[must_use]
    pub fn random_query(rng: &mut SmallRng) -> Self {
        let filters = random_filters(rng);
        let mut query = String::new();
        for (name, value) in &filters {
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            write!(query, "&{name}={}", percent_encode(&text)).expect("a string");
        }
        let zone_name = *ZONES.choose(rng).expect("zones");
        let zone = TimeZone::get(zone_name).expect("a zone");
        let (range, time) = random_period(rng, &zone);
        write!(query, "&tz={zone_name}&{time}").expect("a string");
        let bounded = range.0.is_some();
        let question = Question { filters, range };
        let (endpoint, kind, parameters) = match rng.random_range(0..12) {
            3..=4 => ("uniques", Kind::Listeners, String::new()),
            5 => {
                let layer = *["batch", "realtime"].choose(rng).expect("layers");
                (
                    "total",
                    Kind::SingleLayer(layer),
                    format!("&prefer={layer}"),
                )
            }
            0 | 6..=8 if bounded => {
                let interval = *["hour", "day", "week", "month"]
                    .choose(rng)
                    .expect("intervals");
                (
                    "series",
                    Kind::Series { interval, zone },
                    format!("&interval={interval}"),
                )
            }
            1 | 9..=10 => {
                let (by, field) = *BREAKDOWNS.choose(rng).expect("fields");
                (
                    "breakdown",
                    Kind::Breakdown { field },
                    format!("&by={by}&limit=1000"),
                )
            }
            _ => {
                let before = preceding_period(&question).filter(|_| time.contains('T'));
                let parameters = if before.is_some() {
                    "&compare=previous"
                } else {
                    ""
                };
                ("total", Kind::Total { before }, parameters.to_owned())
            }
        };
        let query = query.trim_start_matches('&');
        Self {
            path: format!("/api/v1/stats/plays/{endpoint}?{query}{parameters}"),
            kind,
            question,
        }
    }

    /// Returns whether plays of one of these owners can match the query.
    #[must_use]
    pub fn may_match(&self, owners: &[i64]) -> bool {
        let mut filters = self.question.filters.iter();
        let owner = filters.find(|(name, _)| *name == "owner_id");
        let owner = owner.and_then(|(_, owner)| owner.as_i64());
        owner.is_none_or(|owner| owners.contains(&owner))
    }

    /// Compares an answer with the recount of everything before its position.
    ///
    /// # Panics
    /// If they differ.
    pub fn check(&self, answer: &Value, truth: &Recount) {
        let (got, want) = match &self.kind {
            Kind::Total { before } => compare_total(answer, truth, &self.question, before.as_ref()),
            Kind::SingleLayer(_) => compare_total(answer, truth, &self.question, None),
            Kind::Listeners => {
                // So few listeners are counted exactly.
                let listeners = truth.breakdown(&self.question, "listener_id");
                let count = |(key, sum): &&(Value, i64)| !key.is_null() && *sum > 0;
                let count = listeners.iter().filter(count).count();
                (json!([answer["count"]]), json!([count]))
            }
            Kind::Series { interval, zone } => {
                let points = answer["points"].as_array().expect("points");
                let got = points
                    .iter()
                    .map(|p| json!([p["at"], p["count"]]))
                    .collect();
                let series = truth.series(&self.question, interval, zone);
                let want = series
                    .iter()
                    .map(|(start, count)| json!([start.to_string(), count]))
                    .collect();
                (Value::Array(got), Value::Array(want))
            }
            Kind::Breakdown { field } => {
                let rows = answer["rows"].as_array().expect("rows");
                let got = rows.iter().map(|r| json!([r["key"], r["count"]])).collect();
                let sums = truth.breakdown(&self.question, field);
                let want = sums
                    .iter()
                    .map(|(key, count)| json!([key, count]))
                    .collect();
                (Value::Array(got), Value::Array(want))
            }
        };
        assert_eq!(got, want, "{}\n{answer}", self.path);
    }
}

/// Returns the answer, or `None` if it is refused because live state was lost.
async fn ask(world: &World, client: &Client, path: &str) -> Option<Value> {
    let (client, query) = (client.clone(), path.to_owned());
    let (status, body) = tokio::task::spawn_blocking(move || client.get(&query))
        .await
        .unwrap_or_else(|e| panic!("{path}: {e}"));
    let answer: Value = serde_json::from_str(&body).unwrap_or_else(|e| panic!("{path}: {e}"));
    if status == 503 && answer["type"] == json!("/problems/not-whole") && world.is_disturbed() {
        return None;
    }
    assert_eq!(status, 200, "{path}: {answer}");
    Some(answer)
}

fn compare_total(
    answer: &Value,
    truth: &Recount,
    question: &Question,
    before: Option<&Question>,
) -> (Value, Value) {
    let count = truth.total(question);
    let Some(before) = before else {
        return (json!([answer["count"]]), json!([count]));
    };
    let previous = truth.total(before);
    let change = &answer["change"];
    if previous == 0 {
        assert!(change.is_null(), "{answer}");
    } else {
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let expected = (count - previous) as f64 / previous as f64;
        assert!(
            (change.as_f64().expect("a ratio") - expected).abs() < 1e-9,
            "{answer}"
        );
    }
    (
        json!([answer["count"], answer["previous"]]),
        json!([count, previous]),
    )
}

/// Returns the question about the preceding period of the same length.
fn preceding_period(question: &Question) -> Option<Question> {
    let (Some(from), Some(to)) = question.range else {
        return None;
    };
    let start = Timestamp::from_second(2 * from.as_second() - to.as_second()).ok()?;
    Some(Question {
        filters: question.filters.clone(),
        range: (Some(start), Some(from)),
    })
}

fn random_filters(rng: &mut SmallRng) -> Vec<(&'static str, Value)> {
    let mut filters: Vec<(&'static str, Value)> = Vec::new();
    let by_owner = rng.random_bool(0.7);
    if by_owner {
        filters.push(("owner_id", json!(rng.random_range(1..6))));
    }
    if !by_owner || rng.random_bool(0.3) {
        filters.push(("track_id", json!(rng.random_range(10..15))));
    }
    let mut maybe = |name, chance, values: &[Value]| {
        if rng.random_bool(chance) {
            filters.push((name, values.choose(rng).expect("values").clone()));
        }
    };
    maybe("kind", 0.3, &[json!("play"), json!("download")]);
    maybe("country", 0.15, &[json!("DE"), json!("US")]);
    maybe(
        "referrer",
        0.15,
        &[json!("https://a.example/?q=1&r=2"), json!("é")],
    );
    maybe("app_id", 0.15, &[json!(7)]);
    maybe("listener_id", 0.15, &[json!(100), json!(-5)]);
    filters
}

type QueryPeriod = (Option<Timestamp>, Option<Timestamp>);

fn random_period(rng: &mut SmallRng, zone: &TimeZone) -> (QueryPeriod, String) {
    let day = |days: i32| {
        let first = jiff::civil::date(2026, 2, 25);
        let date = first.checked_add(days.days()).expect("in range");
        let start = date
            .to_zoned(zone.clone())
            .expect("in range")
            .start_of_day()
            .expect("in range");
        (date, start.timestamp())
    };
    match rng.random_range(0..5) {
        0 => ((None, None), "period=all".to_owned()),
        1 => {
            let (from_date, from) = day(rng.random_range(0..8));
            let (to_date, to) = day(rng.random_range(8..12));
            (
                (Some(from), Some(to)),
                format!("period=custom&from={from_date}&to={to_date}"),
            )
        }
        2 => {
            let month = jiff::civil::date(2026, 2, 1);
            let start = |date: jiff::civil::Date| {
                date.to_zoned(zone.clone()).expect("in range").timestamp()
            };
            let next = month.checked_add(1.month()).expect("in range");
            (
                (Some(start(month)), Some(start(next))),
                "period=month&date=2026-02-10".to_owned(),
            )
        }
        _ => {
            let quarter =
                |n: i64| Timestamp::from_second(FIRST_SECOND + n * 900).expect("in range");
            let last = SECONDS / 900;
            let from = rng.random_range(0..last);
            let to = rng.random_range(from + 1..=last);
            let (from, to) = (quarter(from), quarter(to));
            ((Some(from), Some(to)), format!("from={from}&to={to}"))
        }
    }
}

fn percent_encode(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            write!(escaped, "%{byte:02X}").expect("a string");
        }
    }
    escaped
}
