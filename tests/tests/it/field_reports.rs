//! Inputs that users reported, through the command and the API. `tests/data/cases` has the files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, RecordBatch};
use serde_json::{Value, json};
use tests::process::{Server, run, run_ok, run_with_input};

fn case_path(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/cases");
    path.join(name).display().to_string()
}

fn run_json(data: &Path, args: &[&str]) -> Value {
    serde_json::from_str(&run_ok(data, args)).expect("JSON")
}

fn dead_letters(data: &Path) -> Vec<Value> {
    let dead_letters = run_json(data, &["dead-letters", "list", "--json"]);
    dead_letters["dead_letters"]
        .as_array()
        .expect("dead letters")
        .clone()
}

fn fetch_json(data: &Path, path: &str) -> Value {
    Server::start(data, &[]).client.get_json(path)
}

fn new_folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    (folder, data)
}

/// In live rows, batch rows and both: a weight just below a class boundary is in the lower class.
#[test]
fn weights_below_a_boundary_stay_in_their_class() {
    let (_folder, data) = new_folder();
    run_ok(
        &data,
        &["ingest", "athletes", &case_path("weights-athletes.jsonl")],
    );
    run_ok(
        &data,
        &["ingest", "efforts", &case_path("weights-efforts.jsonl")],
    );
    run_ok(&data, &["speed", "--until-caught-up"]);
    check_classes(&data, "live");
    run_ok(&data, &["batch", "run"]);
    check_classes(&data, "batch");
    // One more effort of an athlete in another segment, and a new version of an effort.
    let newer = r#"{"id":3402,"segment_id":212,"athlete_id":3402,"activity_id":1,"elapsed_time":99,"started_at":"2026-03-01T10:00:00Z","version":2}"#;
    let output = run_with_input(&data, &["ingest", "efforts", "-"], newer.as_bytes());
    assert!(output.status.success());
    run_ok(&data, &["speed", "--until-caught-up"]);
    check_classes(&data, "merged");
}

fn check_classes(data: &Path, layer: &str) {
    let server = Server::start(data, &[]);
    for (class, athletes) in [
        ("0-54", &[3405, 3408][..]),
        ("55-64", &[]),
        ("65-74", &[3404]),
        ("75-84", &[]),
        ("85-94", &[3402]),
        ("95-104", &[3403, 3406]),
        ("105-114", &[3401]),
        ("115%2B", &[3407, 3409]),
    ] {
        let path = format!("/api/v1/boards/segments/212?board=weight:{class}");
        let board = server.client.get_json(&path);
        let entries = board["entries"].as_array().expect("entries").iter();
        let ranked: Vec<i64> = entries
            .map(|entry| entry["athlete_id"].as_i64().expect("an athlete"))
            .collect();
        assert_eq!(ranked, athletes, "{layer} {class}: {board}");
    }
}

/// An INT96 timestamp of the year 9999 does not fit nanoseconds of 64 bits.
#[test]
fn a_time_out_of_range_in_parquet_is_a_dead_letter() {
    for command in ["ingest", "backfill"] {
        let (_folder, data) = new_folder();
        let report = run_json(
            &data,
            &[command, "plays", &case_path("never.parquet"), "--json"],
        );
        assert_eq!(
            (&report["accepted"], &report["rejected"]),
            (&json!(1), &json!(1)),
            "{command}: {report}"
        );
        let dead_letters = dead_letters(&data);
        let reason = dead_letters[0]["reason"].as_str().expect("a reason");
        assert_eq!(
            reason,
            r#"at: "9999-12-31T23:59:59.999999Z" is not a time between the years 1678 and 2261"#,
            "{command}"
        );
        run_ok(&data, &["speed", "--until-caught-up"]);
        run_ok(&data, &["batch", "run"]);
        let path = "/api/v1/stats/plays/series?owner_id=122&period=all&interval=month";
        let series = fetch_json(&data, path);
        let points = series["points"].as_array().expect("points");
        assert_eq!(points.len(), 1, "{command}: {series}");
        assert!(
            points[0]["at"]
                .as_str()
                .expect("a time")
                .starts_with("2025-")
        );
    }
}

/// The same events as JSON lines are duplicates.
#[test]
fn times_before_1970_are_rounded_down_in_parquet_as_in_lines() {
    let (_folder, data) = new_folder();
    run_ok(&data, &["ingest", "plays", &case_path("before.parquet")]);
    let lines = [
        ("b0", "1969-12-31T23:59:59.999999999Z"),
        ("b1", "1969-12-30T23:59:59.999999999Z"),
        ("b2", "1969-12-31T00:00:00Z"),
        ("b3", "1969-12-31T23:59:59.9999985Z"),
    ];
    let lines = lines.map(|(id, at)| {
        json!({"event_id": id, "track_id": 1, "owner_id": 126, "kind": "play", "at": at})
            .to_string()
    });
    let output = run_with_input(
        &data,
        &["ingest", "plays", "-"],
        lines.join("\n").as_bytes(),
    );
    assert!(output.status.success());
    run_ok(&data, &["speed", "--until-caught-up"]);
    run_ok(&data, &["backfill", "plays", &case_path("before.parquet")]);
    run_ok(&data, &["batch", "run"]);
    let path = "/api/v1/stats/plays/series?owner_id=126&from=1969-12-29&to=1970-01-02&interval=day";
    let series = fetch_json(&data, path);
    let counts: Vec<&Value> = series["points"]
        .as_array()
        .expect("points")
        .iter()
        .map(|point| &point["count"])
        .collect();
    assert_eq!(json!(counts), json!([0, 1, 3, 0]), "{series}");
}

