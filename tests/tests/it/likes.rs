//! Another metric from view folders alone: likes, which an app sends as plays with a special
//! referrer.

use std::path::Path;

use batch::RunRequest;
use jobs::Catalog;
use serde_json::{Value, json};
use tests::catalog::catalog_with;
use tests::process::{CONFIG, Server, run, run_ok};
use tests::world::World;

const DETAIL: &str = "kind = \"tally\"
metric = \"likes\"
source = \"plays\"
layers = \"both\"
group = [\"owner_id\"]
bucket = \"quarter\"
partition = \"day\"
dimensions = [\"track_id\", \"country\", \"listener_id\"]
partial = true
";
const DETAIL_SQL: &str =
    "SELECT owner_id, date_bin(INTERVAL '15 minutes', at) AS bucket, track_id, country, listener_id,
    sum(amount) AS count
FROM plays
WHERE referrer = 'like'
GROUP BY owner_id, date_bin(INTERVAL '15 minutes', at), track_id, country, listener_id
";
const DAYS: &str = "kind = \"aggregate\"
metric = \"likes\"
source = \"plays\"
over = \"likes_detail\"
layers = \"batch\"
group = [\"owner_id\"]
bucket = \"day\"
partition = \"all\"
dimensions = [\"track_id\", \"listener_cell\"]
";
const DAYS_SQL: &str = "SELECT owner_id, date_bin(INTERVAL '1 day', bucket) AS bucket, track_id,
    sketch_cell(listener_id) AS listener_cell, sum(count) AS count
FROM likes_detail
GROUP BY owner_id, date_bin(INTERVAL '1 day', bucket), track_id, sketch_cell(listener_id)
";

fn catalog_with_likes() -> Catalog {
    catalog_with(&[
        ("likes_detail", DETAIL, DETAIL_SQL),
        ("likes_owner_day", DAYS, DAYS_SQL),
    ])
}

fn event(id: i64, track: i64, listener: i64, at: &str, referrer: &str) -> String {
    json!({"event_id": format!("e{id}"), "track_id": track, "owner_id": 1, "listener_id": listener,
        "kind": "play", "at": at, "country": "DE", "referrer": referrer})
    .to_string()
}

/// Added views on an existing installation: they do not include earlier events, and other views are
/// unaffected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_added_metric_is_served_after_the_next_run() {
    let plays = World::new().await;
    let day = "2026-03-01T09:00:00Z";
    plays.ingest(&[event(1, 10, 7, day, "like")]).await;
    plays.catch_up().await;
    plays.run(&RunRequest::default()).await.expect("a run");
    let world = plays.with_catalog(catalog_with_likes());
    world.ingest(&[event(2, 10, 8, day, "like")]).await;
    world.catch_up().await;
    let served = world.serve().await;
    let get = async |path: &'static str| {
        let client = served.client.clone();
        tokio::task::spawn_blocking(move || client.get(path))
            .await
            .expect("a response")
    };
    let likes = "/api/v1/stats/likes/total?owner_id=1";
    let (status, body) = get(likes).await;
    assert_eq!(status, 503, "{body}");
    assert!(body.contains("batch run"), "{body}");
    let (status, body) = get("/readyz").await;
    assert_eq!(status, 200, "{body}");
    let total = served
        .client
        .fetch_json("/api/v1/stats/plays/total?owner_id=1")
        .await;
    assert_eq!(total["count"], 2, "{total}");
    world.run(&RunRequest::default()).await.expect("a run");
    let total = served.client.fetch_json(likes).await;
    assert_eq!(total["count"], 2, "{total}");
    served.end().await;
}

/// The code block after the name of a file on a page.
fn code_block<'a>(page: &'a str, file: &str) -> &'a str {
    let name = format!("`views/{file}`");
    let (_, text) = page.split_once(&name).unwrap_or_else(|| panic!("{name}"));
    let (_, text) = text.split_once("```").expect("a block");
    let (_, text) = text.split_once('\n').expect("a line");
    text.split("```").next().expect("the end of the block")
}

fn read_tutorial() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/tutorial.md");
    std::fs::read_to_string(page).expect("the tutorial")
}

