//! Files of an older version are brought to this one, and keep their rows.

use schemas::entities::{Athlete, Effort, Entity};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};

use super::*;

/// Makes of a file one as it was before athletes could be disqualified.
async fn age(folder: &Path) -> Result<(), sqlx::Error> {
    let path = folder.join("canon.db");
    let mut file = SqliteConnectOptions::new().filename(path).connect().await?;
    sqlx::raw_sql(
        "DROP TRIGGER athlete_connected; DROP TRIGGER athlete_disconnected;
         DROP TRIGGER athlete_gone; DROP TRIGGER athlete_back;
         DROP TRIGGER deleted_athlete_made; DROP TRIGGER athlete_deleted;
         DROP TRIGGER authorization_made; DROP TRIGGER authorization_restored;
         DROP INDEX connections_by_athlete; ALTER TABLE connections DROP COLUMN is_away;
         UPDATE connected SET athletes = athletes + 1;
         ALTER TABLE athletes DROP COLUMN is_disqualified;
         DROP TABLE unlimited; DROP TABLE application_audit; DROP TABLE capacity_requests;
         DROP TRIGGER first_connected; DROP TRIGGER more_connected; DROP VIEW usage_to_note;
         DROP TABLE capacity_notices;
         PRAGMA user_version = 1;",
    )
    .execute(&mut file)
    .await?;
    file.close().await
}

#[tokio::test]
async fn an_older_file_keeps_its_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join(super::super::db::LOCKS)).expect("a folder");
    let athlete = |is_disqualified: bool| {
        Entity::Athlete(Athlete {
            id: 3,
            name: None,
            gender: None,
            birth_year: Some(1980),
            weight_kg: None,
            country: None,
            is_disqualified,
            is_deleted: false,
            version: 0,
        })
    };
    let effort = Entity::Effort(Effort {
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
    });
    let rows = [effort, athlete(false)];
    let canon = SqliteCanon::open(folder.path()).await.expect("a new file");
    canon.apply(&rows, 1).await.expect("applying");
    drop(canon);
    age(folder.path()).await.expect("an older file");

    for _ in 0..2 {
        let canon = SqliteCanon::open(folder.path()).await.expect("opening");
        let told = |applied: Applied| applied.notifications.len();
        for (is_disqualified, notifications) in [(false, 0), (true, 1), (true, 0), (false, 1)] {
            let applied = canon.apply(&[athlete(is_disqualified)], 1).await;
            assert_eq!(told(applied.expect("applying")), notifications);
            let group = Group { key: 2, member: 3 };
            let rows = canon.groups(Source::Efforts, &[group]).await;
            let rows = rows.expect("reading");
            let column = rows.column_by_name("athlete_is_disqualified");
            let column = column.map(|column| arrow::array::AsArray::as_boolean(column).clone());
            assert_eq!(column.map(|column| column.value(0)), Some(is_disqualified));
        }
    }
}
