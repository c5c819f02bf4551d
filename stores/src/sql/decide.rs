//! Decides which rows of a call are written, rejected or ignored, by the stored versions. Does no
//! I/O.

use std::collections::{HashMap, HashSet};

use schemas::entities::{Athlete, Authorization, Effort, Gender, Group};

use super::connection::sort_unique;

/// The rows to write: for each id, the last row that is not older than its predecessors and the
/// stored row.
#[derive(Debug)]
pub(crate) struct RowsToWrite<'a, T> {
    pub(crate) rows: Vec<&'a T>,
    /// The ids that are not stored yet.
    new_ids: HashSet<i64>,
}

impl<'a, T: Versioned> RowsToWrite<'a, T> {
    /// Decides about `rows`, which have their index in the call, by the `known_rows`. Adds rejected
    /// rows to `rejected`.
    pub(crate) fn new(
        rows: &[(usize, &'a T)],
        mut known_rows: HashMap<i64, KnownRow>,
        rejected: &mut Vec<(usize, String)>,
    ) -> Self {
        let mut to_write: Vec<&T> = Vec::with_capacity(rows.len());
        let mut new_ids = HashSet::new();
        for (index, row) in rows {
            let known = known_rows.get(&row.id()).copied();
            match known {
                Some(KnownRow {
                    group: Some(from), ..
                }) if row.group() != Some(from) => {
                    rejected.push((*index, row.group_change_error(from)));
                    continue;
                }
                Some(known) if row.version() < known.version => continue,
                Some(_) => {}
                None => {
                    new_ids.insert(row.id());
                }
            }
            let index = known
                .and_then(|known| known.index)
                .unwrap_or(to_write.len());
            match to_write.get_mut(index) {
                Some(earlier) => *earlier = row,
                None => to_write.push(row),
            }
            let newest = KnownRow {
                group: row.group(),
                version: row.version(),
                index: Some(index),
            };
            known_rows.insert(row.id(), newest);
        }
        Self {
            rows: to_write,
            new_ids,
        }
    }

    pub(crate) fn is_new(&self, row: &T) -> bool {
        self.new_ids.contains(&row.id())
    }

    /// The groups of the rows that satisfy `condition`, ascending, each once.
    pub(crate) fn groups(&self, condition: impl Fn(&T) -> bool) -> Vec<Group> {
        let rows = self.rows.iter().filter(|row| condition(row));
        sort_unique(rows.filter_map(|row| row.group()))
    }
}

/// A row that has an id and a version.
pub(crate) trait Versioned {
    fn id(&self) -> i64;
    fn version(&self) -> i64;
    /// The row's group, which must not change.
    fn group(&self) -> Option<Group> {
        None
    }
    /// Why this row is rejected if the stored row with its id is in the group `from`.
    fn group_change_error(&self, _from: Group) -> String {
        String::new()
    }
}

impl Versioned for Effort {
    fn id(&self) -> i64 {
        self.id
    }

    fn version(&self) -> i64 {
        self.version
    }

    fn group(&self) -> Option<Group> {
        let (key, member) = (self.segment_id, self.athlete_id);
        Some(Group { key, member })
    }

    fn group_change_error(&self, from: Group) -> String {
        let (id, to) = (self.id, self.segment_id);
        if from.key == to {
            return athlete_change_error("effort", id, from.member, self.athlete_id);
        }
        let from = from.key;
        format!("segment_id: effort {id} is on segment {from} and cannot move to {to}")
    }
}

impl Versioned for Authorization {
    fn id(&self) -> i64 {
        self.id
    }

    fn version(&self) -> i64 {
        self.version
    }

    fn group(&self) -> Option<Group> {
        let (key, member) = (self.application_id, self.athlete_id);
        Some(Group { key, member })
    }

    fn group_change_error(&self, from: Group) -> String {
        let (id, to) = (self.id, self.application_id);
        if from.key == to {
            return athlete_change_error("authorization", id, from.member, self.athlete_id);
        }
        let from = from.key;
        format!(
            "application_id: authorization {id} is for application {from} and cannot move to {to}"
        )
    }
}

impl Versioned for Athlete {
    fn id(&self) -> i64 {
        self.id
    }

    fn version(&self) -> i64 {
        self.version
    }
}

fn athlete_change_error(kind: &str, id: i64, from: i64, to: i64) -> String {
    format!("athlete_id: {kind} {id} belongs to athlete {from} and cannot move to {to}")
}

/// The newest known row of an id: the stored one, or one of the call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KnownRow {
    group: Option<Group>,
    version: i64,
    /// The index among the rows to write, for a row of the call.
    index: Option<usize>,
}

impl KnownRow {
    pub(crate) const fn stored(group: Option<Group>, version: i64) -> Self {
        Self {
            group,
            version,
            index: None,
        }
    }
}

/// The fields of an athlete that views read. An unknown athlete has the default values.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct VisibleAthlete {
    pub(crate) gender: Option<String>,
    pub(crate) birth_year: Option<i64>,
    pub(crate) weight_kg: Option<f64>,
    pub(crate) is_disqualified: bool,
    pub(crate) is_deleted: bool,
}

impl VisibleAthlete {
    fn from_athlete(row: &Athlete) -> Self {
        Self {
            gender: row.gender.map(Gender::letter).map(str::to_owned),
            birth_year: row.birth_year,
            weight_kg: row.weight_kg,
            is_disqualified: row.is_disqualified,
            is_deleted: row.is_deleted,
        }
    }
}

/// Written athletes whose fields changed; ascending, each once.
#[derive(Debug, Default)]
pub(crate) struct ChangedAthletes {
    /// Athletes with a change that views can read.
    pub(crate) visible: Vec<i64>,
    /// Athletes that were deleted or restored.
    pub(crate) deleted_or_restored: Vec<i64>,
}

impl ChangedAthletes {
    /// Compares written rows, which have different ids, with the athletes that were `stored`
    /// before.
    pub(crate) fn new(rows: &[&Athlete], mut stored: HashMap<i64, VisibleAthlete>) -> Self {
        let mut changed = Self::default();
        for row in rows {
            let stored = stored.remove(&row.id).unwrap_or_default();
            if row.is_deleted != stored.is_deleted {
                changed.deleted_or_restored.push(row.id);
            }
            if VisibleAthlete::from_athlete(row) != stored {
                changed.visible.push(row.id);
            }
        }
        changed.visible.sort_unstable();
        changed.deleted_or_restored.sort_unstable();
        changed
    }
}
