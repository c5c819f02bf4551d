//! Recounting the athletes of applications: its time by the size of the application, the cost of an
//! event compared with increments, and the error of counts at a given recount rate.

use std::time::{Duration, Instant};

use jobs::counting::{CountingClasses, CountingSection, RecountPolicy, should_recount};
use schemas::random::{RandomNumbers, SeededRandom};
use schemas::source::Source;
use serde_json::json;
use speed::SpeedOptions;
use tests::installation::Installation;
use tests::servers::Addresses;
use tests::world::World;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use super::sql::Sql;
use super::{ROUNDS, median, print_figure};

const PARTITIONS: u32 = 4;
/// Maximum number of athletes of the small and of the large application.
const SMALL: u64 = 1_000;
const LARGE: u64 = 100_000;
/// Number of counts of each application.
const COUNTS: usize = 200;
/// Maximum number of events of a round, and their fraction of all rows.
const EVENTS_MAX: u64 = 10_000;
const EVENTS_PART: u64 = 50;
const RECOUNTS_PER_DAY: i64 = 24;
/// Daily events of an athlete.
const EVENTS_PER_DAY: f64 = 0.2;
/// Simulated application sizes, and number of days.
const SIZES: [u64; 4] = [1_000, 10_000, 100_000, 1_000_000];
const DAYS: f64 = 10.0;
const DAY_MS: f64 = 86_400_000.0;
/// Fraction of events that connect an athlete: a growing application.
const CONNECTING: f64 = 0.6;
/// The first id that no other writer uses.
const FIRST_ID: u64 = 1_000_000;

pub(crate) fn run(rows: u64) {
    let (small, large) = (SMALL.min(rows), LARGE.min(rows));
    println!("recounts: applications of {small} and {large} athletes");
    let mut bench = Bench::new(&[small, large]);
    for (id, athletes) in [(1, small), (2, large)] {
        bench.measure_recount(id, athletes);
    }
    let events = EVENTS_MAX.min(rows / EVENTS_PART);
    for (id, athletes) in [(1, small), (2, large)] {
        bench.measure_events(id, athletes, events);
    }
    for size in SIZES {
        simulate_error(size);
    }
}

/// Returns the measured policy.
fn section() -> CountingSection {
    CountingSection {
        class: "all".to_owned(),
        strategy: "recount".to_owned(),
        capacity_from: Some(0),
        large_size: Some(1_000),
        events_per_athlete_per_day: Some(EVENTS_PER_DAY),
        recounts_per_day: Some(RECOUNTS_PER_DAY),
        ..CountingSection::default()
    }
}

fn classes() -> CountingClasses {
    CountingClasses::parse(&[section()]).expect("a class")
}

/// An installation with applications.
struct Bench {
    _installation: Installation,
    runtime: Runtime,
    plain: World,
    counting: World,
    /// Number of athletes who were added.
    added: u64,
}

impl Bench {
    fn new(sizes: &[u64]) -> Self {
        let installation = Installation::with_partitions(PARTITIONS, &Addresses::default(), "");
        let runtime = Runtime::new().expect("a runtime");
        let mut plain = runtime.block_on(installation.world());
        plain.speed_options = SpeedOptions::default();
        let counting = plain.with_catalog(plain.catalog.clone().with_counting(&classes()));
        let rows = (1..=sizes.len()).map(|id| {
            json!({"id": id, "name": "a", "owner": 1, "athlete_capacity": 1_000_000_000})
                .to_string()
        });
        let rows: Vec<String> = rows.collect();
        runtime.block_on(plain.ingest_into(Source::Applications, &rows));
        let sql = Sql::new(&installation);
        for (id, athletes) in (1..).zip(sizes) {
            let first = id * 10_000_000;
            sql.run(&format!(
                "SET backstitch.tells TO 'no';
                 INSERT INTO authorizations (id, application_id, athlete_id, created_at_us)
                 SELECT {first} + n, {id}, n, 0 FROM generate_series(1, {athletes}) AS n"
            ));
        }
        sql.run("VACUUM ANALYZE authorizations");
        Self {
            _installation: installation,
            runtime,
            plain,
            counting,
            added: 0,
        }
    }

    /// Measures the decision to recount, the count and its recording.
    fn measure_recount(&self, id: i64, athletes: u64) {
        let entities = &self.plain.stores.entities;
        let (mut look_times, mut total_times) = (Vec::new(), Vec::new());
        for now_ms in 0..i64::try_from(COUNTS).unwrap_or_default() {
            let begun = Instant::now();
            let counted: stores::Result<_> = self.runtime.block_on(async {
                entities.counted_applications(&[id]).await?;
                look_times.push(millis(begun.elapsed()));
                let counted = entities.recount(&[id], now_ms).await?;
                entities.record_recounts(&counted).await?;
                Ok(counted)
            });
            total_times.push(millis(begun.elapsed()));
            let counted = counted.expect("a count");
            assert_eq!(counted[0].counted.connected, athletes);
        }
        for (label, took) in [
            ("looking alone", look_times),
            ("looking, counting, recording", total_times),
        ] {
            let (p50, p99) = (percentile(&took, 0.5), percentile(&took, 0.99));
            let label = format!("{athletes} athletes, {label}: ms p50, p99");
            print_figure(label, format_args!("{p50:.2}, {p99:.2}"));
        }
    }

