//! The views port.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use schemas::seam::{Cut, Epoch, Run, RunState};
use schemas::source::Source;

use super::lease::CassandraLeases;
use super::runs::{
    RunRecordReader, RunUpdate, RunsChange, build_update, change, expect_stamp, report, run_details,
};
use super::session::Cql;
use super::tables::Tables;
use super::{editions, view_rows, view_scan};
use crate::run_rules::{self, expect_last_publishing};
use crate::view_scan::{
    RowPosition, ScanShare, ScannedHeads, ScannedRows, ShareScheme, ViewsScan, wrong_kind_error,
};
use crate::views::{
    Head, NewRows, NewVersion, NodeName, PartitionQuery, RowKeys, RunDetails, RunRecords,
    TableResults, ViewRows, ViewShape, ViewsRead, ViewsWrite,
};
use crate::{Error, Result};

/// Reads from the tables of a view; `None` if it has none. If the cached names of its tables are
/// outdated, they are read again.
macro_rules! read_tables {
    ($self:ident, $view:ident, |$cql:ident, $id:ident| $read:expr) => {{
        let $cql = &*$self.cql;
        let mut again = true;
        loop {
            let Some(found) = $self.tables.find($cql, $view).await? else {
                break None;
            };
            let $id = found.as_str();
            match $read.await {
                Err(Error::Refused(reason)) if again => {
                    tracing::debug!(
                        view = $view,
                        reason,
                        "reading the names of the tables again"
                    );
                    $self.tables.forget($view);
                    again = false;
                }
                done => break Some(done?),
            }
        }
    }};
}

/// Batch rows and run records in a keyspace.
#[derive(Debug)]
pub struct CassandraViews {
    cql: Arc<Cql>,
    leases: CassandraLeases,
    tables: Tables,
    records: RunRecordReader,
    progress: editions::Progress,
    runs_kept: u64,
}

impl CassandraViews {
    pub(super) fn new(cql: Arc<Cql>, leases: CassandraLeases) -> Self {
        Self {
            cql,
            leases,
            tables: Tables::default(),
            records: RunRecordReader::default(),
            progress: editions::Progress::default(),
            runs_kept: run_rules::RUN_RECORDS_MAX,
        }
    }

    /// Sets the number of runs whose records are kept, 10,000 by default.
    #[must_use]
    pub const fn keeping_runs(mut self, runs: u64) -> Self {
        self.runs_kept = runs;
        self
    }

    /// Fails if the run with this stamp may not write the tables of a view.
    async fn check_writer(
        &self,
        source: Source,
        view: &str,
        (epoch, stamp_us): (Epoch, i64),
    ) -> Result<Run> {
        let run = expect_stamp(&self.cql, source, epoch, stamp_us).await;
        self.forget_if_refused(view, run)
    }

    /// Returns the result of an operation on the tables of a view. After a refusal, the names of
    /// the tables are read again, because the tables may have been replaced.
    fn forget_if_refused<T>(&self, view: &str, done: Result<T>) -> Result<T> {
        if matches!(done, Err(Error::Refused(_))) {
            self.tables.forget(view);
        }
        done
    }

    /// Returns the result of a scan. After a refusal, checks if the view has tables of the other
    /// kind.
    async fn check_kind<T>(&self, view: &str, wants_board: bool, done: Result<T>) -> Result<T> {
        let Err(Error::Refused(reason)) = done else {
            return done;
        };
        let cql = &self.cql;
        let is_board = self.tables.find_board(cql, view).await?.is_some();
        if is_board != wants_board && self.tables.find(cql, view).await?.is_some() {
            return Err(wrong_kind_error(view, is_board));
        }
        Err(Error::Refused(reason))
    }
}

#[async_trait]
impl ViewsRead for CassandraViews {
    async fn runs(&self, source: Source) -> Result<RunRecords> {
        self.records.read(&self.cql, source).await
    }

    async fn rows(&self, view: &str, queries: &[PartitionQuery]) -> Result<Option<ViewRows>> {
        Ok(read_tables!(self, view, |cql, id| view_rows::read(
            cql, id, queries
        )))
    }

    async fn heads(&self, view: &str, keys: &[Vec<u8>]) -> Result<Option<Vec<Option<Head>>>> {
        Ok(read_tables!(self, view, |cql, id| editions::heads(
            cql, id, keys
        )))
    }

    async fn nodes(
        &self,
        view: &str,
        key: &[u8],
        names: &[NodeName],
    ) -> Result<Vec<Option<Bytes>>> {
        let found = read_tables!(self, view, |cql, id| editions::nodes(cql, id, key, names));
        Ok(found.unwrap_or_else(|| vec![None; names.len()]))
    }

    async fn list_run_details(
        &self,
        source: Source,
        before: Option<Epoch>,
        limit: usize,
    ) -> Result<Vec<RunDetails>> {
        match run_rules::last_epoch_before(before) {
            Some(last) if limit > 0 => run_details(&self.cql, source, (0, last), limit).await,
            _ => Ok(Vec::new()),
        }
    }

