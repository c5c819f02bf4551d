//! Generates plays. Few tracks are played often, most rarely.

use std::borrow::Cow;

use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

use super::fault::Fault;
use super::random_draws::{
    COUNTRIES, SkewedIds, WeightedChoice, draw_bool, hash_to_fraction, timestamp_from_ms, to_f64,
    to_i64, to_usize,
};
use super::request::GenerateRequest;
use super::rows::{GeneratedRows, Row, RowMix};
use super::time_distribution::TimeDistribution;

/// Maximum earlier events that may be repeated.
const REPEAT_WINDOW_MAX: usize = 4_096;
const HOUR_MS: i64 = 3_600_000;

/// Referrers with weights per thousand plays; the rest has none.
const REFERRERS: [(&str, u32); 13] = [
    ("https://www.google.com/", 140),
    ("https://www.reddit.com/r/listentothis/", 80),
    ("https://t.co/", 75),
    ("https://www.youtube.com/", 70),
    ("https://www.facebook.com/", 65),
    ("https://news.ycombinator.com/", 40),
    ("https://duckduckgo.com/", 35),
    ("https://music.example/charts?week=now&genre=electronic", 30),
    ("android-app://com.example.radio", 25),
    ("https://blog.example/\"best of\"", 15),
    ("https://пример.example/музыка", 10),
    ("", 5),
    (BLOG_POST_PREFIX, 60),
];

/// Prefix of numbered blog pages.
const BLOG_POST_PREFIX: &str = "https://blog.example/posts/";

const FAULTS: [Fault; 9] = [
    Fault::Truncated,
    Fault::NotJson,
    Fault::quoted("track_id"),
    Fault::fractional("track_id"),
    Fault::invalid_date("at"),
    Fault::InvalidValue("kind", "\"stream\""),
    Fault::Missing("owner_id"),
    Fault::InvalidValue("country", "\"Germany\""),
    Fault::huge("track_id"),
];

/// The number of distinct ids of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IdCounts {
    /// Number of owners.
    pub(crate) owners: u64,
    /// Number of tracks.
    pub(crate) tracks: u64,
    /// Number of listeners.
    pub(crate) listeners: u64,
    /// Number of player applications.
    pub(crate) apps: u64,
}

impl Default for IdCounts {
    fn default() -> Self {
        Self {
            owners: 1_000,
            tracks: 20_000,
            listeners: 200_000,
            apps: 40,
        }
    }
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Play {
    event_id: String,
    track_id: i64,
    owner_id: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    listener_id: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    country: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    referrer: Option<Cow<'static, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    app_id: Option<i64>,
    kind: &'static str,
    at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    amount: Option<i64>,
}

/// Generator of events.
#[derive(Debug)]
pub(crate) struct EventGenerator {
    rng: StdRng,
    id_prefix: u32,
    id_counts: IdCounts,
    mix: RowMix,
    tracks: SkewedIds,
    listeners: SkewedIds,
    apps: SkewedIds,
    countries: WeightedChoice<&'static str>,
    referrers: WeightedChoice<&'static str>,
    recent: Vec<Play>,
    repeat_window: usize,
    /// Index of the next event in the ring of recent ones.
    next_index: usize,
    /// Amount of each event, if not 1.
    amount: i64,
}

impl EventGenerator {
    /// Creates the generator of a seed.
    ///
    /// # Errors
    /// Counts without owners, tracks or listeners.
    pub(crate) fn new(seed: u64, id_counts: IdCounts, mix: RowMix) -> anyhow::Result<Self> {
        anyhow::ensure!(id_counts.owners > 0, "the number of owners is 0");
        let mut rng = StdRng::seed_from_u64(seed);
        Ok(Self {
            id_prefix: rng.random(),
            rng,
            id_counts,
            mix,
            tracks: SkewedIds::new(id_counts.tracks, -20),
            listeners: SkewedIds::new(id_counts.listeners, 4),
            apps: SkewedIds::new(id_counts.apps, -5),
            countries: WeightedChoice::new(&COUNTRIES),
            referrers: WeightedChoice::new(&REFERRERS),
            recent: Vec::new(),
            repeat_window: REPEAT_WINDOW_MAX,
            next_index: 0,
            amount: 1,
        })
    }

    /// Repeats only the last `events` events.
    pub(crate) fn with_repeat_window(mut self, events: usize) -> Self {
        self.repeat_window = events.clamp(1, REPEAT_WINDOW_MAX);
        self
    }

    /// Sets the amount of the following events.
    pub(crate) fn set_amount(&mut self, amount: i64) {
        self.amount = amount;
    }

