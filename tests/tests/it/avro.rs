//! Avro plays in the log. Both layers count them among records of other formats, and an unavailable
//! registry only delays them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arrow::array::BinaryArray;
use schemas::dead_letter::DeadLetter;
use schemas::entities::{Group, parse};
use schemas::partition::partition_of;
use schemas::source::Source;
use serde_json::json;
use stores::intake::ReprocessedIds;
use stores::log::{FetchLimit, NewRecords};
use stores::registry::{Registry, RegistryOptions, SchemaSource};
use stores::{ErrorKind, Server as _};
use tests::world::{NOW_MS, PARTITIONS, World};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

const OWNER: i64 = 7;
const SCHEMA: &str = include_str!("../../../schemas/avro/plays.avsc");
/// 2026-03-05T11:00:00Z
const AT_US: i64 = 1_772_708_400_000_000;
const BODY_BYTES_MAX: usize = 16 * 1024;

const EFFORTS: &str = include_str!("../../../schemas/avro/efforts.avsc");
const AUTHORIZATIONS: &str = include_str!("../../../schemas/avro/authorizations.avsc");

/// A registry with our plays schema as id 1, a non-Avro schema as 2 and our notification schemas as
/// 4 and 5. Id 3 becomes our plays schema during the test.
#[derive(Debug, Default)]
struct RegistryState {
    is_down: AtomicBool,
    has_schema_3: AtomicBool,
    request_count: AtomicU64,
}

async fn respond(stream: &mut TcpStream, state: &RegistryState) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") && request.len() < BODY_BYTES_MAX {
        request.push(stream.read_u8().await?);
    }
    state.request_count.fetch_add(1, Ordering::SeqCst);
    let request = String::from_utf8_lossy(&request).into_owned();
    let path = request.split(' ').nth(1).unwrap_or_default();
    // Base64 of `u:p`.
    let is_known = request
        .to_lowercase()
        .contains("authorization: basic dtpw\r\n");
    let (status, body) = match path {
        _ if state.is_down.load(Ordering::SeqCst) => ("503 Service Unavailable", json!({})),
        _ if !is_known => ("401 Unauthorized", json!({"error_code": 401})),
        "/under/schemas/ids/1" => ("200 OK", json!({"schema": SCHEMA})),
        "/under/schemas/ids/2" => (
            "200 OK",
            json!({"schema": "syntax = \"proto3\";", "schemaType": "PROTOBUF"}),
        ),
        "/under/schemas/ids/3" if state.has_schema_3.load(Ordering::SeqCst) => {
            ("200 OK", json!({"schema": SCHEMA}))
        }
        "/under/schemas/ids/4" => ("200 OK", json!({"schema": EFFORTS})),
        "/under/schemas/ids/5" => ("200 OK", json!({"schema": AUTHORIZATIONS})),
        "/under/schemas/types" => ("200 OK", json!(["AVRO"])),
        _ if path.starts_with("/under/schemas/ids/") => (
            "404 Not Found",
            json!({"error_code": 40403, "message": "Schema not found"}),
        ),
        _ => ("404 Not Found", json!("no such page")),
    };
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all([head, body].concat().as_bytes()).await?;
    stream.shutdown().await
}

/// Starts a registry that stops with the test.
async fn start_registry() -> (Arc<RegistryState>, RegistryOptions) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!(
        "http://{}/under",
        listener.local_addr().expect("an address")
    );
    let state = Arc::new(RegistryState::default());
    let server_state = Arc::clone(&state);
    #[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            // The client may disconnect early.
            drop(respond(&mut stream, &server_state).await);
        }
    });
    let options = RegistryOptions {
        url,
        user: "u".to_owned(),
        password: "p".to_owned().into(),
        request_timeout_ms: 10_000,
        ..RegistryOptions::default()
    };
    (state, options)
}

fn avro_long(value: i64) -> Vec<u8> {
    let mut remaining = ((value << 1) ^ (value >> 63)).cast_unsigned();
    let mut bytes = Vec::new();
    while remaining >= 0x80 {
        bytes.push(remaining.to_le_bytes()[0] | 0x80);
        remaining >>= 7;
    }
    bytes.push(remaining.to_le_bytes()[0]);
    bytes
}