    async fn run_details(&self, source: Source, epoch: Epoch) -> Result<Option<RunDetails>> {
        let found = run_details(&self.cql, source, (epoch, epoch), 1).await?;
        Ok(found.into_iter().next())
    }
}

#[async_trait]
impl ViewsScan for CassandraViews {
    async fn share_scheme(&self) -> Result<ShareScheme> {
        Ok(view_scan::DIVISION)
    }

    async fn scan_rows(
        &self,
        view: &str,
        share: ScanShare,
        after: Option<&RowPosition>,
        limit: usize,
    ) -> Result<Option<ScannedRows>> {
        let scan = async {
            Ok(read_tables!(self, view, |cql, id| view_scan::rows(
                cql, id, share, after, limit
            )))
        };
        let done = scan.await;
        self.check_kind(view, false, done).await
    }

    async fn scan_heads(
        &self,
        view: &str,
        share: ScanShare,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Option<ScannedHeads>> {
        let scan = async {
            Ok(read_tables!(self, view, |cql, id| view_scan::heads(
                cql, id, share, after, limit
            )))
        };
        let done = scan.await;
        self.check_kind(view, true, done).await
    }
}

#[async_trait]
impl ViewsWrite for CassandraViews {
    async fn ensure_view(&self, source: Source, shape: &ViewShape) -> Result<()> {
        let (cql, leases) = (&self.cql, &self.leases);
        self.tables.ensure(cql, leases, source, shape).await
    }

    async fn propose(
        &self,
        source: Source,
        epoch: Epoch,
        cuts: &[Cut],
        token: &str,
        now_ms: i64,
    ) -> Result<Run> {
        change(&self.cql, "proposing a run", source, None, |seen| {
            let mut run = run_rules::propose(source, seen.last.as_ref(), epoch, cuts, token)?;
            let mut summary = seen.summary.clone();
            run.stamp_us = summary.assign_stamp(now_ms);
            let is_there = seen.last.as_ref().is_some_and(|last| last.epoch == epoch);
            let put = RunUpdate {
                run: run.clone(),
                started_at_ms: (!is_there).then_some(now_ms),
                ended_at_ms: None,
                expired: run_rules::find_expired_run(epoch, self.runs_kept, seen.summary.floor()),
            };
            let run_now = Some(put);
            let change = RunsChange {
                summary,
                run: run_now,
            };
            Ok((Some(change), run))
        })
        .await
    }

    async fn seal(&self, source: Source, epoch: Epoch, token: &str) -> Result<Run> {
        change(&self.cql, "sealing a run", source, Some(epoch), |seen| {
            let run = run_rules::expect(source, epoch, seen.run.clone())?;
            let Some(sealed) = run_rules::seal(source, &run, token)? else {
                return Ok((None, run));
            };
            let change = RunsChange {
                summary: seen.summary.clone(),
                run: Some(build_update(sealed.clone(), 0)),
            };
            Ok((Some(change), sealed))
        })
        .await
    }

    async fn begin_publishing(
        &self,
        source: Source,
        epoch: Epoch,
        results: &BTreeMap<String, String>,
        now_ms: i64,
    ) -> Result<i64> {
        let operation = "assigning a new stamp to a run";
        let stamp_us = change(&self.cql, operation, source, None, |seen| {
            let mut run = run_rules::expect_last(source, epoch, seen.last.clone())?;
            let mut summary = seen.summary.clone();
            run.stamp_us = summary.assign_stamp(now_ms);
            for (view, result) in results {
                let of_view = summary.results.entry(view.clone()).or_default();
                let is_known = of_view.published.as_ref() == Some(result);
                if !is_known && !of_view.begun.contains(result) {
                    of_view.begun.push(result.clone());
                    of_view.begun.sort_unstable();
                }
            }
            let stamp_us = run.stamp_us;
            let run = Some(RunUpdate {
                run,
                started_at_ms: None,
                ended_at_ms: None,
                expired: None,
            });
            Ok((Some(RunsChange { summary, run }), stamp_us))
        })
        .await?;
        // Before this attempt reads any head. From here on, no older attempt writes one.
        for view in results.keys() {
            if let Some(id) = self.tables.find_board(&self.cql, view).await? {
                self.progress.fence(&self.cql, &id, stamp_us).await?;
            }
        }
        Ok(stamp_us)
    }

    async fn results(&self, source: Source) -> Result<BTreeMap<String, TableResults>> {
        let operation = "reading which results were published";
        let (_, summary) = super::runs::read_summary(&self.cql, operation, source).await?;
        Ok(summary.results)
    }

