//! Time to detect, report and repair damaged counts.

use serde_json::json;
use tests::direct_access::Cql;
use tests::installation::Installation;
use tests::process::{Process, run_ok};
use tests::servers;
use tests::world::World;
use tokio::runtime::Runtime;

use super::{VIEW, find_table, generate_plays, pause, print_figure, reconcile, speed};

/// Number of stages before a run begins to publish.
const STAGES: usize = 5;

pub(super) fn run(installation: &Installation, runtime: &Runtime) {
    let world = runtime.block_on(installation.world());
    let namespace = &installation.options().namespace;
    for (label, cause) in [
        ("UPDATE TABLE SET count = 1000", "changed_row"),
        ("DELETE FROM TABLE", "missing_row"),
    ] {
        runtime.block_on(change_rows(&world, installation, label));
        measure_repair(installation, "1,000 rows of Cassandra", &[cause]);
    }
    let keys = servers::delete_keys(&format!("{{{namespace}:plays:0}}:d*"));
    assert!(keys > 0, "keys are lost");
    measure_repair(
        installation,
        &format!("{keys} keys of Redis lost"),
        &["lost_live"],
    );
    // No notification exists for the duplicate events.
    let again = generate_plays(installation, "again.parquet", 10_000, 4);
    run_ok(installation.data(), &["ingest", "plays", &again]);
    speed(installation);
    run_ok(installation.data(), &["ingest", "plays", &again]);
    count_without_window(installation);
    measure_repair(installation, "10,000 events twice", &["duplicate"]);
    files(installation, runtime, &world);
    kill_publishing_run(installation);
}

/// Changes the first rows of the view's table.
async fn change_rows(world: &World, installation: &Installation, label: &str) {
    let cql = Cql::connect(&installation.options().namespace).await;
    let id = cql.id(&find_table(world, VIEW)).await;
    let rows = format!("SELECT part, row FROM rows_{id} LIMIT 1000");
    let rows = cql.read::<(Vec<u8>, Vec<u8>)>(&rows, ()).await;
    assert_eq!(rows.len(), 1_000);
    let text = label.replace("TABLE", &format!("rows_{id}"));
    for row in rows {
        cql.run(&format!("{text} WHERE part = ? AND row = ?"), row)
            .await;
    }
}

/// Counts with a worker that remembers no events and counts duplicates.
fn count_without_window(installation: &Installation) {
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
fn measure_repair(installation: &Installation, label: &str, causes: &[&str]) {
    let (detected, _) = reconcile(installation, VIEW, "archive", &[]);
    let named = detected.report["causes"].as_object().expect("causes");
    let named: Vec<&str> = named.keys().map(String::as_str).collect();
    assert_eq!(named, causes, "{label}: {}", detected.report);
    repair(installation, label, detected.took.as_secs_f64());
}

fn repair(installation: &Installation, label: &str, found_s: f64) {
    let (repaired, _) = reconcile(installation, VIEW, "archive", &["--apply"]);
    assert!(
        repaired.report["applied"].is_object(),
        "{label}: {} {}",
        repaired.report,
        repaired.log
    );
    let repaired_s = repaired.took.as_secs_f64();
    print_figure(
        format!("{label}: detected, repaired"),
        format_args!("{found_s:.1}, {repaired_s:.1} s"),
    );
    let (repeated, _) = reconcile(installation, VIEW, "archive", &[]);
    assert_eq!(repeated.report["differ"], 0, "{label}: {}", repeated.report);
}

/// Removes, then damages, an archive file that came from the log.
fn files(installation: &Installation, runtime: &Runtime, world: &World) {
    let archive = &world.stores.archive;
    let files = runtime.block_on(archive.list("archive/plays/files"));
    let path = files.expect("files").pop().expect("a file");
    for is_missing in [true, false] {
        let damage = async {
            if is_missing {
                return archive.delete(&path).await;
            }
            let bytes = archive.get(&path).await?.expect("a file");
            let mut bytes = bytes.to_vec();
            let length = bytes.len();
            // Damages several positions, because not every column is read.
            (1..16).for_each(|part| bytes[length * part / 16] ^= 1);
            archive.put(&path, bytes.into()).await
        };
        runtime.block_on(damage).expect("a file is harmed");
        let (detected, _) = reconcile(installation, VIEW, "archive", &[]);
        assert!(detected.log.contains(&path), "{}", detected.log);
        let label = if is_missing {
            "a Parquet file missing"
        } else {
            "a Parquet file changed"
        };
        repair(installation, label, detected.took.as_secs_f64());
    }
}

/// Kills a run while it publishes.
fn kill_publishing_run(installation: &Installation) {
    let more = generate_plays(installation, "more.parquet", 100_000, 5);
    run_ok(installation.data(), &["ingest", "plays", &more]);
    speed(installation);
    let run = ["batch", "run", "--log-level", "warn,batch=debug"];
    let mut run = Process::start(installation.data(), &run);
    while run.is_running() && run.outputs()[1].matches("begins stage=").count() < STAGES {
        pause();
    }
    assert!(run.kill(), "it died while it published");
    let (mut detected, _) = reconcile(installation, VIEW, "archive", &[]);
    // Waits for the lease of the killed run to expire.
    while detected.log.contains("is under way") {
        pause();
        detected = reconcile(installation, VIEW, "archive", &[]).0;
    }
    let warning = detected.report["warnings"][0].to_string();
    assert!(warning.contains("is not complete"), "{}", detected.report);
    assert_eq!(detected.report["differ"], json!(0));
    repair(
        installation,
        "a run died half-way",
        detected.took.as_secs_f64(),
    );
}
