//! Laws of the views port: batch rows.

use std::collections::BTreeMap;

use arrow::array::{Array, Int64Array};
use schemas::key::KeyShape;
use schemas::seam::{Cut, Epoch, Run};
use schemas::source::Source;
use schemas::time::BucketWidth;
use stores::views::{
    AggregateShape, NewRows, PartitionQuery, RowKeys, TableResults, ViewRows, ViewsWrite,
};
use stores::{ErrorKind, Result, Stores};

use super::{OTHER_VIEW, VIEW, binary, bytes};

pub(super) const PLAYS: Source = Source::Plays;

/// Returns the shape of a view; the store does not decode keys.
#[must_use]
pub fn shape(view: &str) -> AggregateShape {
    AggregateShape {
        view: view.to_owned(),
        group: KeyShape::default(),
        partition: BucketWidth::All,
        row: KeyShape::default(),
    }
}

/// Returns a result with a different name for each view.
pub(super) fn results(views: &[&str]) -> BTreeMap<String, String> {
    let result = |view: &&str| ((*view).to_owned(), format!("result of {view}"));
    views.iter().map(result).collect()
}

/// Completes views with the stamp of their run.
pub(super) async fn complete(
    views: &dyn ViewsWrite,
    epoch: Epoch,
    completed: &[&str],
    run_ends: bool,
    now_ms: i64,
) -> Result<()> {
    let runs = views.runs(PLAYS).await?.runs;
    let stamp_us = runs.get(epoch).map_or(0, |run| run.stamp_us);
    let attempt = (epoch, stamp_us);
    views
        .complete(PLAYS, attempt, &results(completed), run_ends, now_ms)
        .await
}

/// Forgets views on behalf of the last run.
pub(super) async fn forget(views: &dyn ViewsWrite, keep: &[String]) -> Result<()> {
    let runs = views.runs(PLAYS).await?.runs;
    let last = runs.iter().next_back().expect("a run");
    views
        .forget_views(PLAYS, (last.epoch, last.stamp_us), keep)
        .await
}

pub(super) fn cuts(next_offset: i64) -> Vec<Cut> {
    vec![
        Cut {
            next_offset,
            last: None,
        },
        Cut::start(),
    ]
}

pub(super) fn rows(rows: &[(&str, &str, Option<i64>)]) -> NewRows {
    NewRows {
        partitions: binary(rows.iter().map(|(part, _, _)| part)),
        rows: binary(rows.iter().map(|(_, row, _)| row)),
        counts: rows
            .iter()
            .map(|(_, _, count)| *count)
            .collect::<Int64Array>(),
    }
}

pub(super) fn query(part: &str, begin: &str, end: Option<&str>) -> PartitionQuery {
    PartitionQuery {
        partition: part.into(),
        range: (begin.into(), end.map(Into::into)),
    }
}

pub(super) type Row = (u32, String, Option<i64>, Epoch);

/// Returns the rows of a view whose table must exist.
pub(super) fn result_rows(rows: &Option<ViewRows>) -> Vec<Row> {
    let rows = rows.as_ref().expect("a table");
    let keys = bytes(&rows.rows)
        .into_iter()
        .map(|row| String::from_utf8_lossy(&row).into_owned());
    keys.enumerate()
        .map(|(n, row)| {
            let count = rows.counts.is_valid(n).then(|| rows.counts.value(n));
            (rows.queries.value(n), row, count, rows.epochs.value(n))
        })
        .collect()
}

fn row(query: u32, row: &str, count: impl Into<Option<i64>>, epoch: Epoch) -> Row {
    (query, row.to_owned(), count.into(), epoch)
}

/// Proposes and seals a run.
pub(super) async fn seal_run(views: &dyn ViewsWrite, epoch: Epoch) -> Result<Run> {
    let offset = 10 * i64::try_from(epoch).unwrap_or(0);
    views
        .propose(PLAYS, epoch, &cuts(offset), "token", 1000)
        .await?;
    views.seal(PLAYS, epoch, "token").await
}

#[track_caller]
pub(super) fn assert_refused<T: std::fmt::Debug>(result: Result<T>, reason: &str) {
    let error = result.expect_err(reason);
    assert_eq!(error.kind(), ErrorKind::Reject, "{reason}: {error}");
}

