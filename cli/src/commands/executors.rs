//! `scheduler` and `executor`: batch runs on several machines.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::Context;
use crate::args::{ExecutorArgs, SchedulerArgs};
use crate::ballista::BatchWorker;
use crate::failure::usage;
use crate::installation::{self, Installation};

/// Time limit of the connection to the scheduler's own advertised address.
const SELF_CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Distributes tasks of batch runs to executors until `stop`.
pub(super) async fn scheduler(
    args: &SchedulerArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let at = resolve(&args.listen).await?;
    let host = match &args.advertise {
        Some(host) => host.clone(),
        None if at.ip().is_unspecified() => {
            return Err(usage(format!(
                "--listen {}: name the host under which executors reach this machine with --advertise HOST",
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
    warn_if_exposed(at);
    warn_if_unreachable(&host, at.port()).await;
    context.announce("scheduler ", at.to_string())?;
    let options = scale::SchedulerOptions {
        listener,
        host,
        executor_timeout_seconds: args.executor_timeout.as_secs(),
    };
    Ok(scale::run_scheduler(options, stop).await?)
}

/// Runs tasks of batch runs until `stop`.
pub(super) async fn executor(
    args: &ExecutorArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let scheduler = args.scheduler.parse::<scale::Address>();
    let scheduler = scheduler.map_err(|error| usage(format!("--scheduler: {error}")))?;
    let listen = resolve(&args.listen).await?;
    let mut settings = context.settings().clone();
    if let Some(threads) = args.threads {
        settings.query.threads = threads;
    }
    let (archive, stores) = (installation::archive(&settings)?, settings.stores());
    let engine = installation::engine(&settings)?;
    // The engine deletes it.
    let folder = engine.scratch_folder()?;
    let name = installation::holder();
    let catalog = Installation::catalog_of(&settings)?;
    let worker = batch::Worker::new(archive, stores, catalog, engine, name);
    let executor = scale::Executor::new(scale::ExecutorOptions {
        scheduler,
        listen,
        threads: settings.query.threads,
        folder: folder.path().to_owned(),
    })?;
    warn_if_exposed(executor.address());
    context.announce("executor ", executor.address().to_string())?;
    let worker = std::sync::Arc::new(BatchWorker(worker));
    match executor.run(worker, stop).await {
        Ok(()) | Err(scale::Error::Stopped) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Resolves the address to listen on.
async fn resolve(listen: &str) -> anyhow::Result<SocketAddr> {
    let wrong = |why: String| {
        usage(format!(
            "--listen {listen}: {why}; expected address and port, such as 127.0.0.1:50050"
        ))
    };
    let mut found = tokio::net::lookup_host(listen)
        .await
        .map_err(|error| wrong(error.to_string()))?;
    found.next().ok_or_else(|| wrong("unknown host".to_owned()))
}

/// Warns if other machines can reach a port that has no authentication.
fn warn_if_exposed(at: SocketAddr) {
    if !at.ip().is_loopback() {
        tracing::warn!(
            %at,
            "other machines can reach this port, which has no authentication; restrict access to the machines of this installation"
        );
    }
}

/// Warns if the scheduler's advertised address is unreachable: executors would receive tasks, but could not report results.
async fn warn_if_unreachable(host: &str, port: u16) {
    let address = format!("{host}:{port}");
    let connecting = tokio::net::TcpStream::connect(&address);
    let why = match tokio::time::timeout(SELF_CHECK_TIMEOUT, connecting).await {
        Ok(Ok(_)) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer".to_owned(),
    };
    tracing::warn!(
        address,
        why,
        "the advertised address of this scheduler is unreachable from this machine; executors that cannot reach it never finish a task; name another host with --advertise"
    );
}
