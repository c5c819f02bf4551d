//! Checks of explained boards and entries: the parts add up to the served value.

use serde_json::{Value, json};

use super::BoardHistory;
use crate::expected_boards::BoardQuery;
use crate::http::Client;

fn number(object: &Value, name: &str) -> i64 {
    let number = object[name].as_i64();
    number.unwrap_or_else(|| panic!("{name} of {object}"))
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

impl BoardHistory {
    /// Checks the explanation of one athlete's rank on a known board while nothing changes.
    pub(super) async fn check_explanation(
        &self,
        client: &Client,
        board_query: &BoardQuery,
        athlete: i64,
        board: &[Value],
    ) {
        let (segment, query) = (board_query.segment, board_query.query());
        let path = format!("/api/v1/explain?segment_id={segment}&athlete_id={athlete}&{query}");
        let answer = client.fetch_json(&path).await;
        let context = || format!("{path}: {answer}");
        let entry = board.iter().find(|entry| entry["athlete_id"] == athlete);
        assert_eq!(answer["entry"], json!(entry), "{}", context());
        assert_eq!(answer["total"]["count"], board.len(), "{}", context());
        assert_eq!(
            sum(&answer["total"]),
            number(&answer["total"], "count"),
            "{}",
            context()
        );
        assert_eq!(answer["provenance"]["complete"], true, "{}", context());
        let batch = &answer["batch"];
        let version_total = if batch.is_null() {
            &json!(0)
        } else {
            &batch["total"]
        };
        assert_eq!(version_total, &answer["total"]["edition"], "{}", context());
        if !answer["place"].is_null() {
            let rank = number(&answer["entry"], "rank");
            assert_eq!(number(&answer["place"], "rank"), rank, "{}", context());
            assert_eq!(sum(&answer["place"]) + 1, rank, "{}", context());
        }
        let live_entries = answer["live"].as_array().expect("live states");
        let in_force: Vec<&Value> = live_entries
            .iter()
            .filter(|entry| entry["in_force"] == true)
            .collect();
        assert!(in_force.len() <= 1, "{}", context());
        // Filters may exclude entries that a live entry has, so only unfiltered boards are compared.
        if board_query.club.is_none()
            && board_query.following.is_none()
            && !answer["place"].is_null()
        {
            let row = in_force
                .first()
                .map_or(&batch["entry"], |entry| &entry["entry"]);
            assert_eq!(unranked(row), unranked(&answer["entry"]), "{}", context());
        }
        let (before, after) = (&batch["entry"], &answer["entry"]);
        let fits = match answer["change"].as_str().expect("a change") {
            "absent" => before.is_null() && after.is_null(),
            "entered" => before.is_null() && !after.is_null() && !in_force.is_empty(),
            "left" => !before.is_null() && after.is_null() && !in_force.is_empty(),
            "same" => before == after,
            "own" => !before.is_null() && !after.is_null() && !in_force.is_empty(),
            "others" => unranked(before) == unranked(after) && before["rank"] != after["rank"],
            _ => false,
        };
        assert!(fits, "{}", context());
    }

    /// Checks the explanation of an application's number of connected athletes.
    pub(super) async fn check_connected_explanation(&self, client: &Client, application: i64) {
        let path = format!("/api/v1/explain?application_id={application}");
        let answer = client.fetch_json(&path).await;
        let connected = self.current().connected(application);
        assert_eq!(answer["total"]["count"], connected, "{path}: {answer}");
        assert_eq!(
            sum(&answer["total"]),
            number(&answer["total"], "count"),
            "{path}: {answer}"
        );
    }
}
