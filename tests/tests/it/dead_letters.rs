//! Dead letters from the outside: the command line and HTTP list, count and show the same ones.
//! Reprocessing counts nothing twice, on embedded stores and on servers.

use std::time::Duration;

use rdkafka::admin::{AdminOptions, NewPartitions};
use schemas::dead_letter::DeadLetter;
use schemas::source::Source;
use serde_json::{Value, json};
use stores::log::NewRecords;
use tests::http::Client;
use tests::place::Place;
use tests::process::{CONFIG, Server, done, run};
use tests::servers::{delete_records, kafka_admin};
use tests::world::World;

/// Configuration of a speed layer with almost no duplicate window.
const FORGETFUL: &str = "\nspeed.dedup_window_ms = 1\n";
const PATH: &str = "/api/v1/dead-letters";
/// Long enough to give two events different timestamps in milliseconds.
const MOMENT: Duration = Duration::from_millis(5);

fn play(event: &str) -> String {
    format!(
        r#"{{"event_id":"{event}","track_id":10,"owner_id":1,"kind":"play","at":"2026-03-01T00:00:00Z"}}"#
    )
}

fn letter(origin: &str, reason: &str, raw: &[u8]) -> Vec<u8> {
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
    tokio::time::sleep(MOMENT).await;
}

/// The same command with `--json`, as one document.
fn told(place: &Place, args: &[&str]) -> Value {
    let args = [&["dead-letters"], args, &["--json"]].concat();
    serde_json::from_str(&done(place.data(), &args)).expect("JSON")
}

fn of<'a>(letters: &'a Value, field: &str) -> Vec<&'a str> {
    let letters = letters["dead_letters"].as_array().expect("letters");
    let field = letters.iter().map(|letter| letter[field].as_str());
    field.collect::<Option<_>>().expect("texts")
}

