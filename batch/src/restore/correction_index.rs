//! Keeps the correction index up to date with the restorations in the archive. It explains totals without the archive.
//!
//! Every comparison and undo first adds the entries that a process that died has not written.

use arrow::array::AsArray;
use serde_json::{Map, Value};
use stores::corrections::{self, CorrectionEntry, CorrectionSums};

use super::correct::each_step;
use super::journal::{Journal, Recorded, RestorationKind};
use crate::batch::Batch;
use crate::{Error, Result};

impl Batch {
    /// Brings the correction index of a source up to date with its restorations.
    pub(crate) async fn index_corrections(
        &self,
        journal: &Journal<'_>,
        recorded: &[Recorded],
    ) -> Result<()> {
        let records = &*self.ports.records;
        let restorations = recorded
            .iter()
            .filter(|one| one.restoration.kind == RestorationKind::Corrections);
        let restorations: Vec<&Recorded> = restorations.collect();
        if restorations.is_empty() {
            return Ok(());
        }
        let mut known = Vec::new();
        let source = journal.source;
        corrections::for_each_entry(records, source, |entry| known.push(entry)).await?;
        for one in restorations {
            let of = &one.restoration;
            let is_same =
                |known: &&CorrectionEntry| (known.number, &known.id) == (of.number, &of.id);
            let before = known.iter().find(is_same);
            if before.is_some_and(|before| before.done_until == one.done_until) {
                continue;
            }
            let sums = match before {
                Some(before) => before.sums.clone(),
                None => sums(journal, one).await?,
            };
            let entry = CorrectionEntry {
                number: of.number,
                id: of.id.clone(),
                by: of.by.clone(),
                reason: of.reason.clone(),
                at_ms: of.at_ms,
                undoes: of.undoes,
                done_until: one.done_until.clone(),
                sums,
            };
            corrections::put(records, source, &entry).await?;
        }
        Ok(())
    }
}

/// The sums of the corrections of a restoration.
async fn sums(journal: &Journal<'_>, of: &Recorded) -> Result<CorrectionSums> {
    let mut sums = CorrectionSums::default();
    for file in &of.restoration.files {
        each_step(journal.archive, file, async |batch| {
            for event in batch.column(0).as_string::<i32>().iter().flatten() {
                let event: Map<String, Value> =
                    serde_json::from_str(event).map_err(|e| Error::fault("a correction", e))?;
                let at = event.get("at").and_then(Value::as_str);
                let at = at.and_then(|at| at.parse::<jiff::Timestamp>().ok());
                let amount = event.get("amount").and_then(Value::as_i64);
                if let (Some(at), Some(amount)) = (at, amount) {
                    sums.add(&event, at.as_second(), amount);
                }
            }
            Ok(())
        })
        .await?;
    }
    Ok(sums)
}
