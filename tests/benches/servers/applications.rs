//! Connected athletes: counting an application's athletes compared with the same count as SQL on
//! the entity store in the same run, the cost of an event, and the rate of connections over HTTP.
//!
//! Every served count is compared with PostgreSQL's.

mod events;
mod posts;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use schemas::source::Source;
use serde_json::{Value, json};
use tests::http::Client;
use tests::installation::Installation;
use tests::process::{Process, Server, run_ok};
use tests::servers::Addresses;
use tests::world::World;
use tokio::runtime::Runtime;

use self::posts::FRESH_MAX;
use super::boards::{measure_cache, pause, run_ok_with, write};
use super::load::{Load, load};
use super::sql::Sql;
use super::stored::{self, Redis};
use super::{measure_time, print_figure, rate};

const PARTITIONS: u32 = 4;
/// Authorizations for each application, and the minimum number of applications.
const EACH: u64 = 1_000;
const APPLICATIONS_MIN: u64 = 100;
/// The largest application, with a fifth of all authorizations.
const LARGEST: u64 = 1;
/// Number of large applications; medium-sized ones follow.
const LARGE: u64 = 5;
/// A capacity that is never reached.
const CAPACITY: u64 = 1_000_000_000;
/// Athletes who connect to the largest application after the batch run.
const LIVE: u64 = 10_000;
const CONNECTIONS: [usize; 2] = [1, 32];
/// Maximum number of applications on a page.
const PAGE: usize = 1_000;
/// Applications requested in turn.
const TURNS: u64 = 1_000;
/// Number of athletes among which unconnected ones are searched.
const SEARCHED_ATHLETES: u64 = 1_000_000;
/// Maximum time to fill a board.
const FILL_MAX: Duration = Duration::from_secs(300);
const CACHED: &str = "cached.toml";
const UNCACHED: &str = "uncached.toml";
const LIST: &str = "/api/v1/applications";
const SPEED: [&str; 4] = ["speed", "--until-caught-up", "--source", "authorizations"];
/// The first id above those that `generate` uses for authorizations.
const FIRST_ID: u64 = 8_000_000_000_000_000;

pub(crate) fn run(rows: u64) {
    let mut bench = Bench::new(rows);
    println!(
        "applications: {rows} authorizations of {} applications, {} of them of the largest",
        bench.applications,
        rows / 5
    );
    bench.import_rows();
    bench.measure_before_run();
    bench.measure_batch();
    let server = Server::start_with(bench.installation.data(), UNCACHED, &[]);
    bench.check(&server.client);
    println!("after the batch run, nothing live");
    bench.measure(&server, &bench.questions());
    let live = LIVE.min(rows / 10);
    let speed = ["speed", "--source", "authorizations"];
    let counting = Process::start_with(bench.installation.data(), UNCACHED, &speed);
    bench.connect(LARGEST, live);
    bench.wait_until_counted(&server.client, LARGEST);
    println!("{live} live changes of the largest");
    bench.measure(&server, &bench.largest()[..1]);
    let (is_done, outputs) = counting.end();
    assert!(is_done, "{outputs:?}");
    bench.check(&server.client);
    drop(server);
    bench.measure_events(UNCACHED, "no board in Redis");
    let server = Server::start_with(bench.installation.data(), CACHED, &[]);
    let speed = Process::start_with(bench.installation.data(), CACHED, &speed);
    if bench.fill(&server.client) {
        println!("the board of the largest in Redis");
        bench.measure(&server, &bench.largest()[..1]);
    }
    bench.measure_freshness(&server);
    bench.measure_posts(&server);
    for (role, (current, peak)) in [
        ("serve", server.memory_bytes()),
        ("speed", speed.memory_bytes()),
    ] {
        let role = format!("memory of {role}, MiB now, at most");
        print_figure(role, format_args!("{}, {}", current >> 20, peak >> 20));
    }
    let (is_done, outputs) = speed.end();
    assert!(is_done, "{outputs:?}");
    run_ok_with(&bench.installation, CACHED, &SPEED);
    bench.check(&server.client);
    drop(server);
    bench.measure_events(CACHED, "the board of the largest in Redis");
    let server = Server::start_with(bench.installation.data(), CACHED, &[]);
    bench.check(&server.client);
}

/// An installation with applications.
struct Bench {
    installation: Installation,
    runtime: Runtime,
    world: World,
    sql: Sql,
    redis: Redis,
    rows: u64,
    applications: u64,
    /// Number of authorizations and athletes that were added.
    added: u64,
    /// Existing athletes who are connected to no application.
    free: Vec<u64>,
    /// Number of small applications already used.
    used: u64,
}

