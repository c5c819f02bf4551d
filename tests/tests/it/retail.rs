//! Real plays through processes: responses are compared with a recount of the raw records in three
//! time zones.

use std::io::Write;

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use serde_json::{Value, json};
use tests::http::Client;
use tests::process::{Server, run_ok};
use tests::records::PLAYS;
use tests::recount::{Question, Recount};

const ZONES: [&str; 3] = ["UTC", "Europe/London", "Australia/Adelaide"];

/// Numbers of plays in two consecutive months, over all owners.
#[derive(Debug, Clone, Copy, PartialEq)]
struct MonthCounts {
    november: i64,
    october: i64,
}

/// Counts of the full data set.
const FULL_COUNTS: MonthCounts = MonthCounts {
    november: 83_498,
    october: 59_396,
};

/// Counts of the subset in `tests/data`.
const SUBSET_COUNTS: MonthCounts = MonthCounts {
    november: 24_082,
    october: 17_165,
};

#[test]
fn retail_counts_match_a_recount() {
    let records = PLAYS.read();
    let month_counts = match records.is_full {
        true => FULL_COUNTS,
        false => SUBSET_COUNTS,
    };
    let lines = records.lines;
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let half = lines.len() / 2;
    let write = |name: &str, lines: &[String]| {
        let path = folder.path().join(name);
        let mut file = std::io::BufWriter::new(std::fs::File::create(&path).expect("a file"));
        for line in lines {
            writeln!(file, "{line}").expect("writing");
        }
        file.flush().expect("writing");
        path.to_string_lossy().into_owned()
    };
    let (first, second) = (
        write("1.jsonl", &lines[..half]),
        write("2.jsonl", &lines[half..]),
    );
    // The recount needs only one partition with all records.
    let count = i64::try_from(lines.len()).expect("a count");
    let truth = Recount::new(&[lines], &[count]);
    let server = Server::start(&data, &[]);
    run_ok(&data, &["ingest", "plays", &first]);
    run_ok(&data, &["speed", "--until-caught-up"]);
    let report: Value =
        serde_json::from_str(&run_ok(&data, &["batch", "run", "--json"])).expect("JSON");
    assert_eq!(report["drift"]["total"], 0, "{report}");
    run_ok(&data, &["ingest", "plays", &second]);
    run_ok(&data, &["speed", "--until-caught-up"]);
    // Half of the plays are in batch views, half in live state.
    assert_eq!(count_months(&server.client), month_counts);
    compare(&server.client, &truth, 1);
    run_ok(&data, &["batch", "run"]);
    assert_eq!(count_months(&server.client), month_counts);
    compare(&server.client, &truth, 3);
}

fn compare(client: &Client, truth: &Recount, depth: usize) {
    for zone_name in ZONES.into_iter().take(depth) {
        let zone = TimeZone::get(zone_name).expect("a zone");
        for (filters, query) in [
            (vec![("owner_id", json!(7))], "owner_id=7"),
            (vec![("track_id", json!(1))], "track_id=1"),
            (
                vec![("owner_id", json!(109)), ("country", json!("FR"))],
                "owner_id=109&country=FR",
            ),
        ] {
            compare_query(client, truth, &zone, zone_name, filters, query);
        }
    }
}

/// Queries November and October 2011 for each owner and adds up the counts.
fn count_months(client: &Client) -> MonthCounts {
    let (mut november, mut october) = (0, 0);
    for owner in 1..=200 {
        let query = format!("owner_id={owner}&period=month&date=2011-11-15&compare=previous");
        let answer = client.get_json(&format!("/api/v1/stats/plays/total?{query}"));
        november += answer["count"].as_i64().expect("a count");
        october += answer["previous"].as_i64().expect("a count");
    }
    MonthCounts { november, october }
}

fn compare_query(
    client: &Client,
    truth: &Recount,
    zone: &TimeZone,
    zone_name: &str,
    filters: Vec<(&'static str, Value)>,
    query: &str,
) {
    let midnight = |date: jiff::civil::Date| -> Timestamp {
        date.to_zoned(zone.clone()).expect("in range").timestamp()
    };
    let (from, to) = (
        jiff::civil::date(2011, 3, 20),
        jiff::civil::date(2011, 11, 3),
    );
    let bounded = Question {
        filters: filters.clone(),
        range: (Some(midnight(from)), Some(midnight(to))),
    };
    let unbounded = Question {
        filters,
        range: (None, None),
    };
    let previous = Question {
        range: (
            Some(midnight(
                from.checked_sub((to - from).get_days().days())
                    .expect("in range"),
            )),
            Some(midnight(from)),
        ),
        ..bounded.clone()
    };
    let base = format!("{query}&tz={zone_name}");
    let custom = format!("{base}&from={from}&to={to}");
    let ask = |path: &str| client.get_json(&format!("/api/v1/stats/plays/{path}"));
    let answer = ask(&format!("total?{base}"));
    assert_eq!(answer["count"], json!(truth.total(&unbounded)), "{base}");
    let answer = ask(&format!("total?{custom}&compare=previous"));
    let expected = json!([truth.total(&bounded), truth.total(&previous)]);
    assert_eq!(
        json!([answer["count"], answer["previous"]]),
        expected,
        "{custom}"
    );
    for interval in ["hour", "day", "week", "month"] {
        let answer = ask(&format!("series?{custom}&interval={interval}"));
        let points = answer["points"].as_array().expect("points").iter();
        let points_served: Vec<Value> = points.map(|p| json!([p["at"], p["count"]])).collect();
        let series = truth.series(&bounded, interval, zone).into_iter();
        let expected: Vec<Value> = series.map(|(at, n)| json!([at.to_string(), n])).collect();
        assert_same_rows(&points_served, &expected, &format!("{custom} {interval}"));
    }
    for (by, field) in [
        ("track", "track_id"),
        ("listener", "listener_id"),
        ("country", "country"),
    ] {
        let mut rows = Vec::new();
        let mut cursor = String::new();
        loop {
            let answer = ask(&format!("breakdown?{custom}&by={by}&limit=1000{cursor}"));
            let page = answer["rows"].as_array().expect("rows").iter();
            rows.extend(page.map(|r| json!([r["key"], r["count"]])));
            match answer["cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        let sums = truth.breakdown(&bounded, field).into_iter();
        let expected: Vec<Value> = sums.map(|(key, n)| json!([key, n])).collect();
        assert_same_rows(&rows, &expected, &format!("{custom} {by}"));
    }
}

/// Checks that rows are equal; the message shows only the first difference.
fn assert_same_rows(actual: &[Value], expected: &[Value], context: &str) {
    let differs = actual
        .iter()
        .zip(expected)
        .position(|(actual, expected)| actual != expected);
    if let Some(index) = differs {
        panic!(
            "{context}: row {index} is {}, expected {}",
            actual[index], expected[index]
        );
    }
    assert_eq!(actual.len(), expected.len(), "{context}");
}
