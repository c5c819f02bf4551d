//! Generates efforts: activities of athletes, each with some efforts on segments.
//!
//! Segments with small ids are popular, athletes with small ids very active. The seed determines the time zone and the
//! typical time of a segment, and the speed of an athlete. An activity stays within one time zone.

use std::ops::Not;

use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

use super::draw::{Skewed, WeightedChoice, as_id, happens, hash_fraction, instant};
use super::entities::{RowGenerator, RowPosition, id_offset};
use super::fault::Fault;
use super::request::Request;
use super::rhythm::Rhythm;

/// Time zones with weights per thousand segments; the rest has none, which is UTC.
const ZONES: [(&str, u32); 12] = [
    ("Europe/Berlin", 180),
    ("Europe/London", 150),
    ("America/New_York", 130),
    ("America/Los_Angeles", 110),
    ("America/Sao_Paulo", 80),
    ("Europe/Madrid", 70),
    ("Australia/Sydney", 60),
    ("Asia/Tokyo", 50),
    ("America/Denver", 40),
    ("Asia/Kolkata", 30),
    ("Pacific/Auckland", 30),
    ("Asia/Kathmandu", 20),
];
/// Shortest typical time of a segment, and the range of typical times.
const USUAL_S: (f64, f64) = (40.0, 3_600.0);
/// Maximum draws to find a segment in the time zone of the activity.
const TRIES: u32 = 12;
/// Separates these values from those that draw rows.
const WORLD: u64 = 0x0005_e63e_4715_ba11;

/// An effort.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Effort {
    id: i64,
    segment_id: i64,
    athlete_id: i64,
    activity_id: i64,
    #[serde(rename = "elapsed_time")]
    elapsed_time_s: i64,
    started_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    tz: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    visibility: Option<&'static str>,
    #[serde(rename = "deleted", skip_serializing_if = "Not::not")]
    is_deleted: bool,
}

/// The current activity.
#[derive(Debug, Clone, Copy, Default)]
struct Activity {
    id: i64,
    athlete_id: i64,
    tz: Option<&'static str>,
    /// Remaining efforts.
    efforts_left: u32,
    /// Start of the next effort.
    next_ms: i64,
}

/// Generator of efforts.
#[derive(Debug)]
pub(super) struct Efforts {
    rhythm: Rhythm,
    from_ms: i64,
    until_ms: i64,
    rows: u64,
    segments: Skewed,
    athletes: u64,
    active_athletes: Skewed,
    zones: WeightedChoice<&'static str>,
    ids_before: i64,
    segment_key: u64,
    zone_key: u64,
    athlete_key: u64,
    activities: i64,
    activity: Activity,
}

impl Efforts {
    pub(super) fn new(request: &Request) -> Self {
        let mut world = StdRng::seed_from_u64(request.seed ^ WORLD);
        Self {
            rhythm: Rhythm::new(request.from_ms, request.until_ms),
            from_ms: request.from_ms,
            until_ms: request.until_ms,
            rows: request.rows,
            segments: Skewed::new(request.segments, 3),
            athletes: request.athletes,
            active_athletes: Skewed::new(request.athletes, 6),
            zones: WeightedChoice::new(&ZONES),
            ids_before: id_offset(request.seed),
            segment_key: world.random(),
            zone_key: world.random(),
            athlete_key: world.random(),
            activities: 0,
            activity: Activity::default(),
        }
    }

    /// Starts the next activity, in the time zone of its first segment.
    fn begin(&mut self, position: RowPosition, segment_id: i64, rng: &mut StdRng) {
        let at_ms = position
            .at_ms
            .unwrap_or_else(|| self.rhythm.at(position.row, self.rows));
        let athlete_id = if happens(rng, 0.8) {
            rng.random_range(1..=self.athletes.max(1)).cast_signed()
        } else {
            self.active_athletes.draw(rng)
        };
        self.activities += 1;
        self.activity = Activity {
            id: self.ids_before + self.activities,
            athlete_id,
            tz: self.tz(segment_id),
            efforts_left: rng.random_range(1..=4) * rng.random_range(1..=3),
            // Watches count whole seconds.
            next_ms: at_ms
                .div_euclid(1_000)
                .saturating_mul(1_000)
                .max(self.from_ms),
        };
    }

