//! The tables of entities in `canon.db`.

use std::path::Path;

use arrow::array::RecordBatch;
use async_trait::async_trait;
use futures::stream::BoxStream;
use schemas::entities::{Application, Entity, Group};
use schemas::source::Source;
use sqlx::Connection;

use super::canon_rows::Grouped;
use super::canon_statement::Embedded;
use super::db::{BEGIN_WRITE, Db, Kind, Upgrade};
use super::{
    canon_apply, canon_asked, canon_connect, canon_dump, canon_erase, canon_groups, canon_outbox,
    canon_versions,
};
use crate::Result;
use crate::admin::{
    AuditEntry, By, CanonAdmin, CapacityRequest, Change, Decided, Decision, Requested, RequestsOf,
    Usage,
};
use crate::aged::{AgedCount, AgedRecords, Ageing};
use crate::canon::{
    Answered, Applied, Authorized, CanonErase, CanonRead, CanonWrite, FirstGroups, Notification,
    Revoked, RowsOf, Waiting,
};
use crate::canon_sql::{admin, aged, erase, notices, recounts};
use crate::notices::{Claimed, Notice, Notices, NoticesWaiting, Outcome};
use crate::recounts::{Countable, Recount, Recounts};

/// The tables of those who look after applications; new ones in a file of version 2.
macro_rules! applications_tables {
    () => {
        "
        CREATE TABLE unlimited (
            application_id INTEGER PRIMARY KEY
        ) STRICT;
        CREATE TABLE application_audit (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            application_id INTEGER NOT NULL,
            at_ms INTEGER NOT NULL,
            actor TEXT NOT NULL,
            action TEXT NOT NULL,
            value_before INTEGER NOT NULL,
            value_after INTEGER NOT NULL,
            reason TEXT,
            request_id INTEGER
        ) STRICT;
        CREATE INDEX application_audit_by_application ON application_audit (application_id, id);
        CREATE TABLE capacity_requests (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            application_id INTEGER NOT NULL,
            athlete_capacity INTEGER NOT NULL,
            asked_by TEXT NOT NULL,
            reason TEXT,
            asked_at_ms INTEGER NOT NULL,
            state TEXT NOT NULL,
            decided_by TEXT,
            answer TEXT,
            decided_at_ms INTEGER,
            granted_capacity INTEGER
        ) STRICT;
        CREATE INDEX capacity_requests_by_application
            ON capacity_requests (application_id, state, id);
        CREATE INDEX capacity_requests_by_state ON capacity_requests (state, id);
        CREATE UNIQUE INDEX capacity_requests_open ON capacity_requests (application_id)
            WHERE state = 'open';
        CREATE TABLE capacity_notices (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            application_id INTEGER NOT NULL,
            threshold INTEGER NOT NULL,
            athlete_capacity INTEGER NOT NULL,
            connected INTEGER NOT NULL,
            made_at_ms INTEGER NOT NULL,
            armed INTEGER DEFAULT 1,
            topic_at_ms INTEGER,
            webhook_at_ms INTEGER,
            failed_at_ms INTEGER,
            tries INTEGER NOT NULL DEFAULT 0,
            last_error TEXT,
            next_try_ms INTEGER NOT NULL DEFAULT 0,
            claimed_until_ms INTEGER NOT NULL DEFAULT 0,
            done INTEGER NOT NULL DEFAULT 0
        ) STRICT;
        CREATE UNIQUE INDEX capacity_notices_once
            ON capacity_notices (application_id, athlete_capacity, threshold, armed);
        CREATE INDEX capacity_notices_by_application ON capacity_notices (application_id, id);
        CREATE INDEX capacity_notices_waiting ON capacity_notices (id) WHERE done = 0;
        CREATE VIEW usage_to_note AS
            SELECT c.application_id, t.threshold, p.athlete_capacity, c.athletes AS connected,
                CAST(unixepoch('subsec') * 1000 AS INTEGER) AS made_at_ms
            FROM connected c JOIN applications p ON p.id = c.application_id
            CROSS JOIN (SELECT 80 AS threshold UNION ALL SELECT 90 UNION ALL SELECT 100) t
            WHERE (p.athlete_capacity > 0 OR t.threshold = 100)
                AND c.athletes * 100 >= p.athlete_capacity * t.threshold
                AND NOT EXISTS (SELECT 1 FROM capacity_notices n
                    WHERE n.application_id = c.application_id AND n.threshold = t.threshold
                        AND n.athlete_capacity = p.athlete_capacity AND n.armed = 1)
            ORDER BY t.threshold;
        CREATE TRIGGER first_connected AFTER INSERT ON connected BEGIN
            INSERT INTO capacity_notices
                (application_id, threshold, athlete_capacity, connected, made_at_ms)
            SELECT * FROM usage_to_note WHERE application_id = new.application_id;
        END;
        CREATE TRIGGER more_connected AFTER UPDATE ON connected
        WHEN new.athletes > old.athletes BEGIN
            INSERT INTO capacity_notices
                (application_id, threshold, athlete_capacity, connected, made_at_ms)
            SELECT * FROM usage_to_note WHERE application_id = new.application_id;
        END;"
    };
}

