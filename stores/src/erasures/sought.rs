//! How often each of some people is found. What is searched is read once for all of them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::Kind;

/// People of a kind, and how often each was found. It grows with the people alone, not with what is searched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sought {
    kind: Kind,
    found: BTreeMap<i64, u64>,
}

impl Sought {
    /// Of people of whom nothing was found yet.
    pub fn of(kind: Kind, ids: impl IntoIterator<Item = i64>) -> Self {
        let found = ids.into_iter().map(|id| (id, 0)).collect();
        Self { kind, found }
    }

    /// The same people, of whom nothing was found yet.
    #[must_use]
    pub fn none(&self) -> Self {
        Self::of(self.kind, self.ids())
    }

    /// What they are.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether somebody is among them.
    #[must_use]
    pub fn has(&self, id: i64) -> bool {
        self.found.contains_key(&id)
    }

    /// Their ids, in order.
    pub fn ids(&self) -> impl Iterator<Item = i64> + use<'_> {
        self.found.keys().copied()
    }

    /// How often each was found; 0 if never.
    pub fn iter(&self) -> impl Iterator<Item = (i64, u64)> + use<'_> {
        self.found.iter().map(|(id, found)| (*id, *found))
    }

    /// Something was found of whoever has this id; of nobody among them it says nothing.
    pub fn note(&mut self, id: i64) {
        if let Some(found) = self.found.get_mut(&id) {
            *found += 1;
        }
    }

    /// Sought one thing, once for each whom it names. `look` is what tells whether the thing names somebody who passes a
    /// test; here nobody passes, so it goes through all whom the thing names.
    pub fn once(&mut self, look: impl FnOnce(&dyn Fn(i64) -> bool) -> bool) {
        let named = RefCell::new(BTreeSet::new());
        let _: bool = look(&|id| {
            if self.has(id) {
                named.borrow_mut().insert(id);
            }
            false
        });
        for id in named.into_inner() {
            self.note(id);
        }
    }

    /// Adds what was found elsewhere.
    pub fn add(&mut self, other: &Self) {
        for (id, more) in other.iter() {
            if let Some(found) = self.found.get_mut(&id) {
                *found += more;
            }
        }
    }
}
