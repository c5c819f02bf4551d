//! Which tables the views have.
//!
//! A view has tables of its own, with a name that no other ever had: a late write of an earlier life
//! of the view finds no table. The record of a view goes from *making* to *made* to *dropping*, by
//! lightweight transactions; whoever comes upon one that was left on its way takes it further. Tables
//! are made and dropped by one process at a time, under the lock of the schema.

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

/// A name has at most 48 letters; so many of a view's own are in it, for people.
const NAME_LETTERS: usize = 28;
/// Views whose tables are remembered.
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

    /// What makes its tables, and what drops them.
    fn definitions(&self) -> Vec<(String, String)> {
        let tables = if self.is_board() {
            editions::tables(&self.id)
        } else {
            vec![view_rows::table(&self.id)]
        };
        tables
            .into_iter()
            .map(|(name, make)| (make, format!("DROP TABLE IF EXISTS {name}")))
            .collect()
    }
}

/// What the tables of views are called, as far as it is known here.
#[derive(Debug, Default)]
pub(super) struct Tables {
    known: Mutex<HashMap<String, String>>,
}

impl Tables {
    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<String, String>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the tables of a view end in; nothing if it has none.
    pub(super) async fn find(&self, cql: &Cql, view: &str) -> Result<Option<String>> {
        if let Some(id) = self.known().get(view) {
            return Ok(Some(id.clone()));
        }
        let found = find(cql, view).await?;
        let made = found.filter(|found| found.state == MADE);
        let Some(made) = made else { return Ok(None) };
        self.know(&made);
        Ok(Some(made.id))
    }

    fn know(&self, made: &View) {
        let mut known = self.known();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(made.view.clone(), made.id.clone());
    }

    /// The same for a view of boards; nothing for one of tallies.
    pub(super) async fn find_board(&self, cql: &Cql, view: &str) -> Result<Option<String>> {
        let found = find(cql, view).await?;
        let board = found.filter(|found| found.state == MADE && found.is_board());
        Ok(board.map(|found| found.id))
    }

    /// What the tables of a view that must have some end in.
    pub(super) async fn expect(&self, cql: &Cql, view: &str) -> Result<String> {
        let found = self.find(cql, view).await?;
        found.ok_or_else(|| Error::Refused(format!("{view}: it has no table; make the view first")))
    }

    /// Refuses if the tables of a view that were written to are no longer there, or about to go. Asked
    /// after the run began to publish: from then on no older one begins to drop them.
    pub(super) async fn expect_still(&self, cql: &Cql, source: Source, view: &str) -> Result<()> {
        let known = self.known().get(view).cloned();
        let Some(known) = known else { return Ok(()) };
        // The note first: it is taken away only once the record says it.
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

    /// Forgets what the tables of a view are called: they were not there.
    pub(super) fn forget(&self, view: &str) {
        self.known().remove(view);
    }

    /// Makes the tables of a view, unless they are there.
    pub(super) async fn ensure(
        &self,
        cql: &Cql,
        leases: &CassandraLeases,
        source: Source,
        shape: &ViewShape,
    ) -> Result<()> {
        let doing = "making the tables of a view";
        let view = shape.view();
        let json = serde_json::to_string(shape).map_err(|error| Error::broken(doing, error))?;
        if let Some(found) = find(cql, view).await?
            && found.state == MADE
            && !is_dropping(cql, source, &found).await?
        {
            // It may have been dropped and made anew by somebody else.
            self.know(&found);
            return expect_shape(&found, shape);
        }
        let held = lock(leases, doing).await?;
        let made = async {
            if let Some(found) = find(cql, view).await?
                && is_dropping(cql, source, &found).await?
                && into_state(cql, &found, &found.state, DROPPING).await?
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
                for (make, _) in found.definitions() {
                    cql.run_ddl(doing, &make).await?;
                }
                if !into_state(cql, &found, MAKING, MADE).await? {
                    return Err(meanwhile(view));
                }
            }
            self.know(&found);
            Ok(())
        };
        let made = made.await;
        held.release().await;
        made
    }

