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
use crate::failure::usage_error;
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
    let invalid_address = |reason: String| usage_error(format!("--listen {address}: {reason}"));
    let resolved: Vec<SocketAddr> = tokio::net::lookup_host(address)
        .await
        .map_err(|error| {
            invalid_address(format!(
                "{error}; expected address and port, such as 127.0.0.1:8080"
            ))
        })?
        .collect();
    if let Some(exposed) = resolved.iter().find(|address| !address.ip().is_loopback())
        && !keys.has_keys().await?
    {
        return Err(invalid_address(format!(
            "{} is reachable from other machines, but there is no API key; create one (backstitch keys create), or listen on 127.0.0.1",
            exposed.ip()
        )));
    }
    let mut outcome = Err(std::io::Error::from(std::io::ErrorKind::AddrNotAvailable));
    for address in resolved {
        outcome = bind_listener(address);
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

fn bind_listener(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(LISTEN_BACKLOG)
}

/// Status of the batch role.
#[derive(Debug, Default)]
pub(crate) struct BatchStatus {
    /// Published runs.
    runs: AtomicU64,
    is_running: AtomicBool,
}

impl showcase::BatchMonitor for BatchStatus {
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
    pub(crate) first_delay: Duration,
    /// Time from the start of a run to the start of the next one.
    pub(crate) interval: Duration,
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
    /// Creates an empty set of roles.
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
    pub(crate) async fn start_speed(
        &mut self,
        installation: &Installation,
        engine: &Engine,
    ) -> anyhow::Result<()> {
        for source in Source::LOGGED {
            installation.open_intake(source).await?;
            let speed = installation.create_speed(engine, source).await?;
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
    pub(crate) async fn start_batch(
        &mut self,
        installation: &Installation,
        engine: &Engine,
        schedule: Schedule,
        status: &Arc<BatchStatus>,
    ) -> anyhow::Result<()> {
        let mut batch = installation.create_batch(engine)?;
        let executors = schedule
            .engine
            .create_executors(installation.batch_options());
        if let Some(executors) = &executors {
            batch = batch.with_workers(Arc::clone(executors) as _);
        }
        let retention = installation.create_retention(engine)?;
        let retention = installation.has_retention().then_some(retention);
        let reconciliations = reconciling::load_scheduled(installation, None).await?;
        let reconciler = Arc::new(installation.create_batch(engine)?);
        let (status, stop) = (Arc::clone(status), self.stop.clone());
        self.tasks.spawn(async move {
            let role = BatchRole {
                batch,
                executors,
                status,
                retention,
                reconciler,
                reconciliations,
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
    pub(crate) fn start_serving(
        &mut self,
        installation: &Installation,
        listener: TcpListener,
    ) -> anyhow::Result<()> {
        let serving = installation.create_serving(Some(self.start_metrics()?))?;
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
        while let Some(result) = self.tasks.join_next().await {
            if let Err(error) = result.unwrap_or_else(|error| Err(error.into())) {
                self.stop.cancel();
                if outcome.is_ok() {
                    outcome = Err(error);
                }
            }
        }
        outcome
    }

    /// Starts collecting metrics.
    fn start_metrics(&mut self) -> anyhow::Result<PrometheusHandle> {
        let handle = monitoring::install_recorder()?;
        let (upkeep_handle, stop) = (handle.clone(), self.stop.clone());
        self.tasks.spawn(async move {
            monitoring::run_upkeep(upkeep_handle, stop).await;
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
    status: Arc<BatchStatus>,
    retention: Option<Retention>,
    reconciler: Arc<Batch>,
    reconciliations: Vec<Scheduled>,
}

impl BatchRole {
    /// Runs until `stop`. A failed run is retried at its next time; served values stay correct
    /// without it.
    async fn run(&self, schedule: &Schedule, stop: &CancellationToken) {
        let mut wait = schedule.first_delay;
        let mut last_retention: Option<tokio::time::Instant> = None;
        while sleep_unless_cancelled(wait, stop).await {
            let started = tokio::time::Instant::now();
            self.status.is_running.store(true, Ordering::Relaxed);
            self.run_all_sources(stop).await;
            for scheduled in &self.reconciliations {
                reconcile(&self.reconciler, scheduled, stop).await;
            }
            if let Some(retention) = &self.retention
                && last_retention.is_none_or(|last| last.elapsed() >= RETENTION_INTERVAL)
            {
                last_retention = Some(started);
                delete_expired(retention, stop).await;
            }
            self.status.is_running.store(false, Ordering::Relaxed);
            wait = schedule.interval.saturating_sub(started.elapsed());
        }
    }

    async fn run_all_sources(&self, stop: &CancellationToken) {
        for source in Source::LOGGED {
            if !self.batch.has_log(source).await.unwrap_or(true) {
                continue;
            }
            match self.run_source(source, stop).await {
                Ok(()) => {
                    self.status.runs.fetch_add(1, Ordering::Relaxed);
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
async fn reconcile(batch: &Arc<Batch>, scheduled: &Scheduled, stop: &CancellationToken) {
    let schedule = scheduled.name.as_str();
    let (batch, task, task_stop) = (Arc::clone(batch), scheduled.clone(), stop.clone());
    let runtime = tokio::runtime::Handle::current();
    // A comparison stays on its thread.
    let result = tokio::task::spawn_blocking(move || {
        runtime.block_on(batch.reconcile(&task, When::Due, (&(), &task_stop)))
    });
    let result = match result.await {
        Ok(result) => result,
        Err(error) => {
            tracing::error!(schedule, %error, "reconciliation panicked; it will be retried");
            return;
        }
    };
    match result {
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
