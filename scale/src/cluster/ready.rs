//! Checks whether a scheduler has executors; without any, tasks would wait forever. Ballista
//! reports its readiness by HTTP on the same port.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use reqwest::{Client, StatusCode};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::error::error_chain;
use crate::{Address, Error, Result};

const CHECK_INTERVAL: Duration = Duration::from_secs(5);
const RETRY_PAUSE: Duration = Duration::from_millis(250);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The readiness of a scheduler.
#[derive(Debug)]
pub(super) struct Readiness {
    http: Client,
    address: Address,
    /// The maximum time to wait for an executor.
    wait_max: Duration,
    status: Mutex<ExecutorStatus>,
}

#[derive(Debug, Default)]
struct ExecutorStatus {
    /// The time of the last check.
    checked_at: Option<Instant>,
    /// The time since which there has been no executor.
    without_executor_since: Option<Instant>,
}

impl Readiness {
    pub(super) fn new(address: Address, wait_max: Duration) -> Result<Self> {
        let http = Client::builder()
            .no_proxy()
            .tls_built_in_root_certs(false)
            .timeout(REQUEST_TIMEOUT);
        Ok(Self {
            http: http
                .build()
                .map_err(|error| unreachable_error(&address, &error))?,
            address,
            wait_max,
            status: Mutex::default(),
        })
    }

    /// Waits for the first executor.
    pub(super) async fn wait(&self, stop: &CancellationToken) -> Result<()> {
        let since = Instant::now();
        while !self.is_ready().await? {
            if since.elapsed() > self.wait_max {
                return Err(self.no_executor_error());
            }
            tokio::select! {
                () = sleep(RETRY_PAUSE) => {}
                () = stop.cancelled() => return Err(Error::Stopped),
            }
        }
        Ok(())
    }

    /// Checks the scheduler, at most once per interval. Fails if there has been no executor for too
    /// long.
    pub(super) async fn check(&self) -> Result<()> {
        {
            let mut status = self.lock_status();
            if status
                .checked_at
                .is_some_and(|time| time.elapsed() < CHECK_INTERVAL)
            {
                return Ok(());
            }
            status.checked_at = Some(Instant::now());
        }
        // The caller, which waits for a task, notices a scheduler that does not answer.
        let is_ready = self.is_ready().await.unwrap_or(true);
        let mut status = self.lock_status();
        if is_ready {
            status.without_executor_since = None;
            return Ok(());
        }
        let since = *status
            .without_executor_since
            .get_or_insert_with(Instant::now);
        if since.elapsed() > self.wait_max {
            return Err(self.no_executor_error());
        }
        Ok(())
    }

    async fn is_ready(&self) -> Result<bool> {
        let request = self.http.get(format!("{}/readyz", self.address.url()));
        let response = request.send().await;
        let response = response.map_err(|error| unreachable_error(&self.address, &error))?;
        match response.status() {
            StatusCode::OK => Ok(true),
            StatusCode::SERVICE_UNAVAILABLE => Ok(false),
            _ => Err(Error::Unreachable {
                address: self.address.clone(),
                reason: "another service answers there".to_owned(),
            }),
        }
    }

    fn no_executor_error(&self) -> Error {
        Error::NoExecutor {
            address: self.address.clone(),
            seconds: self.wait_max.as_secs(),
        }
    }

    fn lock_status(&self) -> std::sync::MutexGuard<'_, ExecutorStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unreachable_error(address: &Address, error: &reqwest::Error) -> Error {
    Error::Unreachable {
        address: address.clone(),
        reason: error_chain(&error.to_string(), error),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Starts a server that always sends the same response.
    async fn start_server(response: &'static str) -> (Address, tokio::task::JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 512];
                assert!(stream.read(&mut request).await.expect("a request") > 0);
                let sent = stream.write_all(response.as_bytes()).await;
                sent.expect("a response");
            }
        });
        (address.parse().expect("an address"), tasks)
    }

    async fn wait_for(response: &'static str) -> Result<()> {
        let (address, _tasks) = start_server(response).await;
        let readiness = Readiness::new(address, Duration::from_millis(600));
        let readiness = readiness.expect("a client");
        readiness.wait(&CancellationToken::new()).await
    }

    #[tokio::test]
    async fn waiting_for_an_executor_ends() {
        wait_for("HTTP/1.1 200 OK\r\n\r\nready")
            .await
            .expect("an executor");
        let none = wait_for("HTTP/1.1 503 Service Unavailable\r\n\r\n").await;
        assert!(matches!(none, Err(Error::NoExecutor { .. })), "{none:?}");
        let other = wait_for("220 mail.example\r\n").await;
        assert!(matches!(other, Err(Error::Unreachable { .. })), "{other:?}");
        let unused = "127.0.0.1:1".parse().expect("an address");
        let readiness = Readiness::new(unused, Duration::from_secs(60));
        let readiness = readiness.expect("a client");
        let unused = readiness.wait(&CancellationToken::new()).await;
        assert!(
            matches!(unused, Err(Error::Unreachable { .. })),
            "{unused:?}"
        );
    }
}
