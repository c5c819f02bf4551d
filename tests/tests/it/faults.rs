//! Bad input, wrong settings, a read-only folder, a full disk: a clear message, the right exit
//! status, no lost data, no panic.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tests::play_queries::{BAD_LINES, PlayGenerator};
use tests::process::{Server, binary, command, run, run_ok, run_with_input};

/// Returns the error message of a failed command, which must be a single line and no panic.
fn error_line(output: &Output, status: i32) -> String {
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{message}");
    assert!(!message.contains("panicked"), "{message}");
    assert_eq!(message.trim().lines().count(), 1, "{message}");
    message
}

#[test]
fn malformed_lines_become_dead_letters_and_the_rest_is_ingested() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path();
    let good =
        r#"{"event_id":"a","track_id":10,"owner_id":1,"kind":"play","at":"2026-03-01T00:00:00Z"}"#;
    let invalid = [
        r#"{"event_id":"b","track_id":10,"owner_id":1,"kind":"play","at":"2026-13-01T00:00:00Z"}"#,
        r#"{"event_id":"b","track_id":10,"owner_id":1,"kind":"play","at":"2026-03-01T00:00:00"}"#,
        r#"{"event_id":"b","track_id":10,"owner_id":1,"kind":"play","at":1772323200}"#,
        r#"{"event_id":"b","track_id":1.5,"owner_id":1,"kind":"play","at":"2026-03-01T00:00:00Z"}"#,
        r#"{"event_id":"b","track_id":10,"owner_id":1,"kind":"play","at":"2026-03-01T00:00:00Z","amount":9223372036854775807}"#,
        r#"{"event_id":"b","track_id":10,"owner_id":1,"kind":"play","at":"2026-03-01T00:00:00Z","country":"Germany"}"#,
        r#"{"event_id":"","track_id":10,"owner_id":1,"kind":"play","at":"2026-03-01T00:00:00Z"}"#,
        "\u{feff}garbage",
    ];
    let mut lines = vec![good.to_owned(), String::new()];
    lines.extend(
        BAD_LINES
            .iter()
            .chain(&invalid)
            .map(|line| (*line).to_owned()),
    );
    let nested = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    lines.push(nested);
    let bad_count = lines.len() - 2;
    let output = run_with_input(
        data,
        &["ingest", "plays", "-", "--json"],
        lines.join("\r\n").as_bytes(),
    );
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (&report["accepted"], &report["rejected"]),
        (&json!(1), &json!(bad_count)),
        "{report}"
    );
    let dead_letters: Value =
        serde_json::from_str(&run_ok(data, &["dead-letters", "list", "--json"])).expect("JSON");
    let text = dead_letters.to_string();
    for reason in ["amount", "country", "kind", "owner_id", "track_id", "at"] {
        assert!(text.contains(reason), "{reason}: {text}");
    }
    run_ok(data, &["dead-letters", "replay"]);
    run_ok(data, &["speed", "--until-caught-up"]);
    let server = Server::start(data, &[]);
    let answer = server
        .client
        .get_json("/api/v1/stats/plays/total?owner_id=1");
    assert_eq!(answer["count"], 1);
    let (status, body) = server
        .client
        .post("/api/v1/ingest/plays", format!("{good}\n{{\n").as_bytes());
    let body: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(
        (status, &body["accepted"], &body["rejected"][0]["line"]),
        (200, &json!(1), &json!(2))
    );
}

#[test]
fn empty_files_are_accepted_and_missing_ones_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let empty = folder.path().join("empty.jsonl");
    std::fs::write(&empty, "").expect("a file");
    run_ok(&data, &["ingest", "plays", &empty.to_string_lossy()]);
    let message = error_line(&run(&data, &["ingest", "plays", "/nowhere/plays.jsonl"]), 1);
    assert!(message.contains("/nowhere/plays.jsonl"), "{message}");
    error_line(&run(&data, &["ingest", "songs", "-"]), 2);
    let parquet = folder.path().join("not.parquet");
    std::fs::write(&parquet, "PAR1 but not really").expect("a file");
    let message = error_line(
        &run(&data, &["ingest", "plays", &parquet.to_string_lossy()]),
        1,
    );
    assert!(message.contains("not.parquet"), "{message}");
    // A batch run and requests work with an empty log.
    run_ok(&data, &["speed", "--until-caught-up"]);
    run_ok(&data, &["batch", "run"]);
    let server = Server::start(&data, &[]);
    let answer = server
        .client
        .get_json("/api/v1/stats/plays/total?owner_id=1");
    assert_eq!(
        (&answer["count"], &answer["provenance"]["source"]),
        (&json!(0), &json!("batch"))
    );
}