    /// Generates the next row. A new event that is not late has the time `time_ms`.
    pub(crate) fn next_row(&mut self, time_ms: i64) -> Row<Play> {
        let fraction: f64 = self.rng.random();
        if fraction < self.mix.malformed {
            let play = self.draw_play(time_ms);
            let index = self.rng.random_range(0..FAULTS.len());
            return Row {
                fault: FAULTS.get(index).copied(),
                ..Row::new(play)
            };
        }
        if fraction < self.mix.malformed + self.mix.duplicates
            && let Some(play) = self.draw_earlier()
        {
            return Row {
                is_repeated: true,
                ..Row::new(play)
            };
        }
        let is_late = draw_bool(&mut self.rng, self.mix.late);
        let delay_ms = if is_late {
            let hours: f64 = 1.0 + 119.0 * self.rng.random::<f64>().powi(3);
            to_i64(hours * to_f64(HOUR_MS.unsigned_abs()))
        } else {
            0
        };
        let play = self.draw_play(time_ms - delay_ms);
        match self.recent.get_mut(self.next_index) {
            Some(oldest) => *oldest = play.clone(),
            None => self.recent.push(play.clone()),
        }
        self.next_index = (self.next_index + 1) % self.repeat_window;
        Row {
            is_late,
            ..Row::new(play)
        }
    }

    /// Draws an earlier event. Recent events are more likely than old ones.
    fn draw_earlier(&mut self) -> Option<Play> {
        let length = self.recent.len();
        if length == 0 {
            return None;
        }
        let age = to_usize(self.rng.random::<f64>().powi(3) * to_f64(length as u64));
        // The newest event is just before the index of the next one.
        let index = (self.next_index + 2 * length - 1 - age.min(length - 1)) % length;
        self.recent.get(index).cloned()
    }

    fn draw_play(&mut self, time_ms: i64) -> Play {
        let rng = &mut self.rng;
        let track_id = self.tracks.draw(rng);
        let has_listener = draw_bool(rng, 0.88);
        let listener_id = has_listener.then(|| self.listeners.draw(rng));
        let has_app = draw_bool(rng, 0.8);
        let app_id = has_app.then(|| self.apps.draw(rng));
        let country = self.countries.draw(rng);
        let referrer = match self.referrers.draw(rng) {
            Some(BLOG_POST_PREFIX) => {
                Some(format!("{BLOG_POST_PREFIX}{}", rng.random_range(1..500_u32)).into())
            }
            other => other.map(Cow::Borrowed),
        };
        let amount = match rng.random_range(0..2_000_u32) {
            _ if self.amount > 1 => Some(self.amount),
            0 => Some(-1),
            1 => Some(rng.random_range(2..50)),
            2 => Some(1),
            _ => None,
        };
        Play {
            event_id: format!("{:08x}-{:016x}", self.id_prefix, rng.random::<u64>()),
            track_id,
            owner_id: assign_owner(track_id, self.id_counts.owners),
            listener_id,
            country,
            referrer,
            app_id,
            kind: if draw_bool(rng, 0.07) {
                "download"
            } else {
                "play"
            },
            at: timestamp_from_ms(time_ms + rng.random_range(0..1_000)),
            amount,
        }
    }
}

/// The requested number of events in the requested time range.
pub(super) struct PlayStream {
    events: EventGenerator,
    times: TimeDistribution,
    row_count: u64,
    rows_generated: u64,
}

impl PlayStream {
    pub(super) fn new(request: &GenerateRequest) -> anyhow::Result<Self> {
        let id_counts = IdCounts {
            owners: request.owners,
            tracks: request.tracks,
            ..IdCounts::default()
        };
        Ok(Self {
            events: EventGenerator::new(request.seed, id_counts, request.mix)?,
            times: TimeDistribution::new(request.from_ms, request.end_ms),
            row_count: request.row_count,
            rows_generated: 0,
        })
    }
}

impl GeneratedRows for PlayStream {
    type Record = Play;

    fn next_row(&mut self) -> Row<Play> {
        let time_ms = self.times.time_at(self.rows_generated, self.row_count);
        self.rows_generated += 1;
        self.events.next_row(time_ms)
    }
}

/// Returns the owner of a track, the same for every seed, so that inputs fit together. Owners with
/// small ids have many tracks.
fn assign_owner(track_id: i64, owner_count: u64) -> i64 {
    let fraction = hash_to_fraction(track_id.unsigned_abs());
    1 + to_i64(fraction * fraction * to_f64(owner_count)).min(owner_count.cast_signed() - 1)
}
