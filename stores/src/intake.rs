//! Ingests lines: checks them, appends events with their keys to the log, and applies rows to the
//! entity store with notifications. Rejected lines become dead letters. Files, the HTTP API and all
//! other inputs use this module.

mod anonymize;
mod reprocess;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arrow::array::{Array, BinaryBuilder};
use schemas::clock::Clock;
use schemas::dead_letter::DeadLetter;
use schemas::entities::{self, Entity, Group};
use schemas::line::skip_blank_lines;
use schemas::plays;
use schemas::source::{Source, SourceKind};
use tokio_util::sync::CancellationToken;

use crate::admin::{INGEST, ingest_actor};
use crate::entities::EntityWrite;
use crate::erasures::{SuppressedPeople, Suppressions};
use crate::log::{KeyedColumns, LogWrite, NewRecords, PartitionCounts};
use crate::relay::OutboxRelay;
use crate::{Error, Result};

pub use reprocess::{ReprocessBatch, ReprocessedIds};

/// A rejected line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedLine {
    /// The line number, counted by the caller.
    pub line: u64,
    /// The field, the fault and the expected value.
    pub reason: String,
}

/// The result of ingesting lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IntakeReport {
    /// The number of lines that are in the log or in the entity store now.
    pub accepted: u64,
    /// Lines that are dead letters now, in order.
    pub rejected: Vec<RejectedLine>,
    /// The number of lines that [`Intake::check_dead_letters`] dropped because a row with the same
    /// id and version is stored, probably from a later line.
    pub superseded: u64,
    /// The number of rows that were dropped because they name an erased athlete.
    pub erased: u64,
}

/// Checked lines, ready to be written.
#[derive(Debug)]
pub struct CheckedLines {
    input: ValidInput,
    dead_letters: PendingDeadLetters,
}

impl CheckedLines {
    /// Adds lines that could not be read, each with its number, the reason and its bytes. They
    /// become dead letters too.
    pub fn add_unreadable(&mut self, lines: impl IntoIterator<Item = (u64, String, Vec<u8>)>) {
        for (number, reason, bytes) in lines {
            self.dead_letters.add(number, &bytes, reason);
        }
    }
}

/// The valid part of checked lines.
#[derive(Debug)]
enum ValidInput {
    Events(KeyedEvents),
    /// Rows, and the number and bytes of each line.
    Rows(Vec<Entity>, Vec<(u64, Vec<u8>)>),
}

/// Events with their keys.
#[derive(Debug)]
struct KeyedEvents {
    groups: Vec<NewRecords>,
    /// The number of partitions that the events are grouped for.
    partitions: u32,
}

impl KeyedEvents {
    fn count(&self) -> u64 {
        self.groups
            .iter()
            .map(|group| group.values.len() as u64)
            .sum()
    }

    /// Groups the records for another number of partitions. Events of one key keep their order.
    fn repartition(self, partitions: u32) -> Vec<NewRecords> {
        if partitions == self.partitions {
            return self.groups;
        }
        let mut columns = KeyedColumns::default();
        for group in &self.groups {
            let records = group.keys.iter().zip(&group.values);
            for (key, value) in records {
                let key = key.unwrap_or_default();
                columns.add(partitions, key, value.unwrap_or_default());
            }
        }
        columns.finish()
    }
}

/// Dead letters to append.
#[derive(Debug)]
struct PendingDeadLetters {
    source: Source,
    origin: String,
    now_ms: i64,
    /// The dead letters with their line numbers.
    entries: Vec<(u64, DeadLetter)>,
    /// True if they are in the log already.
    are_in_log: bool,
}

impl PendingDeadLetters {
    fn add(&mut self, line: u64, bytes: &[u8], reason: String) {
        let dead_letter = DeadLetter {
            source: self.source.name().to_owned(),
            reason,
            origin: format!("{}:{line}", self.origin),
            at_ms: self.now_ms,
            raw: bytes.to_vec(),
        };
        self.entries.push((line, dead_letter));
    }

    /// Appends the dead letters in the order of their lines, and returns the rejected lines.
    async fn append(
        mut self,
        log: &dyn LogWrite,
        suppressed: &SuppressedPeople,
    ) -> Result<Vec<RejectedLine>> {
        for (_, dead_letter) in &mut self.entries {
            suppressed.redact(self.source, dead_letter);
            // A search of binary data takes milliseconds.
            tokio::task::yield_now().await;
        }
        self.entries.sort_by_key(|(line, _)| *line);
        let (lines, dead_letters): (Vec<u64>, Vec<DeadLetter>) = self.entries.into_iter().unzip();
        if !self.are_in_log {
            append_dead_letters(log, self.source, &dead_letters, self.now_ms).await?;
            let metric = "backstitch_ingest_dead_letters_total";
            metrics::counter!(metric, "source" => self.source.name())
                .increment(dead_letters.len() as u64);
        }
        let rejected = lines.into_iter().zip(dead_letters);
        let rejected = rejected.map(|(line, dead_letter)| RejectedLine {
            line,
            reason: dead_letter.reason,
        });
        Ok(rejected.collect())
    }
}

