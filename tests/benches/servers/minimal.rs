//! A minimal server of one leaderboard for comparison: a sorted set of times and a hash of
//! displayed values in Redis, and hand-written JSON. It has no epochs, filters or provenance, and
//! breaks ties inexactly.

use std::collections::HashMap;
use std::fmt::Write;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tests::servers;
use tokio::net::TcpListener;

/// Rows of a response for a club.
const CLUB_ROWS: usize = 10;
/// Rows in one write.
const STEP_ROWS: usize = 10_000;

/// The keys of the board.
#[derive(Debug, Clone)]
pub(crate) struct Minimal {
    connection: MultiplexedConnection,
    ranks: String,
    rows: String,
    club: Vec<i64>,
}

impl Minimal {
    /// Writes a board of this many rows, with times from a function.
    pub(crate) async fn fill(count: u64, club: Vec<i64>, time: impl Fn(i64) -> i64) -> Self {
        let address = format!("redis://{}", servers::redis());
        let client = redis::Client::open(address).expect("an address");
        // Hundreds of clubs in one command exceed the client's default timeout.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await;
        // The keys are deleted together with the compared installation.
        let prefix = format!("{{{}:minimal}}:", servers::namespace());
        let mut minimal = Self {
            connection: connection.expect("a connection"),
            ranks: format!("{prefix}z"),
            rows: format!("{prefix}h"),
            club,
        };
        let members: Vec<i64> = (1..=i64::try_from(count).expect("rows")).collect();
        for step in members.chunks(STEP_ROWS) {
            let rows: Vec<(i64, i64)> =
                step.iter().map(|member| (*member, time(*member))).collect();
            minimal.put(&rows).await;
        }
        minimal
    }

    /// Writes rows, each a member and its time, in one round trip.
    pub(crate) async fn put(&mut self, rows: &[(i64, i64)]) {
        let mut pipe = redis::pipe();
        for (member, time) in rows {
            let shown = format!(
                "\"effort_id\":{member},\"activity_id\":{member},\"started_at\":\"2026-01-01T00:00:00Z\""
            );
            pipe.cmd("ZADD").arg(&self.ranks).arg(time).arg(member);
            pipe.cmd("HSET").arg(&self.rows).arg(member).arg(shown);
        }
        let written: Vec<i64> = pipe.query_async(&mut self.connection).await.expect("rows");
        assert_eq!(written.len(), rows.len() * 2, "all are written");
    }

    /// Returns the memory of the sorted set and of the hash in bytes.
    pub(crate) async fn bytes(&mut self) -> (u64, u64) {
        let mut pipe = redis::pipe();
        for key in [&self.ranks, &self.rows] {
            pipe.cmd("MEMORY")
                .arg("USAGE")
                .arg(key)
                .arg("SAMPLES")
                .arg(1_000);
        }
        pipe.query_async(&mut self.connection).await.expect("bytes")
    }

    pub(crate) async fn delete(mut self) {
        let mut unlink = redis::cmd("UNLINK");
        unlink.arg(&self.ranks).arg(&self.rows);
        let deleted: i64 = unlink
            .query_async(&mut self.connection)
            .await
            .expect("deleted");
        assert_eq!(deleted, 2, "both keys");
    }

    /// Serves it until the runtime ends; returns the address.
    #[expect(clippy::disallowed_methods, reason = "it ends with the runtime")]
    pub(crate) async fn serve(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let routes = Router::new()
            .route("/page", get(page))
            .route("/around/{member}", get(around))
            .route("/size", get(size))
            .route("/club", get(club))
            .with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        address
    }

    /// Returns the rows between two ranks, and the board's size.
    pub(crate) async fn rows(&mut self, from: i64, to: i64) -> (Ranked, i64) {
        let mut pipe = redis::pipe();
        pipe.cmd("ZRANGE")
            .arg(&self.ranks)
            .arg(from)
            .arg(to)
            .arg("WITHSCORES");
        pipe.cmd("ZCARD").arg(&self.ranks);
        pipe.query_async(&mut self.connection).await.expect("rows")
    }

