//! An executor: a process that carries errands out for one scheduler.

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

use crate::plan::{Codec, ErrandsOnly};
use crate::{Address, Error, MESSAGE_BYTES_MAX, Result, Worker};

/// How often the scheduler hears of it. Ballista ends an executor whose scheduler is away five times in a row.
const HEARTBEAT_SECONDS: u64 = 3;
/// What is left of errands that nobody fetched goes after so long.
const LEFT_DATA_SECONDS: u64 = 600;
const LEFT_DATA_LOOK_SECONDS: u64 = 60;
/// How long a scheduler is waited for that is started at the same time.
const SCHEDULER_WAIT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(250);
/// A signal is heard by Ballista and by us, in any order.
const SIGNAL_WAIT: Duration = Duration::from_secs(2);
/// How long it goes on with what it is at, once it is told to end; a little longer than its scheduler thinks.
const STOP_MAX: Duration = Duration::from_secs(32);
/// How often another pair of free ports is looked for.
const PORT_TRIES: usize = 20;

/// How an executor is to work.
#[derive(Debug, Clone)]
pub struct ExecutorOptions {
    /// Its scheduler.
    pub scheduler: Address,
    /// Where it listens, for answers; errands come in on the port after this one. Port 0 takes two free ones.
    pub listen: SocketAddr,
    /// Errands that it carries out at once.
    pub threads: usize,
    /// A folder of its own for answers that were not fetched yet.
    pub folder: PathBuf,
}

/// An executor that has its ports.
#[derive(Debug)]
pub struct Executor {
    options: ExecutorOptions,
    at: SocketAddr,
}

impl Executor {
    /// An executor that begins once it is run.
    ///
    /// # Errors
    /// [`Error::Listen`].
    pub fn new(options: ExecutorOptions) -> Result<Self> {
        let at = free_ports(options.listen)?;
        Ok(Self { options, at })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.at
    }

    /// Carries errands out until the process is told to end (SIGTERM, SIGINT); what was begun comes to its end.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if there is no scheduler, [`Error::Executor`] if it does not take this executor or went
    /// away, [`Error::Stopped`] if it never began.
    pub async fn run(self, worker: Arc<dyn Worker>, stop: CancellationToken) -> Result<()> {
        let scheduler = &self.options.scheduler;
        reach(scheduler, &stop).await?;
        let process = Box::pin(start_executor_process(Arc::new(self.config(worker))));
        let ended = tokio::select! {
            ended = process => ended,
            () = overdue(&stop) => {
                tracing::warn!(
                    "what was begun has not come to its end in time, and is left to another executor"
                );
                return Ok(());
            }
        };
        if stop.is_cancelled() || timeout(SIGNAL_WAIT, stop.cancelled()).await.is_ok() {
            return Ok(());
        }
        let why = match ended {
            Ok(()) => {
                "it does not answer any more, or a port was taken meanwhile; start the executor again once the scheduler is there".to_owned()
            }
            Err(error) => format!(
                "{error}. It must be of this version, and reach {} and the port after it from where it is",
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
            // Else the scheduler takes the address from which it is called.
            external_host: (!self.at.ip().is_unspecified()).then(|| host.clone()),
            bind_host: host,
            port: self.at.port(),
            grpc_port: self.at.port().saturating_add(1),
            scheduler_host: scheduler.host.clone(),
            scheduler_port: scheduler.port,
            vcores: self.options.threads.max(1),
            task_scheduling_policy: TaskSchedulingPolicy::PushStaged,
            work_dir: Some(self.options.folder.to_string_lossy().into_owned()),
            job_data_ttl_seconds: LEFT_DATA_SECONDS,
            job_data_clean_up_interval_seconds: LEFT_DATA_LOOK_SECONDS,
            grpc_max_decoding_message_size: MESSAGE_BYTES_MAX,
            grpc_max_encoding_message_size: MESSAGE_BYTES_MAX,
            executor_heartbeat_interval_seconds: HEARTBEAT_SECONDS,
            // Errands have memory of their own.
            memory_pool_size: Some(0),
            override_physical_codec: Some(Arc::new(Codec::of(worker))),
            override_execution_engine: Some(Arc::new(ErrandsOnly::default())),
            ..ExecutorProcessConfig::default()
        }
    }
}

/// Ends once it was told to end long enough ago: Ballista waits for its tasks and for its scheduler without limit.
async fn overdue(stop: &CancellationToken) {
    stop.cancelled().await;
    sleep(STOP_MAX).await;
}

/// Two ports, one after the other, that nobody listens on.
fn free_ports(listen: SocketAddr) -> Result<SocketAddr> {
    let mut last = None;
    for _ in 0..PORT_TRIES {
        match pair(listen) {
            Ok(at) => return Ok(at),
            Err((at, error)) => {
                let taken = listen.port() == 0 && error.kind() == ErrorKind::AddrInUse;
                last = Some(Error::Listen {
                    at: at.to_string(),
                    why: error.to_string(),
                });
                if !taken {
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
        let why = "there is no port after it, on which errands would come in";
        (at, std::io::Error::new(ErrorKind::AddrInUse, why))
    })?);
    TcpListener::bind(next).map_err(|error| (next, error))?;
    Ok(at)
}

/// Waits a while for somebody who listens where the scheduler should be. Ballista would wait without end.
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
            () = sleep(PAUSE) => {}
            () = stop.cancelled() => return Err(Error::Stopped),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_is_named() {
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
