//! Files of the archive and of results that are missing, changed or truncated, and a run that died
//! halfway.

use bytes::Bytes;
use serde_json::json;
use tests::process::run;
use tests::servers::delete_keys;

use super::{owner_plays, print_result, seed};
use crate::matrix::runs::{RUN, wait_stages};
use crate::matrix::scene::{Scene, Setting};

const VIEW: &str = "plays_detail";

/// The damage of a file.
#[derive(Debug, Clone, Copy)]
enum Damage {
    Missing,
    Changed,
    CutShort,
    Empty,
}

impl Damage {
    const ALL_KINDS: [Self; 4] = [Self::Missing, Self::Changed, Self::CutShort, Self::Empty];

    async fn apply_to(self, scene: &Scene, path: &str) {
        let archive = &scene.world.stores.archive;
        let bytes = archive.get(path).await.expect("reading");
        let mut bytes = bytes.expect("a file").to_vec();
        let length = bytes.len();
        match self {
            Self::Missing => return archive.delete(path).await.expect("deleting"),
            // Changes several places, since not every column is read.
            Self::Changed => (1..16).for_each(|part| bytes[length * part / 16] ^= 0x10),
            Self::CutShort => bytes.truncate(length / 2),
            Self::Empty => bytes.clear(),
        }
        archive
            .put(path, Bytes::from(bytes))
            .await
            .expect("writing");
    }
}

async fn files(scene: &Scene, folder: &str) -> Vec<String> {
    let files = scene.world.stores.archive.list(folder).await;
    let mut files = files.expect("files");
    files.retain(|path| path.ends_with(".parquet"));
    assert!(!files.is_empty(), "{folder}");
    files
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_files_are_rebuilt_on_servers() {
    let mut scene = Scene::begin(&Setting::shared_servers(), seed(33)).await;
    let worker = scene.worker();
    scene.world.ingest(&owner_plays(0, 60)).await;
    scene.ingest_plays(200).await;
    scene.settle().await;
    scene.run_batch(&[]).await;
    scene.ingest_plays(60).await;
    scene.settle().await;
    for damage in Damage::ALL_KINDS {
        damage_archive(&mut scene, damage).await;
    }
    scene.run_batch(&["--full"]).await;
    scene.check_owner().await;
    let damaged = damage_and_rerun(&mut scene).await;
    kill_run(&mut scene).await;
    assert!(worker.end().0);
    scene.end().await;
    print_result(
        "damaged files",
        &format!("4 of the archive, {damaged} of results"),
    );
}

async fn damage_archive(scene: &mut Scene, damage: Damage) {
    let files = files(scene, "archive/plays/files").await;
    let path = files[files.len() / 2].as_str();
    damage.apply_to(scene, path).await;
    let compared = scene.reconcile(VIEW, &[]).await;
    assert_eq!(compared.status, 1, "{damage:?}: {compared:?}");
    assert!(compared.message.contains(path), "{damage:?}: {compared:?}");
    scene.compare().await;
    let applied = scene.repair_all(VIEW).await;
    // An earlier try may have lost its lease after it restored the file.
    let possible_files = [json!([path]), json!([])];
    assert!(
        possible_files.contains(&applied["files"]),
        "{damage:?}: {applied}"
    );
}

/// Damages all files of a source's results, which no question reads; returns their number.
async fn damage_results(scene: &mut Scene, source: &str, damage: Damage) -> usize {
    let files = files(scene, &format!("results/{source}/data")).await;
    for path in &files {
        damage.apply_to(scene, path).await;
    }
    scene.compare().await;
    scene.ingest_plays(60).await;
    scene.ingest_rows(3).await;
    scene.settle().await;
    files.len()
}

/// A run that reads a damaged result reports it, and the next one recomputes it. A result that a
/// reconciliation needs is recomputed automatically.
async fn damage_and_rerun(scene: &mut Scene) -> usize {
    let mut damaged = damage_results(scene, "plays", Damage::Changed).await;
    let since = scene.answer_counts();
    let namespace = scene.world.namespace().expect("servers");
    assert!(delete_keys(&format!("{{{namespace}:plays:*}}:p*")) > 0);
    let output = run(scene.installation.data(), &["batch", "run"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{message}");
    assert!(
        message.contains("results/plays/") && message.contains("run again"),
        "{message}"
    );
    // The Reconciler completes that run first.
    scene.repair_all(VIEW).await;
    scene.record_damage(since, &[1, 2, 3, 4, 5]);
    scene.compare().await;
    let board_files = damage_results(scene, "efforts", Damage::CutShort).await;
    damaged += board_files;
    let mut runs = 0;
    while !run(scene.installation.data(), &["batch", "run"])
        .status
        .success()
    {
        runs += 1;
        assert!(
            runs <= board_files,
            "{runs} runs did not rebuild {board_files} files"
        );
    }
    damaged += damage_results(scene, "plays", Damage::Missing).await;
    scene.run_batch(&[]).await;
    scene.compare().await;
    scene.expect_no_difference(VIEW).await;
    scene.expect_no_difference("segment_boards").await;
    damaged
}

/// A run is killed while it publishes; the Reconciler completes it.
async fn kill_run(scene: &mut Scene) {
    scene.ingest_plays(200).await;
    scene.world.ingest(&owner_plays(60, 60)).await;
    scene.settle().await;
    let stages = ["seal", "archive", "compute", "check", "publish"].len();
    let mut killed_run = scene.start(&RUN);
    assert!(
        wait_stages(&mut killed_run, stages).await,
        "{:?}",
        killed_run.finish()
    );
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    assert!(killed_run.kill(), "it died while it published");
    let compared = scene.reconcile(VIEW, &[]).await;
    let warning = compared.report["warnings"][0].as_str().unwrap_or_default();
    assert!(warning.contains("is not complete"), "{compared:?}");
    assert_eq!(compared.report["differ"], 0, "{compared:?}");
    scene.repair_all(VIEW).await;
    scene.check_owner().await;
    scene.compare().await;
}