/// Every command that would continue without the lost data names it.
#[test]
fn a_lost_log_and_a_lost_archive_file_are_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path();
    let line =
        br#"{"event_id":"a","track_id":1,"owner_id":1,"kind":"play","at":"2026-03-01T10:00:00Z"}"#;
    let ingested = run_with_input(data, &["ingest", "plays", "-"], line);
    assert!(ingested.status.success(), "{ingested:?}");
    run_ok(data, &["speed", "--until-caught-up"]);
    run_ok(data, &["batch", "run"]);
    assert!(run_ok(data, &["check"]).contains("archive plays: 1 files of 1 events"));

    let files = data.join("archive/archive/plays/files");
    let file = std::fs::read_dir(&files)
        .expect("a folder")
        .next()
        .expect("a file");
    std::fs::remove_file(file.expect("a file").path()).expect("deleting");
    let message = error_line(&run(data, &["check"]), 1);
    assert!(message.contains("archive plays"), "{message}");
    let message = error_line(&run(data, &["batch", "run", "--full"]), 1);
    assert!(
        message.contains(".parquet") && message.contains("Restore"),
        "{message}"
    );

    for entry in std::fs::read_dir(data).expect("the data folder").flatten() {
        if entry.file_name().to_string_lossy().starts_with("log.db") {
            std::fs::remove_file(entry.path()).expect("deleting");
        }
    }
    for command in [&["speed", "--until-caught-up"][..], &["batch", "run"]] {
        let message = error_line(&run(data, command), 1);
        assert!(message.to_lowercase().contains("restore"), "{message}");
    }
    let message = error_line(&run(data, &["check"]), 1);
    assert!(message.contains("views plays"), "{message}");
}

#[test]
fn invalid_requests_get_problem_documents() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path();
    run_ok(data, &["ingest", "plays", "/dev/null", "--format", "jsonl"]);
    run_ok(data, &["speed", "--until-caught-up"]);
    let server = Server::start(data, &[]);
    for (path, status, word) in [
        ("total", 400, "owner_id"),
        ("total?owner_id=x", 400, "owner_id"),
        ("total?owner_id=1&owner_id=2", 400, "owner_id"),
        ("total?owner_id=99999999999999999999", 400, "owner_id"),
        ("total?owner_id=1&tz=Mars/Olympus", 400, "Mars/Olympus"),
        ("total?owner_id=1&tz=CET-1CEST", 400, "tz"),
        ("total?owner_id=1&period=decade", 400, "decade"),
        (
            "total?owner_id=1&from=2026-03-01T00:07:00Z&to=2026-03-02",
            400,
            "quarter",
        ),
        (
            "total?owner_id=1&from=2026-02-30&to=2026-03-02",
            400,
            "2026-02-30",
        ),
        ("total?owner_id=1&colour=red", 400, "colour"),
        ("total?owner_id=1&kind=stream", 400, "kind"),
        (
            "series?owner_id=1&from=1950-01-01&to=2026-01-01&interval=hour",
            400,
            "10000",
        ),
        (
            "series?owner_id=1&period=7d&interval=fortnight",
            400,
            "fortnight",
        ),
        ("breakdown?owner_id=1", 400, "by"),
        ("breakdown?owner_id=1&by=colour", 400, "colour"),
        ("breakdown?owner_id=1&by=track&limit=1001", 400, "1000"),
        ("breakdown?owner_id=1&by=track&cursor=abc", 400, "cursor"),
        ("breakdown?owner_id=1&by=track&format=xml", 400, "format"),
    ] {
        let (actual_status, body) = server.client.get(&format!("/api/v1/stats/plays/{path}"));
        assert_eq!(actual_status, status, "{path}: {body}");
        let problem: Value = serde_json::from_str(&body).expect("a problem document");
        assert_eq!(problem["status"], status, "{path}: {body}");
        let without_commas = body.replace(',', "");
        assert!(without_commas.contains(word), "{path}: {body}");
    }
    for path in [
        "/api/v1/stats/likes/total?owner_id=1",
        "/nothing",
        "/api/v1/ingest/songs",
    ] {
        let (status, body) = server.client.get(path);
        assert!(status == 404 || status == 405, "{path}: {status}");
        serde_json::from_str::<Value>(&body).expect("a problem document");
    }
    for path in ["/livez", "/readyz", "/metrics", "/openapi.json", "/"] {
        assert_eq!(server.client.get(path).0, 200, "{path}");
    }
    assert!(server.client.get("/metrics").1.contains("backstitch_"));
}

