//! Records of comparisons: they name the keys that differed most, and the keys of the request.

use std::pin::pin;

use futures::TryStreamExt;
use schemas::source::Source;
use stores::erasures::{Kind, Sought};
use stores::reconciliations;

use super::{Eraser, column_of};
use crate::Result;
use crate::pages::pages;
use crate::restore::{parts_of, redact_record};

/// Records that are read at once.
const RECORDS: usize = 200;

impl Eraser {
    /// Removes people from the records of comparisons.
    pub(super) async fn redact_comparisons(
        &self,
        source: Source,
        kind: Kind,
        is_wanted: impl Fn(i64) -> bool,
    ) -> Result<()> {
        let (records, of_kind) = (&*self.batch.ports.records, column_of(kind));
        let read = |before| reconciliations::list(records, source, before, RECORDS);
        let mut pages = pin!(pages(read, |one| one.number));
        while let Some(page) = pages.try_next().await? {
            for mut one in page {
                let is_named = |column: &str, id| column == of_kind && is_wanted(id);
                if redact_record(&mut one.record, is_named) {
                    reconciliations::replace(records, source, one.number, &one.record).await?;
                }
            }
        }
        Ok(())
    }

    /// Counts the records of comparisons that name each person.
    pub(super) async fn in_comparisons(&self, source: Source, found: &mut Sought) -> Result<()> {
        let records = &*self.batch.ports.records;
        let of_kind = column_of(found.kind());
        let read = |before| reconciliations::list(records, source, before, RECORDS);
        let mut pages = pin!(pages(read, |one| one.number));
        while let Some(page) = pages.try_next().await? {
            for part in page.iter().flat_map(|one| parts_of(&one.record)) {
                found.once(|has| part.names(|column, id| column == of_kind && has(id)));
            }
        }
        Ok(())
    }
}
