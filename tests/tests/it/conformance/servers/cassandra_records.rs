//! Records on Cassandra: lost replies, and migration of the tables that records replace.

use std::sync::Arc;
use std::time::Duration;

use schemas::source::Source;
use serde_json::{Value, json};
use stores::Result;
use stores::cassandra::{Cassandra, CassandraOptions, CassandraRecords};
use stores::erasures::{Attribution, Erasure, Person, PersonKind, Suppressions};
use stores::namespace::Namespace;
use stores::reconciliations;
use stores::records::{Records, RecordsRead};
use tests::direct_access::Cql;
use tests::proxy::{Gate, Holds, Proxy};
use tests::servers;
use tokio_util::sync::CancellationToken;

const PLAYS: Source = Source::Plays;
const OLD_TABLES: [&str; 2] = [
    include_str!("../../../../../stores/src/cassandra/migrations/V0005__erasures.cql"),
    include_str!("../../../../../stores/src/cassandra/migrations/V0006__reconciliations.cql"),
];
const KEY: [u8; 32] = [0xa5; 32];
const ERASURES: u64 = 120;
const COMPARISONS: std::ops::RangeInclusive<u64> = 940..=1_060;

fn options() -> CassandraOptions {
    servers::cassandra_options(&servers::cassandra())
}

/// Runs a change and delays the replies to requests that contain `text` for longer than a request
/// may take.
async fn with_late_replies<T>(
    gate: &Gate,
    text: &'static str,
    change: impl Future<Output = T>,
) -> T {
    gate.hold_reply_to(text);
    let release = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        gate.hold(Holds::Nothing);
    };
    tokio::join!(change, release).0
}

/// A change whose reply is lost is applied once, and the writer detects that it was applied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_without_a_reply_is_detected() -> Result<()> {
    let namespace = servers::namespace();
    Cassandra::migrate(&options(), &namespace).await?;
    let gate = Arc::<Gate>::default();
    let proxy = Proxy::start(&servers::cassandra(), &gate).await;
    let gated = CassandraOptions {
        nodes: proxy.address.clone(),
        request_timeout_ms: 500,
        retry_timeout_ms: 60_000,
        ..options()
    };
    let records = Cassandra::open(&gated, &namespace).await?.records();
    let (first, second) = (json!("lost-insert"), json!("lost-update"));
    let insert = records.compare_and_set("s", "n", None, Some(&first));
    assert!(with_late_replies(&gate, "lost-insert", insert).await?);
    let update = records.compare_and_set("s", "n", Some(1), Some(&second));
    assert!(with_late_replies(&gate, "lost-update", update).await?);
    let record = records.get("s", "n").await?.expect("a record");
    assert_eq!((record.version, record.value), (2, second));
    let nothing = json!({});
    let add = reconciliations::add(&records, PLAYS, "lost-addition", 5, &nothing);
    assert_eq!(with_late_replies(&gate, "lost-addition", add).await?, 1);
    let listed = reconciliations::list(&records, PLAYS, None, 10).await?;
    assert_eq!(listed.len(), 1);
    Cassandra::remove(&options(), &namespace).await
}

/// Creates the tables of version 6 of the keyspace, with rows.
async fn create_old_tables(namespace: &Namespace) -> Result<Cql> {
    Cassandra::migrate(&options(), namespace).await?;
    let cql = Cql::connect(namespace).await;
    cql.run("DROP TABLE records", ()).await;
    let forget = "DELETE FROM schema_migrations WHERE scope = 'all' AND version = 7 IF EXISTS";
    assert_eq!(cql.try_apply(forget, ()).await, Ok(true));
    for file in OLD_TABLES {
        let lines = file.lines().filter(|line| !line.starts_with("--"));
        let text = lines.collect::<Vec<_>>().join("\n");
        for statement in text.split(';').filter(|text| !text.trim().is_empty()) {
            cql.run(statement, ()).await;
        }
    }
    let key = "UPDATE erasures SET secret = ? WHERE scope = 'all' IF secret = NULL";
    assert_eq!(cql.try_apply(key, (&KEY[..],)).await, Ok(true));
    for number in 1..=ERASURES {
        assert_eq!(add_old_erasure(&cql, number).await, Ok(true));
    }
    let finish = "UPDATE erasures SET finished_at_ms = 77, receipt = ? WHERE scope = 'all' AND number = 2 IF EXISTS";
    let receipt = json!({"places": [{"found": u64::MAX}], "step": "ü"}).to_string();
    assert_eq!(cql.try_apply(finish, (receipt,)).await, Ok(true));
    for number in COMPARISONS {
        let insert = "INSERT INTO reconciliations (source, part, number, id, at_ms, record)
                      VALUES ('plays', ?, ?, ?, ?, ?) IF NOT EXISTS";
        let signed_number = number.cast_signed();
        let record = json!({"n": number, "text": "ü'\""}).to_string();
        let values = (
            signed_number / 1_000,
            signed_number,
            format!("id {number}"),
            10 * signed_number,
            record,
        );
        assert_eq!(cql.try_apply(insert, values).await, Ok(true));
    }
    // The writer of this comparison died before it stored the newest number.
    let numbers = json!({"oldest": COMPARISONS.start(), "newest": COMPARISONS.end() - 1});
    for (scope, name, value) in [
        ("numbers", "plays", numbers),
        ("schedules", "daily", json!({"rounds": 3})),
        ("alerts", "one", json!({"tries": 1})),
        ("approvals", "daily view", json!({"by": "ann"})),
    ] {
        insert_old_note(&cql, scope, name, &value).await;
    }
    Ok(cql)
}

