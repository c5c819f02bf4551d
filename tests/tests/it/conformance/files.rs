//! Faults of the files of the embedded stores: deleted, damaged, of another version, or read-only.
//! Processes that use them are killed.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use arrow::array::Int64Array;
use schemas::seam::{Checkpoint, Cut};
use schemas::source::Source;
use stores::live::{DeltaQuery, Deltas, LiveRead, LiveWrite};
use stores::log::{FetchLimit, NewRecords};
use stores::{ErrorKind, Result, Stores};
use tempfile::TempDir;
use tests::conformance::{VIEW, binary, bytes, new_generation, state_id};

const TOPIC: &str = "backstitch.laws.v1";
const EVERYTHING: FetchLimit = FetchLimit {
    records: usize::MAX,
    bytes: usize::MAX,
};

fn create_folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn cut(next_offset: i64) -> Cut {
    Cut {
        next_offset,
        last: None,
    }
}

fn one_row(count: i64) -> Deltas {
    Deltas {
        view: VIEW.to_owned(),
        grouped_by: "g".to_owned(),
        groups: binary(["g"]),
        rows: binary(["r"]),
        counts: Int64Array::from(vec![count]),
    }
}

fn whole_group() -> DeltaQuery {
    DeltaQuery {
        view: VIEW.to_owned(),
        group: b"g".to_vec(),
        ranges: vec![(Vec::new(), None)],
        partition: None,
    }
}

/// The checkpoint of the partition state and the sum of its deltas.
async fn checkpoint_and_sum(live: &dyn LiveRead) -> Result<Option<(Checkpoint, i64)>> {
    let snapshot = live.read_deltas(Source::Plays, 1, &[whole_group()]).await?;
    let sum = snapshot.deltas[0].counts.values().iter().sum();
    Ok(snapshot.partition_states[0]
        .as_ref()
        .map(|state| (state.checkpoint(), sum)))
}

async fn apply_one(live: &dyn LiveWrite, checkpoint: Checkpoint) -> Result<Checkpoint> {
    let next = cut(checkpoint.next_offset + 1);
    let outcome = live
        .apply(
            state_id(0),
            checkpoint,
            next,
            &[VIEW],
            &vec![one_row(1)].into(),
        )
        .await?;
    assert_eq!(outcome, Ok(()));
    Ok(Checkpoint {
        next_offset: next.next_offset,
        ..checkpoint
    })
}

/// Starts a new generation of the partition state and counts `records` single records in it.
async fn start_generation(
    live: &dyn LiveWrite,
    generation: u64,
    records: i64,
) -> Result<Checkpoint> {
    let rebuilt = live
        .rebuild(state_id(0), None, &new_generation(0, 0, generation))
        .await?;
    assert_eq!(rebuilt, Ok(()));
    let mut checkpoint = Checkpoint {
        generation,
        next_offset: 0,
        epoch: 1,
    };
    for _ in 0..records {
        checkpoint = apply_one(live, checkpoint).await?;
    }
    Ok(checkpoint)
}

fn remove_live_files(folder: &Path, is_removed: impl Fn(&str) -> bool) {
    for entry in std::fs::read_dir(folder).expect("the folder can be read") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("live.db") && is_removed(&name) {
            std::fs::remove_file(entry.path()).expect("the file can be removed");
        }
    }
}

/// Two processes have the live file open when it is deleted. Both see an empty file at once and
/// share it, and old data does not reappear, also for a third process.
#[tokio::test]
async fn a_deleted_live_file_is_recreated() -> Result<()> {
    let every_file = |_: &str| true;
    let only_link = |name: &str| name == "live.db";
    let all_but_wal = |name: &str| !name.ends_with("-wal");
    let only_target = |name: &str| name.starts_with("live.db.") && !name.contains('-');
    let folder = create_folder();
    let first = Stores::embedded(folder.path()).await?;
    let second = Stores::embedded(folder.path()).await?;
    let removals: [&dyn Fn(&str) -> bool; 4] =
        [&every_file, &only_link, &all_but_wal, &only_target];
    for (generation, is_removed) in (1..).zip(removals) {
        let checkpoint = start_generation(&*first.live, generation, 5).await?;
        assert_eq!(
            checkpoint_and_sum(&*second.live).await?,
            Some((checkpoint, 5))
        );
        remove_live_files(folder.path(), is_removed);
        assert_eq!(checkpoint_and_sum(&*second.live).await?, None);
        let conflict = first
            .live
            .close_epoch(state_id(0), checkpoint)
            .await?
            .expect_err("a missing file");
        assert_eq!(conflict.actual, None);
        let checkpoint = start_generation(&*second.live, generation + 10, 2).await?;
        assert_eq!(
            checkpoint_and_sum(&*first.live).await?,
            Some((checkpoint, 2))
        );
        let third = Stores::embedded(folder.path()).await?;
        assert_eq!(
            checkpoint_and_sum(&*third.live).await?,
            Some((checkpoint, 2))
        );
        let checkpoint = apply_one(&*first.live, checkpoint).await?;
        assert_eq!(
            checkpoint_and_sum(&*third.live).await?,
            Some((checkpoint, 3))
        );
        remove_live_files(folder.path(), every_file);
    }
    let live_files = std::fs::read_dir(folder.path()).expect("the folder can be read");
    let live_files = live_files.map(|entry| entry.expect("an entry").file_name());
    let live_files = live_files.filter(|name| name.to_string_lossy().starts_with("live.db"));
    let live_files = live_files.count();
    assert!(
        live_files < 8,
        "leftover files were not deleted: {live_files} files of live state"
    );
    Ok(())
}

