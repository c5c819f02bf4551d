//! Metrics of requests.

use std::collections::BTreeMap;

use metrics_exporter_prometheus::PrometheusBuilder;
use serving::ServingOptions;

use crate::memory_stores::boards;
use crate::requests::get;

/// Pages call the API within the process. Those calls must not dilute the error rate of API
/// requests.
#[tokio::test]
async fn counts_pages_and_their_api_calls_separately() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let _recorder_guard = metrics::set_default_local_recorder(&recorder);
    let (serving, _) = boards::start_service(ServingOptions::default());
    for uri in [
        "/segments/1",
        "/api/v1/boards/segments/1",
        "/livez",
        "/nowhere",
    ] {
        get(&serving, uri).await;
    }
    let text = handle.render();
    let api_counts = [
        ("/api/v1/boards/{name}/{key}".to_owned(), 1),
        ("/livez".to_owned(), 1),
        ("unknown".to_owned(), 1),
    ];
    assert_eq!(
        parse_counts_by_route(&text, "backstitch_http_requests_total"),
        api_counts.into(),
        "{text}"
    );
    let page_counts = [("/segments/{segment_id}".to_owned(), 1)];
    assert_eq!(
        parse_counts_by_route(&text, "backstitch_pages_requests_total"),
        page_counts.into(),
        "{text}"
    );
    let reads = parse_counts_by_route(&text, "backstitch_pages_reads_total");
    assert_eq!(reads["/api/v1/boards/{name}/{key}"], 1, "{text}");
    assert_eq!(reads["/api/v1/segments/{segment_id}/counts"], 1, "{text}");
    for name in ["http_request", "pages_request", "pages_read"] {
        let sum = format!("backstitch_{name}_duration_seconds_sum{{");
        assert!(text.contains(&sum), "{sum}: {text}");
    }
}

/// Parses the values of a counter by the label `route`.
fn parse_counts_by_route(text: &str, metric: &str) -> BTreeMap<String, u32> {
    let prefix = format!("{metric}{{");
    let lines = text.lines().filter(|line| line.starts_with(&prefix));
    let counts = lines.map(|line| {
        let (_, labels) = line.split_once("route=\"").unwrap();
        let (route, _) = labels.split_once('"').unwrap();
        let (_, count) = line.rsplit_once(' ').unwrap();
        (route.to_owned(), count.parse().unwrap())
    });
    counts.collect()
}