/// Dead letters in three partitions of plays and in one of efforts: `a` is the oldest, `h` the
/// newest. `c` was recorded twice, and `d` is not a dead letter.
async fn some_letters(place: &Place, world: &World) {
    let topic = Source::Plays.dead_letter_topic();
    if place.is_embedded() {
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
        let name = place.options().namespace.topic(topic);
        let more = NewPartitions::new(&name, 3);
        let made = kafka_admin()
            .create_partitions([&more], &AdminOptions::new())
            .await;
        made.expect("an answer")[0].as_ref().expect("partitions");
        // Until every client sees them.
        while world
            .stores
            .log
            .partitions_now(topic)
            .await
            .expect("a number")
            < 3
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    let noted = letter("c.jsonl:1", "line 12: \"x\" is bad", b"{\"c\":1}");
    for (at_ms, (partition, value)) in (1..).zip([
        (0, letter("a.jsonl:1", "kind: missing", b"{}")),
        (2, letter("b.jsonl:1", "line 3: \"y\" is bad", b"{\"b\":1}")),
        (1, noted.clone()),
        (1, b"garbage".to_vec()),
        (
            0,
            letter("e.avro:1", "line 4: \"z\" is bad", &[0xff, 0, 0x7b]),
        ),
        (1, noted),
        (2, letter("g.jsonl:1", "kind: missing", &vec![b'g'; 3_000])),
    ]) {
        append(world, Source::Plays, partition, at_ms, &[value]).await;
    }
    let of_efforts = letter("h.jsonl:1", "kind: missing", b"{}");
    append(world, Source::Efforts, 0, 8, &[of_efforts]).await;
}

/// The command line lists dead letters.
fn lists(place: &Place) {
    let all = told(place, &["list"]);
    let ids = [
        "backstitch.efforts.v1.dlq/0@0",
        "backstitch.plays.v1.dlq/2@1",
        "backstitch.plays.v1.dlq/1@2",
        "backstitch.plays.v1.dlq/0@1",
        "backstitch.plays.v1.dlq/1@1",
        "backstitch.plays.v1.dlq/2@0",
        "backstitch.plays.v1.dlq/0@0",
    ];
    assert_eq!(of(&all, "id"), ids, "{all}");
    assert_eq!((&all["total"], &all["complete"]), (&json!(7), &json!(true)));
    let two = told(place, &["list", "--limit", "2"]);
    assert_eq!(of(&two, "id"), ids[..2], "{two}");
    assert_eq!((&two["total"], &two["complete"]), (&json!(7), &json!(true)));
    let plays = told(place, &["list", "--source", "plays", "--reason", "is bad"]);
    assert_eq!(of(&plays, "origin"), ["c.jsonl:1", "e.avro:1", "b.jsonl:1"]);
    let since = told(place, &["list", "--since", "2026-03-06"]);
    assert_eq!(
        of(&since, "id").is_empty(),
        place.is_embedded(),
        "what is no letter is as old as its record: {since}"
    );
    let text = done(
        place.data(),
        &["dead-letters", "list", "--source", "efforts"],
    );
    assert!(
        text.ends_with("1 of 1 dead letters, newest first\n"),
        "{text}"
    );
}

/// The command line counts dead letters and shows one, and refuses unknown ids and sources.
fn counts_and_shows(place: &Place) {
    let counted = told(place, &["count", "--source", "plays"]);
    let kinds = counted["counts"].as_array().expect("counts");
    assert_eq!(kinds[0]["kind"], "line N: \"…\" is bad", "{counted}");
    assert_eq!(kinds[0]["letters"], 3, "{counted}");
    assert_eq!(kinds[0]["example"], "backstitch.plays.v1.dlq/1@2");
    assert_eq!(
        (&counted["letters"], &counted["looked_at"]),
        (&json!(6), &json!(7))
    );
    let shown = told(place, &["show", "backstitch.plays.v1.dlq/0@1"]);
    assert_eq!(shown["raw"], json!({"hex": "ff007b"}));
    assert_eq!(
        (&shown["raw_bytes"], &shown["broken"]),
        (&json!(3), &json!(false))
    );
    let text = done(
        place.data(),
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
    let raw = run(place.data(), &raw);
    assert_eq!(raw.stdout, [0xff, 0, 0x7b]);
    for (args, status, words) in [
        (
            &["show", "backstitch.plays.v1.dlq/0@9"][..],
            1,
            "there is none",
        ),
        (&["show", "backstitch.clubs.v1.dlq/7@9"], 1, "there is none"),
        (&["show", "plays@9"], 2, "TOPIC/PARTITION@OFFSET"),
        (&["list", "--source", "songs"], 2, "songs"),
        (
            &["replay", "--id", "backstitch.plays.v1.dlq/0@9"],
            1,
            "there is none",
        ),
    ] {
        let output = run(place.data(), &[&["dead-letters"], args].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {said}");
        assert!(
            said.contains(words) && said.lines().count() == 1,
            "{args:?}: {said}"
        );
    }
}

/// HTTP gives the same results.
fn by_http(place: &Place, client: &Client) {
    let all = client.json(PATH);
    assert_eq!(of(&all, "id"), of(&told(place, &["list"]), "id"));
    assert_eq!(all["cursor"], Value::Null);
    let large = &all["dead_letters"][1];
    assert_eq!(large["raw_bytes"], 3_000);
    assert_eq!(large["raw"]["text"].as_str().map(str::len), Some(1_024));
    assert_eq!(large["at"], "2026-03-05T12:00:00Z");
    // A dead letter that was recorded twice comes once per page, and may come again on another
    // page.
    let (mut ids, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = client.json(&format!("{PATH}?limit=3{cursor}"));
        ids.extend(of(&page, "id").into_iter().map(str::to_owned));
        let Some(next) = page["cursor"].as_str() else {
            break;
        };
        cursor = format!("&cursor={next}");
    }
    ids.retain(|id| id != "backstitch.plays.v1.dlq/1@0");
    assert_eq!(ids, of(&all, "id"));
    let counts = client.json(&format!("{PATH}/counts?source=plays"));
    let told = told(place, &["count", "--source", "plays"]);
    assert_eq!(
        (&counts["letters"], &counts["complete"]),
        (&json!(6), &json!(true))
    );
    assert_eq!(counts["counts"][0]["kind"], told["counts"][0]["kind"]);
    assert_eq!(counts["counts"][0]["first_at"], "2026-03-05T12:00:00Z");
    let shown = client.json(&format!("{PATH}/backstitch.plays.v1.dlq%2F2@1"));
    assert_eq!(shown["raw"]["text"].as_str().map(str::len), Some(3_000));
    let (status, csv) = client.get(&format!("{PATH}?format=csv&reason=kind:%20missing"));
    assert_eq!((status, csv.lines().count()), (200, 4), "{csv}");
    let head = "id,source,kind,reason,origin,at,raw_bytes,raw_text,raw_hex,broken";
    assert_eq!(csv.lines().next(), Some(head));
    let decoded = client.json(&format!("{PATH}/backstitch.plays.v1.dlq/2@1"));
    assert_eq!(decoded, shown);
}

/// Requests that HTTP refuses, and the reasons.
fn refuses(client: &Client) {
    for (path, status, words) in [
        ("/backstitch.plays.v1.dlq%2F0@9", 404, "unknown dead letter"),
        ("/plays", 400, "TOPIC/PARTITION@OFFSET"),
        ("?source=songs", 400, "songs"),
        ("?since=yesterday", 400, "yesterday"),
        ("?cursor=x", 400, "cursor"),
        ("?limit=0", 400, "limit"),
        ("/counts?limit=1", 400, "limit"),
    ] {
        let (got, body) = client.get(&format!("{PATH}{path}"));
        assert_eq!(got, status, "{path}: {body}");
        assert!(body.contains(words), "{path}: {body}");
    }
}

async fn letters_are_told_alike(place: Place) {
    let world = place.world().await;
    some_letters(&place, &world).await;
    lists(&place);
    counts_and_shows(&place);
    let server = Server::start(place.data(), &[]);
    by_http(&place, &server.client);
    refuses(&server.client);
    if !place.is_embedded() {
        // The topic's retention deletes the oldest dead letters.
        let topic = place
            .options()
            .namespace
            .topic(Source::Plays.dead_letter_topic());
        delete_records(&topic, &[1, 2, 0]).await;
        let rest = told(&place, &["list"]);
        let ids = [
            "backstitch.efforts.v1.dlq/0@0",
            "backstitch.plays.v1.dlq/2@1",
            "backstitch.plays.v1.dlq/1@2",
            "backstitch.plays.v1.dlq/0@1",
            "backstitch.plays.v1.dlq/2@0",
        ];
        assert_eq!(of(&rest, "id"), ids, "{rest}");
        let path = format!("{PATH}/backstitch.plays.v1.dlq%2F1@1");
        assert_eq!(server.client.get(&path).0, 404);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_are_told_alike_on_embedded_stores() {
    letters_are_told_alike(Place::embedded()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_are_told_alike_on_servers() {
    letters_are_told_alike(Place::on_servers()).await;
}

/// The owner's plays once the speed layer has reached the end of the log.
fn total(place: &Place) -> Value {
    done(place.data(), &["speed", "--until-caught-up"]);
    let server = Server::start(place.data(), &[]);
    let total = "/api/v1/stats/plays/total?owner_id=1";
    server.client.json(total)["count"].clone()
}

/// HTTP reprocesses dead letters as the command does, all or one.
fn replayed_by_http(place: &Place) {
    let server = Server::start(place.data(), &[]);
    let replay = |query: &str| {
        let (status, body) = server.client.post(&format!("{PATH}/replay{query}"), b"");
        let body: Value = serde_json::from_str(&body).expect("JSON");
        (status, body)
    };
    let (_, outlook) = replay("?dry_run=true");
    assert_eq!(outlook, told(place, &["replay", "--dry-run"]));
    let (status, all) = replay("?source=plays");
    assert_eq!(status, 200, "{all}");
    assert_eq!(all, told(place, &["replay"]));
    let (_, one) = replay("?id=backstitch.plays.v1.dlq/0@5");
    assert_eq!(
        (&one["accepted"], &one["still_bad"]),
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
        let (got, body) = replay(query);
        assert_eq!(got, status, "{query}: {body}");
        let detail = body["detail"].as_str().unwrap_or_default();
        assert!(detail.contains(words), "{query}: {body}");
    }
}

/// A reprocessed play, which may also have arrived another way meanwhile, counts once. This holds
/// at once if the speed layer remembers it, otherwise after the next batch run.
async fn plays_count_once(place: Place) {
    place.ingest("plays", &format!("{}\n{}\n{{\n", play("a"), play("b")));
    {
        let world = place.world().await;
        let good = letter("f:1", "was bad", play("c").as_bytes());
        let letters = [
            good.clone(),
            b"garbage".to_vec(),
            letter("f:2", "came otherwise", play("a").as_bytes()),
            good,
            letter("f:3", "was bad, too", play("d").as_bytes()),
        ];
        append(&world, Source::Plays, 0, 1, &letters).await;
    }
    assert_eq!(total(&place), 2);
    let outlook = told(&place, &["replay", "--dry-run"]);
    let counts = |replayed: &Value| {
        ["accepted", "still_bad", "broken"].map(|name| replayed[name].as_u64().expect("a number"))
    };
    assert_eq!(
        (counts(&outlook), &outlook["dry_run"]),
        ([3, 1, 1], &json!(true))
    );
    assert_eq!(total(&place), 2, "nothing was written");
    let one = told(&place, &["replay", "--reason", "bad, too"]);
    assert_eq!(counts(&one), [1, 0, 0]);
    assert_eq!(total(&place), 3);
    let one = told(&place, &["replay", "--id", "backstitch.plays.v1.dlq/0@5"]);
    assert_eq!(counts(&one), [1, 0, 0]);
    assert_eq!(total(&place), 3);
    for _ in 0..2 {
        let replayed = told(&place, &["replay"]);
        assert_eq!(counts(&replayed), [3, 1, 1], "{replayed}");
        assert_eq!(total(&place), 4);
    }
    replayed_by_http(&place);
    assert_eq!(total(&place), 4);
    let config = place.data().join(CONFIG);
    let before = std::fs::read_to_string(&config).unwrap_or_default();
    std::fs::write(&config, before + FORGETFUL).expect("a configuration");
    tokio::time::sleep(MOMENT).await;
    told(&place, &["replay"]);
    assert_eq!(total(&place), 7, "three that are not remembered");
    done(place.data(), &["batch", "run"]);
    assert_eq!(total(&place), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plays_count_once_on_embedded_stores() {
    plays_count_once(Place::embedded()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plays_count_once_on_servers() {
    plays_count_once(Place::on_servers()).await;
}

/// Reprocessed rows do not overwrite later changes.
async fn rows_stay_as_they_are(place: Place) {
    let row = |id: i64, capacity: i64, version: i64| {
        format!(
            r#"{{"id":{id},"name":"n","owner":1,"athlete_capacity":{capacity},"version":{version}}}"#
        )
    };
    place.ingest(
        "applications",
        &format!("{}\n{}\n", row(1, 9, 1), row(2, 9, 5)),
    );
    {
        let world = place.world().await;
        let letters = [row(1, 1, 1), row(1, 3, 2), row(2, 1, 4), row(3, 7, 0)];
        let letters = letters.map(|line| letter("f:1", "was bad", line.as_bytes()));
        append(&world, Source::Applications, 0, 1, &letters).await;
    }
    for (accepted, superseded) in [(3, 1), (2, 2)] {
        let outlook = told(&place, &["replay", "--dry-run"]);
        let replayed = told(&place, &["replay"]);
        for told in [&outlook, &replayed] {
            let counts = (&told["accepted"], &told["superseded"]);
            assert_eq!(counts, (&json!(accepted), &json!(superseded)), "{told}");
        }
        done(place.data(), &["speed", "--until-caught-up"]);
        let server = Server::start(place.data(), &[]);
        for (id, capacity) in [(1, 3), (2, 9), (3, 7)] {
            let shown = server.client.json(&format!("/api/v1/applications/{id}"));
            assert_eq!(shown["athlete_capacity"], capacity, "{shown}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_stay_as_they_are_on_embedded_stores() {
    rows_stay_as_they_are(Place::embedded()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_stay_as_they_are_on_servers() {
    rows_stay_as_they_are(Place::on_servers()).await;
}
