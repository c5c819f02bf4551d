//! What becomes of rows that are to be applied, given what is stored: pure.

use std::collections::{HashMap, HashSet};

use schemas::entities::{Athlete, Authorization, Effort, Gender, Group};

use super::connection::ascending;

/// What is to be written: the last row of each id that was not older than what was known then.
#[derive(Debug)]
pub(crate) struct Decided<'a, T> {
    pub(crate) kept: Vec<&'a T>,
    /// The ids that were not stored before.
    new: HashSet<i64>,
}

impl<'a, T: Versioned> Decided<'a, T> {
    pub(crate) fn of(
        rows: &[(usize, &'a T)],
        mut known: HashMap<i64, Known>,
        rejected: &mut Vec<(usize, String)>,
    ) -> Self {
        let mut kept: Vec<&T> = Vec::with_capacity(rows.len());
        let mut new = HashSet::new();
        for (index, row) in rows {
            let before = known.get(&row.id()).copied();
            match before {
                Some(Known {
                    group: Some(from), ..
                }) if row.group() != Some(from) => {
                    rejected.push((*index, row.moved(from)));
                    continue;
                }
                Some(before) if row.version() < before.version => continue,
                Some(_) => {}
                None => {
                    new.insert(row.id());
                }
            }
            let place = before.and_then(|before| before.kept).unwrap_or(kept.len());
            match kept.get_mut(place) {
                Some(earlier) => *earlier = row,
                None => kept.push(row),
            }
            let now = Known {
                group: row.group(),
                version: row.version(),
                kept: Some(place),
            };
            known.insert(row.id(), now);
        }
        Self { kept, new }
    }

    pub(crate) fn is_new(&self, row: &T) -> bool {
        self.new.contains(&row.id())
    }

    /// The groups of some of the rows, ascending, each once.
    pub(crate) fn groups(&self, of: impl Fn(&T) -> bool) -> Vec<Group> {
        let kept = self.kept.iter().filter(|row| of(row));
        ascending(kept.filter_map(|row| row.group()))
    }
}

/// A row that has an id and a version.
pub(crate) trait Versioned {
    fn id(&self) -> i64;
    fn version(&self) -> i64;
    /// The group that it can't leave.
    fn group(&self) -> Option<Group> {
        None
    }
    /// Why a row can't be taken that has this one's id and stands in another group.
    fn moved(&self, _from: Group) -> String {
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

    fn moved(&self, from: Group) -> String {
        let (id, to) = (self.id, self.segment_id);
        if from.key == to {
            return stays("effort", id, from.member, self.athlete_id);
        }
        let from = from.key;
        format!("segment_id: effort {id} is on segment {from} and can't move to {to}")
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

    fn moved(&self, from: Group) -> String {
        let (id, to) = (self.id, self.application_id);
        if from.key == to {
            return stays("authorization", id, from.member, self.athlete_id);
        }
        let from = from.key;
        format!(
            "application_id: authorization {id} is for application {from} and can't move to {to}"
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

fn stays(what: &str, id: i64, from: i64, to: i64) -> String {
    format!("athlete_id: {what} {id} is of athlete {from} and can't become one of {to}")
}

/// What is known of an id, while rows are gone through.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    group: Option<Group>,
    version: i64,
    /// Where the row stands among those that are kept.
    kept: Option<usize>,
}

impl Known {
    pub(crate) const fn stored(group: Option<Group>, version: i64) -> Self {
        Self {
            group,
            version,
            kept: None,
        }
    }
}

/// What views see of an athlete. Of one that is not known they see as much as of one that tells
/// nothing.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) gender: Option<String>,
    pub(crate) birth_year: Option<i64>,
    pub(crate) weight_kg: Option<f64>,
    pub(crate) is_disqualified: bool,
    pub(crate) is_deleted: bool,
}

impl Seen {
    fn of(row: &Athlete) -> Self {
        Self {
            gender: row.gender.map(Gender::letter).map(str::to_owned),
            birth_year: row.birth_year,
            weight_kg: row.weight_kg,
            is_disqualified: row.is_disqualified,
            is_deleted: row.is_deleted,
        }
    }
}

/// Athletes that were written and are not as before; ascending, each once.
#[derive(Debug, Default)]
pub(crate) struct ChangedAthletes {
    /// Views see something else of them.
    pub(crate) seen: Vec<i64>,
    /// They are deleted and were not, or the other way round.
    pub(crate) come_or_gone: Vec<i64>,
}

impl ChangedAthletes {
    /// Of rows with different ids, given what was seen before.
    pub(crate) fn of(kept: &[&Athlete], mut before: HashMap<i64, Seen>) -> Self {
        let mut changed = Self::default();
        for row in kept {
            let before = before.remove(&row.id).unwrap_or_default();
            if row.is_deleted != before.is_deleted {
                changed.come_or_gone.push(row.id);
            }
            if Seen::of(row) != before {
                changed.seen.push(row.id);
            }
        }
        changed.seen.sort_unstable();
        changed.come_or_gone.sort_unstable();
        changed
    }
}
