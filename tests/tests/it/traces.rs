//! Traces that a collector receives: the names of runs, stages, micro-batches and requests, and the
//! trace context of a request.

use std::time::{Duration, Instant};

use tests::installation::Installation;
use tests::process::{CONFIG, Server, run, run_ok};
use tests::webhook_receiver::WebhookReceiver;

/// Limit for the arrival of a span: running processes send them every five seconds.
const SENT_MAX: Duration = Duration::from_secs(30);
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const TRACE_BYTES: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
const PLAY: &str = r#"{"event_id":"0192f0c1-7b2a-7000-8000-000000000001","owner_id":7,"track_id":8,"listener_id":9,"kind":"play","at":"2026-03-01T10:00:00Z"}"#;

/// A collector, and an installation that sends traces to it.
fn traced_installation() -> (WebhookReceiver, Installation) {
    let collector = WebhookReceiver::new(&[]);
    let (address, _) = collector.url.rsplit_once('/').expect("a path");
    let installation = Installation::embedded();
    configure(&installation, address);
    (collector, installation)
}

fn configure(installation: &Installation, endpoint: &str) {
    let text = format!("[telemetry]\notlp_endpoint = \"{endpoint}\"\n");
    std::fs::create_dir_all(installation.data()).expect("the data folder");
    std::fs::write(installation.data().join(CONFIG), text).expect("settings");
}

/// Searches the received messages for bytes: Protobuf stores texts and ids unchanged.
fn has_received(collector: &WebhookReceiver, bytes: &[u8]) -> bool {
    let posts = collector.posts();
    let mut bodies = posts.iter().map(|post| &post.body);
    bodies.any(|body| body.windows(bytes.len()).any(|window| window == bytes))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_receives_runs_with_stages_and_requests_with_trace_context() {
    let (collector, installation) = traced_installation();
    installation.ingest("plays", PLAY);
    run_ok(installation.data(), &["speed", "--until-caught-up"]);
    run_ok(installation.data(), &["batch", "run"]);
    // A command sends its spans before it ends.
    for name in [
        "micro-batch",
        "batch run",
        "compute",
        "publish",
        "backstitch",
    ] {
        assert!(has_received(&collector, name.as_bytes()), "{name}");
    }

    let server = Server::start(installation.data(), &[]);
    let url = format!(
        "http://{}/api/v1/stats/plays/total?owner_id=7",
        server.client.address()
    );
    let answer = ureq::get(url)
        .header("traceparent", &format!("00-{TRACE}-00f067aa0ba902b7-01"))
        .call();
    assert_eq!(answer.expect("an answer").status(), 200);
    let started = Instant::now();
    while !has_received(&collector, &TRACE_BYTES.to_be_bytes()) {
        assert!(
            started.elapsed() < SENT_MAX,
            "the trace of the request is missing"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(has_received(
        &collector,
        b"GET /api/v1/stats/{metric}/total"
    ));
}

#[test]
fn an_unreachable_collector_causes_one_warning_and_an_invalid_one_an_error() {
    let installation = Installation::embedded();
    // An address without a listener.
    configure(&installation, "http://127.0.0.1:9");
    installation.ingest("plays", PLAY);
    run_ok(installation.data(), &["speed", "--until-caught-up"]);
    let output = run(installation.data(), &["batch", "run", "--json"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("the collector rejects traces"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "one warning: {stderr}");

    for endpoint in [
        "collector:4318",
        "unix:/run/collector",
        "http://me:sesame@127.0.0.1:9",
        "http://127.0.0.1:9?key=sesame",
        "",
    ] {
        configure(&installation, endpoint);
        let refused = run(installation.data(), &["check"]);
        let stderr = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains("telemetry.otlp_endpoint"), "{stderr}");
        assert!(!stderr.contains("sesame"), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}
