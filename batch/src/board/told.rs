//! What waits in an outbox is lost with live state once a run covers it: nobody makes it again. And of what
//! a snapshot holds before the speed layer came to it a run holds back what it would publish
//! ([`super::held_back`]). So a run waits for a while until the speed layer has come to such rows, and has
//! told what the run covers.

use std::time::Duration;

use jobs::Layers;
use schemas::achievement::Waiting;
use schemas::seam::{Cut, Offset};
use schemas::source::Source;
use stores::live::Outbox;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::Result;
use crate::run::Batch;

const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How far the speed layer is with a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Stands {
    /// What lies before was counted.
    counted: Offset,
    /// What lies before was told.
    told: Offset,
    /// The number of the first entry that waits: one notification may bring many.
    first: u64,
}

impl Stands {
    /// From the first entry of an outbox. One that can't be read will not be told either.
    fn of(outbox: &Outbox) -> Self {
        let counted = outbox.slot.position.next_offset;
        let first = outbox.entries.first().map(|entry| Waiting::decode(entry));
        let told = first.map_or(counted, |told| told.map_or(0, |told| told.position.offset));
        Self {
            counted,
            told,
            first: outbox.numbers.start,
        }
    }

    /// The part of it that is waited for: what was counted up to an end, and told up to a cut.
    fn up_to(self, end: Offset, cut: Offset) -> Self {
        let is_told = self.told >= cut.min(self.counted);
        Self {
            counted: self.counted.min(end),
            told: self.told.min(cut),
            first: if is_told { 0 } else { self.first },
        }
    }
}

/// How the speed layer stands after it was waited for.
#[derive(Debug, Default)]
pub(crate) struct Waited {
    /// What a person should know.
    pub(crate) warnings: Vec<String>,
    /// By partition: what lies before was counted; nothing where there is no live state.
    pub(crate) counted: Vec<Option<Offset>>,
    /// By partition: where the log ended after that was seen.
    pub(crate) ends: Vec<Offset>,
}

/// Where the run ends in each partition; one that came after it has nothing of it.
fn cuts_of(cuts: &[Cut]) -> impl Iterator<Item = Offset> {
    let ends = cuts.iter().map(|cut| cut.next_offset);
    ends.chain(std::iter::repeat(0))
}

impl Batch {
    /// Waits until the speed layer has come to where the log ends now, and has told what lies below the
    /// cuts, for as long as it goes on.
    pub(crate) async fn wait_for_speed(
        &self,
        source: Source,
        cuts: &[Cut],
        stop: &CancellationToken,
    ) -> Result<Waited> {
        let mut told = self.catalog.boards_of_layer(source, Layers::Speed);
        if told.next().is_none() {
            return Ok(Waited::default());
        }
        let ends = self.spans(source).await?;
        let partitions = u32::try_from(ends.len()).unwrap_or(u32::MAX);
        let patience = Duration::from_millis(self.options.speed_wait_ms);
        let mut stands: Vec<Stands> = Vec::new();
        let mut since = Instant::now();
        while !stop.is_cancelled() {
            let outboxes = self.ports.live.outboxes(source, 0..partitions, 1).await?;
            let now = outboxes.iter().map(Option::as_ref);
            let counted = now
                .clone()
                .map(|outbox| Some(outbox?.slot.position.next_offset));
            let counted: Vec<Option<Offset>> = counted.collect();
            let now: Vec<Stands> = now
                .map(|outbox| outbox.map_or_else(Stands::default, Stands::of))
                .collect();
            let is_counted = now.iter().zip(&ends).all(|(now, end)| now.counted >= *end);
            let untold = untold(&now, cuts);
            if is_counted && untold.is_empty() {
                let warnings = Vec::new();
                return self.waited(source, warnings, counted).await;
            }
            // What lies beyond is not waited for: it may go on without end.
            let awaited = now.iter().zip(&ends).zip(cuts_of(cuts));
            let now: Vec<Stands> = awaited
                .map(|((now, end), cut)| now.up_to(*end, cut))
                .collect();
            if now != stands {
                (stands, since) = (now, Instant::now());
            }
            if since.elapsed() >= patience {
                let warnings = warning(source, &untold);
                return self.waited(source, warnings, counted).await;
            }
            sleep(LOOK_AGAIN).await;
        }
        Ok(Waited::default())
    }

    /// Notifications that a worker has sent on to another partition are in the log before it counts them.
    async fn waited(
        &self,
        source: Source,
        warnings: Vec<String>,
        counted: Vec<Option<Offset>>,
    ) -> Result<Waited> {
        let ends = self.spans(source).await?;
        Ok(Waited {
            warnings,
            counted,
            ends,
        })
    }
}

/// The partitions where something that the cuts cover was counted and has not been told.
fn untold(stands: &[Stands], cuts: &[Cut]) -> Vec<usize> {
    let both = stands.iter().zip(cuts).enumerate();
    let waits = both.filter(|(_, (now, cut))| now.told < now.counted.min(cut.next_offset));
    waits.map(|(partition, _)| partition).collect()
}

fn warning(source: Source, untold: &[usize]) -> Vec<String> {
    if untold.is_empty() {
        return Vec::new();
    }
    tracing::warn!(%source, partitions = ?untold, "a run covers what changed on boards and has not been told; should live state be lost first, nobody will be told");
    let partitions: Vec<String> = untold.iter().map(ToString::to_string).collect();
    vec![format!(
        "what changed on boards waits to be told in partition(s) {} of {source} and is covered by this run: it is lost if live state is lost first (`backstitch speed` tells it)",
        partitions.join(", ")
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stands(counted: Offset, told: Offset) -> Stands {
        Stands {
            counted,
            told,
            first: 0,
        }
    }

    /// A run does not wait longer because others go on.
    #[test]
    fn what_comes_after_is_no_progress() {
        let at = |counted, told, first| {
            let stands = Stands {
                counted,
                told,
                first,
            };
            stands.up_to(10, 8)
        };
        // Nothing is told, and the log grows.
        assert_eq!(at(10, 5, 3), at(11, 5, 3));
        // All of the run is told, and more comes and is told.
        assert_eq!(at(12, 9, 3), at(15, 13, 7));
        assert_ne!(at(9, 5, 3), at(10, 5, 3));
        assert_ne!(at(10, 5, 3), at(10, 6, 3));
        // One notification may bring many entries.
        assert_ne!(at(10, 5, 3), at(10, 5, 4));
    }

    #[test]
    fn what_waits_below_the_cut_is_untold() {
        let cut = Cut {
            next_offset: 10,
            last: None,
        };
        let cuts = [cut; 5];
        // One entry is of the last offset that is covered, one of the first that is not; one slot is
        // behind the cut, one is missing, and one partition came after the run.
        let now = [
            stands(12, 9),
            stands(12, 10),
            stands(5, 5),
            Stands::default(),
            stands(5, 4),
            stands(5, 0),
        ];
        assert_eq!(untold(&now, &cuts), [0, 4]);
        assert!(warning(Source::Efforts, &[]).is_empty());
        let [said] = &warning(Source::Efforts, &[0, 4])[..] else {
            panic!("one warning");
        };
        assert!(said.contains("partition(s) 0, 4 of efforts"), "{said}");
    }
}
