//! Tests of upgrades from version 1, which had separate tables for erasures, comparisons and notes.

use std::sync::Arc;

use schemas::source::Source;
use serde_json::json;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};

use super::*;
use crate::embedded::DataFolder;
use crate::erasures::{Attribution, Erasure, Person, PersonKind, Suppressions};
use crate::reconciliations::{self, Reconciliation};

/// The tables of `erasures.db` in version 1, with a key, a finished and an unfinished erasure. The
/// first one concerns listener 7: HMAC-SHA-256 with that key of `listener` and of the id as eight
/// bytes.
const ERASURES_1: &str = r#"
    CREATE TABLE secret (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        key BLOB NOT NULL
    ) STRICT;
    CREATE TABLE erasures (
        number INTEGER PRIMARY KEY,
        kind TEXT NOT NULL,
        person BLOB NOT NULL,
        begun_at_ms INTEGER NOT NULL,
        asked_by TEXT NOT NULL,
        reason TEXT NOT NULL,
        finished_at_ms INTEGER,
        receipt TEXT NOT NULL
    ) STRICT;
    INSERT INTO secret VALUES (1, x'000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1eFF');
    INSERT INTO erasures VALUES
        (1, 'listener', x'351fa67aa0a659cf2552c9a542d7fdd0', 1000, 'desk ü "5"', 'ticket', 2000,
            '{"places": [{"place": "log", "found": 18446744073709551615}], "step": "é"}'),
        (2, 'athlete', x'00ff0000000000000000000000000009', 3000, '', '', NULL, 'null');
    PRAGMA user_version = 1;"#;

/// The tables of `reconciliations.db` in version 1. The oldest comparisons of plays and all of
/// efforts were deleted.
const RECONCILIATIONS_1: &str = r#"
    CREATE TABLE reconciliations (
        source TEXT NOT NULL,
        number INTEGER NOT NULL,
        id TEXT NOT NULL,
        at_ms INTEGER NOT NULL,
        record TEXT NOT NULL,
        PRIMARY KEY (source, number)
    ) STRICT, WITHOUT ROWID;
    CREATE UNIQUE INDEX reconciliations_by_id ON reconciliations (source, id);
    CREATE TABLE numbers (
        source TEXT NOT NULL PRIMARY KEY,
        newest INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE notes (
        scope TEXT NOT NULL,
        name TEXT NOT NULL,
        version INTEGER NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (scope, name)
    ) STRICT, WITHOUT ROWID;
    INSERT INTO reconciliations VALUES
        ('plays', 999, 'id 999', 10, '{"text": "ü''\"", "sum": 18446744073709551615}'),
        ('plays', 1000, 'id 1000', 20, '{"nested": [null, {"a": 1.5}]}');
    INSERT INTO numbers VALUES ('plays', 1000), ('efforts', 7);
    INSERT INTO notes VALUES
        ('schedules', 'daily', 17, '{"rounds": 3}'),
        ('approvals', 'daily view', 2, '{"by": "ann"}');
    PRAGMA user_version = 1;"#;

async fn write(folder: &Path, name: &str, statements: &'static str) {
    let options = SqliteConnectOptions::new()
        .filename(folder.join(name))
        .create_if_missing(true);
    let mut file = options.connect().await.expect("a file");
    let result = sqlx::raw_sql(statements).execute(&mut file).await;
    result.expect("tables of version 1");
    file.close().await.expect("closing");
}

#[tokio::test]
async fn erasures_become_records() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), "erasures.db", ERASURES_1).await;
    let data = DataFolder::open(folder.path()).expect("a folder");
    // Opens it twice, like two processes.
    let records = Arc::new(data.erasures().await.expect("upgraded"));
    let second = data.erasures().await.expect("upgraded");
    let key = second.get("erasure key", "key").await.expect("a record");
    let digits = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1eff";
    assert_eq!(key.expect("the key").value, json!(digits));

    let list = Suppressions::new(records);
    let erasures = list.all().await.expect("erasures");
    let finished = Erasure {
        number: 1,
        kind: PersonKind::Listener,
        person: [
            0x35, 0x1f, 0xa6, 0x7a, 0xa0, 0xa6, 0x59, 0xcf, 0x25, 0x52, 0xc9, 0xa5, 0x42, 0xd7,
            0xfd, 0xd0,
        ],
        begun_at_ms: 1_000,
        by: "desk ü \"5\"".to_owned(),
        reason: "ticket".to_owned(),
        finished_at_ms: Some(2_000),
        receipt: json!({"places": [{"place": "log", "found": u64::MAX}], "step": "é"}),
    };
    let mut person = [0; 16];
    (person[1], person[15]) = (0xff, 9);
    let unfinished = Erasure {
        number: 2,
        kind: PersonKind::Athlete,
        person,
        begun_at_ms: 3_000,
        by: String::new(),
        reason: String::new(),
        finished_at_ms: None,
        receipt: json!(null),
    };
    assert_eq!(erasures, [finished, unfinished]);
    let now = list.current().await.expect("the list");
    assert_eq!((now.newest(), now.newest_listener()), (2, 1));
    assert!(now.contains_listener(7) && !now.contains_listener(8));

    // The unfinished erasure is completed, and the next one follows.
    let receipt = json!({"places": []});
    list.set_receipt(2, Some(4_000), &receipt)
        .await
        .expect("an update");
    let person = Person {
        kind: PersonKind::Listener,
        id: 7,
    };
    let next = list.begin(person, &Attribution::default(), 5_000).await;
    assert_eq!(next.expect("an erasure").number, 3);
    let erasures = list.all().await.expect("erasures");
    assert_eq!(
        (erasures[1].finished_at_ms, &erasures[1].receipt),
        (Some(4_000), &receipt)
    );
    assert_eq!(
        erasures[0].person, erasures[2].person,
        "hashed with the same key"
    );
}

