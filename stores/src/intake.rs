//! Taking lines in: they are checked, then facts are keyed and appended to the log, rows of entities
//! are applied to the canonical store and notified; what can't be taken becomes a dead letter. The
//! same way for files, for the HTTP edge and for everything else that brings lines.

mod again;
mod without;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arrow::array::{Array, BinaryBuilder};
use schemas::clock::Clock;
use schemas::dead_letter::DeadLetter;
use schemas::entities::{self, Entity, Group};
use schemas::line::without_blanks;
use schemas::plays;
use schemas::source::{Source, SourceKind};
use tokio_util::sync::CancellationToken;

use crate::admin::{INGEST, ingested_by};
use crate::canon::CanonWrite;
use crate::erasures::{Suppressed, Suppressions};
use crate::log::{KeyedColumns, LogWrite, NewRecords, Partitions};
use crate::relay::Relay;
use crate::{Error, Result};

pub use again::{Again, Retaken};

/// A line that was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedLine {
    /// The line's number as the caller counts it.
    pub line: u64,
    /// Field, fault and what is expected.
    pub reason: String,
}

/// What became of some lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taken {
    /// Lines that are in the log or in the canonical store now.
    pub accepted: u64,
    /// Lines that are dead letters now, in their order.
    pub rejected: Vec<RejectedLine>,
    /// Lines that were left out by [`Intake::look_again`], since a row with the same id and version is
    /// stored that came after them, as far as one can tell.
    pub superseded: u64,
    /// Rows that were left out: they are of athletes who were erased.
    pub erased: u64,
}

/// Lines that were checked, ready to be written.
#[derive(Debug)]
pub struct Checked {
    good: Good,
    letters: Letters,
}

impl Checked {
    /// Adds lines that could not be read, each with its number, the reason and its bytes. They become
    /// dead letters with the others.
    pub fn add_unreadable(&mut self, lines: impl IntoIterator<Item = (u64, String, Vec<u8>)>) {
        for (number, reason, bytes) in lines {
            self.letters.add(number, &bytes, reason);
        }
    }
}

/// What is to be written of the lines that are good.
#[derive(Debug)]
enum Good {
    Events(Keyed),
    /// Rows, each with its line's number and bytes.
    Rows(Vec<Entity>, Vec<(u64, Vec<u8>)>),
}

/// Events with their keys.
#[derive(Debug)]
struct Keyed {
    groups: Vec<NewRecords>,
    /// How many partitions they are divided among.
    partitions: u32,
}

impl Keyed {
    fn events(&self) -> u64 {
        self.groups
            .iter()
            .map(|group| group.values.len() as u64)
            .sum()
    }

    /// The records, divided among so many partitions. Events of one key stay in their order.
    fn among(self, partitions: u32) -> Vec<NewRecords> {
        if partitions == self.partitions {
            return self.groups;
        }
        let mut again = KeyedColumns::default();
        for group in &self.groups {
            let records = group.keys.iter().zip(&group.values);
            for (key, value) in records {
                let key = key.unwrap_or_default();
                again.add(partitions, key, value.unwrap_or_default());
            }
        }
        again.finish()
    }
}

/// Dead letters as they come up.
#[derive(Debug)]
struct Letters {
    source: Source,
    origin: String,
    now_ms: i64,
    /// Each with its line's number.
    letters: Vec<(u64, DeadLetter)>,
    /// Whether they are in the log already.
    are_kept_already: bool,
}

impl Letters {
    fn add(&mut self, line: u64, bytes: &[u8], reason: String) {
        let letter = DeadLetter {
            source: self.source.name().to_owned(),
            reason,
            origin: format!("{}:{line}", self.origin),
            at_ms: self.now_ms,
            raw: bytes.to_vec(),
        };
        self.letters.push((line, letter));
    }

    /// Appends the letters in the order of their lines, and answers the lines.
    async fn append(
        mut self,
        log: &dyn LogWrite,
        suppressed: &Suppressed,
    ) -> Result<Vec<RejectedLine>> {
        for (_, letter) in &mut self.letters {
            suppressed.redact(self.source, letter);
            // A search of binary data takes milliseconds.
            tokio::task::yield_now().await;
        }
        self.letters.sort_by_key(|(line, _)| *line);
        let (lines, letters): (Vec<u64>, Vec<DeadLetter>) = self.letters.into_iter().unzip();
        if !self.are_kept_already {
            append_dead_letters(log, self.source, &letters, self.now_ms).await?;
            let set_aside = "backstitch_ingest_dead_letters_total";
            metrics::counter!(set_aside, "source" => self.source.name())
                .increment(letters.len() as u64);
        }
        let rejected = lines.into_iter().zip(letters);
        let rejected = rejected.map(|(line, letter)| RejectedLine {
            line,
            reason: letter.reason,
        });
        Ok(rejected.collect())
    }
}

