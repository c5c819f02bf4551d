//! Traces, as a collector gets them: what runs, stages, micro-batches and requests are called, and whose trace a request belongs to.

use std::time::{Duration, Instant};

use tests::listener::Listener;
use tests::place::Place;
use tests::process::{CONFIG, Server, done, run};

/// Processes that go on send what they have every five seconds.
const SENT_MAX: Duration = Duration::from_secs(30);
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const TRACE_BYTES: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
const PLAY: &str = r#"{"event_id":"0192f0c1-7b2a-7000-8000-000000000001","owner_id":7,"track_id":8,"listener_id":9,"kind":"play","at":"2026-03-01T10:00:00Z"}"#;

/// A collector, and an installation that sends there.
fn begun() -> (Listener, Place) {
    let collector = Listener::new(&[]);
    let (address, _) = collector.url.rsplit_once('/').expect("a path");
    let place = Place::embedded();
    configure(&place, address);
    (collector, place)
}

fn configure(place: &Place, endpoint: &str) {
    let text = format!("[telemetry]\notlp_endpoint = \"{endpoint}\"\n");
    std::fs::create_dir_all(place.data()).expect("the data folder");
    std::fs::write(place.data().join(CONFIG), text).expect("settings");
}

/// Whether something that was sent has these bytes: texts and ids stand in messages as they are.
fn has(collector: &Listener, bytes: &[u8]) -> bool {
    let posts = collector.posts();
    let mut bodies = posts.iter().map(|post| &post.body);
    bodies.any(|body| body.windows(bytes.len()).any(|window| window == bytes))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_gets_runs_with_their_stages_and_requests_in_the_traces_of_who_asks() {
    let (collector, place) = begun();
    place.ingest("plays", PLAY);
    done(place.data(), &["speed", "--until-caught-up"]);
    done(place.data(), &["batch", "run"]);
    // A command sends what it has before it ends.
    for name in [
        "micro-batch",
        "batch run",
        "compute",
        "publish",
        "backstitch",
    ] {
        assert!(has(&collector, name.as_bytes()), "{name}");
    }

    let server = Server::start(place.data(), &[]);
    let url = format!(
        "http://{}/api/v1/stats/plays/total?owner_id=7",
        server.client.address()
    );
    let answer = ureq::get(url)
        .header("traceparent", &format!("00-{TRACE}-00f067aa0ba902b7-01"))
        .call();
    assert_eq!(answer.expect("an answer").status(), 200);
    let begun = Instant::now();
    while !has(&collector, &TRACE_BYTES.to_be_bytes()) {
        assert!(begun.elapsed() < SENT_MAX, "the asker's trace is not there");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(has(&collector, b"GET /api/v1/stats/{metric}/total"));
}

#[test]
fn a_collector_that_is_not_there_keeps_nothing_from_its_work_and_one_that_is_none_is_told() {
    let place = Place::embedded();
    // Nobody listens there.
    configure(&place, "http://127.0.0.1:9");
    place.ingest("plays", PLAY);
    done(place.data(), &["speed", "--until-caught-up"]);
    let told = run(place.data(), &["batch", "run", "--json"]);
    let said = String::from_utf8_lossy(&told.stderr);
    assert!(told.status.success(), "{said}");
    assert!(said.contains("traces are not taken"), "{said}");
    assert_eq!(said.lines().count(), 1, "it is told once: {said}");

    for endpoint in [
        "collector:4318",
        "unix:/run/collector",
        "http://me:sesame@127.0.0.1:9",
        "http://127.0.0.1:9?key=sesame",
        "",
    ] {
        configure(&place, endpoint);
        let refused = run(place.data(), &["check"]);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains("telemetry.otlp_endpoint"), "{said}");
        assert!(!said.contains("sesame"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}