fn avro_text(text: &str) -> Vec<u8> {
    [
        avro_long(i64::try_from(text.len()).expect("short")),
        text.into(),
    ]
    .concat()
}

fn avro_play(schema: u8, event: &str, kind: &str) -> Vec<u8> {
    let head = [
        vec![0, 0, 0, 0, schema],
        avro_text(event),
        avro_long(1),
        avro_long(OWNER),
    ];
    let absent = vec![0; 4];
    let tail = [absent, avro_text(kind), avro_long(AT_US), vec![0]];
    [head.concat(), tail.concat()].concat()
}

fn json_play(event: &str) -> Vec<u8> {
    json!({
        "event_id": event, "track_id": 1, "owner_id": OWNER, "kind": "play",
        "at": "2026-03-05T11:00:00Z",
    })
    .to_string()
    .into_bytes()
}

async fn append(world: &World, records: &[Vec<u8>]) {
    let partition = partition_of(OWNER.to_string().as_bytes(), PARTITIONS);
    let records: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
    // Creates the topics.
    drop(world.intake(Source::Plays).await);
    world.append_raw(partition, &records).await;
}

/// The served count and its source.
async fn fetch_count(world: &World) -> (i64, String) {
    let served = world.serve().await;
    let path = format!("/api/v1/stats/plays/total?owner_id={OWNER}&period=all");
    let client = served.client.clone();
    let request = tokio::task::spawn_blocking(move || client.get_json(&path));
    let answer = request.await.expect("an answer");
    served.end().await;
    let source = answer["provenance"]["source"].as_str().expect("a source");
    (
        answer["count"].as_i64().expect("a count"),
        source.to_owned(),
    )
}

