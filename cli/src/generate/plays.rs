//! Generates plays. Few tracks are played often, most rarely.

use std::borrow::Cow;

use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

use super::draw::{
    COUNTRIES, Skewed, WeightedChoice, as_f64, as_id, as_index, happens, hash_fraction, instant,
};
use super::fault::Fault;
use super::request::Request;
use super::rhythm::Rhythm;
use super::rows::{Mix, Row, Rows};

/// Earlier events that may be repeated.
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
    (POSTS, 60),
];

/// Prefix of numbered blog pages.
const POSTS: &str = "https://blog.example/posts/";

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
pub(crate) struct Shape {
    /// Number of owners.
    pub(crate) owners: u64,
    /// Number of tracks.
    pub(crate) tracks: u64,
    /// Number of listeners.
    pub(crate) listeners: u64,
    /// Number of player applications.
    pub(crate) apps: u64,
}

impl Default for Shape {
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

/// An endless stream of events.
#[derive(Debug)]
pub(crate) struct Traffic {
    rng: StdRng,
    series: u32,
    shape: Shape,
    mix: Mix,
    tracks: Skewed,
    listeners: Skewed,
    apps: Skewed,
    countries: WeightedChoice<&'static str>,
    referrers: WeightedChoice<&'static str>,
    recent: Vec<Play>,
    remembered: usize,
    /// Index of the next event in the ring of recent ones.
    next: usize,
    /// Amount of each event, if not 1.
    amount: i64,
}

impl Traffic {
    /// Creates the stream of a seed.
    ///
    /// # Errors
    /// A shape without owners, tracks or listeners.
    pub(crate) fn new(seed: u64, shape: Shape, mix: Mix) -> anyhow::Result<Self> {
        anyhow::ensure!(shape.owners > 0, "the number of owners is 0");
        let mut rng = StdRng::seed_from_u64(seed);
        Ok(Self {
            series: rng.random(),
            rng,
            shape,
            mix,
            tracks: Skewed::new(shape.tracks, -20),
            listeners: Skewed::new(shape.listeners, 4),
            apps: Skewed::new(shape.apps, -5),
            countries: WeightedChoice::new(&COUNTRIES),
            referrers: WeightedChoice::new(&REFERRERS),
            recent: Vec::new(),
            remembered: REPEAT_WINDOW_MAX,
            next: 0,
            amount: 1,
        })
    }

    /// Repeats only the last `events` events.
    pub(crate) fn with_repeat_window(mut self, events: usize) -> Self {
        self.remembered = events.clamp(1, REPEAT_WINDOW_MAX);
        self
    }

    /// Sets the amount of the following events.
    pub(crate) fn set_amount(&mut self, plays: i64) {
        self.amount = plays;
    }

    /// The next row. A new event that is not late has the time `at_ms`.
    pub(crate) fn next(&mut self, at_ms: i64) -> Row<Play> {
        let dice: f64 = self.rng.random();
        if dice < self.mix.malformed {
            let play = self.play(at_ms);
            let fault = self.rng.random_range(0..FAULTS.len());
            return Row {
                fault: FAULTS.get(fault).copied(),
                ..Row::new(play)
            };
        }
        if dice < self.mix.malformed + self.mix.duplicates
            && let Some(play) = self.earlier()
        {
            return Row {
                repeated: true,
                ..Row::new(play)
            };
        }
        let late = happens(&mut self.rng, self.mix.late);
        let late_ms = if late {
            let hours: f64 = 1.0 + 119.0 * self.rng.random::<f64>().powi(3);
            as_id(hours * as_f64(HOUR_MS.unsigned_abs()))
        } else {
            0
        };
        let play = self.play(at_ms - late_ms);
        match self.recent.get_mut(self.next) {
            Some(old) => *old = play.clone(),
            None => self.recent.push(play.clone()),
        }
        self.next = (self.next + 1) % self.remembered;
        Row {
            late,
            ..Row::new(play)
        }
    }

    /// Draws an earlier event. Recent events are more likely than old ones.
    fn earlier(&mut self) -> Option<Play> {
        let length = self.recent.len();
        if length == 0 {
            return None;
        }
        let back = as_index(self.rng.random::<f64>().powi(3) * as_f64(length as u64));
        // The newest event is just before the index of the next one.
        let position = (self.next + 2 * length - 1 - back.min(length - 1)) % length;
        self.recent.get(position).cloned()
    }

    fn play(&mut self, at_ms: i64) -> Play {
        let rng = &mut self.rng;
        let track = self.tracks.draw(rng);
        let listener = happens(rng, 0.88);
        let listener_id = listener.then(|| self.listeners.draw(rng));
        let app = happens(rng, 0.8);
        let app_id = app.then(|| self.apps.draw(rng));
        let country = self.countries.draw(rng);
        let referrer = match self.referrers.draw(rng) {
            Some(POSTS) => Some(format!("{POSTS}{}", rng.random_range(1..500_u32)).into()),
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
            event_id: format!("{:08x}-{:016x}", self.series, rng.random::<u64>()),
            track_id: track,
            owner_id: owner_of(track, self.shape.owners),
            listener_id,
            country,
            referrer,
            app_id,
            kind: if happens(rng, 0.07) {
                "download"
            } else {
                "play"
            },
            at: instant(at_ms + rng.random_range(0..1_000)),
            amount,
        }
    }
}

/// Generates the requested number of events in the requested time range.
pub(super) struct Plays {
    traffic: Traffic,
    rhythm: Rhythm,
    rows: u64,
    row: u64,
}

impl Plays {
    pub(super) fn new(request: &Request) -> anyhow::Result<Self> {
        let shape = Shape {
            owners: request.owners,
            tracks: request.tracks,
            ..Shape::default()
        };
        Ok(Self {
            traffic: Traffic::new(request.seed, shape, request.mix)?,
            rhythm: Rhythm::new(request.from_ms, request.until_ms),
            rows: request.rows,
            row: 0,
        })
    }
}

impl Rows for Plays {
    type Record = Play;

    fn next(&mut self) -> Row<Play> {
        let at_ms = self.rhythm.at(self.row, self.rows);
        self.row += 1;
        self.traffic.next(at_ms)
    }
}

/// Owner of a track, the same for every seed, so that inputs fit together. Owners with small ids have many tracks.
fn owner_of(track: i64, owners: u64) -> i64 {
    let part = hash_fraction(track.unsigned_abs());
    1 + as_id(part * part * as_f64(owners)).min(owners.cast_signed() - 1)
}