/// The stores that lines are written to.
#[derive(Debug, Clone)]
pub struct IntakePorts {
    /// The log of events, notifications and dead letters.
    pub log: Arc<dyn LogWrite>,
    /// The entity store.
    pub entities: Arc<dyn EntityWrite>,
    /// Removes suppressed people from the input.
    pub suppressions: Suppressions,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

/// Ingests lines of one source.
#[derive(Debug, Clone)]
pub struct Intake {
    ports: IntakePorts,
    relay: OutboxRelay,
    source: Source,
    partition_counts: PartitionCounts,
    /// The number of partitions of the source's topic at the last write; 1 if there is no topic.
    last_partition_count: Arc<AtomicU32>,
    /// When cancelled, the remaining notifications are left to the speed layer.
    stop: CancellationToken,
    /// The sender of the lines, for audit entries of applications.
    actor: String,
}

impl Intake {
    /// Appends notifications of groups to the log as if their rows had changed, so that the speed
    /// layer recomputes them.
    ///
    /// # Errors
    /// Those of the log.
    pub async fn notify_groups(&self, groups: &[Group]) -> Result<()> {
        self.relay.append_notifications(self.source, groups).await
    }

    /// Opens the intake, and creates the source's topics with `partitions` partitions if they do
    /// not exist.
    ///
    /// # Errors
    /// Those of the log.
    pub async fn open(ports: IntakePorts, source: Source, partitions: u32) -> Result<Self> {
        let log = &ports.log;
        let partition_counts = PartitionCounts::new(Arc::clone(log), partitions);
        let mut partition_count = 1;
        if Source::LOGGED.contains(&source) {
            partition_count = partition_counts.count(source.topic()).await?;
        }
        log.ensure_topic(source.dead_letter_topic(), 1).await?;
        let relay = OutboxRelay::new(
            Arc::clone(&ports.entities),
            Arc::clone(log),
            Arc::clone(&ports.clock),
            partitions,
        );
        Ok(Self {
            ports,
            relay,
            source,
            partition_counts,
            last_partition_count: Arc::new(AtomicU32::new(partition_count)),
            stop: CancellationToken::new(),
            actor: INGEST.to_owned(),
        })
    }

    /// Stops publishing the notifications of a large change when `stop` is cancelled. The rest
    /// stays in the outbox for the speed layer.
    #[must_use]
    pub fn with_stop(mut self, stop: CancellationToken) -> Self {
        self.stop = stop;
        self
    }

    /// Uses this key as the sender in audit entries of applications.
    #[must_use]
    pub fn with_key(mut self, key: &str) -> Self {
        self.actor = ingest_actor(key);
        self
    }

    /// The number of partitions of the source's topic at the last write; 1 if there is no topic.
    #[must_use]
    pub fn partition_count(&self) -> u32 {
        self.last_partition_count.load(Ordering::Relaxed)
    }

    /// Ingests lines, each with its number; blank lines are skipped. When the call returns, every
    /// line is durably in the log, in the entity store, or among the dead letters with the origin
    /// `origin:NUMBER`.
    ///
    /// Pass a few thousand lines at a time: they are written in one step.
    ///
    /// # Errors
    /// Those of the stores. The result is then unknown, and the lines may be ingested again: a
    /// repeated event counts once, and a repeated row is the same row.
    pub async fn ingest<'a>(
        &self,
        origin: &str,
        lines: impl Iterator<Item = (u64, &'a [u8])>,
    ) -> Result<IntakeReport> {
        self.write(self.check(origin, lines)).await
    }

    /// Appends lines that were rejected elsewhere to the dead letters, each with its number, reason
    /// and bytes; their origin is `origin:NUMBER`.
    ///
    /// # Errors
    /// Those of the log.
    pub async fn dead_letter_lines(
        &self,
        origin: &str,
        rejected: Vec<(u64, String, Vec<u8>)>,
    ) -> Result<Vec<RejectedLine>> {
        let mut dead_letters = self.new_dead_letters(origin);
        for (number, reason, bytes) in rejected {
            dead_letters.add(number, &bytes, reason);
        }
        let suppressed = self.ports.suppressions.recent().await;
        dead_letters.append(&*self.ports.log, &suppressed).await
    }

    /// An empty list of dead letters.
    fn new_dead_letters(&self, origin: &str) -> PendingDeadLetters {
        PendingDeadLetters {
            source: self.source,
            origin: origin.to_owned(),
            now_ms: self.ports.clock.now_ms(),
            entries: Vec::new(),
            are_in_log: false,
        }
    }

    /// The first half of [`Intake::ingest`]: checks lines and adds keys, without writing. So the
    /// next lines can be checked while the previous ones are written.
    #[must_use]
    pub fn check<'a>(
        &self,
        origin: &str,
        lines: impl Iterator<Item = (u64, &'a [u8])>,
    ) -> CheckedLines {
        let lines = skip_blank_lines(lines);
        let mut dead_letters = self.new_dead_letters(origin);
        let input = match self.source.kind() {
            SourceKind::Events => self.check_events(lines, &mut dead_letters),
            SourceKind::Entities => self.check_rows(lines, &mut dead_letters),
        };
        CheckedLines {
            input,
            dead_letters,
        }
    }

