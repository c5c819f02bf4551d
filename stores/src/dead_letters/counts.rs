//! How many dead letters there are of each kind of reason.

use std::collections::HashMap;

use schemas::dead_letter::{LetterId, kind_of};
use schemas::source::Source;
use serde::Serialize;

use super::{Asked, Letter, Newest};
use crate::Result;
use crate::log::LogRead;

/// Kinds that are told apart, at most.
const KINDS_MAX: usize = 1_000;
/// The kind of all that are beyond 1,000 kinds.
pub const OTHER_KINDS: &str = "(other reasons)";

/// Dead letters of a source whose reasons are alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KindCount {
    /// The source.
    pub source: Source,
    /// The reasons without numbers and quoted texts ([`kind_of`]).
    pub kind: String,
    /// How many there are.
    pub letters: u64,
    /// When the first of them was set aside, in milliseconds since the Unix epoch.
    pub first_at_ms: i64,
    /// When the last of them was.
    pub last_at_ms: i64,
    /// One of them: the one that was appended last.
    pub example: LetterId,
}

/// How many there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts {
    /// By source, the most frequent kind of each first.
    pub kinds: Vec<KindCount>,
    /// How many there are of all kinds.
    pub letters: u64,
    /// How many letters were looked at, the newest ones; also those that were not asked for.
    pub looked_at: u64,
    /// Whether these were all.
    pub is_complete: bool,
}

/// Counts the newest letters that are asked for, looking at no more than `looked_at_max`.
///
/// # Errors
/// Those of the log.
pub async fn count(log: &dyn LogRead, asked: Asked, looked_at_max: u64) -> Result<Counts> {
    let mut newest = Newest::open(log, asked, None).await?;
    let mut kinds = HashMap::new();
    let mut letters = 0;
    while let Some(letter) = newest.next(looked_at_max).await? {
        letters += 1;
        add(&mut kinds, &letter);
    }
    let mut kinds: Vec<KindCount> = kinds.into_values().collect();
    kinds.sort_by(|one, other| {
        let most_first = other.letters.cmp(&one.letters);
        let in_order = one.source.cmp(&other.source).then(most_first);
        in_order.then_with(|| one.kind.cmp(&other.kind))
    });
    Ok(Counts {
        kinds,
        letters,
        looked_at: newest.looked_at(),
        is_complete: newest.is_over(),
    })
}

fn add(kinds: &mut HashMap<(Source, String), KindCount>, letter: &Letter) {
    let source = letter.id.source;
    let mut key = (source, kind_of(&letter.content.reason));
    if kinds.len() >= KINDS_MAX && !kinds.contains_key(&key) {
        OTHER_KINDS.clone_into(&mut key.1);
    }
    let at_ms = letter.content.at_ms;
    let counted = kinds.entry(key).or_insert_with_key(|(_, kind)| KindCount {
        source,
        kind: kind.clone(),
        letters: 0,
        first_at_ms: at_ms,
        last_at_ms: at_ms,
        example: letter.id,
    });
    counted.letters += 1;
    counted.first_at_ms = counted.first_at_ms.min(at_ms);
    counted.last_at_ms = counted.last_at_ms.max(at_ms);
}