/// The live file is deleted repeatedly while two workers and a reader use it. No call fails, and
/// the reader always sees deltas that match the checkpoint.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_file_may_vanish_at_any_time() -> Result<()> {
    let folder = create_folder();
    let over = std::sync::atomic::AtomicBool::new(false);
    let is_over = || over.load(std::sync::atomic::Ordering::Relaxed);
    let work = async |generations: u64| -> Result<()> {
        let stores = Stores::embedded(folder.path()).await?;
        let mut generation = generations;
        while !is_over() {
            let Some((checkpoint, _)) = checkpoint_and_sum(&*stores.live).await? else {
                generation += 2;
                // Either process may rebuild the state.
                let _done = stores
                    .live
                    .rebuild(state_id(0), None, &new_generation(0, 0, generation))
                    .await?;
                continue;
            };
            let next = cut(checkpoint.next_offset + 1);
            let _done = stores
                .live
                .apply(
                    state_id(0),
                    checkpoint,
                    next,
                    &[VIEW],
                    &vec![one_row(1)].into(),
                )
                .await?;
        }
        Ok(())
    };
    let reads = std::sync::atomic::AtomicU64::new(0);
    let was_read = || reads.load(std::sync::atomic::Ordering::Relaxed) > 0;
    let read = async {
        let stores = Stores::embedded(folder.path()).await?;
        while !is_over() {
            if let Some((checkpoint, sum)) = checkpoint_and_sum(&*stores.live).await? {
                assert_eq!(sum, checkpoint.next_offset);
                reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
        assert!(was_read(), "the reader saw no data");
        Ok(())
    };
    let remove = async {
        for round in 0..500 {
            // A busy machine may take longer before the reader sees data.
            if round >= 25 && was_read() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
            let _gone = std::fs::remove_file(folder.path().join("live.db"));
            if round % 2 == 0 {
                for entry in std::fs::read_dir(folder.path()).expect("the folder can be read") {
                    let entry = entry.expect("an entry");
                    if entry.file_name().to_string_lossy().starts_with("live.db") {
                        let _gone = std::fs::remove_file(entry.path());
                    }
                }
            }
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    };
    tokio::try_join!(work(1), work(2), read, remove)?;
    Ok(())
}

/// Many processes may open a new folder at the same time, and use the same stores.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn opening_at_once_is_safe() -> Result<()> {
    let folder = create_folder();
    let path: PathBuf = folder.path().join("deeper/data");
    let open = || {
        let path = path.clone();
        async move {
            let stores = Stores::embedded(&path).await?;
            let partitions = stores.log.ensure_topic(TOPIC, 2).await?;
            stores.log.append(TOPIC, &[group("a", 1)], 1).await?;
            Ok(partitions)
        }
    };
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        tasks.spawn(open());
    }
    let opened: Vec<Result<u32>> = tasks.join_all().await;
    for partitions in opened {
        assert_eq!(partitions?, 2);
    }
    let stores = Stores::embedded(&path).await?;
    assert_eq!(stores.log.spans(TOPIC).await?[0].end, 8);
    Ok(())
}

fn group(prefix: &str, count: usize) -> NewRecords {
    NewRecords {
        partition: 0,
        keys: binary((0..count).map(|number| number.to_string())),
        values: binary((0..count).map(|number| format!("{prefix} {number}"))),
        headers: Vec::new(),
    }
}

/// Environment variable with the folder of the process that is killed.
const VICTIM_FOLDER: &str = "BACKSTITCH_TEST_VICTIM_FOLDER";

