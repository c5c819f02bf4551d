//! Notes of restorations that have corrected counts, for whoever explains a total and has no archive.
//!
//! They follow the records in the archive: whoever compares or takes back brings up to date what a process that died
//! has left out.

use arrow::array::AsArray;
use serde_json::{Map, Value};
use stores::corrections::{Corrected, Sums, note, noted};

use super::correct::each_step;
use super::journal::{Journal, Recorded, RestorationKind};
use crate::run::Batch;
use crate::{Error, Result};

/// Notes that are read at once.
const STEP: usize = 200;

impl Batch {
    /// Brings the notes of a source up to date with its records.
    pub(crate) async fn note_corrections(
        &self,
        journal: &Journal<'_>,
        recorded: &[Recorded],
    ) -> Result<()> {
        let kept = &*self.ports.reconciliations;
        let corrections = recorded
            .iter()
            .filter(|one| one.restoration.kind == RestorationKind::Corrections);
        let corrections: Vec<&Recorded> = corrections.collect();
        if corrections.is_empty() {
            return Ok(());
        }
        let mut known: Vec<Corrected> = Vec::new();
        loop {
            let after = known.last().map(|last| last.number);
            let more = noted(kept, journal.source, after, STEP).await?;
            let is_last = more.len() < STEP;
            known.extend(more);
            if is_last {
                break;
            }
        }
        for one in corrections {
            let of = &one.restoration;
            let before = known.iter().find(|known| known.number == of.number);
            let before = before.filter(|before| before.id == of.id);
            if before.is_some_and(|before| before.done_until == one.done_until) {
                continue;
            }
            let sums = match before {
                Some(before) => before.sums.clone(),
                None => sums(journal, one).await?,
            };
            let corrected = Corrected {
                number: of.number,
                id: of.id.clone(),
                by: of.by.clone(),
                reason: of.reason.clone(),
                at_ms: of.at_ms,
                undoes: of.undoes,
                done_until: one.done_until.clone(),
                sums,
            };
            note(kept, journal.source, &corrected).await?;
        }
        Ok(())
    }
}

/// What a restoration has corrected, added up.
async fn sums(journal: &Journal<'_>, of: &Recorded) -> Result<Sums> {
    let mut sums = Sums::default();
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