    /// The second half of [`Intake::ingest`]: writes checked lines durably.
    ///
    /// # Errors
    /// As [`Intake::ingest`].
    pub async fn write(&self, checked: CheckedLines) -> Result<IntakeReport> {
        let CheckedLines {
            input,
            mut dead_letters,
        } = checked;
        let log = &*self.ports.log;
        // Lines may have been checked long before.
        let now_ms = self.ports.clock.now_ms();
        let suppressed = &*self.ports.suppressions.recent().await;
        let (accepted, rejected, erased) = match input {
            ValidInput::Events(mut events) => {
                let accepted = events.count();
                let rejected = dead_letters.append(log, suppressed).await?;
                events.anonymize(suppressed)?;
                if accepted > 0 {
                    let topic = self.source.topic();
                    let partitions = self.partition_counts.count(topic).await?;
                    self.last_partition_count
                        .store(partitions, Ordering::Relaxed);
                    let groups = events.repartition(partitions);
                    log.append(topic, &groups, now_ms).await?;
                }
                (accepted, rejected, 0)
            }
            ValidInput::Rows(rows, lines) => {
                let applied = self
                    .ports
                    .entities
                    .apply_as(&rows, &self.actor, now_ms)
                    .await?;
                for (index, reason) in applied.rejected {
                    if let Some((line, bytes)) = lines.get(index) {
                        dead_letters.add(*line, bytes, reason);
                    }
                }
                let rejected = dead_letters.append(log, suppressed).await?;
                self.relay.send(&applied.notifications).await?;
                if applied.more_pending
                    && let Some(notification) = applied.notifications.first()
                {
                    // All of them belong to the log of one source, like the lines.
                    let newest = self
                        .ports
                        .entities
                        .outbox_status(notification.source)
                        .await?
                        .newest;
                    self.relay
                        .drain(notification.source, newest, &self.stop)
                        .await?;
                }
                (applied.accepted, rejected, applied.erased)
            }
        };
        Ok(IntakeReport {
            accepted,
            rejected,
            superseded: 0,
            erased,
        })
    }

    fn check_events<'a>(
        &self,
        lines: impl Iterator<Item = (u64, &'a [u8])>,
        dead_letters: &mut PendingDeadLetters,
    ) -> ValidInput {
        let keyed = lines.map(|(number, bytes)| (number, bytes, plays::check_line(bytes)));
        self.key_events(keyed, dead_letters)
    }

    /// Adds keys to events: each has an owner, or the reason for its rejection.
    fn key_events<'a>(
        &self,
        events: impl Iterator<Item = (u64, &'a [u8], std::result::Result<i64, String>)>,
        dead_letters: &mut PendingDeadLetters,
    ) -> ValidInput {
        let partitions = self.partition_count();
        let mut columns = KeyedColumns::default();
        for (number, bytes, owner) in events {
            match owner {
                Ok(owner_id) => columns.add(partitions, owner_id.to_string().as_bytes(), bytes),
                Err(reason) => dead_letters.add(number, bytes, reason),
            }
        }
        let groups = columns.finish();
        ValidInput::Events(KeyedEvents { groups, partitions })
    }

    fn check_rows<'a>(
        &self,
        lines: impl Iterator<Item = (u64, &'a [u8])>,
        dead_letters: &mut PendingDeadLetters,
    ) -> ValidInput {
        let mut rows = Vec::new();
        let mut row_lines = Vec::new();
        for (number, bytes) in lines {
            match entities::parse(self.source, bytes) {
                Ok(row) => {
                    rows.push(row);
                    row_lines.push((number, bytes.to_vec()));
                }
                Err(reason) => dead_letters.add(number, bytes, reason),
            }
        }
        ValidInput::Rows(rows, row_lines)
    }
}

/// Appends dead letters to the source's dead-letter topic, keyed by their origin.
///
/// # Errors
/// Those of the log.
pub async fn append_dead_letters(
    log: &dyn LogWrite,
    source: Source,
    dead_letters: &[DeadLetter],
    now_ms: i64,
) -> Result<()> {
    if dead_letters.is_empty() {
        return Ok(());
    }
    let mut keys = BinaryBuilder::new();
    let mut values = BinaryBuilder::new();
    for dead_letter in dead_letters {
        keys.append_value(dead_letter.origin.as_bytes());
        values.append_value(
            serde_json::to_vec(dead_letter)
                .map_err(|error| Error::broken("writing a dead letter", error))?,
        );
    }
    let group = NewRecords {
        partition: 0,
        keys: keys.finish(),
        values: values.finish(),
        headers: dead_letters.iter().map(DeadLetter::headers).collect(),
    };
    log.append(source.dead_letter_topic(), &[group], now_ms)
        .await?;
    Ok(())
}