/// Rows are returned by partition and range, with the epoch of their run; a row may have a null
/// count.
pub async fn rows_round_trip(ports: &Stores) -> Result<()> {
    let views = &*ports.views;
    let missing = views.rows(VIEW, &[query("p", "", None)]).await?;
    assert!(
        missing.is_none(),
        "a view that was never created has no table"
    );
    views.ensure_view(PLAYS, &shape(VIEW).into()).await?;
    views.ensure_view(PLAYS, &shape(VIEW).into()).await?;
    views.ensure_view(PLAYS, &shape(OTHER_VIEW).into()).await?;
    let run = seal_run(views, 1).await?;
    let new = rows(&[
        ("o", "a", Some(1)),
        ("p", "a", Some(2)),
        ("p", "b", Some(i64::MIN)),
        ("p", "b0", None),
        ("p", "c", Some(0)),
        ("p0", "a", Some(i64::MAX)),
    ]);
    views.publish(PLAYS, VIEW, 1, run.stamp_us, &new).await?;
    let queries = [
        query("p", "", None),
        query("p", "b", Some("c")),
        query("q", "", None),
        query("p0", "", Some("z")),
        query("p", "a", Some("a")),
    ];
    let expected = [
        row(0, "a", 2, 1),
        row(0, "b", i64::MIN, 1),
        row(0, "b0", None, 1),
        row(0, "c", 0, 1),
        row(1, "b", i64::MIN, 1),
        row(1, "b0", None, 1),
        row(3, "a", i64::MAX, 1),
    ];
    let mut actual = result_rows(&views.rows(VIEW, &queries).await?);
    actual.sort();
    assert_eq!(actual, expected);
    assert_eq!(result_rows(&views.rows(OTHER_VIEW, &queries).await?), []);
    assert_eq!(result_rows(&views.rows(VIEW, &[]).await?), []);
    Ok(())
}

/// The row with the largest stamp wins, in any order of writes. Rows that a run does not write
/// stay.
pub async fn the_larger_stamp_wins(ports: &Stores) -> Result<()> {
    let views = &*ports.views;
    views.ensure_view(PLAYS, &shape(VIEW).into()).await?;
    let run = seal_run(views, 1).await?;
    let first = rows(&[
        ("p", "a", Some(1)),
        ("p", "b", Some(1)),
        ("p", "c", Some(1)),
    ]);
    views.publish(PLAYS, VIEW, 1, run.stamp_us, &first).await?;
    views.publish(PLAYS, VIEW, 1, run.stamp_us, &first).await?;
    let stamp_us = views
        .begin_publishing(PLAYS, 1, &results(&[VIEW]), 1000)
        .await?;
    let rewritten = rows(&[("p", "b", Some(2))]);
    views.publish(PLAYS, VIEW, 1, stamp_us, &rewritten).await?;
    let zombie = views.publish(PLAYS, VIEW, 1, run.stamp_us, &first).await;
    assert_refused(zombie, "its stamp was replaced");
    let queries = [query("p", "", None)];
    let expected = [row(0, "a", 1, 1), row(0, "b", 2, 1), row(0, "c", 1, 1)];
    assert_eq!(result_rows(&views.rows(VIEW, &queries).await?), expected);

    complete(views, 1, &[VIEW], true, 1).await?;
    let stamp_us = views
        .begin_publishing(PLAYS, 1, &results(&[VIEW]), 1000)
        .await?;
    let recomputed = rows(&[("p", "a", Some(5))]);
    views.publish(PLAYS, VIEW, 1, stamp_us, &recomputed).await?;
    let run = seal_run(views, 2).await?;
    let next = rows(&[("p", "c", None), ("p", "d", Some(7))]);
    views.publish(PLAYS, VIEW, 2, run.stamp_us, &next).await?;
    let zombie = views.publish(PLAYS, VIEW, 1, stamp_us, &first).await;
    assert_refused(zombie, "run 2 was recorded since");
    let expected = [
        row(0, "a", 5, 1),
        row(0, "b", 2, 1),
        row(0, "c", None, 2),
        row(0, "d", 7, 2),
    ];
    assert_eq!(result_rows(&views.rows(VIEW, &queries).await?), expected);
    Ok(())
}