#[tokio::test]
async fn comparisons_and_notes_become_records() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), "reconciliations.db", RECONCILIATIONS_1).await;
    let data = DataFolder::open(folder.path()).expect("a folder");
    let records = data.records().await.expect("upgraded");
    let comparisons = reconciliations::list(&records, Source::Plays, None, 10).await;
    let comparison = |number: u64, at_ms, record| Reconciliation {
        number,
        id: format!("id {number}"),
        at_ms,
        record,
    };
    let expected = [
        comparison(1_000, 20, json!({"nested": [null, {"a": 1.5}]})),
        comparison(999, 10, json!({"text": "ü'\"", "sum": u64::MAX})),
    ];
    assert_eq!(comparisons.expect("comparisons"), expected);
    let expiry = reconciliations::count_expired(&records, Source::Plays, 15)
        .await
        .expect("a count");
    assert_eq!(
        (expiry.total, expiry.oldest_ms, expiry.expired),
        (2, Some(10), 1)
    );
    for (scope, name, version, value) in [
        ("schedules", "daily", 17, json!({"rounds": 3})),
        ("approvals", "daily view", 2, json!({"by": "ann"})),
    ] {
        let record = records.get(scope, name).await.expect("a record");
        let record = record.expect("a note");
        assert_eq!((record.version, record.value), (version, value));
    }
    // Numbers continue, also where all comparisons were deleted.
    for (source, number) in [
        (Source::Plays, 1_001),
        (Source::Efforts, 8),
        (Source::Authorizations, 1),
    ] {
        let added = reconciliations::add(&records, source, "new", 30, &json!({})).await;
        assert_eq!(added.expect("a number"), number, "{source}");
    }
    let repeated = reconciliations::add(&records, Source::Plays, "id 999", 10, &json!({})).await;
    assert_eq!(repeated.expect("a number"), 999);
    // A process of version 1 must not use the file again.
    let mut file = SqliteConnectOptions::new().filename(folder.path().join("reconciliations.db"));
    file = file.read_only(true);
    let mut file = file.connect().await.expect("a file");
    let version: i64 = sqlx::query_scalar("PRAGMA user_version")
        .fetch_one(&mut file)
        .await
        .expect("a version");
    assert_eq!(version, 2);
}
