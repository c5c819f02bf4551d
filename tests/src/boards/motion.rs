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

use super::{APPLICATIONS, ATHLETES, Ledger, get, index, question};
use crate::http::Client;
use crate::standings::Asked;
use crate::world::{PARTITIONS, World};

impl Ledger {
    /// Runs one random query while rows change.
    pub async fn ask(&self, world: &World, client: &Client, rng: &mut SmallRng) {
        let asked = question(rng);
        match rng.random_range(0..6) {
            0 | 1 => drop(self.ask_page(world, client, &asked, rng).await),
            2 | 3 => self.ask_place(world, client, &asked, rng).await,
            4 => self.ask_counts(world, client, asked.segment).await,
            _ if rng.random() => self.ask_size(world, client, rng).await,
            _ => self.ask_connected(world, client, rng).await,
        }
    }

    /// Requests a page, which may begin after the first rank. Returns it with the oldest state that
    /// it may show.
    async fn ask_page(
        &self,
        world: &World,
        client: &Client,
        asked: &Asked,
        rng: &mut SmallRng,
    ) -> Option<usize> {
        let (offset, limit) = if rng.random() {
            (0, 1000)
        } else {
            (rng.random_range(0..6_u64), rng.random_range(1..6))
        };
        let path = format!(
            "/api/v1/boards/segments/{}?{}&offset={offset}&limit={limit}",
            asked.segment,
            asked.query()
        );
        let answer = answered(world, client, &path).await?;
        let from = self.oldest(Source::Efforts, asked.segment, &answer);
        let permitted = self.permitted(asked, from);
        let told = format!("{path}: {answer}");
        let entries = answer["entries"].as_array().expect("entries");
        let total = answer["total"].as_u64().expect("a total");
        assert!(permitted.total().contains(&total), "{told}");
        let shown = total.saturating_sub(offset).min(limit);
        assert_eq!(entries.len() as u64, shown, "{told}");
        permitted.check(entries, offset + 1, &told);
        if offset == 0 && total <= limit {
            permitted.check_absent(&athletes(entries), &told);
        }
        if let Some(cursor) = answer["cursor"].as_str() {
            let last = entries.last().expect("a row before the cursor");
            self.ask_after(world, client, asked, (cursor, last)).await;
        }
        Some(from)
    }

    /// Requests the page after a row. It holds only rows that rank after that row, even if rows
    /// have moved.
    async fn ask_after(
        &self,
        world: &World,
        client: &Client,
        asked: &Asked,
        (cursor, last): (&str, &Value),
    ) {
        let path = format!(
            "/api/v1/boards/segments/{}?{}&limit=5&cursor={cursor}",
            asked.segment,
            asked.query()
        );
        let Some(answer) = answered(world, client, &path).await else {
            return;
        };
        let told = format!("{path} after {last}: {answer}");
        let from = self.oldest(Source::Efforts, asked.segment, &answer);
        let permitted = self.permitted(asked, from);
        let entries = answer["entries"].as_array().expect("entries");
        let order = |row: &Value| (row["elapsed_time"].as_i64(), row["effort_id"].as_i64());
        if let Some(first) = entries.first() {
            assert!(order(first) > order(last), "{told}");
            let rank = first["rank"].as_u64().expect("a rank");
            permitted.check(entries, rank, &told);
        }
    }