/// A measured question: the HTTP paths, the SQL, and its number of connections.
struct Question {
    label: &'static str,
    rounds: Vec<Vec<String>>,
    statement: String,
    connections_max: usize,
}

fn count_query(application: impl std::fmt::Display) -> String {
    format!(
        "SELECT count(DISTINCT athlete_id) FROM authorizations \
         WHERE application_id = {application} AND revoked_at_us IS NULL;"
    )
}

fn application_path(application: u64) -> String {
    format!("{LIST}/{application}")
}

impl Bench {
    fn new(rows: u64) -> Self {
        let installation = Installation::with_partitions(PARTITIONS, &Addresses::default(), "");
        for (name, bytes) in [(CACHED, "8589934592"), (UNCACHED, "0")] {
            let more = format!("\n[speed]\nboard_cache_bytes_max = {bytes}\n");
            installation.configure(name, &Addresses::default(), &more);
        }
        let runtime = Runtime::new().expect("a runtime");
        Self {
            world: runtime.block_on(installation.world()),
            sql: Sql::new(&installation),
            redis: runtime.block_on(Redis::open()),
            installation,
            runtime,
            rows,
            applications: (rows / EACH).max(APPLICATIONS_MIN),
            added: 0,
            free: Vec::new(),
            used: 0,
        }
    }

    /// Imports rows into PostgreSQL, and through Kafka into Redis.
    fn import_rows(&mut self) {
        let applications = (1..=self.applications).map(|id| application(id, CAPACITY));
        let file = write(&self.installation, "applications.jsonl", applications);
        run_ok(self.installation.data(), &["ingest", "applications", &file]);
        let file = self.installation.folder().join("authorizations.jsonl");
        let file = file.to_string_lossy();
        let (rows, applications) = (self.rows.to_string(), self.applications.to_string());
        // Each athlete occurs once, so every other one is unconnected.
        let athletes = 2 * self.rows;
        let athlete_count = athletes.to_string();
        let shape = ["--shape", "article", "--revoked", "0", "--seed", "1"];
        let args = [
            "generate",
            "authorizations",
            "--rows",
            &rows,
            "--athletes",
            &athlete_count,
            "--applications",
            &applications,
            "-o",
            &file,
        ];
        run_ok(self.installation.data(), &[&args[..], &shape[..]].concat());
        let ingest = ["ingest", "authorizations", &file];
        let (took, _) = measure_time(|| run_ok(self.installation.data(), &ingest));
        let label = "authorizations from JSON lines into PostgreSQL";
        print_figure(label, format_args!("{:.0}/s", rate(self.rows, took)));
        self.sql.run("VACUUM ANALYZE authorizations;");
        let step = athletes.div_ceil(SEARCHED_ATHLETES);
        let free = self.sql.run(&format!(
            "SELECT id FROM generate_series(1, {athletes}, {step}) AS id \
             WHERE id NOT IN (SELECT athlete_id FROM authorizations WHERE athlete_id % {step} = 1 % {step}) \
             ORDER BY hashint8(id)"
        ));
        self.free = free
            .lines()
            .map(|line| line.parse().expect("an id"))
            .collect();
        let (took, _) = measure_time(|| run_ok_with(&self.installation, UNCACHED, &SPEED));
        let label = "changed groups from PostgreSQL into Redis, before a first run";
        print_figure(label, format_args!("{:.0}/s", rate(self.rows, took)));
    }

    /// Measures a count while only live state contains it.
    fn measure_before_run(&mut self) {
        let namespace = &self.installation.options().namespace;
        let bytes = self.redis.bytes(namespace, Source::Authorizations);
        let bytes = self.runtime.block_on(bytes);
        print_figure(
            "live state in Redis, bytes an athlete",
            format_args!("{:.0}", ratio(bytes, self.rows)),
        );
        let server = Server::start_with(self.installation.data(), UNCACHED, &[]);
        let middle = self.middle();
        for (size, id) in [("the largest", LARGEST), ("one of middle size", middle)] {
            let sent = self.runtime.block_on(self.redis.sent());
            let (took, (status, body)) = measure_time(|| server.client.get(&application_path(id)));
            let sent = self.runtime.block_on(self.redis.sent()) - sent;
            let count = self.sql.query_number(&count_query(id));
            if status == 200 {
                let answer: Value = serde_json::from_str(&body).expect("an answer");
                assert_eq!(answer["connected_athletes"], count, "application {id}");
            }
            print_figure(
                format_args!("count of {size} ({count}) before a first run, ms"),
                format_args!(
                    "{:.0}, {sent} bytes from Redis ({:.0} an athlete), status {status}",
                    took.as_secs_f64() * 1_000.0,
                    ratio(sent, count)
                ),
            );
        }
        let (_, peak) = server.memory_bytes();
        print_figure("  memory of serve after it, MiB at most", peak >> 20);
    }