#[test]
fn one_bad_parquet_value_affects_only_its_row() {
    for (file, reason, raw) in [
        (
            "millis-max.parquet",
            "at: 9223372036854775807000 µs since 1970 is not a time between the years 1678 and 2261",
            "text",
        ),
        (
            "latin-1.parquet",
            "referrer: the text is not UTF-8 from byte 4 on",
            "hex",
        ),
    ] {
        for command in ["ingest", "backfill"] {
            let (_folder, data) = new_folder();
            let report = run_json(&data, &[command, "plays", &case_path(file), "--json"]);
            assert_eq!(
                (&report["accepted"], &report["rejected"]),
                (&json!(2), &json!(1)),
                "{command} {file}: {report}"
            );
            let dead_letters = dead_letters(&data);
            assert_eq!(dead_letters[0]["reason"], reason, "{command} {file}");
            let origin = dead_letters[0]["origin"].as_str().expect("an origin");
            assert!(origin.contains(&format!("{file}:")), "{origin}");
            assert!(
                !dead_letters[0]["raw"][raw].is_null(),
                "{command} {file}: {}",
                dead_letters[0]
            );
            run_ok(&data, &["speed", "--until-caught-up"]);
            run_ok(&data, &["batch", "run"]);
            let total = fetch_json(&data, "/api/v1/stats/plays/total?owner_id=132");
            assert_eq!(total["count"], 2, "{command} {file}: {total}");
        }
    }
}

/// For a damaged file, the report names the last ingested row.
#[test]
fn the_report_of_a_damaged_file_names_the_last_row() {
    const GROUP_ROWS: i32 = 8_192;
    let (folder, data) = new_folder();
    let ids: ArrayRef = Arc::new(Int32Array::from_iter_values(0..3 * GROUP_ROWS));
    let columns = [("club_id", Arc::clone(&ids)), ("athlete_id", ids)];
    let batch = RecordBatch::try_from_iter(columns).expect("rows");
    let mut writer = stores::parquet_file::begin(batch.schema(), 8_192).expect("a file");
    writer.write(&batch).expect("rows");
    writer.flush().expect("rows");
    let (offset, _) = writer.flushed_row_groups()[1].column(0).byte_range();
    let mut bytes = stores::parquet_file::finish(writer)
        .expect("a file")
        .to_vec();
    let offset = usize::try_from(offset).expect("an offset");
    bytes[offset..offset + 16].fill(0xff);
    let path = folder.path().join("damaged.parquet");
    std::fs::write(&path, bytes).expect("a file");
    let output = run(
        &data,
        &["ingest", "clubs", &path.to_string_lossy(), "--json"],
    );
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        message.contains("rows 1 to 8192 of") && message.contains("cannot read rows 8193 to 16384"),
        "{message}"
    );
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let input = &report["inputs"][0];
    assert_eq!(
        (
            &input["accepted"],
            &input["last_line"],
            &input["is_complete"]
        ),
        (&json!(8_192), &json!(8_192), &json!(false)),
        "{report}"
    );
}

/// Codes that name no country are counted as sent.
#[test]
fn countries_count_as_sent_and_zero_counts_are_no_rows() {
    let (_folder, data) = new_folder();
    let play = |id: &str, country: &str, amount: i64| {
        json!({
            "event_id": id, "track_id": 1, "owner_id": 7, "kind": "play", "country": country,
            "at": "2026-03-01T10:00:00Z", "amount": amount,
        })
        .to_string()
    };
    let ingest = |lines: &[String]| {
        let input = lines.join("\n");
        let output = run_with_input(&data, &["ingest", "plays", "-"], input.as_bytes());
        assert!(output.status.success());
        run_ok(&data, &["speed", "--until-caught-up"]);
    };
    let countries = ["XK", "XX", "ZZ", "QQ", "UK"];
    let plays: Vec<String> = countries.iter().map(|code| play(code, code, 1)).collect();
    ingest(&plays);
    ingest(&[play("a", "DE", 5), play("b", "DE", -5), play("c", "FR", 2)]);
    let check_countries = |layer: &str, expected: &[&str]| {
        let server = Server::start(&data, &[]);
        let path = "/api/v1/stats/plays/breakdown?owner_id=7&by=country&period=all";
        let answer = server.client.get_json(path);
        let keys: Vec<&Value> = answer["rows"]
            .as_array()
            .expect("rows")
            .iter()
            .map(|row| &row["key"])
            .collect();
        assert_eq!(json!(keys), json!(expected), "{layer}: {answer}");
        let (_, csv) = server.client.get(&format!("{path}&format=csv"));
        assert!(!csv.contains("DE"), "{layer}: {csv}");
        let (_, page) = server.client.get("/owners/7?by=country&period=all");
        assert!(
            page.contains(">ZZ<") && !page.contains(">DE<"),
            "{layer}: {page}"
        );
    };
    check_countries("live", &["FR", "QQ", "UK", "XK", "XX", "ZZ"]);
    run_ok(&data, &["batch", "run"]);
    check_countries("batch", &["FR", "QQ", "UK", "XK", "XX", "ZZ"]);
    ingest(&[play("d", "FR", -2)]);
    check_countries("merged", &["QQ", "UK", "XK", "XX", "ZZ"]);
}

