//! Laws of the views port: run records.

use std::collections::BTreeMap;

use schemas::seam::{Run, RunState};
use serde_json::json;
use stores::views::ViewsWrite;
use stores::{Result, Stores};

use super::views::{
    PLAYS, assert_refused, complete, cuts, forget, query, result_rows, results, rows, seal_run,
    shape,
};
use super::{OTHER_VIEW, VIEW};

/// A run is proposed, sealed and completed; each step is visible, and the next run follows.
pub async fn runs_advance_through_their_states(ports: &Stores) -> Result<()> {
    let views = &*ports.views;
    assert_eq!(views.runs(PLAYS).await?.runs.iter().count(), 0);
    let proposed = views.propose(PLAYS, 1, &cuts(10), "a", 1000).await?;
    assert_eq!(proposed.state, RunState::Proposed);
    assert_eq!(proposed.cuts, cuts(10));
    assert_eq!(views.runs(PLAYS).await?.runs.get(1), Some(&proposed));
    let sealed_run = views.seal(PLAYS, 1, "a").await?;
    assert_eq!(
        sealed_run,
        Run {
            state: RunState::Sealed,
            ..proposed.clone()
        }
    );
    assert_eq!(
        views.seal(PLAYS, 1, "a").await?,
        sealed_run,
        "sealing again is the same"
    );
    complete(views, 1, &[VIEW], true, 2000).await?;
    complete(views, 1, &[VIEW], true, 3000).await?;
    let run_records = views.runs(PLAYS).await?;
    let complete = Run {
        state: RunState::Complete,
        ..proposed
    };
    assert_eq!(run_records.runs.get(1), Some(&complete));
    assert_eq!(
        (
            run_records.runs.newest_complete(),
            run_records.runs.next_epoch()
        ),
        (1, 2)
    );
    assert_eq!(
        run_records.complete_epochs,
        BTreeMap::from([(VIEW.to_owned(), 1)])
    );
    let next = seal_run(views, 2).await?;
    assert!(next.stamp_us > complete.stamp_us);
    Ok(())
}

/// Only the next run can be proposed, and only while no sealed run is incomplete. Only the current
/// proposal can be sealed.
pub async fn only_the_next_run_can_be_proposed(ports: &Stores) -> Result<()> {
    let views = &*ports.views;
    let propose = async |epoch| views.propose(PLAYS, epoch, &cuts(10), "x", 1000).await;
    assert_refused(propose(0).await, "run 0 is before everything");
    assert_refused(propose(2).await, "run 1 is first");
    assert_refused(views.seal(PLAYS, 1, "x").await, "nothing was proposed");
    propose(1).await?;
    assert_refused(propose(2).await, "run 1 is open");
    views.seal(PLAYS, 1, "x").await?;
    assert_refused(propose(1).await, "run 1 is sealed");
    assert_refused(propose(2).await, "run 1 is not complete");
    complete(views, 1, &[], true, 1).await?;
    assert_refused(propose(1).await, "run 1 is complete");
    assert_refused(propose(3).await, "run 2 is first");
    assert_refused(views.seal(PLAYS, 1, "x").await, "run 1 is complete");
    assert_refused(
        complete(views, 2, &[], true, 1).await,
        "run 2 does not exist",
    );
    propose(2).await?;
    assert_refused(
        complete(views, 2, &[], true, 1).await,
        "run 2 is not sealed",
    );
    Ok(())
}

/// A newer proposal of the same run replaces the older one, whose author can no longer seal it.
pub async fn the_last_proposal_wins(ports: &Stores) -> Result<()> {
    let views = &*ports.views;
    let first = views.propose(PLAYS, 1, &cuts(10), "a", 1000).await?;
    let second = views.propose(PLAYS, 1, &cuts(20), "b", 900).await?;
    assert!(
        second.stamp_us > first.stamp_us,
        "also where the clock went back"
    );
    assert_refused(views.seal(PLAYS, 1, "a").await, "b stays");
    let sealed = views.seal(PLAYS, 1, "b").await?;
    assert_eq!(sealed.cuts, cuts(20));
    assert_refused(views.seal(PLAYS, 1, "a").await, "b is sealed");
    Ok(())
}

