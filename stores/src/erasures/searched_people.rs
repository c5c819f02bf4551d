//! Counts how often some people are found in data, which is read once for all of them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::PersonKind;

/// People of one kind, and how often each was found. Its size depends on the number of people
/// alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchedPeople {
    kind: PersonKind,
    counts: BTreeMap<i64, u64>,
}

impl SearchedPeople {
    /// Starts with a count of 0 for each person.
    pub fn new(kind: PersonKind, ids: impl IntoIterator<Item = i64>) -> Self {
        let counts = ids.into_iter().map(|id| (id, 0)).collect();
        Self { kind, counts }
    }

    /// The same people with counts of 0.
    #[must_use]
    pub fn zeroed(&self) -> Self {
        Self::new(self.kind, self.ids())
    }

    /// The kind of the people.
    #[must_use]
    pub const fn kind(&self) -> PersonKind {
        self.kind
    }

    /// Returns whether a person is searched for.
    #[must_use]
    pub fn contains(&self, id: i64) -> bool {
        self.counts.contains_key(&id)
    }

    /// The ids, in ascending order.
    pub fn ids(&self) -> impl Iterator<Item = i64> + use<'_> {
        self.counts.keys().copied()
    }

    /// The counts by id.
    pub fn iter(&self) -> impl Iterator<Item = (i64, u64)> + use<'_> {
        self.counts.iter().map(|(id, count)| (*id, *count))
    }

    /// Counts a person, if searched for.
    pub fn increment(&mut self, id: i64) {
        if let Some(count) = self.counts.get_mut(&id) {
            *count += 1;
        }
    }

    /// Counts each person that an item mentions, once. `search` tests all ids in the item until one
    /// passes; here none passes, so it visits all of them.
    pub fn count_mentions(&mut self, search: impl FnOnce(&dyn Fn(i64) -> bool) -> bool) {
        let mentioned = RefCell::new(BTreeSet::new());
        let _: bool = search(&|id| {
            if self.contains(id) {
                mentioned.borrow_mut().insert(id);
            }
            false
        });
        for id in mentioned.into_inner() {
            self.increment(id);
        }
    }

    /// Adds the counts of another search.
    pub fn add(&mut self, other: &Self) {
        for (id, count) in other.iter() {
            if let Some(sum) = self.counts.get_mut(&id) {
                *sum += count;
            }
        }
    }
}
