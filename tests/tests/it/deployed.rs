//! Deployment files match the build. The example configuration is valid, alerts and dashboards use
//! existing metrics, each alert has its runbook page, and each metric has a help text.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::Value;
use tests::installation::Installation;
use tests::process::{CONFIG, Server, done};
use tests::servers::Addresses;

use crate::tidy::{root, sources};

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The names of metrics in a text; histograms without their suffixes.
fn metrics(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("backstitch_") {
        let before = text[..at].chars().next_back();
        if before.is_some_and(|char| char.is_ascii_alphanumeric() || char == '_') {
            continue;
        }
        let rest = &text[at..];
        let is_of_name =
            |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '_';
        let end = rest.find(|char| !is_of_name(char)).unwrap_or(rest.len());
        let name = &rest[..end];
        let name = name.strip_suffix("_bucket").unwrap_or(name);
        found.insert(name.to_owned());
    }
    found
}

/// The text of all sources, without the list of metrics.
fn source_text() -> String {
    let mut files = Vec::new();
    for part in ["stores", "speed", "batch", "serving", "scale", "cli"] {
        let folder = root().join(part).join("src");
        if folder.is_dir() {
            sources(&folder, &mut files);
        }
    }
    let is_list = |path: &PathBuf| path.ends_with("cli/src/monitoring.rs");
    let files = files.iter().filter(|path| !is_list(path));
    files
        .map(|path| std::fs::read_to_string(path).expect("a file"))
        .collect()
}

/// Texts in the sources that could be names of metrics.
fn metric_names() -> BTreeSet<String> {
    let text = source_text();
    let texts = text.split('"').skip(1);
    let names = texts.filter(|text| text.starts_with("backstitch_"));
    names.map(str::to_owned).collect()
}

/// Metrics that are certainly recorded: the first text of each macro.
fn recorded_metrics() -> BTreeSet<String> {
    let text = source_text();
    let mut found = BTreeSet::new();
    for kind in ["counter!(", "gauge!(", "histogram!("] {
        for (at, _) in text.match_indices(kind) {
            let rest = text[at + kind.len()..].trim_start();
            if let Some(name) = rest
                .strip_prefix('"')
                .and_then(|rest| rest.split('"').next())
            {
                found.insert(name.to_owned());
            }
        }
    }
    found
}

#[test]
fn each_metric_has_a_help_text() {
    let documented = metrics(&read("cli/src/monitoring.rs"));
    let named = recorded_metrics();
    assert!(named.len() > 20, "{named:?}");
    let untold: Vec<_> = named.difference(&documented).collect();
    assert!(
        untold.is_empty(),
        "cli/src/monitoring.rs does not describe {untold:?}"
    );
    assert_eq!(
        metrics(&read("docs/metrics.md")),
        complete_names(&documented),
        "docs/metrics.md"
    );
    let metric_names = metric_names();
    // The list itself records the build information.
    let known_exceptions = ["backstitch_", "backstitch_build_info"];
    let never: Vec<_> = documented
        .iter()
        .filter(|name| !metric_names.contains(*name) && !known_exceptions.contains(&name.as_str()))
        .collect();
    assert!(never.is_empty(), "no code records {never:?}");
}

/// The complete names, without prefixes.
fn complete_names(documented: &BTreeSet<String>) -> BTreeSet<String> {
    let whole = documented.iter().filter(|name| *name != "backstitch_");
    whole.cloned().collect()
}

#[test]
fn alerts_and_dashboards_use_existing_metrics() {
    let metric_names = metric_names();
    for path in [
        "deploy/helm/backstitch/alerts.yaml",
        "deploy/monitoring/dashboard.json",
        "deploy/helm/backstitch/templates/speed.yaml",
    ] {
        let named = metrics(&read(path));
        assert!(!named.is_empty(), "{path}");
        let unknown: Vec<_> = named
            .iter()
            .filter(|name| {
                !metric_names.contains(*name) && !name.starts_with("backstitch_process_")
            })
            .collect();
        assert!(unknown.is_empty(), "{path}: no code records {unknown:?}");
    }
    let dashboard: Value =
        serde_json::from_str(&read("deploy/monitoring/dashboard.json")).expect("JSON");
    assert!(
        dashboard["panels"]
            .as_array()
            .is_some_and(|panels| panels.len() > 10)
    );
}

#[test]
fn each_alert_has_a_runbook() {
    let alerts = read("deploy/helm/backstitch/alerts.yaml");
    let count = alerts.matches("- alert: ").count();
    let pages: BTreeSet<&str> = alerts
        .lines()
        .filter_map(|line| line.trim().strip_prefix("runbook_url: "))
        .collect();
    assert_eq!((count, pages.len()), (15, 15));
    let made_to_fire = read("deploy/monitoring/alerts_test.yaml");
    for name in alerts
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
    {
        assert!(
            made_to_fire.contains(&format!("alertname=\"{name}\"")),
            "{name}"
        );
    }
    for page in &pages {
        let text = read(page);
        for part in [
            "**When**",
            "**What users see**",
            "**What to do**",
            "**Over when**",
        ] {
            assert!(text.contains(part), "{page}: {part}");
        }
    }
    let entries = std::fs::read_dir(root().join("docs/runbooks")).expect("a folder");
    assert_eq!(entries.count(), pages.len(), "a page without an alert");
}

/// The steps of the README with the file, in a namespace of its own.
#[test]
fn the_example_configuration_is_valid_on_servers() {
    let example = read("deploy/config/servers.toml");
    let named = "namespace = \"example\"";
    assert_eq!(example.matches(named).count(), 1);
    assert_eq!(example.matches("log.partitions = 4").count(), 1);
    let installation = Installation::with_partitions(4, &Addresses::default(), "");
    let namespace_line = format!("namespace = \"{}\"", installation.options().namespace);
    let config = installation.data().join(CONFIG);
    std::fs::write(config, example.replace(named, &namespace_line)).expect("a configuration");
    for command in ["migrate", "check"] {
        done(installation.data(), &[command]);
    }
    let play = r#"{"event_id":"one","track_id":2,"owner_id":1,"listener_id":3,"kind":"play","at":"2026-03-01T10:00:00Z"}"#;
    installation.ingest("plays", play);
    done(installation.data(), &["speed", "--until-caught-up"]);
    done(installation.data(), &["batch", "run"]);
    let server = Server::start(installation.data(), &[]);
    let request_path = "/api/v1/stats/plays/total?owner_id=1&kind=play";
    let answer = server.client.json(request_path);
    assert_eq!(answer["count"], 1, "{answer}");
}
