//! Real input through processes: a year's flights as efforts. 96 % of the best ones are tied.
//! Compared with plain SQL over the raw records.

use std::io::Write;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use datafusion::prelude::SessionContext;
use jiff::Timestamp;
use serde_json::{Value, json};
use tests::http::Client;
use tests::process::{Server, run_ok};
use tests::records::{ATHLETES, CLUBS, EFFORT_SAMPLE_INTERVAL, EFFORTS, FOLLOWS};

/// Queried segments, with many and few athletes. `tests/data` has all of their efforts.
const SEGMENTS: [i64; 5] = [1118, 1035, 1188, 1123, 1001];

/// Returns true for efforts in a queried segment or in the sample of all segments.
///
/// Selects the same efforts from the subset and from the full data set.
fn is_selected(effort: &str) -> bool {
    let effort: Value = serde_json::from_str(effort).expect("JSON");
    let int = |name: &str| effort[name].as_i64().expect(name);
    SEGMENTS.contains(&int("segment_id")) || int("activity_id") % EFFORT_SAMPLE_INTERVAL == 0
}

#[test]
fn flights_are_ranked_as_plain_sql_ranks_them() {
    let mut efforts = EFFORTS.read().lines;
    efforts.retain(|effort| is_selected(effort));
    assert_eq!(efforts.len(), EFFORTS.subset_count);
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let write = |name: &str, lines: &[String]| {
        let path = folder.path().join(name);
        let mut file = std::io::BufWriter::new(std::fs::File::create(&path).expect("a file"));
        for line in lines {
            writeln!(file, "{line}").expect("writing");
        }
        file.flush().expect("writing");
        path.to_string_lossy().into_owned()
    };
    let others = [
        ("athletes", ATHLETES.read().lines),
        ("clubs", CLUBS.read().lines),
        ("follows", FOLLOWS.read().lines),
    ];
    let reference = Reference::from_lines(&efforts, &others);
    let server = Server::start(&data, &[]);
    for (name, lines) in &others {
        run_ok(
            &data,
            &["ingest", name, &write(&format!("{name}.jsonl"), lines)],
        );
    }
    let (first_efforts, second_efforts) = efforts.split_at(efforts.len() * 2 / 3);
    run_ok(
        &data,
        &["ingest", "efforts", &write("1.jsonl", first_efforts)],
    );
    run_ok(
        &data,
        &["speed", "--until-caught-up", "--source", "efforts"],
    );
    run_ok(&data, &["batch", "run"]);
    run_ok(
        &data,
        &["ingest", "efforts", &write("2.jsonl", second_efforts)],
    );
    run_ok(
        &data,
        &["speed", "--until-caught-up", "--source", "efforts"],
    );
    // Most efforts are in the batch views, the rest live.
    let board = server
        .client
        .get_json("/api/v1/boards/segments/1118?limit=1");
    assert_eq!(board["total"], 344, "{board}");
    assert_eq!(board["entries"][0]["athlete_id"], 778_886_617);
    assert_eq!(board["entries"][0]["effort_id"], 2_557_927_007_i64);
    assert_eq!(board["entries"][0]["elapsed_time"], 16_500);
    reference.compare(&server.client, 1);
    run_ok(&data, &["batch", "run"]);
    reference.compare(&server.client, 2);
}

/// The raw records as tables of a plain query engine.
struct Reference {
    context: SessionContext,
    runtime: tokio::runtime::Runtime,
}

