//! Restores from the backups that docs/operations.md requires. An embedded installation is restored
//! from a copy of its folder, and one on servers from a dump of the entity store and the archive.
//! Everything else is lost.

use std::path::Path;
use std::process::Command;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::{Value, json};
use stores::cassandra::Cassandra;
use tests::folder;
use tests::place::Place;
use tests::process::{Server, done};
use tests::questions::Traffic;
use tests::servers;

use crate::processes::compare;

const QUESTIONS: usize = 10;

fn count(place: &Place, traffic: &mut Traffic, lines: usize) {
    place.ingest("plays", &traffic.lines(lines).join("\n"));
    done(place.data(), &["speed", "--until-caught-up"]);
}

/// Creates entity rows that only the entity store holds.
fn connect(place: &Place) {
    let application = json!({"id": 7, "name": "An app", "owner": "Ada", "athlete_capacity": 100});
    place.ingest("applications", &application.to_string());
    let authorization = |id: i64| json!({"id": id, "application_id": 7, "athlete_id": id, "created_at": "2026-03-01T10:00:00Z"});
    let rows: Vec<String> = (1..=20).map(|id| authorization(id).to_string()).collect();
    place.ingest("authorizations", &rows.join("\n"));
    let effort = |id: i64| {
        json!({"id": id, "segment_id": 3, "athlete_id": id, "activity_id": id, "elapsed_time": 100 + id,
            "started_at": "2026-03-01T10:00:00Z"})
    };
    let rows: Vec<String> = (1..=15).map(|id| effort(id).to_string()).collect();
    place.ingest("efforts", &rows.join("\n"));
}

/// Ingests events and rows, and runs a batch over them.
fn begin(place: &Place, traffic: &mut Traffic, lines: usize) {
    count(place, traffic, lines);
    connect(place);
    done(place.data(), &["speed", "--until-caught-up"]);
    done(place.data(), &["batch", "run"]);
}

fn check_entities(server: &Server) {
    let application = server.client.get("/api/v1/applications/7");
    let found: Value = serde_json::from_str(&application.1).expect("JSON");
    assert_eq!(found["connected_athletes"], 20, "{application:?}");
    let board = server.client.get("/api/v1/boards/segments/3?limit=3");
    let found: Value = serde_json::from_str(&board.1).expect("JSON");
    assert_eq!(found["total"], 15, "{board:?}");
    assert_eq!(found["entries"][0]["athlete_id"], 1, "{board:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_embedded_installation_comes_back_from_a_copy_of_its_folder() {
    let mut rng = SmallRng::seed_from_u64(31);
    let mut traffic = Traffic::new(31);
    let (before, after) = (Place::embedded(), Place::embedded());
    begin(&before, &mut traffic, 300);
    count(&before, &mut traffic, 100);
    let names = "{\"id\": 3, \"name\": \"Old Climb\"}";
    std::fs::write(before.folder().join("names"), names).expect("a file");
    let file = before.folder().join("names");
    let load = ["names", "load", "segment", file.to_str().expect("a path")];
    done(before.data(), &load);

    folder::copy(before.data(), after.data());
    drop(before);
    done(after.data(), &["speed", "--until-caught-up"]);
    let world = after.world().await;
    let server = Server::start(after.data(), &[]);
    compare(&world, &server.client, &mut rng, QUESTIONS).await;
    check_entities(&server);
    assert!(server.client.get("/segments/3").1.contains("Old Climb"));
    count(&after, &mut traffic, 100);
    done(after.data(), &["batch", "run"]);
    compare(&world, &server.client, &mut rng, QUESTIONS).await;
    check_entities(&server);
}

/// The archive and the views may be restored separately, from copies of different days.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_an_embedded_installation_come_back_from_older_copies() {
    let mut rng = SmallRng::seed_from_u64(33);
    let mut traffic = Traffic::new(33);
    let place = Place::embedded();
    let kept = place.folder().join("kept");
    begin(&place, &mut traffic, 200);
    copied(place.data(), &kept);
    for _ in 0..2 {
        count(&place, &mut traffic, 100);
        done(place.data(), &["batch", "run"]);
    }
    for parts in [
        &["archive"][..],
        &["views.db"],
        &["live.db"],
        &["archive", "live.db"],
    ] {
        folder::let_go(place.data()).await;
        for part in parts {
            come_back(place.data(), &kept, part);
        }
        done(place.data(), &["migrate"]);
        done(place.data(), &["speed", "--until-caught-up"]);
        let world = place.world().await;
        let server = Server::start(place.data(), &[]);
        compare(&world, &server.client, &mut rng, QUESTIONS).await;
        check_entities(&server);
        count(&place, &mut traffic, 50);
        done(place.data(), &["batch", "run"]);
        compare(&world, &server.client, &mut rng, QUESTIONS).await;
        check_entities(&server);
        let view = ["restorate", "--view", "plays_detail"];
        done(
            place.data(),
            &[&view[..], &["--expected", "archive"]].concat(),
        );
    }
}

