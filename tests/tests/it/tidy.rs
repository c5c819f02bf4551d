//! The invariants of ARCHITECTURE.md that a machine can check.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The allowed dependencies of each crate.
const ALLOWED: [(&str, &[&str]); 10] = [
    ("schemas", &[]),
    ("jobs", &["schemas"]),
    ("stores", &["schemas", "jobs"]),
    ("speed", &["schemas", "jobs", "stores"]),
    ("batch", &["schemas", "jobs", "stores"]),
    ("serving", &["schemas", "jobs", "stores"]),
    ("scale", &[]),
    ("showcase", &["schemas", "stores"]),
    (
        "cli",
        &[
            "schemas", "jobs", "stores", "speed", "batch", "serving", "scale", "showcase",
        ],
    ),
    (
        "tests",
        &["schemas", "jobs", "stores", "speed", "batch", "serving"],
    ),
];
/// Client libraries, each with the only crate that may import it.
const CLIENTS: [(&str, &str); 11] = [
    ("arrow_avro", "schemas"),
    ("sqlx", "stores"),
    ("object_store", "stores"),
    ("rdkafka", "stores"),
    ("redis", "stores"),
    ("scylla", "stores"),
    ("axum", "serving"),
    ("ballista_core", "scale"),
    ("ballista_executor", "scale"),
    ("ballista_scheduler", "scale"),
    ("clap", "cli"),
];
const LINES_MAX: usize = 800;

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

pub(crate) fn find_sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            find_sources(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

fn read_sources_by_crate() -> BTreeMap<&'static str, Vec<(PathBuf, String)>> {
    let read = |name: &'static str| {
        let mut files = Vec::new();
        find_sources(&root().join(name), &mut files);
        let texts = files.into_iter().map(|path| {
            let text = std::fs::read_to_string(&path).expect("a source file");
            (path, text)
        });
        (name, texts.collect())
    };
    ALLOWED.iter().map(|(name, _)| read(name)).collect()
}

#[test]
fn crates_depend_only_on_allowed_crates() {
    for (name, allowed) in ALLOWED {
        let manifest = root().join(name).join("Cargo.toml");
        let manifest = std::fs::read_to_string(&manifest).expect("a manifest");
        let dependencies = manifest
            .split("[dev-dependencies]")
            .next()
            .unwrap_or_default();
        for (other, _) in ALLOWED {
            let is_dependency = dependencies.lines().any(|line| {
                line.starts_with(&format!("{other}.workspace"))
                    || line.starts_with(&format!("{other} = {{"))
            });
            assert!(
                !is_dependency || allowed.contains(&other),
                "{name} must not depend on {other}"
            );
        }
    }
}

#[test]
fn only_one_crate_imports_each_client_library() {
    for (name, files) in read_sources_by_crate() {
        for (path, text) in files {
            for (client, owner) in CLIENTS {
                // An adapter's module may have the name of its library.
                let text = text.replace(&format!("stores::{client}::"), "");
                let is_imported = text.contains(&format!("{client}::"));
                let is_exempt = name == "tests" || name == "jobs" && client == "object_store";
                assert!(
                    !is_imported || owner == name || is_exempt,
                    "{} imports {client}",
                    path.display()
                );
            }
        }
    }
}

#[test]
fn every_module_has_a_doc_comment_and_is_short_enough() {
    for (path, text) in read_sources_by_crate().into_values().flatten() {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let is_exempt = name == "build.rs" || name == "tests.rs" || name.ends_with("_tests.rs");
        assert!(
            is_exempt || text.starts_with("//!"),
            "{} does not begin with //!",
            path.display()
        );
        let lines = text.lines().count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines", path.display());
    }
}

#[test]
fn no_module_has_a_meaningless_name() {
    for (path, _) in read_sources_by_crate().into_values().flatten() {
        let stem = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let vague = ["utils", "util", "common", "helpers", "manager", "misc"];
        assert!(!vague.contains(&stem.as_str()), "{}", path.display());
    }
}
