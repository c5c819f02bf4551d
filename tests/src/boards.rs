//! Made-up rows of entities, small enough that everything collides, and questions about them.
//!
//! What must hold of an answer in the midst of things is weaker than at rest, since rows are read
//! again: each member's place must be one that the member had at some moment from the answer's
//! position on. At rest every answer is a plain sort.

mod nodes;

use std::collections::BTreeMap;

use jiff::civil::date;
use jiff::{Timestamp, ToSpan};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use schemas::entities::{Group, parse};
use schemas::partition::partition_of;
use schemas::source::Source;
use serde_json::{Value, json};
use stores::canon::CanonWrite;
use stores::log::{LogRead, LogWrite, NewRecords};

use crate::http::Client;
use crate::standings::{Asked, Truth};
use crate::world::{PARTITIONS, World};

pub use nodes::{Named, Stored, nodes};

const SEGMENTS: i64 = 4;
const ATHLETES: i64 = 9;
const APPLICATIONS: i64 = 3;
const ZONES: [&str; 4] = ["UTC", "America/New_York", "Asia/Tokyo", "Asia/Kathmandu"];
const BOARDS: [&str; 12] = [
    "overall",
    "overall",
    "gender:F",
    "gender:M",
    "gender:X",
    "age:0-19",
    "age:20-24",
    "age:35-44",
    "age:75+",
    "weight:0-54",
    "weight:75-84",
    "weight:115+",
];
const WINDOWS: [&str; 5] = ["all", "all", "year", "month", "day"];
/// 2012-12-30T00:00:00Z
const FIRST_SECOND: i64 = 1_356_825_600;

/// Everything that was taken in, and when.
#[derive(Debug)]
pub struct Ledger {
    rng: SmallRng,
    /// The state after each change; the first is empty.
    states: Vec<Truth>,
    /// By state and partition: where the log of efforts ended once it was told.
    ends: Vec<Vec<i64>>,
    /// The first state that the log may not have been told of.
    untold: Option<usize>,
    sent: Vec<(Source, String)>,
}

