//! Which restorations have corrected counts, and of what: a small note of each beside the records of comparisons, for
//! whoever explains a total. The corrections themselves are in the archive.
//!
//! A note adds corrections up in cells, as fine as a bound on their number permits: of a large restoration it may be known
//! only which owners it touches. It never names a listener.

use std::collections::BTreeMap;

use schemas::seam::Offset;
use schemas::source::Source;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::reconciliations::{Reconciliations, ReconciliationsRead};
use crate::{Error, Result};

/// Cells of a note, at most.
const CELLS_MAX: usize = 1_000;
/// By what corrections are added up, the finest first.
const COLUMNS: [&[&str]; 4] = [
    &[
        "owner_id", "track_id", "kind", "country", "referrer", "app_id", "at",
    ],
    &["owner_id", "track_id", "kind", "day"],
    &["owner_id"],
    &[],
];
const DAY_SECONDS: i64 = 86_400;
/// Tries of a note that others change, too.
const TRIES: usize = 5;

/// A restoration that has corrected counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Corrected {
    /// Its number.
    pub number: u64,
    /// What no other one has.
    pub id: String,
    /// Who asked for it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// The restoration that it takes back, if it does.
    pub undoes: Option<u64>,
    /// By partition, where the log ended once all of it was appended; nothing as long as it is not.
    pub done_until: Option<Vec<Offset>>,
    /// What it has corrected.
    pub sums: Sums,
}

/// Corrections, added up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sums {
    /// By which columns: the place in a list of such.
    level: usize,
    cells: Vec<Cell>,
}

/// Some corrections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Cell {
    /// The values of the columns.
    of: Vec<Value>,
    /// The first and the last instant that they are at, in seconds since the Unix epoch.
    at: (i64, i64),
    count: u64,
    sum: i64,
}

/// What is asked of corrections.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Asked {
    /// By column, the only value.
    pub filters: BTreeMap<String, Value>,
    /// From this instant on, in seconds since the Unix epoch.
    pub from: Option<i64>,
    /// Before this one.
    pub to: Option<i64>,
}

/// What is known of corrections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Part {
    /// How many are of what was asked.
    pub count: u64,
    /// The sum of their amounts.
    pub sum: i64,
    /// How many more may be.
    pub maybe: u64,
}