/// The contents of a table are recorded: a result is started before its first row is written, and
/// is the only one once it is complete. An attempt with an older stamp completes nothing.
pub async fn results_are_recorded(ports: &Stores) -> Result<()> {
    let views = &*ports.views;
    views.ensure_view(PLAYS, &shape(VIEW).into()).await?;
    assert!(views.results(PLAYS).await?.is_empty());
    seal_run(views, 1).await?;
    let named = |name: &str| BTreeMap::from([(VIEW.to_owned(), name.to_owned())]);
    let first = views.begin_publishing(PLAYS, 1, &named("a"), 1).await?;
    let second = views.begin_publishing(PLAYS, 1, &named("b"), 1).await?;
    let begun = TableResults {
        published: None,
        begun: vec!["a".to_owned(), "b".to_owned()],
    };
    assert_eq!(views.results(PLAYS).await?[VIEW], begun);
    let overtaken = views
        .complete(PLAYS, (1, first), &named("a"), true, 1)
        .await;
    assert_refused(overtaken, "its stamp was replaced");
    views
        .complete(PLAYS, (1, second), &named("b"), true, 1)
        .await?;
    seal_run(views, 2).await?;
    views.begin_publishing(PLAYS, 2, &named("c"), 1).await?;
    let expected = TableResults {
        published: Some("b".to_owned()),
        begun: vec!["c".to_owned()],
    };
    assert_eq!(views.results(PLAYS).await?[VIEW], expected);
    // An attempt that publishes the older run again does not forget the newer result.
    let late = views
        .complete(PLAYS, (1, second), &named("b"), false, 1)
        .await;
    assert_refused(late, "a newer run has been recorded");
    assert_eq!(views.results(PLAYS).await?[VIEW], expected);
    forget(views, &[]).await?;
    assert_eq!(
        views.results(PLAYS).await?[VIEW],
        expected,
        "its rows are there"
    );
    forget(views, &[]).await?;
    assert!(views.results(PLAYS).await?.is_empty());
    Ok(())
}

/// The rows of earlier results are returned once each, page by page, in the store's order.
pub async fn rows_of_earlier_results_are_found(ports: &Stores) -> Result<()> {
    let views = &*ports.views;
    views.ensure_view(PLAYS, &shape(VIEW).into()).await?;
    let run = seal_run(views, 1).await?;
    let old = rows(&[
        ("p", "a", Some(1)),
        ("p", "b", None),
        ("p", "c", Some(1)),
        ("q", "a", Some(0)),
        ("q", "b", Some(1)),
    ]);
    views.publish(PLAYS, VIEW, 1, run.stamp_us, &old).await?;
    let stamp_us = views
        .begin_publishing(PLAYS, 1, &results(&[VIEW]), 1)
        .await?;
    let new = rows(&[("p", "a", Some(1)), ("q", "b", Some(2))]);
    views.publish(PLAYS, VIEW, 1, stamp_us, &new).await?;
    let mut after: Option<(Vec<u8>, Vec<u8>)> = None;
    let mut keys = Vec::new();
    loop {
        let page = views.rows_before(VIEW, stamp_us, after, 1).await?;
        let page: Vec<_> = bytes(&page.partitions)
            .into_iter()
            .zip(bytes(&page.rows))
            .collect();
        assert!(page.len() < 2);
        let Some(last) = page.last().cloned() else {
            break;
        };
        keys.extend(page);
        after = Some(last);
    }
    let key = |part: &str, row: &str| (part.into(), row.into());
    keys.sort();
    assert_eq!(keys, [key("p", "c"), key("q", "a")]);
    Ok(())
}

/// Rows up to a stamp are deleted, for all keys. Other rows stay, including later writes.
pub async fn rows_are_deleted(ports: &Stores) -> Result<()> {
    let views = &*ports.views;
    views.ensure_view(PLAYS, &shape(VIEW).into()).await?;
    let run = seal_run(views, 1).await?;
    let old = rows(&[
        ("p", "a", Some(1)),
        ("p", "b", None),
        ("p", "c", Some(3)),
        ("q", "a", Some(4)),
    ]);
    views.publish(PLAYS, VIEW, 1, run.stamp_us, &old).await?;
    let read_all = async || {
        let queries = [query("p", "", None), query("q", "", None)];
        Ok::<_, stores::Error>(result_rows(&views.rows(VIEW, &queries).await?))
    };
    let keys = |pairs: &[(&str, &str)]| RowKeys {
        partitions: binary(pairs.iter().map(|(part, _)| part)),
        rows: binary(pairs.iter().map(|(_, row)| row)),
    };
    let deleted = keys(&[("p", "a"), ("p", "b"), ("q", "none")]);
    let wrong = views.delete_rows(PLAYS, VIEW, (1, run.stamp_us + 1), &deleted);
    assert_refused(wrong.await, "it has another stamp");
    assert_eq!(read_all().await?.len(), 4, "nothing was deleted");
    let results = results(&[VIEW]);
    let stamp_us = views.begin_publishing(PLAYS, 1, &results, 1).await?;
    let late = views.delete_rows(PLAYS, VIEW, (1, run.stamp_us), &deleted);
    assert_refused(late.await, "its stamp was replaced");
    let uncreated = views.delete_rows(PLAYS, OTHER_VIEW, (1, stamp_us), &deleted);
    assert_refused(uncreated.await, "the view was not created");
    views
        .delete_rows(PLAYS, VIEW, (1, stamp_us), &deleted)
        .await?;
    views
        .delete_rows(PLAYS, VIEW, (1, stamp_us), &deleted)
        .await?;
    let remaining = [row(0, "c", 3, 1), row(1, "a", 4, 1)];
    assert_eq!(read_all().await?, remaining);
    // A later write is stored.
    let later_us = views.begin_publishing(PLAYS, 1, &results, 1).await?;
    let later = rows(&[("p", "a", Some(5))]);
    views.publish(PLAYS, VIEW, 1, later_us, &later).await?;
    assert_eq!(read_all().await?.len(), 3);
    Ok(())
}