/// Of two concurrent proposals one can be sealed, and the sealed run is that proposal.
pub async fn one_proposal_is_sealed(ports: &Stores, other_ports: &Stores) -> Result<()> {
    for epoch in 1..6 {
        let offset = 100 * i64::try_from(epoch).unwrap_or(0);
        let attempt = async |ports: &Stores, token: &'static str, extra| -> Option<&'static str> {
            let views = &*ports.views;
            views
                .propose(PLAYS, epoch, &cuts(offset + extra), token, 1000)
                .await
                .ok()?;
            tokio::task::yield_now().await;
            let sealed = views.seal(PLAYS, epoch, token).await.ok()?;
            assert_eq!(sealed.cuts, cuts(offset + extra));
            Some(token)
        };
        let (first, second) =
            tokio::join!(attempt(ports, "one", 1), attempt(other_ports, "other", 2));
        let winners: Vec<&str> = first.into_iter().chain(second).collect();
        assert_eq!(winners.len(), 1, "epoch {epoch}: {winners:?}");
        let run_records = ports.views.runs(PLAYS).await?;
        let run = run_records.runs.get(epoch).expect("the run exists");
        assert_eq!((run.state, &*run.token), (RunState::Sealed, winners[0]));
        complete(&*ports.views, epoch, &[], true, 1).await?;
    }
    Ok(())
}

/// Stamps always increase: across runs, proposals and attempts, and when the clock stands still or
/// goes back.
pub async fn stamps_increase(ports: &Stores) -> Result<()> {
    let views = &*ports.views;
    let mut stamps = Vec::new();
    for (epoch, now_ms) in [(1, 5000), (2, 5000), (3, 4000), (4, 7000)] {
        stamps.push(
            views
                .propose(PLAYS, epoch, &cuts(9), "a", now_ms)
                .await?
                .stamp_us,
        );
        stamps.push(
            views
                .propose(PLAYS, epoch, &cuts(9), "b", now_ms)
                .await?
                .stamp_us,
        );
        views.seal(PLAYS, epoch, "b").await?;
        stamps.push(
            views
                .begin_publishing(PLAYS, epoch, &results(&[]), now_ms)
                .await?,
        );
        let run = views.runs(PLAYS).await?.runs.get(epoch).cloned();
        assert_eq!(run.map(|run| run.stamp_us), stamps.last().copied());
        if epoch == 2 {
            views.abandon(PLAYS, epoch, now_ms).await?;
        } else {
            complete(views, epoch, &[], true, now_ms).await?;
        }
    }
    assert!(stamps.is_sorted_by(|a, b| a < b), "{stamps:?}");
    assert_eq!(stamps[0], 5_000_000, "a stamp is the time where it can be");
    assert!(stamps[9] >= 7_000_000);
    assert_refused(
        views.begin_publishing(PLAYS, 3, &results(&[]), 1).await,
        "run 4 was recorded since",
    );
    assert_refused(
        views.begin_publishing(PLAYS, 9, &results(&[]), 1).await,
        "the run does not exist",
    );
    Ok(())
}

/// The newest epoch of a view never goes back and belongs to that view. It is deleted with the
/// view, whose rows then have no effect.
pub async fn the_newest_epoch_never_goes_back(ports: &Stores) -> Result<()> {
    let views = &*ports.views;
    views.ensure_view(PLAYS, &shape(VIEW).into()).await?;
    views.ensure_view(PLAYS, &shape(OTHER_VIEW).into()).await?;
    let keep = [VIEW.to_owned()];
    seal_run(views, 1).await?;
    complete(views, 1, &[VIEW], false, 1).await?;
    let run_records = views.runs(PLAYS).await?;
    assert_eq!(
        run_records.complete_epochs,
        BTreeMap::from([(VIEW.to_owned(), 1)])
    );
    assert_eq!(run_records.runs.newest_complete(), 0, "the run continues");
    complete(views, 1, &[OTHER_VIEW], true, 1).await?;
    seal_run(views, 2).await?;
    complete(views, 2, &[VIEW], true, 1).await?;
    let late = complete(views, 1, &[VIEW, OTHER_VIEW], true, 1).await;
    assert_refused(late, "a newer run has been recorded");
    let expected = BTreeMap::from([(VIEW.to_owned(), 2), (OTHER_VIEW.to_owned(), 1)]);
    assert_eq!(views.runs(PLAYS).await?.complete_epochs, expected);
    forget(views, &keep).await?;
    forget(views, &keep).await?;
    let expected = BTreeMap::from([(VIEW.to_owned(), 2)]);
    assert_eq!(views.runs(PLAYS).await?.complete_epochs, expected);
    let dropped = views.rows(OTHER_VIEW, &[query("p", "", None)]).await?;
    assert!(dropped.is_none(), "its table is dropped");
    views.ensure_view(PLAYS, &shape(OTHER_VIEW).into()).await?;
    assert_eq!(
        result_rows(&views.rows(OTHER_VIEW, &[query("p", "", None)]).await?),
        []
    );
    Ok(())
}

