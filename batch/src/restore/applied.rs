//! The repairs of a reconciliation.

use std::fmt;

use schemas::seam::Epoch;
use serde::Serialize;

/// What was put right.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Applied {
    /// Rows that were written anew.
    pub rows: u64,
    /// Rows that were deleted, since none can be where they were.
    pub deleted: u64,
    /// The run that was carried out so that the batch layer's numbers stand in the place of live ones.
    pub run: Option<Epoch>,
    /// Files of the archive that were written anew from the log.
    pub files: Vec<String>,
    /// Corrections that were appended to the log.
    pub corrections: u64,
    /// Members of boards that are counted again.
    pub notifications: u64,
    /// The restoration that they are recorded under.
    pub restoration: Option<u64>,
    /// Keys that are served otherwise than their events give, which corrections do not mend: what the archive gives
    /// is to be restored.
    pub damaged: u64,
}

impl Applied {
    /// With what was put right after it.
    pub(crate) fn and(self, later: Self) -> Self {
        let mut files = self.files;
        files.extend(later.files);
        Self {
            rows: self.rows + later.rows,
            deleted: self.deleted + later.deleted,
            run: later.run.or(self.run),
            files,
            corrections: self.corrections + later.corrections,
            notifications: self.notifications + later.notifications,
            restoration: later.restoration.or(self.restoration),
            damaged: later.damaged.max(self.damaged),
        }
    }
}

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut done = Vec::new();
        let files = self.files.len() as u64;
        for (count, one, many) in [
            (files, "file was recomputed", "files were recomputed"),
            (self.rows, "row was rewritten", "rows were rewritten"),
            (self.deleted, "row was deleted", "rows were deleted"),
            (
                self.corrections,
                "correction was appended",
                "corrections were appended",
            ),
            (
                self.notifications,
                "member was notified",
                "members were notified",
            ),
        ] {
            if count > 0 {
                done.push(format!("{count} {}", if count == 1 { one } else { many }));
            }
        }
        done.extend(self.run.map(|run| format!("run {run} was executed")));
        let number = self.restoration;
        done.extend(number.map(|number| format!("restoration {number} was recorded")));
        f.write_str(&done.join(", "))
    }
}
