//! An executor: a process that runs tasks for one scheduler.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ballista_core::config::TaskSchedulingPolicy;
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::plan::{Codec, TaskOnlyEngine};
use crate::{Address, Error, MESSAGE_BYTES_MAX, Result, Worker};

/// The interval of heartbeats. Ballista stops an executor after five failed heartbeats in a row.
const HEARTBEAT_SECONDS: u64 = 3;
/// The time to live of responses that no client fetched.
const RESULT_TTL_SECONDS: u64 = 600;
const RESULT_CLEANUP_INTERVAL_SECONDS: u64 = 60;
/// The time to wait for a scheduler that starts at the same time.
const SCHEDULER_WAIT: Duration = Duration::from_secs(30);
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// Ballista and this process receive a signal in any order.
const SIGNAL_WAIT: Duration = Duration::from_secs(2);
/// The time for running tasks after a stop; slightly longer than the scheduler's grace period.
const STOP_MAX: Duration = Duration::from_secs(32);
/// The number of tries to find two free adjacent ports.
const PORT_TRIES: usize = 20;

/// The options of an executor.
#[derive(Debug, Clone)]
pub struct ExecutorOptions {
    /// The scheduler.
    pub scheduler: Address,
    /// The address for fetching responses. Tasks arrive on the next port. Port 0 chooses two free
    /// ones.
    pub listen: SocketAddr,
    /// The number of concurrent tasks.
    pub threads: usize,
    /// A folder for responses that were not fetched yet, used only by this executor.
    pub folder: PathBuf,
}

/// An executor with its ports.
#[derive(Debug)]
pub struct Executor {
    options: ExecutorOptions,
    at: SocketAddr,
}

impl Executor {
    /// Chooses the ports of an executor, which starts with [`Executor::run`].
    ///
    /// # Errors
    /// [`Error::Listen`].
    pub fn new(options: ExecutorOptions) -> Result<Self> {
        let at = free_ports(options.listen)?;
        Ok(Self { options, at })
    }

    /// Returns the address for fetching responses.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.at
    }

    /// Runs tasks until the process receives SIGTERM or SIGINT. Running tasks are completed.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if there is no scheduler, [`Error::Executor`] if the scheduler
    /// rejects this executor or disappeared, [`Error::Stopped`] if the executor was stopped before
    /// it started.
    pub async fn run(self, worker: Arc<dyn Worker>, stop: CancellationToken) -> Result<()> {
        let scheduler = &self.options.scheduler;
        reach(scheduler, &stop).await?;
        let process = Box::pin(start_executor_process(Arc::new(self.config(worker))));
        let ended = tokio::select! {
            ended = process => ended,
            () = overdue(&stop) => {
                tracing::warn!(
                    "running tasks did not finish in time; another executor will run them again"
                );
                return Ok(());
            }
        };
        if stop.is_cancelled() || timeout(SIGNAL_WAIT, stop.cancelled()).await.is_ok() {
            return Ok(());
        }
        let why = match ended {
            Ok(()) => {
                "the scheduler stopped answering, or another process took a port; start the executor again once the scheduler runs".to_owned()
            }
            Err(error) => format!(
                "{error}. The scheduler must have this version, and must be able to reach {} and the next port",
                self.at
            ),
        };
        let address = scheduler.clone();
        Err(Error::Executor { address, why })
    }

    fn config(&self, worker: Arc<dyn Worker>) -> ExecutorProcessConfig {
        let scheduler = &self.options.scheduler;
        let host = match self.at.ip() {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        ExecutorProcessConfig {
            // Otherwise the scheduler uses the peer address of the connection.
            external_host: (!self.at.ip().is_unspecified()).then(|| host.clone()),
            bind_host: host,
            port: self.at.port(),
            grpc_port: self.at.port().saturating_add(1),
            scheduler_host: scheduler.host.clone(),
            scheduler_port: scheduler.port,
            vcores: self.options.threads.max(1),
            task_scheduling_policy: TaskSchedulingPolicy::PushStaged,
            work_dir: Some(self.options.folder.to_string_lossy().into_owned()),
            job_data_ttl_seconds: RESULT_TTL_SECONDS,
            job_data_clean_up_interval_seconds: RESULT_CLEANUP_INTERVAL_SECONDS,
            grpc_max_decoding_message_size: MESSAGE_BYTES_MAX,
            grpc_max_encoding_message_size: MESSAGE_BYTES_MAX,
            executor_heartbeat_interval_seconds: HEARTBEAT_SECONDS,
            // Tasks manage their own memory.
            memory_pool_size: Some(0),
            override_physical_codec: Some(Arc::new(Codec::with_worker(worker))),
            override_execution_engine: Some(Arc::new(TaskOnlyEngine::default())),
            ..ExecutorProcessConfig::default()
        }
    }
}

/// Returns when the stop is overdue: Ballista waits without limit for its tasks and its scheduler.
async fn overdue(stop: &CancellationToken) {
    stop.cancelled().await;
    sleep(STOP_MAX).await;
}

/// Finds two free adjacent ports.
fn free_ports(listen: SocketAddr) -> Result<SocketAddr> {
    let mut last = None;
    for _ in 0..PORT_TRIES {
        match pair(listen) {
            Ok(at) => return Ok(at),
            Err((at, error)) => {
                let can_retry = listen.port() == 0 && error.kind() == ErrorKind::AddrInUse;
                last = Some(Error::Listen {
                    at: at.to_string(),
                    why: error.to_string(),
                });
                if !can_retry {
                    break;
                }
            }
        }
    }
    Err(last.unwrap_or_else(|| Error::Listen {
        at: listen.to_string(),
        why: "no two free ports were found".to_owned(),
    }))
}

fn pair(listen: SocketAddr) -> Result<SocketAddr, (SocketAddr, std::io::Error)> {
    let first = TcpListener::bind(listen).map_err(|error| (listen, error))?;
    let at = first.local_addr().map_err(|error| (listen, error))?;
    let mut next = at;
    next.set_port(at.port().checked_add(1).ok_or_else(|| {
        let why = "it has no next port, on which tasks arrive";
        (at, std::io::Error::new(ErrorKind::AddrInUse, why))
    })?);
    TcpListener::bind(next).map_err(|error| (next, error))?;
    Ok(at)
}

/// Waits until the scheduler accepts connections. Ballista itself would wait without limit.
async fn reach(scheduler: &Address, stop: &CancellationToken) -> Result<()> {
    let since = Instant::now();
    loop {
        let connecting = TcpStream::connect(scheduler.to_string());
        let why = tokio::select! {
            connected = timeout(SCHEDULER_WAIT, connecting) => match connected {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "it does not answer".to_owned(),
            },
            () = stop.cancelled() => return Err(Error::Stopped),
        };
        if since.elapsed() >= SCHEDULER_WAIT {
            let address = scheduler.clone();
            return Err(Error::Unreachable { address, why });
        }
        tokio::select! {
            () = sleep(RETRY_PAUSE) => {}
            () = stop.cancelled() => return Err(Error::Stopped),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_port_in_use() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let at = free_ports(any).expect("ports");
        assert!(at.port() > 0);
        let next = SocketAddr::from(([127, 0, 0, 1], at.port() + 1));
        for taken in [at, next] {
            let held = TcpListener::bind(taken).expect("a port");
            let error = free_ports(at).expect_err("a taken port").to_string();
            assert!(error.contains(&taken.to_string()), "{error}");
            drop(held);
        }
        assert_eq!(free_ports(at).expect("free again"), at);
    }
}
