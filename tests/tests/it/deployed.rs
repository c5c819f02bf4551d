//! Deployment files match the build. The example configuration is valid, alerts and dashboards use
//! existing metrics, each alert has its runbook page, and each metric has a help text.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::Value;
use tests::place::Place;
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
fn text_of_sources() -> String {
    let mut files = Vec::new();
    for part in [
        "stores", "stored", "speed", "batch", "serving", "scale", "cli",
    ] {
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
fn measured() -> BTreeSet<String> {
    let text = text_of_sources();
    let texts = text.split('"').skip(1);
    let names = texts.filter(|text| text.starts_with("backstitch_"));
    names.map(str::to_owned).collect()
}

/// Metrics that are certainly recorded: the first text of each macro.
fn measured_by_name() -> BTreeSet<String> {
    let text = text_of_sources();
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
fn what_is_measured_says_what_it_means() {
    let told = metrics(&read("cli/src/monitoring.rs"));
    let named = measured_by_name();
    assert!(named.len() > 20, "{named:?}");
    let untold: Vec<_> = named.difference(&told).collect();
    assert!(
        untold.is_empty(),
        "cli/src/monitoring.rs says nothing of {untold:?}"
    );
    assert_eq!(
        metrics(&read("docs/metrics.md")),
        told_of(&told),
        "docs/metrics.md"
    );
    let measured = measured();
    // The list itself records the build information.
    let own = ["backstitch_", "backstitch_build_info"];
    let never: Vec<_> = told
        .iter()
        .filter(|name| !measured.contains(*name) && !own.contains(&name.as_str()))
        .collect();
    assert!(never.is_empty(), "nobody measures {never:?}");
}

/// The complete names, without prefixes.
fn told_of(told: &BTreeSet<String>) -> BTreeSet<String> {
    let whole = told.iter().filter(|name| *name != "backstitch_");
    whole.cloned().collect()
}

#[test]
fn alerts_and_dashboards_look_at_what_is_measured() {
    let measured = measured();
    for path in [
        "deploy/helm/backstitch/alerts.yaml",
        "deploy/monitoring/dashboard.json",
        "deploy/helm/backstitch/templates/speed.yaml",
    ] {
        let named = metrics(&read(path));
        assert!(!named.is_empty(), "{path}");
        let unknown: Vec<_> = named
            .iter()
            .filter(|name| !measured.contains(*name) && !name.starts_with("backstitch_process_"))
            .collect();
        assert!(unknown.is_empty(), "{path}: nobody measures {unknown:?}");
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
fn each_alert_has_its_page() {
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
    let kept = std::fs::read_dir(root().join("docs/runbooks")).expect("a folder");
    assert_eq!(kept.count(), pages.len(), "a page without an alert");
}

/// The steps of the README with the file, in a namespace of its own.
#[test]
fn the_example_of_a_configuration_is_one_on_servers() {
    let example = read("deploy/config/servers.toml");
    let named = "namespace = \"example\"";
    assert_eq!(example.matches(named).count(), 1);
    assert_eq!(example.matches("log.partitions = 4").count(), 1);
    let place = Place::with_partitions(4, &Addresses::default(), "");
    let own = format!("namespace = \"{}\"", place.options().namespace);
    let config = place.data().join(CONFIG);
    std::fs::write(config, example.replace(named, &own)).expect("a configuration");
    for command in ["migrate", "check"] {
        done(place.data(), &[command]);
    }
    let play = r#"{"event_id":"one","track_id":2,"owner_id":1,"listener_id":3,"kind":"play","at":"2026-03-01T10:00:00Z"}"#;
    place.ingest("plays", play);
    done(place.data(), &["speed", "--until-caught-up"]);
    done(place.data(), &["batch", "run"]);
    let server = Server::start(place.data(), &[]);
    let asked = "/api/v1/stats/plays/total?owner_id=1&kind=play";
    let answer = server.client.json(asked);
    assert_eq!(answer["count"], 1, "{answer}");
}
