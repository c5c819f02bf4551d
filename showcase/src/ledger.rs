//! The lines of plays as they are in the log, read back and parsed one by one.
//!
//! Of records with the same owner, event id and time the first one by offset counts. No code is
//! shared with the layers: lines are plain JSON, and duplicates are found with a set.

use std::collections::{HashMap, HashSet};

use anyhow::Context as _;
use jiff::Timestamp;
use schemas::source::Source;
use serde_json::Value;
use stores::log::{FetchLimit, Span};

use crate::found::Shared;

const STEP: FetchLimit = FetchLimit {
    records: 10_000,
    bytes: 16 * 1024 * 1024,
};
/// Fields that plays are filtered and counted by.
pub(crate) const FIELDS: [&str; 7] = [
    "owner_id",
    "track_id",
    "listener_id",
    "country",
    "referrer",
    "app_id",
    "kind",
];

/// An event that counts: the first of its identity.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) offset: i64,
    /// In seconds since the Unix epoch, cut off.
    pub(crate) at: i64,
    pub(crate) amount: i64,
    /// For each of [`FIELDS`] the index of its value.
    pub(crate) values: [usize; 7],
}

/// The events of the log, as far as it was read back.
#[derive(Debug)]
pub(crate) struct Ledger<'a> {
    shared: &'a Shared,
    /// By partition: what is to be read next, where lines of this demo begin, and events.
    partitions: Vec<(i64, i64, Vec<Event>)>,
    identities: HashSet<(i64, String, i64)>,
    /// Values of fields; the first is null.
    pub(crate) values: Vec<Value>,
    indexes: HashMap<String, usize>,
}

impl<'a> Ledger<'a> {
    /// A ledger of a log that was as `before` when this demo began.
    pub(crate) fn new(shared: &'a Shared, before: &[Span]) -> Self {
        let partitions = before.iter().map(|span| (span.start, span.end, Vec::new()));
        Self {
            shared,
            partitions: partitions.collect(),
            identities: HashSet::new(),
            values: vec![Value::Null],
            indexes: HashMap::from([("null".to_owned(), 0)]),
        }
    }

    /// Reads back to the ends of all partitions, and returns these ends.
    pub(crate) async fn read_all(&mut self) -> anyhow::Result<Vec<i64>> {
        let spans = self
            .shared
            .setup
            .stores
            .log
            .spans(Source::Plays.topic())
            .await?;
        let ends: Vec<i64> = spans.iter().map(|span| span.end).collect();
        self.read_to(&ends).await?;
        Ok(ends)
    }

    /// Reads back at least up to a position.
    pub(crate) async fn read_to(&mut self, position: &[i64]) -> anyhow::Result<()> {
        let log = &self.shared.setup.stores.log;
        for (number, end) in (0..).zip(position) {
            let index = number as usize;
            if index == self.partitions.len() {
                self.partitions.push((0, 0, Vec::new()));
            }
            while self.partitions[index].0 < *end {
                let from = self.partitions[index].0;
                let fetched = log.fetch(Source::Plays.topic(), number, from, STEP).await?;
                anyhow::ensure!(
                    fetched.next_offset > from,
                    "an answer counts up to offset {end} of partition {index}, but the log ends at {from}"
                );
                let records = &fetched.records;
                for (offset, line) in records.offsets.values().iter().zip(records.values.iter()) {
                    let added = self.add(index, *offset, line.unwrap_or_default());
                    added
                        .with_context(|| format!("partition {index}, offset {offset} of plays"))?;
                }
                self.partitions[index].0 = fetched.next_offset;
            }
        }
        Ok(())
    }

    /// The events below a position.
    pub(crate) fn below<'b>(&'b self, position: &'b [i64]) -> impl Iterator<Item = &'b Event> {
        let partitions = self.partitions.iter().zip(position);
        partitions.flat_map(|((.., events), end)| {
            &events[..events.partition_point(|event| event.offset < *end)]
        })
    }

    /// How many partitions the log has.
    pub(crate) fn partitions(&self) -> usize {
        self.partitions.len()
    }

    /// An event, where `index` may be any number.
    pub(crate) fn pick(&self, index: usize) -> Option<&Event> {
        let count: usize = self
            .partitions
            .iter()
            .map(|(.., events)| events.len())
            .sum();
        let mut all = self.partitions.iter().flat_map(|(.., events)| events);
        all.nth(index.checked_rem(count)?)
    }

    fn add(&mut self, index: usize, offset: i64, line: &[u8]) -> anyhow::Result<()> {
        if offset >= self.partitions[index].1 {
            self.shared.count_line(line, -1);
        }
        let event: Value = serde_json::from_slice(line)?;
        let field = |name: &str| event.get(name).unwrap_or(&Value::Null);
        let at: Timestamp = field("at").as_str().unwrap_or_default().parse()?;
        let owner = field("owner_id").as_i64().context("no owner")?;
        let id = field("event_id").as_str().unwrap_or_default().to_owned();
        if !self.identities.insert((owner, id, at.as_microsecond())) {
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
        self.partitions[index].2.push(Event {
            offset,
            at: at.as_millisecond().div_euclid(1_000),
            amount: field("amount").as_i64().unwrap_or(1),
            values,
        });
        Ok(())
    }
}
