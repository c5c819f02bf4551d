//! Only the owning user can read the data folder.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tests::process::{Process, command, run, run_ok, run_with_input};

/// Finds paths below a folder that other users may read, write or enter, with their modes.
fn find_accessible(path: &Path, accessible: &mut Vec<(PathBuf, u32)>, visited: &mut Vec<String>) {
    let metadata = fs::symlink_metadata(path).expect("a path");
    let mode = metadata.permissions().mode() & 0o777;
    visited.push(path.display().to_string());
    // A link has no mode of its own.
    if !metadata.is_symlink() && mode & 0o077 != 0 {
        accessible.push((path.to_owned(), mode));
    }
    if metadata.is_dir() {
        for entry in fs::read_dir(path).expect("a folder") {
            find_accessible(&entry.expect("an entry").path(), accessible, visited);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_users_cannot_read_the_data_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("new/data");
    let plays = |day: u32| {
        let event = format!("e{day}");
        format!(
            r#"{{"event_id":"{event}","track_id":1,"owner_id":1,"kind":"play","at":"2026-03-0{day}T00:00:00Z"}}"#
        )
    };
    // An event, and a dead letter.
    let lines = format!("{}\n{}\nnonsense\n", plays(1), plays(2));
    let output = run_with_input(&data, &["ingest", "plays", "-"], lines.as_bytes());
    assert!(output.status.success(), "{output:?}");
    run_ok(
        &data,
        &["keys", "create", "--name", "a", "--scope", "admin"],
    );
    run_ok(&data, &["speed", "--until-caught-up"]);
    run_ok(&data, &["batch", "run"]);
    let erase = ["erase", "--listener", "7"];
    run_ok(&data, &erase);
    let process = Process::spawn(command(&data, &["up", "--listen", "127.0.0.1:0"]));
    process.wait_for_output("http://").await;
    let (mut accessible, mut visited) = (Vec::new(), Vec::new());
    find_accessible(&data, &mut accessible, &mut visited);
    for name in [
        "canon.db-wal",
        "canon.db-shm",
        "erasures.db",
        ".parquet",
        "spill",
        "locks",
    ] {
        assert!(
            visited.iter().any(|path| path.contains(name)),
            "{name}: {visited:#?}"
        );
    }
    assert_eq!(accessible, []);
    drop(process);
    let output = run_ok(&data, &["check"]);
    assert!(!output.contains("WARN"), "{output}");
    fs::set_permissions(&data, fs::Permissions::from_mode(0o750)).expect("a mode");
    let output = run_ok(&data, &["check"]);
    let warning = output.lines().find(|line| line.starts_with("WARN"));
    let warning = warning.unwrap_or_else(|| panic!("{output}"));
    assert!(
        warning.contains("mode 750") && warning.contains("chmod"),
        "{warning}"
    );
}

#[test]
fn output_files_have_the_umask_of_the_caller() {
    let folder = tempfile::tempdir().expect("a folder");
    let probe = folder.path().join("probe");
    fs::write(&probe, "x").expect("a file");
    let generated = folder.path().join("plays.jsonl");
    let args = ["generate", "plays", "--rows", "3", "--seed", "1", "-o"];
    let args = [&args[..], &[generated.to_str().expect("UTF-8")]].concat();
    let output = run(&folder.path().join("data"), &args);
    assert!(output.status.success(), "{output:?}");
    let mode = |path: &Path| fs::metadata(path).expect("a file").permissions().mode();
    assert_eq!(mode(&generated), mode(&probe));
}
