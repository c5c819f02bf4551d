//! Tests that upgrades of older files preserve their rows.

use schemas::entities::{Application, Athlete, Effort, Entity};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};

use super::*;
use crate::admin::{AuditContext, CapacityRequestOutcome, EntityAdmin as _};
use crate::entities::{EntityRead as _, EntityWrite as _};
use crate::sql::EntityStore;

/// Downgrades a file to version 1, before athletes could be disqualified.
async fn downgrade_to_1(folder: &std::path::Path) -> Result<(), sqlx::Error> {
    let path = folder.join("canon.db");
    let mut file = SqliteConnectOptions::new().filename(path).connect().await?;
    sqlx::raw_sql(
        "DROP TRIGGER athlete_connected; DROP TRIGGER athlete_disconnected;
         DROP TRIGGER athlete_gone; DROP TRIGGER athlete_back;
         DROP TRIGGER deleted_athlete_made; DROP TRIGGER athlete_deleted;
         DROP TRIGGER authorization_made; DROP TRIGGER authorization_restored;
         DROP INDEX connections_by_athlete; ALTER TABLE connections DROP COLUMN is_away;
         CREATE TRIGGER authorization_made AFTER INSERT ON authorizations
         WHEN new.revoked_at_us IS NULL BEGIN
             INSERT INTO connections (application_id, athlete_id, live)
             VALUES (new.application_id, new.athlete_id, 1);
         END;
         CREATE TRIGGER authorization_restored AFTER UPDATE ON authorizations BEGIN
             SELECT 1;
         END;
         CREATE TRIGGER athlete_connected AFTER INSERT ON connections BEGIN
             INSERT INTO connected (application_id, athletes) VALUES (new.application_id, 1)
             ON CONFLICT DO UPDATE SET athletes = athletes + 1;
         END;
         CREATE TRIGGER athlete_disconnected AFTER UPDATE ON connections BEGIN SELECT 1; END;
         INSERT INTO authorizations (id, application_id, athlete_id, created_at_us, version)
         VALUES (1, 6, 3, 1, 0), (2, 6, 8, 1, 0), (3, 6, 9, 1, 0);
         UPDATE athletes SET is_deleted = 1 WHERE id = 8;
         DROP TABLE disqualified; ALTER TABLE outbox RENAME COLUMN group_key TO key;
         DROP TABLE unlimited; DROP TABLE application_audit; DROP TABLE capacity_requests;
         DROP TRIGGER first_connected; DROP TRIGGER more_connected; DROP VIEW usage_to_note;
         DROP TABLE capacity_notices; DROP TABLE recounts; DROP TABLE names;
         PRAGMA user_version = 1;",
    )
    .execute(&mut file)
    .await?;
    file.close().await
}

fn athlete(id: i64, is_disqualified: bool) -> Entity {
    Entity::Athlete(Athlete {
        id,
        name: None,
        gender: None,
        birth_year: Some(1980),
        weight_kg: None,
        country: None,
        is_disqualified,
        is_deleted: false,
        version: 0,
    })
}

/// An effort of the athlete 3 on the segment 2.
fn effort() -> Entity {
    Entity::Effort(Effort {
        id: 1,
        segment_id: 2,
        athlete_id: 3,
        activity_id: 4,
        elapsed_time_s: 5,
        started_at_us: 6,
        tz: "UTC".to_owned(),
        is_hidden: false,
        is_deleted: false,
        version: 0,
    })
}

fn application() -> Entity {
    Entity::Application(Application {
        id: 6,
        name: "a".to_owned(),
        owner: 1.into(),
        athlete_capacity: 9,
        version: 0,
    })
}

#[tokio::test]
async fn upgrade_from_version_1_preserves_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join(crate::embedded::db::LOCKS)).expect("a folder");
    let rows = [
        effort(),
        athlete(3, false),
        athlete(8, false),
        application(),
    ];
    let store = EntityStore::open_file(folder.path())
        .await
        .expect("a new file");
    store.apply(&rows, 1).await.expect("applying");
    drop(store);
    downgrade_to_1(folder.path()).await.expect("an older file");

    for _ in 0..2 {
        let store = EntityStore::open_file(folder.path())
            .await
            .expect("opening");
        // Three athletes are connected, one of them is deleted.
        let usages = store.usages_by_id(&[6]).await.expect("reading");
        let connected = usages.first().and_then(|usage| usage.connected);
        assert_eq!(connected, Some(2));
        for (is_disqualified, notifications) in [(false, 0), (true, 1), (true, 0), (false, 1)] {
            let applied = store.apply(&[athlete(3, is_disqualified)], 1).await;
            let applied = applied.expect("applying");
            assert_eq!(applied.notifications.len(), notifications);
            let group = Group { key: 2, member: 3 };
            let rows = store.groups(Source::Efforts, &[group]).await;
            let rows = rows.expect("reading");
            let column = rows.column_by_name("athlete_is_disqualified");
            let column = column.map(|column| arrow::array::AsArray::as_boolean(column).clone());
            assert_eq!(column.map(|column| column.value(0)), Some(is_disqualified));
        }
    }
}

/// Downgrades a file to version 7, in which disqualification is a column and calls have no tokens.
async fn downgrade_to_7(folder: &std::path::Path) -> Result<(), sqlx::Error> {
    let path = folder.join("canon.db");
    let mut file = SqliteConnectOptions::new().filename(path).connect().await?;
    sqlx::raw_sql(
        "ALTER TABLE athletes ADD COLUMN is_disqualified INTEGER NOT NULL DEFAULT 0;
         UPDATE athletes SET is_disqualified = 1 WHERE id IN (SELECT athlete_id FROM disqualified);
         DROP TABLE disqualified; ALTER TABLE outbox RENAME COLUMN group_key TO key;
         ALTER TABLE capacity_requests DROP COLUMN request_token;
         ALTER TABLE capacity_requests DROP COLUMN decision_token;
         ALTER TABLE application_audit DROP COLUMN call_token;
         PRAGMA user_version = 7;",
    )
    .execute(&mut file)
    .await?;
    file.close().await
}

#[tokio::test]
async fn upgrade_from_version_7_preserves_disqualified_outbox_and_requests() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join(crate::embedded::db::LOCKS)).expect("a folder");
    let rows = [athlete(3, true), effort(), application()];
    let by = AuditContext::default();
    let store = EntityStore::open_file(folder.path())
        .await
        .expect("a new file");
    let applied = store.apply(&rows, 1).await.expect("applying");
    store
        .request_capacity(6, 10, &by, 1)
        .await
        .expect("a request");
    drop(store);
    downgrade_to_7(folder.path()).await.expect("an older file");

    let store = EntityStore::open_file(folder.path())
        .await
        .expect("opening");
    let group = Group { key: 2, member: 3 };
    let rows = store.groups(Source::Efforts, &[group]).await.expect("rows");
    let column = rows.column_by_name("athlete_is_disqualified");
    let column = column.map(|column| arrow::array::AsArray::as_boolean(column).clone());
    assert_eq!(column.map(|column| column.value(0)), Some(true));
    let pending = store
        .pending_notifications(Source::Efforts, i64::MAX, 10)
        .await;
    assert_eq!(pending.expect("the outbox"), applied.notifications);
    let again = store.request_capacity(6, 11, &by, 2).await;
    assert!(
        matches!(again, Ok(CapacityRequestOutcome::AlreadyOpen(_))),
        "{again:?}"
    );
}