impl Sums {
    /// Adds a correction.
    pub fn add(&mut self, event: &serde_json::Map<String, Value>, at: i64, amount: i64) {
        let cell = Cell {
            of: values(COLUMNS.first().copied().unwrap_or_default(), event, at),
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
        // Compared as texts: values of JSON have no order of their own.
        let key = |cell: &Cell| Value::Array(cell.of.clone()).to_string();
        let of = key(&cell);
        match self.cells.binary_search_by(|known| key(known).cmp(&of)) {
            Ok(place) => {
                if let Some(known) = self.cells.get_mut(place) {
                    known.at = (known.at.0.min(cell.at.0), known.at.1.max(cell.at.1));
                    known.count += cell.count;
                    known.sum = known.sum.saturating_add(cell.sum);
                }
            }
            Err(place) => self.cells.insert(place, cell),
        }
    }

    /// A cell of a finer level as one of this.
    fn at_level(&self, cell: Cell, from: usize) -> Cell {
        let columns = COLUMNS.get(from).copied().unwrap_or_default();
        let named = columns.iter().map(|name| (*name).to_owned());
        let named: serde_json::Map<String, Value> = named.zip(cell.of.iter().cloned()).collect();
        let to = COLUMNS.get(self.level).copied().unwrap_or_default();
        Cell {
            of: values(to, &named, cell.at.0),
            ..cell
        }
    }

    /// What is known of those that are asked for.
    #[must_use]
    pub fn part(&self, asked: &Asked) -> Part {
        let columns = COLUMNS.get(self.level).copied().unwrap_or_default();
        let mut part = Part::default();
        for cell in &self.cells {
            match cell.is_of(columns, asked) {
                Some(true) => {
                    part.count += cell.count;
                    part.sum = part.sum.saturating_add(cell.sum);
                }
                Some(false) => {}
                None => part.maybe += cell.count,
            }
        }
        part
    }
}

impl Cell {
    /// Whether all of it is asked for, or none; nothing if that is not known.
    fn is_of(&self, columns: &[&str], asked: &Asked) -> Option<bool> {
        let (first, last) = self.at;
        let is_after = asked.to.is_some_and(|to| first >= to);
        let is_before = asked.from.is_some_and(|from| last < from);
        if is_after || is_before {
            return Some(false);
        }
        let starts = asked.from.is_none_or(|from| first >= from);
        let mut is_known = starts && asked.to.is_none_or(|to| last < to);
        for (name, wanted) in &asked.filters {
            let place = columns.iter().position(|column| column == name);
            match place.and_then(|place| self.of.get(place)) {
                Some(value) if value == wanted => {}
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

/// Notes a restoration, over what was noted of it before.
///
/// # Errors
/// Those of the store.
pub async fn note(kept: &dyn Reconciliations, source: Source, of: &Corrected) -> Result<()> {
    let scope = scope(source);
    let name = format!("{:010}", of.number);
    let value = serde_json::to_value(of);
    let value = value.map_err(|error| Error::broken("noting corrections", error))?;
    for _ in 0..TRIES {
        let now = kept.note(&scope, &name).await?;
        if now.as_ref().is_some_and(|now| now.value == value) {
            return Ok(());
        }
        let seen = now.map(|now| now.version);
        if kept.change_note(&scope, &name, seen, Some(&value)).await? {
            return Ok(());
        }
    }
    Err(Error::Unavailable {
        what: "noting corrections".to_owned(),
        why: "others change the same note".to_owned(),
    })
}

/// Restorations that are noted, the first ones first, after one of them, at most `limit`.
///
/// # Errors
/// Those of the store.
pub async fn noted(
    kept: &dyn ReconciliationsRead,
    source: Source,
    after: Option<u64>,
    limit: usize,
) -> Result<Vec<Corrected>> {
    let after = after.map(|number| format!("{number:010}"));
    let notes = kept.notes(&scope(source), after.as_deref(), limit).await?;
    let read = |(_, note): (String, crate::reconciliations::Note)| {
        let read = serde_json::from_value(note.value);
        read.map_err(|error| Error::broken("reading notes of corrections", error))
    };
    notes.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sums(owners: i64, tracks: i64) -> Sums {
        let mut sums = Sums::default();
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

    fn asked(filters: Value) -> Asked {
        let filters = filters.as_object().expect("an object").clone();
        Asked {
            filters: filters.into_iter().collect(),
            ..Asked::default()
        }
    }

    #[test]
    fn parts_are_exact_as_far_as_is_known() {
        let few = sums(3, 4);
        let of_one = few.part(&asked(json!({"owner_id": 1, "track_id": 2})));
        assert_eq!((of_one.count, of_one.sum, of_one.maybe), (1, 2, 0));
        let country = few.part(&asked(json!({"owner_id": 1, "country": "SE"})));
        assert_eq!(country, Part::default());
        let listener = few.part(&asked(json!({"owner_id": 1, "listener_id": 7})));
        assert_eq!((listener.count, listener.maybe), (0, 4));
        let early = Asked {
            to: Some(DAY_SECONDS * 20_000 + 900),
            ..asked(json!({"owner_id": 1}))
        };
        assert_eq!(few.part(&early).count, 1);
        assert!(
            !serde_json::to_string(&few)
                .expect("JSON")
                .contains("listener")
        );
    }

    #[test]
    fn many_are_known_more_coarsely() {
        let many = sums(30, 100);
        assert!(many.cells.len() <= CELLS_MAX);
        let whole = many.part(&asked(json!({"owner_id": 1})));
        assert_eq!((whole.count, whole.sum, whole.maybe), (100, 200, 0));
        let track = many.part(&asked(json!({"owner_id": 1, "track_id": 2})));
        assert_eq!((track.count, track.maybe), (0, 100));
        let all = sums(2_000, 1).part(&asked(json!({"owner_id": 1})));
        assert_eq!((all.count, all.maybe), (0, 2_000));
    }
}
