//! The pages of plays: the events that their numbers include, and their words.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use jobs::Catalog;
use serving::Serving;

use super::{decode_link, find_texts_between};
use crate::memory_stores::{LayerProgress, MemoryStores, NOW_MS, PlayEvent};
use crate::requests::{get, no_wait_options};

/// A definition of plays by owner and track that does not tell plays from downloads.
const DEFINITION: &str = r#"
kind = "aggregate"
metric = "plays"
source = "plays"
layers = "both"
group = ["owner_id"]
bucket = "quarter"
partition = "day"
dimensions = ["track_id"]
"#;
const QUERY: &str = "
SELECT owner_id, date_bin(INTERVAL '15 minutes', at) AS bucket, track_id, sum(amount) AS count
FROM plays
GROUP BY owner_id, date_bin(INTERVAL '15 minutes', at), track_id
";

/// Starts a service with events of owner 1: today six plays of six listeners and two downloads,
/// and three plays a day and two hours earlier. Run 1 is complete, and run 2 is sealed.
pub(super) fn start_service(catalog: &Catalog) -> (Serving, Arc<MemoryStores>) {
    let event = |kind: &str, day: i64, n: i64| PlayEvent {
        time_s: NOW_MS / 1000 - 26 * 3_600 * day - 60 * n,
        int_columns: BTreeMap::from([("owner_id", 1), ("track_id", n % 3), ("listener_id", n)]),
        text_columns: BTreeMap::from([("kind", kind.to_owned()), ("country", "DE".to_owned())]),
        amount: 1,
    };
    let previous = (0..3).map(|n| event("play", 1, n));
    let plays = (0..6).map(|n| event("play", 0, n));
    let downloads = (0..2).map(|n| event("download", 0, n));
    let events: Vec<PlayEvent> = previous.chain(plays).chain(downloads).collect();
    let progress = LayerProgress {
        cuts: vec![2, 4],
        newest_complete: 1,
        pruned: 1,
        written_remainder: 0,
    };
    MemoryStores::from_history(catalog, &events, 2, &progress)
        .start_service(catalog, no_wait_options())
}

/// Returns the API requests of a page.
fn find_requests(page: &str) -> Vec<String> {
    let commands = find_texts_between(page, "<pre><code>curl ", "</code>");
    commands.into_iter().map(decode_link).collect()
}

#[tokio::test]
async fn a_page_counts_plays_unless_another_kind_is_selected() {
    let (serving, _) = start_service(&Catalog::built_in().unwrap());
    for (query, events, count, parameter) in [
        ("", "Plays", 6, Some("kind=play&")),
        ("&kind=play", "Plays", 6, Some("kind=play&")),
        ("&kind=download", "Downloads", 2, Some("kind=download&")),
        ("&kind=all", "Plays and downloads", 8, None),
    ] {
        let (_, page) = get(&serving, &format!("/owners/1?period=today{query}")).await;
        for text in [
            format!("<h1>{events} of owner 1</h1>"),
            format!("<dt>{events}</dt><dd class=\"big\">{count}</dd>"),
            format!("<th scope=\"col\">{events}</th>"),
            format!(" selected>{events}</option>"),
        ] {
            assert!(page.contains(&text), "{query}: {text}: {page}");
        }
        // Total, distinct listeners, series and breakdown.
        let requests = find_requests(&page);
        assert_eq!(requests.len(), 4, "{requests:?}");
        for request in requests {
            match parameter {
                Some(parameter) => assert!(request.contains(parameter), "{query}: {request}"),
                None => assert!(!request.contains("kind="), "{query}: {request}"),
            }
        }
        // Links keep the selection.
        let tabs = find_texts_between(&page, "aria-label=\"Breakdown by\">", "</ul>");
        let tab = decode_link(tabs[0]);
        assert!(tab.contains(&format!("{query}&")), "{query}: {tab}");
    }
}

#[tokio::test]
async fn a_metric_without_kinds_offers_none() {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("views-without-kinds");
    let view = root.join("plays_owner_track");
    std::fs::create_dir_all(&view).unwrap();
    std::fs::write(view.join("job.toml"), DEFINITION).unwrap();
    std::fs::write(view.join("query.sql"), QUERY).unwrap();
    let (serving, _) = start_service(&Catalog::read(&root).unwrap());
    for query in ["", "&kind=download"] {
        let (response, page) = get(&serving, &format!("/owners/1?period=today{query}")).await;
        assert_eq!(response.status(), 200, "{query}: {page}");
        let total = "<dt>Plays</dt><dd class=\"big\">8</dd>";
        assert!(page.contains(total), "{query}: {page}");
        assert!(!page.contains("name=\"kind\""), "{query}: {page}");
        for request in find_requests(&page) {
            assert!(!request.contains("kind="), "{query}: {request}");
        }
    }
}

#[tokio::test]
async fn numbers_are_compared_and_estimates_have_their_error() {
    let (serving, _) = start_service(&Catalog::built_in().unwrap());
    let (_, page) = get(&serving, "/owners/1?period=today&compare=previous").await;
    let total = "+100 %</span> <span class=\"small quiet\">vs 3 in the previous period</span>";
    assert!(page.contains(total), "{page}");
    let tiles = find_texts_between(&page, "<dt>Unique listeners</dt>", "</div>");
    let tile = tiles[0];
    assert!(tile.starts_with("<dd class=\"big\">≈ 6 <span"), "{tile}");
    assert!(tile.contains(">(±") && tile.contains(" %)<"), "{tile}");
    assert!(tile.contains("vs ≈ 3 in the previous period"), "{tile}");
}

#[tokio::test]
async fn an_empty_period_says_what_to_do() {
    let (serving, _) = start_service(&Catalog::built_in().unwrap());
    let (_, page) = get(&serving, "/owners/2?period=7d&kind=download").await;
    let text = "No downloads in this period: choose a longer one.";
    assert!(page.contains(text), "{page}");
}
