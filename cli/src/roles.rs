//! The roles of a whole installation in one process: speed, periodic batch runs, serving.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use batch::{Batch, Reconciled, Retention, RunRequest, Scheduled, When};
use jobs::Engine;
use metrics_exporter_prometheus::PrometheusHandle;
use schemas::source::Source;
use stores::keys::Keys;
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::engine::BatchEngine;
use crate::executors::Executors;
use crate::failure::usage;
use crate::installation::Installation;
use crate::shutdown::sleep_unless_cancelled;
use crate::{monitoring, reconciling};

/// Minimum time between two retention passes, which scan all data.
const RETENTION_INTERVAL: Duration = Duration::from_secs(3600);
/// Connections that wait to be accepted, if the system allows that many. Further ones may be reset.
const LISTEN_BACKLOG: u32 = 16_384;

/// Listens on an address. Without API keys only loopback addresses are allowed.
///
/// # Errors
/// An invalid address, or a key store that cannot be read.
pub(crate) async fn listen(
    address: &str,
    keys: &dyn Keys,
) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let wrong = |why: String| usage(format!("--listen {address}: {why}"));
    let resolved: Vec<SocketAddr> = tokio::net::lookup_host(address)
        .await
        .map_err(|error| {
            wrong(format!(
                "{error}; expected address and port, such as 127.0.0.1:8080"
            ))
        })?
        .collect();
    if let Some(other) = resolved.iter().find(|found| !found.ip().is_loopback())
        && !keys.has_keys().await?
    {
        return Err(wrong(format!(
            "{} is reachable from other machines, but there is no API key; create one (backstitch keys create), or listen on 127.0.0.1",
            other.ip()
        )));
    }
    let mut outcome = Err(std::io::Error::from(std::io::ErrorKind::AddrNotAvailable));
    for address in resolved {
        outcome = listener_at(address);
        if outcome.is_ok() {
            break;
        }
    }
    let listener = outcome.map_err(|error| {
        anyhow::anyhow!("--listen {address}: {error}; choose another port, or 0 for a free one")
    })?;
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}

fn listener_at(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(LISTEN_BACKLOG)
}

/// Progress of the batch role.
#[derive(Debug, Default)]
pub(crate) struct BatchWatch {
    /// Published runs.
    runs: AtomicU64,
    is_running: AtomicBool,
}

impl showcase::BatchMonitor for BatchWatch {
    fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }

    fn is_running(&self) -> bool {
        self.is_running.load(Ordering::Relaxed)
    }
}

/// Times and engine of batch runs.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    /// Delay of the first run after the start.
    pub(crate) first: Duration,
    /// Time from the start of a run to the start of the next one.
    pub(crate) every: Duration,
    /// Computes the tasks of runs. Reconciliation and retention always run in this process.
    pub(crate) engine: BatchEngine,
}

/// Concurrent roles. All end when `stop` is cancelled or one of them fails.
#[derive(Debug)]
pub(crate) struct Roles {
    tasks: JoinSet<anyhow::Result<()>>,
    stop: CancellationToken,
}

impl Roles {
    /// No roles yet.
    pub(crate) fn new(stop: CancellationToken) -> Self {
        Self {
            tasks: JoinSet::new(),
            stop,
        }
    }

    /// Starts the speed layer of every source.
    ///
    /// # Errors
    /// Invalid views.
    pub(crate) async fn speed(
        &mut self,
        installation: &Installation,
        engine: &Engine,
    ) -> anyhow::Result<()> {
        for source in Source::LOGGED {
            installation.intake(source).await?;
            let speed = installation.speed(engine, source).await?;
            let stop = self.stop.clone();
            self.tasks.spawn(async move {
                speed.run(false, stop).await.context("speed layer")?;
                Ok(())
            });
        }
        Ok(())
    }

    /// Starts batch runs, and after them the reconciliations that are due.
    ///
    /// # Errors
    /// Invalid views or schedules.
    pub(crate) async fn batch(
        &mut self,
        installation: &Installation,
        engine: &Engine,
        schedule: Schedule,
        watch: &Arc<BatchWatch>,
    ) -> anyhow::Result<()> {
        let mut batch = installation.batch(engine)?;
        let executors = schedule.engine.executors(installation.batch_options());
        if let Some(executors) = &executors {
            batch = batch.with_workers(Arc::clone(executors) as _);
        }
        let retention = installation.retention(engine)?;
        let retention = installation.has_retention().then_some(retention);
        let scheduled = reconciling::scheduled(installation, None).await?;
        let reconciling = Arc::new(installation.batch(engine)?);
        let (watch, stop) = (Arc::clone(watch), self.stop.clone());
        self.tasks.spawn(async move {
            let role = BatchRole {
                batch,
                executors,
                watch,
                retention,
                reconciler: reconciling,
                reconciliations: scheduled,
            };
            role.run(&schedule, &stop).await;
            Ok(())
        });
        Ok(())
    }

    /// Starts serving.
    ///
    /// # Errors
    /// Invalid options.
    pub(crate) fn serving(
        &mut self,
        installation: &Installation,
        listener: TcpListener,
    ) -> anyhow::Result<()> {
        let serving = installation.serving(Some(self.metrics()?))?;
        let stop = self.stop.clone();
        self.tasks
            .spawn(async move { serving.run(listener, stop).await.context("serving") });
        Ok(())
    }