/// Only the publishing run can forget views: an older run may not know all of them.
pub async fn an_old_stamp_forgets_no_view(ports: &Stores) -> Result<()> {
    let views = &*ports.views;
    views.ensure_view(PLAYS, &shape(VIEW).into()).await?;
    let none = views.forget_views(PLAYS, (1, 1), &[]).await;
    assert_refused(none, "no run exists");
    let run = seal_run(views, 1).await?;
    let first = (1, run.stamp_us);
    let second = views.begin_publishing(PLAYS, 1, &results(&[]), 1).await?;
    let late = views.forget_views(PLAYS, first, &[]).await;
    assert_refused(late, "its stamp was replaced");
    complete(views, 1, &[VIEW], true, 1).await?;
    seal_run(views, 2).await?;
    let late = views.forget_views(PLAYS, (1, second), &[]).await;
    assert_refused(late, "a newer run has been recorded");
    assert_eq!(views.runs(PLAYS).await?.complete_epochs[VIEW], 1);
    let table_rows = views.rows(VIEW, &[query("p", "", None)]).await?;
    assert!(table_rows.is_some(), "its table exists");
    Ok(())
}

/// A process does not rely on cached view tables that another process has dropped and created
/// again.
pub async fn recreated_tables_are_found(ports: &Stores, other_ports: &Stores) -> Result<()> {
    let new = || rows(&[("p", "a", Some(1))]);
    ports.views.ensure_view(PLAYS, &shape(VIEW).into()).await?;
    let run = seal_run(&*ports.views, 1).await?;
    let publish = async |ports: &Stores| {
        ports
            .views
            .publish(PLAYS, VIEW, 1, run.stamp_us, &new())
            .await
    };
    publish(ports).await?;
    forget(&*other_ports.views, &[]).await?;
    assert_refused(publish(ports).await, "its table is dropped");
    other_ports
        .views
        .ensure_view(PLAYS, &shape(VIEW).into())
        .await?;
    publish(ports).await?;
    forget(&*other_ports.views, &[]).await?;
    other_ports
        .views
        .ensure_view(PLAYS, &shape(VIEW).into())
        .await?;
    ports.views.ensure_view(PLAYS, &shape(VIEW).into()).await?;
    publish(ports).await?;
    for ports in [ports, other_ports] {
        let table_rows = ports.views.rows(VIEW, &[query("p", "", None)]).await?;
        assert_eq!(result_rows(&table_rows).len(), 1);
    }
    Ok(())
}

/// An abandoned run is over, the next one follows it, and a complete run cannot be abandoned.
pub async fn an_abandoned_run_is_over(ports: &Stores) -> Result<()> {
    let views = &*ports.views;
    assert_refused(views.abandon(PLAYS, 1, 1).await, "the run does not exist");
    seal_run(views, 1).await?;
    views.abandon(PLAYS, 1, 2000).await?;
    views.abandon(PLAYS, 1, 3000).await?;
    let run_records = views.runs(PLAYS).await?;
    assert_eq!(
        (
            run_records.runs.newest_complete(),
            run_records.runs.next_epoch()
        ),
        (0, 2)
    );
    assert_refused(
        complete(views, 1, &[VIEW], true, 1).await,
        "it was abandoned",
    );
    assert!(views.runs(PLAYS).await?.complete_epochs.is_empty());
    seal_run(views, 2).await?;
    complete(views, 2, &[VIEW], true, 1).await?;
    assert_refused(views.abandon(PLAYS, 2, 1).await, "it is complete");
    Ok(())
}