/// That athletes who are deleted are connected to nothing; new in a file of version 3.
macro_rules! deleted_athletes {
    () => {
        "
        CREATE INDEX connections_by_athlete ON connections (athlete_id);
        CREATE TRIGGER athlete_connected AFTER INSERT ON connections WHEN NOT new.is_away BEGIN
            INSERT INTO connected (application_id, athletes) VALUES (new.application_id, 1)
            ON CONFLICT DO UPDATE SET athletes = athletes + 1;
        END;
        CREATE TRIGGER athlete_disconnected AFTER UPDATE ON connections WHEN new.live = 0 BEGIN
            DELETE FROM connections
            WHERE application_id = new.application_id AND athlete_id = new.athlete_id;
            UPDATE connected SET athletes = athletes - 1
            WHERE application_id = new.application_id AND NOT new.is_away;
        END;
        CREATE TRIGGER athlete_gone AFTER UPDATE ON connections
        WHEN new.is_away AND NOT old.is_away BEGIN
            UPDATE connected SET athletes = athletes - 1
            WHERE application_id = new.application_id;
        END;
        CREATE TRIGGER athlete_back AFTER UPDATE ON connections
        WHEN old.is_away AND NOT new.is_away BEGIN
            INSERT INTO connected (application_id, athletes) VALUES (new.application_id, 1)
            ON CONFLICT DO UPDATE SET athletes = athletes + 1;
        END;
        CREATE TRIGGER deleted_athlete_made AFTER INSERT ON athletes WHEN new.is_deleted BEGIN
            UPDATE connections SET is_away = 1 WHERE athlete_id = new.id AND NOT is_away;
        END;
        CREATE TRIGGER athlete_deleted AFTER UPDATE OF is_deleted ON athletes
        WHEN new.is_deleted <> old.is_deleted BEGIN
            UPDATE connections SET is_away = new.is_deleted
            WHERE athlete_id = new.id AND is_away <> new.is_deleted;
        END;
        CREATE TRIGGER authorization_made AFTER INSERT ON authorizations
        WHEN new.revoked_at_us IS NULL BEGIN
            INSERT INTO connections (application_id, athlete_id, live, is_away)
            VALUES (new.application_id, new.athlete_id, 1, coalesce(
                (SELECT is_deleted FROM athletes WHERE id = new.athlete_id), 0))
            ON CONFLICT DO UPDATE SET live = live + 1;
        END;
        CREATE TRIGGER authorization_restored AFTER UPDATE ON authorizations
        WHEN old.revoked_at_us IS NOT NULL AND new.revoked_at_us IS NULL BEGIN
            INSERT INTO connections (application_id, athlete_id, live, is_away)
            VALUES (new.application_id, new.athlete_id, 1, coalesce(
                (SELECT is_deleted FROM athletes WHERE id = new.athlete_id), 0))
            ON CONFLICT DO UPDATE SET live = live + 1;
        END;"
    };
}