    /// Waits until every role has ended.
    ///
    /// # Errors
    /// Those of the first role that failed.
    pub(crate) async fn join(mut self) -> anyhow::Result<()> {
        let mut outcome = Ok(());
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended.unwrap_or_else(|error| Err(error.into())) {
                self.stop.cancel();
                if outcome.is_ok() {
                    outcome = Err(error);
                }
            }
        }
        outcome
    }

    /// Starts collecting metrics.
    fn metrics(&mut self) -> anyhow::Result<PrometheusHandle> {
        let handle = monitoring::recorder()?;
        let (upkeep, stop) = (handle.clone(), self.stop.clone());
        self.tasks.spawn(async move {
            monitoring::keep_up(upkeep, stop).await;
            Ok(())
        });
        Ok(handle)
    }
}

/// Runs batches, reconciliations and retention in turn.
struct BatchRole {
    batch: Batch,
    /// Executors of batch tasks; none if this process computes them.
    executors: Option<Arc<dyn Executors>>,
    watch: Arc<BatchWatch>,
    retention: Option<Retention>,
    reconciler: Arc<Batch>,
    reconciliations: Vec<Scheduled>,
}

impl BatchRole {
    /// Runs until `stop`. A failed run is retried at its next time; served values stay correct without it.
    async fn run(&self, schedule: &Schedule, stop: &CancellationToken) {
        let mut wait = schedule.first;
        let mut last_retention: Option<tokio::time::Instant> = None;
        while sleep_unless_cancelled(wait, stop).await {
            let begun = tokio::time::Instant::now();
            self.watch.is_running.store(true, Ordering::Relaxed);
            self.run_all_sources(stop).await;
            for one in &self.reconciliations {
                reconcile(&self.reconciler, one, stop).await;
            }
            if let Some(retention) = &self.retention
                && last_retention.is_none_or(|last| last.elapsed() >= RETENTION_INTERVAL)
            {
                last_retention = Some(begun);
                delete_expired(retention, stop).await;
            }
            self.watch.is_running.store(false, Ordering::Relaxed);
            wait = schedule.every.saturating_sub(begun.elapsed());
        }
    }

    async fn run_all_sources(&self, stop: &CancellationToken) {
        for source in Source::LOGGED {
            if !self.batch.has_log(source).await.unwrap_or(true) {
                continue;
            }
            match self.run_source(source, stop).await {
                Ok(()) => {
                    self.watch.runs.fetch_add(1, Ordering::Relaxed);
                }
                Err(_) if stop.is_cancelled() => {}
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::warn!(%source, %error, "batch run failed; it will be retried");
                }
            }
        }
        if let Some(executors) = &self.executors {
            executors.cancel().await;
        }
    }

    /// Runs one source after the executors, if any, are connected.
    async fn run_source(&self, source: Source, stop: &CancellationToken) -> anyhow::Result<()> {
        if let Some(executors) = &self.executors {
            executors.connect(stop).await?;
        }
        let request = RunRequest::default();
        self.batch.run(source, &request, &(), stop).await?;
        Ok(())
    }
}

/// Runs a reconciliation if it is due. A failed one stays due.
async fn reconcile(batch: &Arc<Batch>, one: &Scheduled, stop: &CancellationToken) {
    let schedule = one.name.as_str();
    let (batch, of, until) = (Arc::clone(batch), one.clone(), stop.clone());
    let runtime = tokio::runtime::Handle::current();
    // A comparison stays on its thread.
    let done = tokio::task::spawn_blocking(move || {
        runtime.block_on(batch.reconcile(&of, When::Due, (&(), &until)))
    });
    let done = match done.await {
        Ok(done) => done,
        Err(error) => {
            tracing::error!(schedule, %error, "reconciliation panicked; it will be retried");
            return;
        }
    };
    match done {
        Ok(Reconciled::Done {
            outcome, alerts, ..
        }) => {
            let outcome = outcome.name();
            tracing::info!(schedule, outcome, alerts, "reconciliation finished");
        }
        Ok(Reconciled::NotDue { .. } | Reconciled::Passed { .. }) => {}
        Err(_) if stop.is_cancelled() => {}
        Err(error) => {
            tracing::warn!(schedule, %error, "reconciliation failed; it will be retried");
        }
    }
}

/// Deletes data that is expired by the settings. The next pass retries what failed.
async fn delete_expired(retention: &Retention, stop: &CancellationToken) {
    match retention.run(stop).await {
        Ok(reports) => {
            for report in reports {
                let (kind, source) = (report.kind.name(), report.source);
                let source = source.map_or("", Source::name);
                if report.deleted.count > 0 {
                    let (count, bytes) = (report.deleted.count, report.deleted.bytes);
                    tracing::info!(kind, source, count, bytes, "deleted expired data");
                }
                for warning in report.warnings {
                    tracing::debug!(kind, source, warning);
                }
            }
        }
        Err(_) if stop.is_cancelled() => {}
        Err(error) => {
            tracing::warn!(%error, "retention failed; it will be retried");
        }
    }
}
