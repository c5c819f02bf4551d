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
use tests::installation::Installation;
use tests::play_queries::PlayGenerator;
use tests::process::{Server, run_ok};
use tests::servers;

use crate::processes::compare;

const QUERIES: usize = 10;

fn ingest_and_count(installation: &Installation, traffic: &mut PlayGenerator, lines: usize) {
    installation.ingest("plays", &traffic.lines(lines).join("\n"));
    run_ok(installation.data(), &["speed", "--until-caught-up"]);
}

/// Creates entity rows that only the entity store holds.
fn connect(installation: &Installation) {
    let application = json!({"id": 7, "name": "An app", "owner": "Ada", "athlete_capacity": 100});
    installation.ingest("applications", &application.to_string());
    let authorization = |id: i64| json!({"id": id, "application_id": 7, "athlete_id": id, "created_at": "2026-03-01T10:00:00Z"});
    let rows: Vec<String> = (1..=20).map(|id| authorization(id).to_string()).collect();
    installation.ingest("authorizations", &rows.join("\n"));
    let effort = |id: i64| {
        json!({"id": id, "segment_id": 3, "athlete_id": id, "activity_id": id, "elapsed_time": 100 + id,
            "started_at": "2026-03-01T10:00:00Z"})
    };
    let rows: Vec<String> = (1..=15).map(|id| effort(id).to_string()).collect();
    installation.ingest("efforts", &rows.join("\n"));
}

/// Ingests events and rows, and runs a batch over them.
fn ingest_and_run(installation: &Installation, traffic: &mut PlayGenerator, lines: usize) {
    ingest_and_count(installation, traffic, lines);
    connect(installation);
    run_ok(installation.data(), &["speed", "--until-caught-up"]);
    run_ok(installation.data(), &["batch", "run"]);
}

fn check_entities(server: &Server) {
    let application = server.client.get("/api/v1/applications/7");
    let body: Value = serde_json::from_str(&application.1).expect("JSON");
    assert_eq!(body["connected_athletes"], 20, "{application:?}");
    let board = server.client.get("/api/v1/boards/segments/3?limit=3");
    let body: Value = serde_json::from_str(&board.1).expect("JSON");
    assert_eq!(body["total"], 15, "{board:?}");
    assert_eq!(body["entries"][0]["athlete_id"], 1, "{board:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_embedded_installation_is_restored_from_a_copy_of_its_folder() {
    let mut rng = SmallRng::seed_from_u64(31);
    let mut traffic = PlayGenerator::new(31);
    let (original, restored) = (Installation::embedded(), Installation::embedded());
    ingest_and_run(&original, &mut traffic, 300);
    ingest_and_count(&original, &mut traffic, 100);
    let names = "{\"id\": 3, \"name\": \"Old Climb\"}";
    std::fs::write(original.folder().join("names"), names).expect("a file");
    let file = original.folder().join("names");
    let load = ["names", "load", "segment", file.to_str().expect("a path")];
    run_ok(original.data(), &load);

    folder::copy(original.data(), restored.data());
    drop(original);
    run_ok(restored.data(), &["speed", "--until-caught-up"]);
    let world = restored.world().await;
    let server = Server::start(restored.data(), &[]);
    compare(&world, &server.client, &mut rng, QUERIES).await;
    check_entities(&server);
    assert!(server.client.get("/segments/3").1.contains("Old Climb"));
    ingest_and_count(&restored, &mut traffic, 100);
    run_ok(restored.data(), &["batch", "run"]);
    compare(&world, &server.client, &mut rng, QUERIES).await;
    check_entities(&server);
}

/// The archive and the views may be restored separately, from copies of different days.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_an_embedded_installation_are_restored_from_older_copies() {
    let mut rng = SmallRng::seed_from_u64(33);
    let mut traffic = PlayGenerator::new(33);
    let installation = Installation::embedded();
    let backup = installation.folder().join("backup");
    ingest_and_run(&installation, &mut traffic, 200);
    copy_folder(installation.data(), &backup);
    for _ in 0..2 {
        ingest_and_count(&installation, &mut traffic, 100);
        run_ok(installation.data(), &["batch", "run"]);
    }
    for parts in [
        &["archive"][..],
        &["views.db"],
        &["live.db"],
        &["archive", "live.db"],
    ] {
        folder::wait_until_closed(installation.data()).await;
        for part in parts {
            restore(installation.data(), &backup, part);
        }
        run_ok(installation.data(), &["migrate"]);
        run_ok(installation.data(), &["speed", "--until-caught-up"]);
        let world = installation.world().await;
        let server = Server::start(installation.data(), &[]);
        compare(&world, &server.client, &mut rng, QUERIES).await;
        check_entities(&server);
        ingest_and_count(&installation, &mut traffic, 50);
        run_ok(installation.data(), &["batch", "run"]);
        compare(&world, &server.client, &mut rng, QUERIES).await;
        check_entities(&server);
        let view = ["restorate", "--view", "plays_detail"];
        run_ok(
            installation.data(),
            &[&view[..], &["--expected", "archive"]].concat(),
        );
    }
}

