//! Batch runs on pages: under way, interrupted, complete or unknown.

use jobs::Catalog;
use serde_json::{Value, json};

use super::plays::start_service;
use crate::requests::{get, get_json};

/// The pages that show run 2, which is sealed.
const RUN_PAGES: [&str; 3] = ["/", "/pipeline", "/pipeline/runs/plays/2"];

#[tokio::test]
async fn a_run_that_is_under_way_is_not_an_error() {
    let (serving, stores) = start_service(&Catalog::built_in().unwrap());
    let interrupted = "its process ended early";
    for uri in RUN_PAGES {
        let (_, page) = get(&serving, uri).await;
        assert!(page.contains(interrupted), "{uri}: {page}");
        assert!(!page.contains("publishing"), "{uri}: {page}");
    }
    let (_, page) = get(&serving, "/").await;
    let note = "<p class=\"note trouble\">Run 2: its process ended early";
    assert!(page.contains(note), "{page}");
    let (_, page) = get(&serving, "/pipeline").await;
    assert!(page.contains("<span class=\"pill bad\">sealed<"), "{page}");

    let leases = || stores.held_leases.lock().unwrap();
    leases().insert("batch-plays".to_owned());
    for uri in RUN_PAGES {
        let (_, page) = get(&serving, uri).await;
        assert!(!page.contains(interrupted), "{uri}: {page}");
    }
    let (_, page) = get(&serving, "/").await;
    let note = "<p class=\"note\">Run 2 is publishing, 0 ms</p>";
    assert!(page.contains(note), "{page}");
    let (_, page) = get(&serving, "/pipeline").await;
    let pill = "<span class=\"pill \">publishing, 0 ms</span>";
    assert!(page.contains(pill), "{page}");
    let (_, page) = get(&serving, "/pipeline/runs/plays/2").await;
    let state = "<span class=\"\">publishing, 0 ms</span>";
    assert!(page.contains(state), "{page}");
}

#[tokio::test]
async fn the_api_reports_how_long_a_run_is_under_way() {
    let (serving, stores) = start_service(&Catalog::built_in().unwrap());
    for (is_held, seconds, reason) in [
        (false, Value::Null, "its process ended early: "),
        (true, json!(0.0), "it is running: "),
    ] {
        if is_held {
            let mut leases = stores.held_leases.lock().unwrap();
            leases.insert("batch-plays".to_owned());
        }
        let (_, page) = get_json(&serving, "/api/v1/batch/runs").await;
        let (newest, complete) = (&page["runs"][0], &page["runs"][1]);
        assert_eq!(newest["running_seconds"], seconds, "{page}");
        let newest_reason = newest["reason"].as_str().unwrap();
        assert!(newest_reason.starts_with(reason), "{newest_reason}");
        assert_eq!(complete["running_seconds"], Value::Null, "{page}");
        let (_, run) = get_json(&serving, "/api/v1/batch/runs/2").await;
        assert_eq!(run["running_seconds"], seconds, "{run}");
    }
}

#[tokio::test]
async fn an_unknown_run_links_to_all_runs() {
    let (serving, _) = start_service(&Catalog::built_in().unwrap());
    let (response, page) = get(&serving, "/pipeline/runs/plays/1234").await;
    assert_eq!(response.status(), 404, "{page}");
    let text = "There is no run 1,234 of plays. <a href=\"/pipeline\">All runs</a>";
    assert!(page.contains(text), "{page}");
}

#[tokio::test]
async fn the_overview_shows_how_far_live_counts_are() {
    let (serving, _) = start_service(&Catalog::built_in().unwrap());
    let (_, page) = get(&serving, "/").await;
    // The log of the test is of 1970.
    let live = "<dt>Live up to</dt><dd class=\"big\"><time datetime=\"1970-01-01T00:00:00.011Z\">";
    assert!(page.contains(live), "{page}");
    assert!(page.contains("in 2 partitions"), "{page}");
}
