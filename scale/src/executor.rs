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
use crate::{Address, Error, MESSAGE_BYTES_MAX, Result, TaskRunner};

/// The interval of heartbeats. Ballista stops an executor after five failed heartbeats in a row.
const HEARTBEAT_SECONDS: u64 = 3;
/// The time to live of responses that no client fetched.
const RESULT_TTL_SECONDS: u64 = 600;
const RESULT_CLEANUP_INTERVAL_SECONDS: u64 = 60;
/// The time to wait for a scheduler that starts at the same time.
const SCHEDULER_WAIT_MAX: Duration = Duration::from_secs(30);
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// Ballista and this process receive a signal in any order.
const SIGNAL_WAIT_MAX: Duration = Duration::from_secs(2);
/// The time for running tasks after a stop; slightly longer than the scheduler's grace period.
const STOP_TIMEOUT: Duration = Duration::from_secs(32);
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
    address: SocketAddr,
}

impl Executor {
    /// Chooses the ports of an executor, which starts with [`Executor::run`].
    ///
    /// # Errors
    /// [`Error::Listen`].
    pub fn new(options: ExecutorOptions) -> Result<Self> {
        let address = find_free_ports(options.listen)?;
        Ok(Self { options, address })
    }

    /// Returns the address for fetching responses.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Runs tasks until the process receives SIGTERM or SIGINT. Running tasks are completed.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if there is no scheduler, [`Error::Executor`] if the scheduler
    /// rejects this executor or disappeared, [`Error::Stopped`] if the executor was stopped before
    /// it started.
    pub async fn run(self, runner: Arc<dyn TaskRunner>, stop: CancellationToken) -> Result<()> {
        let scheduler = &self.options.scheduler;
        wait_for_scheduler(scheduler, &stop).await?;
        let process = Box::pin(start_executor_process(Arc::new(self.config(runner))));
        let outcome = tokio::select! {
            outcome = process => outcome,
            () = wait_until_overdue(&stop) => {
                tracing::warn!(
                    "running tasks did not finish in time; another executor will run them again"
                );
                return Ok(());
            }
        };
        if stop.is_cancelled() || timeout(SIGNAL_WAIT_MAX, stop.cancelled()).await.is_ok() {
            return Ok(());
        }
        let reason = match outcome {
            Ok(()) => {
                "the scheduler stopped answering, or another process took a port; start the executor again once the scheduler runs".to_owned()
            }
            Err(error) => format!(
                "{error}. The scheduler must have this version, and must be able to reach {} and the next port",
                self.address
            ),
        };
        let address = scheduler.clone();
        Err(Error::Executor { address, reason })
    }

    fn config(&self, runner: Arc<dyn TaskRunner>) -> ExecutorProcessConfig {
        let scheduler = &self.options.scheduler;
        let host = match self.address.ip() {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        ExecutorProcessConfig {
            // Otherwise the scheduler uses the peer address of the connection.
            external_host: (!self.address.ip().is_unspecified()).then(|| host.clone()),
            bind_host: host,
            port: self.address.port(),
            grpc_port: self.address.port().saturating_add(1),
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
            override_physical_codec: Some(Arc::new(Codec::with_runner(runner))),
            override_execution_engine: Some(Arc::new(TaskOnlyEngine::default())),
            ..ExecutorProcessConfig::default()
        }
    }
}

/// Returns when the stop is overdue: Ballista waits without limit for its tasks and its scheduler.
async fn wait_until_overdue(stop: &CancellationToken) {
    stop.cancelled().await;
    sleep(STOP_TIMEOUT).await;
}

/// Finds two free adjacent ports.
fn find_free_ports(listen: SocketAddr) -> Result<SocketAddr> {
    let mut last_error = None;
    for _ in 0..PORT_TRIES {
        match bind_pair(listen) {
            Ok(address) => return Ok(address),
            Err((address, error)) => {
                let can_retry = listen.port() == 0 && error.kind() == ErrorKind::AddrInUse;
                last_error = Some(Error::Listen {
                    address: address.to_string(),
                    reason: error.to_string(),
                });
                if !can_retry {
                    break;
                }
            }
        }
    }
    Err(last_error.unwrap_or_else(|| Error::Listen {
        address: listen.to_string(),
        reason: "no two free ports were found".to_owned(),
    }))
}

/// Binds two adjacent ports and releases them again.
fn bind_pair(listen: SocketAddr) -> Result<SocketAddr, (SocketAddr, std::io::Error)> {
    let first = TcpListener::bind(listen).map_err(|error| (listen, error))?;
    let address = first.local_addr().map_err(|error| (listen, error))?;
    let mut next = address;
    next.set_port(address.port().checked_add(1).ok_or_else(|| {
        let problem = "it has no next port, on which tasks arrive";
        (address, std::io::Error::new(ErrorKind::AddrInUse, problem))
    })?);
    TcpListener::bind(next).map_err(|error| (next, error))?;
    Ok(address)
}

/// Waits until the scheduler accepts connections. Ballista itself would wait without limit.
async fn wait_for_scheduler(scheduler: &Address, stop: &CancellationToken) -> Result<()> {
    let start = Instant::now();
    loop {
        let connecting = TcpStream::connect(scheduler.to_string());
        let reason = tokio::select! {
            connected = timeout(SCHEDULER_WAIT_MAX, connecting) => match connected {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "it does not answer".to_owned(),
            },
            () = stop.cancelled() => return Err(Error::Stopped),
        };
        if start.elapsed() >= SCHEDULER_WAIT_MAX {
            let address = scheduler.clone();
            return Err(Error::Unreachable { address, reason });
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
        let address = find_free_ports(any).expect("ports");
        assert!(address.port() > 0);
        let next = SocketAddr::from(([127, 0, 0, 1], address.port() + 1));
        for taken in [address, next] {
            let listener = TcpListener::bind(taken).expect("a port");
            let error = find_free_ports(address)
                .expect_err("a taken port")
                .to_string();
            assert!(error.contains(&taken.to_string()), "{error}");
            drop(listener);
        }
        assert_eq!(find_free_ports(address).expect("free again"), address);
    }
}
