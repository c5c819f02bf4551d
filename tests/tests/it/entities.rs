//! Entities through processes: killed at any point, with bad input, and with a capacity under many
//! requests.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use futures::TryStreamExt;
use jiff::civil::date;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use schemas::entities::parse;
use schemas::source::Source;
use serde_json::{Value, json};
use stores::Stores;
use tests::conformance::entity_rows::effort_rows;
use tests::expected_boards::{BoardQuery, ExpectedEntities};
use tests::http::Client;
use tests::process::{Process, Server, run_ok, run_with_input};

const SEGMENTS: i64 = 3;
const ATHLETES: i64 = 200;

/// Efforts, edits and deletes; deterministic for a seed.
fn efforts(seed: u64, rows: usize, truth: &mut ExpectedEntities) -> String {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut text = String::new();
    for _ in 0..rows {
        let id = rng.random_range(1..10_000_i64);
        let mut row = json!({
            "id": id,
            "segment_id": 1 + id % SEGMENTS,
            "athlete_id": 1 + (id / SEGMENTS) % ATHLETES,
            "activity_id": id,
            "elapsed_time": rng.random_range(1..50),
            "started_at": format!("2026-0{}-1{}T10:00:00Z", rng.random_range(1..9), rng.random_range(0..9)),
            "version": rng.random_range(0..3),
        });
        if rng.random_bool(0.1) {
            row["deleted"] = json!(true);
        }
        let line = row.to_string();
        assert!(truth.apply_line("efforts", &line));
        writeln!(text, "{line}").expect("writing");
    }
    text
}

fn compare_boards(client: &Client, truth: &ExpectedEntities) {
    for segment in 1..=SEGMENTS {
        for (board, window) in [("overall", "all"), ("overall", "month"), ("overall", "day")] {
            let board_query = BoardQuery {
                segment,
                board: board.to_owned(),
                window: window.to_owned(),
                date: date(2026, 3, 14),
                club: None,
                following: None,
            };
            let path = format!(
                "/api/v1/boards/segments/{segment}?{}&limit=1000",
                board_query.query()
            );
            let answer = client.get_json(&path);
            assert_eq!(
                answer["entries"],
                json!(truth.board(&board_query)),
                "{path}"
            );
        }
        let counts = client.get_json(&format!("/api/v1/segments/{segment}/counts"));
        let (efforts, athletes) = truth.counts(segment);
        assert_eq!(counts["efforts"], efforts);
        assert_eq!(counts["athletes"], athletes);
    }
}

/// Every process is killed repeatedly, also between a commit and its notification. Then the speed
/// layer catches up. No row is ingested again, because that would repeat its notification.
#[test]
fn kills_lose_no_entities() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let mut truth = ExpectedEntities::default();
    // The rows of one file are committed in one transaction.
    let mut ingest = vec!["ingest".to_owned(), "efforts".to_owned()];
    for seed in 0..30 {
        let file = folder.path().join(format!("{seed}.jsonl"));
        std::fs::write(&file, efforts(seed, 1_000, &mut truth)).expect("a file");
        ingest.push(file.to_string_lossy().into_owned());
    }
    let ingest: Vec<&str> = ingest.iter().map(String::as_str).collect();
    // Some are killed after they have committed rows, however busy the machine is.
    let started = Instant::now();
    run_ok(&folder.path().join("other"), &ingest[..3]);
    let ingest_ms = u64::try_from(2 * started.elapsed().as_millis()).expect("short");
    let mut rng = SmallRng::seed_from_u64(7);
    let mut running = 0;
    for round in 0..24 {
        let args: &[&str] = match round % 6 {
            0..=2 => &ingest,
            3 => &["speed", "--source", "efforts"],
            4 => &["batch", "run"],
            _ => &["snapshot", "--source", "efforts"],
        };
        let process = Process::start(&data, args);
        #[expect(
            clippy::disallowed_methods,
            reason = "a process is killed after some time"
        )]
        std::thread::sleep(Duration::from_millis(
            rng.random_range(30..ingest_ms.max(900)),
        ));
        running += usize::from(process.kill());
    }
    assert!(running > 5, "only {running} processes were killed at work");
    run_ok(&data, &["speed", "--until-caught-up"]);
    assert_eq!(count_pending(&data), 0);
    let server = Server::start(&data, &[]);
    let stored = stored_efforts(&data);
    assert!(stored.counts(1).0 > 0, "no rows were ingested");
    compare_boards(&server.client, &stored);
    run_ok(&data, &["batch", "run"]);
    compare_boards(&server.client, &stored);

    run_ok(&data, &ingest);
    let edits = efforts(100, 400, &mut truth);
    commit_without_notifications(&data, &edits.lines().collect::<Vec<_>>());
    assert!(count_pending(&data) > 100, "too few pending notifications");
    run_ok(&data, &["speed", "--until-caught-up"]);
    assert_eq!(count_pending(&data), 0);
    // The last row of the newest version remains.
    compare_boards(&server.client, &truth);
    run_ok(&data, &["batch", "run"]);
    compare_boards(&server.client, &truth);
    run_ok(&data, &["batch", "run", "--full"]);
    compare_boards(&server.client, &truth);
}

