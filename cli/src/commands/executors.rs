//! `scheduler` and `executor`: batch runs on several machines.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::Context;
use crate::args::{ExecutorArgs, SchedulerArgs};
use crate::executors::BatchWorker;
use crate::failure::usage;
use crate::installation::{self, Installation};

/// How long the scheduler is looked for by its own name.
const REACHED_WITHIN: Duration = Duration::from_secs(2);

/// Gives the tasks of batch runs to executors until it is told to end.
pub(super) async fn scheduler(
    args: &SchedulerArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let at = resolved(&args.listen).await?;
    let host = match &args.advertise {
        Some(host) => host.clone(),
        None if at.ip().is_unspecified() => {
            return Err(usage(format!(
                "--listen {}: say by which name executors reach this machine, with --advertise HOST",
                args.listen
            )));
        }
        None => match at.ip() {
            std::net::IpAddr::V4(ip) => ip.to_string(),
            std::net::IpAddr::V6(ip) => format!("[{ip}]"),
        },
    };
    let listener = TcpListener::bind(at).await.map_err(|error| {
        let listen = &args.listen;
        anyhow::anyhow!("--listen {listen}: {error}; choose another port, or 0 for a free one")
    })?;
    let at = listener.local_addr()?;
    warn_if_open(at);
    warn_if_unknown(&host, at.port()).await;
    context.announce("scheduler ", at.to_string())?;
    let options = scale::SchedulerOptions {
        listener,
        host,
        executor_timeout_seconds: args.executor_timeout,
    };
    Ok(scale::run_scheduler(options, stop).await?)
}

/// Carries tasks of batch runs out until it is told to end.
pub(super) async fn executor(
    args: &ExecutorArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let scheduler = args.scheduler.parse::<scale::Address>();
    let scheduler = scheduler.map_err(|error| usage(format!("--scheduler: {error}")))?;
    let listen = resolved(&args.listen).await?;
    let mut settings = context.settings().clone();
    if let Some(threads) = args.threads {
        settings.query.threads = threads;
    }
    let stores = (installation::archive(&settings)?, settings.stores());
    let engine = installation::engine(&settings)?;
    // It goes with the engine.
    let folder = engine.scratch()?;
    let name = installation::holder();
    let catalog = Installation::catalog_of(&settings)?;
    let worker = batch::Worker::new(stores, catalog, engine, name);
    let executor = scale::Executor::new(scale::ExecutorOptions {
        scheduler,
        listen,
        threads: settings.query.threads,
        folder: folder.path().to_owned(),
    })?;
    warn_if_open(executor.address());
    context.announce("executor ", executor.address().to_string())?;
    let worker = std::sync::Arc::new(BatchWorker(worker));
    match executor.run(worker, stop).await {
        Ok(()) | Err(scale::Error::Stopped) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The address to listen on.
async fn resolved(listen: &str) -> anyhow::Result<SocketAddr> {
    let wrong = |why: String| {
        usage(format!(
            "--listen {listen}: {why}; write an address and a port, as in 127.0.0.1:50050"
        ))
    };
    let mut found = tokio::net::lookup_host(listen)
        .await
        .map_err(|error| wrong(error.to_string()))?;
    found
        .next()
        .ok_or_else(|| wrong("there is no such host".to_owned()))
}

/// Says so where others than this machine can reach a port on which nobody is asked who they are.
fn warn_if_open(at: SocketAddr) {
    if !at.ip().is_loopback() {
        tracing::warn!(
            %at,
            "other machines can reach this port, and nobody is asked who they are: let only those in that belong to this installation"
        );
    }
}

/// Says so where the name by which executors are to reach the scheduler leads nowhere: they take tasks then, and what
/// comes of these is never heard.
async fn warn_if_unknown(host: &str, port: u16) {
    let place = format!("{host}:{port}");
    let connecting = tokio::net::TcpStream::connect(&place);
    let why = match tokio::time::timeout(REACHED_WITHIN, connecting).await {
        Ok(Ok(_)) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "nobody answers".to_owned(),
    };
    tracing::warn!(
        place,
        why,
        "this machine does not reach its own scheduler by the name for executors: if they do not either, no task has an end; name another host with --advertise"
    );
}
