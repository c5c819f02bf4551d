//! `scheduler` and `executor`: batch runs on several machines.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::Context;
use crate::args::{ExecutorArgs, SchedulerArgs};
use crate::ballista::BatchWorker;
use crate::failure::usage_error;
use crate::installation::{self, Installation};

/// Time limit of the connection to the scheduler's own advertised address.
const SELF_CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Distributes tasks of batch runs to executors until `stop`.
pub(super) async fn run_scheduler(
    args: &SchedulerArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let address = resolve_address(&args.listen).await?;
    let host = match &args.advertise {
        Some(host) => host.clone(),
        None if address.ip().is_unspecified() => {
            return Err(usage_error(format!(
                "--listen {}: name the host under which executors reach this machine with --advertise HOST",
                args.listen
            )));
        }
        None => match address.ip() {
            std::net::IpAddr::V4(ip) => ip.to_string(),
            std::net::IpAddr::V6(ip) => format!("[{ip}]"),
        },
    };
    let listener = TcpListener::bind(address).await.map_err(|error| {
        let listen = &args.listen;
        anyhow::anyhow!("--listen {listen}: {error}; choose another port, or 0 for a free one")
    })?;
    let address = listener.local_addr()?;
    warn_if_exposed(address);
    warn_if_unreachable(&host, address.port()).await;
    context.announce("scheduler ", address.to_string())?;
    let options = scale::SchedulerOptions {
        listener,
        host,
        executor_timeout_seconds: args.executor_timeout.as_secs(),
    };
    Ok(scale::run_scheduler(options, stop).await?)
}

/// Runs tasks of batch runs until `stop`.
pub(super) async fn run_executor(
    args: &ExecutorArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let scheduler = args.scheduler.parse::<scale::Address>();
    let scheduler = scheduler.map_err(|error| usage_error(format!("--scheduler: {error}")))?;
    let listen = resolve_address(&args.listen).await?;
    let mut settings = context.settings().clone();
    if let Some(threads) = args.threads {
        settings.query.threads = threads;
    }
    let (archive, stores) = (
        installation::open_archive(&settings)?,
        settings.stores_options(),
    );
    let engine = installation::create_engine(&settings)?;
    // The engine deletes it.
    let folder = engine.create_scratch_folder()?;
    let name = installation::lease_holder();
    let catalog = Installation::load_catalog_from(&settings)?;
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
async fn resolve_address(listen: &str) -> anyhow::Result<SocketAddr> {
    let invalid_address = |reason: String| {
        usage_error(format!(
            "--listen {listen}: {reason}; expected address and port, such as 127.0.0.1:50050"
        ))
    };
    let mut addresses = tokio::net::lookup_host(listen)
        .await
        .map_err(|error| invalid_address(error.to_string()))?;
    addresses
        .next()
        .ok_or_else(|| invalid_address("unknown host".to_owned()))
}

/// Warns if other machines can reach a port that has no authentication.
fn warn_if_exposed(address: SocketAddr) {
    if !address.ip().is_loopback() {
        tracing::warn!(
            %address,
            "other machines can reach this port, which has no authentication; restrict access to the machines of this installation"
        );
    }
}

/// Warns if the scheduler's advertised address is unreachable: executors would receive tasks, but
/// could not report results.
async fn warn_if_unreachable(host: &str, port: u16) {
    let address = format!("{host}:{port}");
    let connect = tokio::net::TcpStream::connect(&address);
    let reason = match tokio::time::timeout(SELF_CHECK_TIMEOUT, connect).await {
        Ok(Ok(_)) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no response".to_owned(),
    };
    tracing::warn!(
        address,
        reason,
        "the advertised address of this scheduler is unreachable from this machine; executors that cannot reach it never finish a task; name another host with --advertise"
    );
}
