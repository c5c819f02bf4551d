//! Who plays what, from where: few tracks are played much, most are played seldom.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Earlier events that may come again.
const REMEMBERED: usize = 4_096;
const HOUR_MS: i64 = 3_600_000;

/// Countries and how many of a thousand plays come from them; the rest come from nowhere.
const COUNTRIES: [(&str, u32); 32] = [
    ("US", 210),
    ("GB", 95),
    ("DE", 90),
    ("BR", 70),
    ("FR", 60),
    ("IN", 55),
    ("CA", 40),
    ("MX", 38),
    ("NL", 32),
    ("AU", 30),
    ("ES", 28),
    ("IT", 27),
    ("PL", 22),
    ("SE", 18),
    ("JP", 17),
    ("ID", 16),
    ("TR", 15),
    ("AR", 13),
    ("PT", 11),
    ("BE", 10),
    ("CH", 10),
    ("AT", 9),
    ("IE", 8),
    ("ZA", 8),
    ("NP", 6),
    ("NZ", 6),
    ("NO", 6),
    ("DK", 5),
    ("FI", 5),
    ("CL", 4),
    ("CO", 4),
    ("EG", 3),
];
/// Referrers and how many of a thousand plays come through them; the rest come directly.
const REFERRERS: [(&str, u32); 12] = [
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
];
/// Of a thousand plays: those that come from a page of their own on some blog.
const BLOGS: u32 = 60;

/// How many of each there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Owners of tracks.
    pub(crate) owners: u64,
    /// Tracks.
    pub(crate) tracks: u64,
    /// Listeners.
    pub(crate) listeners: u64,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            owners: 1_000,
            tracks: 20_000,
            listeners: 200_000,
        }
    }
}

/// Which fractions of the rows are out of the ordinary.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Mix {
    /// Rows that repeat an earlier one.
    pub(crate) duplicates: f64,
    /// Events that are hours or days older than their neighbours.
    pub(crate) late: f64,
    /// Rows that can't be taken.
    pub(crate) malformed: f64,
}

/// Where a play came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Referrer {
    /// One of the usual places.
    Usual(&'static str),
    /// A page of a blog.
    Blog(u32),
}

impl Referrer {
    /// The referrer as text, in `buffer` if it has to be made up.
    pub(crate) fn text(self, buffer: &mut String) -> &str {
        match self {
            Self::Usual(text) => text,
            Self::Blog(page) => {
                buffer.clear();
                buffer.push_str("https://blog.example/posts/");
                buffer.push_str(&page.to_string());
                buffer
            }
        }
    }
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Play {
    pub(crate) id: (u32, u64),
    pub(crate) track_id: i64,
    pub(crate) owner_id: i64,
    pub(crate) listener_id: Option<i64>,
    pub(crate) country: Option<&'static str>,
    pub(crate) referrer: Option<Referrer>,
    pub(crate) app_id: Option<i64>,
    pub(crate) download: bool,
    pub(crate) at_ms: i64,
    pub(crate) amount: Option<i64>,
}

/// What is wrong with a row that can't be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The line ends in the middle.
    CutOff,
    /// The line is no JSON at all.
    NoJson,
    /// The track is a text.
    WrongType,
    /// The track has a fraction.
    FractionalId,
    /// The date does not exist.
    ImpossibleDate,
    /// The kind is unknown.
    UnknownKind,
    /// The owner is missing.
    MissingOwner,
    /// The country is a word.
    WrongCountry,
    /// The id is beyond 64 bits.
    HugeNumber,
}

impl Fault {
    const EVERY: [Self; 9] = [
        Self::CutOff,
        Self::NoJson,
        Self::WrongType,
        Self::FractionalId,
        Self::ImpossibleDate,
        Self::UnknownKind,
        Self::MissingOwner,
        Self::WrongCountry,
        Self::HugeNumber,
    ];
}

/// One row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    /// The event.
    pub(crate) play: Play,
    /// What is wrong with it, if anything is.
    pub(crate) fault: Option<Fault>,
    /// Whether it repeats an earlier row.
    pub(crate) repeated: bool,
}

/// An endless stream of rows.
#[derive(Debug)]
pub(crate) struct Traffic {
    rng: StdRng,
    series: u32,
    shape: Shape,
    mix: Mix,
    tracks: Skewed,
    listeners: Skewed,
    apps: Skewed,
    countries: Vec<Option<&'static str>>,
    referrers: Vec<Option<Referrer>>,
    recent: Vec<Play>,
    remembered: usize,
    /// The place of the next event among the recent ones.
    next: usize,
}

impl Traffic {
    /// The stream of that seed.
    ///
    /// # Errors
    /// A shape that holds nobody.
    pub(crate) fn new(seed: u64, shape: Shape, mix: Mix) -> anyhow::Result<Self> {
        anyhow::ensure!(shape.owners > 0, "there are no owners");
        let referrers: Vec<(Referrer, u32)> = REFERRERS
            .into_iter()
            .map(|(text, weight)| (Referrer::Usual(text), weight))
            .chain([(Referrer::Blog(0), BLOGS)])
            .collect();
        let mut rng = StdRng::seed_from_u64(seed);
        Ok(Self {
            series: rng.random(),
            rng,
            shape,
            mix,
            tracks: Skewed::new(shape.tracks, -20),
            listeners: Skewed::new(shape.listeners, 4),
            apps: Skewed::new(40, -5),
            countries: urn(&COUNTRIES),
            referrers: urn(&referrers),
            recent: Vec::new(),
            remembered: REMEMBERED,
            next: 0,
        })
    }

