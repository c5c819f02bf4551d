//! Batch rows and run records in `views.db`; each view has separate tables.

use std::collections::BTreeMap;
use std::path::Path;

use async_trait::async_trait;
use bytes::Bytes;
use schemas::seam::{Cut, Epoch, Run, RunState};
use schemas::source::Source;
use sqlx::AssertSqlSafe;

use super::db::{DatabaseSpec, Db, Upgrade};
use super::session::Session;
use super::statement::to_stored;
use super::view_rows::{
    Found, bind_rows, expect_table, find_table, rows_before, table_name, upsert,
};
use super::{editions, runs, view_rows, view_scan};
use crate::run_rules;
use crate::view_scan::{RowPosition, ScanShare, ScannedHeads, ScannedRows, ShareScheme, ViewsScan};
use crate::views::{
    Head, NewRows, NewVersion, NodeName, PartitionQuery, RowKeys, RunDetails, RunRecords,
    TableResults, ViewRows, ViewShape, ViewsRead, ViewsWrite,
};
use crate::{Error, Result};

/// The maximum number of rows of a transaction, so that other writers can write in between.
const PUBLISH_ROWS: usize = 16 << 10;

static VIEWS: DatabaseSpec = DatabaseSpec {
    name: "views.db",
    version: 4,
    tables: "
        CREATE TABLE runs (
            id INTEGER PRIMARY KEY,
            source TEXT NOT NULL,
            epoch INTEGER NOT NULL,
            state TEXT NOT NULL,
            cuts TEXT NOT NULL,
            stamp_us INTEGER NOT NULL,
            token TEXT NOT NULL,
            started_at_ms INTEGER NOT NULL,
            ended_at_ms INTEGER,
            report TEXT NOT NULL,
            UNIQUE (source, epoch)
        ) STRICT;
        CREATE INDEX runs_by_state ON runs (source, state, epoch);
        CREATE TABLE stamps (
            source TEXT NOT NULL PRIMARY KEY,
            last_us INTEGER NOT NULL
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE newest (
            source TEXT NOT NULL,
            view TEXT NOT NULL,
            epoch INTEGER NOT NULL,
            PRIMARY KEY (source, view)
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE results (
            source TEXT NOT NULL,
            view TEXT NOT NULL,
            result TEXT NOT NULL,
            published INTEGER NOT NULL,
            PRIMARY KEY (source, view, result)
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE views (
            id INTEGER PRIMARY KEY,
            name TEXT NOT NULL UNIQUE,
            source TEXT NOT NULL,
            shape TEXT NOT NULL
        ) STRICT;",
    upgrades: &[(
        3,
        Upgrade::Tables {
            ending: "_heads",
            statements: "
                ALTER TABLE {table}_heads ADD COLUMN stamp_us INTEGER;
                ALTER TABLE {table}_heads ADD COLUMN earlier_root BLOB;
                ALTER TABLE {table}_heads ADD COLUMN earlier_epoch INTEGER;
                ALTER TABLE {table}_heads ADD COLUMN earlier_stamp_us INTEGER;
                CREATE TABLE {table}_earlier (
                    key BLOB NOT NULL,
                    name BLOB NOT NULL,
                    is_current INTEGER NOT NULL,
                    PRIMARY KEY (key, name)
                ) STRICT, WITHOUT ROWID;",
        },
    )],
    is_replaceable: false,
    page_bytes: 8192,
    cache_kib: 32 * 1024,
    readers: 4,
    row_buffer: 512,
    remedy: "stop every process of this folder and restore views.db from a copy",
};

fn rows_table(name: &str) -> String {
    format!(
        "CREATE TABLE {name} (
            part BLOB NOT NULL,
            row BLOB NOT NULL,
            count INTEGER,
            epoch INTEGER NOT NULL,
            stamp_us INTEGER NOT NULL,
            PRIMARY KEY (part, row)
        ) STRICT, WITHOUT ROWID"
    )
}

/// The batch rows and run records of a data folder.
#[derive(Debug)]
pub struct SqliteViews {
    db: Db,
    runs_kept: u64,
}

impl SqliteViews {
    pub(super) async fn open(folder: &Path) -> Result<Self> {
        Ok(Self {
            db: Db::open(folder, &VIEWS).await?,
            runs_kept: run_rules::RUN_RECORDS_MAX,
        })
    }

    /// Sets the number of runs whose records are kept, 10,000 by default.
    #[must_use]
    pub const fn keeping_runs(mut self, runs: u64) -> Self {
        self.runs_kept = runs;
        self
    }
}

/// Reads the record of a run. Fails if another run or attempt has published since this stamp.
async fn expect_publisher(tx: &mut Session, source: Source, at: (Epoch, i64)) -> Result<Run> {
    run_rules::expect_last_publishing(source, at, runs::read_last(tx, source).await?)
}

#[async_trait]
impl ViewsRead for SqliteViews {
    async fn runs(&self, source: Source) -> Result<RunRecords> {
        let mut tx = self.db.begin_read("reading the newest epochs").await?;
        let query = sqlx::query("SELECT view, epoch FROM newest WHERE source = ?");
        let newest: Vec<(String, i64)> = tx.fetch_all(query.bind(source.name())).await?;
        let of_views = newest.iter().map(|(_, epoch)| epoch.cast_unsigned());
        let runs = runs::read_recent(&mut tx, source, of_views).await?;
        let complete_epochs = newest
            .into_iter()
            .map(|(view, epoch)| (view, epoch.cast_unsigned()))
            .collect();
        Ok(RunRecords {
            runs,
            complete_epochs,
        })
    }

    async fn rows(&self, view: &str, queries: &[PartitionQuery]) -> Result<Option<ViewRows>> {
        let mut tx = self.db.begin_read("reading batch rows").await?;
        let Some(table) = find_table(&mut tx, view).await? else {
            return Ok(None);
        };
        let mut found = Found::default();
        for query in (0..).zip(queries) {
            found.read(&mut tx, &table, query).await?;
        }
        Ok(Some(found.finish()))
    }

    async fn heads(&self, view: &str, keys: &[Vec<u8>]) -> Result<Option<Vec<Option<Head>>>> {
        let mut tx = self.db.begin_read("reading heads").await?;
        editions::heads(&mut tx, view, keys).await
    }

    async fn nodes(
        &self,
        view: &str,
        key: &[u8],
        names: &[NodeName],
    ) -> Result<Vec<Option<Bytes>>> {
        let mut tx = self.db.begin_read("reading nodes").await?;
        editions::nodes(&mut tx, (view, key), names).await
    }

    async fn list_run_details(
        &self,
        source: Source,
        before: Option<Epoch>,
        limit: usize,
    ) -> Result<Vec<RunDetails>> {
        let Some(last) = run_rules::last_epoch_before(before) else {
            return Ok(Vec::new());
        };
        let mut session = self.db.read("reading the stories of runs").await?;
        runs::run_details(&mut session, source, (0, last), limit).await
    }

    async fn run_details(&self, source: Source, epoch: Epoch) -> Result<Option<RunDetails>> {
        let mut session = self.db.read("reading the stories of runs").await?;
        let stories = runs::run_details(&mut session, source, (epoch, epoch), 1).await?;
        Ok(stories.into_iter().next())
    }
}

#[async_trait]
impl ViewsScan for SqliteViews {
    async fn share_scheme(&self) -> Result<ShareScheme> {
        Ok(view_scan::DIVISION)
    }

    async fn scan_rows(
        &self,
        view: &str,
        share: ScanShare,
        after: Option<&RowPosition>,
        limit: usize,
    ) -> Result<Option<ScannedRows>> {
        view_scan::rows(&self.db, view, share, after, limit).await
    }

    async fn scan_heads(
        &self,
        view: &str,
        share: ScanShare,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Option<ScannedHeads>> {
        view_scan::heads(&self.db, view, share, after, limit).await
    }
}

#[async_trait]
impl ViewsWrite for SqliteViews {
    fn publishers_max(&self) -> usize {
        1
    }

    async fn ensure_view(&self, source: Source, shape: &ViewShape) -> Result<()> {
        let doing = "making the table of a view";
        let json = serde_json::to_string(shape).map_err(|error| Error::broken(doing, error))?;
        let mut tx = self.db.begin_write(doing).await?;
        let query = sqlx::query(
            "INSERT INTO views (name, source, shape) VALUES (?, ?, ?)
             ON CONFLICT DO NOTHING RETURNING id",
        )
        .bind(shape.view())
        .bind(source.name())
        .bind(&json);
        let made: Option<(i64,)> = tx.fetch_first(query).await?;
        let Some((id,)) = made else {
            let query = sqlx::query("SELECT shape FROM views WHERE name = ?").bind(shape.view());
            let (stored,): (String,) = tx.fetch_one(query).await?;
            if serde_json::from_str::<ViewShape>(&stored).ok().as_ref() == Some(shape) {
                return Ok(());
            }
            return Err(Error::Refused(format!(
                "{}: its stored rows have other keys ({stored}); give a changed definition a new \
                 version",
                shape.view()
            )));
        };
        let tables = match shape {
            ViewShape::Aggregate(_) => rows_table(&table_name(id, shape.view())),
            ViewShape::Board(_) => editions::tables(id, shape.view()),
        };
        tx.execute(AssertSqlSafe(tables)).await?;
        tx.commit().await
    }

    async fn propose(
        &self,
        source: Source,
        epoch: Epoch,
        cuts: &[Cut],
        token: &str,
        now_ms: i64,
    ) -> Result<Run> {
        let mut tx = self.db.begin_write("proposing a run").await?;
        let last = runs::read_last(&mut tx, source).await?;
        let mut run = run_rules::propose(source, last.as_ref(), epoch, cuts, token)?;
        run.stamp_us = runs::next_stamp(&mut tx, source, now_ms).await?;
        runs::put(&mut tx, source, &run, now_ms).await?;
        runs::delete_expired(&mut tx, source, epoch, self.runs_kept).await?;
        tx.commit().await?;
        Ok(run)
    }

    async fn seal(&self, source: Source, epoch: Epoch, token: &str) -> Result<Run> {
        let mut tx = self.db.begin_write("sealing a run").await?;
        let run = runs::expect(&mut tx, source, epoch).await?;
        let Some(run) = run_rules::seal(source, &run, token)? else {
            return Ok(run);
        };
        // The run continues, so no end time is recorded.
        runs::put(&mut tx, source, &run, 0).await?;
        tx.commit().await?;
        Ok(run)
    }

    async fn begin_publishing(
        &self,
        source: Source,
        epoch: Epoch,
        results: &BTreeMap<String, String>,
        now_ms: i64,
    ) -> Result<i64> {
        let mut tx = self
            .db
            .begin_write("assigning a new stamp to a run")
            .await?;
        runs::expect_last(&mut tx, source, epoch).await?;
        let stamp_us = runs::next_stamp(&mut tx, source, now_ms).await?;
        let stamp = sqlx::query("UPDATE runs SET stamp_us = ? WHERE source = ? AND epoch = ?")
            .bind(stamp_us)
            .bind(source.name())
            .bind(to_stored(epoch)?);
        tx.execute(stamp).await?;
        for (view, result) in results {
            let begun = "INSERT INTO results (source, view, result, published) VALUES (?, ?, ?, 0)
                         ON CONFLICT DO NOTHING";
            let begun = sqlx::query(begun).bind(source.name());
            tx.execute(begun.bind(view).bind(result)).await?;
        }
        tx.commit().await?;
        Ok(stamp_us)
    }

    async fn results(&self, source: Source) -> Result<BTreeMap<String, TableResults>> {
        let doing = "reading which results were published";
        let mut session = self.db.read(doing).await?;
        let query = sqlx::query(
            "SELECT view, result, published FROM results WHERE source = ? ORDER BY view, result",
        );
        let rows: Vec<(String, String, bool)> =
            session.fetch_all(query.bind(source.name())).await?;
        let mut results: BTreeMap<String, TableResults> = BTreeMap::new();
        for (view, result, published) in rows {
            let of_view = results.entry(view).or_default();
            if published {
                of_view.published = Some(result);
            } else {
                of_view.begun.push(result);
            }
        }
        Ok(results)
    }

    async fn rows_before(
        &self,
        view: &str,
        stamp_us: i64,
        after: Option<(Vec<u8>, Vec<u8>)>,
        limit: usize,
    ) -> Result<RowKeys> {
        let doing = "looking for rows of earlier results";
        let mut session = self.db.read(doing).await?;
        rows_before(&mut session, (view, stamp_us), after, limit).await
    }

    async fn publish(
        &self,
        source: Source,
        view: &str,
        epoch: Epoch,
        stamp_us: i64,
        rows: &NewRows,
    ) -> Result<()> {
        let shared = [to_stored(epoch)?, stamp_us];
        let mut from = 0;
        // Runs once even without rows, so that an overtaken caller gets an error.
        loop {
            let length = PUBLISH_ROWS.min(rows.counts.len() - from);
            let bound = bind_rows(view, rows, from, length).await?;
            let mut tx = self.db.begin_write("publishing rows").await?;
            expect_publisher(&mut tx, source, (epoch, stamp_us)).await?;
            let upsert = upsert(&expect_table(&mut tx, view).await?);
            let (connection, fault) = tx.split();
            for rows in bound {
                let written = upsert.run(connection, rows, &shared).await;
                written.map_err(fault)?;
            }
            tx.commit().await?;
            from += length;
            if from >= rows.counts.len() {
                return Ok(());
            }
        }
    }

    async fn delete_rows(
        &self,
        source: Source,
        view: &str,
        (epoch, stamp_us): (Epoch, i64),
        rows: &RowKeys,
    ) -> Result<()> {
        let mut tx = self
            .db
            .begin_write("deleting rows of other programs")
            .await?;
        expect_publisher(&mut tx, source, (epoch, stamp_us)).await?;
        view_rows::delete(&mut tx, (view, stamp_us), rows).await?;
        tx.commit().await
    }

    async fn publish_versions(
        &self,
        source: Source,
        view: &str,
        epoch: Epoch,
        stamp_us: i64,
        editions: &[NewVersion],
    ) -> Result<()> {
        let mut tx = self.db.begin_write("publishing board versions").await?;
        expect_publisher(&mut tx, source, (epoch, stamp_us)).await?;
        editions::write(&mut tx, view, (epoch, stamp_us), editions).await?;
        tx.commit().await
    }

    async fn node_names(&self, view: &str, key: &[u8]) -> Result<Vec<NodeName>> {
        let mut session = self.db.read("listing nodes").await?;
        editions::names(&mut session, view, key).await
    }

    async fn collect_garbage(
        &self,
        source: Source,
        view: &str,
        (epoch, stamp_us): (Epoch, i64),
        limit: usize,
    ) -> Result<usize> {
        let mut tx = self.db.begin_write("deleting nodes").await?;
        expect_publisher(&mut tx, source, (epoch, stamp_us)).await?;
        let deleted = editions::collect(&mut tx, view, limit).await?;
        tx.commit().await?;
        Ok(deleted)
    }

    async fn keys(&self, view: &str, after: Option<Vec<u8>>, limit: usize) -> Result<Vec<Vec<u8>>> {
        let mut session = self.db.read("listing heads").await?;
        editions::keys(&mut session, view, after, limit).await
    }

    async fn complete(
        &self,
        source: Source,
        (epoch, stamp_us): (Epoch, i64),
        results: &BTreeMap<String, String>,
        run_ends: bool,
        now_ms: i64,
    ) -> Result<()> {
        let mut tx = self.db.begin_write("completing a run").await?;
        let mut run = expect_publisher(&mut tx, source, (epoch, stamp_us)).await?;
        for (view, result) in results {
            for statement in [
                "INSERT INTO newest (source, view, epoch) VALUES (?1, ?2, ?4)
                 ON CONFLICT DO UPDATE SET epoch = excluded.epoch",
                "DELETE FROM results WHERE source = ?1 AND view = ?2",
                "INSERT INTO results (source, view, result, published) VALUES (?1, ?2, ?3, 1)",
            ] {
                let query = sqlx::query(statement).bind(source.name()).bind(view);
                tx.execute(query.bind(result).bind(to_stored(epoch)?))
                    .await?;
            }
        }
        if run_ends && run.state == RunState::Sealed {
            run.state = RunState::Complete;
            runs::put(&mut tx, source, &run, now_ms).await?;
        }
        tx.commit().await
    }

    async fn abandon(&self, source: Source, epoch: Epoch, now_ms: i64) -> Result<()> {
        let mut tx = self.db.begin_write("abandoning a run").await?;
        let run = runs::expect(&mut tx, source, epoch).await?;
        let Some(run) = run_rules::abandon(source, &run)? else {
            return Ok(());
        };
        runs::put(&mut tx, source, &run, now_ms).await?;
        tx.commit().await
    }

    async fn set_report(
        &self,
        source: Source,
        epoch: Epoch,
        report: &serde_json::Value,
    ) -> Result<()> {
        let mut session = self.db.write("writing the report of a run").await?;
        let query = sqlx::query("UPDATE runs SET report = ? WHERE source = ? AND epoch = ?")
            .bind(report.to_string())
            .bind(source.name())
            .bind(to_stored(epoch)?);
        if session.execute(query).await? == 0 {
            return Err(run_rules::refused_error(
                source,
                epoch,
                "the run does not exist",
            ));
        }
        Ok(())
    }

    async fn forget_views(&self, source: Source, at: (Epoch, i64), keep: &[String]) -> Result<()> {
        let mut tx = self.db.begin_write("forgetting views").await?;
        expect_publisher(&mut tx, source, at).await?;
        // Drops the tables of views that an earlier call forgot, because readers may still use the
        // tables of the others.
        let query = sqlx::query(
            "SELECT name, id, shape FROM views AS v WHERE source = ?1 AND NOT EXISTS (
                 SELECT 1 FROM newest AS n WHERE n.source = v.source AND n.view = v.name)",
        );
        let tables: Vec<(String, i64, String)> = tx.fetch_all(query.bind(source.name())).await?;
        for (view, id, shape) in tables.iter().filter(|(view, ..)| !keep.contains(view)) {
            let forget = sqlx::query("DELETE FROM views WHERE id = ?").bind(id);
            tx.execute(forget).await?;
            let forget = sqlx::query("DELETE FROM results WHERE source = ? AND view = ?");
            tx.execute(forget.bind(source.name()).bind(view)).await?;
            let drop = match serde_json::from_str(shape) {
                Ok(ViewShape::Board(_)) => editions::drop_tables(*id, view),
                _ => format!("DROP TABLE {}", table_name(*id, view)),
            };
            tx.execute(AssertSqlSafe(drop)).await?;
        }
        let query = sqlx::query("SELECT view FROM newest WHERE source = ?");
        let known: Vec<(String,)> = tx.fetch_all(query.bind(source.name())).await?;
        for (view,) in known.iter().filter(|(view,)| !keep.contains(view)) {
            let forget = sqlx::query("DELETE FROM newest WHERE source = ? AND view = ?");
            tx.execute(forget.bind(source.name()).bind(view)).await?;
        }
        tx.commit().await
    }
}

#[cfg(test)]
#[path = "views_upgrade_tests.rs"]
mod upgrade_tests;
