//! Whether a scheduler has executors: else what it is sent waits there without end. Ballista says so by HTTP, on the
//! same port.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{Address, Error, Result};

const LOOK_EVERY: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(250);
const ASK_FOR: Duration = Duration::from_secs(5);
/// More of an answer is not read: the first line has what counts.
const ANSWER_BYTES_MAX: u64 = 4_096;

/// What is known of it.
#[derive(Debug)]
pub(super) struct Readiness {
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
    pub(super) fn new(address: Address, wait_max: Duration) -> Self {
        Self {
            address,
            wait_max,
            seen: Mutex::default(),
        }
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
        let unreachable = |why: String| Error::Unreachable {
            address: self.address.clone(),
            why,
        };
        let asked = timeout(ASK_FOR, self.ask()).await;
        let answer = asked.map_err(|_| unreachable("it does not answer".to_owned()))?;
        let answer = answer.map_err(|error| unreachable(error.to_string()))?;
        let answer = String::from_utf8_lossy(&answer);
        let mut words = answer.split_whitespace();
        match (words.next(), words.next()) {
            (Some(version), Some("200")) if version.starts_with("HTTP/") => Ok(true),
            (Some(version), Some("503")) if version.starts_with("HTTP/") => Ok(false),
            _ => Err(unreachable(
                "something else than a scheduler answers there".to_owned(),
            )),
        }
    }

    async fn ask(&self) -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(self.address.to_string()).await?;
        let request = format!(
            "GET /readyz HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.address
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream
            .take(ANSWER_BYTES_MAX)
            .read_to_end(&mut answer)
            .await?;
        Ok(answer)
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

#[cfg(test)]
mod tests {
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
        let nobody = readiness.wait(&CancellationToken::new()).await;
        assert!(
            matches!(nobody, Err(Error::Unreachable { .. })),
            "{nobody:?}"
        );
    }
}
