//! Reconciling boards with the entity store, and the time to detect and repair damage.

use jobs::{Board, Job};
use schemas::key::KeyValue;
use tests::hand::Cql;
use tests::place::Place;
use tests::process::done;
use tests::servers::{self, Addresses};
use tests::world::World;
use tokio::runtime::Runtime;

use super::{compare, restored, say, timed};

const VIEW: &str = "segment_boards";
/// The fraction of the requested events that become efforts.
const PART: u64 = 10;
const SEGMENTS: u64 = 1_000;

pub(super) fn run(rows: u64, runtime: &Runtime) {
    let rows = rows / PART;
    let place = Place::on_these(&Addresses::default(), "");
    println!("boards: {rows} efforts on {SEGMENTS} segments");
    fill(&place, rows);
    // One notification is required: without any there is nothing to run.
    let row = r#"{"id":0,"segment_id":0,"athlete_id":1,"activity_id":1,"elapsed_time":60,"started_at":"2026-01-01T00:00:00Z"}"#;
    place.ingest("efforts", row);
    let speed = ["speed", "--until-caught-up", "--source", "efforts"];
    done(place.data(), &speed);
    let (took, _) = timed(|| done(place.data(), &["batch", "run"]));
    say(
        "the run that takes them in, s",
        format_args!("{:.1}", took.as_secs_f64()),
    );
    compare(&place, "canonical", (VIEW, "canonical"), 0);
    let schema = place.options().namespace.identifier("backstitch");
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
            found(&place, "1,000 rows changed with triggers off", "not_told");
            continue;
        }
        done(place.data(), &speed);
        let namespace = &place.options().namespace;
        // The key of the partition state itself begins with the same letter.
        let keys = servers::delete_keys(&format!("{{{namespace}:efforts:*}}:s[0-9]*"));
        found(
            &place,
            &format!("{keys} keys of live states lost"),
            "lost_live",
        );
    }
    let world = runtime.block_on(place.world());
    runtime.block_on(lose_a_head(&world, &place));
    found(&place, "a head lost", "missing_row");
}

/// Fills the database with rows that precede all notifications.
fn fill(place: &Place, rows: u64) {
    let schema = place.options().namespace.identifier("backstitch");
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

async fn lose_a_head(world: &World, place: &Place) {
    let cql = Cql::of(&place.options().namespace).await;
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
fn found(place: &Place, what: &str, cause: &str) {
    let of = (VIEW, "canonical");
    let (found, _) = restored(place, of, &[]);
    let named = found.report["causes"].as_object().expect("causes");
    assert!(
        named.len() == 1 && named.contains_key(cause),
        "{what}: {}",
        found.report
    );
    let (healed, _) = restored(place, of, &["--apply"]);
    assert!(
        healed.report["applied"].is_object(),
        "{what}: {} {}",
        healed.report,
        healed.said
    );
    let speed = ["speed", "--until-caught-up", "--source", "efforts"];
    done(place.data(), &speed);
    let (found_s, healed_s) = (found.took.as_secs_f64(), healed.took.as_secs_f64());
    say(
        format!("{what}: found, put right"),
        format_args!("{found_s:.1}, {healed_s:.1} s"),
    );
    let (again, _) = restored(place, of, &[]);
    assert_eq!(again.report["differ"], 0, "{what}: {}", again.report);
}
