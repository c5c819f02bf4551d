//! Records of comparisons: they name the keys that differed most, and what was asked for.

use std::pin::pin;

use futures::TryStreamExt;
use schemas::source::Source;
use stores::erasures::{Kind, Sought};

use super::{Eraser, column_of};
use crate::Result;
use crate::pages::pages;
use crate::restore::{parts_of, redact_record};

/// Records that are read at once.
const RECORDS: usize = 200;

impl Eraser {
    /// Takes out of the records of comparisons who is wanted.
    pub(super) async fn redact_comparisons(
        &self,
        source: Source,
        kind: Kind,
        is_wanted: impl Fn(i64) -> bool,
    ) -> Result<()> {
        let (kept, of_kind) = (&self.batch.ports.reconciliations, column_of(kind));
        let read = |before| kept.reconciliations(source, before, RECORDS);
        let mut pages = pin!(pages(read, |one| one.number));
        while let Some(records) = pages.try_next().await? {
            for mut one in records {
                let is_named = |column: &str, id| column == of_kind && is_wanted(id);
                if redact_record(&mut one.record, is_named) {
                    kept.replace(source, one.number, &one.record).await?;
                }
            }
        }
        Ok(())
    }

    /// Counts how often the records of comparisons name each who is sought.
    pub(super) async fn in_comparisons(&self, source: Source, found: &mut Sought) -> Result<()> {
        let kept = &self.batch.ports.reconciliations;
        let of_kind = column_of(found.kind());
        let read = |before| kept.reconciliations(source, before, RECORDS);
        let mut pages = pin!(pages(read, |one| one.number));
        while let Some(records) = pages.try_next().await? {
            for part in records.iter().flat_map(|one| parts_of(&one.record)) {
                found.once(|has| part.names(|column, id| column == of_kind && has(id)));
            }
        }
        Ok(())
    }
}
