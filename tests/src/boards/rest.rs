//! Board queries while nothing changes: every answer is a plain sort.

use jiff::civil::Date;
use rand::Rng;
use rand::rngs::SmallRng;
use serde_json::{Value, json};

use super::{APPLICATIONS, ATHLETES, BoardHistory, SEGMENTS, get, random_query};
use crate::expected_boards::{BoardQuery, ExpectedEntities};
use crate::http::Client;

impl BoardHistory {
    /// Runs one random query after everything was counted, and compares the answer with a plain
    /// sort.
    pub async fn check_at_rest(&self, client: &Client, rng: &mut SmallRng) {
        let board_query = random_query(rng);
        let truth = self.current();
        let board = truth.board(&board_query);
        let (segment, query) = (board_query.segment, board_query.query());
        let offset = rng.random_range(0..=board.len() + 1);
        let limit = rng.random_range(1..12);
        let path =
            format!("/api/v1/boards/segments/{segment}?{query}&offset={offset}&limit={limit}");
        let answer = client.fetch_json(&path).await;
        assert_eq!(answer["total"], board.len(), "{path}: {answer}\n{board:?}");
        let first = offset.min(board.len());
        let until = board.len().min(first + limit);
        assert_eq!(answer["entries"], json!(board[first..until]), "{path}");
        assert_eq!(answer["provenance"]["complete"], true, "{path}: {answer}");

        let next = answer["cursor"].as_str();
        assert_eq!(
            next.is_some(),
            first < until && until < board.len(),
            "{path}"
        );
        if let Some(cursor) = next {
            let path =
                format!("/api/v1/boards/segments/{segment}?{query}&limit={limit}&cursor={cursor}");
            let answer = client.fetch_json(&path).await;
            let end = board.len().min(until + limit);
            assert_eq!(answer["entries"], json!(board[until..end]), "{path}");
        }

        let athlete = rng.random_range(1..=ATHLETES);
        let around = rng.random_range(0..4_usize);
        let path =
            format!("/api/v1/boards/segments/{segment}/athletes/{athlete}?{query}&around={around}");
        let (status, body) = get(client, &path).await;
        match board
            .iter()
            .position(|entry| entry["athlete_id"] == athlete)
        {
            None => {
                assert_eq!(status, 404, "{path}: {body}");
                assert!(body.contains("not-on-board"), "{path}: {body}");
            }
            Some(index) => {
                let answer: Value = serde_json::from_str(&body).expect("JSON");
                assert_eq!(answer["entry"], board[index], "{path}: {answer}");
                let first = index.saturating_sub(around);
                let until = board.len().min(index + around + 1);
                assert_eq!(answer["neighbours"], json!(board[first..until]), "{path}");
                assert_eq!(answer["total"], board.len(), "{path}");
                let gap = index
                    .checked_sub(1)
                    .map(|previous| gap(&board[previous], &board[index]));
                assert_eq!(answer["gap"], json!(gap), "{path}: {answer}");
                let percentile = percentile(index + 1, board.len());
                assert_eq!(answer["percentile"], json!(percentile), "{path}: {answer}");
            }
        }
        self.check_ranks_at_rest(client, &board_query, rng).await;
        self.check_explanation(client, &board_query, athlete, &board)
            .await;

        let counts = client
            .fetch_json(&format!("/api/v1/segments/{segment}/counts"))
            .await;
        let (efforts, athletes) = truth.counts(segment);
        assert_eq!(
            (&counts["efforts"], &counts["athletes"]),
            (&json!(efforts), &json!(athletes)),
            "segment {segment}"
        );
        self.check_applications_at_rest(client, truth, rng).await;
    }

    /// Checks the connected athletes of one application and the list of all applications.
    async fn check_applications_at_rest(
        &self,
        client: &Client,
        truth: &ExpectedEntities,
        rng: &mut SmallRng,
    ) {
        let application = rng.random_range(1..=APPLICATIONS);
        let path = format!("/api/v1/boards/applications/{application}?limit=1");
        let answer = client.fetch_json(&path).await;
        assert_eq!(answer["total"], truth.connected(application), "{path}");
        self.check_connected_explanation(client, application).await;
        let listed = client.fetch_json("/api/v1/applications").await;
        for row in listed["applications"].as_array().expect("applications") {
            let id = row["id"].as_i64().expect("an id");
            let connected = &row["connected_athletes"];
            assert_eq!(*connected, truth.connected(id), "application {id}");
            let application_row = client
                .fetch_json(&format!("/api/v1/applications/{id}"))
                .await;
            assert_eq!(
                application_row["connected_athletes"], *connected,
                "application {id}"
            );
        }
    }