    /// Returns a member's rank and the board's size.
    pub(crate) async fn find_rank(&mut self, member: i64) -> (i64, i64) {
        let mut pipe = redis::pipe();
        pipe.cmd("ZRANK").arg(&self.ranks).arg(member);
        pipe.cmd("ZCARD").arg(&self.ranks);
        pipe.query_async(&mut self.connection)
            .await
            .expect("a rank")
    }

    /// Returns the size of the board.
    pub(crate) async fn size(&mut self) -> i64 {
        let mut command = redis::cmd("ZCARD");
        command.arg(&self.ranks);
        command
            .query_async(&mut self.connection)
            .await
            .expect("a size")
    }

    /// Returns the best members of the club.
    pub(crate) async fn club_rows(&mut self) -> (Ranked, i64) {
        let mut command = redis::cmd("ZMSCORE");
        command.arg(&self.ranks).arg(&self.club);
        let scores: Vec<Option<i64>> = command
            .query_async(&mut self.connection)
            .await
            .expect("times");
        let ranked = self.club.iter().zip(scores);
        let mut ranked: Ranked = ranked
            .filter_map(|(member, score)| Some((*member, score?)))
            .collect();
        ranked.sort_unstable_by_key(|(member, score)| (*score, *member));
        let total = i64::try_from(ranked.len()).expect("a size");
        ranked.truncate(CLUB_ROWS);
        (ranked, total)
    }

    /// Returns the displayed values of rows.
    pub(crate) async fn read_values(&mut self, rows: &Ranked) -> Vec<String> {
        let mut command = redis::cmd("HMGET");
        command.arg(&self.rows);
        for (member, _) in rows {
            command.arg(member);
        }
        command
            .query_async(&mut self.connection)
            .await
            .expect("rows")
    }

    async fn respond(&mut self, first: i64, rows: &Ranked, total: i64) -> Response {
        let values = self.read_values(rows).await;
        let mut text = format!("{{\"total\":{total},\"entries\":[");
        for (rank, ((member, time), values)) in (first + 1..).zip(rows.iter().zip(values)) {
            let comma = if rank == first + 1 { "" } else { "," };
            let row = format_args!(
                "{comma}{{\"rank\":{rank},\"athlete_id\":{member},\"elapsed_time\":{time},{values}}}"
            );
            text.write_fmt(row).expect("text");
        }
        text.push_str("]}");
        ([(CONTENT_TYPE, "application/json")], text).into_response()
    }
}

/// Members with their times.
type Ranked = Vec<(i64, i64)>;

fn parse_parameter(parameters: &HashMap<String, String>, name: &str) -> i64 {
    parameters
        .get(name)
        .map_or(0, |text| text.parse().expect("a number"))
}

async fn page(
    State(mut board): State<Minimal>,
    Query(parameters): Query<HashMap<String, String>>,
) -> Response {
    let first = parse_parameter(&parameters, "offset");
    let (rows, total) = board
        .rows(first, first + parse_parameter(&parameters, "limit") - 1)
        .await;
    board.respond(first, &rows, total).await
}

async fn around(
    State(mut board): State<Minimal>,
    Path(member): Path<i64>,
    Query(parameters): Query<HashMap<String, String>>,
) -> Response {
    let (rank, _) = board.find_rank(member).await;
    let around = parse_parameter(&parameters, "around");
    let first = (rank - around).max(0);
    let (rows, total) = board.rows(first, rank + around).await;
    board.respond(first, &rows, total).await
}

async fn size(State(mut board): State<Minimal>) -> impl IntoResponse {
    let total = board.size().await;
    (
        [(CONTENT_TYPE, "application/json")],
        format!("{{\"total\":{total}}}"),
    )
}

async fn club(State(mut board): State<Minimal>) -> Response {
    let (rows, total) = board.club_rows().await;
    board.respond(0, &rows, total).await
}
