//! Records of comparisons, which contain the keys that differed most and the keys of the request.

use std::pin::pin;

use futures::TryStreamExt;
use schemas::source::Source;
use stores::erasures::{PersonKind, SearchedPeople};
use stores::reconciliations;

use super::eraser::Eraser;
use super::sources::person_column;
use crate::Result;
use crate::pages::stream_pages;
use crate::restore::{parts_of, redact_record};

/// Records that are read at once.
const PAGE_RECORDS: usize = 200;

impl Eraser {
    /// Removes people from the records of comparisons.
    pub(super) async fn redact_comparisons(
        &self,
        source: Source,
        kind: PersonKind,
        is_erased: impl Fn(i64) -> bool,
    ) -> Result<()> {
        let (records, id_column) = (&*self.batch.ports.records, person_column(kind));
        let read = |before| reconciliations::list(records, source, before, PAGE_RECORDS);
        let mut pages = pin!(stream_pages(read, |record| record.number));
        while let Some(page) = pages.try_next().await? {
            for mut record in page {
                let is_named = |column: &str, id| column == id_column && is_erased(id);
                if redact_record(&mut record.record, is_named) {
                    reconciliations::replace(records, source, record.number, &record.record)
                        .await?;
                }
            }
        }
        Ok(())
    }

    /// Counts the records of comparisons that name each person.
    pub(super) async fn count_in_comparisons(
        &self,
        source: Source,
        counts: &mut SearchedPeople,
    ) -> Result<()> {
        let records = &*self.batch.ports.records;
        let id_column = person_column(counts.kind());
        let read = |before| reconciliations::list(records, source, before, PAGE_RECORDS);
        let mut pages = pin!(stream_pages(read, |record| record.number));
        while let Some(page) = pages.try_next().await? {
            for part in page.iter().flat_map(|record| parts_of(&record.record)) {
                counts.count_mentions(|is_searched| {
                    part.names(|column, id| column == id_column && is_searched(id))
                });
            }
        }
        Ok(())
    }
}
