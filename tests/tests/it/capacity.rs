//! A capacity is never exceeded, even if many clients request the remaining capacity at once and
//! through several processes.

use std::fmt::Write as _;
use std::sync::Barrier;

use serde_json::json;
use tests::installation::Installation;
use tests::process::{Server, run_ok};

const CAPACITY: i64 = 500;
const CAPACITY_LEFT: i64 = 10;
const REQUESTS: i64 = 1_000;
/// The number of connecting athletes.
const CONNECTED: i64 = 40;
const PATH: &str = "/api/v1/applications/7/authorizations";

#[test]
fn concurrent_requests_never_exceed_the_capacity_embedded() {
    check_concurrent_requests(&Installation::embedded(), 1);
}

#[test]
fn concurrent_requests_never_exceed_the_capacity_on_servers() {
    check_concurrent_requests(&Installation::on_servers(), 2);
}

fn check_concurrent_requests(installation: &Installation, processes: usize) {
    let _file_limit = rlimit::increase_nofile_limit(u64::MAX);
    let application = json!({"id": 7, "name": "Pacer", "owner": 42, "athlete_capacity": CAPACITY});
    installation.ingest("applications", &application.to_string());
    let mut lines = String::new();
    for athlete in 0..CAPACITY - CAPACITY_LEFT {
        let row = json!({"id": athlete, "application_id": 7, "athlete_id": athlete, "created_at": "2026-01-01T00:00:00Z"});
        writeln!(lines, "{row}").expect("writing");
    }
    installation.ingest("authorizations", &lines);
    let servers = (0..processes).map(|_| Server::start(installation.data(), &[]));
    let servers: Vec<Server> = servers.collect();
    let barrier = Barrier::new(usize::try_from(REQUESTS).expect("small"));
    let answers: Vec<(i64, u16, String)> = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (n, server) in (0..REQUESTS).zip(servers.iter().cycle()) {
            let athlete = if n < CONNECTED { n } else { CAPACITY + n };
            let (client, barrier) = (server.client.clone(), &barrier);
            threads.push(scope.spawn(move || {
                let body = json!({"athlete_id": athlete}).to_string();
                barrier.wait();
                let (status, text) = client.post(PATH, body.as_bytes());
                (athlete, status, text)
            }));
        }
        let answers = threads.into_iter().map(|thread| thread.join());
        answers.map(|answer| answer.expect("an answer")).collect()
    });
    let count_status =
        |status: u16| answers.iter().filter(|answer| answer.1 == status).count() as i64;
    let counts = (count_status(201), count_status(200), count_status(403));
    let unexpected = answers
        .iter()
        .find(|answer| ![200, 201, 403].contains(&answer.1));
    assert_eq!(unexpected, None, "{counts:?}");
    assert_eq!(
        counts,
        (
            CAPACITY_LEFT,
            CONNECTED,
            REQUESTS - CAPACITY_LEFT - CONNECTED
        )
    );
    for (athlete, status, text) in &answers {
        assert_eq!(*athlete < CAPACITY, *status == 200, "{athlete}: {text}");
        let is_full = text.contains("/problems/capacity-exceeded");
        assert_eq!(*status == 403, is_full, "{text}");
    }
    run_ok(installation.data(), &["speed", "--until-caught-up"]);
    for server in &servers {
        let shown = server.client.get_json("/api/v1/applications/7");
        let counted = (&shown["connected_athletes"], &shown["athlete_capacity"]);
        assert_eq!(counted, (&json!(CAPACITY), &json!(CAPACITY)), "{shown}");
    }
}
