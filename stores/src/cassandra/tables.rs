//! The tables of the views.
//!
//! Each view has separate tables. Their names are never reused, so a late write to a dropped view
//! finds no table. Lightweight transactions change the state of a view's record from *making* to
//! *made* to *dropping*. A process that finds an unfinished change completes it. Tables are created
//! and dropped by one process at a time, under the lock of the schema.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use schemas::seam::Epoch;
use schemas::source::Source;
use scylla::DeserializeRow;
use uuid::Uuid;

use super::lease::CassandraLeases;
use super::migrations::lock;
use super::runs::{RunsChange, change, read_snapshot};
use super::session::Cql;
use super::{editions, view_rows};
use crate::run_rules::expect_last_publishing;
use crate::views::ViewShape;
use crate::{Error, Result};

/// The maximum number of letters of the view's name in the name of a table, which has at most 48.
const NAME_LETTERS: usize = 28;
/// The maximum number of views whose tables are cached.
const KNOWN_MAX: usize = 4096;

const MAKING: &str = "making";
const MADE: &str = "made";
const DROPPING: &str = "dropping";

/// The record of a view.
#[derive(Debug, Clone, DeserializeRow)]
pub(super) struct View {
    #[scylla(rename = "name")]
    pub(super) view: String,
    #[scylla(default_when_null)]
    source: String,
    #[scylla(default_when_null)]
    shape: String,
    #[scylla(default_when_null)]
    id: String,
    #[scylla(default_when_null)]
    state: String,
}

impl View {
    fn is_board(&self) -> bool {
        matches!(serde_json::from_str(&self.shape), Ok(ViewShape::Board(_)))
    }

    /// Returns the statements that create its tables, each with the one that drops it.
    fn definitions(&self) -> Vec<(String, String)> {
        let tables = if self.is_board() {
            editions::tables(&self.id)
        } else {
            vec![view_rows::table(&self.id)]
        };
        tables
            .into_iter()
            .map(|(name, create)| (create, format!("DROP TABLE IF EXISTS {name}")))
            .collect()
    }
}

/// A cache of the table suffixes of views. They may be outdated.
#[derive(Debug, Default)]
pub(super) struct Tables {
    known: Mutex<HashMap<String, String>>,
}

impl Tables {
    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<String, String>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the suffix of a view's table names; `None` if it has no tables.
    pub(super) async fn find(&self, cql: &Cql, view: &str) -> Result<Option<String>> {
        if let Some(id) = self.known().get(view) {
            return Ok(Some(id.clone()));
        }
        let found = find(cql, view).await?;
        let made = found.filter(|found| found.state == MADE);
        let Some(made) = made else { return Ok(None) };
        self.remember(&made);
        Ok(Some(made.id))
    }

    fn remember(&self, made: &View) {
        let mut known = self.known();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(made.view.clone(), made.id.clone());
    }

    /// Returns the suffix of a board view's table names; `None` for an aggregate view.
    pub(super) async fn find_board(&self, cql: &Cql, view: &str) -> Result<Option<String>> {
        let found = find(cql, view).await?;
        let board = found.filter(|found| found.state == MADE && found.is_board());
        Ok(board.map(|found| found.id))
    }

    /// Returns the suffix of a view's table names, or an error if it has no tables.
    pub(super) async fn expect(&self, cql: &Cql, view: &str) -> Result<String> {
        let found = self.find(cql, view).await?;
        found.ok_or_else(|| {
            Error::Refused(format!("{view}: it has no table; create the view first"))
        })
    }

    /// Fails if the written tables of a view are dropped, or are about to be. Call it after the run
    /// began to publish: from then on, no older run begins to drop them.
    pub(super) async fn expect_still(&self, cql: &Cql, source: Source, view: &str) -> Result<()> {
        let known = self.known().get(view).cloned();
        let Some(known) = known else { return Ok(()) };
        // Reads `dropping` first: the mark is removed only after the record says *dropping*.
        let seen = read_snapshot(cql, "looking for the tables of a view", source, None).await?;
        let found = find(cql, view).await?;
        if !seen.summary.dropping.contains(&known)
            && found.is_some_and(|found| found.id == known && found.state == MADE)
        {
            return Ok(());
        }
        self.forget(view);
        Err(Error::Refused(format!(
            "{view}: its tables were dropped while they were written; run again"
        )))
    }

    /// Removes a view from the cache, because its tables were missing.
    pub(super) fn forget(&self, view: &str) {
        self.known().remove(view);
    }