/// Counts of connected athletes that are made anew; new in a file of version 4. A recount draws a number first
/// (`begun`) and is recorded with it (`ticket`) unless a later one is.
macro_rules! recounts_tables {
    () => {
        "
        CREATE TABLE recounts (
            application_id INTEGER PRIMARY KEY,
            begun INTEGER NOT NULL DEFAULT 0,
            ticket INTEGER NOT NULL DEFAULT 0,
            connected INTEGER,
            counted_at_ms INTEGER
        ) STRICT;"
    };
}

/// What owners, tracks and segments are called; new in a file of version 5.
macro_rules! names_table {
    () => {
        "
        CREATE TABLE names (
            kind TEXT NOT NULL,
            id INTEGER NOT NULL,
            name TEXT NOT NULL,
            PRIMARY KEY (kind, id)
        ) STRICT, WITHOUT ROWID;"
    };
}

/// Owners of applications in the record of changes, as JSON; new in a file of version 7.
macro_rules! owner_changes {
    () => {
        "
        ALTER TABLE application_audit ADD COLUMN owner_before TEXT;
        ALTER TABLE application_audit ADD COLUMN owner_after TEXT;"
    };
}

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
    version: 7,
    tables: concat!(
        "
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
            is_away INTEGER NOT NULL DEFAULT 0,
            PRIMARY KEY (application_id, athlete_id)
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE connected (
            application_id INTEGER PRIMARY KEY,
            athletes INTEGER NOT NULL CHECK (athletes >= 0)
        ) STRICT;
        CREATE TRIGGER authorization_revoked AFTER UPDATE ON authorizations
        WHEN old.revoked_at_us IS NULL AND new.revoked_at_us IS NOT NULL BEGIN
            UPDATE connections SET live = live - 1
            WHERE application_id = old.application_id AND athlete_id = old.athlete_id;
        END;
        CREATE TRIGGER authorization_removed AFTER DELETE ON authorizations
        WHEN old.revoked_at_us IS NULL BEGIN
            UPDATE connections SET live = live - 1
            WHERE application_id = old.application_id AND athlete_id = old.athlete_id;
        END;
        CREATE TABLE outbox (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            source TEXT NOT NULL,
            key INTEGER NOT NULL,
            member INTEGER NOT NULL,
            made_at_ms INTEGER NOT NULL
        ) STRICT;",
        deleted_athletes!(),
        // What those write who look after applications.
        applications_tables!(),
        recounts_tables!(),
        names_table!(),
        owner_changes!()
    ),
    upgrades: &[
        (
            1,
            Upgrade::Statements(
                "ALTER TABLE athletes ADD COLUMN is_disqualified INTEGER NOT NULL DEFAULT 0;",
            ),
        ),
        (2, Upgrade::Statements(applications_tables!())),
        (
            3,
            Upgrade::Statements(concat!(
                "ALTER TABLE connections ADD COLUMN is_away INTEGER NOT NULL DEFAULT 0;
                 DROP TRIGGER authorization_made; DROP TRIGGER authorization_restored;
                 DROP TRIGGER athlete_connected; DROP TRIGGER athlete_disconnected;",
                deleted_athletes!(),
                "UPDATE connections SET is_away = 1
                 WHERE athlete_id IN (SELECT id FROM athletes WHERE is_deleted);"
            )),
        ),
        (4, Upgrade::Statements(recounts_tables!())),
        (5, Upgrade::Statements(names_table!())),
        (6, Upgrade::Statements(owner_changes!())),
    ],
    replaceable: false,
    page_bytes: 4096,
    cache_kib: 128 * 1024,
    readers: 4,
    rows_ahead: 512,
    remedy: "stop every process of this folder and restore canon.db from a copy, then run \
             `backstitch batch run --full`",
};

const OUTBOX: &str = "reading the outbox";
const RECOUNTS: &str = "reading how many athletes were counted";

/// The entities of a data folder.
#[derive(Debug)]
pub struct SqliteCanon {
    pub(super) db: Db,
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

