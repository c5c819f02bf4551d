//! An approved reconciliation repairs once, and never more differences than the approver saw.

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

/// The number of the latest comparison.
async fn newest(world: &World) -> u64 {
    let all = reconciliations::list(&*world.stores.records, Source::Plays, None, 1).await;
    all.expect("a history")[0].number
}

async fn approved(world: &World, number: u64) -> Result<u64, NotApproved> {
    let records = &*world.stores.records;
    let now_ms = world.clock.now_ms();
    let reason = "it was a bad import";
    let done = approve(records, Source::Plays, number, "ann", reason, now_ms).await;
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

    // More differences than at the approval require another approval.
    damage(world, 7).await;
    let found = reconcile(world, &report, When::Due).await;
    assert_eq!(outcome_of(&found).0, RestoreOutcome::HeldBack, "{found:?}");
    let unused = approvals::list(&*world.stores.records).await;
    assert_eq!(unused.expect("approvals"), [], "it is spent");
    let found = reconcile(world, &report, When::Now).await;
    assert_eq!(outcome_of(&found).0, RestoreOutcome::Differs, "{found:?}");

    // Of two identical comparisons, only the later one can be approved.
    let (old, new) = (number, newest(world).await);
    let refused = approved(world, old).await;
    assert!(
        matches!(refused, Err(NotApproved::NotApprovable(_))),
        "{refused:?}"
    );
    let total = approved(world, new).await.expect("an approval");
    assert!(total >= 7, "{total}");
    // An approval makes the schedule due, although its last run has just ended.
    let found = reconcile(world, &report, When::Due).await;
    assert_eq!(outcome_of(&found).0, RestoreOutcome::PutRight, "{found:?}");
    these_are_right(world, &[VIEW]).await;
    // The latest comparison is the one that verified the repair.
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

    // An approval given between comparisons is valid for that comparison only, and only while the
    // schedule's options are unchanged.
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

    // An approval that was not used, because its process died, does not apply to later differences.
    let number = newest(world).await;
    assert_eq!(approved(world, number).await, Ok(1));
    let records = &*world.stores.records;
    let record = &history(world).await[0];
    let later = reconciliations::add(records, Source::Plays, "later", 2, record).await;
    assert!(later.expect("a number") > number);
    let found = reconcile(world, &report, When::Now).await;
    assert_eq!(outcome_of(&found).0, RestoreOutcome::Differs, "{found:?}");

    // New damage is not repaired without a new approval.
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

/// The same by command and over HTTP: a refusal is one sentence, and the list shows an approval
/// until it is used.
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
        // The number that follows this one does not fit the store's integer type.
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
