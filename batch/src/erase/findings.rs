//! The findings of a search of every store.

use std::collections::BTreeMap;

use stores::erasures::{Person, SearchedPeople};

use super::receipt::Finding;

/// Every searched place for each person, including places without findings.
#[derive(Debug, Default)]
pub(super) struct Findings(BTreeMap<Person, Vec<Finding>>);

impl Findings {
    /// Adds the findings of a place.
    pub(super) fn add(&mut self, place: &str, name: &str, counts: &SearchedPeople) {
        let kind = counts.kind();
        for (id, count) in counts.iter() {
            self.add_for(Person { kind, id }, place, name, count);
        }
    }

    /// Adds a place that was searched for one person.
    pub(super) fn add_for(&mut self, person: Person, place: &str, name: &str, count: u64) {
        self.0.entry(person).or_default().push(Finding {
            place: place.to_owned(),
            at: name.to_owned(),
            found: count,
        });
    }

    /// Returns the findings of a person, in the order of the search.
    pub(super) fn for_person(&self, person: Person) -> &[Finding] {
        self.0.get(&person).map_or(&[], Vec::as_slice)
    }
}
