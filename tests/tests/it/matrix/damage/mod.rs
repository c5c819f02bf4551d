//! Damage: what is stored is changed, lost or half there, by somebody else's hand. Each kind is found by a
//! comparison, named, and put right by the Restorator; putting it right once more changes nothing. Meanwhile
//! somebody asks all the time: whatever is not damaged itself stays exact.

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
use super::{seed, tell};

/// Whose plays are damaged. No random question is about them, so that all of these must be exact.
const OWNER: i64 = 9;
const TRACK: i64 = 90;
/// Run records of a moment ago may be used.
const RUNS_SEEN: Duration = Duration::from_millis(600);
const PAUSE: Duration = Duration::from_millis(300);
/// A lease of a process that was killed has ended after so many pauses.
const TRIES: usize = 100;

/// Plays of the owner; each with its own id from `first` on.
fn own_plays(first: u64, count: u64) -> Vec<String> {
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

/// What a comparison answered.
#[derive(Debug)]
struct Compared {
    status: i32,
    report: Value,
    said: String,
}

impl Scene {
    /// `restorate` with some arguments, once no other process works that was killed.
    async fn restorate(&self, view: &str, more: &[&str]) -> Compared {
        let expected = match view.starts_with("plays_") {
            _ if more.contains(&"--expected") => &[][..],
            true => &["--expected", "archive"],
            false => &["--expected", "canonical"],
        };
        let args = [&["--json", "restorate", "--view", view], expected, more].concat();
        for _ in 0..TRIES {
            let output = run(self.place.data(), &args);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            // A busy machine may be too slow for a lease that is so short.
            if said.contains("is under way") || said.contains("lease") {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            return Compared {
                status: output.status.code().expect("a status"),
                report: serde_json::from_slice(&output.stdout).unwrap_or_default(),
                said,
            };
        }
        panic!("the lease of one that was killed does not end");
    }

    /// A comparison finds what differs, and names these causes and no others.
    async fn finds(&self, view: &str, causes: &[&str]) -> Value {
        let found = self.restorate(view, &[]).await;
        assert_eq!(found.status, 3, "{found:?}");
        let named = found.report["causes"].as_object().expect("causes");
        let named: BTreeSet<&str> = named.keys().map(String::as_str).collect();
        assert_eq!(named, causes.iter().copied().collect(), "{found:?}");
        found.report
    }

    /// Puts right what differs, answers what was done, and sees that nothing is to be done after it.
    async fn puts_right(&mut self, view: &str) -> Value {
        let why = ["--apply", "--reason", "damage"];
        let done = self.restorate(view, &why).await;
        assert_eq!(done.status, 0, "{done:?}");
        let applied = done.report["applied"].clone();
        assert!(applied.is_object(), "{done:?}");
        self.settle().await;
        tokio::time::sleep(RUNS_SEEN).await;
        self.is_right(view).await;
        applied
    }

    /// Nothing differs, and putting it right does nothing.
    async fn is_right(&self, view: &str) {
        let again = self.restorate(view, &["--apply"]).await;
        assert_eq!(
            (again.status, &again.report["differ"]),
            (0, &json!(0)),
            "{again:?}"
        );
        let nothing = json!({"rows": 0, "deleted": 0, "run": null, "files": [], "corrections": 0,
            "notifications": 0, "restoration": null, "damaged": 0});
        assert_eq!(again.report["applied"], nothing, "{again:?}");
        assert_eq!(again.report["live_unknown"], Value::Null, "{again:?}");
        let warnings = again.report["warnings"].as_array().map_or(0, Vec::len);
        assert_eq!(warnings, 0, "{again:?}");
    }

    /// How much more is served of the owner than the events give. What it is said to be made of adds up to it.
    async fn served_too_much(&self) -> i64 {
        self.too_much_from(&self.server.client).await
    }

    /// The same of another process that serves.
    async fn too_much_from(&self, client: &Client) -> i64 {
        let path = format!("/api/v1/stats/plays/total?owner_id={OWNER}");
        let served = client.ask(&path).await;
        let told = client
            .ask(&format!("/api/v1/explain?metric=plays&owner_id={OWNER}"))
            .await;
        assert_eq!(served["count"], told["count"], "{served} {told}");
        let count = told["count"].as_i64().expect("a count");
        let sum = |of: &str| -> i64 {
            let parts = told[of].as_array().expect("parts").iter();
            parts.filter_map(|part| part["count"].as_i64()).sum()
        };
        assert_eq!(
            (sum("batch") + sum("live"), sum("rows")),
            (count, count),
            "{told}"
        );
        count - self.truth().await.total(&of_owner())
    }

    /// Everything that is served of the owner is what the events give.
    async fn owner_is_right(&self) {
        assert_eq!(self.served_too_much().await, 0);
        let truth = self.truth().await;
        let client = &self.server.client;
        for (by, field) in [("track", "track_id"), ("country", "country")] {
            let question = format!("owner_id={OWNER}&by={by}&period=year&date=2026-03-09");
            let answer = client
                .ask(&format!("/api/v1/stats/plays/breakdown?{question}"))
                .await;
            let rows = answer["rows"].as_array().expect("rows").iter();
            let rows: Vec<_> = rows.map(|row| json!([row["key"], row["count"]])).collect();
            let sums = truth.breakdown(&of_owner(), field);
            let sums: Vec<_> = sums.iter().map(|(key, sum)| json!([key, sum])).collect();
            assert_eq!(rows, sums, "{answer}");
        }
    }

    async fn truth(&self) -> Recount {
        let log = self.world.raw_log().await;
        let ends: Vec<i64> = log
            .iter()
            .map(|lines| i64::try_from(lines.len()).expect("few lines"))
            .collect();
        Recount::of(&log, &ends)
    }
}

fn of_owner() -> Question {
    Question {
        filters: vec![("owner_id", json!(OWNER))],
        range: (None, None),
    }
}
