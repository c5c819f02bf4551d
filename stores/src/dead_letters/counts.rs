//! Counts dead letters by kind of reason.

use std::collections::HashMap;

use schemas::dead_letter::{DeadLetterId, reason_kind};
use schemas::source::Source;
use serde::Serialize;

use super::{DeadLetterFilter, NewestDeadLetters, StoredDeadLetter};
use crate::Result;
use crate::log::LogRead;

/// The maximum number of kinds that are counted separately.
const KINDS_MAX: usize = 1_000;
/// The kind of all dead letters whose own kind is not among the first 1,000.
pub const OTHER_KINDS: &str = "(other reasons)";

/// The dead letters of a source with similar reasons.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KindCount {
    /// The source.
    pub source: Source,
    /// The reasons without numbers and quoted texts ([`reason_kind`]).
    pub kind: String,
    /// The number of dead letters.
    pub letters: u64,
    /// The earliest time of a dead letter, in milliseconds since the Unix epoch.
    pub first_at_ms: i64,
    /// The latest time of a dead letter.
    pub last_at_ms: i64,
    /// The dead letter that was appended last.
    pub example: DeadLetterId,
}

/// The counts of dead letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterCounts {
    /// The kinds by source, the most frequent of each source first.
    pub kinds: Vec<KindCount>,
    /// The number of matching dead letters of all kinds.
    pub dead_letters: u64,
    /// The number of examined dead letters, newest first, whether they match or not.
    pub examined: u64,
    /// True if all dead letters were examined.
    pub is_complete: bool,
}

/// Counts the newest dead letters that match a filter, and examines at most `examined_max`.
///
/// # Errors
/// Those of the log.
pub async fn count(
    log: &dyn LogRead,
    filter: DeadLetterFilter,
    examined_max: u64,
) -> Result<DeadLetterCounts> {
    let mut newest = NewestDeadLetters::open(log, filter, None).await?;
    let mut kinds = HashMap::new();
    let mut dead_letters = 0;
    while let Some(dead_letter) = newest.next(examined_max).await? {
        dead_letters += 1;
        add(&mut kinds, &dead_letter);
    }
    let mut kinds: Vec<KindCount> = kinds.into_values().collect();
    kinds.sort_by(|a, b| {
        let by_count = b.letters.cmp(&a.letters);
        let by_source = a.source.cmp(&b.source).then(by_count);
        by_source.then_with(|| a.kind.cmp(&b.kind))
    });
    Ok(DeadLetterCounts {
        kinds,
        dead_letters,
        examined: newest.examined(),
        is_complete: newest.is_exhausted(),
    })
}

fn add(kinds: &mut HashMap<(Source, String), KindCount>, dead_letter: &StoredDeadLetter) {
    let source = dead_letter.id.source;
    let mut key = (source, reason_kind(&dead_letter.content.reason));
    if kinds.len() >= KINDS_MAX && !kinds.contains_key(&key) {
        OTHER_KINDS.clone_into(&mut key.1);
    }
    let at_ms = dead_letter.content.at_ms;
    let kind_count = kinds.entry(key).or_insert_with_key(|(_, kind)| KindCount {
        source,
        kind: kind.clone(),
        letters: 0,
        first_at_ms: at_ms,
        last_at_ms: at_ms,
        example: dead_letter.id,
    });
    kind_count.letters += 1;
    kind_count.first_at_ms = kind_count.first_at_ms.min(at_ms);
    kind_count.last_at_ms = kind_count.last_at_ms.max(at_ms);
}