    /// Checks the ranks of many athletes on many segments in one request.
    async fn check_ranks_at_rest(
        &self,
        client: &Client,
        board_query: &BoardQuery,
        rng: &mut SmallRng,
    ) {
        let ids = |rng: &mut SmallRng, max: i64| {
            let count = rng.random_range(1..8);
            (0..count)
                .map(|_| rng.random_range(1..=max))
                .collect::<Vec<i64>>()
        };
        let (segments, athletes) = (ids(rng, SEGMENTS + 1), ids(rng, ATHLETES + 1));
        let mut body = json!({
            "segments": segments, "athletes": athletes, "board": board_query.board,
            "window": board_query.window, "date": board_query.date.to_string(),
        });
        if let Some(club) = board_query.club {
            body["club_id"] = json!(club);
        }
        if let Some(follower) = board_query.following {
            body["following"] = json!(follower);
        }
        let mut expected = Vec::new();
        let mut checked_segments = Vec::new();
        for segment in segments {
            if checked_segments.contains(&segment) {
                continue;
            }
            checked_segments.push(segment);
            let board = self.current().board(&BoardQuery {
                segment,
                ..board_query.clone()
            });
            for entry in &board {
                if athletes
                    .iter()
                    .any(|athlete| entry["athlete_id"] == *athlete)
                {
                    let mut row = entry.clone();
                    row["segment_id"] = json!(segment);
                    row["total"] = json!(board.len());
                    expected.push(row);
                }
            }
        }
        let (client, text) = (client.clone(), body.to_string());
        let path = "/api/v1/boards/segments/ranks";
        let answer = tokio::task::spawn_blocking(move || client.post(path, text.as_bytes()));
        let (status, answer) = answer.await.expect("asking");
        assert_eq!(status, 200, "{body}: {answer}");
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!(answer["rows"], json!(expected), "{body}");
        assert_eq!(answer["provenance"]["complete"], true, "{body}: {answer}");
    }

    /// Checks the ranks of an earlier day next to the current ones, for each athlete and for a
    /// whole page. `earlier` is the expected entities at the last run of that day.
    pub async fn check_earlier_ranks(
        &self,
        client: &Client,
        earlier: &ExpectedEntities,
        days: &[Date],
        rng: &mut SmallRng,
    ) {
        let board_query = random_query(rng);
        let mut earlier = earlier.clone();
        earlier.copy_lists_from(self.current());
        let before = earlier.board(&board_query);
        let mut now = self.current().board(&board_query);
        for row in &mut now {
            let mut places = before.iter();
            let place = places.position(|earlier| earlier["athlete_id"] == row["athlete_id"]);
            let earlier = place.map(|place| place as i64 + 1);
            let rank = row["rank"].as_i64().expect("a rank");
            row["previous_rank"] = json!(earlier);
            row["change"] = json!(earlier.map(|earlier| earlier - rank));
        }
        let path = format!(
            "/api/v1/boards/segments/{}?{}&history=true&limit=1000",
            board_query.segment,
            board_query.query()
        );
        let page = client.fetch_json(&path).await;
        assert_eq!(page["entries"], json!(now), "{path}: {page}");
        if !before.is_empty() {
            let total = &page["previous"]["total"];
            assert_eq!(total, before.len(), "{path}: {page}");
        }
        for (index, entry) in now.iter().enumerate() {
            let athlete = entry["athlete_id"].as_i64().expect("an athlete");
            let path = format!(
                "/api/v1/boards/segments/{}/athletes/{athlete}?{}&history=true",
                board_query.segment,
                board_query.query()
            );
            let answer = client.fetch_json(&path).await;
            assert_eq!(&answer["entry"], entry, "{path}: {answer}");
            let near = &now[index.saturating_sub(5)..now.len().min(index + 6)];
            assert_eq!(answer["neighbours"], json!(near), "{path}: {answer}");
            let place = before.iter().position(|row| row["athlete_id"] == athlete);
            let previous = &answer["previous"];
            let Some(place) = place else {
                assert_eq!(
                    (previous, &answer["change"]),
                    (&Value::Null, &Value::Null),
                    "{path}"
                );
                continue;
            };
            let rank = place as i64 + 1;
            let context = format!("{path}: {answer}, and {before:?} before");
            assert_eq!(previous["rank"], rank, "{context}");
            assert_eq!(previous["total"], before.len(), "{context}");
            let change = rank - entry["rank"].as_i64().expect("a rank");
            assert_eq!(answer["change"], change, "{context}");
            // An unchanged version has the date of the run that wrote it.
            let date: Date = previous["date"]
                .as_str()
                .expect("a date")
                .parse()
                .expect("a date");
            assert!(
                days.contains(&date) && previous["epoch"].is_u64(),
                "{context}"
            );
        }
    }
}

/// Returns the time difference between an entry and the one before it.
fn gap(previous: &Value, entry: &Value) -> Value {
    let time = |entry: &Value| entry["elapsed_time"].as_i64().expect("a time");
    json!({
        "rank": previous["rank"],
        "athlete_id": previous["athlete_id"],
        "elapsed_time": time(entry) - time(previous),
    })
}

/// Returns the share of the board that a rank equals or beats, in percent with one decimal.
fn percentile(rank: usize, total: usize) -> f64 {
    let percent = 100.0 * (total - rank + 1) as f64 / total as f64;
    (percent * 10.0 + 0.5).floor() / 10.0
}
