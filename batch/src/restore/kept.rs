//! Days of which events were let go: what the published result has of them stands in their place, as in a run.
//!
//! So the rows of such days are compared with the result that they were published from, and rows of all time with the
//! sum of both. What the result itself holds can't be counted anew; whoever compares is told.

use std::sync::Arc;

use jobs::Job;
use jobs::tables::{TableGeneration, table_name};
use schemas::seam::Cut;
use schemas::time::UnixSeconds;
use stores::archive::Archive;

use super::scope::Scope;
use crate::archive::{ExpiredBase, ExpiredDays, cut_offsets, format_day};
use crate::batch::Batch;
use crate::results::Results;
use crate::tally::{RowStream, ViewManifest};
use crate::{Error, Result};

const DAY_SECONDS: UnixSeconds = 86_400;

/// The days of which events are gone, and the result of the view that is made of events.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    expired: ExpiredDays,
    /// Nothing where none of these days is looked at.
    result: Option<(Arc<Job>, ViewManifest)>,
}

impl Kept {
    /// What of some days is there already: of them only what came after the result is counted.
    pub(crate) fn base(&self, days: &[i64]) -> ExpiredBase {
        let since = self.result.as_ref().map(|(_, result)| &result.cuts);
        ExpiredBase::new(
            &self.expired,
            days,
            since.map_or_else(Vec::new, |cuts| cut_offsets(cuts)),
        )
    }

    /// The result's rows of those of some days of which events are gone; nothing if there are none.
    pub(crate) fn rows(&self, archive: &Archive, days: &[i64]) -> Option<RowStream> {
        let (job, result) = self.result.as_ref()?;
        let gone = days.iter().filter(|day| self.expired.contains(**day));
        let pieces = gone.filter_map(|day| result.pieces.get(&(day * DAY_SECONDS)));
        let pieces: Vec<_> = pieces.map(|piece| (piece, false)).collect();
        (!pieces.is_empty()).then(|| RowStream::new(archive, job, pieces.into_iter()))
    }

    /// What a person should know of it.
    pub(crate) fn warning(&self) -> Option<String> {
        let (_, result) = self.result.as_ref()?;
        let (first, last) = self.expired.bounds()?;
        Some(format!(
            "events between {} and {} expired because of retention.archive_days: days without all their events are compared with the result of run {}, which cannot be recomputed",
            format_day(first),
            format_day(last),
            result.epoch
        ))
    }
}

impl Batch {
    /// What stands in the place of events that are gone. `chain` begins with the view that is made of events.
    ///
    /// # Errors
    /// [`Error::Request`] if a day is looked at that neither events nor a result give.
    pub(crate) async fn kept(
        &self,
        results: &Results<'_>,
        (chain, of): (&[Arc<Job>], TableGeneration),
        (expired, cuts): (ExpiredDays, &[Cut]),
        scope: &Scope,
    ) -> Result<Kept> {
        let Some((first, last)) = expired.bounds_where(|day| scope.has_day(day)) else {
            let result = None;
            return Ok(Kept { expired, result });
        };
        let refusal = |why: &str| {
            Error::Request(format!(
                "events between {} and {} expired because of retention.archive_days, and {why}. Compare newer days (--from), or restore from a copy the files that the newest object in archive/{}/versions marks as expired",
                format_day(first),
                format_day(last),
                results.source
            ))
        };
        let job = chain.first();
        let job = job.ok_or_else(|| Error::Fault("no job to count with".to_owned()))?;
        let mut held = self.read_published_states::<ViewManifest>(results).await?;
        let held = held.remove(&table_name(job.view(), of));
        let Some(result) = held.and_then(|held| held.published) else {
            return Err(refusal("the result that includes them is lost"));
        };
        let is_beyond = |(own, cut): (&Cut, &Cut)| own.next_offset > cut.next_offset;
        if result.cuts.iter().zip(cuts).any(is_beyond) || result.cuts.len() > cuts.len() {
            return Err(refusal(
                "the result that includes them is from a later run than the rows: run `backstitch batch run` first",
            ));
        }
        if expired.overlaps(&result.cuts, cuts) {
            return Err(refusal("no published result includes them"));
        }
        let result = Some((Arc::clone(job), result));
        Ok(Kept { expired, result })
    }
}
