//! Records of comparisons: they name the keys that differed most, and what was asked for.

use schemas::source::Source;
use stores::erasures::{Kind, Sought};

use super::{Eraser, column_of};
use crate::Result;
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
        let mut before = None;
        loop {
            let records = kept.reconciliations(source, before, RECORDS).await?;
            let Some(last) = records.last() else {
                return Ok(());
            };
            before = Some(last.number);
            for mut one in records {
                let is_named = |column: &str, id| column == of_kind && is_wanted(id);
                if redact_record(&mut one.record, is_named) {
                    kept.replace(source, one.number, &one.record).await?;
                }
            }
        }
    }

    /// Counts how often the records of comparisons name each who is sought.
    pub(super) async fn in_comparisons(&self, source: Source, found: &mut Sought) -> Result<()> {
        let kept = &self.batch.ports.reconciliations;
        let of_kind = column_of(found.kind());
        let mut before = None;
        loop {
            let records = kept.reconciliations(source, before, RECORDS).await?;
            let Some(last) = records.last() else {
                return Ok(());
            };
            before = Some(last.number);
            for part in records.iter().flat_map(|one| parts_of(&one.record)) {
                found.once(|has| part.names(|column, id| column == of_kind && has(id)));
            }
        }
    }
}