#[test]
fn wrong_settings_are_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path();
    let config = folder.path().join("backstitch.toml");
    let config_path = config.to_string_lossy().into_owned();
    for (text, word) in [
        ("[speed]\nrecords_maximum = 1\n", "records_maximum"),
        ("[speed]\nrecords_max = \"many\"\n", "records_max"),
        ("[[[", "backstitch.toml"),
    ] {
        std::fs::write(&config, text).expect("a file");
        let message = error_line(
            &run(data, &["--config", &config_path, "config", "check"]),
            2,
        );
        assert!(message.contains(word), "{message}");
    }
    let output = command(data, &["config", "check"])
        .env("BACKSTITCH__SPEED__RECORDS_MAX", "x")
        .output();
    let message = error_line(&output.expect("starting"), 2);
    assert!(message.to_lowercase().contains("records_max"), "{message}");
    let message = error_line(&run(data, &["serve", "--listen", "0.0.0.0:0"]), 2);
    assert!(message.contains("127.0.0.1"), "{message}");
}

/// Runs a script in its own mount namespace, with a folder for a mount at `$1`.
fn run_with_mount(folder: &Path, script: &str) -> Output {
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-ec", script, "sh"])
        .arg(folder)
        .arg(binary())
        .output()
        .expect("unshare, from util-linux");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        !message.contains("unshare:") && !message.contains("mount:"),
        "mounting is not allowed here: {message}"
    );
    output
}

#[test]
fn a_full_disk_loses_no_accepted_data() {
    let folder = tempfile::tempdir().expect("a folder");
    let lines = PlayGenerator::new(3).lines(60_000).join("\n");
    let input = folder.path().join("plays.jsonl");
    std::fs::write(&input, lines).expect("a file");
    let mount = folder.path().join("small");
    std::fs::create_dir(&mount).expect("a folder");
    // The disk is full at the first try. Then there is room, and everything succeeds.
    let script = r#"
        mount -t tmpfs -o size=1500k tmpfs "$1"
        for command in "ingest plays $1/../plays.jsonl" "speed --until-caught-up" "batch run"; do
            "$2" --data-dir "$1" $command >/dev/null && echo "OK $command" || echo "FAILED $? $command"
        done
        mount -o remount,size=4g "$1"
        "$2" --data-dir "$1" ingest plays "$1/../plays.jsonl" >/dev/null
        "$2" --data-dir "$1" speed --until-caught-up >/dev/null
        "$2" --data-dir "$1" batch run --json
        "$2" --data-dir "$1" check >/dev/null && echo CHECKED
    "#;
    let output = run_with_mount(&mount, script);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(out.contains("FAILED 1 ingest"), "{out}{message}");
    assert!(out.contains("CHECKED"), "{out}{message}");
    assert!(!message.contains("panicked"), "{message}");
    assert!(
        message.contains("full") || message.contains("space"),
        "{message}"
    );
}

#[test]
fn a_read_only_folder_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let mount = folder.path().join("fixed");
    std::fs::create_dir(&mount).expect("a folder");
    let script = r#"
        mount -t tmpfs -o size=50m tmpfs "$1"
        echo '{"event_id":"a","track_id":1,"owner_id":1,"kind":"play","at":"2026-03-01T00:00:00Z"}' > "$1/plays.jsonl"
        "$2" --data-dir "$1" ingest plays "$1/plays.jsonl" >/dev/null
        mount -o remount,ro "$1"
        for command in "ingest plays $1/plays.jsonl" "speed --until-caught-up" "batch run" "check"; do
            "$2" --data-dir "$1" $command >/dev/null && echo "OK $command" || echo "FAILED $? $command"
        done
    "#;
    let output = run_with_mount(&mount, script);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    for command in ["ingest", "speed", "batch", "check"] {
        assert!(
            out.contains(&format!("FAILED 1 {command}")),
            "{out}{message}"
        );
    }
    assert!(!message.contains("panicked"), "{message}");
    assert_eq!(
        message.trim().lines().count(),
        4,
        "one line each: {message}"
    );
    assert!(message.to_lowercase().contains("read-only"), "{message}");
}
