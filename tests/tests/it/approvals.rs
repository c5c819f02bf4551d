//! An approved reconciliation repairs once, and never more differences than the approver saw.

use batch::{Policy, ReconcileOutcome, Scheduled, When};
use schemas::clock::Clock;
use schemas::source::Source;
use serde_json::{Value, json};
use stores::approvals::{self, NotApproved, approve};
use stores::reconciliations;
use tests::installation::Installation;
use tests::process::{Server, run, run_ok};
use tests::world::World;

use crate::reconcile::{VIEW, damage, history, outcome_and_alerts, reconcile, scheduled};
use crate::restore::{assert_views_match, populate};

/// The number of the latest comparison.
async fn latest_number(world: &World) -> u64 {
    let comparisons = reconciliations::list(&*world.stores.records, Source::Plays, None, 1).await;
    comparisons.expect("a history")[0].number
}

async fn approve_number(world: &World, number: u64) -> Result<u64, NotApproved> {
    let records = &*world.stores.records;
    let now_ms = world.clock.now_ms();
    let reason = "it was a bad import";
    let result = approve(records, Source::Plays, number, "ann", reason, now_ms).await;
    result.expect("an answer").map(|approval| approval.total)
}

/// Reconciles, and checks the outcome.
async fn assert_outcome(
    world: &World,
    schedule: &Scheduled,
    when: When,
    expected: ReconcileOutcome,
) {
    let reconciliation = reconcile(world, schedule, when).await;
    assert_eq!(
        outcome_and_alerts(&reconciliation).0,
        expected,
        "{reconciliation:?}"
    );
}

async fn approved_differences_are_repaired(world: &World) {
    populate(world).await;
    let report = scheduled(world, Policy::Report, None).await;
    damage(world, 5).await;
    assert_outcome(world, &report, When::Due, ReconcileOutcome::Differs).await;
    let number = latest_number(world).await;
    assert_eq!(
        approve_number(world, number + 1).await,
        Err(NotApproved::UnknownComparison)
    );
    assert_eq!(approve_number(world, number).await, Ok(5));

    // More differences than at the approval require another approval.
    damage(world, 7).await;
    assert_outcome(world, &report, When::Due, ReconcileOutcome::HeldBack).await;
    let unused = approvals::list(&*world.stores.records).await;
    assert_eq!(
        unused.expect("approvals"),
        [],
        "the approval is not used up"
    );
    assert_outcome(world, &report, When::Now, ReconcileOutcome::Differs).await;

    // Of two identical comparisons, only the later one can be approved.
    let (old, new) = (number, latest_number(world).await);
    let refused = approve_number(world, old).await;
    assert!(
        matches!(refused, Err(NotApproved::NotApprovable(_))),
        "{refused:?}"
    );
    let total = approve_number(world, new).await.expect("an approval");
    assert!(total >= 7, "{total}");
    // An approval makes the schedule due, although its last run has just ended.
    assert_outcome(world, &report, When::Due, ReconcileOutcome::PutRight).await;
    assert_views_match(world, &[VIEW]).await;
    // The latest comparison is the one that verified the repair.
    let record = &history(world).await[1];
    assert_eq!(
        (&record["by"], &record["reason"]),
        (&json!("ann"), &json!("it was a bad import"))
    );
    let refused = approve_number(world, latest_number(world).await).await;
    assert!(
        matches!(refused, Err(NotApproved::NotApprovable(_))),
        "{refused:?}"
    );

    // An approval given between comparisons is valid for that comparison only, and only while the
    // schedule's options are unchanged.
    damage(world, 1).await;
    reconcile(world, &report, When::Now).await;
    assert_eq!(
        approve_number(world, latest_number(world).await).await,
        Ok(1)
    );
    let mut other = report.clone();
    other.views[0].request.tolerance = (0, 0.0);
    other.views[0].request.to = Some(4_000_000_000);
    assert_outcome(world, &other, When::Now, ReconcileOutcome::Differs).await;
    assert_outcome(world, &report, When::Now, ReconcileOutcome::Differs).await;

    // An approval that was not used, because its process died, does not apply to later differences.
    let number = latest_number(world).await;
    assert_eq!(approve_number(world, number).await, Ok(1));
    let records = &*world.stores.records;
    let record = &history(world).await[0];
    let later = reconciliations::add(records, Source::Plays, "later", 2, record).await;
    assert!(later.expect("a number") > number);
    assert_outcome(world, &report, When::Now, ReconcileOutcome::Differs).await;

    // New damage is not repaired without a new approval.
    damage(world, 1).await;
    assert_outcome(world, &report, When::Now, ReconcileOutcome::Differs).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approved_differences_are_repaired_embedded() {
    approved_differences_are_repaired(&World::new().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approved_differences_are_repaired_on_servers() {
    approved_differences_are_repaired(&World::on_servers().await).await;
}

/// Comparisons are approved by command and over HTTP. A refusal is one sentence, and the list shows
/// an approval until it is used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn comparisons_are_approved_by_command_and_over_http() {
    let installation = Installation::embedded();
    let world = installation.world().await;
    populate(&world).await;
    let report = scheduled(&world, Policy::Report, None).await;
    damage(&world, 5).await;
    reconcile(&world, &report, When::Due).await;
    let number = latest_number(&world).await;
    let refused = run(installation.data(), &["restorate", "approve", "99"]);
    let message = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{message}");
    assert!(
        message.contains("there is no comparison 99 of plays"),
        "{message}"
    );

    let server = Server::start(installation.data(), &[]);
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
    let fetch_approval = || {
        let path = "/api/v1/reconciliations?kind=restorate&limit=1";
        server.client.get_json(path)["reconciliations"][0]["approval"].clone()
    };
    assert_eq!(fetch_approval(), approval);
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
    run_ok(
        installation.data(),
        &[
            "restorate",
            "approve",
            &number.to_string(),
            "--reason",
            "again",
        ],
    );
    assert_eq!(fetch_approval()["reason"], "again");
    let repaired = reconcile(&world, &report, When::Due).await;
    assert_eq!(
        outcome_and_alerts(&repaired).0,
        ReconcileOutcome::PutRight,
        "{repaired:?}"
    );
    assert_eq!(fetch_approval(), Value::Null);
    let (status, body) = server.client.post(&path(number + 1), b"");
    assert_eq!(status, 409, "{body}");
}
