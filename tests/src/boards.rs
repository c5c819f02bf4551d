//! Generated entity rows with few distinct ids, so that they collide often, and random board
//! queries. While nothing changes, every response is a plain sort.

mod explained;
mod motion;
mod nodes;
mod rest;

use jiff::civil::date;
use jiff::{Timestamp, ToSpan};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use schemas::entities::{Group, parse};
use schemas::partition::partition_of;
use schemas::source::Source;
use serde_json::{Value, json};
use stores::log::NewRecords;

use crate::expected_boards::{BoardQuery, ExpectedEntities};
use crate::http::Client;
use crate::world::{PARTITIONS, World};

pub use nodes::{KeyedNodes, StoredNodes, collect_nodes};

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
/// The logs that carry change notifications.
const LOGS: [Source; 2] = [Source::Efforts, Source::Authorizations];
/// 2012-12-30T00:00:00Z
const FIRST_SECOND: i64 = 1_356_825_600;

/// Every ingested row, with the expected entities after each change.
#[derive(Debug)]
pub struct BoardHistory {
    rng: SmallRng,
    /// The expected entities after each change; the first are empty.
    snapshots: Vec<ExpectedEntities>,
    /// By snapshot, log and partition: the end of the log once the snapshot's notifications were
    /// published.
    ends: Vec<[Vec<i64>; 2]>,
    /// The first snapshot whose notifications may be unpublished.
    first_unpublished: Option<usize>,
    sent: Vec<(Source, String)>,
}

