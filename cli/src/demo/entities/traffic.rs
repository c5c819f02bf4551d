//! The changes of a demo, the same for the same seed but for the times: efforts, and now and then
//! something else about athletes and applications.

use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use schemas::source::Source;
use serde_json::{Value, json};

use super::Ids;
use super::people::People;
use crate::demo::question::ZONES;

/// How far back efforts reach at the start.
const HISTORY_MS: i64 = 400 * 24 * 3_600_000;
/// Efforts that may change, at most.
const REMEMBERED: usize = 4_096;
/// Changes of clubs, follows and authorizations that there are at the start.
const TIES: usize = 240;

/// What happens.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Change {
    /// A line comes in.
    Line {
        source: Source,
        text: String,
        /// Whether it can't be read.
        broken: bool,
    },
    /// An athlete wants to be connected to an application.
    Connect { application: i64, athlete: i64 },
    /// And this one no more.
    Disconnect { application: i64, athlete: i64 },
    /// So many athletes may be connected.
    Allow { application: i64, capacity: i64 },
}

#[derive(Debug, Clone)]
struct Made {
    id: i64,
    segment: i64,
    athlete: i64,
    elapsed_time: i64,
    at_ms: i64,
    version: i64,
}

/// Makes changes up.
#[derive(Debug)]
pub(super) struct Traffic {
    ids: Ids,
    rng: StdRng,
    people: People,
    efforts: Vec<Made>,
    made: i64,
}

fn line(source: Source, row: &Value) -> Change {
    Change::Line {
        source,
        text: row.to_string(),
        broken: false,
    }
}

impl Traffic {
    pub(super) fn new(ids: Ids, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        Self {
            ids,
            people: People::new(ids, &mut rng),
            rng,
            efforts: Vec::new(),
            made: 0,
        }
    }

    /// What is there at the start: applications, athletes, and `efforts` efforts.
    pub(super) fn history(&mut self, efforts: u64, now_ms: i64) -> Vec<Change> {
        let applications = self.people.applications();
        let athletes = self.people.athletes(&mut self.rng);
        let mut changes: Vec<Change> = applications
            .iter()
            .map(|row| line(Source::Applications, row))
            .chain(athletes.iter().map(|row| line(Source::Athletes, row)))
            .collect();
        for _ in 0..TIES {
            let (people, rng) = (&mut self.people, &mut self.rng);
            changes.push(line(Source::Clubs, &people.club(rng)));
            changes.push(line(Source::Follows, &people.follow(rng)));
            changes.push(line(Source::Authorizations, &people.authorization(rng)));
        }
        for _ in 0..efforts {
            let at_ms = now_ms - self.rng.random_range(2_000..HISTORY_MS);
            changes.push(self.new_effort(at_ms));
        }
        changes
    }

    /// The next change.
    pub(super) fn next(&mut self, now_ms: i64) -> Change {
        let kind = self.rng.random_range(0..100);
        let (people, rng) = (&mut self.people, &mut self.rng);
        match kind {
            0..7 => line(Source::Athletes, &people.athlete(rng)),
            7..10 => line(Source::Clubs, &people.club(rng)),
            10..14 => line(Source::Follows, &people.follow(rng)),
            14..21 => line(Source::Authorizations, &people.authorization(rng)),
            21 => line(Source::Applications, &people.change_application(rng)),
            22..30 => self.visit(),
            30..50 => self.old_effort(now_ms),
            _ => {
                // One in ten comes days after it was made.
                let late = if self.rng.random_bool(0.1) {
                    self.rng.random_range(0..HISTORY_MS / 8)
                } else {
                    0
                };
                self.new_effort(now_ms - late)
            }
        }
    }

    /// Somebody uses an application's pages.
    fn visit(&mut self) -> Change {
        let (ids, rng) = (self.ids, &mut self.rng);
        let application = ids.applications().choose(rng);
        let athlete = ids.athletes().choose_low(rng);
        match rng.random_range(0..8) {
            0..5 => Change::Connect {
                application,
                athlete,
            },
            5..7 => Change::Disconnect {
                application,
                athlete,
            },
            _ => Change::Allow {
                application,
                capacity: self.people.capacity(application, rng),
            },
        }
    }