    /// Segment of the next effort of the activity, if there is one.
    fn next_segment(&self, rng: &mut StdRng) -> Option<i64> {
        if self.activity.efforts_left == 0 || self.activity.next_ms >= self.until_ms {
            return None;
        }
        (0..TRIES)
            .map(|_| self.segments.draw(rng))
            .find(|segment_id| self.tz(*segment_id) == self.activity.tz)
    }

    /// Time zone of a segment.
    fn tz(&self, segment_id: i64) -> Option<&'static str> {
        self.zones
            .at(hash_fraction(segment_id.unsigned_abs() ^ self.zone_key))
    }

    /// Time of the athlete on the segment, in whole seconds.
    fn elapsed_time_s(&self, segment_id: i64, athlete_id: i64, rng: &mut StdRng) -> i64 {
        let (shortest, range) = USUAL_S;
        let length = hash_fraction(segment_id.unsigned_abs() ^ self.segment_key);
        let usual = shortest + range * length * length;
        let pace = 0.75 + 0.7 * hash_fraction(athlete_id.unsigned_abs() ^ self.athlete_key);
        let form = 0.92 + 0.08 * (rng.random::<f64>() + rng.random::<f64>());
        let rests = if happens(rng, 0.03) {
            1.0 + 4.0 * rng.random::<f64>()
        } else {
            1.0
        };
        as_id(usual * pace * form * rests).max(1)
    }
}

impl RowGenerator for Efforts {
    type Row = Effort;

    const FAULTS: &'static [Fault] = &[
        Fault::Truncated,
        Fault::NotJson,
        Fault::quoted("segment_id"),
        Fault::fractional("elapsed_time"),
        Fault::invalid_date("started_at"),
        Fault::InvalidValue("elapsed_time", "0"),
        Fault::InvalidValue("elapsed_time", "-61"),
        Fault::Missing("athlete_id"),
        Fault::InvalidValue("tz", "\"Mars/Olympus\""),
        Fault::InvalidValue("visibility", "\"followers\""),
        Fault::huge("activity_id"),
    ];

    fn generate(&mut self, position: RowPosition, rng: &mut StdRng) -> Effort {
        if let Some(at_ms) = position.at_ms {
            (self.from_ms, self.until_ms) = (i64::MIN, at_ms);
        }
        let segment_id = self.next_segment(rng).unwrap_or_else(|| {
            let segment_id = self.segments.draw(rng);
            self.begin(position, segment_id, rng);
            segment_id
        });
        let Activity {
            id: activity_id,
            athlete_id,
            tz,
            next_ms: started_at_ms,
            ..
        } = self.activity;
        let elapsed_time_s = self.elapsed_time_s(segment_id, athlete_id, rng);
        let pause_s = rng.random_range(20..900);
        self.activity.efforts_left -= 1;
        self.activity.next_ms = started_at_ms.saturating_add((elapsed_time_s + pause_s) * 1_000);
        let visibility = match rng.random_range(0..100) {
            0 => Some("only_me"),
            1..=5 => Some("everyone"),
            _ => None,
        };
        Effort {
            id: self.ids_before + position.number,
            segment_id,
            athlete_id,
            activity_id,
            elapsed_time_s,
            started_at: instant(started_at_ms),
            tz,
            visibility,
            is_deleted: happens(rng, 0.01),
        }
    }

    fn edit(&self, effort: &mut Effort, rng: &mut StdRng) {
        match rng.random_range(0..10) {
            0..=5 => {
                let elapsed_s = effort.elapsed_time_s;
                let by_s = rng.random_range(1..=(elapsed_s / 4).max(1));
                let is_less = elapsed_s > by_s && rng.random();
                effort.elapsed_time_s += if is_less { -by_s } else { by_s };
            }
            6..=7 => {
                let is_hidden = effort.visibility == Some("only_me");
                effort.visibility = Some(if is_hidden { "everyone" } else { "only_me" });
            }
            _ => effort.is_deleted = !effort.is_deleted,
        }
    }
}