/// Adds an erasure as the version with the old table did.
async fn add_old_erasure(cql: &Cql, number: u64) -> Result<bool, String> {
    let text = "BEGIN BATCH
            UPDATE erasures SET newest = ? WHERE scope = 'all' IF newest = ?;
            INSERT INTO erasures (scope, number, kind, person, begun_at_ms, asked_by, reason,
                                  finished_at_ms, receipt)
                VALUES ('all', ?, 'listener', ?, ?, 'desk', 'ticket', null, 'null');
        APPLY BATCH";
    let signed_number = number.cast_signed();
    let previous = (number > 1).then_some(signed_number - 1);
    let person = person(number);
    cql.try_apply(
        text,
        (
            signed_number,
            previous,
            signed_number,
            &person[..],
            1_000 + signed_number,
        ),
    )
    .await
}

async fn insert_old_note(cql: &Cql, scope: &str, name: &str, value: &Value) {
    let put = "INSERT INTO reconciliation_notes (scope, name, version, value) VALUES (?, ?, 9, ?) IF NOT EXISTS";
    let values = (scope, name, value.to_string());
    assert_eq!(cql.try_apply(put, values).await, Ok(true));
}

fn person(number: u64) -> [u8; 16] {
    let mut person = [0xee; 16];
    person[..8].copy_from_slice(&number.to_be_bytes());
    person
}

/// The records contain what the old tables contained, with this number of erasures, and the tables
/// are dropped.
async fn check_migrated(namespace: &Namespace, cql: &Cql, erasures: u64) -> Result<()> {
    let records = Cassandra::open(&options(), namespace).await?.records();
    let list = Suppressions::new(Arc::new(records));
    let erasure = |number: u64| {
        let is_second = number == 2;
        let receipt = json!({"places": [{"found": u64::MAX}], "step": "ü"});
        Erasure {
            number,
            kind: PersonKind::Listener,
            person: person(number),
            begun_at_ms: 1_000 + number.cast_signed(),
            by: "desk".to_owned(),
            reason: "ticket".to_owned(),
            finished_at_ms: is_second.then_some(77),
            receipt: if is_second { receipt } else { Value::Null },
        }
    };
    let expected: Vec<Erasure> = (1..=erasures).map(erasure).collect();
    assert_eq!(list.all().await?, expected);
    let next = Person {
        kind: PersonKind::Listener,
        id: 7,
    };
    let next = list.begin(next, &Attribution::default(), 1).await?;
    assert_eq!(next.number, erasures + 1);

    let records = Cassandra::open(&options(), namespace).await?.records();
    let key = records.get("erasure key", "key").await?.expect("the key");
    assert_eq!(key.value, json!("a5".repeat(32)));
    check_comparisons(&records).await?;
    let text = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?";
    let tables: Vec<(String,)> = cql.read(text, (namespace.identifier("backstitch"),)).await;
    for dropped in ["erasures", "reconciliations", "reconciliation_notes"] {
        assert!(tables.iter().all(|(table,)| table != dropped), "{dropped}");
    }
    assert!(
        !Cassandra::migrate(&options(), namespace).await?,
        "nothing to do"
    );
    Cassandra::remove(&options(), namespace).await
}

