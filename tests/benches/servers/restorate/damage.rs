//! Time to detect, report and repair damaged counts.

use serde_json::json;
use tests::direct_access::Cql;
use tests::installation::Installation;
use tests::process::{Process, done};
use tests::servers;
use tests::world::World;
use tokio::runtime::Runtime;

use super::{VIEW, generated, pause, reconcile, say, speed, table};

/// Number of stages before a run begins to publish.
const STAGES: usize = 5;

pub(super) fn run(installation: &Installation, runtime: &Runtime) {
    let world = runtime.block_on(installation.world());
    let namespace = &installation.options().namespace;
    for (what, cause) in [
        ("UPDATE TABLE SET count = 1000", "changed_row"),
        ("DELETE FROM TABLE", "missing_row"),
    ] {
        runtime.block_on(change_rows(&world, installation, what));
        found(installation, "1,000 rows of Cassandra", &[cause]);
    }
    let keys = servers::delete_keys(&format!("{{{namespace}:plays:0}}:d*"));
    assert!(keys > 0, "keys are lost");
    found(
        installation,
        &format!("{keys} keys of Redis lost"),
        &["lost_live"],
    );
    // No notification exists for the duplicate events.
    let again = generated(installation, "again.parquet", 10_000, 4);
    done(installation.data(), &["ingest", "plays", &again]);
    speed(installation);
    done(installation.data(), &["ingest", "plays", &again]);
    forgetful(installation);
    found(installation, "10,000 events twice", &["duplicate"]);
    files(installation, runtime, &world);
    half_loaded(installation);
}

/// Changes the first rows of the view's table.
async fn change_rows(world: &World, installation: &Installation, what: &str) {
    let cql = Cql::connect(&installation.options().namespace).await;
    let id = cql.id(&table(world, VIEW)).await;
    let some = format!("SELECT part, row FROM rows_{id} LIMIT 1000");
    let some = cql.read::<(Vec<u8>, Vec<u8>)>(&some, ()).await;
    assert_eq!(some.len(), 1_000);
    let text = what.replace("TABLE", &format!("rows_{id}"));
    for row in some {
        cql.run(&format!("{text} WHERE part = ? AND row = ?"), row)
            .await;
    }
}

/// Counts with a worker that remembers no events and counts duplicates.
fn forgetful(installation: &Installation) {
    let name = "forgetful.toml";
    installation.configure(
        name,
        &servers::Addresses::default(),
        "speed.dedup_window_ms = 1\n",
    );
    let speed = ["speed", "--until-caught-up", "--source", "plays"];
    assert!(Process::start_with(installation.data(), name, &speed).wait());
}

/// Detects, reports and repairs damage, and prints the time of each step.
fn found(installation: &Installation, what: &str, causes: &[&str]) {
    let (found, _) = reconcile(installation, VIEW, "archive", &[]);
    let named = found.report["causes"].as_object().expect("causes");
    let named: Vec<&str> = named.keys().map(String::as_str).collect();
    assert_eq!(named, causes, "{what}: {}", found.report);
    repair(installation, what, found.took.as_secs_f64());
}

fn repair(installation: &Installation, what: &str, found_s: f64) {
    let (repaired, _) = reconcile(installation, VIEW, "archive", &["--apply"]);
    assert!(
        repaired.report["applied"].is_object(),
        "{what}: {} {}",
        repaired.report,
        repaired.said
    );
    let repaired_s = repaired.took.as_secs_f64();
    say(
        format!("{what}: detected, repaired"),
        format_args!("{found_s:.1}, {repaired_s:.1} s"),
    );
    let (again, _) = reconcile(installation, VIEW, "archive", &[]);
    assert_eq!(again.report["differ"], 0, "{what}: {}", again.report);
}

/// Removes, then damages, an archive file that came from the log.
fn files(installation: &Installation, runtime: &Runtime, world: &World) {
    let archive = &world.stores.archive;
    let files = runtime.block_on(archive.list("archive/plays/files"));
    let path = files.expect("files").pop().expect("a file");
    for is_gone in [true, false] {
        let harmed = async {
            if is_gone {
                return archive.delete(&path).await;
            }
            let bytes = archive.get(&path).await?.expect("a file");
            let mut bytes = bytes.to_vec();
            let length = bytes.len();
            // Damages several positions, because not every column is read.
            (1..16).for_each(|part| bytes[length * part / 16] ^= 1);
            archive.put(&path, bytes.into()).await
        };
        runtime.block_on(harmed).expect("a file is harmed");
        let (found, _) = reconcile(installation, VIEW, "archive", &[]);
        assert!(found.said.contains(&path), "{}", found.said);
        let what = if is_gone {
            "a Parquet file missing"
        } else {
            "a Parquet file changed"
        };
        repair(installation, what, found.took.as_secs_f64());
    }
}

/// Kills a run while it publishes.
fn half_loaded(installation: &Installation) {
    let more = generated(installation, "more.parquet", 100_000, 5);
    done(installation.data(), &["ingest", "plays", &more]);
    speed(installation);
    let run = ["batch", "run", "--log-level", "warn,batch=debug"];
    let mut run = Process::start(installation.data(), &run);
    while run.is_running() && run.outputs()[1].matches("begins stage=").count() < STAGES {
        pause();
    }
    assert!(run.kill(), "it died while it published");
    let (mut found, _) = reconcile(installation, VIEW, "archive", &[]);
    // Waits for the lease of the killed run to expire.
    while found.said.contains("is under way") {
        pause();
        found = reconcile(installation, VIEW, "archive", &[]).0;
    }
    let warning = found.report["warnings"][0].to_string();
    assert!(warning.contains("is not complete"), "{}", found.report);
    assert_eq!(found.report["differ"], json!(0));
    repair(
        installation,
        "a run died half-way",
        found.took.as_secs_f64(),
    );
}
