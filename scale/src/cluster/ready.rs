//! Whether a scheduler has executors: else what it is sent waits there without end. Ballista says so by HTTP, on the
//! same port.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use reqwest::{Client, StatusCode};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::told;
use crate::{Address, Error, Result};

const LOOK_EVERY: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(250);
const ASK_FOR: Duration = Duration::from_secs(5);

/// What is known of it.
#[derive(Debug)]
pub(super) struct Readiness {
    http: Client,
    address: Address,
    /// How long an executor is waited for.
    wait_max: Duration,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// When somebody last looked.
    at: Option<Instant>,
    /// Since when there has been no executor.
    none_since: Option<Instant>,
}

impl Readiness {
    pub(super) fn new(address: Address, wait_max: Duration) -> Result<Self> {
        let http = Client::builder()
            .no_proxy()
            .tls_built_in_root_certs(false)
            .timeout(ASK_FOR);
        Ok(Self {
            http: http
                .build()
                .map_err(|error| unreachable(&address, &error))?,
            address,
            wait_max,
            seen: Mutex::default(),
        })
    }

    /// Waits for the first executor.
    pub(super) async fn wait(&self, stop: &CancellationToken) -> Result<()> {
        let since = Instant::now();
        while !self.is_ready().await? {
            if since.elapsed() > self.wait_max {
                return Err(self.no_executor());
            }
            tokio::select! {
                () = sleep(PAUSE) => {}
                () = stop.cancelled() => return Err(Error::Stopped),
            }
        }
        Ok(())
    }

    /// Looks now and then, whoever asks how often; an error once there has been no executor for too long.
    pub(super) async fn look(&self) -> Result<()> {
        {
            let mut seen = self.seen();
            if seen.at.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
                return Ok(());
            }
            seen.at = Some(Instant::now());
        }
        // A scheduler that does not answer is noticed by who waits for a task.
        let is_ready = self.is_ready().await.unwrap_or(true);
        let mut seen = self.seen();
        if is_ready {
            seen.none_since = None;
            return Ok(());
        }
        let since = *seen.none_since.get_or_insert_with(Instant::now);
        if since.elapsed() > self.wait_max {
            return Err(self.no_executor());
        }
        Ok(())
    }

    async fn is_ready(&self) -> Result<bool> {
        let request = self.http.get(format!("{}/readyz", self.address.url()));
        let response = request.send().await;
        let response = response.map_err(|error| unreachable(&self.address, &error))?;
        match response.status() {
            StatusCode::OK => Ok(true),
            StatusCode::SERVICE_UNAVAILABLE => Ok(false),
            _ => Err(Error::Unreachable {
                address: self.address.clone(),
                why: "something else than a scheduler answers there".to_owned(),
            }),
        }
    }

    fn no_executor(&self) -> Error {
        Error::NoExecutor {
            address: self.address.clone(),
            seconds: self.wait_max.as_secs(),
        }
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unreachable(address: &Address, error: &reqwest::Error) -> Error {
    Error::Unreachable {
        address: address.clone(),
        why: told(&error.to_string(), error),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Somebody who says the same to everybody.
    async fn who_says(said: &'static str) -> (Address, tokio::task::JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut asked = [0; 512];
                assert!(stream.read(&mut asked).await.expect("a question") > 0);
                stream.write_all(said.as_bytes()).await.expect("an answer");
            }
        });
        (address.parse().expect("an address"), tasks)
    }

    async fn waited(said: &'static str) -> Result<()> {
        let (address, _tasks) = who_says(said).await;
        let readiness = Readiness::new(address, Duration::from_millis(600));
        let readiness = readiness.expect("a client");
        readiness.wait(&CancellationToken::new()).await
    }

    #[tokio::test]
    async fn nobody_is_waited_for_without_end() {
        waited("HTTP/1.1 200 OK\r\n\r\nready").await.expect("one");
        let none = waited("HTTP/1.1 503 Service Unavailable\r\n\r\n").await;
        assert!(matches!(none, Err(Error::NoExecutor { .. })), "{none:?}");
        let other = waited("220 mail.example\r\n").await;
        assert!(matches!(other, Err(Error::Unreachable { .. })), "{other:?}");
        let nobody = "127.0.0.1:1".parse().expect("an address");
        let readiness = Readiness::new(nobody, Duration::from_secs(60));
        let readiness = readiness.expect("a client");
        let nobody = readiness.wait(&CancellationToken::new()).await;
        assert!(
            matches!(nobody, Err(Error::Unreachable { .. })),
            "{nobody:?}"
        );
    }
}
