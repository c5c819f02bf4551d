//! Removes erased people from dead letters. A log deletes records only from its beginning. So the
//! dead letters that stay are appended again, and the earlier ones are deleted. A crash in between
//! leaves duplicates, which the next try removes. Two concurrent rewrites would duplicate dead
//! letters and delete what the other one reads, so the caller holds the run lease of the source.

use std::collections::HashSet;

use arrow::array::{Array, BinaryBuilder};
use schemas::dead_letter::DeadLetter;
use schemas::seam::Offset;
use schemas::source::Source;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::FETCH_LIMIT;
use crate::erasures::{SearchedPeople, SuppressedPeople, may_mention};
use crate::intake::append_dead_letters;
use crate::log::{Log, LogRead, NewRecords, Records, Span};
use crate::{Error, Result};

/// The result of rewriting the dead letters of a source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RewriteReport {
    /// The number of dead letters that stay.
    pub kept: u64,
    /// The number of them that are redacted.
    pub redacted: u64,
}

/// Redacts all dead letters of a source that contain, or may contain, a suppressed person. If there
/// is none, nothing is written. Otherwise all dead letters get new ids. Calls must not overlap. If
/// `stop` is cancelled, the rest stays unchanged, and nothing is deleted before its copy is
/// appended.
///
/// # Errors
/// Those of the log. Finished work stays, and the call may be repeated.
pub async fn rewrite(
    log: &dyn Log,
    source: Source,
    suppressed: &SuppressedPeople,
    now_ms: i64,
    stop: &CancellationToken,
) -> Result<RewriteReport> {
    let topic = source.dead_letter_topic();
    let mut report = RewriteReport::default();
    for (partition, span) in (0_u32..).zip(log.spans(topic).await?) {
        let mut is_clean = true;
        for_each_value(log, topic, partition, span, |value| {
            let (_, is_redacted) = redact(source, value, suppressed);
            is_clean &= !is_redacted;
        })
        .await?;
        if is_clean {
            continue;
        }
        let mut hashes = HashSet::new();
        let mut next = span.start;
        while next < span.end {
            if stop.is_cancelled() {
                return Ok(report);
            }
            let (records, next_offset) = fetch(log, topic, partition, next, span.end).await?;
            next = next_offset;
            let appended = append(log, source, &records, suppressed, &mut hashes, now_ms).await?;
            report.kept += appended.kept;
            report.redacted += appended.redacted;
        }
        let mut end_offsets: Vec<Offset> = vec![0; partition as usize];
        end_offsets.push(span.end);
        log.trim(topic, &end_offsets).await?;
    }
    Ok(report)
}

/// Counts the dead letters of a source that mention, or may mention, each of some people.
///
/// # Errors
/// Those of the log.
pub async fn count_mentions(
    log: &dyn LogRead,
    source: Source,
    people: &mut SearchedPeople,
) -> Result<()> {
    let (topic, kind) = (source.dead_letter_topic(), people.kind());
    for (partition, span) in (0_u32..).zip(log.spans(topic).await?) {
        for_each_value(log, topic, partition, span, |value| {
            let dead_letter = serde_json::from_slice::<DeadLetter>(value);
            let raw = dead_letter
                .as_ref()
                .map_or(value, |dead_letter| &dead_letter.raw);
            people.count_mentions(|is_searched| {
                may_mention(source, raw, |person| {
                    person.kind == kind && is_searched(person.id)
                })
            });
        })
        .await?;
    }
    Ok(())
}

/// Appends the redacted copies of dead letters.
async fn append(
    log: &dyn Log,
    source: Source,
    records: &Records,
    suppressed: &SuppressedPeople,
    hashes: &mut HashSet<[u8; 32]>,
    now_ms: i64,
) -> Result<RewriteReport> {
    let mut report = RewriteReport::default();
    let mut dead_letters = Vec::new();
    let (mut keys, mut values) = (BinaryBuilder::new(), BinaryBuilder::new());
    for (key, value) in records.keys.iter().zip(&records.values) {
        let (key, value) = (key.unwrap_or_default(), value.unwrap_or_default());
        let (dead_letter, is_redacted) = redact(source, value, suppressed);
        let mut hash = Sha256::new();
        hash.update((key.len() as u64).to_be_bytes());
        hash.update(key);
        hash.update(if is_redacted { &[] } else { value });
        if !hashes.insert(hash.finalize().into()) {
            continue;
        }
        match dead_letter {
            Some(dead_letter) => dead_letters.push(dead_letter),
            // It is not a dead letter and may mention an erased person: drop it.
            None if is_redacted => continue,
            None => {
                keys.append_value(key);
                values.append_value(value);
            }
        }
        report.kept += 1;
        report.redacted += u64::from(is_redacted);
    }
    append_dead_letters(log, source, &dead_letters, now_ms).await?;
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
    Ok(report)
}

/// The redacted copy of a record, as a dead letter if it is one, and whether it was redacted.
fn redact(
    source: Source,
    value: &[u8],
    suppressed: &SuppressedPeople,
) -> (Option<DeadLetter>, bool) {
    match serde_json::from_slice::<DeadLetter>(value) {
        Ok(mut dead_letter) => {
            let is_redacted = suppressed.redact(source, &mut dead_letter);
            (Some(dead_letter), is_redacted)
        }
        Err(_) => (
            None,
            may_mention(source, value, |person| suppressed.contains(person)),
        ),
    }
}

async fn for_each_value(
    log: &dyn LogRead,
    topic: &str,
    partition: u32,
    span: Span,
    mut visit: impl FnMut(&[u8]),
) -> Result<()> {
    let mut next = span.start;
    while next < span.end {
        let (records, next_offset) = fetch(log, topic, partition, next, span.end).await?;
        next = next_offset;
        for value in &records.values {
            visit(value.unwrap_or_default());
        }
    }
    Ok(())
}

/// The next records before `end`, and the offset after them. Records that the log deleted are
/// skipped.
async fn fetch(
    log: &dyn LogRead,
    topic: &str,
    partition: u32,
    from: Offset,
    end: Offset,
) -> Result<(Records, Offset)> {
    let fetched = match log.fetch_once(topic, partition, from, FETCH_LIMIT).await {
        // The records were trimmed meanwhile, or their retention ended.
        Err(Error::OffsetOutOfRange { start, .. }) if start > from => {
            return Ok((Records::empty(), start.min(end)));
        }
        fetched => fetched?,
    };
    if fetched.next_offset == from {
        let reason = format!("the topic ends at offset {from}, before the expected offset {end}");
        return Err(Error::Unavailable {
            operation: format!("reading {topic}/{partition}"),
            reason,
        });
    }
    let offsets = fetched.records.offsets.values();
    let count = offsets.partition_point(|offset| *offset < end);
    Ok((
        fetched.records.slice(0, count),
        fetched.next_offset.min(end),
    ))
}
