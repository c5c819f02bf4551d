//! Batch rows and run records in `views.db`; each view has a table of its own.

use std::collections::BTreeMap;
use std::path::Path;

use async_trait::async_trait;
use bytes::Bytes;
use schemas::seam::{Cut, Epoch, Run, RunState};
use schemas::source::Source;
use sqlx::{AssertSqlSafe, Connection};

use super::db::{BEGIN_WRITE, Db, Kind, Upgrade};
use super::statement::stored;
use super::view_rows::{Found, bind_rows, find_table, rows_before, table_name, unmade, upsert};
use super::{editions, runs, view_rows, view_scan};
use crate::run_rules::{self, expect_publishing};
use crate::view_scan::{Division, ScanPlace, ScanShare, ScannedHeads, ScannedRows, ViewsScan};
use crate::views::{
    FoundRows, Head, NewEdition, NewRows, NodeName, PartQuery, RowKeys, RunStory, RunsSeen,
    TableResults, ViewShape, ViewsRead, ViewsWrite,
};
use crate::{Error, Result};

/// A transaction writes no more rows than this, so that others can write in between.
const PUBLISH_ROWS: usize = 16 << 10;

static VIEWS: Kind = Kind {
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
    replaceable: false,
    page_bytes: 8192,
    cache_kib: 32 * 1024,
    readers: 4,
    rows_ahead: 512,
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
            runs_kept: run_rules::RUNS_KEPT,
        })
    }

    /// With so many runs whose records are kept, in place of ten thousand.
    #[must_use]
    pub const fn keeping_runs(mut self, runs: u64) -> Self {
        self.runs_kept = runs;
        self
    }
}

#[async_trait]
impl ViewsRead for SqliteViews {
    async fn runs(&self, source: Source) -> Result<RunsSeen> {
        let db = self.db.current().await?;
        let fault = db.fault("reading the newest epochs");
        let mut connection = db.reader().await?;
        let mut tx = connection.begin().await.map_err(fault)?;
        let newest: Vec<(String, i64)> =
            sqlx::query_as("SELECT view, epoch FROM newest WHERE source = ?")
                .bind(source.name())
                .fetch_all(&mut *tx)
                .await
                .map_err(fault)?;
        let of_views = newest.iter().map(|(_, epoch)| epoch.cast_unsigned());
        let runs = runs::recent(&mut tx, &db, source, of_views).await?;
        let newest = newest
            .into_iter()
            .map(|(view, epoch)| (view, epoch.cast_unsigned()))
            .collect();
        Ok(RunsSeen { runs, newest })
    }

    async fn rows(&self, view: &str, queries: &[PartQuery]) -> Result<Option<FoundRows>> {
        let db = self.db.current().await?;
        let fault = db.fault("reading batch rows");
        let mut connection = db.reader().await?;
        let mut tx = connection.begin().await.map_err(fault)?;
        let Some(table) = find_table(&mut tx, &db, view).await? else {
            return Ok(None);
        };
        let mut found = Found::default();
        for query in (0..).zip(queries) {
            found.read(&mut tx, &db, &table, query).await?;
        }
        Ok(Some(found.finish()))
    }

    async fn heads(&self, view: &str, keys: &[Vec<u8>]) -> Result<Option<Vec<Option<Head>>>> {
        let db = self.db.current().await?;
        let fault = db.fault("reading heads");
        let mut connection = db.reader().await?;
        let mut tx = connection.begin().await.map_err(fault)?;
        editions::heads(&mut tx, &db, view, keys).await
    }

    async fn nodes(
        &self,
        view: &str,
        key: &[u8],
        names: &[NodeName],
    ) -> Result<Vec<Option<Bytes>>> {
        let db = self.db.current().await?;
        let fault = db.fault("reading nodes");
        let mut connection = db.reader().await?;
        let mut tx = connection.begin().await.map_err(fault)?;
        editions::nodes(&mut tx, &db, (view, key), names).await
    }

    async fn stories(
        &self,
        source: Source,
        before: Option<Epoch>,
        limit: usize,
    ) -> Result<Vec<RunStory>> {
        let Some(last) = run_rules::last_before(before) else {
            return Ok(Vec::new());
        };
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        runs::stories(&mut connection, &db, source, (0, last), limit).await
    }

