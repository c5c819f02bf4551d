//! Records of comparisons: they name the keys that differed most, and what was asked for.

use schemas::source::Source;

use super::Eraser;
use crate::Result;
use crate::restore::{named_in_record, redact_record};

/// Records that are read at once.
const RECORDS: usize = 200;

impl Eraser {
    /// Takes out of the records of comparisons who is wanted, by the name of a column and an id.
    pub(super) async fn redact_comparisons(
        &self,
        source: Source,
        is_wanted: impl Fn(&str, i64) -> bool,
    ) -> Result<()> {
        let kept = &self.batch.ports.reconciliations;
        let mut before = None;
        loop {
            let records = kept.reconciliations(source, before, RECORDS).await?;
            let Some(last) = records.last() else {
                return Ok(());
            };
            before = Some(last.number);
            for mut one in records {
                if redact_record(&mut one.record, &is_wanted) {
                    kept.replace(source, one.number, &one.record).await?;
                }
            }
        }
    }

    /// How often the records of comparisons name who is wanted.
    pub(super) async fn in_comparisons(
        &self,
        source: Source,
        is_wanted: impl Fn(&str, i64) -> bool,
    ) -> Result<u64> {
        let kept = &self.batch.ports.reconciliations;
        let (mut found, mut before) = (0, None);
        loop {
            let records = kept.reconciliations(source, before, RECORDS).await?;
            let Some(last) = records.last() else {
                return Ok(found);
            };
            before = Some(last.number);
            for one in &records {
                found += named_in_record(&one.record, &is_wanted);
            }
        }
    }
}
