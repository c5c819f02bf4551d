//! The findings of a search of every store.

use std::collections::BTreeMap;

use stores::erasures::{Person, SearchedPeople};

use super::receipt::Finding;

/// Every searched place for each person, including places without findings.
#[derive(Debug, Default)]
pub(super) struct Findings(BTreeMap<Person, Vec<Finding>>);

impl Findings {
    /// Adds the findings of a place.
    pub(super) fn add(&mut self, place: &str, at: &str, found: &SearchedPeople) {
        let kind = found.kind();
        for (id, found) in found.iter() {
            self.add_for(Person { kind, id }, place, at, found);
        }
    }

    /// Adds a place that was searched for one person.
    pub(super) fn add_for(&mut self, person: Person, place: &str, at: &str, found: u64) {
        self.0.entry(person).or_default().push(Finding {
            place: place.to_owned(),
            at: at.to_owned(),
            found,
        });
    }

    /// Returns the findings of a person, in the order of the search.
    pub(super) fn for_person(&self, person: Person) -> &[Finding] {
        self.0.get(&person).map_or(&[], Vec::as_slice)
    }
}