    /// Requests one athlete's entry and its neighbors.
    async fn ask_place(&self, world: &World, client: &Client, asked: &Asked, rng: &mut SmallRng) {
        // A refusal has no position; it must not be older than the page before.
        let before = self.ask_page(world, client, asked, rng).await;
        let athlete = rng.random_range(1..=ATHLETES);
        let around = rng.random_range(0..4_u64);
        let path = format!(
            "/api/v1/boards/segments/{}/athletes/{athlete}?{}&around={around}",
            asked.segment,
            asked.query()
        );
        let (status, body) = get(client, &path).await;
        if status == 404 {
            assert!(body.contains("not-on-board"), "{path}: {body}");
            let from = before.filter(|_| !world.is_disturbed()).unwrap_or(0);
            let permitted = self.permitted(asked, from);
            assert!(permitted.may_be_gone(athlete), "{path}: {body}");
            return;
        }
        let Some(answer) = whole(world, &path, status, &body) else {
            return;
        };
        let from = self.oldest(Source::Efforts, asked.segment, &answer);
        let permitted = self.permitted(asked, from);
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
    async fn ask_counts(&self, world: &World, client: &Client, segment: i64) {
        let path = format!("/api/v1/segments/{segment}/counts");
        let Some(answer) = answered(world, client, &path).await else {
            return;
        };
        let from = self.oldest(Source::Efforts, segment, &answer);
        let mut sums = BTreeSet::from([(0, 0)]);
        for athlete in 1..=ATHLETES {
            let states = self.states[from..].iter();
            let may_have: BTreeSet<u64> = states
                .map(|state| state.efforts_of(segment, athlete))
                .collect();
            let with = |(efforts, athletes): &(u64, u64)| {
                let (efforts, athletes) = (*efforts, *athletes);
                let sum = move |has: &u64| (efforts + has, athletes + u64::from(*has > 0));
                may_have.iter().map(sum).collect::<Vec<_>>()
            };
            sums = sums.iter().flat_map(with).collect();
        }
        let int = |name: &str| answer[name].as_u64().expect(name);
        let found = (int("efforts"), int("athletes"));
        assert!(sums.contains(&found), "{path}: {answer}: not in {sums:?}");
    }

    /// Requests the connected athletes of an application.
    async fn ask_connected(&self, world: &World, client: &Client, rng: &mut SmallRng) {
        let application = rng.random_range(1..=APPLICATIONS);
        let path = format!("/api/v1/boards/applications/{application}?limit=1000");
        let Some(answer) = answered(world, client, &path).await else {
            return;
        };
        let from = self.oldest(Source::Authorizations, application, &answer);
        let entries = answer["entries"].as_array().expect("entries");
        let connected = athletes(entries);
        assert_eq!(connected.len(), entries.len(), "{path}: {answer}");
        assert_eq!(answer["total"], entries.len(), "{path}: {answer}");
        for athlete in 1..=ATHLETES {
            let is_connected = connected.contains(&athlete);
            let mut states = self.states[from..].iter();
            assert!(
                states.any(|state| state.is_connected(application, athlete) == is_connected),
                "{path}: {answer}: athlete {athlete}"
            );
        }
    }

    /// Requests the number of athletes connected to an application.
    async fn ask_size(&self, world: &World, client: &Client, rng: &mut SmallRng) {
        let application = rng.random_range(1..=APPLICATIONS);
        let path = format!("/api/v1/applications/{application}");
        let (status, body) = get(client, &path).await;
        if status == 404 {
            return;
        }
        let Some(answer) = whole(world, &path, status, &body) else {
            return;
        };
        let from = self.oldest(Source::Authorizations, application, &answer);
        let had = |athlete: i64| {
            let states = self.states[from..].iter();
            states.map(move |state| state.is_connected(application, athlete))
        };
        let count = |is: &dyn Fn(i64) -> bool| (1..=ATHLETES).filter(|id| is(*id)).count() as u64;
        let least = count(&|athlete| had(athlete).all(|is| is));
        let most = count(&|athlete| had(athlete).any(|is| is));
        let connected = answer["connected_athletes"].as_u64().expect("a count");
        assert!(
            (least..=most).contains(&connected),
            "{path}: {answer}: not from {least} to {most}"
        );
    }

    /// Returns the newest state whose notifications are all below an answer's position. The answer
    /// contains at least this state.
    fn oldest(&self, source: Source, key: i64, answer: &Value) -> usize {
        let partition = partition_of(key.to_string().as_bytes(), PARTITIONS) as usize;
        let position = &answer["provenance"]["position"][source.name()][partition];
        let position = position.as_i64().unwrap_or(0);
        let known = &self.ends[..self.untold.unwrap_or(self.ends.len())];
        let told = known
            .iter()
            .rposition(|ends| ends[index(source)][partition] <= position);
        told.unwrap_or(0)
    }

    fn permitted(&self, asked: &Asked, from: usize) -> Permitted {
        let mut may_have: BTreeMap<i64, Vec<Option<Value>>> = BTreeMap::new();
        for state in &self.states[from..] {
            // Clubs and follows are looked up when the query runs.
            let mut state = state.clone();
            state.take_lists_of(self.now());
            let board = state.board(asked);
            for athlete in 1..=ATHLETES {
                let place = board.iter().find(|entry| entry["athlete_id"] == athlete);
                may_have
                    .entry(athlete)
                    .or_default()
                    .push(place.map(without_rank));
            }
        }
        Permitted(may_have)
    }
}

/// Possible entries by athlete; `None` means that the athlete may be absent from the board.
struct Permitted(BTreeMap<i64, Vec<Option<Value>>>);

impl Permitted {
    fn may_be_gone(&self, athlete: i64) -> bool {
        self.0[&athlete].contains(&None)
    }