    fn measure_batch(&self) {
        let (took, _) =
            measure_time(|| run_ok_with(&self.installation, UNCACHED, &["batch", "run"]));
        let took = took.as_secs_f64();
        print_figure("the run that takes them in, s", format_args!("{took:.1}"));
        run_ok_with(&self.installation, UNCACHED, &SPEED);
        let namespace = &self.installation.options().namespace;
        let (nodes, bytes) = self.runtime.block_on(stored::nodes(namespace));
        print_figure(
            "boards in Cassandra",
            format_args!(
                "{nodes} rows, one for {:.0} athletes; {:.1} bytes an athlete",
                ratio(self.rows, nodes),
                ratio(bytes, self.rows)
            ),
        );
    }

    /// Returns a medium-sized application.
    const fn middle(&self) -> u64 {
        LARGE + (self.applications / 2 - LARGE) / 2
    }

    /// Returns an unused small application with one athlete.
    fn small(&mut self) -> u64 {
        self.used += 1;
        assert!(self.used < self.applications / 2, "small ones are left");
        self.applications - self.used
    }

    /// Waits until the count of an application equals PostgreSQL's.
    fn wait_until_counted(&self, client: &Client, application: u64) {
        let (begun, count) = (
            Instant::now(),
            self.sql.query_number(&count_query(application)),
        );
        while client.get_json(&application_path(application))["connected_athletes"] != count {
            assert!(begun.elapsed() < FRESH_MAX, "it is counted");
            pause(Duration::from_millis(100));
        }
    }

    /// Checks that the count of every application equals PostgreSQL's.
    fn check(&self, client: &Client) {
        let counts = self.sql.run(
            "SELECT p.id, count(DISTINCT a.athlete_id) FROM applications p \
             LEFT JOIN authorizations a ON a.application_id = p.id AND a.revoked_at_us IS NULL \
             GROUP BY p.id",
        );
        let expected: BTreeMap<i64, u64> = counts
            .lines()
            .map(|line| {
                let (id, count) = line.split_once('|').expect("two values");
                (id.parse().expect("an id"), count.parse().expect("a number"))
            })
            .collect();
        let mut served = BTreeMap::new();
        for page in pages(client) {
            for application in client.get_json(&page)["applications"]
                .as_array()
                .expect("some")
            {
                assert_eq!(application["provenance"]["complete"], true, "{application}");
                let id = application["id"].as_i64().expect("an id");
                let count = application["connected_athletes"].as_u64();
                served.insert(id, count.expect("a number"));
            }
        }
        assert_eq!(served, expected, "the served count equals PostgreSQL");
    }

    /// Returns the questions for single applications and for all.
    fn questions(&self) -> Vec<Question> {
        let mut questions = self.largest();
        for (label, id) in [
            ("one of middle size", self.middle()),
            ("one with one athlete", self.applications),
        ] {
            questions.push(Question {
                label,
                rounds: vec![vec![application_path(id)]],
                statement: count_query(id),
                connections_max: 32,
            });
        }
        let (last, turns) = (self.applications, TURNS.min(self.applications));
        let turns = (0..turns).map(|turn| vec![application_path(1 + turn * (last / turns))]);
        questions.push(Question {
            label: "one after the other, 1,000 by turns",
            rounds: turns.collect(),
            statement: format!("\\set id random(1, {last})\n{}", count_query(":id")),
            connections_max: 32,
        });
        let counts = "SELECT application_id, count(DISTINCT athlete_id) FROM authorizations \
                      WHERE revoked_at_us IS NULL GROUP BY application_id";
        questions.push(Question {
            label: "a page: the 50 with most athletes",
            rounds: vec![vec![format!("{LIST}?sort=connected&limit=50")]],
            statement: format!("{counts} ORDER BY 2 DESC LIMIT 50;"),
            connections_max: 1,
        });
        questions.push(Question {
            label: "all applications, in pages of 1,000",
            rounds: Vec::new(),
            statement: format!("{counts};"),
            connections_max: 1,
        });
        questions
    }

    fn largest(&self) -> Vec<Question> {
        let ways = [
            ("the largest", count_query(LARGEST)),
            (
                "the largest, and SQL by way of the index",
                format!(
                    "SELECT count(*) FROM (SELECT DISTINCT athlete_id FROM authorizations \
                     WHERE application_id = {LARGEST} AND revoked_at_us IS NULL) AS a;"
                ),
            ),
            (
                "the largest, and SQL reads the counter of triggers",
                format!("SELECT athletes FROM connected WHERE application_id = {LARGEST};"),
            ),
        ];
        let ways = ways.into_iter().map(|(label, statement)| Question {
            label,
            rounds: vec![vec![application_path(LARGEST)]],
            statement,
            connections_max: 32,
        });
        ways.collect()
    }

