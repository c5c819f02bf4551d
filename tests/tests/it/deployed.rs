//! Deployment files match the build. The example configuration is valid, alerts and dashboards use
//! existing metrics, each alert has its runbook page, and each metric has a help text.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::Value;
use tests::installation::Installation;
use tests::process::{CONFIG, Server, run_ok};
use tests::servers::Addresses;

use crate::tidy::{find_sources, root};

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The names of metrics in a text; histograms without their suffixes.
fn find_metric_names(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (start, _) in text.match_indices("backstitch_") {
        let previous = text[..start].chars().next_back();
        if previous.is_some_and(|char| char.is_ascii_alphanumeric() || char == '_') {
            continue;
        }
        let tail = &text[start..];
        let is_of_name =
            |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '_';
        let end = tail.find(|char| !is_of_name(char)).unwrap_or(tail.len());
        let name = &tail[..end];
        let name = name.strip_suffix("_bucket").unwrap_or(name);
        names.insert(name.to_owned());
    }
    names
}

/// The text of all sources, without the list of metrics.
fn source_text() -> String {
    let mut files = Vec::new();
    for crate_name in ["stores", "speed", "batch", "serving", "scale", "cli"] {
        let folder = root().join(crate_name).join("src");
        if folder.is_dir() {
            find_sources(&folder, &mut files);
        }
    }
    let is_list = |path: &PathBuf| path.ends_with("cli/src/monitoring.rs");
    let files = files.iter().filter(|path| !is_list(path));
    files
        .map(|path| std::fs::read_to_string(path).expect("a file"))
        .collect()
}

/// Texts in the sources that could be names of metrics.
fn list_possible_metric_names() -> BTreeSet<String> {
    let text = source_text();
    let texts = text.split('"').skip(1);
    let names = texts.filter(|text| text.starts_with("backstitch_"));
    names.map(str::to_owned).collect()
}

/// Metrics that are certainly recorded: the first text of each macro.
fn list_recorded_metrics() -> BTreeSet<String> {
    let text = source_text();
    let mut names = BTreeSet::new();
    for kind in ["counter!(", "gauge!(", "histogram!("] {
        for (start, _) in text.match_indices(kind) {
            let tail = text[start + kind.len()..].trim_start();
            if let Some(name) = tail
                .strip_prefix('"')
                .and_then(|quoted| quoted.split('"').next())
            {
                names.insert(name.to_owned());
            }
        }
    }
    names
}

#[test]
fn each_metric_has_a_help_text() {
    let documented = find_metric_names(&read("cli/src/monitoring.rs"));
    let named = list_recorded_metrics();
    assert!(named.len() > 20, "{named:?}");
    let undescribed: Vec<_> = named.difference(&documented).collect();
    assert!(
        undescribed.is_empty(),
        "cli/src/monitoring.rs does not describe {undescribed:?}"
    );
    assert_eq!(
        find_metric_names(&read("docs/metrics.md")),
        complete_names(&documented),
        "docs/metrics.md"
    );
    let metric_names = list_possible_metric_names();
    // The list itself records the build information.
    let known_exceptions = ["backstitch_", "backstitch_build_info"];
    let unrecorded: Vec<_> = documented
        .iter()
        .filter(|name| !metric_names.contains(*name) && !known_exceptions.contains(&name.as_str()))
        .collect();
    assert!(unrecorded.is_empty(), "no code records {unrecorded:?}");
}

/// The complete names, without prefixes.
fn complete_names(documented: &BTreeSet<String>) -> BTreeSet<String> {
    let complete = documented.iter().filter(|name| *name != "backstitch_");
    complete.cloned().collect()
}

#[test]
fn alerts_and_dashboards_use_existing_metrics() {
    let metric_names = list_possible_metric_names();
    for path in [
        "deploy/helm/backstitch/alerts.yaml",
        "deploy/monitoring/dashboard.json",
        "deploy/helm/backstitch/templates/speed.yaml",
    ] {
        let named = find_metric_names(&read(path));
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
    let tests = read("deploy/monitoring/alerts_test.yaml");
    for name in alerts
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
    {
        assert!(tests.contains(&format!("alertname=\"{name}\"")), "{name}");
    }
    for page in &pages {
        let text = read(page);
        for heading in [
            "**When**",
            "**What users see**",
            "**What to do**",
            "**Over when**",
        ] {
            assert!(text.contains(heading), "{page}: {heading}");
        }
    }
    let entries = std::fs::read_dir(root().join("docs/runbooks")).expect("a folder");
    assert_eq!(entries.count(), pages.len(), "a page without an alert");
}

/// The steps of the README with the file, in a namespace of its own.
#[test]
fn the_example_configuration_is_valid_on_servers() {
    let example = read("deploy/config/servers.toml");
    let namespace_example = "namespace = \"example\"";
    assert_eq!(example.matches(namespace_example).count(), 1);
    assert_eq!(example.matches("log.partitions = 4").count(), 1);
    let installation = Installation::with_partitions(4, &Addresses::default(), "");
    let namespace_line = format!("namespace = \"{}\"", installation.options().namespace);
    let config = installation.data().join(CONFIG);
    std::fs::write(config, example.replace(namespace_example, &namespace_line))
        .expect("a configuration");
    for command in ["migrate", "check"] {
        run_ok(installation.data(), &[command]);
    }
    let play = r#"{"event_id":"one","track_id":2,"owner_id":1,"listener_id":3,"kind":"play","at":"2026-03-01T10:00:00Z"}"#;
    installation.ingest("plays", play);
    run_ok(installation.data(), &["speed", "--until-caught-up"]);
    run_ok(installation.data(), &["batch", "run"]);
    let server = Server::start(installation.data(), &[]);
    let request_path = "/api/v1/stats/plays/total?owner_id=1&kind=play";
    let answer = server.client.get_json(request_path);
    assert_eq!(answer["count"], 1, "{answer}");
}