/// A running speed layer soon publishes the notifications that others left.
#[test]
fn a_running_speed_layer_publishes_leftovers() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let mut truth = ExpectedEntities::default();
    let efforts_text = efforts(1, 50, &mut truth);
    commit_without_notifications(&data, &efforts_text.lines().collect::<Vec<_>>());
    let _speed = Process::start(&data, &["speed"]);
    let is_published = || {
        let deadline = Instant::now() + Duration::from_secs(120);
        while count_pending(&data) > 0 && Instant::now() < deadline {
            #[expect(clippy::disallowed_methods, reason = "another process works")]
            std::thread::sleep(Duration::from_millis(100));
        }
        count_pending(&data) == 0
    };
    assert!(is_published(), "earlier notifications were not published");
    let edits = efforts(2, 50, &mut truth);
    commit_without_notifications(&data, &edits.lines().collect::<Vec<_>>());
    assert!(is_published(), "later notifications were not published");
    run_ok(&data, &["speed", "--until-caught-up"]);
    compare_boards(&Server::start(&data, &[]).client, &truth);
}

/// The stored efforts, as if read from lines.
fn stored_efforts(data: &Path) -> ExpectedEntities {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let rows = runtime.block_on(async {
        let stores = Stores::embedded(data).await.expect("the stores");
        let dump = stores.entities.dump(Source::Efforts, None, 1000).await;
        let dump = dump.expect("a dump").try_collect::<Vec<_>>().await;
        dump.expect("rows")
    });
    let mut truth = ExpectedEntities::default();
    for row in rows.iter().flat_map(effort_rows) {
        let started_at = jiff::Timestamp::from_microsecond(row.started_at_us).expect("a time");
        let line = json!({
            "id": row.id, "segment_id": row.segment_id, "athlete_id": row.athlete_id,
            "activity_id": row.activity_id, "elapsed_time": row.elapsed_time_s,
            "started_at": started_at.to_string(), "deleted": row.is_deleted,
        });
        assert!(truth.apply_line("efforts", &line.to_string()));
    }
    truth
}

/// Commits rows without their notifications, as a process that is killed between the two.
fn commit_without_notifications(data: &Path, lines: &[&str]) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let stores = Stores::embedded(data).await.expect("the stores");
        let rows = lines
            .iter()
            .map(|line| parse(Source::Efforts, line.as_bytes()));
        let rows: Vec<_> = rows.collect::<Result<_, _>>().expect("rows");
        stores.entities.apply(&rows, 1).await.expect("applying");
    });
}

fn count_pending(data: &Path) -> u64 {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let stores = Stores::embedded(data).await.expect("the stores");
        let efforts = stores.entities.outbox_status(Source::Efforts).await;
        let authorizations = stores.entities.outbox_status(Source::Authorizations).await;
        efforts.expect("the outbox").notifications
            + authorizations.expect("the outbox").notifications
    })
}