    fn measure(&self, server: &Server, questions: &[Question]) {
        for question in questions {
            let mut rounds = question.rounds.clone();
            if rounds.is_empty() {
                rounds.push(pages(&server.client));
            }
            let mut figures = String::new();
            for connections in CONNECTIONS {
                let ours = load(server.client.address(), &rounds, connections);
                let ours = self.runtime.block_on(ours);
                assert_eq!(ours.failed, 0, "{}", question.label);
                write!(figures, " | {connections}: {}", format_load(&ours)).expect("text");
                if connections <= question.connections_max {
                    let sql = self.sql.load(&question.statement, connections);
                    let ratios = format!("p99 {:.2}, rate", sql.p99_ms / ours.p99_ms);
                    let rates = ours.rate / sql.rate;
                    write!(
                        figures,
                        " beside {} ({ratios} {rates:.2})",
                        format_load(&sql)
                    )
                    .expect("text");
                }
            }
            print_figure(question.label, figures);
        }
    }

    /// Connects this many new athletes to an application, in PostgreSQL and in the log. Returns
    /// their authorizations.
    fn connect(&mut self, application: u64, count: u64) -> std::ops::Range<u64> {
        let numbers = self.added..self.added + count;
        self.added = numbers.end;
        self.ingest(application, numbers.clone(), false);
        numbers
    }

    /// Ingests authorizations of an application, or their revocations; returns the time.
    fn ingest(&self, application: u64, numbers: std::ops::Range<u64>, revoke: bool) -> Duration {
        let lines = numbers.map(|number| {
            let mut line = json!({"id": FIRST_ID + number, "application_id": application,
                "athlete_id": self.athlete(number), "created_at": "2026-01-01T00:00:00Z"});
            if revoke {
                line["revoked_at"] = json!("2026-01-02T00:00:00Z");
                line["version"] = json!(1);
            }
            line
        });
        let file = write(&self.installation, "more.jsonl", lines);
        let ingest = ["ingest", "authorizations", &file];
        measure_time(|| run_ok_with(&self.installation, UNCACHED, &ingest)).0
    }

    /// Returns an athlete who was never connected.
    fn athlete(&self, number: u64) -> u64 {
        let free = usize::try_from(number).ok();
        let free = free.and_then(|number| self.free.get(number));
        free.map_or(2 * self.rows + 1 + number, |athlete| *athlete)
    }

    /// Requests the largest application until its board is in Redis; returns whether that happens.
    fn fill(&self, client: &Client) -> bool {
        let (begun, source) = (Instant::now(), Source::Authorizations);
        while measure_cache(&self.runtime, &self.world.stores, source).0 == 0 {
            if begun.elapsed() > FILL_MAX {
                print_figure("the board of the largest in Redis", "not in time");
                return false;
            }
            // A live count answers requests for the size alone, so a page is requested.
            let page = format!("/api/v1/boards/applications/{LARGEST}?limit=1");
            let _answer = client.get_json(&page);
            pause(Duration::from_millis(20));
        }
        let (_, bytes) = measure_cache(&self.runtime, &self.world.stores, source);
        let rows = self.sql.query_number(&count_query(LARGEST));
        print_figure(
            "the board of the largest in Redis after the first request, s",
            format_args!(
                "{:.2}, {:.0} bytes an athlete",
                begun.elapsed().as_secs_f64(),
                ratio(bytes, rows)
            ),
        );
        true
    }
}

fn application(id: u64, capacity: u64) -> Value {
    json!({"id": id, "name": format!("Application {id}"), "owner": "somebody",
        "athlete_capacity": capacity})
}

/// Returns the paths of all pages of the list.
fn pages(client: &Client) -> Vec<String> {
    let first = format!("{LIST}?limit={PAGE}");
    let mut pages = vec![first.clone()];
    loop {
        let page = client.get_json(pages.last().unwrap_or(&first));
        let Some(cursor) = page["cursor"].as_str() else {
            return pages;
        };
        pages.push(format!("{first}&cursor={cursor}"));
    }
}

fn format_load(load: &Load) -> String {
    format!("{:.2}, {:.2}; {:.0}/s", load.p50_ms, load.p99_ms, load.rate)
}

#[expect(clippy::cast_precision_loss, reason = "a figure")]
fn ratio(total: u64, count: u64) -> f64 {
    total as f64 / count.max(1) as f64
}
