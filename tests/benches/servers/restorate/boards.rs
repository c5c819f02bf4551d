//! Reconciling boards with the entity store, and the time to detect and repair damage.

use jobs::{Board, Job};
use schemas::key::KeyValue;
use tests::direct_access::Cql;
use tests::installation::Installation;
use tests::process::done;
use tests::servers::{self, Addresses};
use tests::world::World;
use tokio::runtime::Runtime;

use super::{compare, reconcile, say, timed};

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
    done(installation.data(), &speed);
    let (took, _) = timed(|| done(installation.data(), &["batch", "run"]));
    say(
        "the run that takes them in, s",
        format_args!("{:.1}", took.as_secs_f64()),
    );
    compare(&installation, "canonical", VIEW, "canonical", 0);
    let schema = installation.options().namespace.identifier("backstitch");
    // Equal numbers of changes with and without notifications.
    for is_told in [true, false] {
        let (off, on) = match is_told {
            true => ("", ""),
            false => (
                "ALTER TABLE efforts DISABLE TRIGGER USER;",
                "ALTER TABLE efforts ENABLE TRIGGER USER;",
            ),
        };
        let from = if is_told { 0 } else { 1_000 };
        let changed = servers::run_on_postgres(&format!(
            "SET search_path = {schema}; {off}
             UPDATE efforts SET elapsed_time_s = 1 WHERE id > {from} AND id <= {from} + 1000; {on}"
        ));
        changed.expect("rows change");
        if !is_told {
            found(
                &installation,
                "1,000 rows changed with triggers off",
                "not_told",
            );
            continue;
        }
        done(installation.data(), &speed);
        let namespace = &installation.options().namespace;
        // The key of the partition state itself begins with the same letter.
        let keys = servers::delete_keys(&format!("{{{namespace}:efforts:*}}:s[0-9]*"));
        found(
            &installation,
            &format!("{keys} keys of live states lost"),
            "lost_live",
        );
    }
    let world = runtime.block_on(installation.world());
    runtime.block_on(lose_a_head(&world, &installation));
    found(&installation, "a head lost", "missing_row");
}

/// Fills the database with rows that precede all notifications.
fn fill(installation: &Installation, rows: u64) {
    let schema = installation.options().namespace.identifier("backstitch");
    let filled = servers::run_on_postgres(&format!(
        "SET search_path = {schema};
         ALTER TABLE efforts DISABLE TRIGGER USER;
         INSERT INTO efforts (id, segment_id, athlete_id, activity_id, elapsed_time_s, started_at_us)
         SELECT n, n % {SEGMENTS}, n::bigint * 7919 % 500000, n, 60 + n % 3600,
                1700000000000000 + n::bigint * 1000000 FROM generate_series(1, {rows}) n;
         ALTER TABLE efforts ENABLE TRIGGER USER; ANALYZE efforts;"
    ));
    filled.expect("rows");
}

async fn lose_a_head(world: &World, installation: &Installation) {
    let cql = Cql::connect(&installation.options().namespace).await;
    let mut boards = world.catalog.boards().iter();
    let job: &Job<Board> = boards.find(|job| job.name() == VIEW).expect("the boards");
    let id = cql.id(job.view()).await;
    let own = job.key().encode_values(&[KeyValue::Int(7)]).expect("a key");
    let heads = format!("SELECT bucket, key FROM heads_{id}");
    let heads = cql.read::<(i32, Option<Vec<u8>>)>(&heads, ()).await;
    let mut heads = heads.into_iter();
    let (bucket, _) = heads
        .find(|(_, key)| key.as_ref() == Some(&own))
        .expect("a head");
    let text = format!("DELETE FROM heads_{id} WHERE bucket = ? AND key = ?");
    cql.run(&text, (bucket, own)).await;
}

/// Detects, reports and repairs damage, and prints the time of each step.
fn found(installation: &Installation, what: &str, cause: &str) {
    let (found, _) = reconcile(installation, VIEW, "canonical", &[]);
    let named = found.report["causes"].as_object().expect("causes");
    assert!(
        named.len() == 1 && named.contains_key(cause),
        "{what}: {}",
        found.report
    );
    let (repaired, _) = reconcile(installation, VIEW, "canonical", &["--apply"]);
    assert!(
        repaired.report["applied"].is_object(),
        "{what}: {} {}",
        repaired.report,
        repaired.said
    );
    let speed = ["speed", "--until-caught-up", "--source", "efforts"];
    done(installation.data(), &speed);
    let (found_s, repaired_s) = (found.took.as_secs_f64(), repaired.took.as_secs_f64());
    say(
        format!("{what}: detected, repaired"),
        format_args!("{found_s:.1}, {repaired_s:.1} s"),
    );
    let (again, _) = reconcile(installation, VIEW, "canonical", &[]);
    assert_eq!(again.report["differ"], 0, "{what}: {}", again.report);
}
