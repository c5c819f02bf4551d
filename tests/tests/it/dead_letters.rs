//! Dead letters from the outside: the command line and HTTP list, count and show the same ones.
//! Reprocessing counts nothing twice, on embedded stores and on servers.

use std::time::Duration;

use rdkafka::admin::{AdminOptions, NewPartitions};
use schemas::dead_letter::DeadLetter;
use schemas::source::Source;
use serde_json::{Value, json};
use stores::log::NewRecords;
use tests::http::Client;
use tests::installation::Installation;
use tests::process::{CONFIG, Server, run, run_ok};
use tests::servers::{delete_records, kafka_admin};
use tests::world::World;

/// Configuration of a speed layer with almost no duplicate window.
const SHORT_WINDOW: &str = "\nspeed.dedup_window_ms = 1\n";
const PATH: &str = "/api/v1/dead-letters";
/// Long enough to give two events different timestamps in milliseconds.
const CLOCK_TICK: Duration = Duration::from_millis(5);

fn play(event: &str) -> String {
    format!(
        r#"{{"event_id":"{event}","track_id":10,"owner_id":1,"kind":"play","at":"2026-03-01T00:00:00Z"}}"#
    )
}

fn new_dead_letter(origin: &str, reason: &str, raw: &[u8]) -> Vec<u8> {
    let letter = DeadLetter {
        source: "plays".to_owned(),
        reason: reason.to_owned(),
        origin: origin.to_owned(),
        at_ms: 1_772_712_000_000,
        raw: raw.to_vec(),
    };
    serde_json::to_vec(&letter).expect("JSON")
}

/// Appends to a partition of a source's dead-letter topic. Where the log has no clock, `at_ms` is
/// the time.
async fn append(world: &World, source: Source, partition: u32, at_ms: i64, values: &[Vec<u8>]) {
    let records = NewRecords {
        partition,
        keys: values.iter().map(|_| Some(b"x".as_slice())).collect(),
        values: values.iter().map(|value| Some(value.as_slice())).collect(),
        headers: Vec::new(),
    };
    let topic = source.dead_letter_topic();
    let appended = world.stores.log.append(topic, &[records], at_ms).await;
    appended.expect("appending");
    tokio::time::sleep(CLOCK_TICK).await;
}

/// Runs `dead-letters` with these arguments and `--json`; returns the document.
fn run_json(installation: &Installation, args: &[&str]) -> Value {
    let args = [&["dead-letters"], args, &["--json"]].concat();
    serde_json::from_str(&run_ok(installation.data(), &args)).expect("JSON")
}

fn field_values<'a>(dead_letters: &'a Value, field: &str) -> Vec<&'a str> {
    let dead_letters = dead_letters["dead_letters"]
        .as_array()
        .expect("dead letters");
    let field = dead_letters.iter().map(|letter| letter[field].as_str());
    field.collect::<Option<_>>().expect("texts")
}

