//! The correction index: which reconciliations have corrected counts, and of what. It explains totals
//! without reading the archive, which holds the corrections themselves.
//!
//! An entry adds corrections up in cells, as fine as a bound on their number permits: of a large
//! reconciliation only the owners may be known. It never names a listener.

use std::collections::BTreeMap;

use schemas::seam::Offset;
use schemas::source::Source;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Result;
use crate::records::{Records, RecordsRead, for_each, number_name, to_value, update};

/// Cells of an entry, at most.
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
/// Entries that are read at once.
const PAGE: usize = 200;

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
    values: Vec<Value>,
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
    pub fn add(&mut self, event: &serde_json::Map<String, Value>, at: i64, amount: i64) {
        let cell = Cell {
            values: values(COLUMNS.first().copied().unwrap_or_default(), event, at),
            at: (at, at),
            count: 1,
            sum: amount,
        };
        let cell = self.at_level(cell, 0);
        self.insert(cell);
        while self.cells.len() > CELLS_MAX {
            let before = self.level;
            self.level += 1;
            for cell in std::mem::take(&mut self.cells) {
                let cell = self.at_level(cell, before);
                self.insert(cell);
            }
        }
    }

    fn insert(&mut self, cell: Cell) {
        // JSON values have no order, so their texts are compared.
        let key = |cell: &Cell| Value::Array(cell.values.clone()).to_string();
        let new = key(&cell);
        match self.cells.binary_search_by(|known| key(known).cmp(&new)) {
            Ok(index) => {
                if let Some(known) = self.cells.get_mut(index) {
                    known.at = (known.at.0.min(cell.at.0), known.at.1.max(cell.at.1));
                    known.count += cell.count;
                    known.sum = known.sum.saturating_add(cell.sum);
                }
            }
            Err(index) => self.cells.insert(index, cell),
        }
    }

    /// Converts a cell of a finer level to this level.
    fn at_level(&self, cell: Cell, from: usize) -> Cell {
        let columns = COLUMNS.get(from).copied().unwrap_or_default();
        let named = columns.iter().map(|name| (*name).to_owned());
        let named: serde_json::Map<String, Value> =
            named.zip(cell.values.iter().cloned()).collect();
        let to = COLUMNS.get(self.level).copied().unwrap_or_default();
        Cell {
            values: values(to, &named, cell.at.0),
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
            match index.and_then(|index| self.values.get(index)) {
                Some(value) if value == expected => {}
                Some(_) => return Some(false),
                None => is_known = false,
            }
        }
        is_known.then_some(true)
    }
}

/// The values of some columns.
fn values(columns: &[&str], event: &serde_json::Map<String, Value>, at: i64) -> Vec<Value> {
    let value = |name: &&str| match *name {
        "at" => at.into(),
        "day" => at.div_euclid(DAY_SECONDS).into(),
        name => event.get(name).cloned().unwrap_or_default(),
    };
    columns.iter().map(value).collect()
}

fn scope(source: Source) -> String {
    format!("corrections {source}")
}

/// Writes the entry of a reconciliation, over an earlier one.
///
/// # Errors
/// Those of the store.
pub async fn put(records: &dyn Records, source: Source, entry: &CorrectionEntry) -> Result<()> {
    let scope = scope(source);
    let value = to_value(&scope, entry)?;
    let name = number_name(entry.number);
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
    let (mut each, scope) = (each, scope(source));
    for_each(records, &scope, PAGE, |record| {
        each(record.parse(&scope)?);
        Ok(())
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sums(owners: i64, tracks: i64) -> CorrectionSums {
        let mut sums = CorrectionSums::default();
        for owner in 0..owners {
            for track in 0..tracks {
                let event =
                    json!({"owner_id": owner, "track_id": track, "kind": "play", "listener_id": 7});
                let at = DAY_SECONDS * 20_000 + 900 * (track % 90);
                sums.add(event.as_object().expect("an object"), at, 2);
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
        let few = sums(3, 4);
        let of_one = few.matching(&filter(json!({"owner_id": 1, "track_id": 2})));
        assert_eq!((of_one.count, of_one.sum, of_one.maybe), (1, 2, 0));
        let country = few.matching(&filter(json!({"owner_id": 1, "country": "SE"})));
        assert_eq!(country, MatchingCorrections::default());
        let listener = few.matching(&filter(json!({"owner_id": 1, "listener_id": 7})));
        assert_eq!((listener.count, listener.maybe), (0, 4));
        let early = CorrectionFilter {
            to: Some(DAY_SECONDS * 20_000 + 900),
            ..filter(json!({"owner_id": 1}))
        };
        assert_eq!(few.matching(&early).count, 1);
        assert!(
            !serde_json::to_string(&few)
                .expect("JSON")
                .contains("listener")
        );
    }

    #[test]
    fn many_corrections_use_a_coarser_level() {
        let many = sums(30, 100);
        assert!(many.cells.len() <= CELLS_MAX);
        let whole = many.matching(&filter(json!({"owner_id": 1})));
        assert_eq!((whole.count, whole.sum, whole.maybe), (100, 200, 0));
        let track = many.matching(&filter(json!({"owner_id": 1, "track_id": 2})));
        assert_eq!((track.count, track.maybe), (0, 100));
        let all = sums(2_000, 1).matching(&filter(json!({"owner_id": 1})));
        assert_eq!((all.count, all.maybe), (0, 2_000));
    }
}
