//! The roles of a whole installation in one process: speed, batch every so often, serving.

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

use crate::engine::{BatchEngine, Executors};
use crate::failure::usage;
use crate::installation::Installation;
use crate::{monitoring, reconciling};

/// How often old things are let go, after a batch run: it looks through all that there is.
const LET_GO_EVERY: Duration = Duration::from_secs(3600);
/// How many connections may wait to be taken, if the system allows as many: of more that come at once some are reset.
const CONNECTIONS_WAITING: u32 = 16_384;

/// Listens on an address: without keys on one of this machine only, since nobody else is served.
///
/// # Errors
/// An address that can't be used, and a store of keys that can't be asked where it has to be.
pub(crate) async fn listen(
    address: &str,
    keys: &dyn Keys,
) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let wrong = |why: String| usage(format!("--listen {address}: {why}"));
    let resolved: Vec<SocketAddr> = tokio::net::lookup_host(address)
        .await
        .map_err(|error| {
            wrong(format!(
                "{error}; write an address and a port, as in 127.0.0.1:8080"
            ))
        })?
        .collect();
    if let Some(other) = resolved.iter().find(|found| !found.ip().is_loopback())
        && !keys.any_key().await?
    {
        return Err(wrong(format!(
            "{} can be reached from other machines, and there is no key; make one (backstitch keys create), or listen on 127.0.0.1",
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
    socket.listen(CONNECTIONS_WAITING)
}

/// What the batch role has done so far.
#[derive(Debug, Default)]
pub(crate) struct BatchWatch {
    /// Runs that were published.
    runs: AtomicU64,
    /// Whether a run is under way.
    under_way: AtomicBool,
}

impl showcase::BatchWatch for BatchWatch {
    fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }

    fn is_running(&self) -> bool {
        self.under_way.load(Ordering::Relaxed)
    }
}

/// When batch runs begin, and what computes them.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    /// The first one, after the start.
    pub(crate) first: Duration,
    /// Each other one, after the beginning of the one before.
    pub(crate) every: Duration,
    /// What carries the tasks of runs out; what comes after runs is done by this process.
    pub(crate) computes: BatchEngine,
}

/// Roles that run side by side. Each ends when it is told to; one that fails ends all.
#[derive(Debug)]
pub(crate) struct Roles {
    tasks: JoinSet<anyhow::Result<()>>,
    stop: CancellationToken,
}

impl Roles {
    /// None yet; they will end when `stop` is cancelled.
    pub(crate) fn new(stop: CancellationToken) -> Self {
        Self {
            tasks: JoinSet::new(),
            stop,
        }
    }

    /// Starts the speed layer of every source.
    ///
    /// # Errors
    /// Views that can't be planned.
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
    /// Views that can't be planned, schedules that can't be carried out.
    pub(crate) async fn batch(
        &mut self,
        installation: &Installation,
        engine: &Engine,
        schedule: Schedule,
        watch: &Arc<BatchWatch>,
    ) -> anyhow::Result<()> {
        let mut batch = installation.batch(engine)?;
        let executors = schedule.computes.executors(installation.batch_options());
        if let Some(executors) = &executors {
            batch = batch.with_workers(Arc::clone(executors) as _);
        }
        let retention = installation.retention(engine)?;
        let retention = installation.lets_go().then_some(retention);
        let scheduled = reconciling::scheduled(installation, None).await?;
        let reconciling = Arc::new(installation.batch(engine)?);
        let (watch, stop) = (Arc::clone(watch), self.stop.clone());
        self.tasks.spawn(async move {
            let runs = Runs {
                batch,
                executors,
                watch,
            };
            let after = (retention.as_ref(), &reconciling, scheduled.as_slice());
            run_batches((&runs, after), &schedule, &stop).await;
            Ok(())
        });
        Ok(())
    }

    /// Starts serving.
    ///
    /// # Errors
    /// Options that can't be used.
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

/// What is done after batch runs.
type After<'a> = (Option<&'a Retention>, &'a Arc<Batch>, &'a [Scheduled]);

/// What a run of every source needs.
struct Runs {
    batch: Batch,
    /// Where its tasks are carried out, if not here.
    executors: Option<Arc<dyn Executors>>,
    watch: Arc<BatchWatch>,
}

impl Runs {
    /// Runs one source after the other.
    async fn all(&self, stop: &CancellationToken) {
        for source in Source::LOGGED {
            if !self.batch.has_log(source).await.unwrap_or(true) {
                continue;
            }
            match self.run(source, stop).await {
                Ok(()) => {
                    self.watch.runs.fetch_add(1, Ordering::Relaxed);
                }
                Err(_) if stop.is_cancelled() => {}
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::warn!(%source, %error, "a batch run did not come to its end; it is tried again");
                }
            }
        }
        if let Some(executors) = &self.executors {
            executors.call_off().await;
        }
    }

    /// One run, which begins only once there is who carries it out.
    async fn run(&self, source: Source, stop: &CancellationToken) -> anyhow::Result<()> {
        if let Some(executors) = &self.executors {
            executors.connect(stop).await?;
        }
        let request = RunRequest::default();
        self.batch.run(source, &request, &(), stop).await?;
        Ok(())
    }
}

