//! Athletes who connect over HTTP: the rate, the responses of a full application, and the delay until
//! they are counted.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::json;
use tests::process::{Server, run_ok};

use super::super::boards::{pause, write};
use super::super::load::{Load, post};
use super::super::print_figure;
use super::{Bench, LARGEST, application, application_path, count_query, format_load};

/// More posts than the time allows.
const POSTS: u64 = 30_000;
const CONNECTIONS: usize = 32;
/// Capacity of the application that becomes full.
const FULL_CAPACITY: usize = 200;
const CREATED: u16 = 201;
const FORBIDDEN: u16 = 403;
/// Number of single athletes whose delay is measured, and the maximum delay.
const FRESH: usize = 50;
pub(super) const FRESH_MAX: Duration = Duration::from_secs(60);

impl Bench {
    /// Measures the delay until an athlete who connected over HTTP is counted, with a running speed
    /// layer.
    pub(super) fn measure_freshness(&mut self, server: &Server) {
        let small = self.small();
        for (label, id) in [("the largest", LARGEST), ("a small one", small)] {
            let mut took = Vec::new();
            let mut count = self.sql.query_number(&count_query(id));
            for _ in 0..FRESH {
                let body = json!({"athlete_id": self.athlete(self.added)}).to_string();
                self.added += 1;
                let path = format!("{}/authorizations", application_path(id));
                let begun = Instant::now();
                let (status, body) = server.client.post(&path, body.as_bytes());
                assert_eq!(status, CREATED, "{body}");
                count += 1;
                while server.client.get_json(&application_path(id))["connected_athletes"] != count {
                    assert!(begun.elapsed() < FRESH_MAX, "it is counted");
                    pause(Duration::from_millis(1));
                }
                took.push(begun.elapsed().as_secs_f64() * 1_000.0);
            }
            let load = Load::new(took, 0.0, 0);
            print_figure(
                format_args!("connected over HTTP and counted, {label}, ms"),
                format_args!("p50 {:.1}, p99 {:.1}", load.p50_ms, load.p99_ms),
            );
        }
    }

    /// Connects athletes on many connections: to one application, to many, and to one that becomes
    /// full.
    pub(super) fn measure_posts(&mut self, server: &Server) {
        let (load, statuses) = self.post(server, |_| LARGEST);
        assert_eq!(statuses.keys().collect::<Vec<_>>(), [&CREATED]);
        let label = "athletes connect over HTTP, 32 connections, to the largest";
        print_figure(label, format_load(&load));
        let (first, many) = (self.applications / 2 + 1, self.applications / 4);
        let (load, statuses) = self.post(server, |number| first + number % many);
        assert_eq!(statuses.keys().collect::<Vec<_>>(), [&CREATED]);
        let label = format!("the same, to {many} small ones");
        print_figure(label, format_load(&load));
        let full = self.applications + 1;
        let line = std::iter::once(application(full, FULL_CAPACITY as u64));
        let file = write(&self.installation, "full.jsonl", line);
        run_ok(self.installation.data(), &["ingest", "applications", &file]);
        let (load, statuses) = self.post(server, |_| full);
        assert_eq!(
            statuses[&CREATED], FULL_CAPACITY,
            "no more than there is room for"
        );
        assert_eq!(statuses.keys().collect::<Vec<_>>(), [&CREATED, &FORBIDDEN]);
        assert_eq!(
            self.sql.query_number(&count_query(full)),
            FULL_CAPACITY as u64
        );
        let label = format!("the same, to one with room for {FULL_CAPACITY}");
        let refused = statuses[&FORBIDDEN];
        print_figure(
            label,
            format_args!("{}, {refused} refused", format_load(&load)),
        );
    }

    fn post(
        &mut self,
        server: &Server,
        application: impl Fn(u64) -> u64,
    ) -> (Load, BTreeMap<u16, usize>) {
        let bodies = (self.added..self.added + POSTS).map(|number| {
            let path = format!("{}/authorizations", application_path(application(number)));
            (
                path,
                json!({"athlete_id": self.athlete(number)}).to_string(),
            )
        });
        let posted = post(server.client.address(), bodies.collect(), CONNECTIONS);
        let posted = self.runtime.block_on(posted);
        self.added += POSTS;
        posted
    }
}
