//! Only the owning user can read the data folder.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tests::process::{Process, command, done, run, run_with_input};

/// Finds paths below a folder that other users may read, write or enter, with their modes.
fn find_accessible(path: &Path, found: &mut Vec<(PathBuf, u32)>, seen: &mut Vec<String>) {
    let about = fs::symlink_metadata(path).expect("a path");
    let mode = about.permissions().mode() & 0o777;
    seen.push(path.display().to_string());
    // A link has no mode of its own.
    if !about.is_symlink() && mode & 0o077 != 0 {
        found.push((path.to_owned(), mode));
    }
    if about.is_dir() {
        for entry in fs::read_dir(path).expect("a folder") {
            find_accessible(&entry.expect("an entry").path(), found, seen);
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
    done(
        &data,
        &["keys", "create", "--name", "a", "--scope", "admin"],
    );
    done(&data, &["speed", "--until-caught-up"]);
    done(&data, &["batch", "run"]);
    let erase = ["erase", "--listener", "7"];
    done(&data, &erase);
    let up = Process::spawn(command(&data, &["up", "--listen", "127.0.0.1:0"]));
    up.wait_for_output("http://").await;
    let (mut found, mut seen) = (Vec::new(), Vec::new());
    find_accessible(&data, &mut found, &mut seen);
    for part in [
        "canon.db-wal",
        "canon.db-shm",
        "erasures.db",
        ".parquet",
        "spill",
        "locks",
    ] {
        assert!(
            seen.iter().any(|path| path.contains(part)),
            "{part}: {seen:#?}"
        );
    }
    assert_eq!(found, []);
    drop(up);
    let output = done(&data, &["check"]);
    assert!(!output.contains("WARN"), "{output}");
    fs::set_permissions(&data, fs::Permissions::from_mode(0o750)).expect("a mode");
    let output = done(&data, &["check"]);
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