/// The stores that lines go into.
#[derive(Debug, Clone)]
pub struct IntakePorts {
    /// The log of facts, of notifications and of dead letters.
    pub log: Arc<dyn LogWrite>,
    /// The canonical rows.
    pub canon: Arc<dyn CanonWrite>,
    /// Who is taken out of what comes.
    pub suppressions: Suppressions,
    /// The present moment.
    pub clock: Arc<dyn Clock>,
}

/// The way in for the lines of one source.
#[derive(Debug, Clone)]
pub struct Intake {
    ports: IntakePorts,
    relay: Relay,
    source: Source,
    partitions: Partitions,
    /// How many the source's topic had when it was looked at last; 1 where it has none.
    seen: Arc<AtomicU32>,
    /// When to leave what is to be told to the speed layer.
    stop: CancellationToken,
    /// Names who sends the lines, in records of what they change of applications.
    actor: String,
}

impl Intake {
    /// Tells the log that groups of the source changed, as if their rows had: whoever counts looks at them again.
    ///
    /// # Errors
    /// Those of the log.
    pub async fn tell(&self, groups: &[Group]) -> Result<()> {
        self.relay.tell(self.source, groups).await
    }

    /// Opens the way, making the source's topics with `partitions` partitions if they are not
    /// there.
    ///
    /// # Errors
    /// Those of the log.
    pub async fn open(ports: IntakePorts, source: Source, partitions: u32) -> Result<Self> {
        let log = &ports.log;
        let of_topics = Partitions::new(Arc::clone(log), partitions);
        let mut of_topic = 1;
        if Source::LOGGED.contains(&source) {
            of_topic = of_topics.of(source.topic()).await?;
        }
        log.ensure_topic(source.dead_letter_topic(), 1).await?;
        let relay = Relay::new(
            Arc::clone(&ports.canon),
            Arc::clone(log),
            Arc::clone(&ports.clock),
            partitions,
        );
        Ok(Self {
            ports,
            relay,
            source,
            partitions: of_topics,
            seen: Arc::new(AtomicU32::new(of_topic)),
            stop: CancellationToken::new(),
            actor: INGEST.to_owned(),
        })
    }

    /// Once `stop` is cancelled a change of very many groups is told of no further: the rest waits in
    /// the outbox for the speed layer.
    #[must_use]
    pub fn until(mut self, stop: CancellationToken) -> Self {
        self.stop = stop;
        self
    }

    /// Records of what the lines change of applications name this key.
    #[must_use]
    pub fn by_key(mut self, key: &str) -> Self {
        self.actor = ingested_by(key);
        self
    }

    /// How many partitions the source's topic had when events were written last; 1 if it has no topic.
    #[must_use]
    pub fn partitions(&self) -> u32 {
        self.seen.load(Ordering::Relaxed)
    }

    /// Takes lines, each with its number; blank ones are passed over. When it answers, every line
    /// is durably in the log, in the canonical store or among the dead letters, whose origin is
    /// `origin:NUMBER`.
    ///
    /// Give a few thousand lines at a time: what is given is written in one step.
    ///
    /// # Errors
    /// Those of the stores; then nothing of the lines is certain, and giving them again is safe: an
    /// event that comes again counts once, and a row that comes again is the same row.
    pub async fn take<'a>(
        &self,
        origin: &str,
        lines: impl Iterator<Item = (u64, &'a [u8])>,
    ) -> Result<Taken> {
        self.write(self.check(origin, lines)).await
    }

    /// Appends lines that were checked elsewhere and can't be taken to the dead letters, each with its
    /// number, reason and bytes; their origin is `origin:NUMBER`.
    ///
    /// # Errors
    /// Those of the log.
    pub async fn set_aside(
        &self,
        origin: &str,
        rejected: Vec<(u64, String, Vec<u8>)>,
    ) -> Result<Vec<RejectedLine>> {
        let mut letters = self.letters(origin);
        for (number, reason, bytes) in rejected {
            letters.add(number, &bytes, reason);
        }
        let suppressed = self.ports.suppressions.recent().await;
        letters.append(&*self.ports.log, &suppressed).await
    }

    /// No dead letters yet.
    fn letters(&self, origin: &str) -> Letters {
        Letters {
            source: self.source,
            origin: origin.to_owned(),
            now_ms: self.ports.clock.now_ms(),
            letters: Vec::new(),
            are_kept_already: false,
        }
    }

