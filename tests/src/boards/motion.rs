//! Board queries while rows change.
//!
//! The checks are weaker than at rest, because rows are read several times. Each athlete's entry
//! must be one that the athlete had at some moment at or after the answer's position.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use rand::Rng;
use rand::rngs::SmallRng;
use schemas::partition::partition_of;
use schemas::source::Source;
use serde_json::{Value, json};

use super::{APPLICATIONS, ATHLETES, BoardHistory, get, log_index, random_query};
use crate::expected_boards::BoardQuery;
use crate::http::Client;
use crate::world::{PARTITIONS, World};

impl BoardHistory {
    /// Runs one random query while rows change.
    pub async fn check_random_query(&self, world: &World, client: &Client, rng: &mut SmallRng) {
        let board_query = random_query(rng);
        match rng.random_range(0..6) {
            0 | 1 => drop(self.check_page(world, client, &board_query, rng).await),
            2 | 3 => self.check_athlete(world, client, &board_query, rng).await,
            4 => self.check_counts(world, client, board_query.segment).await,
            _ if rng.random() => self.check_connected_count(world, client, rng).await,
            _ => self.check_connected(world, client, rng).await,
        }
    }

    /// Requests a page, which may begin after the first rank. Returns it with the oldest snapshot that
    /// it may show.
    async fn check_page(
        &self,
        world: &World,
        client: &Client,
        board_query: &BoardQuery,
        rng: &mut SmallRng,
    ) -> Option<usize> {
        let (offset, limit) = if rng.random() {
            (0, 1000)
        } else {
            (rng.random_range(0..6_u64), rng.random_range(1..6))
        };
        let path = format!(
            "/api/v1/boards/segments/{}?{}&offset={offset}&limit={limit}",
            board_query.segment,
            board_query.query()
        );
        let answer = request(world, client, &path).await?;
        let oldest = self.oldest(Source::Efforts, board_query.segment, &answer);
        let permitted = self.permitted(board_query, oldest);
        let context = format!("{path}: {answer}");
        let entries = answer["entries"].as_array().expect("entries");
        let total = answer["total"].as_u64().expect("a total");
        assert!(permitted.total().contains(&total), "{context}");
        let shown = total.saturating_sub(offset).min(limit);
        assert_eq!(entries.len() as u64, shown, "{context}");
        permitted.check(entries, offset + 1, &context);
        if offset == 0 && total <= limit {
            permitted.check_absent(&athletes(entries), &context);
        }
        if let Some(cursor) = answer["cursor"].as_str() {
            let last = entries.last().expect("a row before the cursor");
            self.check_page_after(world, client, board_query, cursor, last)
                .await;
        }
        Some(oldest)
    }

    /// Requests the page after a row. It holds only rows that rank after that row, even if rows
    /// have moved.
    async fn check_page_after(
        &self,
        world: &World,
        client: &Client,
        board_query: &BoardQuery,
        cursor: &str,
        last: &Value,
    ) {
        let path = format!(
            "/api/v1/boards/segments/{}?{}&limit=5&cursor={cursor}",
            board_query.segment,
            board_query.query()
        );
        let Some(answer) = request(world, client, &path).await else {
            return;
        };
        let context = format!("{path} after {last}: {answer}");
        let oldest = self.oldest(Source::Efforts, board_query.segment, &answer);
        let permitted = self.permitted(board_query, oldest);
        let entries = answer["entries"].as_array().expect("entries");
        let order = |row: &Value| (row["elapsed_time"].as_i64(), row["effort_id"].as_i64());
        if let Some(first) = entries.first() {
            assert!(order(first) > order(last), "{context}");
            let rank = first["rank"].as_u64().expect("a rank");
            permitted.check(entries, rank, &context);
        }
    }

    /// Requests one athlete's entry and its neighbors.
    async fn check_athlete(
        &self,
        world: &World,
        client: &Client,
        board_query: &BoardQuery,
        rng: &mut SmallRng,
    ) {
        // A refusal has no position; it must not be older than the page before.
        let before = self.check_page(world, client, board_query, rng).await;
        let athlete = rng.random_range(1..=ATHLETES);
        let around = rng.random_range(0..4_u64);
        let path = format!(
            "/api/v1/boards/segments/{}/athletes/{athlete}?{}&around={around}",
            board_query.segment,
            board_query.query()
        );
        let (status, body) = get(client, &path).await;
        if status == 404 {
            assert!(body.contains("not-on-board"), "{path}: {body}");
            let oldest = before.filter(|_| !world.is_disturbed()).unwrap_or(0);
            let permitted = self.permitted(board_query, oldest);
            assert!(permitted.may_be_absent(athlete), "{path}: {body}");
            return;
        }
        let Some(answer) = parse_answer(world, &path, status, &body) else {
            return;
        };
        let oldest = self.oldest(Source::Efforts, board_query.segment, &answer);
        let permitted = self.permitted(board_query, oldest);
        let total = answer["total"].as_u64().expect("a total");
        let rank = answer["entry"]["rank"].as_u64().expect("a rank");
        assert!(permitted.total().contains(&total), "{path}: {body}");
        assert_eq!(answer["entry"]["athlete_id"], athlete, "{path}: {body}");
        let neighbours = answer["neighbours"].as_array().expect("neighbours");
        assert!(neighbours.contains(&answer["entry"]), "{path}: {body}");
        let first = rank.saturating_sub(around).max(1);
        let last = total.min(rank + around);
        assert_eq!(neighbours.len() as u64, last + 1 - first, "{path}: {body}");
        permitted.check(neighbours, first, &format!("{path}: {body}"));
    }