    /// Connects and disconnects athletes, alternately with increments alone and with recounts.
    fn measure_events(&mut self, application: i64, athletes: u64, events: u64) {
        let mut costs: [Vec<f64>; 2] = Default::default();
        for round in 0..ROUNDS {
            for turn in 0..2 {
                let is_recounting = (round + turn) % 2 == 0;
                let world = match is_recounting {
                    true => &self.counting,
                    false => &self.plain,
                };
                let numbers = self.added..self.added + events;
                self.added = numbers.end;
                let mut took = Duration::ZERO;
                for revoke in [false, true] {
                    let lines = numbers.clone().map(|number| {
                        let mut line = json!({"id": FIRST_ID + number, "application_id": application,
                            "athlete_id": LARGE + 1 + number, "created_at": "2026-01-01T00:00:00Z"});
                        if revoke {
                            line["revoked_at"] = json!("2026-01-02T00:00:00Z");
                            line["version"] = json!(1);
                        }
                        line.to_string()
                    });
                    let lines: Vec<String> = lines.collect();
                    took += self.runtime.block_on(async {
                        world.ingest_into(Source::Authorizations, &lines).await;
                        let speed = world.speed_of(Source::Authorizations).await;
                        let begun = Instant::now();
                        let outcome = speed.run(true, CancellationToken::new()).await;
                        outcome.expect("catching up");
                        begun.elapsed()
                    });
                }
                costs[usize::from(is_recounting)].push(micros(took, 2 * events));
            }
        }
        let [increments, with_recounts] = costs.map(median);
        print_figure(
            format!("{events} events of {athletes} athletes: us an event, without, with recounts"),
            format_args!("{increments:.1}, {with_recounts:.1}"),
        );
    }
}

/// Simulates days of an application: the error of the displayed count at each event, and its age.
fn simulate_error(size: u64) {
    let classes = classes();
    let policy: RecountPolicy = classes.find_policy(1, 1).expect("it recounts");
    let (draws, mut simulation) = (SeededRandom::new(size), Simulation::new(size));
    let events = (as_f64(size) * EVENTS_PER_DAY * DAYS).round();
    let step_ms = DAYS * DAY_MS / events;
    let look_ms = as_f64(policy.recount_interval_ms() / 4);
    let (mut at_ms, mut look_at_ms) = (0.0, look_ms);
    while at_ms < DAYS * DAY_MS {
        at_ms += step_ms;
        while look_at_ms <= at_ms {
            if look_at_ms - simulation.counted_ms >= as_f64(policy.recount_interval_ms()) {
                simulation.count(look_at_ms);
            }
            look_at_ms += look_ms;
        }
        let connects = unit(draws.next_u64()) < CONNECTING;
        simulation.truth = match connects {
            true => simulation.truth + 1,
            false => simulation.truth.saturating_sub(1),
        };
        let is_old = at_ms - simulation.counted_ms >= as_f64(policy.recount_interval_ms());
        if is_old || should_recount(true, Some(simulation.shown), &policy, draws.next_u64()) {
            simulation.count(at_ms);
        }
        simulation.record_error(at_ms);
    }
    let (error, age) = (&simulation.errors, &simulation.ages_min);
    print_figure(
        format!("{size} athletes: relative error mean, p99; age min mean, p99; recounts a day"),
        format_args!(
            "{:.5} %, {:.5} %; {:.1}, {:.1}; {:.1}",
            100.0 * mean(error),
            100.0 * percentile(error, 0.99),
            mean(age),
            percentile(age, 0.99),
            as_f64(simulation.recounts) / DAYS
        ),
    );
}

struct Simulation {
    truth: u64,
    shown: u64,
    counted_ms: f64,
    recounts: u64,
    errors: Vec<f64>,
    ages_min: Vec<f64>,
}

impl Simulation {
    const fn new(size: u64) -> Self {
        Self {
            truth: size,
            shown: size,
            counted_ms: 0.0,
            recounts: 0,
            errors: Vec::new(),
            ages_min: Vec::new(),
        }
    }

    fn count(&mut self, at_ms: f64) {
        self.shown = self.truth;
        self.counted_ms = at_ms;
        self.recounts += 1;
    }

    fn record_error(&mut self, at_ms: f64) {
        let difference = as_f64(self.truth.abs_diff(self.shown));
        self.errors.push(difference / as_f64(self.truth.max(1)));
        self.ages_min.push((at_ms - self.counted_ms) / 60_000.0);
    }
}

/// Converts a random number to the range from 0 to 1.
fn unit(draw: u64) -> f64 {
    as_f64(draw >> 11) / as_f64(1 << 53)
}

fn percentile(values: &[f64], fraction: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index"
    )]
    let index = ((values.len() as f64 - 1.0) * fraction).round() as usize;
    values[index]
}

#[expect(clippy::cast_precision_loss, reason = "a figure")]
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[expect(clippy::cast_precision_loss, reason = "a figure")]
const fn as_f64(number: u64) -> f64 {
    number as f64
}

fn millis(took: Duration) -> f64 {
    took.as_secs_f64() * 1_000.0
}

fn micros(took: Duration, count: u64) -> f64 {
    took.as_secs_f64() * 1e6 / as_f64(count)
}