    async fn story(&self, source: Source, epoch: Epoch) -> Result<Option<RunStory>> {
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        let stories = runs::stories(&mut connection, &db, source, (epoch, epoch), 1).await?;
        Ok(stories.into_iter().next())
    }
}

#[async_trait]
impl ViewsScan for SqliteViews {
    async fn division(&self) -> Result<Division> {
        Ok(view_scan::DIVISION)
    }

    async fn scan_rows(
        &self,
        view: &str,
        share: ScanShare,
        after: Option<&ScanPlace>,
        limit: usize,
    ) -> Result<Option<ScannedRows>> {
        let db = self.db.current().await?;
        view_scan::rows(&db, view, share, after, limit).await
    }

    async fn scan_heads(
        &self,
        view: &str,
        share: ScanShare,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Option<ScannedHeads>> {
        let db = self.db.current().await?;
        view_scan::heads(&db, view, share, after, limit).await
    }
}

#[async_trait]
impl ViewsWrite for SqliteViews {
    fn publishers_max(&self) -> usize {
        1
    }

    async fn ensure_view(&self, source: Source, shape: &ViewShape) -> Result<()> {
        let doing = "making the table of a view";
        let db = self.db.current().await?;
        let fault = db.fault(doing);
        let json = serde_json::to_string(shape).map_err(|error| Error::broken(doing, error))?;
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let made: Option<i64> = sqlx::query_scalar(
            "INSERT INTO views (name, source, shape) VALUES (?, ?, ?)
             ON CONFLICT DO NOTHING RETURNING id",
        )
        .bind(shape.view())
        .bind(source.name())
        .bind(&json)
        .fetch_optional(&mut *tx)
        .await
        .map_err(fault)?;
        let Some(id) = made else {
            let stored: String = sqlx::query_scalar("SELECT shape FROM views WHERE name = ?")
                .bind(shape.view())
                .fetch_one(&mut *tx)
                .await
                .map_err(fault)?;
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
            ViewShape::Tally(_) => rows_table(&table_name(id, shape.view())),
            ViewShape::Board(_) => editions::tables(id, shape.view()),
        };
        sqlx::raw_sql(AssertSqlSafe(tables))
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
        tx.commit().await.map_err(fault)
    }

    async fn propose(
        &self,
        source: Source,
        epoch: Epoch,
        cuts: &[Cut],
        token: &str,
        now_ms: i64,
    ) -> Result<Run> {
        let db = self.db.current().await?;
        let fault = db.fault("proposing a run");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let last = runs::last(&mut tx, &db, source).await?;
        let mut run = run_rules::proposal(source, last.as_ref(), epoch, cuts, token)?;
        run.stamp_us = runs::next_stamp(&mut tx, &db, source, now_ms).await?;
        runs::put(&mut tx, &db, source, &run, now_ms).await?;
        runs::forget_outlived(&mut tx, &db, source, epoch, self.runs_kept).await?;
        tx.commit().await.map_err(fault)?;
        Ok(run)
    }

    async fn seal(&self, source: Source, epoch: Epoch, token: &str) -> Result<Run> {
        let db = self.db.current().await?;
        let fault = db.fault("sealing a run");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let run = runs::expect(&mut tx, &db, source, epoch).await?;
        let Some(run) = run_rules::sealed(source, &run, token)? else {
            return Ok(run);
        };
        // Its story does not end here, so no moment is recorded.
        runs::put(&mut tx, &db, source, &run, 0).await?;
        tx.commit().await.map_err(fault)?;
        Ok(run)
    }

    async fn begin_publishing(
        &self,
        source: Source,
        epoch: Epoch,
        results: &BTreeMap<String, String>,
        now_ms: i64,
    ) -> Result<i64> {
        let db = self.db.current().await?;
        let fault = db.fault("taking a new stamp for a run");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        runs::expect_last(&mut tx, &db, source, epoch).await?;
        let stamp_us = runs::next_stamp(&mut tx, &db, source, now_ms).await?;
        sqlx::query("UPDATE runs SET stamp_us = ? WHERE source = ? AND epoch = ?")
            .bind(stamp_us)
            .bind(source.name())
            .bind(stored(epoch)?)
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
        for (view, result) in results {
            let begun = "INSERT INTO results (source, view, result, published) VALUES (?, ?, ?, 0)
                         ON CONFLICT DO NOTHING";
            sqlx::query(begun)
                .bind(source.name())
                .bind(view)
                .bind(result)
                .execute(&mut *tx)
                .await
                .map_err(fault)?;
        }
        tx.commit().await.map_err(fault)?;
        Ok(stamp_us)
    }

