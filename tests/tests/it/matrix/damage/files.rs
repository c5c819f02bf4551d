//! Files of the archive and of results that are missing, changed or cut short, and a run that died half-way.

use bytes::Bytes;
use serde_json::json;
use tests::process::run;
use tests::servers::delete_keys;

use super::{own_plays, seed, tell};
use crate::matrix::runs::{RUN, has_begun};
use crate::matrix::scene::{Scene, Setting};

const VIEW: &str = "plays_detail";

/// What becomes of a file.
#[derive(Debug, Clone, Copy)]
enum Harm {
    Missing,
    Changed,
    CutShort,
    Empty,
}

impl Harm {
    const ALL: [Self; 4] = [Self::Missing, Self::Changed, Self::CutShort, Self::Empty];

    async fn to(self, scene: &Scene, path: &str) {
        let archive = &scene.world.stores.archive;
        let bytes = archive.get(path).await.expect("reading");
        let mut bytes = bytes.expect("a file").to_vec();
        let length = bytes.len();
        match self {
            Self::Missing => return archive.delete(path).await.expect("deleting"),
            // In several places: not every column is read.
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
async fn damaged_files_are_made_anew_on_servers() {
    let mut scene = Scene::begin(&Setting::patient(), seed(33)).await;
    let worker = scene.worker();
    scene.world.ingest(&own_plays(0, 60)).await;
    scene.take_plays(200).await;
    scene.settle().await;
    scene.run_batch(&[]).await;
    scene.take_plays(60).await;
    scene.settle().await;
    for harm in Harm::ALL {
        of_the_archive(&mut scene, harm).await;
    }
    scene.run_batch(&["--full"]).await;
    scene.owner_is_right().await;
    let harmed = of_results(&mut scene).await;
    a_run_died(&mut scene).await;
    assert!(worker.end().0);
    scene.end().await;
    tell(
        "damaged files",
        &format!("4 of the archive, {harmed} of results"),
    );
}

async fn of_the_archive(scene: &mut Scene, harm: Harm) {
    let files = files(scene, "archive/plays/files").await;
    let path = files[files.len() / 2].as_str();
    harm.to(scene, path).await;
    let told = scene.restorate(VIEW, &[]).await;
    assert_eq!(told.status, 1, "{harm:?}: {told:?}");
    assert!(told.said.contains(path), "{harm:?}: {told:?}");
    scene.compare().await;
    let applied = scene.puts_right(VIEW).await;
    // A try before may have lost its lease once the file was there again.
    let made_anew = [json!([path]), json!([])];
    assert!(made_anew.contains(&applied["files"]), "{harm:?}: {applied}");
}

/// Harms all files of a source's results, which nobody who asks reads; answers how many there are.
async fn harm_results(scene: &mut Scene, source: &str, harm: Harm) -> usize {
    let files = files(scene, &format!("results/{source}/data")).await;
    for path in &files {
        harm.to(scene, path).await;
    }
    scene.compare().await;
    scene.take_plays(60).await;
    scene.take_rows(3).await;
    scene.settle().await;
    files.len()
}

/// The run that reads a result which is damaged says so, and the next one makes it anew; one that a restoration needs goes
/// on by itself.
async fn of_results(scene: &mut Scene) -> usize {
    let mut harmed = harm_results(scene, "plays", Harm::Changed).await;
    let since = scene.heard();
    let namespace = scene.world.namespace().expect("servers");
    assert!(delete_keys(&format!("{{{namespace}:plays:*}}:p*")) > 0);
    let ran = run(scene.place.data(), &["batch", "run"]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(!ran.status.success(), "{said}");
    assert!(
        said.contains("results/plays/") && said.contains("run again"),
        "{said}"
    );
    // It finishes that run first.
    scene.puts_right(VIEW).await;
    scene.was_damaged(since, &[1, 2, 3, 4, 5]);
    scene.compare().await;
    let of_boards = harm_results(scene, "efforts", Harm::CutShort).await;
    harmed += of_boards;
    let mut runs = 0;
    while !run(scene.place.data(), &["batch", "run"]).status.success() {
        runs += 1;
        assert!(
            runs <= of_boards,
            "{runs} runs did not make {of_boards} files anew"
        );
    }
    harmed += harm_results(scene, "plays", Harm::Missing).await;
    scene.run_batch(&[]).await;
    scene.compare().await;
    scene.is_right(VIEW).await;
    scene.is_right("segment_boards").await;
    harmed
}

/// Killed while it publishes; the Restorator finishes it.
async fn a_run_died(scene: &mut Scene) {
    scene.take_plays(200).await;
    scene.world.ingest(&own_plays(60, 60)).await;
    scene.settle().await;
    let stages = ["seal", "archive", "compute", "check", "publish"].len();
    let mut died = scene.start(&RUN);
    assert!(has_begun(&mut died, stages).await, "{:?}", died.finish());
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    assert!(died.kill(), "it died while it published");
    let told = scene.restorate(VIEW, &[]).await;
    let warning = told.report["warnings"][0].as_str().unwrap_or_default();
    assert!(warning.contains("is not complete"), "{told:?}");
    assert_eq!(told.report["differ"], 0, "{told:?}");
    scene.puts_right(VIEW).await;
    scene.owner_is_right().await;
    scene.compare().await;
}