    fn new_effort(&mut self, at_ms: i64) -> Change {
        self.made += 1;
        let segment = self.ids.segments().choose(&mut self.rng);
        let athlete = self.ids.athletes().choose_low(&mut self.rng);
        let mut made = Made {
            id: self.ids.of_many(self.made),
            segment,
            athlete,
            elapsed_time: 0,
            at_ms,
            version: 0,
        };
        made.elapsed_time = self.time(&made);
        let row = self.row(&made);
        if self.efforts.len() < REMEMBERED {
            self.efforts.push(made);
        } else {
            let place = self.rng.random_range(0..REMEMBERED);
            if let Some(old) = self.efforts.get_mut(place) {
                *old = made;
            }
        }
        line(Source::Efforts, &row)
    }

    /// Something about an effort that is known: mostly it changes; some lines are refused.
    fn old_effort(&mut self, now_ms: i64) -> Change {
        if self.efforts.is_empty() {
            return self.new_effort(now_ms);
        }
        let place = self.rng.random_range(0..self.efforts.len());
        let Some(mut made) = self.efforts.get(place).cloned() else {
            return self.new_effort(now_ms);
        };
        let kind = self.rng.random_range(0..20);
        if kind < 4 {
            // It comes too late: were it applied it would be a record.
            made.version -= self.rng.random_range(1..3);
            made.elapsed_time = 1;
            return line(Source::Efforts, &self.row(&made));
        }
        if kind == 4 {
            let mut row = self.row(&made);
            let field = ["segment_id", "athlete_id"][usize::from(self.rng.random_bool(0.5))];
            row[field] = self.ids.of_many(0).into();
            row["elapsed_time"] = 1.into();
            return line(Source::Efforts, &row);
        }
        if kind == 5 {
            let mut row = self.row(&made);
            row["elapsed_time"] = 0.into();
            return Change::Line {
                source: Source::Efforts,
                text: row.to_string(),
                broken: true,
            };
        }
        // An equal version is applied, too.
        made.version += i64::from(self.rng.random_bool(0.8));
        made.elapsed_time = self.time(&made);
        if self.rng.random_bool(0.2) {
            made.at_ms -= self.rng.random_range(0..HISTORY_MS / 40);
        }
        let mut row = self.row(&made);
        match kind {
            6..10 => row["deleted"] = true.into(),
            10..13 => row["visibility"] = "only_me".into(),
            _ => {}
        }
        if let Some(known) = self.efforts.get_mut(place) {
            *known = made;
        }
        line(Source::Efforts, &row)
    }

    /// How long it takes: some are faster, and many are equally fast.
    fn time(&mut self, made: &Made) -> i64 {
        let segment = made.segment - self.ids.segments().first();
        let skill = made.athlete * 7_919 % 60;
        let form = self.rng.random_range(0..25);
        (60 + 25 * segment) * (100 + skill + form) / 100
    }

    fn row(&self, made: &Made) -> Value {
        let place = made.segment - self.ids.segments().first();
        let zone = usize::try_from(place)
            .ok()
            .and_then(|place| ZONES.get(place));
        let at = Timestamp::from_millisecond(made.at_ms).unwrap_or_default();
        let mut row = json!({
            "id": made.id,
            "segment_id": made.segment,
            "athlete_id": made.athlete,
            "activity_id": made.id * 10 + made.version.rem_euclid(10),
            "elapsed_time": made.elapsed_time,
            "started_at": at.to_string(),
        });
        if let Some(zone) = zone {
            row["tz"] = (*zone).into();
        }
        if made.version != 0 {
            row["version"] = made.version.into();
        }
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_the_same_for_the_same_seed() {
        let ids = Ids { before: 1_000 };
        let mut traffics = [4, 4, 5].map(|seed| Traffic::new(ids, seed));
        let histories: Vec<Vec<Change>> = traffics
            .iter_mut()
            .map(|traffic| traffic.history(50, 1_700_000_000_000))
            .collect();
        assert_eq!(histories[0], histories[1]);
        assert_ne!(histories[0], histories[2]);
        for _ in 0..500 {
            let [one, other, _] = &mut traffics;
            assert_eq!(one.next(1_700_000_000_000), other.next(1_700_000_000_000));
        }
    }
}
