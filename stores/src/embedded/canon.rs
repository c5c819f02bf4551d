//! The tables of entities in `canon.db`.

use std::path::Path;

use arrow::array::RecordBatch;
use async_trait::async_trait;
use futures::stream::BoxStream;
use schemas::entities::{Application, Entity, Group};
use schemas::source::Source;
use sqlx::Connection;

use super::canon_rows::Grouped;
use super::db::{BEGIN_WRITE, Db, Kind, Upgrade};
use super::{canon_apply, canon_connect, canon_dump, canon_groups, canon_outbox, canon_versions};
use crate::Result;
use crate::canon::{
    Applied, Authorized, CanonRead, CanonWrite, FirstGroups, Notification, Revoked, Waiting,
};

/// Efforts and authorizations are stored by id, which rises with time, so that new ones are
/// written side by side; an index brings them in the order of their groups.
///
/// The segments of an athlete are looked up only when an athlete changes, and keeping them in
/// order row by row would cost as much as all else: new ones wait in a heap and are put in order
/// many at a time.
///
/// Triggers keep the counters of connected athletes, so nothing that changes an authorization can
/// forget them.
static CANON: Kind = Kind {
    name: "canon.db",
    version: 2,
    tables: "
        CREATE TABLE efforts (
            id INTEGER PRIMARY KEY,
            segment_id INTEGER NOT NULL,
            athlete_id INTEGER NOT NULL,
            activity_id INTEGER NOT NULL,
            elapsed_time_s INTEGER NOT NULL,
            started_at_us INTEGER NOT NULL,
            tz TEXT NOT NULL,
            is_hidden INTEGER NOT NULL,
            is_deleted INTEGER NOT NULL,
            version INTEGER NOT NULL
        ) STRICT;
        CREATE INDEX efforts_by_group ON efforts (segment_id, athlete_id);
        CREATE TABLE athlete_segments (
            athlete_id INTEGER NOT NULL,
            segment_id INTEGER NOT NULL,
            PRIMARY KEY (athlete_id, segment_id)
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE new_athlete_segments (
            id INTEGER PRIMARY KEY,
            athlete_id INTEGER NOT NULL,
            segment_id INTEGER NOT NULL
        ) STRICT;
        CREATE TABLE athletes (
            id INTEGER PRIMARY KEY,
            name TEXT,
            gender TEXT,
            birth_year INTEGER,
            weight_kg REAL,
            country TEXT,
            is_deleted INTEGER NOT NULL,
            version INTEGER NOT NULL,
            is_disqualified INTEGER NOT NULL DEFAULT 0
        ) STRICT;
        CREATE TABLE clubs (
            club_id INTEGER NOT NULL,
            athlete_id INTEGER NOT NULL,
            is_deleted INTEGER NOT NULL,
            version INTEGER NOT NULL,
            PRIMARY KEY (club_id, athlete_id)
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE follows (
            follower_id INTEGER NOT NULL,
            followed_id INTEGER NOT NULL,
            is_deleted INTEGER NOT NULL,
            version INTEGER NOT NULL,
            PRIMARY KEY (follower_id, followed_id)
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE applications (
            id INTEGER PRIMARY KEY,
            name TEXT NOT NULL,
            owner TEXT NOT NULL,
            athlete_capacity INTEGER NOT NULL,
            version INTEGER NOT NULL
        ) STRICT;
        CREATE TABLE authorizations (
            id INTEGER PRIMARY KEY,
            application_id INTEGER NOT NULL,
            athlete_id INTEGER NOT NULL,
            created_at_us INTEGER NOT NULL,
            revoked_at_us INTEGER,
            version INTEGER NOT NULL
        ) STRICT;
        CREATE INDEX authorizations_by_group ON authorizations (application_id, athlete_id);
        CREATE TABLE connections (
            application_id INTEGER NOT NULL,
            athlete_id INTEGER NOT NULL,
            live INTEGER NOT NULL CHECK (live >= 0),
            PRIMARY KEY (application_id, athlete_id)
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE connected (
            application_id INTEGER PRIMARY KEY,
            athletes INTEGER NOT NULL CHECK (athletes >= 0)
        ) STRICT;
        CREATE TRIGGER authorization_made AFTER INSERT ON authorizations
        WHEN new.revoked_at_us IS NULL BEGIN
            INSERT INTO connections (application_id, athlete_id, live)
            VALUES (new.application_id, new.athlete_id, 1)
            ON CONFLICT DO UPDATE SET live = live + 1;
        END;
        CREATE TRIGGER authorization_revoked AFTER UPDATE ON authorizations
        WHEN old.revoked_at_us IS NULL AND new.revoked_at_us IS NOT NULL BEGIN
            UPDATE connections SET live = live - 1
            WHERE application_id = old.application_id AND athlete_id = old.athlete_id;
        END;
        CREATE TRIGGER authorization_restored AFTER UPDATE ON authorizations
        WHEN old.revoked_at_us IS NOT NULL AND new.revoked_at_us IS NULL BEGIN
            INSERT INTO connections (application_id, athlete_id, live)
            VALUES (new.application_id, new.athlete_id, 1)
            ON CONFLICT DO UPDATE SET live = live + 1;
        END;
        CREATE TRIGGER authorization_removed AFTER DELETE ON authorizations
        WHEN old.revoked_at_us IS NULL BEGIN
            UPDATE connections SET live = live - 1
            WHERE application_id = old.application_id AND athlete_id = old.athlete_id;
        END;
        CREATE TRIGGER athlete_connected AFTER INSERT ON connections BEGIN
            INSERT INTO connected (application_id, athletes) VALUES (new.application_id, 1)
            ON CONFLICT DO UPDATE SET athletes = athletes + 1;
        END;
        CREATE TRIGGER athlete_disconnected AFTER UPDATE ON connections WHEN new.live = 0 BEGIN
            DELETE FROM connections
            WHERE application_id = new.application_id AND athlete_id = new.athlete_id;
            UPDATE connected SET athletes = athletes - 1
            WHERE application_id = new.application_id;
        END;
        CREATE TABLE outbox (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            source TEXT NOT NULL,
            key INTEGER NOT NULL,
            member INTEGER NOT NULL,
            made_at_ms INTEGER NOT NULL
        ) STRICT;",
    upgrades: &[(
        1,
        Upgrade::Statements(
            "ALTER TABLE athletes ADD COLUMN is_disqualified INTEGER NOT NULL DEFAULT 0;",
        ),
    )],
    replaceable: false,
    page_bytes: 4096,
    cache_kib: 128 * 1024,
    readers: 4,
    rows_ahead: 512,
    remedy: "stop every process of this folder and restore canon.db from a copy, then run \
             `backstitch batch run --full`",
};

const OUTBOX: &str = "reading the outbox";

/// The entities of a data folder.
#[derive(Debug)]
pub struct SqliteCanon {
    db: Db,
}

impl SqliteCanon {
    pub(super) async fn open(folder: &Path) -> Result<Self> {
        Ok(Self {
            db: Db::open(folder, &CANON).await?,
        })
    }
}

#[async_trait]
impl CanonRead for SqliteCanon {
    async fn first_groups(
        &self,
        source: Source,
        groups: &[Group],
        rows_max: usize,
    ) -> Result<FirstGroups> {
        let of = Grouped::of(source)?;
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        canon_groups::first_groups(&mut connection, &db, of, groups, rows_max).await
    }

    async fn dump(
        &self,
        source: Source,
        keys: Option<&[i64]>,
        batch_rows: usize,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let of = Grouped::of(source)?;
        let db = self.db.current().await?;
        canon_dump::dump(db, of, keys, batch_rows).await
    }

    async fn club_members(&self, club_id: i64) -> Result<Vec<i64>> {
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        sqlx::query_scalar(
            "SELECT athlete_id FROM clubs WHERE club_id = ? AND is_deleted = 0
             ORDER BY athlete_id",
        )
        .bind(club_id)
        .fetch_all(&mut *connection)
        .await
        .map_err(db.fault("reading the members of a club"))
    }

    async fn followed_by(&self, athlete_id: i64) -> Result<Vec<i64>> {
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        sqlx::query_scalar(
            "SELECT followed_id FROM follows WHERE follower_id = ? AND is_deleted = 0
             ORDER BY followed_id",
        )
        .bind(athlete_id)
        .fetch_all(&mut *connection)
        .await
        .map_err(db.fault("reading whom an athlete follows"))
    }

    async fn application(&self, id: i64) -> Result<Option<Application>> {
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        let found = canon_connect::application(&mut connection, id).await;
        found.map_err(db.fault("reading an application"))
    }

    async fn applications(&self, after: Option<i64>, limit: usize) -> Result<Vec<Application>> {
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        let found = canon_connect::applications(&mut connection, after, limit).await;
        found.map_err(db.fault("reading applications"))
    }

    async fn versions(&self, rows: &[Entity]) -> Result<Vec<Option<i64>>> {
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        let found = canon_versions::versions(&mut connection, rows).await;
        found.map_err(db.fault("reading versions"))
    }

    async fn waiting(&self, source: Source) -> Result<Waiting> {
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        let found = canon_outbox::waiting(&mut connection, source).await;
        found.map_err(db.fault(OUTBOX))
    }

    async fn pending(
        &self,
        source: Source,
        newest: i64,
        limit: usize,
    ) -> Result<Vec<Notification>> {
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        let found = canon_outbox::pending(&mut connection, source, newest, limit).await;
        found.map_err(db.fault(OUTBOX))
    }
}

#[async_trait]
impl CanonWrite for SqliteCanon {
    async fn apply(&self, rows: &[Entity], now_ms: i64) -> Result<Applied> {
        if rows.is_empty() {
            return Ok(Applied::default());
        }
        let db = self.db.current().await?;
        let fault = db.fault("applying rows");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let applied = canon_apply::apply(&mut tx, rows, now_ms).await;
        let applied = applied.map_err(fault)?;
        tx.commit().await.map_err(fault)?;
        Ok(applied)
    }

    async fn authorize(
        &self,
        application_id: i64,
        athlete_id: i64,
        now_ms: i64,
    ) -> Result<Authorized> {
        let db = self.db.current().await?;
        let fault = db.fault("connecting an athlete");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let pair = Group {
            key: application_id,
            member: athlete_id,
        };
        let done = canon_connect::authorize(&mut tx, pair, now_ms).await;
        let done = done.map_err(fault)?;
        tx.commit().await.map_err(fault)?;
        Ok(done)
    }

    async fn revoke(&self, application_id: i64, athlete_id: i64, now_ms: i64) -> Result<Revoked> {
        let db = self.db.current().await?;
        let fault = db.fault("disconnecting an athlete");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let pair = Group {
            key: application_id,
            member: athlete_id,
        };
        let done = canon_connect::revoke(&mut tx, pair, now_ms).await;
        let done = done.map_err(fault)?;
        tx.commit().await.map_err(fault)?;
        Ok(done)
    }

    async fn set_capacity(
        &self,
        application_id: i64,
        capacity: i64,
    ) -> Result<Option<Application>> {
        let db = self.db.current().await?;
        let fault = db.fault("setting a capacity");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let done = canon_connect::set_capacity(&mut tx, application_id, capacity).await;
        let done = done.map_err(fault)?;
        tx.commit().await.map_err(fault)?;
        Ok(done)
    }

    async fn notified(&self, ids: &[i64]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let db = self.db.current().await?;
        let fault = db.fault("emptying the outbox");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let done = canon_outbox::notified(&mut tx, ids).await;
        done.map_err(fault)?;
        tx.commit().await.map_err(fault)
    }
}

#[cfg(test)]
#[path = "canon_upgrade_tests.rs"]
mod upgrade_tests;
