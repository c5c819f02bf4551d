//! Exit statuses, one-line error messages and help of the binary. This test also makes `cargo test`
//! build the binary that the end-to-end tests start.

use std::process::{Command, Output};

fn backstitch(args: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_backstitch"))
        .args(args)
        .output();
    output.expect("starting the binary")
}

#[test]
fn usage_errors_exit_with_2_and_one_line() {
    for args in [
        &["nothing"][..],
        &["batch"],
        &["batch", "run", "--engine", "ballista://h"],
        &["batch", "run", "--engine", "spark://h:1"],
        &["executor", "--scheduler", "h"],
        &["scheduler", "--listen", "0.0.0.0:0"],
    ] {
        let output = backstitch(args);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert_eq!(stderr.trim().lines().count(), 1, "{args:?}: {stderr}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn help_and_version_exit_with_0() {
    for args in [
        &[][..],
        &["--help"],
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

/// A server whose Cargo feature is missing is a usage error that names the setting and the feature.
#[cfg(not(feature = "servers"))]
#[test]
fn missing_server_features_are_named() {
    let settings = [
        ("KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:9092", "kafka"),
        ("REDIS__NODES", "127.0.0.1:6379", "redis"),
        ("CASSANDRA__NODES", "127.0.0.1:9042", "cassandra"),
        ("DATABASE__HOST", "127.0.0.1", "postgres"),
        ("S3__BUCKET", "bucket", "s3"),
        ("REGISTRY__URL", "http://127.0.0.1:8081", "http"),
        ("NOTICES__WEBHOOK_URL", "http://127.0.0.1:1/hook", "http"),
    ];
    let built = [
        ("kafka", cfg!(feature = "kafka")),
        ("redis", cfg!(feature = "redis")),
        ("cassandra", cfg!(feature = "cassandra")),
        ("postgres", cfg!(feature = "postgres")),
        ("s3", cfg!(feature = "s3")),
        ("http", cfg!(feature = "http")),
    ];
    for (variable, value, feature) in settings {
        if built.contains(&(feature, true)) {
            continue;
        }
        let output = Command::new(env!("CARGO_BIN_EXE_backstitch"))
            .args(["config", "check"])
            .env(format!("BACKSTITCH__{variable}"), value)
            .output()
            .expect("starting the binary");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{variable}: {stderr}");
        assert!(
            stderr.contains(&format!("`{feature}`")),
            "{variable}: {stderr}"
        );
        assert!(stderr.contains(variable), "{variable}: {stderr}");
    }
}

/// Commands and flags of Ballista are usage errors that name the feature.
#[cfg(not(feature = "scale"))]
#[test]
fn a_missing_ballista_feature_is_named() {
    for args in [
        &["scheduler"][..],
        &["executor"],
        &["batch", "run", "--engine", "ballista://127.0.0.1:50050"],
    ] {
        let output = backstitch(args);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains("`scale`"), "{args:?}: {stderr}");
    }
}