impl Reference {
    fn from_lines(efforts: &[String], others: &[(&str, Vec<String>)]) -> Self {
        let context = SessionContext::new();
        let parse = |lines: &[String]| -> Vec<Value> {
            let parsed = lines.iter().map(|line| serde_json::from_str(line));
            parsed.collect::<Result<_, _>>().expect("JSON")
        };
        // Only queried segments: each plain query scans all rows.
        let mut efforts = parse(efforts);
        efforts.retain(|effort| {
            SEGMENTS
                .iter()
                .any(|segment| effort["segment_id"] == *segment)
        });
        let days = efforts.iter().map(|effort| {
            let started_at: Timestamp = effort["started_at"]
                .as_str()
                .expect("text")
                .parse()
                .expect("a time");
            let tz = effort["tz"].as_str().expect("a zone");
            Some(started_at.in_tz(tz).expect("a zone").date().to_string())
        });
        let mut columns = int_columns(
            &efforts,
            &[
                "id",
                "segment_id",
                "athlete_id",
                "activity_id",
                "elapsed_time",
            ],
        );
        columns.push(("day", Arc::new(days.collect::<StringArray>()) as ArrayRef));
        let years = efforts.iter().map(|effort| {
            let started_at = effort["started_at"].as_str().expect("text");
            let started_at: Timestamp = started_at.parse().expect("a time");
            let zoned = started_at.in_tz(effort["tz"].as_str().expect("a zone"));
            i64::from(zoned.expect("a zone").year())
        });
        columns.push(("year", Arc::new(Int64Array::from_iter_values(years))));
        register_table(&context, "efforts", columns);
        for (name, lines) in others {
            let rows = parse(lines);
            let columns = match *name {
                "athletes" => {
                    let mut columns = int_columns(&rows, &["id", "birth_year"]);
                    let weights = rows.iter().map(|row| row["weight_kg"].as_f64());
                    let weights = weights.collect::<arrow::array::Float64Array>();
                    columns.push(("weight_kg", Arc::new(weights)));
                    let gender = rows.iter().map(|row| row["gender"].as_str());
                    columns.push(("gender", Arc::new(gender.collect::<StringArray>())));
                    columns
                }
                "clubs" => int_columns(&rows, &["club_id", "athlete_id"]),
                _ => int_columns(&rows, &["follower_id", "followed_id"]),
            };
            register_table(&context, name, columns);
        }
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        Self { context, runtime }
    }

    fn run_sql(&self, sql: &str) -> Vec<RecordBatch> {
        let rows = async { self.context.sql(sql).await?.collect().await };
        self.runtime
            .block_on(rows)
            .unwrap_or_else(|e| panic!("{sql}: {e}"))
    }

    fn query_ints(&self, sql: &str) -> Vec<i64> {
        let batches = self.run_sql(sql);
        let columns = batches
            .iter()
            .map(|batch| batch.column(0).as_primitive::<Int64Type>());
        columns
            .flat_map(|column| column.values().to_vec())
            .collect()
    }

    /// A board by plain SQL: athlete, time and effort in the order of ranks.
    fn query_board(&self, segment: i64, filter: &str) -> Vec<(i64, i64, i64)> {
        let sql = format!(
            "SELECT athlete_id, elapsed_time, id FROM (
                 SELECT e.*, row_number() OVER (
                     PARTITION BY e.athlete_id ORDER BY e.elapsed_time, e.id) AS nth
                 FROM efforts e LEFT JOIN athletes a ON a.id = e.athlete_id
                 WHERE e.segment_id = {segment} AND {filter}) best
             WHERE nth = 1 ORDER BY elapsed_time, id"
        );
        let mut rows = Vec::new();
        for batch in self.run_sql(&sql) {
            let column = |index: usize| batch.column(index).as_primitive::<Int64Type>().clone();
            let (athletes, times, ids) = (column(0), column(1), column(2));
            for row in 0..batch.num_rows() {
                rows.push((athletes.value(row), times.value(row), ids.value(row)));
            }
        }
        rows
    }

    fn compare(&self, client: &Client, depth: usize) {
        let clubs = self.query_ints("SELECT DISTINCT club_id FROM clubs ORDER BY club_id");
        let followers = self.query_ints("SELECT DISTINCT follower_id FROM follows ORDER BY 1");
        let mut queries: Vec<(String, String)> = Vec::new();
        let boards: [(&str, &str); 9] = [
            ("overall", "true"),
            ("gender:F", "a.gender = 'F'"),
            ("gender:M", "a.gender = 'M'"),
            ("age:0-19", "e.year - a.birth_year BETWEEN 0 AND 19"),
            ("age:20-24", "e.year - a.birth_year BETWEEN 20 AND 24"),
            ("age:25-34", "e.year - a.birth_year BETWEEN 25 AND 34"),
            ("weight:55-64", "a.weight_kg >= 55 AND a.weight_kg < 65"),
            ("weight:0-54", "a.weight_kg < 55"),
            ("weight:115%2B", "a.weight_kg >= 115"),
        ];
        for (board, filter) in boards {
            for (window, days) in [
                ("window=all", "true"),
                ("window=year&date=2013-07-04", "e.day LIKE '2013-%'"),
                ("window=month&date=2013-02-28", "e.day LIKE '2013-02-%'"),
                ("window=day&date=2013-12-31", "e.day = '2013-12-31'"),
                ("window=year&date=2012-07-04", "e.day LIKE '2012-%'"),
            ] {
                queries.push((
                    format!("board={board}&{window}"),
                    format!("({filter}) AND ({days})"),
                ));
            }
        }
        for club in clubs.iter().take(3) {
            queries.push((
                format!("club_id={club}"),
                format!("e.athlete_id IN (SELECT athlete_id FROM clubs WHERE club_id = {club})"),
            ));
        }
        for follower in followers.iter().step_by(997).take(3) {
            queries.push((
                format!("following={follower}&window=month&date=2013-03-01"),
                format!(
                    "e.day LIKE '2013-03-%' AND (e.athlete_id = {follower} OR e.athlete_id IN
                     (SELECT followed_id FROM follows WHERE follower_id = {follower}))"
                ),
            ));
        }
        for segment in SEGMENTS.into_iter().take(depth + 1) {
            for (query, filter) in &queries {
                let board = self.query_board(segment, filter);
                compare_pages(client, segment, query, &board);
            }
            let board_rows = self.query_board(segment, "true");
            compare_neighbours(client, segment, &board_rows);
            let efforts = self.query_ints(&format!(
                "SELECT count(*) FROM efforts WHERE segment_id = {segment}"
            ));
            let counts = client.get_json(&format!("/api/v1/segments/{segment}/counts"));
            assert_eq!(counts["efforts"], efforts[0], "segment {segment}");
            assert_eq!(counts["athletes"], board_rows.len(), "segment {segment}");
        }
    }
}