    /// Lets only the last `events` events come again.
    pub(crate) fn remember(mut self, events: usize) -> Self {
        self.remembered = events.clamp(1, REMEMBERED);
        self
    }

    /// The next row, whose event, if it is new and not late, happened at `at_ms`.
    pub(crate) fn next(&mut self, at_ms: i64) -> Row {
        let dice: f64 = self.rng.random();
        if dice < self.mix.malformed {
            let play = self.play(at_ms);
            let fault = self.rng.random_range(0..Fault::EVERY.len());
            return Row {
                play,
                fault: Fault::EVERY.get(fault).copied(),
                repeated: false,
            };
        }
        if dice < self.mix.malformed + self.mix.duplicates && !self.recent.is_empty() {
            let length = self.recent.len();
            let back = as_index(self.rng.random::<f64>().powi(3) * as_f64(length as u64));
            // The newest event stands just before the next one's place.
            let place = (self.next + 2 * length - 1 - back.min(length - 1)) % length;
            if let Some(play) = self.recent.get(place) {
                return Row {
                    play: *play,
                    fault: None,
                    repeated: true,
                };
            }
        }
        let late_ms = if self.rng.random::<f64>() < self.mix.late {
            let hours: f64 = 1.0 + 119.0 * self.rng.random::<f64>().powi(3);
            #[expect(clippy::cast_possible_truncation, reason = "at most 120 hours")]
            let late_ms = (hours * as_f64(HOUR_MS.unsigned_abs())) as i64;
            late_ms
        } else {
            0
        };
        let play = self.play(at_ms - late_ms);
        match self.recent.get_mut(self.next) {
            Some(old) => *old = play,
            None => self.recent.push(play),
        }
        self.next = (self.next + 1) % self.remembered;
        Row {
            play,
            fault: None,
            repeated: false,
        }
    }

    fn play(&mut self, at_ms: i64) -> Play {
        let rng = &mut self.rng;
        let track = self.tracks.draw(rng);
        let listener = rng.random::<f64>() < 0.88;
        let listener_id = listener.then(|| self.listeners.draw(rng));
        let app = rng.random::<f64>() < 0.8;
        let app_id = app.then(|| self.apps.draw(rng));
        let country = drawn(&self.countries, rng);
        let referrer = match drawn(&self.referrers, rng) {
            Some(Referrer::Blog(_)) => Some(Referrer::Blog(rng.random_range(1..500))),
            other => other,
        };
        let amount = match rng.random_range(0..2_000_u32) {
            0 => Some(-1),
            1 => Some(rng.random_range(2..50)),
            2 => Some(1),
            _ => None,
        };
        Play {
            id: (self.series, rng.random()),
            track_id: track,
            owner_id: owner_of(track, self.shape.owners),
            listener_id,
            country,
            referrer,
            app_id,
            download: rng.random::<f64>() < 0.07,
            at_ms: at_ms + rng.random_range(0..1_000),
            amount,
        }
    }
}

/// Ranks from 1 on, as Zipf's law has them: rank r is drawn about as often as r to the power of
/// -(1 - 1/root). Drawn by inversion, with multiplications alone, so that every machine draws the
/// same.
#[derive(Debug, Clone, Copy)]
struct Skewed {
    root: i32,
    /// The root of the largest value, less one.
    reach: f64,
    last: i64,
}

impl Skewed {
    /// Ranks 1 to `count`. A negative `root` is a skew beyond that of 1/r.
    fn new(count: u64, root: i32) -> Self {
        Self {
            root,
            reach: as_f64(count + 1).powf(1.0 / f64::from(root)) - 1.0,
            last: count.cast_signed(),
        }
    }

    fn draw(self, rng: &mut StdRng) -> i64 {
        let drawn = (1.0 + rng.random::<f64>() * self.reach).powi(self.root);
        as_id(drawn).clamp(1, self.last)
    }
}

/// Whose track it is: whatever the seed, so that different inputs fit together. Owners with small
/// numbers have many tracks.
fn owner_of(track: i64, owners: u64) -> i64 {
    let mixed = track.unsigned_abs().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let part = as_f64(mixed >> 11) / as_f64(1 << 53);
    1 + as_id(part * part * as_f64(owners)).min(owners.cast_signed() - 1)
}

/// A thousand lots, so that drawing one at random gives each its weight, and nothing the rest.
fn urn<T: Copy>(weights: &[(T, u32)]) -> Vec<Option<T>> {
    let mut lots: Vec<Option<T>> = weights
        .iter()
        .flat_map(|(value, weight)| (0..*weight).map(move |_| Some(*value)))
        .collect();
    lots.resize(lots.len().max(1_000), None);
    lots
}

fn drawn<T: Copy>(lots: &[Option<T>], rng: &mut StdRng) -> Option<T> {
    let lot = rng.random_range(0..lots.len().max(1));
    lots.get(lot).copied().flatten()
}

fn as_f64(n: u64) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        reason = "what is drawn need not be exact"
    )]
    {
        n as f64
    }
}

fn as_id(x: f64) -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "drawn from a range of ids")]
    {
        x as i64
    }
}

fn as_index(x: f64) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "drawn from a range of indexes"
    )]
    {
        x as usize
    }
}