    /// Requests the numbers of efforts and athletes and compares them with the sums of each
    /// athlete's possible values.
    async fn check_counts(&self, world: &World, client: &Client, segment: i64) {
        let path = format!("/api/v1/segments/{segment}/counts");
        let Some(answer) = request(world, client, &path).await else {
            return;
        };
        let oldest = self.oldest(Source::Efforts, segment, &answer);
        let mut sums = BTreeSet::from([(0, 0)]);
        for athlete in 1..=ATHLETES {
            let snapshots = self.snapshots[oldest..].iter();
            let possible_counts: BTreeSet<u64> = snapshots
                .map(|snapshot| snapshot.efforts_of(segment, athlete))
                .collect();
            let with = |(efforts, athletes): &(u64, u64)| {
                let (efforts, athletes) = (*efforts, *athletes);
                let sum = move |has: &u64| (efforts + has, athletes + u64::from(*has > 0));
                possible_counts.iter().map(sum).collect::<Vec<_>>()
            };
            sums = sums.iter().flat_map(with).collect();
        }
        let int = |name: &str| answer[name].as_u64().expect(name);
        let counts = (int("efforts"), int("athletes"));
        assert!(sums.contains(&counts), "{path}: {answer}: not in {sums:?}");
    }

    /// Requests the connected athletes of an application.
    async fn check_connected(&self, world: &World, client: &Client, rng: &mut SmallRng) {
        let application = rng.random_range(1..=APPLICATIONS);
        let path = format!("/api/v1/boards/applications/{application}?limit=1000");
        let Some(answer) = request(world, client, &path).await else {
            return;
        };
        let oldest = self.oldest(Source::Authorizations, application, &answer);
        let entries = answer["entries"].as_array().expect("entries");
        let connected = athletes(entries);
        assert_eq!(connected.len(), entries.len(), "{path}: {answer}");
        assert_eq!(answer["total"], entries.len(), "{path}: {answer}");
        for athlete in 1..=ATHLETES {
            let is_connected = connected.contains(&athlete);
            let mut snapshots = self.snapshots[oldest..].iter();
            assert!(
                snapshots
                    .any(|snapshot| snapshot.is_connected(application, athlete) == is_connected),
                "{path}: {answer}: athlete {athlete}"
            );
        }
    }

    /// Requests the number of athletes connected to an application.
    async fn check_connected_count(&self, world: &World, client: &Client, rng: &mut SmallRng) {
        let application = rng.random_range(1..=APPLICATIONS);
        let path = format!("/api/v1/applications/{application}");
        let (status, body) = get(client, &path).await;
        if status == 404 {
            return;
        }
        let Some(answer) = parse_answer(world, &path, status, &body) else {
            return;
        };
        let oldest = self.oldest(Source::Authorizations, application, &answer);
        let was_connected = |athlete: i64| {
            let snapshots = self.snapshots[oldest..].iter();
            snapshots.map(move |snapshot| snapshot.is_connected(application, athlete))
        };
        let count = |is: &dyn Fn(i64) -> bool| (1..=ATHLETES).filter(|id| is(*id)).count() as u64;
        let min = count(&|athlete| was_connected(athlete).all(|is| is));
        let max = count(&|athlete| was_connected(athlete).any(|is| is));
        let connected = answer["connected_athletes"].as_u64().expect("a count");
        assert!(
            (min..=max).contains(&connected),
            "{path}: {answer}: not from {min} to {max}"
        );
    }

    /// Returns the newest snapshot whose notifications are all below an answer's position. The answer
    /// contains at least this snapshot.
    fn oldest(&self, source: Source, key: i64, answer: &Value) -> usize {
        let partition = partition_of(key.to_string().as_bytes(), PARTITIONS) as usize;
        let position = &answer["provenance"]["position"][source.name()][partition];
        let position = position.as_i64().unwrap_or(0);
        let known = &self.ends[..self.first_unpublished.unwrap_or(self.ends.len())];
        let context = known
            .iter()
            .rposition(|ends| ends[log_index(source)][partition] <= position);
        context.unwrap_or(0)
    }

