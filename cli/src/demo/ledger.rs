//! The raw lines as they stand in the log, read back and taken apart one by one.
//!
//! Of records with the same owner, event id and time the first one by offset counts. It shares no
//! code with the layers: lines are read as plain JSON, duplicates are found with a set.

use std::collections::HashSet;
use std::sync::Arc;

use anyhow::Context;
use jiff::Timestamp;
use schemas::source::Source;
use serde_json::Value;
use stores::log::{FetchLimit, LogRead};

use super::producer::Pending;

const STEP: FetchLimit = FetchLimit {
    records: 10_000,
    bytes: 16 * 1024 * 1024,
};

/// An event that counts: the first of its identity.
#[derive(Debug, Clone)]
pub(super) struct Event {
    pub(super) offset: i64,
    pub(super) owner: i64,
    pub(super) track: i64,
    pub(super) listener: Option<i64>,
    pub(super) country: Option<Arc<str>>,
    pub(super) referrer: Option<Arc<str>>,
    pub(super) app: Option<i64>,
    pub(super) kind: Arc<str>,
    /// In seconds since the Unix epoch, cut off.
    pub(super) at: i64,
    pub(super) amount: i64,
}

#[derive(Debug, Default)]
struct Part {
    next: i64,
    /// Lines from here on were given by this demo.
    ours_from: i64,
    events: Vec<Event>,
}

/// What the log holds, as far as it was read back.
#[derive(Debug)]
pub(super) struct Ledger {
    log: Arc<dyn LogRead>,
    pending: Arc<Pending>,
    parts: Vec<Part>,
    seen: HashSet<(i64, String, i64)>,
    texts: HashSet<Arc<str>>,
    /// Lines in the log that nobody gave.
    strange: Vec<String>,
}

impl Ledger {
    /// A ledger that begins where the log ends: what comes from now on is ours.
    pub(super) async fn new(log: Arc<dyn LogRead>, pending: Arc<Pending>) -> anyhow::Result<Self> {
        let spans = log.spans(Source::Plays.topic()).await?;
        let parts = spans.iter().map(|span| Part {
            next: span.start,
            ours_from: span.end,
            events: Vec::new(),
        });
        Ok(Self {
            parts: parts.collect(),
            log,
            pending,
            seen: HashSet::new(),
            texts: HashSet::new(),
            strange: Vec::new(),
        })
    }

    /// Reads back up to where each partition ends now; answers these ends.
    pub(super) async fn read_all(&mut self) -> anyhow::Result<Vec<i64>> {
        let spans = self.log.spans(Source::Plays.topic()).await?;
        let ends: Vec<i64> = spans.iter().map(|span| span.end).collect();
        self.read_to(&ends).await?;
        Ok(ends)
    }

    /// Reads back at least up to the position.
    pub(super) async fn read_to(&mut self, position: &[i64]) -> anyhow::Result<()> {
        while self.parts.len() < position.len() {
            self.parts.push(Part::default());
        }
        let topic = Source::Plays.topic();
        for (index, end) in position.iter().enumerate() {
            let partition = u32::try_from(index)?;
            while let Some(part) = self.parts.get(index)
                && part.next < *end
            {
                let from = part.next;
                let fetched = self.log.fetch(topic, partition, from, STEP).await?;
                anyhow::ensure!(
                    fetched.next_offset > from,
                    "an answer counts up to offset {end} of partition {partition}, but the log ends at {from}"
                );
                let records = &fetched.records;
                for (offset, line) in records.offsets.values().iter().zip(records.values.iter()) {
                    self.note(index, *offset, line.unwrap_or_default())?;
                }
                if let Some(part) = self.parts.get_mut(index) {
                    part.next = fetched.next_offset;
                }
            }
        }
        Ok(())
    }

    /// The events that count below the position.
    pub(super) fn below<'a>(&'a self, position: &'a [i64]) -> impl Iterator<Item = &'a Event> {
        self.parts.iter().zip(position).flat_map(|(part, end)| {
            let count = part.events.partition_point(|event| event.offset < *end);
            part.events.iter().take(count)
        })
    }

    /// The event at `place` among all, going around.
    pub(super) fn pick(&self, place: usize) -> Option<&Event> {
        let count: usize = self.parts.iter().map(|part| part.events.len()).sum();
        let mut place = place.checked_rem(count)?;
        for part in &self.parts {
            match part.events.get(place) {
                Some(event) => return Some(event),
                None => place -= part.events.len(),
            }
        }
        None
    }

    /// Faults of the log itself: lines that nobody gave, and lines that are missing.
    pub(super) fn faults(&self) -> Vec<String> {
        let mut faults = self.strange.clone();
        let missing = self.pending.len();
        if missing > 0 {
            faults.push(format!(
                "{missing} lines were given to the log and are not in it"
            ));
        }
        faults
    }

    fn note(&mut self, index: usize, offset: i64, line: &[u8]) -> anyhow::Result<()> {
        let ours = self
            .parts
            .get(index)
            .is_some_and(|part| offset >= part.ours_from);
        if ours && !self.pending.read_back(line) {
            self.strange.push(format!(
                "partition {index}, offset {offset}: nobody gave this line: {}",
                String::from_utf8_lossy(line)
            ));
        }
        let event: Value = serde_json::from_slice(line)
            .with_context(|| format!("partition {index}, offset {offset} of the log"))?;
        let int = |name: &str| event.get(name).and_then(Value::as_i64);
        let at: Timestamp = event
            .get("at")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .parse()?;
        let owner = int("owner_id").context("a line without owner")?;
        let id = event.get("event_id").and_then(Value::as_str);
        let identity = (
            owner,
            id.unwrap_or_default().to_owned(),
            at.as_microsecond(),
        );
        if !self.seen.insert(identity) {
            return Ok(());
        }
        let mut text = |name: &str| {
            let text = event.get(name).and_then(Value::as_str)?;
            Some(match self.texts.get(text) {
                Some(known) => Arc::clone(known),
                None => {
                    let new: Arc<str> = text.into();
                    self.texts.insert(Arc::clone(&new));
                    new
                }
            })
        };
        let event = Event {
            offset,
            owner,
            track: int("track_id").context("a line without track")?,
            listener: int("listener_id"),
            country: text("country"),
            referrer: text("referrer"),
            app: int("app_id"),
            kind: text("kind").context("a line without kind")?,
            at: at.as_millisecond().div_euclid(1_000),
            amount: int("amount").unwrap_or(1),
        };
        if let Some(part) = self.parts.get_mut(index) {
            part.events.push(event);
        }
        Ok(())
    }
}
