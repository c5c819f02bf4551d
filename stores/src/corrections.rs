//! The correction index: which reconciliations have corrected counts, and of what. It explains
//! totals without reading the archive, which holds the corrections themselves.
//!
//! An entry adds corrections up in cells, as fine as a bound on their number permits: of a large
//! reconciliation only the owners may be known. It never names a listener.

use std::collections::BTreeMap;

use schemas::seam::Offset;
use schemas::source::Source;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Result;
use crate::records::{Records, RecordsRead, for_each, format_number_name, to_value, update};

/// The maximum number of cells of an entry.
const CELLS_MAX: usize = 1_000;
/// The columns of cells, the finest level first.
const COLUMNS: [&[&str]; 4] = [
    &[
        "owner_id", "track_id", "kind", "country", "referrer", "app_id", "at",
    ],
    &["owner_id", "track_id", "kind", "day"],
    &["owner_id"],
    &[],
];
const DAY_SECONDS: i64 = 86_400;
/// The number of entries that are read at once.
const PAGE_RECORDS: usize = 200;

/// A reconciliation that has corrected counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CorrectionEntry {
    /// The number of the reconciliation.
    pub number: u64,
    /// Its unique id.
    pub id: String,
    /// The requester.
    pub by: String,
    /// The reason.
    pub reason: String,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// The reconciliation that it undoes, if any.
    pub undoes: Option<u64>,
    /// By partition, the end of the log after all corrections were appended; `None` until then.
    pub done_until: Option<Vec<Offset>>,
    /// The corrections.
    pub sums: CorrectionSums,
}

/// The sums of corrections by cell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CorrectionSums {
    /// The index of the columns in [`COLUMNS`].
    level: usize,
    cells: Vec<Cell>,
}

/// The corrections with the same values of the columns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Cell {
    /// The values of the columns.
    #[serde(rename = "of")]
    column_values: Vec<Value>,
    /// The first and the last time, in seconds since the Unix epoch.
    at: (i64, i64),
    count: u64,
    sum: i64,
}

/// A condition on corrections.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CorrectionFilter {
    /// By column, the only value.
    pub columns: BTreeMap<String, Value>,
    /// The first time, in seconds since the Unix epoch.
    pub from: Option<i64>,
    /// The time after the last one.
    pub to: Option<i64>,
}

/// The corrections that match a filter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MatchingCorrections {
    /// Their number.
    pub count: u64,
    /// The sum of their amounts.
    pub sum: i64,
    /// The number of corrections of cells that match in part.
    pub maybe: u64,
}

impl CorrectionSums {
    /// Adds a correction.
    pub fn add(&mut self, event: &serde_json::Map<String, Value>, time_s: i64, amount: i64) {
        let cell = Cell {
            column_values: read_column_values(
                COLUMNS.first().copied().unwrap_or_default(),
                event,
                time_s,
            ),
            at: (time_s, time_s),
            count: 1,
            sum: amount,
        };
        let cell = self.to_level(cell, 0);
        self.insert(cell);
        while self.cells.len() > CELLS_MAX {
            let previous_level = self.level;
            self.level += 1;
            for cell in std::mem::take(&mut self.cells) {
                let cell = self.to_level(cell, previous_level);
                self.insert(cell);
            }
        }
    }

    fn insert(&mut self, cell: Cell) {
        // JSON values have no order, so their texts are compared.
        let cell_key = |cell: &Cell| Value::Array(cell.column_values.clone()).to_string();
        let new_key = cell_key(&cell);
        match self
            .cells
            .binary_search_by(|existing| cell_key(existing).cmp(&new_key))
        {
            Ok(index) => {
                if let Some(existing) = self.cells.get_mut(index) {
                    existing.at = (existing.at.0.min(cell.at.0), existing.at.1.max(cell.at.1));
                    existing.count += cell.count;
                    existing.sum = existing.sum.saturating_add(cell.sum);
                }
            }
            Err(index) => self.cells.insert(index, cell),
        }
    }

    /// Converts a cell of a finer level to this level.
    fn to_level(&self, cell: Cell, from: usize) -> Cell {
        let columns = COLUMNS.get(from).copied().unwrap_or_default();
        let names = columns.iter().map(|name| (*name).to_owned());
        let event: serde_json::Map<String, Value> =
            names.zip(cell.column_values.iter().cloned()).collect();
        let to = COLUMNS.get(self.level).copied().unwrap_or_default();
        Cell {
            column_values: read_column_values(to, &event, cell.at.0),
            ..cell
        }
    }

    /// Adds up the corrections that match a filter.
    #[must_use]
    pub fn matching(&self, filter: &CorrectionFilter) -> MatchingCorrections {
        let columns = COLUMNS.get(self.level).copied().unwrap_or_default();
        let mut matching = MatchingCorrections::default();
        for cell in &self.cells {
            match cell.matches(columns, filter) {
                Some(true) => {
                    matching.count += cell.count;
                    matching.sum = matching.sum.saturating_add(cell.sum);
                }
                Some(false) => {}
                None => matching.maybe += cell.count,
            }
        }
        matching
    }
}