    fn may_be_there(&self, athlete: i64) -> bool {
        self.0[&athlete].iter().any(Option::is_some)
    }

    fn total(&self) -> RangeInclusive<u64> {
        let count = |is: &dyn Fn(i64) -> bool| self.0.keys().filter(|id| is(**id)).count() as u64;
        count(&|athlete| !self.may_be_gone(athlete))..=count(&|athlete| self.may_be_there(athlete))
    }

    /// Returns the possible ranks of an entry, from the athletes that may rank before it and those
    /// that must.
    fn ranks(&self, entry: &Value) -> RangeInclusive<u64> {
        let (mut must, mut may) = (1, 1);
        for (athlete, states) in &self.0 {
            if entry["athlete_id"] != *athlete {
                let before = |state: &Option<Value>| {
                    let other = state.as_ref();
                    other.is_some_and(|other| place(other) < place(entry))
                };
                must += u64::from(states.iter().all(before));
                may += u64::from(states.iter().any(before));
            }
        }
        must..=may
    }

    /// Checks consecutive entries.
    fn check(&self, entries: &[Value], first_rank: u64, told: &str) {
        for (rank, entry) in (first_rank..).zip(entries) {
            assert_eq!(entry["rank"], json!(rank), "{told}");
            assert!(self.ranks(entry).contains(&rank), "{entry} of {told}");
            let athlete = entry["athlete_id"].as_i64().expect("an athlete");
            let had = self.0[&athlete].contains(&Some(without_rank(entry)));
            assert!(had, "{entry} is older than it says: {told}");
        }
        let ascend = entries
            .windows(2)
            .all(|pair| place(&pair[0]) < place(&pair[1]));
        let athletes = athletes(entries);
        assert!(ascend && athletes.len() == entries.len(), "{told}");
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
            return;
        };
        // An athlete that certainly ranks between two entries must be among them.
        for (athlete, states) in &self.0 {
            let between = |state: &Option<Value>| {
                let state = state.as_ref();
                state.is_some_and(|state| (place(first)..=place(last)).contains(&place(state)))
            };
            assert!(
                athletes.contains(athlete) || !states.iter().all(between),
                "athlete {athlete} is missing in {told}"
            );
        }
    }

    /// Checks that the athletes missing from a completely listed board may be absent.
    fn check_absent(&self, there: &BTreeSet<i64>, told: &str) {
        for athlete in self.0.keys() {
            assert!(
                there.contains(athlete) || self.may_be_gone(*athlete),
                "athlete {athlete} is missing in {told}"
            );
        }
    }
}

fn athletes(entries: &[Value]) -> BTreeSet<i64> {
    let ids = entries.iter().map(|entry| entry["athlete_id"].as_i64());
    ids.map(|id| id.expect("an athlete")).collect()
}

fn place(entry: &Value) -> (i64, i64) {
    let int = |name: &str| entry[name].as_i64().expect(name);
    (int("elapsed_time"), int("effort_id"))
}

fn without_rank(entry: &Value) -> Value {
    let mut entry = entry.clone();
    entry["rank"] = Value::Null;
    entry
}

/// Returns the answer, or `None` while live state is lost.
async fn answered(world: &World, client: &Client, path: &str) -> Option<Value> {
    let (status, body) = get(client, path).await;
    whole(world, path, status, &body)
}

fn whole(world: &World, path: &str, status: u16, body: &str) -> Option<Value> {
    if status == 503 {
        assert!(world.is_disturbed(), "{path}: {body}");
        return None;
    }
    assert_eq!(status, 200, "{path}: {body}");
    Some(serde_json::from_str(body).expect("JSON"))
}
