//! What a person approves of a scheduled reconciliation is put right, once, and never more than was seen.

use batch::{Policy, RestoreOutcome, When};
use schemas::clock::Clock;
use schemas::source::Source;
use serde_json::{Value, json};
use stores::approvals::{self, NotApproved, approve};
use stores::reconciliations;
use tests::place::Place;
use tests::process::{Server, done, run};
use tests::world::World;

use crate::reconcile::{VIEW, damage, history, outcome_of, reconcile, scheduled};
use crate::restore::{lived_in, these_are_right};

/// The number of the newest comparison.
async fn newest(world: &World) -> u64 {
    let all = reconciliations::list(&*world.stores.records, Source::Plays, None, 1).await;
    all.expect("a history")[0].number
}

async fn approved(world: &World, number: u64) -> Result<u64, NotApproved> {
    let records = &*world.stores.records;
    let of = (Source::Plays, number);
    let why = ("ann", "it was a bad import");
    let done = approve(records, of, why, world.clock.now_ms()).await;
    done.expect("an answer").map(|approval| approval.total)
}

async fn what_is_approved_is_put_right(world: &World) {
    lived_in(world).await;
    let report = scheduled(world, Policy::Report, None).await;
    damage(world, 5).await;
    let found = reconcile(world, &report, When::Due).await;
    assert_eq!(outcome_of(&found).0, RestoreOutcome::Differs);
    let number = newest(world).await;
    assert_eq!(
        approved(world, number + 1).await,
        Err(NotApproved::UnknownComparison)
    );
    assert_eq!(approved(world, number).await, Ok(5));

    // More differs by then than was seen: that is for a person again.
    damage(world, 7).await;
    let found = reconcile(world, &report, When::Due).await;
    assert_eq!(outcome_of(&found).0, RestoreOutcome::HeldBack, "{found:?}");
    let unused = approvals::list(&*world.stores.records).await;
    assert_eq!(unused.expect("approvals"), [], "it is spent");
    let found = reconcile(world, &report, When::Now).await;
    assert_eq!(outcome_of(&found).0, RestoreOutcome::Differs, "{found:?}");

    // Of two comparisons of the same only the newer one says what there is.
    let (old, new) = (number, newest(world).await);
    let refused = approved(world, old).await;
    assert!(
        matches!(refused, Err(NotApproved::NotApprovable(_))),
        "{refused:?}"
    );
    let total = approved(world, new).await.expect("an approval");
    assert!(total >= 7, "{total}");
    // It makes the schedule due, though that ended just now.
    let found = reconcile(world, &report, When::Due).await;
    assert_eq!(outcome_of(&found).0, RestoreOutcome::PutRight, "{found:?}");
    these_are_right(world, &[VIEW]).await;
    // The newest is of what has just looked whether all is right.
    let record = &history(world).await[1];
    assert_eq!(
        (&record["by"], &record["reason"]),
        (&json!("ann"), &json!("it was a bad import"))
    );
    let refused = approved(world, newest(world).await).await;
    assert!(
        matches!(refused, Err(NotApproved::NotApprovable(_))),
        "{refused:?}"
    );

    // Approved once more while nobody compares: good for that comparison alone, and only while the schedule asks the same.
    damage(world, 1).await;
    reconcile(world, &report, When::Now).await;
    assert_eq!(approved(world, newest(world).await).await, Ok(1));
    let mut other = report.clone();
    other.views[0].request.tolerance = (0, 0.0);
    other.views[0].request.to = Some(4_000_000_000);
    let found = reconcile(world, &other, When::Now).await;
    assert_eq!(outcome_of(&found).0, RestoreOutcome::Differs, "{found:?}");
    let found = reconcile(world, &report, When::Now).await;
    assert_eq!(outcome_of(&found).0, RestoreOutcome::Differs, "{found:?}");

    // An approval that nobody has spent (its process died) is not good for what is found later.
    let number = newest(world).await;
    assert_eq!(approved(world, number).await, Ok(1));
    let records = &*world.stores.records;
    let record = &history(world).await[0];
    let later = reconciliations::add(records, Source::Plays, "later", 2, record).await;
    assert!(later.expect("a number") > number);
    let found = reconcile(world, &report, When::Now).await;
    assert_eq!(outcome_of(&found).0, RestoreOutcome::Differs, "{found:?}");

    // The next damage is not put right unasked.
    damage(world, 1).await;
    let found = reconcile(world, &report, When::Now).await;
    assert_eq!(outcome_of(&found).0, RestoreOutcome::Differs, "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_approved_is_put_right_embedded() {
    what_is_approved_is_put_right(&World::new().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_approved_is_put_right_on_servers() {
    what_is_approved_is_put_right(&World::on_servers().await).await;
}

/// The same by commands and over HTTP: refused in one sentence, shown in the list until it is spent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_approved_by_command_and_over_http() {
    let place = Place::embedded();
    let world = place.world().await;
    lived_in(&world).await;
    let report = scheduled(&world, Policy::Report, None).await;
    damage(&world, 5).await;
    reconcile(&world, &report, When::Due).await;
    let number = newest(&world).await;
    let refused = run(place.data(), &["restorate", "approve", "99"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(
        said.contains("there is no comparison 99 of plays"),
        "{said}"
    );

    let server = Server::start(place.data(), &[]);
    let path = |number: u64| {
        format!("/api/v1/reconciliations/approve?source=plays&number={number}&reason=bad%20import")
    };
    let (status, body) = server.client.post(&path(99), b"");
    assert_eq!(status, 404, "{body}");
    let (status, body) = server.client.post(&path(number), b"");
    let approval: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(status, 200, "{body}");
    assert_eq!(
        (&approval["total"], &approval["by"]),
        (&json!(5), &json!("this machine"))
    );
    let shown = || {
        server
            .client
            .json("/api/v1/reconciliations?kind=restorate&limit=1")
    };
    assert_eq!(shown()["reconciliations"][0]["approval"], approval);
    for query in [
        "",
        "?source=plays",
        "?source=plays&number=x",
        // The one that follows it has no room in a store.
        "?source=plays&number=9223372036854775807",
        "?source=songs&number=1",
    ] {
        let (status, body) = server
            .client
            .post(&format!("/api/v1/reconciliations/approve{query}"), b"");
        assert_eq!(status, 400, "{query}: {body}");
    }
    done(
        place.data(),
        &[
            "restorate",
            "approve",
            &number.to_string(),
            "--reason",
            "again",
        ],
    );
    assert_eq!(shown()["reconciliations"][0]["approval"]["reason"], "again");
    let put_right = reconcile(&world, &report, When::Due).await;
    assert_eq!(
        outcome_of(&put_right).0,
        RestoreOutcome::PutRight,
        "{put_right:?}"
    );
    assert_eq!(shown()["reconciliations"][0]["approval"], Value::Null);
    let (status, body) = server.client.post(&path(number + 1), b"");
    assert_eq!(status, 409, "{body}");
}