impl Ledger {
    /// Rows that are the same for the same seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            rng: SmallRng::seed_from_u64(seed),
            states: vec![Truth::default()],
            ends: vec![vec![0; PARTITIONS as usize]],
            untold: None,
            sent: Vec::new(),
        }
    }

    /// What is stored now.
    #[must_use]
    pub fn now(&self) -> &Truth {
        self.states.last().expect("a state")
    }

    /// Takes some rows of one source in, as a user does.
    pub async fn ingest(&mut self, world: &World) {
        let (source, lines) = self.lines();
        let taken = world.ingest_into(source, &lines).await;
        let good = self.change(world, source, &lines).await;
        assert_eq!(taken.accepted, good, "{source} {lines:?}");
    }

    /// Commits rows of one source, and dies before the log is told.
    pub async fn ingest_untold(&mut self, world: &World) {
        let (source, lines) = self.lines();
        let rows: Vec<_> = lines
            .iter()
            .map(|line| parse(source, line.as_bytes()).expect("a row"))
            .collect();
        let canon = &world.stores.canon;
        canon.apply(&rows, 1).await.expect("applying");
        self.untold.get_or_insert(self.states.len());
        self.change(world, source, &lines).await;
    }

    /// What was left in the outbox has been told.
    pub async fn all_told(&mut self, world: &World) {
        self.note_ends(world).await;
        let now = self.ends.last().cloned().unwrap_or_default();
        if let Some(first) = self.untold.take() {
            self.ends[first..].fill(now);
        }
    }

    /// Appends notifications that others had sent already, late and in any order.
    pub async fn repeat(&mut self, world: &World) {
        world.intake(Source::Efforts).await;
        for _ in 0..self.rng.random_range(1..8) {
            let group = Group {
                key: self.rng.random_range(1..=SEGMENTS),
                member: self.rng.random_range(1..=ATHLETES),
            };
            let key = group.key.to_string();
            let records = NewRecords {
                partition: partition_of(key.as_bytes(), PARTITIONS),
                keys: std::iter::once(Some(key.as_bytes())).collect(),
                values: std::iter::once(Some(group.notification(Source::Efforts))).collect(),
            };
            let log = &world.stores.log;
            let topic = Source::Efforts.topic();
            log.append(topic, &[records], 1).await.expect("appending");
        }
        self.note_ends(world).await;
    }

    async fn change(&mut self, world: &World, source: Source, lines: &[String]) -> u64 {
        let mut truth = self.now().clone();
        let mut good = 0;
        for line in lines {
            good += u64::from(truth.take(source.name(), line));
            self.sent.push((source, line.clone()));
        }
        self.states.push(truth);
        self.ends.push(Vec::new());
        self.note_ends(world).await;
        good
    }

    async fn note_ends(&mut self, world: &World) {
        let topic = Source::Efforts.topic();
        let spans = world.stores.log.spans(topic).await.expect("the log");
        let mut ends: Vec<i64> = spans.iter().map(|span| span.end).collect();
        ends.resize(PARTITIONS as usize, 0);
        if let Some(last) = self.ends.last_mut() {
            *last = ends;
        }
    }

    fn lines(&mut self) -> (Source, Vec<String>) {
        let source = match self.rng.random_range(0..20) {
            0..=10 => Source::Efforts,
            11..=13 => Source::Athletes,
            14 => Source::Clubs,
            15 => Source::Follows,
            _ => Source::Authorizations,
        };
        let count = self.rng.random_range(1..25);
        let lines = (0..count).map(|_| self.line(source)).collect();
        (source, lines)
    }

    fn line(&mut self, source: Source) -> String {
        let rng = &mut self.rng;
        if rng.random_bool(0.1) {
            let same: Vec<_> = self.sent.iter().filter(|(of, _)| *of == source).collect();
            if let Some((_, line)) = same.choose(rng) {
                return line.clone();
            }
        }
        let athlete = rng.random_range(1..=ATHLETES);
        let mut row = match source {
            Source::Efforts => effort(rng),
            Source::Athletes => {
                let mut row = json!({"id": athlete});
                if rng.random_bool(0.8) {
                    row["gender"] = json!(["F", "M", "X"].choose(rng));
                }
                if rng.random_bool(0.8) {
                    row["birth_year"] = json!(rng.random_range(1935..2000));
                }
                if rng.random_bool(0.8) {
                    row["weight_kg"] = json!(f64::from(rng.random_range(80..260)) / 2.0);
                }
                row
            }
            Source::Clubs => json!({"club_id": rng.random_range(1..3), "athlete_id": athlete}),
            Source::Follows => {
                json!({"follower_id": rng.random_range(1..4), "followed_id": athlete})
            }
            _ => {
                let id = rng.random_range(1..30_i64);
                let mut row = json!({
                    "id": id,
                    // Mostly the same for the same id: a row does not move.
                    "application_id": 1 + id % APPLICATIONS,
                    "athlete_id": 1 + (id / APPLICATIONS) % ATHLETES,
                    "created_at": "2013-01-01T00:00:00Z",
                });
                if rng.random_bool(0.4) {
                    row["revoked_at"] = json!("2099-01-01T00:00:00Z");
                }
                if rng.random_bool(0.05) {
                    row["athlete_id"] = json!(athlete);
                }
                row
            }
        };
        if source != Source::Authorizations && rng.random_bool(0.15) {
            row["deleted"] = json!(true);
        }
        if rng.random_bool(0.5) {
            row["version"] = json!(rng.random_range(0..4));
        }
        row.to_string()
    }

    /// Asks anything, in the midst of things.
    pub async fn ask(&self, world: &World, client: &Client, rng: &mut SmallRng) {
        let asked = question(rng);
        let segment = asked.segment;
        let before = self.states.len();
        let path = format!(
            "/api/v1/boards/segments/{segment}?{}&limit=1000",
            asked.query()
        );
        let (status, body) = get(client, &path).await;
        if status == 503 {
            assert!(world.is_live_lost(), "{path}: {body}");
            return;
        }
        assert_eq!(status, 200, "{path}: {body}");
        let answer: Value = serde_json::from_str(&body).expect("JSON");
        let partition = partition_of(segment.to_string().as_bytes(), PARTITIONS) as usize;
        let position = &answer["provenance"]["position"]["efforts"][partition];
        let position = position.as_i64().unwrap_or(0);
        // The newest state whose notifications are all below the position.
        let known = &self.ends[..self.untold.unwrap_or(self.ends.len())];
        let told = known.iter().rposition(|ends| ends[partition] <= position);
        // Clubs and follows are looked up at the moment of the question.
        let from = match (asked.club, asked.following) {
            (None, None) => told.unwrap_or(0),
            _ => return,
        };
        assert_eq!(before, self.states.len());
        self.compare_loosely(&asked, &answer, from);
    }

    /// Each member's place must be one that it had from a state on.
    fn compare_loosely(&self, asked: &Asked, answer: &Value, from: usize) {
        let entries = answer["entries"].as_array().expect("entries");
        assert_eq!(answer["total"], entries.len(), "{asked:?}: {answer}");
        let plain = |entry: &Value| {
            let mut entry = entry.clone();
            entry["rank"] = Value::Null;
            entry
        };
        let mut may_be: BTreeMap<i64, Vec<Value>> = BTreeMap::new();
        let mut may_be_gone: BTreeMap<i64, bool> = BTreeMap::new();
        for state in &self.states[from..] {
            let board = state.board(asked);
            for athlete in 1..=ATHLETES {
                let place = board.iter().find(|entry| entry["athlete_id"] == athlete);
                match place {
                    Some(entry) => may_be.entry(athlete).or_default().push(plain(entry)),
                    None => drop(may_be_gone.insert(athlete, true)),
                }
            }
        }
        let mut last = (0, 0);
        for (rank, entry) in (1..).zip(entries) {
            assert_eq!(entry["rank"], json!(rank), "{asked:?}: {answer}");
            let int = |name: &str| entry[name].as_i64().expect(name);
            let place = (int("elapsed_time"), int("effort_id"));
            assert!(place > last, "{asked:?}: {answer}");
            last = place;
            let states = may_be.get(&int("athlete_id"));
            let had = states.is_some_and(|states| states.contains(&plain(entry)));
            assert!(
                had,
                "{asked:?}: {entry} is older than {}",
                answer["provenance"]
            );
        }
        for athlete in 1..=ATHLETES {
            let is_there = entries.iter().any(|entry| entry["athlete_id"] == athlete);
            assert!(
                is_there || may_be_gone.contains_key(&athlete),
                "{asked:?}: athlete {athlete} is missing in {answer}"
            );
        }
    }

    /// Asks anything while nothing changes and everything was counted: it is a plain sort.
    pub async fn ask_at_rest(&self, client: &Client, rng: &mut SmallRng) {
        let asked = question(rng);
        let truth = self.now();
        let board = truth.board(&asked);
        let (segment, query) = (asked.segment, asked.query());
        let offset = rng.random_range(0..=board.len() + 1);
        let limit = rng.random_range(1..12);
        let path =
            format!("/api/v1/boards/segments/{segment}?{query}&offset={offset}&limit={limit}");
        let answer = client.ask(&path).await;
        assert_eq!(answer["total"], board.len(), "{path}: {answer}\n{board:?}");
        let first = offset.min(board.len());
        let until = board.len().min(first + limit);
        assert_eq!(answer["entries"], json!(board[first..until]), "{path}");
        assert_eq!(answer["provenance"]["complete"], true, "{path}: {answer}");

        let athlete = rng.random_range(1..=ATHLETES);
        let around = rng.random_range(0..4_usize);
        let path =
            format!("/api/v1/boards/segments/{segment}/athletes/{athlete}?{query}&around={around}");
        let (status, body) = get(client, &path).await;
        match board
            .iter()
            .position(|entry| entry["athlete_id"] == athlete)
        {
            None => {
                assert_eq!(status, 404, "{path}: {body}");
                assert!(body.contains("not-on-board"), "{path}: {body}");
            }
            Some(place) => {
                let answer: Value = serde_json::from_str(&body).expect("JSON");
                assert_eq!(answer["entry"], board[place], "{path}");
                let first = place.saturating_sub(around);
                let until = board.len().min(place + around + 1);
                assert_eq!(answer["neighbours"], json!(board[first..until]), "{path}");
                assert_eq!(answer["total"], board.len(), "{path}");
            }
        }

        let counts = client
            .ask(&format!("/api/v1/segments/{segment}/counts"))
            .await;
        let (efforts, athletes) = truth.counts(segment);
        assert_eq!(
            (&counts["efforts"], &counts["athletes"]),
            (&json!(efforts), &json!(athletes)),
            "segment {segment}"
        );
        let application = rng.random_range(1..=APPLICATIONS);
        let path = format!("/api/v1/boards/applications/{application}?limit=1");
        let answer = client.ask(&path).await;
        assert_eq!(answer["total"], truth.connected(application), "{path}");
    }
}