    async fn rows_before(
        &self,
        view: &str,
        stamp_us: i64,
        after: Option<(Vec<u8>, Vec<u8>)>,
        limit: usize,
    ) -> Result<RowKeys> {
        let found = read_tables!(self, view, |cql, id| view_rows::before(
            cql,
            id,
            stamp_us,
            after.clone(),
            limit
        ));
        Ok(found.unwrap_or_else(RowKeys::none))
    }

    async fn publish(
        &self,
        source: Source,
        view: &str,
        epoch: Epoch,
        stamp_us: i64,
        rows: &NewRows,
    ) -> Result<()> {
        let at = (epoch, stamp_us);
        self.check_writer(source, view, at).await?;
        let id = self.tables.expect(&self.cql, view).await?;
        let written = view_rows::write(&self.cql, &id, at, rows).await;
        self.forget_if_refused(view, written)
    }

    async fn delete_rows(
        &self,
        source: Source,
        view: &str,
        at: (Epoch, i64),
        rows: &RowKeys,
    ) -> Result<()> {
        self.check_writer(source, view, at).await?;
        let id = self.tables.expect(&self.cql, view).await?;
        let deleted = view_rows::delete(&self.cql, &id, at.1, rows).await;
        self.forget_if_refused(view, deleted)
    }

    async fn publish_versions(
        &self,
        source: Source,
        view: &str,
        epoch: Epoch,
        stamp_us: i64,
        editions: &[NewVersion],
    ) -> Result<()> {
        let at = (epoch, stamp_us);
        self.check_writer(source, view, at).await?;
        let id = self.tables.expect(&self.cql, view).await?;
        let written = async {
            self.progress.fence(&self.cql, &id, stamp_us).await?;
            editions::write(&self.cql, &self.progress, &id, at, editions).await
        };
        self.forget_if_refused(view, written.await)
    }

    async fn node_names(&self, view: &str, key: &[u8]) -> Result<Vec<NodeName>> {
        let found = read_tables!(self, view, |cql, id| editions::names(cql, id, key));
        Ok(found.unwrap_or_default())
    }

    async fn collect_garbage(
        &self,
        source: Source,
        view: &str,
        (epoch, stamp_us): (Epoch, i64),
        limit: usize,
    ) -> Result<usize> {
        self.check_writer(source, view, (epoch, stamp_us)).await?;
        let Some(id) = self.tables.find(&self.cql, view).await? else {
            return Ok(0);
        };
        let collected = async {
            self.progress.fence(&self.cql, &id, stamp_us).await?;
            editions::collect(&self.cql, &self.progress, &id, stamp_us, limit).await
        };
        self.forget_if_refused(view, collected.await)
    }

    async fn keys(&self, view: &str, after: Option<Vec<u8>>, limit: usize) -> Result<Vec<Vec<u8>>> {
        let found = read_tables!(self, view, |cql, id| editions::keys(
            cql,
            id,
            after.clone(),
            limit
        ));
        Ok(found.unwrap_or_default())
    }

    async fn complete(
        &self,
        source: Source,
        (epoch, stamp_us): (Epoch, i64),
        results: &BTreeMap<String, String>,
        run_ends: bool,
        now_ms: i64,
    ) -> Result<()> {
        for view in results.keys() {
            self.tables.expect_still(&self.cql, source, view).await?;
        }
        change(&self.cql, "completing a run", source, None, |seen| {
            let run = expect_last_publishing(source, (epoch, stamp_us), seen.last.clone())?;
            let mut summary = seen.summary.clone();
            for (view, result) in results {
                summary.newest.insert(view.clone(), epoch);
                let published = TableResults {
                    published: Some(result.clone()),
                    begun: Vec::new(),
                };
                summary.results.insert(view.clone(), published);
            }
            let mut ended = None;
            if run_ends && run.state == RunState::Sealed {
                summary.complete = summary.complete.max(epoch);
                ended = Some(build_update(
                    run_rules::with_state(&run, RunState::Complete),
                    now_ms,
                ));
            }
            let run = ended;
            Ok((Some(RunsChange { summary, run }), ()))
        })
        .await
    }

    async fn abandon(&self, source: Source, epoch: Epoch, now_ms: i64) -> Result<()> {
        change(&self.cql, "abandoning a run", source, Some(epoch), |seen| {
            let run = run_rules::expect(source, epoch, seen.run.clone())?;
            let abandoned = run_rules::abandon(source, &run)?;
            let change = abandoned.map(|run| RunsChange {
                summary: seen.summary.clone(),
                run: Some(build_update(run, now_ms)),
            });
            Ok((change, ()))
        })
        .await
    }

    async fn set_report(
        &self,
        source: Source,
        epoch: Epoch,
        value: &serde_json::Value,
    ) -> Result<()> {
        report(&self.cql, source, epoch, value).await
    }

    async fn forget_views(&self, source: Source, at: (Epoch, i64), keep: &[String]) -> Result<()> {
        let (cql, leases) = (&self.cql, &self.leases);
        let about = (source, at);
        self.tables.forget_views(cql, leases, about, keep).await
    }
}