/// Run details are listed newest first, with their times and the last report.
pub async fn run_details_are_listed(ports: &Stores) -> Result<()> {
    let views = &*ports.views;
    assert!(views.run_details(PLAYS, 1).await?.is_none());
    assert_refused(
        views.set_report(PLAYS, 1, &json!({})).await,
        "the run does not exist",
    );
    views.propose(PLAYS, 1, &cuts(1), "a", 1000).await?;
    views.propose(PLAYS, 1, &cuts(1), "b", 2000).await?;
    views.set_report(PLAYS, 1, &json!({"rows": 1})).await?;
    views.seal(PLAYS, 1, "b").await?;
    views
        .set_report(PLAYS, 1, &json!({"rows": 2, "why": "\"quoted\" — ü"}))
        .await?;
    let run_details = views.run_details(PLAYS, 1).await?.expect("the run exists");
    assert_eq!(
        (run_details.started_at_ms, run_details.ended_at_ms),
        (1000, None)
    );
    complete(views, 1, &[], true, 5000).await?;
    complete(views, 1, &[], true, 6000).await?;
    seal_run(views, 2).await?;
    views.abandon(PLAYS, 2, 7000).await?;
    seal_run(views, 3).await?;
    let details = views.list_run_details(PLAYS, None, 10).await?;
    let listed: Vec<_> = details
        .iter()
        .map(|run_details| {
            (
                run_details.run.epoch,
                run_details.run.state,
                run_details.ended_at_ms,
            )
        })
        .collect();
    let expected = [
        (3, RunState::Sealed, None),
        (2, RunState::Abandoned, Some(7000)),
        (1, RunState::Complete, Some(5000)),
    ];
    assert_eq!(listed, expected);
    assert_eq!(
        details[2].report,
        json!({"rows": 2, "why": "\"quoted\" — ü"})
    );
    assert_eq!(details[0].report, json!(null));
    assert_eq!(views.list_run_details(PLAYS, None, 2).await?.len(), 2);
    for (before, limit, epochs) in [
        (Some(3), 10, &[2, 1][..]),
        (Some(3), 1, &[2]),
        (Some(1), 10, &[]),
        (Some(0), 10, &[]),
        (Some(u64::MAX), 1, &[3]),
        (None, 0, &[]),
    ] {
        let details = views.list_run_details(PLAYS, before, limit).await?;
        let listed: Vec<_> = details
            .iter()
            .map(|run_details| run_details.run.epoch)
            .collect();
        assert_eq!(listed, epochs, "{before:?} {limit}");
    }
    Ok(())
}

/// Run records older than the retained number of runs are deleted, and nothing else; `views` has 70
/// of them.
pub async fn old_runs_are_deleted(views: &dyn ViewsWrite) -> Result<()> {
    for epoch in 1..=150 {
        seal_run(views, epoch).await?;
        complete(views, epoch, &[VIEW], true, 1).await?;
    }
    let details = views.list_run_details(PLAYS, None, 1_000).await?;
    let listed: Vec<_> = details
        .iter()
        .map(|run_details| run_details.run.epoch)
        .collect();
    assert_eq!(listed, (81..=150).rev().collect::<Vec<_>>());
    assert!(views.run_details(PLAYS, 80).await?.is_none());
    let run_records = views.runs(PLAYS).await?;
    assert_eq!(
        (
            run_records.runs.newest_complete(),
            run_records.runs.next_epoch()
        ),
        (150, 151)
    );
    assert_eq!(run_records.complete_epochs[VIEW], 150);
    Ok(())
}

/// Listings may omit old complete runs, except those that a view's newest epoch can refer to.
pub async fn listings_may_omit_old_runs(ports: &Stores) -> Result<()> {
    let views = &*ports.views;
    for epoch in 1..=80 {
        seal_run(views, epoch).await?;
        let view = if epoch <= 5 { OTHER_VIEW } else { VIEW };
        complete(views, epoch, &[view], true, 1).await?;
    }
    let run_records = views.runs(PLAYS).await?;
    assert_eq!(run_records.runs.newest_complete(), 80);
    assert_eq!(
        run_records.runs.cut(5, 0).map(|cut| cut.next_offset),
        Some(50)
    );
    forget(views, &[VIEW.to_owned()]).await?;
    let run_records = views.runs(PLAYS).await?;
    for epoch in 70..=80 {
        assert!(run_records.runs.get(epoch).is_some(), "{epoch}");
    }
    assert_eq!(run_records.runs.next_epoch(), 81);
    Ok(())
}
