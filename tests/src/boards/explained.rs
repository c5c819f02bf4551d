//! Checks of explained boards and entries: the parts add up to the served value.

use serde_json::{Value, json};

use super::Ledger;
use crate::http::Client;
use crate::standings::Asked;

fn number(of: &Value, name: &str) -> i64 {
    let found = of[name].as_i64();
    found.unwrap_or_else(|| panic!("{name} of {of}"))
}

/// Adds up the counts of explained parts.
fn sum(parts: &Value) -> i64 {
    number(parts, "edition") - number(parts, "taken_away") + number(parts, "live")
}

/// Returns an entry without its rank.
fn unranked(entry: &Value) -> Value {
    let mut entry = entry.clone();
    if let Some(fields) = entry.as_object_mut() {
        fields.remove("rank");
    }
    entry
}

impl Ledger {
    /// Checks the explanation of one athlete's rank on a known board while nothing changes.
    pub(super) async fn ask_explained(
        &self,
        client: &Client,
        (asked, athlete): (&Asked, i64),
        board: &[Value],
    ) {
        let (segment, query) = (asked.segment, asked.query());
        let path = format!("/api/v1/explain?segment_id={segment}&athlete_id={athlete}&{query}");
        let told = client.ask(&path).await;
        let context = || format!("{path}: {told}");
        let entry = board.iter().find(|entry| entry["athlete_id"] == athlete);
        assert_eq!(told["entry"], json!(entry), "{}", context());
        assert_eq!(told["total"]["count"], board.len(), "{}", context());
        assert_eq!(
            sum(&told["total"]),
            number(&told["total"], "count"),
            "{}",
            context()
        );
        assert_eq!(told["provenance"]["complete"], true, "{}", context());
        let batch = &told["batch"];
        let of_edition = if batch.is_null() {
            &json!(0)
        } else {
            &batch["total"]
        };
        assert_eq!(of_edition, &told["total"]["edition"], "{}", context());
        if !told["place"].is_null() {
            let rank = number(&told["entry"], "rank");
            assert_eq!(number(&told["place"], "rank"), rank, "{}", context());
            assert_eq!(sum(&told["place"]) + 1, rank, "{}", context());
        }
        let states = told["live"].as_array().expect("live states");
        let in_force: Vec<&Value> = states
            .iter()
            .filter(|one| one["in_force"] == true)
            .collect();
        assert!(in_force.len() <= 1, "{}", context());
        // Filters may exclude entries that a state has, so only unfiltered boards are compared.
        if asked.club.is_none() && asked.following.is_none() && !told["place"].is_null() {
            let row = in_force
                .first()
                .map_or(&batch["entry"], |state| &state["entry"]);
            assert_eq!(unranked(row), unranked(&told["entry"]), "{}", context());
        }
        let (was, now) = (&batch["entry"], &told["entry"]);
        let fits = match told["change"].as_str().expect("a change") {
            "absent" => was.is_null() && now.is_null(),
            "entered" => was.is_null() && !now.is_null() && !in_force.is_empty(),
            "left" => !was.is_null() && now.is_null() && !in_force.is_empty(),
            "same" => was == now,
            "own" => !was.is_null() && !now.is_null() && !in_force.is_empty(),
            "others" => unranked(was) == unranked(now) && was["rank"] != now["rank"],
            _ => false,
        };
        assert!(fits, "{}", context());
    }

    /// Checks the explanation of an application's number of connected athletes.
    pub(super) async fn ask_connected_explained(&self, client: &Client, application: i64) {
        let path = format!("/api/v1/explain?application_id={application}");
        let told = client.ask(&path).await;
        let connected = self.now().connected(application);
        assert_eq!(told["total"]["count"], connected, "{path}: {told}");
        assert_eq!(
            sum(&told["total"]),
            number(&told["total"], "count"),
            "{path}: {told}"
        );
    }
}
