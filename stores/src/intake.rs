//! Taking facts in: lines are checked, keyed and appended to the log; what can't be taken becomes a
//! dead letter. The same way for files, for the HTTP edge and for everything else that brings
//! facts.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::BinaryBuilder;
use schemas::clock::Clock;
use schemas::dead_letter::DeadLetter;
use schemas::partition::partition_of;
use schemas::plays;
use schemas::source::Source;

use crate::log::{LogWrite, NewRecords};
use crate::{Error, Result};

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
    /// Lines that are in the log now.
    pub accepted: u64,
    /// Lines that are dead letters now.
    pub rejected: Vec<RejectedLine>,
}

/// Lines that were checked and keyed, ready to be written.
#[derive(Debug)]
pub struct Checked {
    groups: Vec<NewRecords>,
    letters: Vec<DeadLetter>,
    taken: Taken,
    now_ms: i64,
}

/// The way into the log for the facts of one source.
#[derive(Debug, Clone)]
pub struct Intake {
    log: Arc<dyn LogWrite>,
    clock: Arc<dyn Clock>,
    source: Source,
    partitions: u32,
}

impl Intake {
    /// Opens the way, making the source's topics with `partitions` partitions if they are not
    /// there.
    ///
    /// # Errors
    /// Those of the log.
    pub async fn open(
        log: Arc<dyn LogWrite>,
        clock: Arc<dyn Clock>,
        source: Source,
        partitions: u32,
    ) -> Result<Self> {
        let partitions = log.ensure_topic(source.topic(), partitions).await?;
        log.ensure_topic(source.dead_letter_topic(), 1).await?;
        Ok(Self {
            log,
            clock,
            source,
            partitions,
        })
    }

    /// How many partitions the topic has.
    #[must_use]
    pub const fn partitions(&self) -> u32 {
        self.partitions
    }

    /// Takes lines, each with its number; blank ones are passed over. When it answers, every line
    /// is durably in the log or among the dead letters, whose origin is `origin:NUMBER`.
    ///
    /// Give a few thousand lines at a time: what is given is written in one step.
    ///
    /// # Errors
    /// Those of the log; then nothing of the lines is certain, and giving them again is safe for
    /// facts, since an event that comes again counts once.
    pub async fn take<'a>(
        &self,
        origin: &str,
        lines: impl Iterator<Item = (u64, &'a [u8])>,
    ) -> Result<Taken> {
        self.write(self.check(origin, lines)).await
    }

    /// The first half of [`Intake::take`]: checks and keys lines, and writes nothing. So that the
    /// next lines can be checked while the last ones are written.
    #[must_use]
    pub fn check<'a>(&self, origin: &str, lines: impl Iterator<Item = (u64, &'a [u8])>) -> Checked {
        let mut groups: BTreeMap<u32, (BinaryBuilder, BinaryBuilder)> = BTreeMap::new();
        let mut letters = Vec::new();
        let mut taken = Taken::default();
        let now_ms = self.clock.now_ms();
        for (number, bytes) in lines {
            let bytes = bytes.trim_ascii();
            if bytes.is_empty() {
                continue;
            }
            match plays::check_line(bytes) {
                Ok(owner_id) => {
                    let key = owner_id.to_string();
                    let partition = partition_of(key.as_bytes(), self.partitions);
                    let (keys, values) = groups.entry(partition).or_default();
                    keys.append_value(key.as_bytes());
                    values.append_value(bytes);
                    taken.accepted += 1;
                }
                Err(reason) => {
                    letters.push(DeadLetter {
                        source: self.source.name().to_owned(),
                        reason: reason.clone(),
                        origin: format!("{origin}:{number}"),
                        at_ms: now_ms,
                        raw: bytes.to_vec(),
                    });
                    taken.rejected.push(RejectedLine {
                        line: number,
                        reason,
                    });
                }
            }
        }
        let groups = groups
            .into_iter()
            .map(|(partition, (mut keys, mut values))| NewRecords {
                partition,
                keys: keys.finish(),
                values: values.finish(),
            })
            .collect();
        Checked {
            groups,
            letters,
            taken,
            now_ms,
        }
    }

    /// The second half of [`Intake::take`]: writes what was checked, durably when it answers.
    ///
    /// # Errors
    /// As [`Intake::take`].
    pub async fn write(&self, checked: Checked) -> Result<Taken> {
        let now_ms = checked.now_ms;
        append_dead_letters(&*self.log, self.source, &checked.letters, now_ms).await?;
        if !checked.groups.is_empty() {
            self.log
                .append(self.source.topic(), &checked.groups, now_ms)
                .await?;
        }
        Ok(checked.taken)
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
    };
    log.append(source.dead_letter_topic(), &[group], now_ms)
        .await?;
    Ok(())
}
