//! Dead letters, the oldest of each partition first, to be taken again in the order in which they came.

use schemas::dead_letter::LetterId;

use super::asked::Stretch;
use super::seen::Seen;
use super::{Asked, Letter};
use crate::log::{FetchLimit, LogRead};
use crate::{Error, Result};

/// Dead letters that are fetched in one step.
const STEP: FetchLimit = FetchLimit {
    records: 2_000,
    bytes: 8 << 20,
};

/// Dead letters that are asked for and were there at the beginning: source by source, partition by
/// partition, and each of these from its oldest letter on. One that was noted more than once, with the same
/// origin and the same bytes, comes once, as far as that is remembered.
#[derive(Debug)]
pub struct Oldest<'a> {
    log: &'a dyn LogRead,
    asked: Asked,
    /// What is to be read, the last one first.
    stretches: Vec<Stretch>,
    seen: Seen,
}

impl<'a> Oldest<'a> {
    /// Begins at the beginning of the log.
    ///
    /// # Errors
    /// Those of the log.
    pub async fn open(log: &'a dyn LogRead, asked: Asked) -> Result<Self> {
        let mut stretches = Vec::new();
        for source in asked.sources() {
            stretches.extend(asked.stretches(log, source).await?);
        }
        stretches.reverse();
        Ok(Self {
            log,
            asked,
            stretches,
            seen: Seen::default(),
        })
    }

    /// Some more letters, all of one source; none at the end.
    ///
    /// # Errors
    /// Those of the log.
    pub async fn more(&mut self) -> Result<Vec<Letter>> {
        while let Some(stretch) = self.stretches.last_mut() {
            let Stretch {
                source,
                partition,
                span,
            } = *stretch;
            let topic = source.dead_letter_topic();
            if span.start >= span.end {
                self.stretches.pop();
                continue;
            }
            let fetched = match self.log.fetch(topic, partition, span.start, STEP).await {
                // What was there at the beginning has gone meanwhile, as the log is told to let it go.
                Err(Error::OffsetOutOfRange { start, .. }) if span.start < start => {
                    stretch.span.start = start;
                    continue;
                }
                fetched => fetched?,
            };
            if fetched.next_offset == span.start {
                self.stretches.pop();
                continue;
            }
            stretch.span.start = fetched.next_offset;
            let first = LetterId {
                source,
                partition,
                offset: span.start,
            };
            let mut letters = Letter::all(&fetched, first, span.end);
            letters.retain(|letter| self.asked.takes(letter) && self.seen.is_new(letter));
            if !letters.is_empty() {
                return Ok(letters);
            }
        }
        Ok(Vec::new())
    }
}
