//! Reads the lines of plays back from the log, and parses them one by one.
//!
//! Of records with the same owner, event id and time, the one with the lowest offset counts. Shares
//! no code with the layers: lines are plain JSON, and a set finds duplicates.

use std::collections::{HashMap, HashSet};

use anyhow::Context as _;
use jiff::Timestamp;
use schemas::source::Source;
use serde_json::Value;
use stores::log::{FetchLimit, Span};

use crate::shared::SharedState;

const FETCH_LIMIT: FetchLimit = FetchLimit {
    records: 10_000,
    bytes: 16 * 1024 * 1024,
};
/// The fields by which queries filter and break down plays.
pub(crate) const FIELDS: [&str; 7] = [
    "owner_id",
    "track_id",
    "listener_id",
    "country",
    "referrer",
    "app_id",
    "kind",
];

/// An event that is not a duplicate.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) offset: i64,
    /// Seconds since the Unix epoch, rounded down.
    pub(crate) time_s: i64,
    pub(crate) amount: i64,
    /// For each of [`FIELDS`], the index of its value in [`Ledger::values`].
    pub(crate) values: [usize; 7],
}

/// The events of a log partition.
#[derive(Debug)]
struct PartitionEvents {
    next_offset: i64,
    /// The offset of the first line of this demo.
    demo_start: i64,
    events: Vec<Event>,
}

/// The events of the log that were read back.
#[derive(Debug)]
pub(crate) struct Ledger<'a> {
    shared: &'a SharedState,
    partitions: Vec<PartitionEvents>,
    identities: HashSet<(i64, String, i64)>,
    /// The distinct values of fields. The first is null.
    pub(crate) values: Vec<Value>,
    indexes: HashMap<String, usize>,
}

impl<'a> Ledger<'a> {
    /// An empty ledger. `initial_spans` are the spans of the log before the demo.
    pub(crate) fn new(shared: &'a SharedState, initial_spans: &[Span]) -> Self {
        let partitions = initial_spans.iter().map(|span| PartitionEvents {
            next_offset: span.start,
            demo_start: span.end,
            events: Vec::new(),
        });
        Self {
            shared,
            partitions: partitions.collect(),
            identities: HashSet::new(),
            values: vec![Value::Null],
            indexes: HashMap::from([("null".to_owned(), 0)]),
        }
    }

    /// Reads to the ends of all partitions, and returns these ends.
    pub(crate) async fn read_all(&mut self) -> anyhow::Result<Vec<i64>> {
        let log = &self.shared.setup.stores.log;
        let spans = log.spans(Source::Plays.topic()).await?;
        let ends: Vec<i64> = spans.iter().map(|span| span.end).collect();
        self.read_to(&ends).await?;
        Ok(ends)
    }

    /// Reads at least up to a position.
    pub(crate) async fn read_to(&mut self, position: &[i64]) -> anyhow::Result<()> {
        let log = &self.shared.setup.stores.log;
        for (partition, end) in (0..).zip(position) {
            let index = partition as usize;
            if index == self.partitions.len() {
                self.partitions.push(PartitionEvents {
                    next_offset: 0,
                    demo_start: 0,
                    events: Vec::new(),
                });
            }
            while self.partitions[index].next_offset < *end {
                let start = self.partitions[index].next_offset;
                let topic = Source::Plays.topic();
                let fetched = log.fetch(topic, partition, start, FETCH_LIMIT).await?;
                anyhow::ensure!(
                    fetched.next_offset > start,
                    "an answer counts up to offset {end} of partition {index}, but the log ends at {start}"
                );
                let records = &fetched.records;
                for (offset, line) in records.offsets.values().iter().zip(records.values.iter()) {
                    let added = self.add(index, *offset, line.unwrap_or_default());
                    added
                        .with_context(|| format!("partition {index}, offset {offset} of plays"))?;
                }
                self.partitions[index].next_offset = fetched.next_offset;
            }
        }
        Ok(())
    }

    /// Returns the events below a position.
    pub(crate) fn below<'b>(&'b self, position: &'b [i64]) -> impl Iterator<Item = &'b Event> {
        let partitions = self.partitions.iter().zip(position);
        partitions.flat_map(|(PartitionEvents { events, .. }, end)| {
            &events[..events.partition_point(|event| event.offset < *end)]
        })
    }

    /// The number of partitions of the log.
    pub(crate) fn partition_count(&self) -> usize {
        self.partitions.len()
    }

    /// Picks an event by any number, modulo the number of events.
    pub(crate) fn pick(&self, number: usize) -> Option<&Event> {
        let partitions = self.partitions.iter();
        let count: usize = partitions.map(|partition| partition.events.len()).sum();
        let partitions = self.partitions.iter();
        let mut events = partitions.flat_map(|partition| &partition.events);
        events.nth(number.checked_rem(count)?)
    }

    fn add(&mut self, index: usize, offset: i64, line: &[u8]) -> anyhow::Result<()> {
        if offset >= self.partitions[index].demo_start {
            self.shared.count_line(line, -1);
        }
        let event: Value = serde_json::from_slice(line)?;
        let field = |name: &str| event.get(name).unwrap_or(&Value::Null);
        let time: Timestamp = field("at").as_str().unwrap_or_default().parse()?;
        let owner = field("owner_id")
            .as_i64()
            .context("the line has no owner_id")?;
        let id = field("event_id").as_str().unwrap_or_default().to_owned();
        if !self.identities.insert((owner, id, time.as_microsecond())) {
            return Ok(());
        }
        let values = FIELDS.map(|name| {
            let value = field(name);
            let new = self.values.len();
            let index = *self.indexes.entry(value.to_string()).or_insert(new);
            if index == new {
                self.values.push(value.clone());
            }
            index
        });
        self.partitions[index].events.push(Event {
            offset,
            time_s: time.as_millisecond().div_euclid(1_000),
            amount: field("amount").as_i64().unwrap_or(1),
            values,
        });
        Ok(())
    }
}