/// Copies a folder as an operator does, symbolic links as links.
fn copy_folder(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(status.expect("cp").success());
}

/// Restores a part of an installation from the copy: a folder, or a file and its companion files.
fn restore(data: &Path, backup: &Path, part: &str) {
    let is_part = |name: &str| {
        let suffix = name.strip_prefix(part);
        suffix.is_some_and(|suffix| suffix.is_empty() || suffix.starts_with(['-', '.']))
    };
    let names = |folder: &Path| {
        let entries = std::fs::read_dir(folder).expect("a folder").flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| is_part(name)).collect::<Vec<_>>()
    };
    for name in names(data) {
        let path = data.join(name);
        match path.is_dir() {
            true => std::fs::remove_dir_all(&path).expect("deleting"),
            false => std::fs::remove_file(&path).expect("deleting"),
        }
    }
    let backup_names = names(backup);
    assert!(!backup_names.is_empty(), "{part}");
    for name in backup_names {
        copy_folder(&backup.join(&name), &data.join(&name));
    }
}

/// A dump of the schema from pg_dump, as SQL statements.
fn dump_schema(schema: &str) -> String {
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
async fn an_installation_is_restored_from_its_backups_on_servers() {
    let mut rng = SmallRng::seed_from_u64(32);
    let mut traffic = PlayGenerator::new(32);
    let installation = Installation::on_servers();
    ingest_and_run(&installation, &mut traffic, 300);
    ingest_and_count(&installation, &mut traffic, 100);
    let options = installation.options();
    let schema = options.namespace.identifier("backstitch");
    let dump = dump_schema(&schema);

    // Deletes batch rows, run records, live state and the entity store. The log and the archive
    // stay.
    Cassandra::remove(&options.cassandra, &options.namespace)
        .await
        .expect("deleting");
    servers::delete_live_state_of(&options.namespace);
    servers::run_on_postgres(&format!("DROP SCHEMA {schema} CASCADE")).expect("deleting");

    servers::run_on_postgres(&dump).expect("a restored copy");
    run_ok(installation.data(), &["migrate"]);
    run_ok(installation.data(), &["speed", "--until-caught-up"]);
    let world = installation.world().await;
    let server = Server::start(installation.data(), &[]);
    compare(&world, &server.client, &mut rng, QUERIES).await;
    check_entities(&server);
    run_ok(installation.data(), &["batch", "run"]);
    compare(&world, &server.client, &mut rng, QUERIES).await;
    check_entities(&server);
    ingest_and_count(&installation, &mut traffic, 100);
    run_ok(installation.data(), &["batch", "run", "--full"]);
    compare(&world, &server.client, &mut rng, QUERIES).await;
    check_entities(&server);
    let reconcile = [
        "restorate",
        "--view",
        "plays_detail",
        "--expected",
        "archive",
    ];
    run_ok(installation.data(), &reconcile);
}
