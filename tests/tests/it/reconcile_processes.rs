//! Scheduled reconciliation as processes: `restorate --scheduled` says by its status what it found, `up` carries out what
//! is due, and a webhook is told.

use std::time::Duration;

use schemas::source::Source;
use serde_json::{Value, json};
use tests::listener::Listener;
use tests::place::Place;
use tests::process::{CONFIG, Process, done, run};
use tests::world::World;

use crate::notices::SECRET;
use crate::restore::{one_row, plays, rows_of, these_are_right, write};

const VIEW: &str = "plays_owner_day_track";

fn configuration(url: &str) -> String {
    let schedule = |name: &str, policy: &str| {
        format!(
            "[[reconciliation]]\nname = \"{name}\"\nviews = [\"{VIEW}\"]\nexpected = \"archive\"\ninterval_minutes = 1440\n{policy}\n"
        )
    };
    let notices = format!("[notices]\nwebhook_url = \"{url}\"\nwebhook_secret = \"{SECRET}\"\n");
    let report = schedule("nightly", "policy = \"report\"");
    let apply = schedule("daily", "policy = \"apply\"\napply_max = 100");
    report + &apply + &notices
}

/// What a command says as JSON, and its status.
fn told(place: &Place, args: &[&str]) -> (Option<i32>, Value) {
    let output = run(place.data(), args);
    let told = serde_json::from_slice(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let told = told.unwrap_or_else(|error| panic!("{error}: {output:?} {said}"));
    (output.status.code(), told)
}

async fn newest_of(world: &World, schedule: &str) -> Option<Value> {
    let all = stores::reconciliations::list(&*world.stores.records, Source::Plays, None, 20).await;
    let mut records = all.expect("a history").into_iter().map(|one| one.record);
    records.find(|record| record["schedule"] == schedule)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_is_kept_by_processes() {
    let listener = Listener::new(&[]);
    let place = Place::embedded();
    let data = place.data();
    std::fs::create_dir_all(data).expect("a folder");
    std::fs::write(data.join(CONFIG), configuration(&listener.url)).expect("a configuration");
    place.ingest("plays", &plays(0, 60).join("\n"));
    done(data, &["speed", "--until-caught-up"]);
    done(data, &["batch", "run"]);
    let nightly = ["--json", "restorate", "--scheduled", "nightly"];
    let (status, found) = told(&place, &nightly);
    assert_eq!((status, &found[0]["outcome"]), (Some(0), &json!("right")));

    // Somebody changes a row: it is found, told of once, and left as it is.
    let world = place.world().await;
    let table = world.catalog.job(VIEW).expect("the job").view().to_owned();
    let page = rows_of(&world, &table).await;
    let count = page.counts.value(0) + 5;
    write(&world, &table, &one_row(&page, 0, Some(count))).await;
    for alerts in [1, 0] {
        let (status, found) = told(&place, &nightly);
        assert_eq!(status, Some(3), "{found}");
        let found = &found[0];
        assert_eq!(
            (&found["outcome"], &found["alerts"]),
            (&json!("differs"), &json!(alerts)),
            "{found}"
        );
        assert_eq!(found["reports"][0]["total"], 5, "{found}");
    }
    assert_eq!(rows_of(&world, &table).await.counts.value(0), count);

    // The other schedule is due, and puts it right; the alert goes out meanwhile.
    let up = ["up", "--listen", "127.0.0.1:0", "--batch-interval", "1"];
    let up = Process::start(data, &up);
    let posts = listener.wait_for(1);
    let alert = posts[0].json();
    assert!(posts[0].is_signed(SECRET), "{alert}");
    assert_eq!(alert["type"], "reconciliation.alert", "{alert}");
    assert_eq!(
        (&alert["schedule"], &alert["outcome"], &alert["differ"]),
        (&json!("nightly"), &json!("differs"), &json!(1)),
        "{alert}"
    );
    assert_eq!(posts[0].id(), alert["id"].as_str().expect("an id"));
    let mut record = None;
    for _ in 0..240 {
        record = newest_of(&world, "daily").await;
        if record
            .as_ref()
            .is_some_and(|one| one["outcome"] != "applying")
        {
            break;
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    let record = record.expect("it was carried out");
    assert_eq!(record["outcome"], "put_right", "{record}");
    let (succeeded, said) = up.end();
    assert!(succeeded, "{said:?}");
    assert_eq!(listener.posts().len(), 1, "it was put right");
    these_are_right(&world, &[VIEW]).await;
}
