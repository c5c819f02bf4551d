//! Damage: another program changes, deletes or truncates stored data. A comparison finds and names
//! each kind, and the Reconciler repairs it; a second repair changes nothing. Questions are asked
//! all the time, and undamaged data stays exact.

mod boards;
mod counts;
mod files;
mod kills;

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tests::http::Client;
use tests::process::run;
use tests::recount::{Question, Recount};

use super::scene::Scene;
use super::{print_result, seed};

/// The owner of the damaged plays. No random question is about this owner, so all answers must be
/// exact.
const OWNER: i64 = 9;
const TRACK: i64 = 90;
/// Run records may be cached for less than this time.
const RUN_CACHE_TIME: Duration = Duration::from_millis(600);
const PAUSE: Duration = Duration::from_millis(300);
/// The lease of a killed process expires within this number of pauses.
const LEASE_PAUSES_MAX: usize = 100;

/// Plays of the owner; each has its own id, counted from `first`.
fn owner_plays(first: u64, count: u64) -> Vec<String> {
    let play = |n: u64| {
        let country = ["SE", "DE"].get(usize::try_from(n % 3).expect("small"));
        let play = json!({
            "event_id": format!("own{n}"),
            "owner_id": OWNER,
            "track_id": TRACK + i64::try_from(n % 2).expect("small"),
            "listener_id": 900 + n % 5,
            "country": country,
            "kind": "play",
            "at": format!("2026-03-0{}T{:02}:{:02}:00Z", 1 + n % 3, n % 24, n * 7 % 60),
        });
        play.to_string()
    };
    (first..first + count).map(play).collect()
}

/// The output of a comparison.
#[derive(Debug)]
struct Comparison {
    status: i32,
    report: Value,
    message: String,
}

impl Scene {
    /// Runs `reconcile`, and retries while a killed process still holds the lease.
    async fn reconcile(&self, view: &str, extra_args: &[&str]) -> Comparison {
        let expected = match view.starts_with("plays_") {
            _ if extra_args.contains(&"--expected") => &[][..],
            true => &["--expected", "archive"],
            false => &["--expected", "canonical"],
        };
        let args = [
            &["--json", "restorate", "--view", view],
            expected,
            extra_args,
        ]
        .concat();
        for _ in 0..LEASE_PAUSES_MAX {
            let output = run(self.installation.data(), &args);
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            // A busy machine may be too slow for such a short lease.
            if message.contains("is under way") || message.contains("lease") {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            return Comparison {
                status: output.status.code().expect("a status"),
                report: serde_json::from_slice(&output.stdout).unwrap_or_default(),
                message,
            };
        }
        panic!("the lease of a killed reconciliation does not end");
    }

    /// A comparison finds exactly these causes.
    async fn expect_causes(&self, view: &str, causes: &[&str]) -> Value {
        let comparison = self.reconcile(view, &[]).await;
        assert_eq!(comparison.status, 3, "{comparison:?}");
        let found_causes = comparison.report["causes"].as_object().expect("causes");
        let found_causes: BTreeSet<&str> = found_causes.keys().map(String::as_str).collect();
        assert_eq!(
            found_causes,
            causes.iter().copied().collect(),
            "{comparison:?}"
        );
        comparison.report
    }

    /// Repairs all differences, returns the report, and checks that nothing is left to repair.
    async fn repair_all(&mut self, view: &str) -> Value {
        let args = ["--apply", "--reason", "damage"];
        let repair = self.reconcile(view, &args).await;
        assert_eq!(repair.status, 0, "{repair:?}");
        let applied = repair.report["applied"].clone();
        assert!(applied.is_object(), "{repair:?}");
        self.settle().await;
        tokio::time::sleep(RUN_CACHE_TIME).await;
        self.expect_no_difference(view).await;
        applied
    }

    /// Nothing differs, and a repair does nothing.
    async fn expect_no_difference(&self, view: &str) {
        let repeated = self.reconcile(view, &["--apply"]).await;
        assert_eq!(
            (repeated.status, &repeated.report["differ"]),
            (0, &json!(0)),
            "{repeated:?}"
        );
        let no_changes = json!({"rows": 0, "deleted": 0, "run": null, "files": [], "corrections": 0,
            "notifications": 0, "restoration": null, "damaged": 0});
        assert_eq!(repeated.report["applied"], no_changes, "{repeated:?}");
        assert_eq!(repeated.report["live_unknown"], Value::Null, "{repeated:?}");
        let warnings = repeated.report["warnings"].as_array().map_or(0, Vec::len);
        assert_eq!(warnings, 0, "{repeated:?}");
    }

    /// Returns by how much the served total of the owner exceeds the events. Its explanation must add
    /// up to the total.
    async fn excess_served(&self) -> i64 {
        self.excess_from(&self.server.client).await
    }

    /// The same from another server process.
    async fn excess_from(&self, client: &Client) -> i64 {
        let path = format!("/api/v1/stats/plays/total?owner_id={OWNER}");
        let served = client.fetch_json(&path).await;
        let explanation = client
            .fetch_json(&format!("/api/v1/explain?metric=plays&owner_id={OWNER}"))
            .await;
        assert_eq!(
            served["count"], explanation["count"],
            "{served} {explanation}"
        );
        let count = explanation["count"].as_i64().expect("a count");
        let sum = |layer: &str| -> i64 {
            let parts = explanation[layer].as_array().expect("parts").iter();
            parts.filter_map(|part| part["count"].as_i64()).sum()
        };
        assert_eq!(
            (sum("batch") + sum("live"), sum("rows")),
            (count, count),
            "{explanation}"
        );
        count - self.recount_log().await.total(&owner_total_question())
    }

    /// All served values of the owner equal the events.
    async fn check_owner(&self) {
        assert_eq!(self.excess_served().await, 0);
        let truth = self.recount_log().await;
        let client = &self.server.client;
        for (by, field) in [("track", "track_id"), ("country", "country")] {
            let question = format!("owner_id={OWNER}&by={by}&period=year&date=2026-03-09");
            let answer = client
                .fetch_json(&format!("/api/v1/stats/plays/breakdown?{question}"))
                .await;
            let rows = answer["rows"].as_array().expect("rows").iter();
            let rows: Vec<_> = rows.map(|row| json!([row["key"], row["count"]])).collect();
            let sums = truth.breakdown(&owner_total_question(), field);
            let sums: Vec<_> = sums.iter().map(|(key, sum)| json!([key, sum])).collect();
            assert_eq!(rows, sums, "{answer}");
        }
    }

    async fn recount_log(&self) -> Recount {
        let log = self.world.raw_log().await;
        let ends: Vec<i64> = log
            .iter()
            .map(|lines| i64::try_from(lines.len()).expect("few lines"))
            .collect();
        Recount::new(&log, &ends)
    }
}

fn owner_total_question() -> Question {
    Question {
        filters: vec![("owner_id", json!(OWNER))],
        range: (None, None),
    }
}