async fn read_dead_letters(world: &World) -> Vec<DeadLetter> {
    let topic = Source::Plays.dead_letter_topic();
    let limit = FetchLimit {
        records: 1000,
        bytes: 1_000_000,
    };
    let spans = world.stores.log.spans(topic).await;
    if spans.expect("the log").is_empty() {
        return Vec::new();
    }
    let fetched = world.stores.log.fetch(topic, 0, 0, limit).await;
    let dead_letter_records = fetched.expect("dead letters").records.values;
    let dead_letter_records = dead_letter_records.iter().flatten();
    dead_letter_records
        .map(|bytes| serde_json::from_slice(bytes).expect("a dead letter"))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_layers_count_plays_of_avro() {
    let (state, options) = start_registry().await;
    let mut world = World::new().await;
    world.stores.schemas = Arc::new(Registry::new(&options).expect("a registry"));
    let good = avro_play(1, "c", "play");
    let records = [
        avro_play(1, "a", "play"),
        json_play("b"),
        good[..12].to_vec(),
        good.clone(),
        [good.clone(), avro_play(1, "x", "play")].concat(),
        avro_play(1, "y", "stream"),
        avro_play(2, "z", "play"),
        avro_play(3, "z", "play"),
        // The same event in another format.
        json_play("a"),
        avro_play(1, "d", "download"),
    ];
    append(&world, &records).await;
    world.catch_up().await;
    assert_eq!(fetch_count(&world).await, (4, "realtime".to_owned()));
    let dead_letter_records = read_dead_letters(&world).await;
    let words = [
        "schema 1",
        "more bytes follow",
        "kind: \"stream\"",
        "has the type PROTOBUF",
        "does not know the Avro schema 3",
    ];
    assert_eq!(
        dead_letter_records.len(),
        words.len(),
        "{dead_letter_records:?}"
    );
    for (record, word) in dead_letter_records.iter().zip(words) {
        assert!(record.reason.contains(word), "{}", record.reason);
        assert!(records.contains(&record.raw));
    }
    world
        .run(&batch::RunRequest::default())
        .await
        .expect("a run");
    assert_eq!(fetch_count(&world).await, (4, "batch".to_owned()));
    // A known schema is not requested again.
    let request_count = state.request_count.load(Ordering::SeqCst);
    append(&world, &[avro_play(1, "e", "play")]).await;
    world.catch_up().await;
    assert_eq!(fetch_count(&world).await.0, 5);
    assert!(state.request_count.load(Ordering::SeqCst) <= request_count + 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unavailable_registry_only_delays() {
    let (state, options) = start_registry().await;
    let mut world = World::new().await;
    world.stores.schemas = Arc::new(Registry::new(&options).expect("a registry"));
    append(&world, &[avro_play(1, "a", "play"), json_play("b")]).await;
    state.is_down.store(true, Ordering::SeqCst);
    let error = world
        .stores
        .schemas
        .fetch_writer_schemas(&BTreeSet::from([1]))
        .await;
    let error = error.expect_err("an unanswered request");
    assert_eq!(error.kind(), ErrorKind::Retry);
    assert!(error.to_string().contains("503"), "{error}");
    let up = async {
        tokio::time::sleep(Duration::from_millis(1000)).await;
        state.is_down.store(false, Ordering::SeqCst);
    };
    tokio::join!(world.catch_up(), up);
    assert_eq!(fetch_count(&world).await, (2, "realtime".to_owned()));
    assert_eq!(read_dead_letters(&world).await.len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_registry_plays_of_avro_are_dead_letters() {
    let mut world = World::new().await;
    // The last byte of the play is whitespace, which line input would trim.
    let with_amount = [&avro_play(1, "a", "play")[..], &avro_long(5)].concat();
    let with_amount = with_amount
        .strip_suffix(&[0, 10])
        .map(|head| [head, &[2, 10]].concat());
    let play = with_amount.expect("an error about the amount");
    append(&world, &[play, json_play("b")]).await;
    world.catch_up().await;
    assert_eq!(fetch_count(&world).await, (1, "realtime".to_owned()));
    let dead_letter_records = read_dead_letters(&world).await;
    assert_eq!(dead_letter_records.len(), 1);
    // Once the registry is available, the records can be decoded.
    let (_state, options) = start_registry().await;
    world.stores.schemas = Arc::new(Registry::new(&options).expect("a registry"));
    let lines = dead_letter_records
        .iter()
        .map(|record| (1, record.raw.as_slice()));
    let intake = world.intake(Source::Plays).await;
    let (schemas, mut reprocessed) = (&*world.stores.schemas, ReprocessedIds::default());
    let checked = intake
        .check_dead_letters(lines, &mut reprocessed, schemas)
        .await;
    let report = intake.reprocess(checked.expect("checking it")).await;
    assert_eq!(report.expect("reprocessing it").accepted, 1);
    // The first record is decodable by now, but the reprocessed copy is the one that counts.
    world.catch_up().await;
    assert_eq!(fetch_count(&world).await, (6, "realtime".to_owned()));
    let run = world.run(&batch::RunRequest::default()).await;
    run.expect("a run");
    assert_eq!(fetch_count(&world).await, (6, "batch".to_owned()));
    assert!(
        dead_letter_records[0].reason.contains("registry.url"),
        "{}",
        dead_letter_records[0].reason
    );
}

/// Reprocesses the dead letters of plays.
async fn reprocess(world: &World) -> u64 {
    let dead_letter_records = read_dead_letters(world).await;
    let lines = dead_letter_records
        .iter()
        .map(|record| (1, record.raw.as_slice()));
    let intake = world.intake(Source::Plays).await;
    let (schemas, mut reprocessed) = (&*world.stores.schemas, ReprocessedIds::default());
    let checked = intake
        .check_dead_letters(lines, &mut reprocessed, schemas)
        .await;
    let report = intake.reprocess(checked.expect("checking it")).await;
    report.expect("reprocessing it").accepted
}

/// A record whose schema is registered too late stays a dead letter for both layers when they read
/// it again. It counts once, after it is reprocessed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_schema_does_not_change_earlier_decisions() {
    for run_between in [false, true] {
        let (state, options) = start_registry().await;
        let mut world = World::new().await;
        let registry = || Arc::new(Registry::new(&options).expect("a registry"));
        world.stores.schemas = registry();
        append(&world, &[avro_play(3, "late", "play"), json_play("b")]).await;
        // The archiver leaves the dead letter to the speed layer.
        let archive = |world: &World| {
            let batch = world.batch();
            async move {
                let stop = CancellationToken::new();
                batch.archive(Source::Plays, true, stop).await
            }
        };
        let error = archive(&world)
            .await
            .expect_err("an undecided request")
            .to_string();
        assert!(error.contains("is not a dead letter yet"), "{error}");
        world.catch_up().await;
        assert_eq!(fetch_count(&world).await, (1, "realtime".to_owned()));
        if run_between {
            let archived = archive(&world).await.expect("an archive");
            assert_eq!((archived.events, archived.rejected), (1, 1));
        }
        state.has_schema_3.store(true, Ordering::SeqCst);
        // Another process, without a cached "unknown schema" result.
        world.stores.schemas = registry();
        if run_between {
            let run = world.run(&batch::RunRequest::default()).await;
            run.expect("a run");
        }
        assert_eq!(fetch_count(&world).await.0, 1);
        assert_eq!(reprocess(&world).await, 1);
        world.catch_up().await;
        assert_eq!(fetch_count(&world).await.0, 2);
        // A second reprocessing sends the same event.
        assert_eq!(reprocess(&world).await, 1);
        world.catch_up().await;
        assert_eq!(fetch_count(&world).await.0, 2);
        let run = world.run(&batch::RunRequest::default()).await;
        run.expect("a run");
        assert_eq!(fetch_count(&world).await, (2, "batch".to_owned()));
    }
}

/// Live state is lost before any run. The rebuild reads the record, which is decodable by now, and
/// still does not count it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuild_counts_no_dead_letter() {
    let (state, options) = start_registry().await;
    let mut world = World::new().await;
    let registry = || Arc::new(Registry::new(&options).expect("a registry"));
    world.stores.schemas = registry();
    append(&world, &[avro_play(3, "late", "play"), json_play("b")]).await;
    world.catch_up().await;
    assert_eq!(fetch_count(&world).await, (1, "realtime".to_owned()));
    state.has_schema_3.store(true, Ordering::SeqCst);
    world.delete_live_state();
    world.stores.schemas = registry();
    world.catch_up().await;
    assert_eq!(fetch_count(&world).await, (1, "realtime".to_owned()));
    world
        .run(&batch::RunRequest::default())
        .await
        .expect("a run");
    assert_eq!(fetch_count(&world).await, (1, "batch".to_owned()));
}

/// The absence of a schema is cached for a while.
#[tokio::test]
async fn a_producer_of_unknown_schemas_costs_few_requests() {
    let (state, options) = start_registry().await;
    let registry = Registry::new(&options).expect("a registry");
    for _ in 0..50 {
        let ids = BTreeSet::from([2, 3]);
        let writers = registry
            .fetch_writer_schemas(&ids)
            .await
            .expect("an answer");
        let error = writers.schema_error(&avro_play(3, "a", "play"));
        assert!(
            error.is_some_and(|reason| reason.contains("does not know")),
            "{error:?}"
        );
    }
    assert_eq!(state.request_count.load(Ordering::SeqCst), 2);
}

/// Changes a row, whose notification this program does not publish.
async fn apply_without_notification(world: &World, source: Source, row: &str) {
    let row = parse(source, row.as_bytes()).expect("a row");
    let entity_store = &world.stores.entities;
    let applied = entity_store.apply(&[row], NOW_MS).await.expect("applying");
    let ids: Vec<i64> = applied.notifications.iter().map(|n| n.id).collect();
    entity_store
        .remove_notifications(&ids)
        .await
        .expect("recording");
}

/// Other programs may send Avro notifications. A valid notification among dead letters is published
/// when it is reprocessed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn avro_notifications_are_ingested() {
    let (_state, options) = start_registry().await;
    let mut world = World::new().await;
    world.stores.schemas = Arc::new(Registry::new(&options).expect("a registry"));
    let effort = json!({
        "id": 1, "segment_id": 3, "athlete_id": 4, "activity_id": 1, "elapsed_time": 60,
        "started_at": "2026-03-01T10:00:00Z",
    });
    let authorization = json!({
        "id": 1, "application_id": 3, "athlete_id": 4, "created_at": "2026-03-01T10:00:00Z",
    });
    let application = json!({"id": 3, "name": "n", "owner": 1, "athlete_capacity": 9});
    world
        .ingest_into(Source::Applications, &[application.to_string()])
        .await;
    let group = Group { key: 3, member: 4 };
    let notification = |schema: u8| [vec![0, 0, 0, 0, schema], avro_long(3), avro_long(4)].concat();
    for (source, schema, row) in [
        (Source::Efforts, 4, effort),
        (Source::Authorizations, 5, authorization),
    ] {
        // Another program changes the row and publishes a notification.
        let intake = world.intake(source).await;
        apply_without_notification(&world, source, &row.to_string()).await;
        let cut = notification(schema)[..6].to_vec();
        let records = [
            cut.clone(),
            notification(schema),
            b"nothing".to_vec(),
            notification(1),
        ];
        let records = [NewRecords {
            partition: group.partition(PARTITIONS),
            keys: BinaryArray::from_iter_values(records.iter().map(|_| "3")),
            values: BinaryArray::from_iter_values(&records),
            headers: Vec::new(),
        }];
        let appended = world.stores.log.append(source.topic(), &records, NOW_MS);
        appended.await.expect("appending");
        let speed_report = world.catch_up_on(source).await;
        assert_eq!(
            (speed_report.events, speed_report.dead_letters),
            (1, 3),
            "{speed_report:?}"
        );
        let values = [cut, notification(schema), b"nothing".to_vec()];
        let lines = (0..).zip(values.iter().map(Vec::as_slice));
        let checked = intake.check_notifications(lines, &*world.stores.schemas);
        let checked = checked.await.expect("checking them");
        let report = intake.reprocess(checked).await.expect("reprocessing them");
        assert_eq!(report.accepted, 1);
        let reason = &report.rejected[1].reason;
        assert!(
            reason.starts_with(&format!("not a notification of {source}")),
            "{reason}"
        );
        assert_eq!((report.rejected.len(), report.rejected[1].line), (2, 2));
        assert_eq!(world.catch_up_on(source).await.events, 1);
    }
    let served = world.serve().await;
    for (path, field) in [
        ("/api/v1/boards/segments/3", "total"),
        ("/api/v1/applications/3", "connected_athletes"),
    ] {
        let client = served.client.clone();
        let response = tokio::task::spawn_blocking(move || client.get_json(path)).await;
        assert_eq!(response.expect("an answer")[field], 1, "{path}");
    }
    served.end().await;
}

#[tokio::test]
async fn a_wrong_registry_is_reported_and_loses_nothing() {
    let (_state, options) = start_registry().await;
    let ids = BTreeSet::from([1]);
    let sound = Registry::new(&options).expect("a registry");
    assert_eq!(
        sound.diagnostics().await.expect("an answer"),
        Vec::<String>::new()
    );
    let wrong_path = RegistryOptions {
        url: options.url.replace("/under", "/"),
        ..options.clone()
    };
    let wrong_password = RegistryOptions {
        password: "wrong".to_owned().into(),
        ..options.clone()
    };
    for (options, word) in [
        (wrong_path, "registry.url"),
        (wrong_password, "registry.user"),
    ] {
        let registry = Registry::new(&options).expect("a registry");
        let error = registry
            .fetch_writer_schemas(&ids)
            .await
            .expect_err("no schema");
        assert_eq!(error.kind(), ErrorKind::Fatal);
        assert!(error.to_string().contains(word), "{error}");
        assert!(!error.to_string().contains("wrong"), "{error}");
    }
    let unreachable = RegistryOptions {
        url: "http://127.0.0.1:1".to_owned(),
        ..options.clone()
    };
    let registry = Registry::new(&unreachable).expect("a registry");
    let error = registry
        .fetch_writer_schemas(&ids)
        .await
        .expect_err("an unreachable registry");
    assert_eq!(error.kind(), ErrorKind::Retry);
    for url in ["", "127.0.0.1:8081", "ftp://x", "http://me:secret@x"] {
        let options = RegistryOptions {
            url: url.to_owned(),
            ..options.clone()
        };
        let error = Registry::new(&options).expect_err(url).to_string();
        assert!(
            error.contains("registry.url") && !error.contains("secret"),
            "{error}"
        );
    }
}