    async fn ask(&self, query: &str, wait_ms: u64) -> Result<Answered> {
        let db = self.db.current().await?;
        canon_asked::ask(db, query, wait_ms).await
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
    async fn apply_by(&self, rows: &[Entity], actor: &str, now_ms: i64) -> Result<Applied> {
        if rows.is_empty() {
            return Ok(Applied::default());
        }
        let db = self.db.current().await?;
        let fault = db.fault("applying rows");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let applied = canon_apply::apply(&mut tx, rows, actor, now_ms).await;
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

#[async_trait]
impl CanonErase for SqliteCanon {
    async fn rows_of(&self, athlete_id: i64) -> Result<Vec<RowsOf>> {
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        let found = canon_erase::rows_of(&mut connection, athlete_id).await;
        found.map_err(db.fault(erase::FINDING))
    }

    async fn erase_rows(&self, athlete_id: i64, limit: usize, now_ms: i64) -> Result<u64> {
        let db = self.db.current().await?;
        let found = {
            // Nobody who writes waits for that.
            let mut connection = db.reader().await?;
            let found = canon_erase::find(&mut connection, athlete_id, limit).await;
            found.map_err(db.fault(erase::FINDING))?
        };
        let Some((place, rows)) = found else {
            return Ok(0);
        };
        let fault = db.fault(erase::ERASING);
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let told = Some(now_ms);
        let done = canon_erase::erase(&mut tx, (place, athlete_id), &rows, told).await;
        done.map_err(fault)?;
        tx.commit().await.map_err(fault)?;
        Ok(rows.len() as u64)
    }

    /// No rows are an app's own here.
    async fn tell_of(&self, _: i64, _: i64) -> Result<()> {
        Ok(())
    }

    async fn erase_groups(&self, source: Source, groups: &[Group]) -> Result<()> {
        Grouped::of(source)?;
        let db = self.db.current().await?;
        let fault = db.fault(erase::ERASING);
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let done = canon_erase::erase_groups(&mut tx, source, groups).await;
        done.map_err(fault)?;
        tx.commit().await.map_err(fault)
    }
}

#[async_trait]
impl CanonAdmin for SqliteCanon {
    async fn usages(&self, after: Option<i64>, limit: usize) -> Result<Vec<Usage>> {
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        let found = admin::usages(&mut Embedded(&mut connection), after, limit).await;
        found.map_err(db.fault("reading applications"))
    }

    async fn usages_of(&self, ids: &[i64]) -> Result<Vec<Usage>> {
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        let found = admin::usages_of(&mut Embedded(&mut connection), ids).await;
        found.map_err(db.fault("reading applications"))
    }

    async fn change(
        &self,
        application_id: i64,
        change: Change,
        by: &By,
        now_ms: i64,
    ) -> Result<Option<Usage>> {
        let db = self.db.current().await?;
        let fault = db.fault("changing an application");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let link = &mut Embedded(&mut tx);
        let done = admin::change(link, application_id, change, by, now_ms).await;
        let done = done.map_err(fault)?;
        tx.commit().await.map_err(fault)?;
        Ok(done)
    }

    async fn audit(
        &self,
        application_id: i64,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<AuditEntry>> {
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        let link = &mut Embedded(&mut connection);
        let found = admin::audit(link, application_id, before, limit).await;
        found.map_err(db.fault("reading what was changed of an application"))
    }

    async fn request_capacity(
        &self,
        application_id: i64,
        athlete_capacity: i64,
        by: &By,
        now_ms: i64,
    ) -> Result<Requested> {
        let db = self.db.current().await?;
        let fault = db.fault("asking for a capacity");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let link = &mut Embedded(&mut tx);
        let done =
            admin::request_capacity(link, application_id, athlete_capacity, by, now_ms).await;
        let done = done.map_err(fault)?;
        tx.commit().await.map_err(fault)?;
        Ok(done)
    }

    async fn capacity_requests(
        &self,
        of: RequestsOf,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<CapacityRequest>> {
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        let link = &mut Embedded(&mut connection);
        let found = admin::capacity_requests(link, of, before, limit).await;
        found.map_err(db.fault("reading requests for capacity"))
    }

    async fn decide(
        &self,
        request_id: i64,
        decision: Decision,
        by: &By,
        now_ms: i64,
    ) -> Result<Decided> {
        let db = self.db.current().await?;
        let fault = db.fault("deciding a request for capacity");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let link = &mut Embedded(&mut tx);
        let done = admin::decide(link, request_id, decision, by, now_ms).await;
        let done = done.map_err(fault)?;
        tx.commit().await.map_err(fault)?;
        Ok(done)
    }
}

#[async_trait]
impl Notices for SqliteCanon {
    async fn notices(
        &self,
        application_id: Option<i64>,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<Notice>> {
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        let link = &mut Embedded(&mut connection);
        let found = notices::notices(link, application_id, before, limit).await;
        found.map_err(db.fault("reading notices of capacities"))
    }

    async fn notices_waiting(&self, now_ms: i64) -> Result<NoticesWaiting> {
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        let found = notices::waiting(&mut Embedded(&mut connection), now_ms).await;
        found.map_err(db.fault("reading notices of capacities"))
    }

    async fn claim_notices(
        &self,
        now_ms: i64,
        until_ms: i64,
        limit: usize,
    ) -> Result<Vec<Claimed>> {
        let db = self.db.current().await?;
        let fault = db.fault("claiming notices of capacities");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let done = notices::claim(&mut Embedded(&mut tx), now_ms, until_ms, limit).await;
        let done = done.map_err(fault)?;
        tx.commit().await.map_err(fault)?;
        Ok(done)
    }

    async fn settle_notice(&self, claimed: &Claimed, outcome: &Outcome) -> Result<()> {
        let db = self.db.current().await?;
        let fault = db.fault("settling a notice of a capacity");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let claim = (claimed.notice.id, claimed.until_ms);
        let done = notices::settle(&mut Embedded(&mut tx), claim, outcome).await;
        done.map_err(fault)?;
        tx.commit().await.map_err(fault)
    }
}

#[async_trait]
impl AgedRecords for SqliteCanon {
    async fn aged(&self, of: Ageing, before_ms: i64) -> Result<AgedCount> {
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        let found = aged::aged(&mut Embedded(&mut connection), of, before_ms).await;
        found.map_err(db.fault(aged::COUNTING))
    }

    async fn forget_aged(&self, of: Ageing, before_ms: i64, limit: usize) -> Result<u64> {
        let db = self.db.current().await?;
        let fault = db.fault(aged::FORGETTING);
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let link = &mut Embedded(&mut tx);
        let done = aged::forget(link, of, before_ms, limit).await;
        let done = done.map_err(fault)?;
        tx.commit().await.map_err(fault)?;
        Ok(done)
    }
}

#[async_trait]
impl Recounts for SqliteCanon {
    async fn countables(&self, application_ids: &[i64]) -> Result<Vec<Countable>> {
        let ids = recounts::in_order(application_ids);
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        let found = recounts::countables(&mut Embedded(&mut connection), &ids).await;
        found.map_err(db.fault(RECOUNTS))
    }

    async fn countables_after(&self, after: Option<i64>, limit: usize) -> Result<Vec<Countable>> {
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        let link = &mut Embedded(&mut connection);
        let found = recounts::countables_after(link, after, limit).await;
        found.map_err(db.fault(RECOUNTS))
    }

    async fn recount(&self, application_ids: &[i64], now_ms: i64) -> Result<Vec<Recount>> {
        let ids = recounts::in_order(application_ids);
        let db = self.db.current().await?;
        let fault = db.fault("counting the athletes of applications anew");
        let tickets = {
            let mut connection = db.writer().await?;
            let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
            let drawn = recounts::tickets(&mut Embedded(&mut tx), &ids).await;
            let drawn = drawn.map_err(fault)?;
            tx.commit().await.map_err(fault)?;
            drawn
        };
        // Nobody who writes waits for the counting.
        let mut connection = db.reader().await?;
        let link = &mut Embedded(&mut connection);
        let counted = recounts::recount(link, &tickets, now_ms).await;
        counted.map_err(fault)
    }

    async fn record_recounts(&self, recounts: &[Recount]) -> Result<()> {
        if recounts.is_empty() {
            return Ok(());
        }
        let db = self.db.current().await?;
        let fault = db.fault("recording the athletes of applications");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let done = recounts::record(&mut Embedded(&mut tx), recounts).await;
        done.map_err(fault)?;
        tx.commit().await.map_err(fault)
    }
}

#[cfg(test)]
#[path = "canon_upgrade_tests.rs"]
mod upgrade_tests;
