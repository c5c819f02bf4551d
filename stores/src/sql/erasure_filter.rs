//! Hides erased athletes from all callers except erasures.
//!
//! Rows of an erased athlete are neither stored nor returned. An app may still have written such
//! rows by its own SQL, or have them in its own tables. Such rows are deleted when their groups are
//! read, except from views, so that no counter includes them.
//!
//! Readers use the present list of erasures, and fail if it is unavailable. Writers use the last
//! known list if it is not available soon, because readers hide the rows anyway.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::Int64Type;
use schemas::entities::{self, Entity, Group};
use schemas::source::Source;

use crate::erasures::{SuppressedPeople, Suppressions};
use crate::{Error, Result};

const MEMBER: &str = "athlete_id";
const OPERATION: &str = "hiding erased athletes";

/// The source of the list of erased athletes. `None` for an erasure itself, which sees all rows.
#[derive(Debug, Clone)]
pub(super) struct ErasureFilter(Option<Suppressions>);

impl ErasureFilter {
    pub(super) const fn none() -> Self {
        Self(None)
    }

    pub(super) const fn new(suppressions: Suppressions) -> Self {
        Self(Some(suppressions))
    }

    /// Reads the present list of erased athletes.
    pub(super) async fn current(&self) -> Result<ErasedAthletes> {
        Ok(match &self.0 {
            Some(suppressions) => ErasedAthletes::new(suppressions.current().await?),
            None => ErasedAthletes::none(),
        })
    }

    /// Reads the list of erased athletes; the last known one if it is not available soon.
    pub(super) async fn recent(&self) -> ErasedAthletes {
        match &self.0 {
            Some(suppressions) => ErasedAthletes::new(suppressions.recent().await),
            None => ErasedAthletes::none(),
        }
    }
}

/// A list of erased athletes.
#[derive(Debug, Clone)]
pub(super) struct ErasedAthletes(Option<Arc<SuppressedPeople>>);

impl ErasedAthletes {
    fn new(suppressed: Arc<SuppressedPeople>) -> Self {
        Self((suppressed.newest_athlete() > 0).then_some(suppressed))
    }

    pub(super) const fn none() -> Self {
        Self(None)
    }

    /// Returns whether no athlete is erased.
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn contains(&self, athlete_id: i64) -> bool {
        (self.0.as_ref()).is_some_and(|suppressed| suppressed.contains_athlete(athlete_id))
    }

    /// Removes rows of erased athletes, and returns the remaining rows and the groups of the
    /// removed ones.
    pub(super) fn hide(
        &self,
        source: Source,
        rows: RecordBatch,
    ) -> Result<(RecordBatch, Vec<Group>)> {
        if self.is_empty() {
            return Ok((rows, Vec::new()));
        }
        let column = |name: &str| {
            let column = rows.column_by_name(name);
            let column = column.and_then(|column| column.as_primitive_opt::<Int64Type>());
            column
                .ok_or_else(|| Error::broken(OPERATION, format!("the rows have no column {name}")))
        };
        let (keys, members) = (column(entities::key_column(source))?, column(MEMBER)?);
        let (mut is_visible, mut hidden) = (Vec::with_capacity(rows.num_rows()), BTreeSet::new());
        let mut previous = None;
        for (&key, &member) in keys.values().iter().zip(members.values()) {
            // Rows of a member are adjacent.
            let is_hidden = match previous {
                Some((previous_member, is_hidden)) if previous_member == member => is_hidden,
                _ => self.contains(member),
            };
            previous = Some((member, is_hidden));
            is_visible.push(!is_hidden);
            if is_hidden {
                hidden.insert(Group { key, member });
            }
        }
        if hidden.is_empty() {
            return Ok((rows, Vec::new()));
        }
        let rows = filter_record_batch(&rows, &BooleanArray::from(is_visible));
        let rows = rows.map_err(|error| Error::broken(OPERATION, error))?;
        Ok((rows, hidden.into_iter().collect()))
    }

    /// Returns the rows without erased athletes, and their indexes in `rows`; no indexes if all
    /// rows remain.
    pub(super) fn without_erased<'a>(
        &self,
        rows: &'a [Entity],
    ) -> (Option<Vec<usize>>, Cow<'a, [Entity]>) {
        if self.is_empty() || !rows.iter().any(|row| self.contains_erased(row)) {
            return (None, Cow::Borrowed(rows));
        }
        let remaining = rows
            .iter()
            .enumerate()
            .filter(|(_, row)| !self.contains_erased(row));
        let (indexes, remaining): (Vec<usize>, Vec<Entity>) =
            remaining.map(|(index, row)| (index, row.clone())).unzip();
        (Some(indexes), Cow::Owned(remaining))
    }

    /// Returns whether a row contains the id of an erased athlete.
    fn contains_erased(&self, row: &Entity) -> bool {
        match row {
            Entity::Effort(row) => self.contains(row.athlete_id),
            Entity::Athlete(row) => self.contains(row.id),
            Entity::Membership(row) => self.contains(row.athlete_id),
            Entity::Follow(row) => self.contains(row.follower_id) || self.contains(row.followed_id),
            Entity::Authorization(row) => self.contains(row.athlete_id),
            Entity::Application(_) => false,
        }
    }
}