/// Runs the batch layer again and again. A run that fails is tried again at its next time: what is
/// served stays right without it.
async fn run_batches(
    (runs, (retention, reconciling, scheduled)): (&Runs, After<'_>),
    schedule: &Schedule,
    stop: &CancellationToken,
) {
    let mut wait = schedule.first;
    let mut let_go: Option<tokio::time::Instant> = None;
    while sleep(wait, stop).await {
        let begun = tokio::time::Instant::now();
        runs.watch.under_way.store(true, Ordering::Relaxed);
        runs.all(stop).await;
        for one in scheduled {
            reconcile(reconciling, one, stop).await;
        }
        if let Some(retention) = retention
            && let_go.is_none_or(|before| before.elapsed() >= LET_GO_EVERY)
        {
            let_go = Some(begun);
            let_old_go(retention, stop).await;
        }
        runs.watch.under_way.store(false, Ordering::Relaxed);
        wait = schedule.every.saturating_sub(begun.elapsed());
    }
}

/// Carries a reconciliation out that is due. One that can't be now is due the next time, too.
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
            tracing::error!(schedule, %error, "a reconciliation ended in the middle; it is tried again");
            return;
        }
    };
    match done {
        Ok(Reconciled::Done {
            outcome, alerts, ..
        }) => {
            let outcome = outcome.name();
            tracing::info!(
                schedule,
                outcome,
                alerts,
                "a reconciliation was carried out"
            );
        }
        Ok(Reconciled::NotDue { .. } | Reconciled::Passed { .. }) => {}
        Err(_) if stop.is_cancelled() => {}
        Err(error) => {
            tracing::warn!(schedule, %error, "a reconciliation did not come to its end; it is tried again");
        }
    }
}

/// Lets go of what the settings say. What does not go now goes the next time.
async fn let_old_go(retention: &Retention, stop: &CancellationToken) {
    match retention.run(stop).await {
        Ok(reports) => {
            for report in reports {
                let (kind, source) = (report.kind.name(), report.source);
                let of = || source.map_or("", Source::name);
                if report.went.count > 0 {
                    let (count, bytes) = (report.went.count, report.went.bytes);
                    tracing::info!(kind, source = of(), count, bytes, "old things were let go");
                }
                for warning in report.warnings {
                    tracing::debug!(kind, source = of(), warning);
                }
            }
        }
        Err(_) if stop.is_cancelled() => {}
        Err(error) => {
            tracing::warn!(%error, "old things were not let go; it is tried again");
        }
    }
}

/// Sleeps; answers false as soon as it is time to stop.
pub(crate) async fn sleep(span: Duration, stop: &CancellationToken) -> bool {
    tokio::select! {
        () = stop.cancelled() => false,
        () = tokio::time::sleep(span) => true,
    }
}
