//! Generates efforts: activities of athletes, each with some efforts on segments.
//!
//! Segments with small ids are popular, athletes with small ids very active. The seed determines
//! the time zone and the typical time of a segment, and the speed of an athlete. An activity stays
//! within one time zone.

use std::ops::Not;

use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

use super::entities::{EntityGenerator, RowPosition, compute_id_offset};
use super::fault::Fault;
use super::random_draws::{
    SkewedIds, WeightedChoice, draw_bool, hash_to_fraction, timestamp_from_ms, to_i64,
};
use super::request::GenerateRequest;
use super::time_distribution::TimeDistribution;

/// Time zones with weights per thousand segments; the rest has none, which is UTC.
const TIME_ZONES: [(&str, u32); 12] = [
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
/// Shortest typical time of a segment, and the width of the range of typical times.
const TYPICAL_TIMES_S: (f64, f64) = (40.0, 3_600.0);
/// Maximum draws to find a segment in the time zone of the activity.
const SEGMENT_DRAWS_MAX: u32 = 12;
/// Separates the random numbers of segments and athletes from those of rows.
const PROPERTIES_SEED: u64 = 0x0005_e63e_4715_ba11;

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
pub(super) struct EffortGenerator {
    times: TimeDistribution,
    from_ms: i64,
    end_ms: i64,
    row_count: u64,
    segments: SkewedIds,
    athlete_count: u64,
    active_athletes: SkewedIds,
    zones: WeightedChoice<&'static str>,
    id_offset: i64,
    segment_hash_key: u64,
    zone_hash_key: u64,
    athlete_hash_key: u64,
    activity_count: i64,
    activity: Activity,
}

impl EffortGenerator {
    pub(super) fn new(request: &GenerateRequest) -> Self {
        let mut properties = StdRng::seed_from_u64(request.seed ^ PROPERTIES_SEED);
        Self {
            times: TimeDistribution::new(request.from_ms, request.end_ms),
            from_ms: request.from_ms,
            end_ms: request.end_ms,
            row_count: request.row_count,
            segments: SkewedIds::new(request.segments, 3),
            athlete_count: request.athletes,
            active_athletes: SkewedIds::new(request.athletes, 6),
            zones: WeightedChoice::new(&TIME_ZONES),
            id_offset: compute_id_offset(request.seed),
            segment_hash_key: properties.random(),
            zone_hash_key: properties.random(),
            athlete_hash_key: properties.random(),
            activity_count: 0,
            activity: Activity::default(),
        }
    }

    /// Starts the next activity, in the time zone of its first segment.
    fn start_activity(&mut self, position: RowPosition, segment_id: i64, rng: &mut StdRng) {
        let time_ms = position
            .time_ms
            .unwrap_or_else(|| self.times.time_at(position.rows_before, self.row_count));
        let athlete_id = if draw_bool(rng, 0.8) {
            rng.random_range(1..=self.athlete_count.max(1))
                .cast_signed()
        } else {
            self.active_athletes.draw(rng)
        };
        self.activity_count += 1;
        self.activity = Activity {
            id: self.id_offset + self.activity_count,
            athlete_id,
            tz: self.time_zone(segment_id),
            efforts_left: rng.random_range(1..=4) * rng.random_range(1..=3),
            // Watches count whole seconds.
            next_ms: time_ms
                .div_euclid(1_000)
                .saturating_mul(1_000)
                .max(self.from_ms),
        };
    }

    /// Draws the segment of the next effort of the activity, if there is one.
    fn draw_segment(&self, rng: &mut StdRng) -> Option<i64> {
        if self.activity.efforts_left == 0 || self.activity.next_ms >= self.end_ms {
            return None;
        }
        (0..SEGMENT_DRAWS_MAX)
            .map(|_| self.segments.draw(rng))
            .find(|segment_id| self.time_zone(*segment_id) == self.activity.tz)
    }

    /// Time zone of a segment.
    fn time_zone(&self, segment_id: i64) -> Option<&'static str> {
        self.zones.value_at_quantile(hash_to_fraction(
            segment_id.unsigned_abs() ^ self.zone_hash_key,
        ))
    }

    /// Draws the time of the athlete on the segment, in whole seconds.
    fn draw_elapsed_s(&self, segment_id: i64, athlete_id: i64, rng: &mut StdRng) -> i64 {
        let (shortest_s, range_s) = TYPICAL_TIMES_S;
        let length = hash_to_fraction(segment_id.unsigned_abs() ^ self.segment_hash_key);
        let typical_s = shortest_s + range_s * length * length;
        let pace_factor =
            0.75 + 0.7 * hash_to_fraction(athlete_id.unsigned_abs() ^ self.athlete_hash_key);
        let form_factor = 0.92 + 0.08 * (rng.random::<f64>() + rng.random::<f64>());
        let rest_factor = if draw_bool(rng, 0.03) {
            1.0 + 4.0 * rng.random::<f64>()
        } else {
            1.0
        };
        to_i64(typical_s * pace_factor * form_factor * rest_factor).max(1)
    }
}

impl EntityGenerator for EffortGenerator {
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
        if let Some(time_ms) = position.time_ms {
            (self.from_ms, self.end_ms) = (i64::MIN, time_ms);
        }
        let segment_id = self.draw_segment(rng).unwrap_or_else(|| {
            let segment_id = self.segments.draw(rng);
            self.start_activity(position, segment_id, rng);
            segment_id
        });
        let Activity {
            id: activity_id,
            athlete_id,
            tz,
            next_ms: started_at_ms,
            ..
        } = self.activity;
        let elapsed_time_s = self.draw_elapsed_s(segment_id, athlete_id, rng);
        let pause_s = rng.random_range(20..900);
        self.activity.efforts_left -= 1;
        self.activity.next_ms = started_at_ms.saturating_add((elapsed_time_s + pause_s) * 1_000);
        let visibility = match rng.random_range(0..100) {
            0 => Some("only_me"),
            1..=5 => Some("everyone"),
            _ => None,
        };
        Effort {
            id: self.id_offset + position.number,
            segment_id,
            athlete_id,
            activity_id,
            elapsed_time_s,
            started_at: timestamp_from_ms(started_at_ms),
            tz,
            visibility,
            is_deleted: draw_bool(rng, 0.01),
        }
    }

    fn edit(&self, effort: &mut Effort, rng: &mut StdRng) {
        match rng.random_range(0..10) {
            0..=5 => {
                let elapsed_s = effort.elapsed_time_s;
                let change_s = rng.random_range(1..=(elapsed_s / 4).max(1));
                let is_shorter = elapsed_s > change_s && rng.random();
                effort.elapsed_time_s += if is_shorter { -change_s } else { change_s };
            }
            6..=7 => {
                let is_hidden = effort.visibility == Some("only_me");
                effort.visibility = Some(if is_hidden { "everyone" } else { "only_me" });
            }
            _ => effort.is_deleted = !effort.is_deleted,
        }
    }
}