/// Appends and applies until it is killed, and prints each acknowledged call.
#[tokio::test]
#[ignore = "the other process of writers_may_be_killed"]
async fn victim() -> Result<()> {
    let Some(folder) = std::env::var_os(VICTIM_FOLDER) else {
        return Ok(());
    };
    let stores = Stores::embedded(Path::new(&folder)).await?;
    let lease = stores.leases.acquire("work", "victim").await?;
    let _lease = lease.expect("a released lease");
    stores.log.ensure_topic(TOPIC, 1).await?;
    let (mut checkpoint, _) = match checkpoint_and_sum(&*stores.live).await? {
        Some(current) => current,
        None => (start_generation(&*stores.live, 1, 0).await?, 0),
    };
    loop {
        let first = stores.log.append(TOPIC, &[group("record", 30)], 1).await?;
        checkpoint = apply_one(&*stores.live, checkpoint).await?;
        println!("\nanswered {} {}", first[0] + 30, checkpoint.next_offset);
        std::io::stdout().flush().expect("the output is read");
    }
}

fn start_victim(folder: &Path) -> Child {
    let program = std::env::current_exe().expect("this program's name");
    let module = module_path!()
        .split_once("::")
        .map_or("", |(_, module)| module);
    Command::new(program)
        .args([
            "--exact",
            &format!("{module}::victim"),
            "--ignored",
            "--nocapture",
        ])
        .env(VICTIM_FOLDER, folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the other process starts")
}

/// A writing process is killed at any time. Acknowledged writes are present, the log has no
/// torn batch, the checkpoint matches the deltas, and the lease is free.
#[tokio::test]
async fn writers_may_be_killed() -> Result<()> {
    let folder = create_folder();
    let watching = Stores::embedded(folder.path()).await?;
    for round in 0..4 {
        #[expect(
            clippy::zombie_processes,
            reason = "where the test fails the process ends with its pipe"
        )]
        let mut victim = start_victim(folder.path());
        let output = victim.stdout.take().expect("its output is a pipe");
        let mut acknowledged = BufReader::new(output).lines().map_while(|line| line.ok());
        let offsets_min = 3 + 5 * round;
        let reached = acknowledged
            .by_ref()
            .filter(|line| line.starts_with("answered"))
            .nth(offsets_min);
        assert!(reached.is_some(), "the other process is idle");
        let refused = watching.leases.acquire("work", "somebody").await?;
        assert_eq!(refused.expect_err("a held lease"), "victim");
        victim.kill().expect("killing the process");
        victim.wait().expect("the exit status");
        let later = acknowledged.filter(|line| line.starts_with("answered"));
        let last = later.last().or(reached).expect("the counted records");
        let numbers: Vec<i64> = last
            .split(' ')
            .skip(1)
            .map(|number| number.parse().expect("a number"))
            .collect();
        for stores in [&watching, &Stores::embedded(folder.path()).await?] {
            let end = stores.log.spans(TOPIC).await?[0].end;
            assert!(end >= numbers[0] && end % 30 == 0, "{end}: {last}");
            let fetched = stores.log.fetch(TOPIC, 0, 0, EVERYTHING).await?;
            assert_eq!(fetched.next_offset, end);
            let (checkpoint, sum) = checkpoint_and_sum(&*stores.live)
                .await?
                .expect("the partition state");
            assert!(
                checkpoint.next_offset >= numbers[1] && sum == checkpoint.next_offset,
                "{last}"
            );
        }
    }
    Ok(())
}

/// Closes the stores and waits until all data is in the main files. The last connection of a file
/// checkpoints it. If several close at once, none may be the last, so this may take several tries.
async fn close(folder: &Path, mut stores: Stores) -> Result<()> {
    let is_beside = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.file_name().to_string_lossy().ends_with("-wal"))
    };
    for _ in 0..100 {
        drop(stores);
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let mut entries = std::fs::read_dir(folder).expect("the folder can be read");
            if !entries.any(is_beside) {
                return Ok(());
            }
        }
        stores = Stores::embedded(folder).await?;
    }
    panic!("the files are still open");
}