async fn check_comparisons(records: &CassandraRecords) -> Result<()> {
    let comparisons = reconciliations::list(records, PLAYS, None, 1_000).await?;
    let numbers: Vec<u64> = comparisons
        .iter()
        .map(|comparison| comparison.number)
        .collect();
    assert_eq!(numbers, COMPARISONS.rev().collect::<Vec<u64>>());
    for comparison in &comparisons {
        assert_eq!(comparison.id, format!("id {}", comparison.number));
        assert_eq!(comparison.at_ms, 10 * comparison.number.cast_signed());
        assert_eq!(
            comparison.record,
            json!({"n": comparison.number, "text": "ü'\""})
        );
    }
    let added = reconciliations::add(records, PLAYS, "id 1060", 1, &json!({})).await?;
    assert_eq!(added, *COMPARISONS.end());
    for (scope, name, value) in [
        ("schedules", "daily", Some(json!({"rounds": 3}))),
        ("approvals", "daily view", Some(json!({"by": "ann"}))),
        ("alerts", "one", Some(json!({"tries": 1}))),
        ("alerts", "delivered", None),
    ] {
        let comparisons = records.get(scope, name).await?.map(|record| record.value);
        assert_eq!(comparisons, value, "{scope} {name}");
    }
    Ok(())
}

/// Rows are migrated while a process of the earlier version erases. Each erasure is either migrated
/// or refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_earlier_tables_are_migrated() -> Result<()> {
    let namespace = servers::namespace();
    let cql = create_old_tables(&namespace).await?;
    let ended = CancellationToken::new();
    let erase = async {
        let (mut newest, mut refused) = (ERASURES, 0);
        // Until the table is dropped. The pauses grow, so that the migration wins at some time.
        let mut pause = Duration::from_millis(2);
        while let Ok(is_added) = add_old_erasure(&cql, newest + 1).await
            && !ended.is_cancelled()
        {
            match is_added {
                true => newest += 1,
                false => refused += 1,
            }
            tokio::time::sleep(pause).await;
            pause += Duration::from_millis(1);
        }
        (newest, refused)
    };
    let options = options();
    let migrate = async {
        let _ended = ended.clone().drop_guard();
        Cassandra::migrate(&options, &namespace).await
    };
    let (migrated, (newest, refused)) = tokio::join!(migrate, erase);
    assert!(migrated?, "the first call migrates");
    assert!(newest > ERASURES && refused > 0, "{newest} {refused}");
    check_migrated(&namespace, &cql, newest).await
}

/// The next migration completes one that was killed at any point. Rows that were changed or deleted
/// in between keep their current state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_migration_is_completed() -> Result<()> {
    let namespace = servers::namespace();
    let cql = create_old_tables(&namespace).await?;
    insert_old_note(&cql, "alerts", "delivered", &json!({"tries": 0})).await;
    let change = "UPDATE reconciliation_notes SET value = ? WHERE scope = ? AND name = ? IF EXISTS";
    let old_value = json!({"rounds": 2}).to_string();
    let changed = cql
        .try_apply(change, (old_value, "schedules", "daily"))
        .await;
    assert_eq!(changed, Ok(true));
    let mut delay_ms = 100;
    let migrate_for = async |delay_ms| {
        let options = options();
        let migrate = Box::pin(Cassandra::migrate(&options, &namespace));
        tokio::time::timeout(Duration::from_millis(delay_ms), migrate).await
    };
    // Until the migration has copied the alert that is delivered then.
    let copied = async || {
        let tables = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ? AND table_name = 'records'";
        let keyspace = namespace.identifier("backstitch");
        if cql.read::<(String,)>(tables, (keyspace,)).await.is_empty() {
            return false;
        }
        let text = "SELECT name FROM records WHERE scope = 'alerts' AND name = 'delivered'";
        !cql.read::<(String,)>(text, ()).await.is_empty()
    };
    while !copied().await {
        let outcome = migrate_for(delay_ms).await;
        assert!(
            outcome.is_err(),
            "it was not killed after {delay_ms} ms: {outcome:?}"
        );
        delay_ms += 150;
    }
    let delivered =
        "DELETE FROM reconciliation_notes WHERE scope = 'alerts' AND name = 'delivered' IF EXISTS";
    assert_eq!(cql.try_apply(delivered, ()).await, Ok(true));
    let new_value = json!({"rounds": 3}).to_string();
    let changed = cql
        .try_apply(change, (new_value, "schedules", "daily"))
        .await;
    assert_eq!(changed, Ok(true));
    loop {
        match migrate_for(delay_ms).await {
            Ok(migrated) => break assert!(migrated?, "it moved the rest"),
            Err(_) => delay_ms += 300,
        }
    }
    check_migrated(&namespace, &cql, ERASURES).await
}