#[test]
fn a_byte_order_mark_and_empty_lines_are_an_empty_file() {
    let (folder, data) = new_folder();
    let path = folder.path().join("empty.jsonl");
    for bytes in [
        "\u{feff}",
        "\u{feff}\n",
        "\u{feff}\r\n\n",
        "\u{feff} \n\u{feff}",
    ] {
        std::fs::write(&path, bytes).expect("a file");
        for source in ["plays", "clubs"] {
            let report = run_json(
                &data,
                &["ingest", source, &path.to_string_lossy(), "--json"],
            );
            assert_eq!(
                (&report["accepted"], &report["rejected"]),
                (&json!(0), &json!(0)),
                "{bytes:?}: {report}"
            );
        }
    }
}

/// An installation where owner 122 has one play.
fn installation_with_one_play() -> (tempfile::TempDir, PathBuf) {
    let (folder, data) = new_folder();
    run_ok(&data, &["ingest", "plays", &case_path("never.parquet")]);
    run_ok(&data, &["speed", "--until-caught-up"]);
    run_ok(&data, &["batch", "run"]);
    (folder, data)
}

/// Compares plays with a file of expected counts; returns the exit status and the error.
fn compare_file(data: &Path, name: &str, text: &str) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("a file");
    let path = path.to_string_lossy();
    let view = "plays_owner_day_track";
    let args = ["restorate", "--view", view, "--expected", &path];
    let output = run(data, &args);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), message)
}

#[test]
fn expected_counts_may_begin_with_a_byte_order_mark() {
    let (_folder, data) = installation_with_one_play();
    for (name, text) in [
        ("a.csv", "\u{feff}owner_id,expected\n122,1\n"),
        ("b.csv", "\u{feff}\"owner_id\",\"expected\"\r\n122,1\r\n"),
        ("c.jsonl", "\u{feff}{\"owner_id\":122,\"expected\":1}\n"),
        ("d.jsonl", "\u{feff}\n\n{\"owner_id\":122,\"expected\":1}\n"),
    ] {
        let (status, message) = compare_file(&data, name, text);
        assert_eq!((status, message.as_str()), (Some(0), ""), "{name}");
    }
}

#[test]
fn ambiguous_expected_counts_are_refused() {
    const EMPTY_FILE: &str = "it needs at least one line";
    const TWICE: &str = "each key may occur only once";
    const NOT_AN_INTEGER: &str = "not a 64-bit integer";
    let (_folder, data) = installation_with_one_play();
    for (name, text, reason) in [
        ("e.csv", "", EMPTY_FILE),
        ("f.csv", "\u{feff}\n", EMPTY_FILE),
        ("g.csv", "owner_id,expected\n", EMPTY_FILE),
        ("h.jsonl", "", EMPTY_FILE),
        ("i.jsonl", "\u{feff}\n\n", EMPTY_FILE),
        ("j.parquet", "", EMPTY_FILE),
        ("k.csv", "owner_id,expected\n122,1\n122,1\n", TWICE),
        ("l.csv", "owner_id,expected\n122,1\n 122,2\n", TWICE),
        ("m.csv", "owner_id,expected\n122,1.5\n", NOT_AN_INTEGER),
        ("n.csv", "owner_id,expected\n1.5,1\n", "owner_id is \"1.5\""),
        (
            "o.jsonl",
            "{\"owner_id\":122,\"expected\":1}\n{\"owner_id\":122,\"expected\":1}\n",
            TWICE,
        ),
        (
            "p.jsonl",
            "{\"owner_id\":122,\"expected\":0.5}\n",
            NOT_AN_INTEGER,
        ),
        (
            "q.jsonl",
            "{\"owner_id\":122,\"expected\":1,\"expected\":2}\n",
            "occurs twice",
        ),
    ] {
        let (status, message) = compare_file(&data, name, text);
        assert_eq!(status, Some(2), "{name}: {message}");
        assert!(
            message.contains(name) && message.contains(reason),
            "{message}"
        );
    }
}