impl Cell {
    /// Returns whether all corrections of the cell match a filter, or none does; `None` if that is
    /// unknown.
    fn matches(&self, columns: &[&str], filter: &CorrectionFilter) -> Option<bool> {
        let (first, last) = self.at;
        let is_after = filter.to.is_some_and(|to| first >= to);
        let is_before = filter.from.is_some_and(|from| last < from);
        if is_after || is_before {
            return Some(false);
        }
        let starts = filter.from.is_none_or(|from| first >= from);
        let mut is_known = starts && filter.to.is_none_or(|to| last < to);
        for (name, expected) in &filter.columns {
            let index = columns.iter().position(|column| column == name);
            match index.and_then(|index| self.column_values.get(index)) {
                Some(value) if value == expected => {}
                Some(_) => return Some(false),
                None => is_known = false,
            }
        }
        is_known.then_some(true)
    }
}

/// Returns the values of some columns.
fn read_column_values(
    columns: &[&str],
    event: &serde_json::Map<String, Value>,
    time_s: i64,
) -> Vec<Value> {
    let value = |name: &&str| match *name {
        "at" => time_s.into(),
        "day" => time_s.div_euclid(DAY_SECONDS).into(),
        name => event.get(name).cloned().unwrap_or_default(),
    };
    columns.iter().map(value).collect()
}

fn format_scope(source: Source) -> String {
    format!("corrections {source}")
}

/// Writes the entry of a reconciliation, over an earlier one.
///
/// # Errors
/// Those of the store.
pub async fn put(records: &dyn Records, source: Source, entry: &CorrectionEntry) -> Result<()> {
    let scope = format_scope(source);
    let value = to_value(&scope, entry)?;
    let name = format_number_name(entry.number);
    update(records, &scope, &name, |_| Ok(Some(value.clone()))).await
}

/// Calls `each` with every entry of a source, in the order of their numbers.
///
/// # Errors
/// Those of the store.
pub async fn for_each_entry(
    records: &dyn RecordsRead,
    source: Source,
    each: impl FnMut(CorrectionEntry) + Send,
) -> Result<()> {
    let (mut each, scope) = (each, format_scope(source));
    for_each(records, &scope, PAGE_RECORDS, |record| {
        each(record.parse(&scope)?);
        Ok(())
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn build_sums(owners: i64, tracks: i64) -> CorrectionSums {
        let mut sums = CorrectionSums::default();
        for owner in 0..owners {
            for track in 0..tracks {
                let event =
                    json!({"owner_id": owner, "track_id": track, "kind": "play", "listener_id": 7});
                let time_s = DAY_SECONDS * 20_000 + 900 * (track % 90);
                sums.add(event.as_object().expect("an object"), time_s, 2);
            }
        }
        sums
    }

    fn filter(filters: Value) -> CorrectionFilter {
        let filters = filters.as_object().expect("an object").clone();
        CorrectionFilter {
            columns: filters.into_iter().collect(),
            ..CorrectionFilter::default()
        }
    }

    #[test]
    fn matching_sums_are_exact_at_fine_levels() {
        let sums = build_sums(3, 4);
        let matching = sums.matching(&filter(json!({"owner_id": 1, "track_id": 2})));
        assert_eq!((matching.count, matching.sum, matching.maybe), (1, 2, 0));
        let country = sums.matching(&filter(json!({"owner_id": 1, "country": "SE"})));
        assert_eq!(country, MatchingCorrections::default());
        let listener = sums.matching(&filter(json!({"owner_id": 1, "listener_id": 7})));
        assert_eq!((listener.count, listener.maybe), (0, 4));
        let early = CorrectionFilter {
            to: Some(DAY_SECONDS * 20_000 + 900),
            ..filter(json!({"owner_id": 1}))
        };
        assert_eq!(sums.matching(&early).count, 1);
        assert!(
            !serde_json::to_string(&sums)
                .expect("JSON")
                .contains("listener")
        );
    }

    #[test]
    fn many_corrections_use_a_coarser_level() {
        let sums = build_sums(30, 100);
        assert!(sums.cells.len() <= CELLS_MAX);
        let matching = sums.matching(&filter(json!({"owner_id": 1})));
        assert_eq!(
            (matching.count, matching.sum, matching.maybe),
            (100, 200, 0)
        );
        let track = sums.matching(&filter(json!({"owner_id": 1, "track_id": 2})));
        assert_eq!((track.count, track.maybe), (0, 100));
        let all = build_sums(2_000, 1).matching(&filter(json!({"owner_id": 1})));
        assert_eq!((all.count, all.maybe), (0, 2_000));
    }
}