/// Compares two pages of at most 1,000 and 2 rows with the board.
fn compare_pages(client: &Client, segment: i64, query: &str, board: &[(i64, i64, i64)]) {
    let first_path = format!("/api/v1/boards/segments/{segment}?{query}&limit=1000");
    let answer = client.get_json(&first_path);
    assert_eq!(answer["total"], board.len(), "{first_path}");
    let to_tuple = |entry: &Value| {
        (
            entry["rank"].as_u64().expect("a rank"),
            entry["athlete_id"].as_i64().expect("an athlete"),
            entry["elapsed_time"].as_i64().expect("a time"),
            entry["effort_id"].as_i64().expect("an effort"),
        )
    };
    let rows = |answer: &Value| -> Vec<(u64, i64, i64, i64)> {
        let entries = answer["entries"].as_array().expect("entries");
        entries.iter().map(to_tuple).collect()
    };
    let expected: Vec<(u64, i64, i64, i64)> = (1..)
        .zip(board)
        .map(|(rank, row)| (rank, row.0, row.1, row.2))
        .collect();
    let end = expected.len().min(1000);
    assert_eq!(rows(&answer), expected[..end], "{first_path}");
    let offset = board.len() / 2;
    let second_path = format!("/api/v1/boards/segments/{segment}?{query}&limit=2&offset={offset}");
    let end = expected.len().min(offset + 2);
    assert_eq!(
        rows(&client.get_json(&second_path)),
        expected[offset..end],
        "{second_path}"
    );
}

fn compare_neighbours(client: &Client, segment: i64, board: &[(i64, i64, i64)]) {
    for place in [0, board.len() / 3, board.len() - 1] {
        let athlete = board[place].0;
        let path = format!("/api/v1/boards/segments/{segment}/athletes/{athlete}?around=2");
        let answer = client.get_json(&path);
        assert_eq!(answer["entry"]["rank"], json!(place + 1), "{path}");
        assert_eq!(answer["entry"]["effort_id"], board[place].2, "{path}");
        let neighbours = answer["neighbours"].as_array().expect("neighbours");
        let ids: Vec<i64> = neighbours
            .iter()
            .map(|entry| entry["effort_id"].as_i64().expect("an id"))
            .collect();
        let start = place.saturating_sub(2);
        let end = board.len().min(place + 3);
        let expected: Vec<i64> = board[start..end].iter().map(|row| row.2).collect();
        assert_eq!(ids, expected, "{path}");
    }
}

type NamedColumn = (&'static str, ArrayRef);

fn int_columns(rows: &[Value], names: &[&'static str]) -> Vec<NamedColumn> {
    let column = |name: &&'static str| -> NamedColumn {
        let values = rows.iter().map(|row| row[*name].as_i64());
        (name, Arc::new(values.collect::<Int64Array>()))
    };
    names.iter().map(column).collect()
}

fn register_table(context: &SessionContext, name: &str, columns: Vec<NamedColumn>) {
    let fields: Vec<Field> = columns
        .iter()
        .map(|(name, array)| {
            let data_type: DataType = array.data_type().clone();
            Field::new(*name, data_type, true)
        })
        .collect();
    let arrays = columns.into_iter().map(|(_, array)| array).collect();
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).expect("a table");
    context.register_batch(name, batch).expect("a table");
}