/// A failed `ingest` still reports the ingested rows by file.
#[test]
fn a_failed_ingest_reports_what_it_ingested() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let files = [path("a.jsonl"), path("b.parquet"), path("c.jsonl")];
    let good = "{\"club_id\":1,\"athlete_id\":1}\n{\"club_id\":1,\"athlete_id\":2}\nbad\n";
    for (file, text) in files.iter().zip([good, "no Parquet", good]) {
        std::fs::write(file, text).expect("a file");
    }
    let mut args = vec!["ingest", "clubs", "--json"];
    args.extend(files.iter().map(String::as_str));
    let output = run_with_input(&data, &args, b"");
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("b.parquet"), "{error}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (&report["accepted"], &report["rejected"]),
        (&json!(2), &json!(1))
    );
    let expected = json!([
        {"input": files[0], "accepted": 2, "rejected": 1, "last_line": 3, "is_complete": true},
        {"input": files[1], "accepted": 0, "rejected": 0, "last_line": 0, "is_complete": false},
    ]);
    assert_eq!(report["inputs"], expected);
}

#[test]
#[expect(clippy::too_many_lines, reason = "mostly lines of input")]
fn bad_rows_are_dead_letters_with_reasons() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let good = [
        (
            "athletes",
            r#"{"id":1,"gender":"F","birth_year":1990,"weight_kg":60,"unknown":[1]}"#,
        ),
        ("clubs", r#"{"club_id":1,"athlete_id":1}"#),
        ("follows", r#"{"follower_id":1,"followed_id":2}"#),
        ("applications", r#"{"id":7,"name":"n","owner":"o"}"#),
        (
            "authorizations",
            r#"{"id":1,"application_id":7,"athlete_id":1,"created_at":"2026-01-01T00:00:00Z"}"#,
        ),
        (
            "efforts",
            r#"{"id":1,"segment_id":1,"athlete_id":1,"activity_id":1,"elapsed_time":60,"started_at":"2026-01-01T00:00:00Z"}"#,
        ),
    ];
    let bad = [
        ("athletes", r#"{"id":1,"gender":"W"}"#, "gender"),
        ("athletes", r#"{"id":"1"}"#, "id"),
        ("clubs", r#"{"club_id":1}"#, "athlete_id"),
        ("follows", r#"{"followed_id":2}"#, "follower_id"),
        (
            "applications",
            r#"{"id":7,"name":"n","owner":"o","athlete_capacity":-1}"#,
            "athlete_capacity",
        ),
        (
            "authorizations",
            r#"{"id":1,"application_id":8,"athlete_id":1,"created_at":"2026-01-01T00:00:00Z"}"#,
            "application_id",
        ),
        (
            "authorizations",
            r#"{"id":2,"application_id":7,"athlete_id":1,"created_at":"yesterday"}"#,
            "created_at",
        ),
        (
            "efforts",
            r#"{"id":1,"segment_id":2,"athlete_id":1,"activity_id":1,"elapsed_time":60,"started_at":"2026-01-01T00:00:00Z"}"#,
            "segment_id",
        ),
        (
            "efforts",
            r#"{"id":2,"segment_id":2,"athlete_id":1,"activity_id":1,"elapsed_time":0,"started_at":"2026-01-01T00:00:00Z"}"#,
            "elapsed_time",
        ),
        (
            "efforts",
            r#"{"id":2,"segment_id":2,"athlete_id":1,"activity_id":1,"elapsed_time":6,"started_at":"2026-01-01T00:00:00Z","tz":"Mars"}"#,
            "tz",
        ),
        (
            "efforts",
            r#"{"id":2,"segment_id":2,"athlete_id":1,"activity_id":1,"elapsed_time":6,"started_at":"2026-01-01T00:00:00Z","visibility":"friends"}"#,
            "visibility",
        ),
        ("efforts", "{", "JSON"),
    ];
    for (source, line) in good {
        let mut input = format!("\n{line}\n\n");
        let mut expected = Vec::new();
        for (_, line, field) in bad.iter().filter(|(bad_source, ..)| *bad_source == source) {
            input.push_str(line);
            input.push('\n');
            expected.push(*field);
        }
        let output = run_with_input(&data, &["ingest", source, "-", "--json"], input.as_bytes());
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{source}: {err}");
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(report["accepted"], 1, "{report}");
        assert_eq!(report["rejected"], expected.len(), "{report}");
        let listed = run_ok(
            &data,
            &["dead-letters", "list", "--source", source, "--json"],
        );
        let listed: Value = serde_json::from_str(&listed).expect("JSON");
        let listed_letters = listed["dead_letters"].as_array().expect("dead letters");
        assert_eq!(listed_letters.len(), expected.len(), "{listed}");
        // Newest first.
        for (listed_letter, field) in listed_letters.iter().zip(expected.iter().rev()) {
            let reason = listed_letter["reason"].as_str().expect("a reason");
            assert!(
                reason.contains(field),
                "{source}: {reason} does not name {field}"
            );
        }
    }
    // An effort that is rejected now may be accepted later; its segment has not changed.
    run_ok(&data, &["speed", "--until-caught-up"]);
    let server = Server::start(&data, &[]);
    let counts = server.client.get_json("/api/v1/segments/1/counts");
    assert_eq!(
        (&counts["efforts"], &counts["athletes"]),
        (&json!(1), &json!(1))
    );
    for (path, status, word) in [
        ("/api/v1/boards/segments/x", 400, "segment_id"),
        ("/api/v1/boards/routes/1", 404, "segments"),
        ("/api/v1/boards/segments/1?board=age:30", 400, "board"),
        ("/api/v1/boards/segments/1?window=week", 400, "window"),
        ("/api/v1/boards/segments/1?limit=1001", 400, "limit"),
        ("/api/v1/boards/segments/1?offset=-1", 400, "offset"),
        (
            "/api/v1/boards/segments/1?window=day&date=2026-02-30",
            400,
            "date",
        ),
        ("/api/v1/boards/segments/1?club_id=a", 400, "club_id"),
        ("/api/v1/boards/segments/1/athletes/2", 404, "not-on-board"),
        (
            "/api/v1/boards/segments/1/athletes/1?around=501",
            400,
            "around",
        ),
        ("/api/v1/applications/8", 404, "unknown-application"),
        ("/api/v1/segments/1/counts?x=1", 400, "x"),
    ] {
        let (actual_status, body) = server.client.get(path);
        assert_eq!(actual_status, status, "{path}: {body}");
        assert!(body.contains(word), "{path}: {body}");
    }
    let empty = server
        .client
        .get_json("/api/v1/boards/segments/99?offset=5");
    assert_eq!(
        (&empty["total"], &empty["entries"]),
        (&json!(0), &json!([]))
    );
    let past = server.client.get_json("/api/v1/boards/segments/1?offset=5");
    assert_eq!((&past["total"], &past["entries"]), (&json!(1), &json!([])));
}

#[test]
#[expect(clippy::too_many_lines, reason = "one scenario")]
fn many_requests_never_exceed_a_capacity() {
    const REQUESTS: usize = 200;
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let app = r#"{"id":7,"name":"Pacer","owner":42,"athlete_capacity":15}"#;
    let output = run_with_input(&data, &["ingest", "applications", "-"], app.as_bytes());
    assert!(output.status.success());
    let mut lines = String::new();
    // Three athletes are connected before, one of them twice; a fourth has left.
    for (id, athlete, revoked) in [
        (1, 1, false),
        (2, 1, false),
        (3, 2, false),
        (4, 3, false),
        (5, 4, true),
    ] {
        let mut row = json!({"id": id, "application_id": 7, "athlete_id": athlete, "created_at": "2026-01-01T00:00:00Z"});
        if revoked {
            row["revoked_at"] = json!("2026-01-02T00:00:00Z");
        }
        writeln!(lines, "{row}").expect("writing");
    }
    let output = run_with_input(&data, &["ingest", "authorizations", "-"], lines.as_bytes());
    assert!(output.status.success());
    let server = Server::start(&data, &[]);
    let client = &server.client;
    let answers: Vec<(i64, u16, String)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..REQUESTS)
            .map(|n| {
                let client = client.clone();
                scope.spawn(move || {
                    let athlete = i64::try_from(n).expect("small") + 1;
                    let body = json!({"athlete_id": athlete}).to_string();
                    let path = "/api/v1/applications/7/authorizations";
                    let (status, text) = client.post(path, body.as_bytes());
                    (athlete, status, text)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("an answer"))
            .collect()
    });
    let count_status = |status: u16| answers.iter().filter(|answer| answer.1 == status).count();
    assert_eq!(
        (count_status(201), count_status(200), count_status(403)),
        (12, 3, 185),
        "{answers:?}"
    );
    for (athlete, status, text) in &answers {
        assert_eq!(*athlete <= 3, *status == 200, "{athlete}: {text}");
        if *status == 403 {
            assert!(text.contains("/problems/capacity-exceeded"), "{text}");
        }
    }
    run_ok(&data, &["speed", "--until-caught-up"]);
    let shown = client.get_json("/api/v1/applications/7");
    assert_eq!(shown["connected_athletes"], 15, "{shown}");
    assert_eq!(shown["athlete_capacity"], 15, "{shown}");
    assert_eq!(
        (&shown["name"], &shown["owner"]),
        (&json!("Pacer"), &json!(42))
    );
    // One athlete leaves, so one more can connect. All authorizations of the athlete are revoked.
    assert_eq!(
        client.delete("/api/v1/applications/7/authorizations/1").0,
        204
    );
    assert_eq!(
        client.delete("/api/v1/applications/7/authorizations/1").0,
        204
    );
    let post = |athlete: i64| {
        let body = json!({"athlete_id": athlete}).to_string();
        client
            .post("/api/v1/applications/7/authorizations", body.as_bytes())
            .0
    };
    assert_eq!((post(1_000), post(1_001)), (201, 403));
    let patched = client.patch("/api/v1/applications/7", br#"{"athlete_capacity":10}"#);
    assert_eq!(patched.0, 200, "{}", patched.1);
    assert_eq!(
        (post(1_000), post(1_001)),
        (200, 403),
        "a large body was refused"
    );
    // A line of the same version sets the capacity, too; an older one does not.
    for (line, capacity) in [
        (app.replace("15}", "12,\"version\":-1}"), 10),
        (app.to_owned(), 15),
    ] {
        let output = run_with_input(&data, &["ingest", "applications", "-"], line.as_bytes());
        assert!(output.status.success());
        let shown = client.get_json("/api/v1/applications/7");
        assert_eq!(shown["athlete_capacity"], capacity, "{shown}");
    }
    for body in [
        &b"{"[..],
        b"{}",
        br#"{"athlete_capacity":-1}"#,
        br#"{"athlete_capacity":1.5}"#,
    ] {
        let (status, text) = client.patch("/api/v1/applications/7", body);
        assert_eq!(status, 400, "{text}");
    }
    assert_eq!(
        client
            .patch("/api/v1/applications/8", br#"{"athlete_capacity":1}"#)
            .0,
        404
    );
    assert_eq!(
        client.delete("/api/v1/applications/8/authorizations/1").0,
        404
    );
    run_ok(&data, &["speed", "--until-caught-up"]);
    run_ok(&data, &["batch", "run"]);
    let list = client.get_json("/api/v1/applications");
    assert_eq!(list["applications"][0]["connected_athletes"], 15, "{list}");
    assert_eq!(
        list["applications"][0]["provenance"]["source"], "batch",
        "{list}"
    );
}
