//! What one search of every store finds, of all who are sought.

use std::collections::BTreeMap;

use stores::erasures::{Person, Sought};

use super::{Eraser, Finding};
use crate::Result;

/// Of each person every place that was searched, also where nothing is found.
#[derive(Debug, Default)]
pub(super) struct Findings(BTreeMap<Person, Vec<Finding>>);

impl Findings {
    /// Adds a place, with what was found there.
    pub(super) fn add(&mut self, place: &str, at: &str, found: &Sought) {
        let kind = found.kind();
        for (id, found) in found.iter() {
            self.add_of(Person { kind, id }, place, at, found);
        }
    }

    /// Adds a place that was searched for one person.
    pub(super) fn add_of(&mut self, person: Person, place: &str, at: &str, found: u64) {
        self.0.entry(person).or_default().push(Finding {
            place: place.to_owned(),
            at: at.to_owned(),
            found,
        });
    }

    /// What was found of a person, in the order in which it was searched.
    pub(super) fn of(&self, person: Person) -> &[Finding] {
        self.0.get(&person).map_or(&[], Vec::as_slice)
    }
}

impl Eraser {
    /// Adds what a file holds, unless somebody has deleted it by now: what was read of it by then is gone.
    pub(super) async fn in_file(
        &self,
        path: &str,
        found: &mut Sought,
        read: impl AsyncFnOnce(&mut Sought) -> Result<()>,
    ) -> Result<()> {
        let mut of_file = found.none();
        if let Err(error) = read(&mut of_file).await {
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            let present = self.batch.ports.archive.list(folder).await?;
            if present.iter().any(|one| one == path) {
                return Err(error);
            }
            return Ok(());
        }
        found.add(&of_file);
        Ok(())
    }
}
