//! An archive of the older layout is migrated with every event, in a data folder and in a bucket.
//!
//! The folder has 116 plays of one owner: 20 of a backfill and 96 of 17 runs. Listener 3 was
//! erased. Ten compacted or single files and the backfill expired, and files of newer days were
//! redacted.

use std::path::{Path, PathBuf};
use std::process::Command;

use schemas::source::Source;
use serde_json::{Value, json};
use stores::archive::Archive;
use tests::process::{Server, run_ok, run_with_input};
use tests::world::{World, archive_version};

const PLAYS: u64 = 116;
const OWNER: u64 = 7;

/// The data folder of the earlier version.
fn unpack_old_folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/cases");
    let packed = packed.join("archive-without-versions.tar.gz");
    let data = folder.path().join("data");
    std::fs::create_dir(&data).expect("a folder");
    let mut tar = Command::new("tar");
    let tar = tar.arg("-xzf").arg(packed).arg("-C").arg(&data).status();
    assert!(tar.expect("tar").success());
    (folder, data)
}

fn fetch_total(data: &Path) -> Value {
    let server = Server::start(data, &[]);
    let path = format!("/api/v1/stats/plays/total?owner_id={OWNER}&period=all");
    server.client.get_json(&path)
}

fn open_archive(data: &Path) -> Archive {
    Archive::local(&data.join("archive")).expect("an archive")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_folder_is_migrated_with_every_event() {
    let (_folder, data) = unpack_old_folder();
    assert_eq!(fetch_total(&data)["count"], PLAYS);
    assert!(
        run_ok(&data, &["migrate"]).contains("archive"),
        "it is reported"
    );
    let version = archive_version(&open_archive(&data)).await;
    let files = version["files"].as_array().expect("files");
    let expired = files.iter().filter(|file| file["expired"].is_object());
    assert_eq!((files.len(), expired.count()), (10, 4), "{version:#}");
    assert_eq!(
        (&version["number"], &version["backfills"]),
        (&json!(1), &json!(1))
    );

    // An older process stops with an error when it finds an unknown object.
    let manifests = data.join("archive/archive/plays/manifests");
    assert!(manifests.join("archive-has-versions").exists());
    let record_folders = ["backfill/manifests", "merged/records", "scrubbed/records"];
    let plays = data.join("archive/archive/plays");
    for records in record_folders {
        assert!(plays.join(records).join("archive-has-versions").exists());
    }

    // A new play, a play whose file expired, and a play whose file was redacted: only the new one
    // counts.
    let lines = [
        r#"{"event_id":"new","track_id":1,"owner_id":7,"kind":"play","at":"2026-11-26T10:00:00Z"}"#,
        r#"{"event_id":"e3","track_id":1,"owner_id":7,"kind":"play","country":"DE","at":"2026-03-02T10:03:00Z"}"#,
        r#"{"event_id":"e62","track_id":3,"owner_id":7,"kind":"play","country":"SE","at":"2026-11-25T10:02:00Z"}"#,
    ];
    let input = lines.join("\n");
    let ingested = run_with_input(&data, &["ingest", "plays", "-"], input.as_bytes());
    assert!(ingested.status.success(), "{ingested:?}");
    run_ok(&data, &["speed", "--until-caught-up"]);
    let report: Value =
        serde_json::from_str(&run_ok(&data, &["batch", "run", "--json"])).expect("JSON");
    assert!(report.to_string().contains("\"duplicates\":2"), "{report}");
    assert_eq!(fetch_total(&data)["count"], PLAYS + 1);
    let compared = run_ok(
        &data,
        &[
            "restorate",
            "--view",
            "plays_detail",
            "--expected",
            "archive",
            "--json",
        ],
    );
    let compared: Value = serde_json::from_str(&compared).expect("JSON");
    assert!(compared.to_string().contains("\"differ\":0"), "{compared}");
    run_ok(&data, &["erase", "--listener", "3", "--verify"]);

    // Once the archive version lists no file of the older layout, these files are deleted.
    let listed = archive_version(&open_archive(&data)).await["files"].to_string();
    let present = open_archive(&data)
        .list("archive/plays")
        .await
        .expect("files");
    let mut parquet = present.iter().filter(|path| path.ends_with(".parquet"));
    assert!(
        parquet.all(|path| listed.contains(path.as_str())),
        "{present:#?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_is_migrated() {
    let (_folder, data) = unpack_old_folder();
    let (local, world) = (open_archive(&data), World::on_servers().await);
    for path in local.list("archive/plays").await.expect("files") {
        let bytes = local.get(&path).await.expect("reading").expect("a file");
        world
            .stores
            .archive
            .put(&path, bytes)
            .await
            .expect("writing");
    }
    let batch = world.batch();
    // Only `migrate` migrates an archive on a server. It refuses to if a record is missing.
    let refused = batch
        .create_views(Source::Plays)
        .await
        .expect_err("an older layout");
    assert!(
        refused.to_string().contains("run `backstitch migrate`"),
        "{refused}"
    );
    let record = "archive/plays/manifests/0000000012.json";
    let bytes = world.stores.archive.get(record).await.expect("reading");
    world.stores.archive.delete(record).await.expect("deleting");
    let damaged = batch
        .migrate_archive(Source::Plays)
        .await
        .expect_err("a gap");
    assert!(
        damaged.to_string().contains("manifest 12 is missing"),
        "{damaged}"
    );
    let restored = world.stores.archive.put(record, bytes.expect("a record"));
    restored.await.expect("writing");
    assert!(
        batch
            .migrate_archive(Source::Plays)
            .await
            .expect("migrating")
    );
    assert!(
        !batch
            .migrate_archive(Source::Plays)
            .await
            .expect("an existing archive")
    );
    let bucket_version = archive_version(&world.stores.archive).await;
    run_ok(&data, &["migrate"]);
    assert_eq!(bucket_version, archive_version(&local).await);
}