async fn get(client: &Client, path: &str) -> (u16, String) {
    let (client, path) = (client.clone(), path.to_owned());
    let asked = tokio::task::spawn_blocking(move || client.get(&path));
    asked.await.expect("asking")
}

fn effort(rng: &mut SmallRng) -> Value {
    let id = rng.random_range(1..80_i64);
    let seconds = FIRST_SECOND + rng.random_range(0..370 * 24) * 3600;
    let at = Timestamp::from_second(seconds).expect("in range");
    let at = at + rng.random_range(0..3_i64).milliseconds();
    let mut row = json!({
        "id": id,
        // Mostly the same for the same id: a row does not move.
        "segment_id": 1 + id % SEGMENTS,
        "athlete_id": 1 + (id / SEGMENTS) % ATHLETES,
        "activity_id": id * 10,
        "elapsed_time": rng.random_range(1..6),
        "started_at": at.to_string(),
    });
    if rng.random_bool(0.7) {
        row["tz"] = json!(ZONES.choose(rng));
    }
    if rng.random_bool(0.1) {
        row["visibility"] = json!("only_me");
    }
    if rng.random_bool(0.03) {
        row["segment_id"] = json!(rng.random_range(1..=SEGMENTS));
    }
    row
}

fn question(rng: &mut SmallRng) -> Asked {
    Asked {
        segment: rng.random_range(1..=SEGMENTS),
        board: (*BOARDS.choose(rng).expect("boards")).to_owned(),
        window: (*WINDOWS.choose(rng).expect("windows")).to_owned(),
        date: date(2012, 12, 29) + rng.random_range(0..375).days(),
        club: rng.random_bool(0.15).then(|| rng.random_range(1..4)),
        following: rng.random_bool(0.15).then(|| rng.random_range(1..5)),
    }
}