    async fn results(&self, source: Source) -> Result<BTreeMap<String, TableResults>> {
        let db = self.db.current().await?;
        let fault = db.fault("reading which results were published");
        let mut connection = db.reader().await?;
        let rows: Vec<(String, String, bool)> = sqlx::query_as(
            "SELECT view, result, published FROM results WHERE source = ? ORDER BY view, result",
        )
        .bind(source.name())
        .fetch_all(&mut *connection)
        .await
        .map_err(fault)?;
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
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        rows_before(&mut connection, &db, (view, stamp_us), after, limit).await
    }

    async fn publish(
        &self,
        source: Source,
        view: &str,
        epoch: Epoch,
        stamp_us: i64,
        rows: &NewRows,
    ) -> Result<()> {
        let shared = [stored(epoch)?, stamp_us];
        let mut from = 0;
        // Once even without rows: a caller whose time is over must hear it.
        loop {
            let length = PUBLISH_ROWS.min(rows.counts.len() - from);
            let bound = bind_rows(view, rows, from, length).await?;
            let db = self.db.current().await?;
            let fault = db.fault("publishing rows");
            let mut connection = db.writer().await?;
            let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
            let run = runs::expect_last(&mut tx, &db, source, epoch).await?;
            expect_publishing(source, &run, stamp_us)?;
            let table = find_table(&mut tx, &db, view).await?;
            let table = table.ok_or_else(|| unmade(view))?;
            let upsert = upsert(&table);
            for rows in bound {
                upsert.run(&mut tx, rows, &shared).await.map_err(fault)?;
            }
            tx.commit().await.map_err(fault)?;
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
        let db = self.db.current().await?;
        let fault = db.fault("deleting rows that somebody else wrote");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let run = runs::expect_last(&mut tx, &db, source, epoch).await?;
        expect_publishing(source, &run, stamp_us)?;
        view_rows::delete(&mut tx, &db, (view, stamp_us), rows).await?;
        tx.commit().await.map_err(fault)
    }

    async fn publish_editions(
        &self,
        source: Source,
        view: &str,
        epoch: Epoch,
        stamp_us: i64,
        editions: &[NewEdition],
    ) -> Result<()> {
        let db = self.db.current().await?;
        let fault = db.fault("publishing editions");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let run = runs::expect_last(&mut tx, &db, source, epoch).await?;
        expect_publishing(source, &run, stamp_us)?;
        editions::write(&mut tx, &db, view, (epoch, stamp_us), editions).await?;
        tx.commit().await.map_err(fault)
    }

    async fn node_names(&self, view: &str, key: &[u8]) -> Result<Vec<NodeName>> {
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        editions::names(&mut connection, &db, view, key).await
    }

    async fn collect_garbage(
        &self,
        source: Source,
        view: &str,
        (epoch, stamp_us): (Epoch, i64),
        limit: usize,
    ) -> Result<usize> {
        let db = self.db.current().await?;
        let fault = db.fault("deleting nodes");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let run = runs::expect_last(&mut tx, &db, source, epoch).await?;
        expect_publishing(source, &run, stamp_us)?;
        let deleted = editions::collect(&mut tx, &db, view, limit).await?;
        tx.commit().await.map_err(fault)?;
        Ok(deleted)
    }

    async fn keys(&self, view: &str, after: Option<Vec<u8>>, limit: usize) -> Result<Vec<Vec<u8>>> {
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        editions::keys(&mut connection, &db, view, after, limit).await
    }

    async fn complete(
        &self,
        source: Source,
        (epoch, stamp_us): (Epoch, i64),
        results: &BTreeMap<String, String>,
        run_ends: bool,
        now_ms: i64,
    ) -> Result<()> {
        let db = self.db.current().await?;
        let fault = db.fault("completing a run");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let mut run = runs::expect_last(&mut tx, &db, source, epoch).await?;
        expect_publishing(source, &run, stamp_us)?;
        for (view, result) in results {
            for statement in [
                "INSERT INTO newest (source, view, epoch) VALUES (?1, ?2, ?4)
                 ON CONFLICT DO UPDATE SET epoch = excluded.epoch",
                "DELETE FROM results WHERE source = ?1 AND view = ?2",
                "INSERT INTO results (source, view, result, published) VALUES (?1, ?2, ?3, 1)",
            ] {
                sqlx::query(statement)
                    .bind(source.name())
                    .bind(view)
                    .bind(result)
                    .bind(stored(epoch)?)
                    .execute(&mut *tx)
                    .await
                    .map_err(fault)?;
            }
        }
        if run_ends && run.state == RunState::Sealed {
            run.state = RunState::Complete;
            runs::put(&mut tx, &db, source, &run, now_ms).await?;
        }
        tx.commit().await.map_err(fault)
    }

    async fn abandon(&self, source: Source, epoch: Epoch, now_ms: i64) -> Result<()> {
        let db = self.db.current().await?;
        let fault = db.fault("abandoning a run");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let run = runs::expect(&mut tx, &db, source, epoch).await?;
        let Some(run) = run_rules::abandoned(source, &run)? else {
            return Ok(());
        };
        runs::put(&mut tx, &db, source, &run, now_ms).await?;
        tx.commit().await.map_err(fault)
    }

    async fn report(&self, source: Source, epoch: Epoch, report: &serde_json::Value) -> Result<()> {
        let db = self.db.current().await?;
        let fault = db.fault("writing the report of a run");
        let mut connection = db.writer().await?;
        let done = sqlx::query("UPDATE runs SET report = ? WHERE source = ? AND epoch = ?")
            .bind(report.to_string())
            .bind(source.name())
            .bind(stored(epoch)?)
            .execute(&mut *connection)
            .await
            .map_err(fault)?;
        if done.rows_affected() == 0 {
            return Err(run_rules::refused(source, epoch, "there is no such run"));
        }
        Ok(())
    }

    async fn forget_views(&self, source: Source, at: (Epoch, i64), keep: &[String]) -> Result<()> {
        let db = self.db.current().await?;
        let fault = db.fault("forgetting views");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        run_rules::expect_at(source, at, runs::last(&mut tx, &db, source).await?)?;
        // Tables go only when their view was forgotten before: a reader may still be at it now.
        let tables: Vec<(String, i64, String)> = sqlx::query_as(
            "SELECT name, id, shape FROM views AS v WHERE source = ?1 AND NOT EXISTS (
                 SELECT 1 FROM newest AS n WHERE n.source = v.source AND n.view = v.name)",
        )
        .bind(source.name())
        .fetch_all(&mut *tx)
        .await
        .map_err(fault)?;
        for (view, id, shape) in tables.iter().filter(|(view, ..)| !keep.contains(view)) {
            sqlx::query("DELETE FROM views WHERE id = ?")
                .bind(id)
                .execute(&mut *tx)
                .await
                .map_err(fault)?;
            sqlx::query("DELETE FROM results WHERE source = ? AND view = ?")
                .bind(source.name())
                .bind(view)
                .execute(&mut *tx)
                .await
                .map_err(fault)?;
            let drop = match serde_json::from_str(shape) {
                Ok(ViewShape::Board(_)) => editions::drop_tables(*id, view),
                _ => format!("DROP TABLE {}", table_name(*id, view)),
            };
            sqlx::raw_sql(AssertSqlSafe(drop))
                .execute(&mut *tx)
                .await
                .map_err(fault)?;
        }
        let known: Vec<(String,)> = sqlx::query_as("SELECT view FROM newest WHERE source = ?")
            .bind(source.name())
            .fetch_all(&mut *tx)
            .await
            .map_err(fault)?;
        for (view,) in known.iter().filter(|(view,)| !keep.contains(view)) {
            sqlx::query("DELETE FROM newest WHERE source = ? AND view = ?")
                .bind(source.name())
                .bind(view)
                .execute(&mut *tx)
                .await
                .map_err(fault)?;
        }
        tx.commit().await.map_err(fault)
    }
}

#[cfg(test)]
#[path = "views_upgrade_tests.rs"]
mod upgrade_tests;
