//! The binary as a shell sees it: exit statuses, one-line complaints, help. (That this test is here
//! also makes `cargo test` build the binary that the tests of whole flows start.)

use std::process::{Command, Output};

fn backstitch(args: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_backstitch"))
        .args(args)
        .output();
    output.expect("starting the binary")
}

#[test]
fn wrong_usage_is_status_2_and_one_line() {
    for args in [
        &["nothing"][..],
        &[],
        &["batch", "run", "--engine", "ballista://h"],
        &["batch", "run", "--engine", "spark://h:1"],
        &["executor", "--scheduler", "h"],
        &["scheduler", "--listen", "0.0.0.0:0"],
    ] {
        let output = backstitch(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert_eq!(said.trim().lines().count(), 1, "{args:?}: {said}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn help_and_version_are_status_0() {
    for args in [
        &["--help"][..],
        &["--version"],
        &["batch", "run", "--help"],
        &["config", "schema"],
        &["completions", "bash"],
    ] {
        let output = backstitch(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(!output.stdout.is_empty(), "{args:?}");
    }
}