    /// Creates the tables of a view, unless they exist.
    pub(super) async fn ensure(
        &self,
        cql: &Cql,
        leases: &CassandraLeases,
        source: Source,
        shape: &ViewShape,
    ) -> Result<()> {
        let operation = "creating the tables of a view";
        let view = shape.view();
        let json = serde_json::to_string(shape).map_err(|error| Error::broken(operation, error))?;
        if let Some(found) = find(cql, view).await?
            && found.state == MADE
            && !is_dropping(cql, source, &found).await?
        {
            // Another process may have dropped and recreated it.
            self.remember(&found);
            return expect_shape(&found, shape);
        }
        let held = lock(leases, operation).await?;
        let made = async {
            if let Some(found) = find(cql, view).await?
                && is_dropping(cql, source, &found).await?
                && change_state(cql, &found, &found.state, DROPPING).await?
            {
                self.finish_dropping(cql, source, &found).await?;
            }
            let new = View {
                view: view.to_owned(),
                source: source.name().to_owned(),
                shape: json,
                id: new_id(view),
                state: MAKING.to_owned(),
            };
            let found = insert(cql, &new).await?;
            expect_shape(&found, shape)?;
            if found.state != MADE {
                for (create, _) in found.definitions() {
                    cql.run_ddl(operation, &create).await?;
                }
                if !change_state(cql, &found, MAKING, MADE).await? {
                    return Err(concurrent_drop_error(view));
                }
            }
            self.remember(&found);
            Ok(())
        };
        let made = made.await;
        held.release().await;
        made
    }

    /// Drops the tables of views that neither are among `keep` nor have a newest epoch, and removes
    /// the newest epoch of views that are not among `keep`.
    ///
    /// # Errors
    /// [`Error::Refused`] if another run than the one with this stamp publishes.
    pub(super) async fn forget_views(
        &self,
        cql: &Cql,
        leases: &CassandraLeases,
        (source, at): (Source, (Epoch, i64)),
        keep: &[String],
    ) -> Result<()> {
        let operation = "forgetting views";
        let (_, summary) = super::runs::read_summary(cql, operation, source).await?;
        let is_unused = |view: &str, newest: &BTreeMap<String, Epoch>| {
            !keep.iter().any(|kept| kept == view) && !newest.contains_key(view)
        };
        let all = all(cql).await?;
        let gone: Vec<View> = all
            .into_iter()
            .filter(|found| found.source == source.name())
            .filter(|found| is_unused(&found.view, &summary.newest))
            .collect();
        if !gone.is_empty() {
            let held = lock(leases, operation).await?;
            let dropped = async {
                for view in &gone {
                    if held.lost().is_cancelled() {
                        return Err(Error::Unavailable {
                            operation: format!("{operation}: holding the lock of the schema"),
                            reason: held
                                .loss_reason()
                                .unwrap_or_else(|| "it has ended".to_owned()),
                        });
                    }
                    self.forget_view(cql, (source, at), view).await?;
                }
                Ok(())
            };
            let dropped = dropped.await;
            held.release().await;
            dropped?;
        }
        change(cql, operation, source, None, |seen| {
            expect_last_publishing(source, at, seen.last.clone())?;
            let mut summary = seen.summary.clone();
            summary.newest.retain(|view, _| keep.contains(view));
            let is_same = summary.newest.len() == seen.summary.newest.len();
            let run = None;
            Ok(((!is_same).then_some(RunsChange { summary, run }), ()))
        })
        .await
    }

    /// Drops the tables of a listed view, if its record has not changed since. The list was read
    /// before the lock: since then, another process may have created, recreated or published the
    /// view.
    async fn forget_view(
        &self,
        cql: &Cql,
        (source, at): (Source, (Epoch, i64)),
        listed: &View,
    ) -> Result<()> {
        let found = find(cql, &listed.view).await?;
        let Some(found) = found.filter(|found| found.id == listed.id) else {
            return Ok(());
        };
        if found.state != DROPPING {
            if found.state != listed.state || !begin_dropping(cql, source, at, &found).await? {
                return Ok(());
            }
            if !change_state(cql, &found, &found.state, DROPPING).await? {
                return end_dropping(cql, source, &found, false).await;
            }
        }
        self.finish_dropping(cql, source, &found).await
    }

    /// Drops the tables of a view whose record is *dropping*. The record is deleted last. So an
    /// interrupted drop is completed, and the view is not recreated before.
    async fn finish_dropping(&self, cql: &Cql, source: Source, view: &View) -> Result<()> {
        let operation = "dropping the tables of a view";
        self.forget(&view.view);
        for (_, drop) in view.definitions() {
            cql.run_ddl(operation, &drop).await?;
        }
        end_dropping(cql, source, view, true).await?;
        let text = "DELETE FROM views WHERE name = ? IF id = ? AND state = ?";
        let values = (&view.view, &view.id, DROPPING);
        // If it is not applied, an earlier attempt or another process has deleted the record.
        cql.compare_and_set_until_known(operation, text, values)
            .await?;
        Ok(())
    }
}