/// The files and commands of the tutorial, as a reader follows it with the released program only.
#[test]
fn the_commands_of_the_tutorial_work() {
    let page = read_tutorial();
    let folder = tempfile::tempdir().expect("a folder");
    let (data, views) = (folder.path().join("data"), folder.path().join("views"));
    std::fs::create_dir(&data).expect("a folder");
    let files = page.split("`views/").skip(1);
    let files: Vec<&str> = files
        .filter_map(|text| Some(text.split_once('`')?.0))
        .collect();
    assert!(files.len() >= 6, "{files:?}");
    for file in files {
        let path = views.join(file);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, code_block(&page, file)).expect("a file");
    }
    let input = "views/likes_owner_day/cases/two/input.jsonl";
    std::fs::copy(
        views.join("likes_detail/cases/two/input.jsonl"),
        folder.path().join(input),
    )
    .expect("a copy");
    let config = format!("views_dir = {views:?}\n");
    std::fs::write(data.join(CONFIG), config).expect("a file");
    let (_, section) = page.split_once("## 4.").expect("the commands");
    let commands = section
        .lines()
        .filter_map(|line| line.strip_prefix("backstitch "));
    let mut command_count = 0;
    for command in commands.filter(|command| !command.starts_with("serve")) {
        let command = command.split('#').next().unwrap_or_default();
        let words = command.split_whitespace();
        let words: Vec<String> = words
            .map(|word| match word.strip_prefix("views/") {
                Some(file) => views.join(file).display().to_string(),
                None => word.to_owned(),
            })
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        run_ok(&data, &words);
        command_count += 1;
    }
    assert_eq!(command_count, 4);
    let server = Server::start(&data, &[]);
    for path in find_requests(&page) {
        assert_counts_one(&server.client.get_json(&path), &path);
    }
    // A custom job can be named.
    run_ok(&data, &["batch", "run", "--job", "likes_owner_day"]);
    // An invalid view is reported with its path.
    std::fs::write(views.join("likes_detail/query.sql"), "SELEKT").expect("a file");
    let output = run(&data, &["batch", "run"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(message.contains("likes_detail/query.sql:"), "{message}");
}

/// The requests on the page.
fn find_requests(page: &str) -> Vec<String> {
    let lines = page.lines();
    let paths = lines.filter_map(|line| {
        let (_, path) = line.strip_prefix("curl ")?.split_once(":8080")?;
        Some(path.trim_end_matches('\'').to_owned())
    });
    let paths: Vec<String> = paths.collect();
    assert_eq!(paths.len(), 2);
    paths
}

fn assert_counts_one(answer: &Value, path: &str) {
    let counted = answer
        .get("count")
        .or_else(|| answer["rows"][0].get("count"));
    assert_eq!(counted, Some(&Value::from(1)), "{path}: {answer}");
}

/// The steps of the tutorial give the results that it shows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tutorial_gives_the_results_it_shows() {
    let page = read_tutorial();
    let read_block = |view: &str, file: &str| code_block(&page, &format!("{view}/{file}"));
    let views = ["likes_detail", "likes_owner_day"];
    let views = views.map(|view| {
        (
            view,
            read_block(view, "job.toml"),
            read_block(view, "query.sql"),
        )
    });
    let plays = World::new().await;
    let world = plays.with_catalog(catalog_with(&views));
    let input = read_block("likes_detail", "cases/two/input.jsonl");
    let lines: Vec<String> = input.lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 3);
    world.ingest(&lines).await;
    world.catch_up().await;
    let served = world.serve().await;
    let check = async |source: &str| {
        for (interval, view) in [("hour", "likes_detail"), ("day", "likes_owner_day")] {
            let expected = read_block(view, "cases/two/expected.jsonl");
            let expected: Value = serde_json::from_str(expected.trim()).expect("one row");
            let path = format!(
                "/api/v1/stats/likes/series?owner_id=1&track_id=10&from=2026-03-01&to=2026-03-02&interval={interval}"
            );
            let series = served.client.fetch_json(&path).await;
            let points = series["points"].as_array().expect("points").iter();
            let counted: Vec<&Value> = points.filter(|point| point["count"] != 0).collect();
            let [point] = counted.as_slice() else {
                panic!("{series}")
            };
            assert_eq!(point["at"], expected["bucket"], "{series}");
            assert_eq!(point["count"], expected["count"], "{series}");
            assert_eq!(series["provenance"]["source"], source, "{series}");
        }
    };
    check("realtime").await;
    world.run(&RunRequest::default()).await.expect("a run");
    check("batch").await;
    for path in find_requests(&page) {
        assert_counts_one(&served.client.fetch_json(&path).await, &path);
    }
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn likes_need_only_their_folders() {
    let plays = World::new().await;
    let world = plays.with_catalog(catalog_with_likes());
    let (night, day) = ("2026-02-28T23:10:00Z", "2026-03-01T09:00:00Z");
    world
        .ingest(&[
            event(1, 10, 7, night, "like"),
            event(2, 10, 8, day, "like"),
            event(3, 11, 7, day, "like"),
            event(4, 11, 7, day, "elsewhere"),
        ])
        .await;
    world.catch_up().await;
    let served = world.serve().await;
    let get_json = |path: &str| {
        let path = format!("/api/v1/stats/{path}");
        let client = served.client.clone();
        async move { client.fetch_json(&path).await }
    };
    let check = async |likes: i64, source: &str| {
        let total = get_json("likes/total?owner_id=1").await;
        assert_eq!(total["count"], likes, "{total}");
        assert_eq!(total["provenance"]["source"], source, "{total}");
        let plays = get_json("plays/total?owner_id=1").await;
        assert_eq!(plays["count"], likes + 1, "{plays}");
        let uniques = get_json("likes/uniques?owner_id=1&track_id=10").await;
        assert_eq!(uniques["count"], 2, "{uniques}");
        let query = "owner_id=1&from=2026-03-01&to=2026-03-02&tz=Europe/Berlin";
        let series = get_json(&format!("likes/series?{query}&interval=day")).await;
        assert_eq!(series["points"][0]["count"], likes, "{series}");
    };
    check(3, "realtime").await;
    let report = world.run(&RunRequest::default()).await.expect("a run");
    assert_eq!(report.drift.total, Some(0), "{report:?}");
    check(3, "batch").await;
    world.ingest(&[event(5, 11, 8, day, "like")]).await;
    world.catch_up().await;
    check(4, "merged").await;
    let by_track = get_json("likes/breakdown?owner_id=1&by=track").await;
    let rows = by_track["rows"].as_array().expect("rows").iter();
    let rows: Vec<Value> = rows.map(|row| json!([row["key"], row["count"]])).collect();
    assert_eq!(json!(rows), json!([[10, 2], [11, 2]]));
    // Unknown views and filters are refused; the error lists the available ones.
    let (client, path) = (
        served.client.clone(),
        "/api/v1/stats/likes/total?owner_id=1&app_id=7",
    );
    let (status, body) = tokio::task::spawn_blocking(move || client.get(path))
        .await
        .expect("a response");
    assert_eq!(status, 400, "{body}");
    assert!(
        body.contains("country, listener_id, owner_id, track_id"),
        "{body}"
    );
    served.end().await;
}