    /// The first half of [`Intake::take`]: checks and keys lines, and writes nothing. So that the
    /// next lines can be checked while the last ones are written.
    #[must_use]
    pub fn check<'a>(&self, origin: &str, lines: impl Iterator<Item = (u64, &'a [u8])>) -> Checked {
        let lines = without_blanks(lines);
        let mut letters = self.letters(origin);
        let good = match self.source.kind() {
            SourceKind::Facts => self.check_events(lines, &mut letters),
            SourceKind::Entities => self.check_rows(lines, &mut letters),
        };
        Checked { good, letters }
    }

    /// The second half of [`Intake::take`]: writes what was checked, durably when it answers.
    ///
    /// # Errors
    /// As [`Intake::take`].
    pub async fn write(&self, checked: Checked) -> Result<Taken> {
        let Checked { good, mut letters } = checked;
        let log = &*self.ports.log;
        // Lines may have been checked long before.
        let now_ms = self.ports.clock.now_ms();
        let suppressed = &*self.ports.suppressions.recent().await;
        let (accepted, rejected, erased) = match good {
            Good::Events(mut events) => {
                let accepted = events.events();
                let rejected = letters.append(log, suppressed).await?;
                events.leave_out(suppressed)?;
                if accepted > 0 {
                    let topic = self.source.topic();
                    let partitions = self.partitions.of(topic).await?;
                    self.seen.store(partitions, Ordering::Relaxed);
                    let groups = events.among(partitions);
                    log.append(topic, &groups, now_ms).await?;
                }
                (accepted, rejected, 0)
            }
            Good::Rows(rows, lines) => {
                let applied = self
                    .ports
                    .canon
                    .apply_by(&rows, &self.actor, now_ms)
                    .await?;
                for (index, reason) in applied.rejected {
                    if let Some((line, bytes)) = lines.get(index) {
                        letters.add(*line, bytes, reason);
                    }
                }
                let rejected = letters.append(log, suppressed).await?;
                self.relay.send(&applied.notifications).await?;
                if applied.more_pending
                    && let Some(told) = applied.notifications.first()
                {
                    // All of them go to the log of one source, as the lines are of one.
                    let newest = self.ports.canon.waiting(told.source).await?.newest;
                    self.relay.drain(told.source, newest, &self.stop).await?;
                }
                (applied.accepted, rejected, applied.erased)
            }
        };
        Ok(Taken {
            accepted,
            rejected,
            superseded: 0,
            erased,
        })
    }

    fn check_events<'a>(
        &self,
        lines: impl Iterator<Item = (u64, &'a [u8])>,
        letters: &mut Letters,
    ) -> Good {
        let keyed = lines.map(|(number, bytes)| (number, bytes, plays::check_line(bytes)));
        self.keyed(keyed, letters)
    }

    /// Events with their owner, or with the reason for which they are not taken.
    fn keyed<'a>(
        &self,
        events: impl Iterator<Item = (u64, &'a [u8], std::result::Result<i64, String>)>,
        letters: &mut Letters,
    ) -> Good {
        let partitions = self.partitions();
        let mut columns = KeyedColumns::default();
        for (number, bytes, owner) in events {
            match owner {
                Ok(owner_id) => columns.add(partitions, owner_id.to_string().as_bytes(), bytes),
                Err(reason) => letters.add(number, bytes, reason),
            }
        }
        let groups = columns.finish();
        Good::Events(Keyed { groups, partitions })
    }

    fn check_rows<'a>(
        &self,
        lines: impl Iterator<Item = (u64, &'a [u8])>,
        letters: &mut Letters,
    ) -> Good {
        let mut rows = Vec::new();
        let mut of_rows = Vec::new();
        for (number, bytes) in lines {
            match entities::parse(self.source, bytes) {
                Ok(row) => {
                    rows.push(row);
                    of_rows.push((number, bytes.to_vec()));
                }
                Err(reason) => letters.add(number, bytes, reason),
            }
        }
        Good::Rows(rows, of_rows)
    }
}

/// Appends dead letters to the source's dead-letter topic, whose key is the origin.
///
/// # Errors
/// Those of the log.
pub async fn append_dead_letters(
    log: &dyn LogWrite,
    source: Source,
    letters: &[DeadLetter],
    now_ms: i64,
) -> Result<()> {
    if letters.is_empty() {
        return Ok(());
    }
    let mut keys = BinaryBuilder::new();
    let mut values = BinaryBuilder::new();
    for letter in letters {
        keys.append_value(letter.origin.as_bytes());
        values.append_value(
            serde_json::to_vec(letter)
                .map_err(|error| Error::broken("writing a dead letter", error))?,
        );
    }
    let group = NewRecords {
        partition: 0,
        keys: keys.finish(),
        values: values.finish(),
        headers: letters.iter().map(DeadLetter::headers).collect(),
    };
    log.append(source.dead_letter_topic(), &[group], now_ms)
        .await?;
    Ok(())
}
