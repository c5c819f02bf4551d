//! Dead letters without those who were erased. A log deletes from its beginning only: so those that stay are
//! appended once more, and what stood before is deleted. A crash in between leaves some letters twice, which
//! the next try makes one again. Two who did so at once would make letters twice, and delete what the other reads: who
//! erases holds the run lease of the source.

use std::collections::HashSet;

use arrow::array::{Array, BinaryBuilder};
use schemas::dead_letter::DeadLetter;
use schemas::seam::Offset;
use schemas::source::Source;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::STEP;
use crate::erasures::{Sought, Suppressed, holds};
use crate::intake::append_dead_letters;
use crate::log::{Log, LogRead, NewRecords, Records};
use crate::{Error, Result};

/// What became of the letters of a source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rewritten {
    /// Letters that stay.
    pub kept: u64,
    /// Those of them in whose place there is a mark now.
    pub redacted: u64,
}

/// Puts marks in the place of all letters of a source that hold, or may hold, somebody who is suppressed.
/// Where there is none, nothing is written; else all letters have other ids afterwards. Nobody else may do so meanwhile. Told
/// to stop, it leaves the rest as it is, and nothing is deleted of which not all was appended once more.
///
/// # Errors
/// Those of the log; what was done by then stays, and it may be tried again.
pub async fn rewrite(
    log: &dyn Log,
    source: Source,
    suppressed: &Suppressed,
    now_ms: i64,
    stop: &CancellationToken,
) -> Result<Rewritten> {
    let topic = source.dead_letter_topic();
    let mut rewritten = Rewritten::default();
    for (partition, span) in (0_u32..).zip(log.spans(topic).await?) {
        let within = (partition, span.start, span.end);
        let mut is_clean = true;
        each(log, topic, within, |_, value| {
            let (_, is_redacted) = without(source, value, suppressed);
            is_clean &= !is_redacted;
        })
        .await?;
        if is_clean {
            continue;
        }
        let mut seen = HashSet::new();
        let mut next = span.start;
        while next < span.end {
            if stop.is_cancelled() {
                return Ok(rewritten);
            }
            let (records, after) = fetch(log, topic, (partition, next, span.end)).await?;
            next = after;
            let done = append(log, source, &records, (suppressed, &mut seen), now_ms).await?;
            rewritten.kept += done.kept;
            rewritten.redacted += done.redacted;
        }
        let mut before: Vec<Offset> = vec![0; partition as usize];
        before.push(span.end);
        log.trim(topic, &before).await?;
    }
    Ok(rewritten)
}

/// Counts the letters of a source that hold each of some people, or may.
///
/// # Errors
/// Those of the log.
pub async fn count_of(log: &dyn LogRead, source: Source, found: &mut Sought) -> Result<()> {
    let (topic, kind) = (source.dead_letter_topic(), found.kind());
    for (partition, span) in (0_u32..).zip(log.spans(topic).await?) {
        each(log, topic, (partition, span.start, span.end), |_, value| {
            let letter = serde_json::from_slice::<DeadLetter>(value);
            let raw = letter.as_ref().map_or(value, |letter| &letter.raw);
            found.once(|has| holds(source, raw, |one| one.kind == kind && has(one.id)));
        })
        .await?;
    }
    Ok(())
}

/// Appends once more what stays of some letters.
async fn append(
    log: &dyn Log,
    source: Source,
    records: &Records,
    (suppressed, seen): (&Suppressed, &mut HashSet<[u8; 32]>),
    now_ms: i64,
) -> Result<Rewritten> {
    let mut rewritten = Rewritten::default();
    let mut letters = Vec::new();
    let (mut keys, mut values) = (BinaryBuilder::new(), BinaryBuilder::new());
    for (key, value) in records.keys.iter().zip(&records.values) {
        let (key, value) = (key.unwrap_or_default(), value.unwrap_or_default());
        let (letter, is_redacted) = without(source, value, suppressed);
        let mut hash = Sha256::new();
        hash.update((key.len() as u64).to_be_bytes());
        hash.update(key);
        hash.update(if is_redacted { &[] } else { value });
        if !seen.insert(hash.finalize().into()) {
            continue;
        }
        match letter {
            Some(letter) => letters.push(letter),
            // It is no letter, and may name somebody: nothing of it stays.
            None if is_redacted => continue,
            None => {
                keys.append_value(key);
                values.append_value(value);
            }
        }
        rewritten.kept += 1;
        rewritten.redacted += u64::from(is_redacted);
    }
    append_dead_letters(log, source, &letters, now_ms).await?;
    let others = NewRecords {
        partition: 0,
        keys: keys.finish(),
        values: values.finish(),
        headers: Vec::new(),
    };
    if !others.values.is_empty() {
        log.append(source.dead_letter_topic(), &[others], now_ms)
            .await?;
    }
    Ok(rewritten)
}

/// What stays of a record, as a letter if it is one, and whether somebody was taken out.
fn without(source: Source, value: &[u8], suppressed: &Suppressed) -> (Option<DeadLetter>, bool) {
    match serde_json::from_slice::<DeadLetter>(value) {
        Ok(mut letter) => {
            let is_redacted = suppressed.redact(source, &mut letter);
            (Some(letter), is_redacted)
        }
        Err(_) => (None, holds(source, value, |one| suppressed.has(one))),
    }
}

async fn each(
    log: &dyn LogRead,
    topic: &str,
    (partition, mut next, end): (u32, Offset, Offset),
    mut look: impl FnMut(&[u8], &[u8]),
) -> Result<()> {
    while next < end {
        let (records, after) = fetch(log, topic, (partition, next, end)).await?;
        next = after;
        for (key, value) in records.keys.iter().zip(&records.values) {
            look(key.unwrap_or_default(), value.unwrap_or_default());
        }
    }
    Ok(())
}

/// The next records before an end, and where those after them begin; none of what is not there any more.
async fn fetch(
    log: &dyn LogRead,
    topic: &str,
    (partition, from, end): (u32, Offset, Offset),
) -> Result<(Records, Offset)> {
    let fetched = match log.fetch_apart(topic, partition, from, STEP).await {
        // It was trimmed meanwhile, or its time was over.
        Err(Error::OffsetOutOfRange { start, .. }) if start > from => {
            return Ok((Records::empty(), start.min(end)));
        }
        fetched => fetched?,
    };
    if fetched.next_offset == from {
        let why = format!("the log of dead letters ended at {from}, before {end}");
        return Err(Error::Unavailable {
            what: format!("reading {topic}/{partition}"),
            why,
        });
    }
    let offsets = fetched.records.offsets.values();
    let below = offsets.partition_point(|offset| *offset < end);
    Ok((
        fetched.records.slice(0, below),
        fetched.next_offset.min(end),
    ))
}