/// Rows can be published only while a run is sealed or complete, to an existing view, with the
/// current stamp. The check does not need rows.
pub async fn publishing_needs_a_run(ports: &Stores) -> Result<()> {
    let views = &*ports.views;
    let one_row = rows(&[("p", "a", Some(1))]);
    let no_rows = rows(&[]);
    views.ensure_view(PLAYS, &shape(VIEW).into()).await?;
    assert_refused(
        views.publish(PLAYS, VIEW, 1, 1, &one_row).await,
        "no run exists",
    );
    let run = views.propose(PLAYS, 1, &cuts(1), "t", 1000).await?;
    let early = views.publish(PLAYS, VIEW, 1, run.stamp_us, &one_row).await;
    assert_refused(early, "its cuts may still change");
    views.seal(PLAYS, 1, "t").await?;
    let wrong = views
        .publish(PLAYS, VIEW, 1, run.stamp_us + 1, &no_rows)
        .await;
    assert_refused(wrong, "it has another stamp");
    let uncreated = views
        .publish(PLAYS, OTHER_VIEW, 1, run.stamp_us, &one_row)
        .await;
    assert_refused(uncreated, "the view was not created");
    views
        .publish(PLAYS, VIEW, 1, run.stamp_us, &no_rows)
        .await?;
    views.abandon(PLAYS, 1, 1).await?;
    let late = views.publish(PLAYS, VIEW, 1, run.stamp_us, &one_row).await;
    assert_refused(late, "the run was abandoned");
    assert_eq!(
        result_rows(&views.rows(VIEW, &[query("p", "", None)]).await?),
        []
    );
    Ok(())
}

/// Thousands of rows are written completely, and overwritten.
pub async fn large_loads_are_complete(ports: &Stores) -> Result<()> {
    const ROWS: i64 = 20_000;
    let views = &*ports.views;
    views.ensure_view(PLAYS, &shape(VIEW).into()).await?;
    for (epoch, step) in [(1, 1), (2, 3)] {
        let run = seal_run(views, epoch).await?;
        let numbers = || (0..ROWS).filter(move |n| n % step == 0);
        let load = NewRows {
            partitions: binary(numbers().map(|n| (n / 1000).to_be_bytes())),
            rows: binary(numbers().map(i64::to_be_bytes)),
            counts: numbers().map(|n| Some(n * step)).collect(),
        };
        views
            .publish(PLAYS, VIEW, epoch, run.stamp_us, &load)
            .await?;
        complete(views, epoch, &[VIEW], true, 1).await?;
    }
    let queries: Vec<PartitionQuery> = (0..ROWS / 1000)
        .map(|n| PartitionQuery {
            partition: n.to_be_bytes().to_vec(),
            range: (Vec::new(), None),
        })
        .collect();
    let table_rows = views.rows(VIEW, &queries).await?;
    let table_rows = table_rows.expect("a table");
    assert_eq!(table_rows.counts.len(), usize::try_from(ROWS).unwrap_or(0));
    for (n, key) in (0_i64..).zip(bytes(&table_rows.rows)) {
        let index = usize::try_from(n).unwrap_or(0);
        let (count, epoch) = if n % 3 == 0 { (3 * n, 2) } else { (n, 1) };
        assert_eq!(key, n.to_be_bytes());
        assert_eq!(
            (
                table_rows.counts.value(index),
                table_rows.epochs.value(index)
            ),
            (count, epoch)
        );
    }
    Ok(())
}