    /// Drops the tables of views that neither are among `keep` nor have a newest epoch, and takes
    /// from those that are not among `keep` their newest epoch.
    ///
    /// # Errors
    /// [`Error::Refused`] if somebody else publishes than the run that has the stamp.
    pub(super) async fn forget_views(
        &self,
        cql: &Cql,
        leases: &CassandraLeases,
        (source, at): (Source, (Epoch, i64)),
        keep: &[String],
    ) -> Result<()> {
        let doing = "forgetting views";
        let (_, summary) = super::runs::read_summary(cql, doing, source).await?;
        let is_gone = |view: &str, newest: &BTreeMap<String, Epoch>| {
            !keep.iter().any(|kept| kept == view) && !newest.contains_key(view)
        };
        let all = all(cql).await?;
        let gone: Vec<View> = all
            .into_iter()
            .filter(|found| found.source == source.name())
            .filter(|found| is_gone(&found.view, &summary.newest))
            .collect();
        if !gone.is_empty() {
            let held = lock(leases, doing).await?;
            let dropped = async {
                for view in &gone {
                    if held.lost().is_cancelled() {
                        let why = held
                            .loss_reason()
                            .unwrap_or_else(|| "it has ended".to_owned());
                        let what = format!("{doing}: holding the lock of the schema");
                        return Err(Error::Unavailable {
                            operation: what,
                            reason: why,
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
        change(cql, doing, source, None, |seen| {
            expect_last_publishing(source, at, seen.last.clone())?;
            let mut summary = seen.summary.clone();
            summary.newest.retain(|view, _| keep.contains(view));
            let is_same = summary.newest.len() == seen.summary.newest.len();
            let run = None;
            Ok(((!is_same).then_some(RunsChange { summary, run }), ()))
        })
        .await
    }

    /// Drops the tables of a view that was listed, if it still is as it was then. What was read before
    /// the lock may be long past: somebody may have made it, made it anew, or published it.
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
            if !into_state(cql, &found, &found.state, DROPPING).await? {
                return end_dropping(cql, source, &found, false).await;
            }
        }
        self.finish_dropping(cql, source, &found).await
    }

    /// Drops the tables of a view whose record is *dropping*. Its record goes last, so that whatever
    /// dies in between is finished, and nobody makes the view anew before.
    async fn finish_dropping(&self, cql: &Cql, source: Source, view: &View) -> Result<()> {
        let doing = "dropping the tables of a view";
        self.forget(&view.view);
        for (_, drop) in view.definitions() {
            cql.run_ddl(doing, &drop).await?;
        }
        end_dropping(cql, source, view, true).await?;
        let text = "DELETE FROM views WHERE name = ? IF id = ? AND state = ?";
        let values = (&view.view, &view.id, DROPPING);
        // Not applied: an earlier try of the same was, or somebody else's.
        cql.compare_and_set_until_known(doing, text, values).await?;
        Ok(())
    }
}

/// Notes in the run records that the tables of a view are about to go, and forgets its results: a table
/// that is made anew must not be taken for one that holds them. It is where runs are completed, so that
/// of completing a view and dropping it only one comes first. Answers whether it may be dropped: it
/// may not if it was published since.
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

/// Takes that note away, and if the tables are gone what was begun to be published into them meanwhile.
/// Who finds no note was overtaken, and what is recorded is of other tables.
async fn end_dropping(cql: &Cql, source: Source, view: &View, are_gone: bool) -> Result<()> {
    change(cql, "dropping a view", source, None, |seen| {
        let mut summary = seen.summary.clone();
        if !summary.dropping.remove(&view.id) {
            return Ok((None, ()));
        }
        if are_gone {
            summary.results.remove(&view.view);
        }
        Ok((Some(RunsChange { summary, run: None }), ()))
    })
    .await
}

/// Whether the tables that are made are about to go: whoever noted it died.
async fn is_dropping(cql: &Cql, source: Source, view: &View) -> Result<bool> {
    let seen = read_snapshot(cql, "looking for the tables of a view", source, None).await?;
    Ok(view.state == DROPPING || seen.summary.dropping.contains(&view.id))
}

fn meanwhile(view: &str) -> Error {
    Error::Refused(format!(
        "{view}: somebody else dropped its tables at the same moment; make it once more"
    ))
}

/// The record that is there after one was inserted where none was.
async fn insert(cql: &Cql, new: &View) -> Result<View> {
    let doing = "recording a view";
    let text = "INSERT INTO views (name, source, shape, id, state) VALUES (?, ?, ?, ?, ?)
                IF NOT EXISTS";
    let values = (&new.view, &new.source, &new.shape, &new.id, &new.state);
    cql.compare_and_set_until_known(doing, text, values).await?;
    let found = find(cql, &new.view).await?;
    found.ok_or_else(|| meanwhile(&new.view))
}

/// Takes the record of a view from one state to another; answers whether it is in that state now, be
/// it through this call or somebody else's.
async fn into_state(cql: &Cql, view: &View, from: &str, to: &str) -> Result<bool> {
    let doing = "recording a view";
    let text = "UPDATE views SET state = ? WHERE name = ? IF id = ? AND state = ?";
    let values = (to, &view.view, &view.id, from);
    if cql.compare_and_set_until_known(doing, text, values).await? {
        return Ok(true);
    }
    let found = find(cql, &view.view).await?;
    Ok(found.is_some_and(|found| found.id == view.id && found.state == to))
}

async fn find(cql: &Cql, view: &str) -> Result<Option<View>> {
    let doing = "looking for the tables of a view";
    let text = "SELECT name, source, shape, id, state FROM views WHERE name = ?";
    cql.fetch_first_serial(doing, text, (view,)).await
}

async fn all(cql: &Cql) -> Result<Vec<View>> {
    let doing = "listing views";
    let statement = cql
        .prepare(doing, "SELECT name, source, shape, id, state FROM views")
        .await?;
    cql.fetch_all(doing, &statement, &()).await
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

/// What a view's tables end in: the first part makes it their own, the rest is for people.
fn new_id(view: &str) -> String {
    let own = Uuid::new_v4().simple().to_string();
    let plain = |letter: char| match letter {
        'a'..='z' | '0'..='9' => letter,
        'A'..='Z' => letter.to_ascii_lowercase(),
        _ => '_',
    };
    let view: String = view.chars().map(plain).take(NAME_LETTERS).collect();
    format!("{}_{view}", &own[..12])
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
        assert_ne!(new_id("a@1"), new_id("a@1"), "each has its own");
    }
}
