//! The roles of a whole installation in one process: speed, batch every so often, serving.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use batch::{Batch, RunRequest};
use jobs::Engine;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use schemas::source::Source;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::failure::usage;
use crate::installation::Installation;

/// How often the recorder of metrics tidies up.
const UPKEEP: Duration = Duration::from_secs(5);

/// Listens on an address of this machine only: without keys nobody else is served.
///
/// # Errors
/// An address that can't be used.
pub(crate) async fn listen(address: &str) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let wrong = |why: String| usage(format!("--listen {address}: {why}"));
    let resolved: Vec<SocketAddr> = tokio::net::lookup_host(address)
        .await
        .map_err(|error| wrong(format!("{error}; write an address and a port, as in 127.0.0.1:8080")))?
        .collect();
    if let Some(other) = resolved.iter().find(|found| !found.ip().is_loopback()) {
        return Err(wrong(format!(
            "{} can be reached from other machines, and no keys are configured; listen on 127.0.0.1, and put a proxy that checks who is asking before it",
            other.ip()
        )));
    }
    let listener = TcpListener::bind(resolved.as_slice())
        .await
        .with_context(|| format!("--listen {address}: choose another port, or 0 for a free one"))?;
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}

/// Starts collecting metrics.
///
/// # Errors
/// If that was started already.
pub(crate) fn metrics(tasks: &mut JoinSet<anyhow::Result<()>>, stop: &CancellationToken) -> anyhow::Result<PrometheusHandle> {
    let handle = PrometheusBuilder::new().install_recorder()?;
    let (upkeep, stop) = (handle.clone(), stop.clone());
    tasks.spawn(async move {
        while sleep(UPKEEP, &stop).await {
            upkeep.run_upkeep();
        }
        Ok(())
    });
    Ok(handle)
}

/// What the batch role has done so far.
#[derive(Debug, Default)]
pub(crate) struct BatchWatch {
    runs: AtomicU64,
    under_way: AtomicBool,
}

impl BatchWatch {
    /// Runs that were published.
    pub(crate) fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }

    /// Whether a run is under way.
    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way.load(Ordering::Relaxed)
    }
}

/// When batch runs begin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schedule {
    /// The first one, after the start.
    pub(crate) first: Duration,
    /// Each other one, after the beginning of the one before.
    pub(crate) every: Duration,
}

/// Starts every role. Each ends when `stop` is cancelled, or with what it can't get over.
///
/// # Errors
/// A layer that can't be built.
pub(crate) async fn start(
    installation: &Installation,
    listener: TcpListener,
    schedule: Schedule,
    watch: &Arc<BatchWatch>,
    tasks: &mut JoinSet<anyhow::Result<()>>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let engine = installation.engine()?;
    for source in Source::ALL {
        installation.intake(source).await?;
    }
    start_speed(installation, &engine, tasks, stop).await?;
    let batch = installation.batch(&engine)?;
    let (watch, stop_batch) = (Arc::clone(watch), stop.clone());
    tasks.spawn(async move {
        run_batches(&batch, schedule, &watch, &stop_batch).await;
        Ok(())
    });
    let serving = installation.serving(metrics(tasks, stop)?)?;
    let stop = stop.clone();
    tasks.spawn(async move { serving.run(listener, stop).await.context("serving") });
    Ok(())
}

async fn start_speed(
    installation: &Installation,
    engine: &Engine,
    tasks: &mut JoinSet<anyhow::Result<()>>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    for source in Source::ALL {
        let speed = installation.speed(engine, source).await?;
        let stop = stop.clone();
        tasks.spawn(async move {
            speed.run(false, stop).await.context("speed layer")?;
            Ok(())
        });
    }
    Ok(())
}

/// Waits until every role has ended. One that fails ends all.
///
/// # Errors
/// Those of the first role that failed.
pub(crate) async fn join(
    mut tasks: JoinSet<anyhow::Result<()>>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let mut outcome = Ok(());
    while let Some(ended) = tasks.join_next().await {
        let ended = ended.unwrap_or_else(|error| Err(error.into()));
        if let Err(error) = ended {
            stop.cancel();
            if outcome.is_ok() {
                outcome = Err(error);
            }
        }
    }
    outcome
}

/// Runs the batch layer again and again. A run that fails is tried again at its next time: what is
/// served stays right without it.
async fn run_batches(
    batch: &Batch,
    schedule: Schedule,
    watch: &BatchWatch,
    stop: &CancellationToken,
) {
    let mut wait = schedule.first;
    while sleep(wait, stop).await {
        let begun = tokio::time::Instant::now();
        watch.under_way.store(true, Ordering::Relaxed);
        for source in Source::ALL {
            match batch.run(source, &RunRequest::default(), &(), stop).await {
                Ok(_) => {
                    watch.runs.fetch_add(1, Ordering::Relaxed);
                }
                Err(_) if stop.is_cancelled() => {}
                Err(error) => {
                    tracing::warn!(%source, %error, "a batch run was not published; it is tried again");
                }
            }
        }
        watch.under_way.store(false, Ordering::Relaxed);
        wait = schedule.every.saturating_sub(begun.elapsed());
    }
}

/// Sleeps; answers false as soon as it is time to stop.
pub(crate) async fn sleep(span: Duration, stop: &CancellationToken) -> bool {
    tokio::select! {
        () = stop.cancelled() => false,
        () = tokio::time::sleep(span) => true,
    }
}