/// Marks in the run records that the tables of a view are about to be dropped, and removes its
/// results, because a recreated table does not contain them. Runs are completed in the same record,
/// so completing a view and dropping it exclude each other. Returns whether the view may be
/// dropped: false if it was published since.
async fn begin_dropping(cql: &Cql, source: Source, at: (Epoch, i64), view: &View) -> Result<bool> {
    change(cql, "dropping a view", source, None, |seen| {
        expect_last_publishing(source, at, seen.last.clone())?;
        if seen.summary.newest.contains_key(&view.view) {
            return Ok((None, false));
        }
        let mut summary = seen.summary.clone();
        summary.results.remove(&view.view);
        summary.dropping.insert(view.id.clone());
        Ok((Some(RunsChange { summary, run: None }), true))
    })
    .await
}

/// Removes that mark, and after a drop also the results that a run began to publish meanwhile. A
/// missing mark means that another process was faster; then the recorded results belong to other
/// tables.
async fn end_dropping(cql: &Cql, source: Source, view: &View, is_dropped: bool) -> Result<()> {
    change(cql, "dropping a view", source, None, |seen| {
        let mut summary = seen.summary.clone();
        if !summary.dropping.remove(&view.id) {
            return Ok((None, ()));
        }
        if is_dropped {
            summary.results.remove(&view.view);
        }
        Ok((Some(RunsChange { summary, run: None }), ()))
    })
    .await
}

/// Returns whether the tables are about to be dropped: a process has marked it and was interrupted.
async fn is_dropping(cql: &Cql, source: Source, view: &View) -> Result<bool> {
    let seen = read_snapshot(cql, "looking for the tables of a view", source, None).await?;
    Ok(view.state == DROPPING || seen.summary.dropping.contains(&view.id))
}

fn concurrent_drop_error(view: &str) -> Error {
    Error::Refused(format!(
        "{view}: another process dropped its tables at the same time; create it again"
    ))
}

/// Inserts a record if there is none. Returns the stored record.
async fn insert(cql: &Cql, new: &View) -> Result<View> {
    let operation = "recording a view";
    let text = "INSERT INTO views (name, source, shape, id, state) VALUES (?, ?, ?, ?, ?)
                IF NOT EXISTS";
    let values = (&new.view, &new.source, &new.shape, &new.id, &new.state);
    cql.compare_and_set_until_known(operation, text, values)
        .await?;
    let found = find(cql, &new.view).await?;
    found.ok_or_else(|| concurrent_drop_error(&new.view))
}

/// Changes the state of a view's record. Returns whether it has the new state now, through this
/// call or that of another process.
async fn change_state(cql: &Cql, view: &View, from: &str, to: &str) -> Result<bool> {
    let operation = "recording a view";
    let text = "UPDATE views SET state = ? WHERE name = ? IF id = ? AND state = ?";
    let values = (to, &view.view, &view.id, from);
    if cql
        .compare_and_set_until_known(operation, text, values)
        .await?
    {
        return Ok(true);
    }
    let found = find(cql, &view.view).await?;
    Ok(found.is_some_and(|found| found.id == view.id && found.state == to))
}

async fn find(cql: &Cql, view: &str) -> Result<Option<View>> {
    let operation = "looking for the tables of a view";
    let text = "SELECT name, source, shape, id, state FROM views WHERE name = ?";
    cql.fetch_first_serial(operation, text, (view,)).await
}

async fn all(cql: &Cql) -> Result<Vec<View>> {
    let operation = "listing views";
    let statement = cql
        .prepare(
            operation,
            "SELECT name, source, shape, id, state FROM views",
        )
        .await?;
    cql.fetch_all(operation, &statement, &()).await
}

fn expect_shape(found: &View, shape: &ViewShape) -> Result<()> {
    if serde_json::from_str::<ViewShape>(&found.shape)
        .ok()
        .as_ref()
        == Some(shape)
    {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "{}: its stored rows have other keys ({}); give a changed definition a new version",
        found.view, found.shape
    )))
}

/// Creates the suffix of a view's table names: a unique part, then the view's name for readers.
fn new_id(view: &str) -> String {
    let unique = Uuid::new_v4().simple().to_string();
    let plain = |letter: char| match letter {
        'a'..='z' | '0'..='9' => letter,
        'A'..='Z' => letter.to_ascii_lowercase(),
        _ => '_',
    };
    let view: String = view.chars().map(plain).take(NAME_LETTERS).collect();
    format!("{}_{view}", &unique[..12])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tables_are_short_and_plain() {
        let long = "Plays of owners by hour, and much else@17".repeat(3);
        for view in ["a@1", &long] {
            let id = new_id(view);
            for (name, _) in editions::tables(&id) {
                assert!(name.len() <= 48, "{name}");
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
                assert!(name.bytes().all(plain), "{name}");
            }
        }
        assert_ne!(new_id("a@1"), new_id("a@1"), "suffixes are unique");
    }
}
