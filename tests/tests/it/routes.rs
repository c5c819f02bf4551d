//! A year of real flights through processes: aircraft are athletes that connect to the routes they
//! fly. Responses are compared with plain SQL over the records.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use datafusion::prelude::SessionContext;
use serde_json::{Value, json};
use tests::http::Client;
use tests::installation::Installation;
use tests::process::{Server, run_ok};
use tests::records::{EFFORT_SAMPLE_INTERVAL, EFFORTS};

/// Number of flights in the sample: the same in the subset and in the full data set.
const SAMPLE_COUNT: usize = 29_746;

#[test]
fn aircraft_connect_routes_embedded() {
    check_routes(&Installation::embedded());
}

#[test]
fn aircraft_connect_routes_on_servers() {
    check_routes(&Installation::on_servers());
}

fn flights() -> Vec<Value> {
    let lines = EFFORTS.read().lines;
    let parsed = lines.iter().map(|line| serde_json::from_str(line));
    let mut flights: Vec<Value> = parsed.collect::<Result<_, _>>().expect("JSON");
    flights.retain(|flight| int(flight, "activity_id") % EFFORT_SAMPLE_INTERVAL == 0);
    assert_eq!(flights.len(), SAMPLE_COUNT);
    flights
}

fn int(row: &Value, name: &str) -> i64 {
    row[name].as_i64().expect(name)
}

/// A flight as an authorization; every third is revoked.
fn authorization(flight: &Value, version: i64) -> Value {
    let id = int(flight, "id");
    let mut row = json!({
        "id": id,
        "application_id": flight["segment_id"],
        "athlete_id": flight["athlete_id"],
        "created_at": flight["started_at"],
        "version": version,
    });
    if (id + version) % 3 == 0 {
        row["revoked_at"] = flight["started_at"].clone();
    }
    row
}

/// The expected rows of the entity store, by id.
#[derive(Default)]
struct Rows(BTreeMap<i64, Value>);

impl Rows {
    /// Ingests lines, and updates the expected rows; an older version than the stored one changes
    /// nothing.
    fn ingest(&mut self, installation: &Installation, lines: &[Value]) {
        let mut text = String::new();
        for line in lines {
            text.push_str(&line.to_string());
            text.push('\n');
            let stored = self.0.get(&int(line, "id"));
            if stored.is_none_or(|stored| int(stored, "version") <= int(line, "version")) {
                self.0.insert(int(line, "id"), line.clone());
            }
        }
        installation.ingest("authorizations", &text);
    }

    /// Counts the distinct aircraft connected to each route, by plain SQL.
    fn count_connected(&self) -> BTreeMap<i64, i64> {
        let ints = |name: &str| -> ArrayRef {
            let values = self.0.values().map(|row| int(row, name));
            Arc::new(Int64Array::from_iter_values(values))
        };
        let revoked = self.0.values().map(|row| row.get("revoked_at").is_some());
        let revoked = revoked.map(Some).collect::<BooleanArray>();
        let columns: [(&str, ArrayRef); 3] = [
            ("application_id", ints("application_id")),
            ("athlete_id", ints("athlete_id")),
            ("revoked", Arc::new(revoked)),
        ];
        let context = SessionContext::new();
        let batch = RecordBatch::try_from_iter(columns).expect("columns");
        context
            .register_batch("authorizations", batch)
            .expect("a table");
        let sql = "SELECT application_id, count(DISTINCT athlete_id) FILTER (WHERE NOT revoked)
                   FROM authorizations GROUP BY application_id";
        let rows = async { context.sql(sql).await?.collect().await };
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let batches = runtime.block_on(rows).expect("an answer");
        let mut counts = BTreeMap::new();
        for batch in &batches {
            let column = |index: usize| batch.column(index).as_primitive::<Int64Type>().values();
            counts.extend(column(0).iter().copied().zip(column(1).iter().copied()));
        }
        counts
    }

    /// Checks that all endpoints match plain SQL.
    fn compare(&self, installation: &Installation, client: &Client, source: &str) {
        run_ok(installation.data(), &["speed", "--until-caught-up"]);
        let expected = self.count_connected();
        let list = client.get_json("/api/v1/applications?limit=1000");
        let listed = list["applications"]
            .as_array()
            .expect("applications")
            .iter();
        let listed = listed.map(|row| (int(row, "id"), int(row, "connected_athletes")));
        let mut listed: BTreeMap<i64, i64> = listed.collect();
        // The list includes routes without flights so far.
        listed.retain(|id, connected| expected.contains_key(id) || *connected != 0);
        assert_eq!(listed, expected);
        let largest = expected.iter().max_by_key(|(_, connected)| **connected);
        let smallest = expected.iter().min_by_key(|(_, connected)| **connected);
        for (id, connected) in [largest, smallest].into_iter().flatten() {
            let application = client.get_json(&format!("/api/v1/applications/{id}"));
            assert_eq!(
                application["connected_athletes"], *connected,
                "{application}"
            );
            assert_eq!(application["provenance"]["complete"], true, "{application}");
            let board = client.get_json(&format!("/api/v1/boards/applications/{id}?limit=1"));
            assert_eq!(board["total"], *connected, "{board}");
        }
        let provenance = &list["provenance"];
        assert_eq!(provenance["source"], source, "{provenance}");
        let by_usage = client.get_json("/api/v1/applications?sort=connected&limit=1");
        let most_connected = int(&by_usage["applications"][0], "connected_athletes");
        assert_eq!(Some(&most_connected), expected.values().max());
    }
}

fn check_routes(installation: &Installation) {
    let flights = flights();
    let mut routes: Vec<i64> = flights.iter().map(|row| int(row, "segment_id")).collect();
    routes.sort_unstable();
    routes.dedup();
    let application = |id: &i64| {
        let row = json!({"id": id, "name": format!("Route {id}"), "owner": "an airport", "athlete_capacity": 100});
        row.to_string() + "\n"
    };
    let applications: String = routes.iter().map(application).collect();
    installation.ingest("applications", &applications);

    let mut rows = Rows::default();
    let server = Server::start(installation.data(), &[]);
    let client = &server.client;
    let (earlier, later) = flights.split_at(flights.len() * 2 / 3);
    let lines = |flights: &[Value], version: i64| -> Vec<Value> {
        flights
            .iter()
            .map(|row| authorization(row, version))
            .collect()
    };
    rows.ingest(installation, &lines(earlier, 1));
    rows.compare(installation, client, "realtime");
    run_ok(installation.data(), &["batch", "run"]);
    rows.compare(installation, client, "batch");
    // New rows, changes of earlier rows, outdated versions, and repeated lines.
    rows.ingest(installation, &lines(later, 1));
    rows.ingest(installation, &lines(&earlier[..4_000], 2));
    rows.ingest(installation, &lines(&earlier[2_000..6_000], 0));
    rows.ingest(installation, &lines(&earlier[..1_000], 2));
    rows.compare(installation, client, "merged");
    run_ok(installation.data(), &["batch", "run"]);
    rows.compare(installation, client, "batch");
}