/// Dead letters in three partitions of plays and in one of efforts: `a` is the oldest, `h` the
/// newest. `c` was recorded twice, and `d` is not a dead letter.
async fn append_dead_letters(installation: &Installation, world: &World) {
    let topic = Source::Plays.dead_letter_topic();
    if installation.is_embedded() {
        world
            .stores
            .log
            .ensure_topic(topic, 3)
            .await
            .expect("a topic");
        let efforts = Source::Efforts.dead_letter_topic();
        world
            .stores
            .log
            .ensure_topic(efforts, 1)
            .await
            .expect("a topic");
    } else {
        let name = installation.options().namespace.topic(topic);
        let partitions = NewPartitions::new(&name, 3);
        let created = kafka_admin()
            .create_partitions([&partitions], &AdminOptions::new())
            .await;
        created.expect("an answer")[0].as_ref().expect("partitions");
        // Until every client sees them.
        while world
            .stores
            .log
            .current_partition_count(topic)
            .await
            .expect("a number")
            < 3
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    let repeated_letter = new_dead_letter("c.jsonl:1", "line 12: \"x\" is bad", b"{\"c\":1}");
    for (at_ms, (partition, value)) in (1..).zip([
        (0, new_dead_letter("a.jsonl:1", "kind: missing", b"{}")),
        (
            2,
            new_dead_letter("b.jsonl:1", "line 3: \"y\" is bad", b"{\"b\":1}"),
        ),
        (1, repeated_letter.clone()),
        (1, b"garbage".to_vec()),
        (
            0,
            new_dead_letter("e.avro:1", "line 4: \"z\" is bad", &[0xff, 0, 0x7b]),
        ),
        (1, repeated_letter),
        (
            2,
            new_dead_letter("g.jsonl:1", "kind: missing", &vec![b'g'; 3_000]),
        ),
    ]) {
        append(world, Source::Plays, partition, at_ms, &[value]).await;
    }
    let of_efforts = new_dead_letter("h.jsonl:1", "kind: missing", b"{}");
    append(world, Source::Efforts, 0, 8, &[of_efforts]).await;
}

/// The command line lists dead letters.
fn check_list(installation: &Installation) {
    let listed = run_json(installation, &["list"]);
    let ids = [
        "backstitch.efforts.v1.dlq/0@0",
        "backstitch.plays.v1.dlq/2@1",
        "backstitch.plays.v1.dlq/1@2",
        "backstitch.plays.v1.dlq/0@1",
        "backstitch.plays.v1.dlq/1@1",
        "backstitch.plays.v1.dlq/2@0",
        "backstitch.plays.v1.dlq/0@0",
    ];
    assert_eq!(field_values(&listed, "id"), ids, "{listed}");
    assert_eq!(
        (&listed["total"], &listed["complete"]),
        (&json!(7), &json!(true))
    );
    let newest = run_json(installation, &["list", "--limit", "2"]);
    assert_eq!(field_values(&newest, "id"), ids[..2], "{newest}");
    assert_eq!(
        (&newest["total"], &newest["complete"]),
        (&json!(7), &json!(true))
    );
    let plays = run_json(
        installation,
        &["list", "--source", "plays", "--reason", "is bad"],
    );
    assert_eq!(
        field_values(&plays, "origin"),
        ["c.jsonl:1", "e.avro:1", "b.jsonl:1"]
    );
    let since = run_json(installation, &["list", "--since", "2026-03-06"]);
    assert_eq!(
        field_values(&since, "id").is_empty(),
        installation.is_embedded(),
        "a record that is not a dead letter has the time of the record: {since}"
    );
    let text = run_ok(
        installation.data(),
        &["dead-letters", "list", "--source", "efforts"],
    );
    assert!(
        text.ends_with("1 of 1 dead letters, newest first\n"),
        "{text}"
    );
}

/// The command line counts dead letters and shows one, and refuses unknown ids and sources.
fn check_count_and_show(installation: &Installation) {
    let counted = run_json(installation, &["count", "--source", "plays"]);
    let kinds = counted["counts"].as_array().expect("counts");
    assert_eq!(kinds[0]["kind"], "line N: \"…\" is bad", "{counted}");
    assert_eq!(kinds[0]["letters"], 3, "{counted}");
    assert_eq!(kinds[0]["example"], "backstitch.plays.v1.dlq/1@2");
    assert_eq!(
        (&counted["letters"], &counted["looked_at"]),
        (&json!(6), &json!(7))
    );
    let shown = run_json(installation, &["show", "backstitch.plays.v1.dlq/0@1"]);
    assert_eq!(shown["raw"], json!({"hex": "ff007b"}));
    assert_eq!(
        (&shown["raw_bytes"], &shown["broken"]),
        (&json!(3), &json!(false))
    );
    let text = run_ok(
        installation.data(),
        &["dead-letters", "show", "backstitch.plays.v1.dlq/1@1"],
    );
    assert!(
        text.contains("is not a dead letter") && text.ends_with("garbage\n"),
        "{text}"
    );
    let raw = [
        "dead-letters",
        "show",
        "--raw",
        "backstitch.plays.v1.dlq/0@1",
    ];
    let raw = run(installation.data(), &raw);
    assert_eq!(raw.stdout, [0xff, 0, 0x7b]);
    for (args, status, words) in [
        (
            &["show", "backstitch.plays.v1.dlq/0@9"][..],
            1,
            "does not exist",
        ),
        (
            &["show", "backstitch.clubs.v1.dlq/7@9"],
            1,
            "does not exist",
        ),
        (&["show", "plays@9"], 2, "TOPIC/PARTITION@OFFSET"),
        (&["list", "--source", "songs"], 2, "songs"),
        (
            &["replay", "--id", "backstitch.plays.v1.dlq/0@9"],
            1,
            "does not exist",
        ),
    ] {
        let output = run(installation.data(), &[&["dead-letters"], args].concat());
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {message}");
        assert!(
            message.contains(words) && message.lines().count() == 1,
            "{args:?}: {message}"
        );
    }
}

/// HTTP gives the same results.
fn check_http(installation: &Installation, client: &Client) {
    let listed = client.get_json(PATH);
    assert_eq!(
        field_values(&listed, "id"),
        field_values(&run_json(installation, &["list"]), "id")
    );
    assert_eq!(listed["cursor"], Value::Null);
    let large = &listed["dead_letters"][1];
    assert_eq!(large["raw_bytes"], 3_000);
    assert_eq!(large["raw"]["text"].as_str().map(str::len), Some(1_024));
    assert_eq!(large["at"], "2026-03-05T12:00:00Z");
    // A dead letter that was recorded twice comes once per page, and may come again on another
    // page.
    let (mut ids, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = client.get_json(&format!("{PATH}?limit=3{cursor}"));
        ids.extend(field_values(&page, "id").into_iter().map(str::to_owned));
        let Some(next) = page["cursor"].as_str() else {
            break;
        };
        cursor = format!("&cursor={next}");
    }
    ids.retain(|id| id != "backstitch.plays.v1.dlq/1@0");
    assert_eq!(ids, field_values(&listed, "id"));
    let counts = client.get_json(&format!("{PATH}/counts?source=plays"));
    let counted = run_json(installation, &["count", "--source", "plays"]);
    assert_eq!(
        (&counts["letters"], &counts["complete"]),
        (&json!(6), &json!(true))
    );
    assert_eq!(counts["counts"][0]["kind"], counted["counts"][0]["kind"]);
    assert_eq!(counts["counts"][0]["first_at"], "2026-03-05T12:00:00Z");
    let shown = client.get_json(&format!("{PATH}/backstitch.plays.v1.dlq%2F2@1"));
    assert_eq!(shown["raw"]["text"].as_str().map(str::len), Some(3_000));
    let (status, csv) = client.get(&format!("{PATH}?format=csv&reason=kind:%20missing"));
    assert_eq!((status, csv.lines().count()), (200, 4), "{csv}");
    let head = "id,source,kind,reason,origin,at,raw_bytes,raw_text,raw_hex,broken";
    assert_eq!(csv.lines().next(), Some(head));
    let decoded = client.get_json(&format!("{PATH}/backstitch.plays.v1.dlq/2@1"));
    assert_eq!(decoded, shown);
}

/// Requests that HTTP refuses, and the reasons.
fn check_http_errors(client: &Client) {
    for (path, status, words) in [
        ("/backstitch.plays.v1.dlq%2F0@9", 404, "unknown dead letter"),
        ("/plays", 400, "TOPIC/PARTITION@OFFSET"),
        ("?source=songs", 400, "songs"),
        ("?since=yesterday", 400, "yesterday"),
        ("?cursor=x", 400, "cursor"),
        ("?limit=0", 400, "limit"),
        ("/counts?limit=1", 400, "limit"),
    ] {
        let (actual_status, body) = client.get(&format!("{PATH}{path}"));
        assert_eq!(actual_status, status, "{path}: {body}");
        assert!(body.contains(words), "{path}: {body}");
    }
}

async fn command_and_http_agree(installation: Installation) {
    let world = installation.world().await;
    append_dead_letters(&installation, &world).await;
    check_list(&installation);
    check_count_and_show(&installation);
    let server = Server::start(installation.data(), &[]);
    check_http(&installation, &server.client);
    check_http_errors(&server.client);
    if !installation.is_embedded() {
        // The topic's retention deletes the oldest dead letters.
        let topic = installation
            .options()
            .namespace
            .topic(Source::Plays.dead_letter_topic());
        delete_records(&topic, &[1, 2, 0]).await;
        let remaining = run_json(&installation, &["list"]);
        let ids = [
            "backstitch.efforts.v1.dlq/0@0",
            "backstitch.plays.v1.dlq/2@1",
            "backstitch.plays.v1.dlq/1@2",
            "backstitch.plays.v1.dlq/0@1",
            "backstitch.plays.v1.dlq/2@0",
        ];
        assert_eq!(field_values(&remaining, "id"), ids, "{remaining}");
        let path = format!("{PATH}/backstitch.plays.v1.dlq%2F1@1");
        assert_eq!(server.client.get(&path).0, 404);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_and_http_agree_on_embedded_stores() {
    command_and_http_agree(Installation::embedded()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_and_http_agree_on_servers() {
    command_and_http_agree(Installation::on_servers()).await;
}

/// The owner's plays once the speed layer has reached the end of the log.
fn fetch_total(installation: &Installation) -> Value {
    run_ok(installation.data(), &["speed", "--until-caught-up"]);
    let server = Server::start(installation.data(), &[]);
    let path = "/api/v1/stats/plays/total?owner_id=1";
    server.client.get_json(path)["count"].clone()
}

/// HTTP reprocesses dead letters as the command does, all or one.
fn reprocess_over_http(installation: &Installation) {
    let server = Server::start(installation.data(), &[]);
    let replay = |query: &str| {
        let (status, body) = server.client.post(&format!("{PATH}/replay{query}"), b"");
        let body: Value = serde_json::from_str(&body).expect("JSON");
        (status, body)
    };
    let (_, preview) = replay("?dry_run=true");
    assert_eq!(preview, run_json(installation, &["replay", "--dry-run"]));
    let (status, report) = replay("?source=plays");
    assert_eq!(status, 200, "{report}");
    assert_eq!(report, run_json(installation, &["replay"]));
    let (_, report) = replay("?id=backstitch.plays.v1.dlq/0@5");
    assert_eq!(
        (&report["accepted"], &report["still_bad"]),
        (&json!(1), &json!(0))
    );
    for (query, status, words) in [
        (
            "?id=backstitch.plays.v1.dlq/0@99",
            404,
            "unknown dead letter",
        ),
        ("?id=plays", 400, "TOPIC/PARTITION@OFFSET"),
        (
            "?id=backstitch.plays.v1.dlq/0@5&source=plays",
            400,
            "exclude each other",
        ),
        ("?dry_run=maybe", 400, "dry_run"),
        ("?source=songs", 400, "songs"),
        ("?limit=5", 400, "limit"),
    ] {
        let (actual_status, body) = replay(query);
        assert_eq!(actual_status, status, "{query}: {body}");
        let detail = body["detail"].as_str().unwrap_or_default();
        assert!(detail.contains(words), "{query}: {body}");
    }
}

/// A reprocessed play, which may also have arrived another way meanwhile, counts once. This holds
/// at once if the speed layer remembers it, otherwise after the next batch run.
async fn reprocessed_plays_count_once(installation: Installation) {
    installation.ingest("plays", &format!("{}\n{}\n{{\n", play("a"), play("b")));
    {
        let world = installation.world().await;
        let good = new_dead_letter("f:1", "was bad", play("c").as_bytes());
        let dead_letters = [
            good.clone(),
            b"garbage".to_vec(),
            new_dead_letter("f:2", "came otherwise", play("a").as_bytes()),
            good,
            new_dead_letter("f:3", "was bad, too", play("d").as_bytes()),
        ];
        append(&world, Source::Plays, 0, 1, &dead_letters).await;
    }
    assert_eq!(fetch_total(&installation), 2);
    let preview = run_json(&installation, &["replay", "--dry-run"]);
    let counts = |replayed: &Value| {
        ["accepted", "still_bad", "broken"].map(|name| replayed[name].as_u64().expect("a number"))
    };
    assert_eq!(
        (counts(&preview), &preview["dry_run"]),
        ([3, 1, 1], &json!(true))
    );
    assert_eq!(fetch_total(&installation), 2, "nothing was written");
    let report = run_json(&installation, &["replay", "--reason", "bad, too"]);
    assert_eq!(counts(&report), [1, 0, 0]);
    assert_eq!(fetch_total(&installation), 3);
    let report = run_json(
        &installation,
        &["replay", "--id", "backstitch.plays.v1.dlq/0@5"],
    );
    assert_eq!(counts(&report), [1, 0, 0]);
    assert_eq!(fetch_total(&installation), 3);
    for _ in 0..2 {
        let replayed = run_json(&installation, &["replay"]);
        assert_eq!(counts(&replayed), [3, 1, 1], "{replayed}");
        assert_eq!(fetch_total(&installation), 4);
    }
    reprocess_over_http(&installation);
    assert_eq!(fetch_total(&installation), 4);
    let config = installation.data().join(CONFIG);
    let config_text = std::fs::read_to_string(&config).unwrap_or_default();
    std::fs::write(&config, config_text + SHORT_WINDOW).expect("a configuration");
    tokio::time::sleep(CLOCK_TICK).await;
    run_json(&installation, &["replay"]);
    assert_eq!(
        fetch_total(&installation),
        7,
        "three that are not remembered"
    );
    run_ok(installation.data(), &["batch", "run"]);
    assert_eq!(fetch_total(&installation), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reprocessed_plays_count_once_on_embedded_stores() {
    reprocessed_plays_count_once(Installation::embedded()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reprocessed_plays_count_once_on_servers() {
    reprocessed_plays_count_once(Installation::on_servers()).await;
}

/// Reprocessed rows do not overwrite later changes.
async fn reprocessed_rows_overwrite_nothing(installation: Installation) {
    let row = |id: i64, capacity: i64, version: i64| {
        format!(
            r#"{{"id":{id},"name":"n","owner":1,"athlete_capacity":{capacity},"version":{version}}}"#
        )
    };
    installation.ingest(
        "applications",
        &format!("{}\n{}\n", row(1, 9, 1), row(2, 9, 5)),
    );
    {
        let world = installation.world().await;
        let dead_letters = [row(1, 1, 1), row(1, 3, 2), row(2, 1, 4), row(3, 7, 0)];
        let dead_letters =
            dead_letters.map(|line| new_dead_letter("f:1", "was bad", line.as_bytes()));
        append(&world, Source::Applications, 0, 1, &dead_letters).await;
    }
    for (accepted, superseded) in [(3, 1), (2, 2)] {
        let preview = run_json(&installation, &["replay", "--dry-run"]);
        let replayed = run_json(&installation, &["replay"]);
        for report in [&preview, &replayed] {
            let counts = (&report["accepted"], &report["superseded"]);
            assert_eq!(counts, (&json!(accepted), &json!(superseded)), "{report}");
        }
        run_ok(installation.data(), &["speed", "--until-caught-up"]);
        let server = Server::start(installation.data(), &[]);
        for (id, capacity) in [(1, 3), (2, 9), (3, 7)] {
            let shown = server
                .client
                .get_json(&format!("/api/v1/applications/{id}"));
            assert_eq!(shown["athlete_capacity"], capacity, "{shown}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reprocessed_rows_overwrite_nothing_on_embedded_stores() {
    reprocessed_rows_overwrite_nothing(Installation::embedded()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reprocessed_rows_overwrite_nothing_on_servers() {
    reprocessed_rows_overwrite_nothing(Installation::on_servers()).await;
}
