//! Reconciling boards with the entity store, and the time to detect and repair damage.

use jobs::{Board, Job};
use schemas::key::KeyValue;
use tests::direct_access::Cql;
use tests::installation::Installation;
use tests::process::run_ok;
use tests::servers::{self, Addresses};
use tests::world::World;
use tokio::runtime::Runtime;

use super::{compare, measure_time, print_figure, reconcile};

const VIEW: &str = "segment_boards";
/// The fraction of the requested events that become efforts.
const PART: u64 = 10;
const SEGMENTS: u64 = 1_000;

pub(super) fn run(rows: u64, runtime: &Runtime) {
    let rows = rows / PART;
    let installation = Installation::with_addresses(&Addresses::default(), "");
    println!("boards: {rows} efforts on {SEGMENTS} segments");
    fill(&installation, rows);
    // One notification is required: without any there is nothing to run.
    let row = r#"{"id":0,"segment_id":0,"athlete_id":1,"activity_id":1,"elapsed_time":60,"started_at":"2026-01-01T00:00:00Z"}"#;
    installation.ingest("efforts", row);
    let speed = ["speed", "--until-caught-up", "--source", "efforts"];
    run_ok(installation.data(), &speed);
    let (took, _) = measure_time(|| run_ok(installation.data(), &["batch", "run"]));
    print_figure(
        "the run that takes them in, s",
        format_args!("{:.1}", took.as_secs_f64()),
    );
    compare(&installation, "canonical", VIEW, "canonical", 0);
    let schema = installation.options().namespace.identifier("backstitch");
    // Equal numbers of changes with and without notifications.
    for has_notifications in [true, false] {
        let (disable, enable) = match has_notifications {
            true => ("", ""),
            false => (
                "ALTER TABLE efforts DISABLE TRIGGER USER;",
                "ALTER TABLE efforts ENABLE TRIGGER USER;",
            ),
        };
        let first_id = if has_notifications { 0 } else { 1_000 };
        let changed = servers::run_on_postgres(&format!(
            "SET search_path = {schema}; {disable}
             UPDATE efforts SET elapsed_time_s = 1 WHERE id > {first_id} AND id <= {first_id} + 1000; {enable}"
        ));
        changed.expect("rows change");
        if !has_notifications {
            measure_repair(
                &installation,
                "1,000 rows changed with triggers off",
                "not_told",
            );
            continue;
        }
        run_ok(installation.data(), &speed);
        let namespace = &installation.options().namespace;
        // The key of the partition state itself begins with the same letter.
        let keys = servers::delete_keys(&format!("{{{namespace}:efforts:*}}:s[0-9]*"));
        measure_repair(
            &installation,
            &format!("{keys} keys of live states lost"),
            "lost_live",
        );
    }
    let world = runtime.block_on(installation.world());
    runtime.block_on(lose_a_head(&world, &installation));
    measure_repair(&installation, "a head lost", "missing_row");
}

/// Fills the database with rows that precede all notifications.
fn fill(installation: &Installation, rows: u64) {
    let schema = installation.options().namespace.identifier("backstitch");
    let inserted = servers::run_on_postgres(&format!(
        "SET search_path = {schema};
         ALTER TABLE efforts DISABLE TRIGGER USER;
         INSERT INTO efforts (id, segment_id, athlete_id, activity_id, elapsed_time_s, started_at_us)
         SELECT n, n % {SEGMENTS}, n::bigint * 7919 % 500000, n, 60 + n % 3600,
                1700000000000000 + n::bigint * 1000000 FROM generate_series(1, {rows}) n;
         ALTER TABLE efforts ENABLE TRIGGER USER; ANALYZE efforts;"
    ));
    inserted.expect("rows");
}

async fn lose_a_head(world: &World, installation: &Installation) {
    let cql = Cql::connect(&installation.options().namespace).await;
    let mut boards = world.catalog.boards().iter();
    let job: &Job<Board> = boards.find(|job| job.name() == VIEW).expect("the boards");
    let id = cql.id(job.view()).await;
    let board_key = job.key().encode_values(&[KeyValue::Int(7)]).expect("a key");
    let heads = format!("SELECT bucket, key FROM heads_{id}");
    let heads = cql.read::<(i32, Option<Vec<u8>>)>(&heads, ()).await;
    let mut heads = heads.into_iter();
    let (bucket, _) = heads
        .find(|(_, key)| key.as_ref() == Some(&board_key))
        .expect("a head");
    let text = format!("DELETE FROM heads_{id} WHERE bucket = ? AND key = ?");
    cql.run(&text, (bucket, board_key)).await;
}

/// Detects, reports and repairs damage, and prints the time of each step.
fn measure_repair(installation: &Installation, label: &str, cause: &str) {
    let (detected, _) = reconcile(installation, VIEW, "canonical", &[]);
    let causes = detected.report["causes"].as_object().expect("causes");
    assert!(
        causes.len() == 1 && causes.contains_key(cause),
        "{label}: {}",
        detected.report
    );
    let (repaired, _) = reconcile(installation, VIEW, "canonical", &["--apply"]);
    assert!(
        repaired.report["applied"].is_object(),
        "{label}: {} {}",
        repaired.report,
        repaired.log
    );
    let speed = ["speed", "--until-caught-up", "--source", "efforts"];
    run_ok(installation.data(), &speed);
    let (found_s, repaired_s) = (detected.took.as_secs_f64(), repaired.took.as_secs_f64());
    print_figure(
        format!("{label}: detected, repaired"),
        format_args!("{found_s:.1}, {repaired_s:.1} s"),
    );
    let (repeated, _) = reconcile(installation, VIEW, "canonical", &[]);
    assert_eq!(repeated.report["differ"], 0, "{label}: {}", repeated.report);
}
