//! Cost of an event of the largest application and of a small one, measured in pairs because the
//! machine's speed varies.

use std::time::Duration;

use super::super::boards::{run_ok_with, write};
use super::super::{ROUNDS, measure_time, median, print_figure, rate};
use super::{Bench, LARGEST, SPEED};

/// Maximum number of events of a round, and their fraction of all rows.
const EVENTS_MAX: u64 = 20_000;
const EVENTS_PART: u64 = 50;

/// Microseconds for each event of the largest application and of a small one, by round.
#[derive(Default)]
struct Pairs {
    large: Vec<f64>,
    small: Vec<f64>,
}

impl Pairs {
    fn add(&mut self, is_large: bool, cost: f64) {
        let costs = if is_large {
            &mut self.large
        } else {
            &mut self.small
        };
        costs.push(cost);
    }

    fn print(&self, label: &str) {
        let ratios = self.large.iter().zip(&self.small);
        let ratios: Vec<f64> = ratios.map(|(large, small)| large / small).collect();
        let (large, small) = (median(self.large.clone()), median(self.small.clone()));
        print_figure(
            label,
            format_args!(
                "{large:.1} largest, {small:.1} small; ratio {:.2} ({ratios:.2?}); {:.0}/s, {:.0}/s",
                median(ratios.clone()),
                1e6 / large,
                1e6 / small
            ),
        );
    }
}

impl Bench {
    /// Connects and disconnects athletes through the log, alternately in the largest application
    /// and in a small one.
    pub(super) fn measure_events(&mut self, config: &str, description: &str) {
        let events = EVENTS_MAX.min(self.rows / EVENTS_PART);
        let idle = self.measure_idle(config);
        println!(
            "{events} events a round, {description}; less what commands with nothing to do take: {idle:.2?} s"
        );
        let cost = |took: Duration, idle: f64| {
            let took = Duration::from_secs_f64((took.as_secs_f64() - idle).max(1e-3));
            1e6 / rate(events, took)
        };
        let mut figures: [[Pairs; 2]; 2] = Default::default();
        for round in 0..ROUNDS {
            let small = self.small();
            let first = self.added;
            for turn in 0..2 {
                let is_large = (round + turn) % 2 == 0;
                let application = if is_large { LARGEST } else { small };
                let numbers = self.added..self.added + events;
                self.added = numbers.end;
                for (figures, revoke) in figures.iter_mut().zip([false, true]) {
                    let ingested = self.ingest(application, numbers.clone(), revoke);
                    let (counted, _) =
                        measure_time(|| run_ok_with(&self.installation, config, &SPEED));
                    figures[0].add(is_large, cost(ingested, idle[0]));
                    figures[1].add(is_large, cost(counted, idle[1]));
                }
            }
            assert_eq!(self.added, first + 2 * events, "both had their turn");
        }
        for (figures, label) in figures.iter().zip(["connecting", "taking back"]) {
            figures[0].print(&format!("{label}: JSON lines to PostgreSQL and Kafka, us"));
            figures[1].print(&format!("{label}: Kafka to the live count, us"));
        }
    }

    /// Returns the time of `ingest` and `speed` without input, in seconds.
    fn measure_idle(&self, config: &str) -> [f64; 2] {
        let empty_file = write(&self.installation, "nothing.jsonl", std::iter::empty());
        let ingest = ["ingest", "authorizations", &empty_file];
        [&ingest[..], &SPEED[..]].map(|args| {
            let rounds = (0..ROUNDS)
                .map(|_| measure_time(|| run_ok_with(&self.installation, config, args)).0);
            median(rounds.map(|took| took.as_secs_f64()).collect())
        })
    }
}