/// Copies a folder as an operator does, symbolic links as links.
fn copied(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.expect("cp").success());
}

/// Restores a part of an installation from the copy: a folder, or a file and its companion files.
fn come_back(data: &Path, kept: &Path, part: &str) {
    let is_of_it = |name: &str| {
        let rest = name.strip_prefix(part);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '.']))
    };
    let names = |folder: &Path| {
        let entries = std::fs::read_dir(folder).expect("a folder").flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| is_of_it(name)).collect::<Vec<_>>()
    };
    for name in names(data) {
        let path = data.join(name);
        match path.is_dir() {
            true => std::fs::remove_dir_all(&path).expect("it goes"),
            false => std::fs::remove_file(&path).expect("it goes"),
        }
    }
    let back = names(kept);
    assert!(!back.is_empty(), "{part}");
    for name in back {
        copied(&kept.join(&name), &data.join(&name));
    }
}

/// A dump of the schema from pg_dump, as SQL statements.
fn dumped(schema: &str) -> String {
    let address = servers::postgres();
    let (host, port) = address.split_once(':').expect("a port");
    let mut command = Command::new("pg_dump");
    command.args(["-h", host, "-p", port, "-U", "backstitch", "-d", "postgres"]);
    let output = command.args(["-n", schema]).output();
    let output = output.expect("PostgreSQL's programs are installed");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "pg_dump: {err}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_installation_comes_back_from_its_backups_on_servers() {
    let mut rng = SmallRng::seed_from_u64(32);
    let mut traffic = Traffic::new(32);
    let place = Place::on_servers();
    begin(&place, &mut traffic, 300);
    count(&place, &mut traffic, 100);
    let options = place.options();
    let schema = options.namespace.identifier("backstitch");
    let dump = dumped(&schema);

    // Deletes batch rows, run records, live state and the entity store. The log and the archive
    // stay.
    Cassandra::remove(&options.cassandra, &options.namespace)
        .await
        .expect("it goes");
    servers::forget_live(&options.namespace);
    servers::run_on_postgres(&format!("DROP SCHEMA {schema} CASCADE")).expect("it goes");

    servers::run_on_postgres(&dump).expect("it comes back");
    done(place.data(), &["migrate"]);
    done(place.data(), &["speed", "--until-caught-up"]);
    let world = place.world().await;
    let server = Server::start(place.data(), &[]);
    compare(&world, &server.client, &mut rng, QUESTIONS).await;
    check_entities(&server);
    done(place.data(), &["batch", "run"]);
    compare(&world, &server.client, &mut rng, QUESTIONS).await;
    check_entities(&server);
    count(&place, &mut traffic, 100);
    done(place.data(), &["batch", "run", "--full"]);
    compare(&world, &server.client, &mut rng, QUESTIONS).await;
    check_entities(&server);
    let told = [
        "restorate",
        "--view",
        "plays_detail",
        "--expected",
        "archive",
    ];
    done(place.data(), &told);
}