/// A payload that was changed on disk is detected; the error names its position, and no record of
/// it is returned.
#[tokio::test]
async fn a_corrupted_payload_is_detected() -> Result<()> {
    let folder = create_folder();
    let stores = Stores::embedded(folder.path()).await?;
    stores.log.ensure_topic(TOPIC, 1).await?;
    stores.log.append(TOPIC, &[group("fine", 3)], 1).await?;
    // Incompressible data is stored as it is.
    let noise: Vec<u8> = (0..400_u64)
        .map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40).to_le_bytes()[0])
        .collect();
    let noisy = NewRecords {
        partition: 0,
        keys: binary(["k"]),
        values: binary([&noise]),
        headers: Vec::new(),
    };
    stores.log.append(TOPIC, &[noisy], 2).await?;
    close(folder.path(), stores).await?;

    let path = folder.path().join("log.db");
    let mut file = std::fs::read(&path).expect("the file can be read");
    let position = file
        .windows(100)
        .position(|window| window == &noise[100..200]);
    file[position.expect("the incompressible bytes") + 50] ^= 1;
    std::fs::write(&path, file).expect("the file can be written");

    let stores = Stores::embedded(folder.path()).await?;
    let error = stores
        .log
        .fetch(TOPIC, 0, 0, EVERYTHING)
        .await
        .expect_err("a damaged file");
    assert_eq!(error.kind(), ErrorKind::Fatal);
    let text = error.to_string();
    assert!(
        text.contains("log.db") && text.contains("checksum"),
        "{text}"
    );
    let limit = FetchLimit {
        records: 3,
        ..EVERYTHING
    };
    let intact = stores.log.fetch(TOPIC, 0, 0, limit).await?;
    assert_eq!(bytes(&intact.records.values)[2], b"fine 2");
    Ok(())
}

/// Unexpected files are refused with a message that names them.
#[tokio::test]
async fn unexpected_files_are_refused() -> Result<()> {
    for (name, version, expected) in [
        ("log.db", 99_u32, "newer version"),
        ("views.db", 100, "newer"),
    ] {
        let folder = create_folder();
        let stores = Stores::embedded(folder.path()).await?;
        close(folder.path(), stores).await?;
        let path = folder.path().join(name);
        let mut file = std::fs::read(&path).expect("the file can be read");
        // The offset of SQLite's `user_version`.
        file[60..64].copy_from_slice(&version.to_be_bytes());
        std::fs::write(&path, file).expect("the file can be written");
        let error = Stores::embedded(folder.path())
            .await
            .expect_err("a newer version")
            .to_string();
        assert!(error.contains(name) && error.contains(expected), "{error}");
    }
    for name in ["log.db", "views.db"] {
        let folder = create_folder();
        let text = "this is not a database, and longer than a header of one ".repeat(99);
        std::fs::write(folder.path().join(name), text).expect("the file can be written");
        let error = Stores::embedded(folder.path())
            .await
            .expect_err("a file that is not a database");
        assert_eq!(error.kind(), ErrorKind::Fatal);
        assert!(error.to_string().contains(name), "{error}");
    }
    Ok(())
}

/// Deleting a file that cannot be rebuilt is detected while the file is in use, because later
/// writes would be lost.
#[tokio::test]
async fn a_removed_log_is_detected() -> Result<()> {
    let folder = create_folder();
    let stores = Stores::embedded(folder.path()).await?;
    stores.log.ensure_topic(TOPIC, 1).await?;
    std::fs::remove_file(folder.path().join("log.db")).expect("the file can be removed");
    let error = stores
        .log
        .append(TOPIC, &[group("lost", 1)], 1)
        .await
        .expect_err("a missing file");
    assert_eq!(error.kind(), ErrorKind::Fatal);
    assert!(error.to_string().contains("log.db"), "{error}");
    std::fs::remove_file(folder.path().join("views.db")).expect("the file can be removed");
    assert!(stores.views.runs(Source::Plays).await.is_err());
    Ok(())
}

/// A data folder that is read-only or not a folder gives a clear error.
#[tokio::test]
async fn unusable_folders_are_refused() -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let folder = create_folder();
    let file = folder.path().join("file");
    std::fs::write(&file, "text").expect("the file can be written");
    for path in [file.clone(), file.join("below")] {
        let error = Stores::embedded(&path).await.expect_err("a file");
        assert_eq!(error.kind(), ErrorKind::Fatal);
        assert!(error.to_string().contains("file"), "{error}");
    }
    let data = folder.path().join("data");
    let stores = Stores::embedded(&data).await?;
    close(&data, stores).await?;
    let forbid = |forbidden: bool| {
        let mode = if forbidden { 0o555 } else { 0o755 };
        for path in [&data, &data.join("locks"), &data.join("archive")] {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(path, permissions).expect("the rights can be set");
        }
    };
    forbid(true);
    // An administrator may write anywhere, so the test would see no error.
    if std::fs::write(data.join("probe"), "").is_err() {
        let error = Stores::embedded(&data)
            .await
            .expect_err("a read-only folder");
        assert_eq!(error.kind(), ErrorKind::Fatal);
        assert!(error.to_string().contains("data"), "{error}");
    }
    forbid(false);
    Stores::embedded(&data).await?;
    Ok(())
}