    fn permitted(&self, board_query: &BoardQuery, oldest: usize) -> PermittedEntries {
        let mut possible_entries: BTreeMap<i64, Vec<Option<Value>>> = BTreeMap::new();
        for snapshot in &self.snapshots[oldest..] {
            // Clubs and follows are looked up when the query runs.
            let mut snapshot = snapshot.clone();
            snapshot.copy_lists_from(self.current());
            let board = snapshot.board(board_query);
            for athlete in 1..=ATHLETES {
                let entry = board.iter().find(|entry| entry["athlete_id"] == athlete);
                possible_entries
                    .entry(athlete)
                    .or_default()
                    .push(entry.map(without_rank));
            }
        }
        PermittedEntries(possible_entries)
    }
}

/// Possible entries by athlete; `None` means that the athlete may be absent from the board.
struct PermittedEntries(BTreeMap<i64, Vec<Option<Value>>>);

impl PermittedEntries {
    fn may_be_absent(&self, athlete: i64) -> bool {
        self.0[&athlete].contains(&None)
    }

    fn may_be_present(&self, athlete: i64) -> bool {
        self.0[&athlete].iter().any(Option::is_some)
    }

    fn total(&self) -> RangeInclusive<u64> {
        let count = |is: &dyn Fn(i64) -> bool| self.0.keys().filter(|id| is(**id)).count() as u64;
        count(&|athlete| !self.may_be_absent(athlete))..=count(&|athlete| {
            self.may_be_present(athlete)
        })
    }

    /// Returns the possible ranks of an entry, from the athletes that may rank before it and those
    /// that must.
    fn ranks(&self, entry: &Value) -> RangeInclusive<u64> {
        let (mut lowest, mut highest) = (1, 1);
        for (athlete, possible_entries) in &self.0 {
            if entry["athlete_id"] != *athlete {
                let before = |possible_entry: &Option<Value>| {
                    let other = possible_entry.as_ref();
                    other.is_some_and(|other| sort_key(other) < sort_key(entry))
                };
                lowest += u64::from(possible_entries.iter().all(before));
                highest += u64::from(possible_entries.iter().any(before));
            }
        }
        lowest..=highest
    }

    /// Checks consecutive entries.
    fn check(&self, entries: &[Value], first_rank: u64, context: &str) {
        for (rank, entry) in (first_rank..).zip(entries) {
            assert_eq!(entry["rank"], json!(rank), "{context}");
            assert!(self.ranks(entry).contains(&rank), "{entry} of {context}");
            let athlete = entry["athlete_id"].as_i64().expect("an athlete");
            let had = self.0[&athlete].contains(&Some(without_rank(entry)));
            assert!(had, "{entry} is older than the position: {context}");
        }
        let ascend = entries
            .windows(2)
            .all(|pair| sort_key(&pair[0]) < sort_key(&pair[1]));
        let athletes = athletes(entries);
        assert!(ascend && athletes.len() == entries.len(), "{context}");
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
            return;
        };
        // An athlete that certainly ranks between two entries must be among them.
        for (athlete, possible_entries) in &self.0 {
            let between = |entry: &Option<Value>| {
                let entry = entry.as_ref();
                entry.is_some_and(|entry| {
                    (sort_key(first)..=sort_key(last)).contains(&sort_key(entry))
                })
            };
            assert!(
                athletes.contains(athlete) || !possible_entries.iter().all(between),
                "athlete {athlete} is missing in {context}"
            );
        }
    }

    /// Checks that the athletes missing from a completely listed board may be absent.
    fn check_absent(&self, listed: &BTreeSet<i64>, context: &str) {
        for athlete in self.0.keys() {
            assert!(
                listed.contains(athlete) || self.may_be_absent(*athlete),
                "athlete {athlete} is missing in {context}"
            );
        }
    }
}

fn athletes(entries: &[Value]) -> BTreeSet<i64> {
    let ids = entries.iter().map(|entry| entry["athlete_id"].as_i64());
    ids.map(|id| id.expect("an athlete")).collect()
}

fn sort_key(entry: &Value) -> (i64, i64) {
    let int = |name: &str| entry[name].as_i64().expect(name);
    (int("elapsed_time"), int("effort_id"))
}

fn without_rank(entry: &Value) -> Value {
    let mut entry = entry.clone();
    entry["rank"] = Value::Null;
    entry
}

/// Returns the answer, or `None` while live state is lost.
async fn request(world: &World, client: &Client, path: &str) -> Option<Value> {
    let (status, body) = get(client, path).await;
    parse_answer(world, path, status, &body)
}

fn parse_answer(world: &World, path: &str, status: u16, body: &str) -> Option<Value> {
    if status == 503 {
        assert!(world.is_disturbed(), "{path}: {body}");
        return None;
    }
    assert_eq!(status, 200, "{path}: {body}");
    Some(serde_json::from_str(body).expect("JSON"))
}