impl BoardHistory {
    /// Returns a history that generates the same rows for the same seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            rng: SmallRng::seed_from_u64(seed),
            snapshots: vec![ExpectedEntities::default()],
            ends: vec![[vec![0; PARTITIONS as usize], vec![0; PARTITIONS as usize]]],
            first_unpublished: None,
            sent: Vec::new(),
        }
    }

    /// Returns the current expected entities.
    #[must_use]
    pub fn current(&self) -> &ExpectedEntities {
        self.snapshots.last().expect("a snapshot")
    }

    /// Ingests applications with a capacity that is never reached.
    pub async fn ingest_applications(&self, world: &World) {
        let application = |id: i64| {
            let row =
                json!({"id": id, "name": id.to_string(), "owner": 1, "athlete_capacity": 1_000});
            row.to_string()
        };
        let lines: Vec<String> = (1..=APPLICATIONS).map(application).collect();
        world.ingest_into(Source::Applications, &lines).await;
    }

    /// Ingests some rows of one source, as a user does.
    pub async fn ingest(&mut self, world: &World) {
        let (source, lines) = self.random_lines();
        let report = world.ingest_into(source, &lines).await;
        let accepted = self.record_change(world, source, &lines).await;
        assert_eq!(report.accepted, accepted, "{source} {lines:?}");
    }

    /// Deletes most efforts.
    pub async fn ingest_deletes(&mut self, world: &World) {
        let mut lines = Vec::new();
        let efforts: Vec<Value> = self.current().efforts().cloned().collect();
        for mut row in efforts {
            if self.rng.random_bool(0.9) {
                row["deleted"] = json!(true);
                lines.push(row.to_string());
            }
        }
        world.ingest_into(Source::Efforts, &lines).await;
        self.record_change(world, Source::Efforts, &lines).await;
    }

    /// Commits rows of one source and stops before their notifications are published.
    pub async fn ingest_unpublished(&mut self, world: &World) {
        let (source, lines) = self.random_lines();
        let rows: Vec<_> = lines
            .iter()
            .map(|line| parse(source, line.as_bytes()).expect("a row"))
            .collect();
        let entities = &world.stores.entities;
        entities.apply(&rows, 1).await.expect("applying");
        self.first_unpublished.get_or_insert(self.snapshots.len());
        self.record_change(world, source, &lines).await;
    }

    /// Records that the outbox has been published.
    pub async fn mark_published(&mut self, world: &World) {
        self.record_ends(world).await;
        let ends = self.ends.last().cloned().unwrap_or_default();
        if let Some(first) = self.first_unpublished.take() {
            self.ends[first..].fill(ends);
        }
    }

    /// Appends duplicates of published notifications, late and in any order.
    pub async fn append_duplicates(&mut self, world: &World) {
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
                headers: Vec::new(),
            };
            let log = &world.stores.log;
            let topic = Source::Efforts.topic();
            log.append(topic, &[records], 1).await.expect("appending");
        }
        self.record_ends(world).await;
    }

    async fn record_change(&mut self, world: &World, source: Source, lines: &[String]) -> u64 {
        let mut truth = self.current().clone();
        let mut accepted = 0;
        for line in lines {
            accepted += u64::from(truth.apply_line(source.name(), line));
            self.sent.push((source, line.clone()));
        }
        self.snapshots.push(truth);
        self.ends.push(Default::default());
        self.record_ends(world).await;
        accepted
    }

    async fn record_ends(&mut self, world: &World) {
        for source in LOGS {
            let spans = world.stores.log.spans(source.topic()).await;
            let spans = spans.expect("the log");
            let mut ends: Vec<i64> = spans.iter().map(|span| span.end).collect();
            ends.resize(PARTITIONS as usize, 0);
            self.ends.last_mut().expect("a snapshot")[log_index(source)] = ends;
        }
    }

    fn random_lines(&mut self) -> (Source, Vec<String>) {
        let source = match self.rng.random_range(0..20) {
            0..=10 => Source::Efforts,
            11..=13 => Source::Athletes,
            14 => Source::Clubs,
            15 => Source::Follows,
            _ => Source::Authorizations,
        };
        let count = self.rng.random_range(1..25);
        let lines = (0..count).map(|_| self.random_line(source)).collect();
        (source, lines)
    }

    fn random_line(&mut self, source: Source) -> String {
        let rng = &mut self.rng;
        if rng.random_bool(0.1) {
            let sent_lines: Vec<_> = self
                .sent
                .iter()
                .filter(|(sent_source, _)| *sent_source == source)
                .collect();
            if let Some((_, line)) = sent_lines.choose(rng) {
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
                if rng.random_bool(0.2) {
                    row["disqualified"] = json!(rng.random_bool(0.8));
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
                    // The same id mostly keeps its application, because a row must not move.
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
}

fn log_index(source: Source) -> usize {
    usize::from(source == Source::Authorizations)
}

async fn get(client: &Client, path: &str) -> (u16, String) {
    let (client, path) = (client.clone(), path.to_owned());
    let response = tokio::task::spawn_blocking(move || client.get(&path));
    response.await.expect("a request")
}

fn effort(rng: &mut SmallRng) -> Value {
    let id = rng.random_range(1..80_i64);
    let seconds = FIRST_SECOND + rng.random_range(0..370 * 24) * 3600;
    let started_at = Timestamp::from_second(seconds).expect("in range");
    let started_at = started_at + rng.random_range(0..3_i64).milliseconds();
    let mut row = json!({
        "id": id,
        // The same id mostly keeps its segment, because a row must not move.
        "segment_id": 1 + id % SEGMENTS,
        "athlete_id": 1 + (id / SEGMENTS) % ATHLETES,
        "activity_id": id * 10,
        "elapsed_time": rng.random_range(1..6),
        "started_at": started_at.to_string(),
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

fn random_query(rng: &mut SmallRng) -> BoardQuery {
    BoardQuery {
        segment: rng.random_range(1..=SEGMENTS),
        board: (*BOARDS.choose(rng).expect("boards")).to_owned(),
        window: (*WINDOWS.choose(rng).expect("windows")).to_owned(),
        date: date(2012, 12, 29) + rng.random_range(0..375).days(),
        club: rng.random_bool(0.15).then(|| rng.random_range(1..4)),
        following: rng.random_bool(0.15).then(|| rng.random_range(1..5)),
    }
}
