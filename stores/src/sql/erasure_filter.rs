//! Hides erased athletes from everyone but an erasure.
//!
//! Rows of an erased athlete are neither stored nor returned; an application may still have written some by its own SQL, or
//! keep them in its own tables. Rows of groups that are counted are deleted where the tables are ours, so that no counter
//! includes them.
//!
//! Readers use the list of erasures as it is when they begin, and fail if it does not answer. Writers use the last known list
//! if it does not answer soon: what they write then is never read.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::Int64Type;
use schemas::entities::{self, Entity, Group};
use schemas::source::Source;

use crate::erasures::{Suppressed, Suppressions};
use crate::{Error, Result};

const MEMBER: &str = "athlete_id";
const DOING: &str = "hiding erased athletes";

/// Where the erased athletes are listed; empty for an erasure itself, which sees all rows.
#[derive(Debug, Clone)]
pub(super) struct ErasureFilter(Option<Suppressions>);

impl ErasureFilter {
    pub(super) const fn none() -> Self {
        Self(None)
    }

    pub(super) const fn new(suppressions: Suppressions) -> Self {
        Self(Some(suppressions))
    }

    /// The athletes that are erased now.
    pub(super) async fn now(&self) -> Result<ErasedAthletes> {
        Ok(match &self.0 {
            Some(suppressions) => ErasedAthletes::new(suppressions.now().await?),
            None => ErasedAthletes::none(),
        })
    }

    /// The athletes that are erased as far as is known.
    pub(super) async fn recent(&self) -> ErasedAthletes {
        match &self.0 {
            Some(suppressions) => ErasedAthletes::new(suppressions.recent().await),
            None => ErasedAthletes::none(),
        }
    }
}

/// The erased athletes at one moment.
#[derive(Debug, Clone)]
pub(super) struct ErasedAthletes(Option<Arc<Suppressed>>);

impl ErasedAthletes {
    fn new(suppressed: Arc<Suppressed>) -> Self {
        Self((suppressed.newest_athlete() > 0).then_some(suppressed))
    }

    pub(super) const fn none() -> Self {
        Self(None)
    }

    /// Whether no athlete is erased.
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn has(&self, athlete_id: i64) -> bool {
        (self.0.as_ref()).is_some_and(|suppressed| suppressed.has_athlete(athlete_id))
    }

    /// The rows without those of erased athletes, and the groups of the latter.
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
            column.ok_or_else(|| Error::broken(DOING, format!("there is no column {name}")))
        };
        let (keys, members) = (column(entities::key_column(source))?, column(MEMBER)?);
        let (mut kept, mut hidden) = (Vec::with_capacity(rows.num_rows()), BTreeSet::new());
        let mut last = None;
        for (&key, &member) in keys.values().iter().zip(members.values()) {
            // Rows of a member follow each other.
            let is_hidden = match last {
                Some((same, is_hidden)) if same == member => is_hidden,
                _ => self.has(member),
            };
            last = Some((member, is_hidden));
            kept.push(!is_hidden);
            if is_hidden {
                hidden.insert(Group { key, member });
            }
        }
        if hidden.is_empty() {
            return Ok((rows, Vec::new()));
        }
        let rows = filter_record_batch(&rows, &BooleanArray::from(kept));
        let rows = rows.map_err(|error| Error::broken(DOING, error))?;
        Ok((rows, hidden.into_iter().collect()))
    }

    /// The rows that name no erased athlete, and their indexes among all; no indexes if these are all rows.
    pub(super) fn kept<'a>(&self, rows: &'a [Entity]) -> (Option<Vec<usize>>, Cow<'a, [Entity]>) {
        if self.is_empty() || !rows.iter().any(|row| self.is_named(row)) {
            return (None, Cow::Borrowed(rows));
        }
        let kept = rows
            .iter()
            .enumerate()
            .filter(|(_, row)| !self.is_named(row));
        let (indexes, kept): (Vec<usize>, Vec<Entity>) =
            kept.map(|(index, row)| (index, row.clone())).unzip();
        (Some(indexes), Cow::Owned(kept))
    }

    /// Whether a row names an erased athlete.
    fn is_named(&self, row: &Entity) -> bool {
        match row {
            Entity::Effort(row) => self.has(row.athlete_id),
            Entity::Athlete(row) => self.has(row.id),
            Entity::Membership(row) => self.has(row.athlete_id),
            Entity::Follow(row) => self.has(row.follower_id) || self.has(row.followed_id),
            Entity::Authorization(row) => self.has(row.athlete_id),
            Entity::Application(_) => false,
        }
    }
}
