//! Tasks of the batch layer on other machines: what the batch layer asks of workers, and what Ballista asks of them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use batch::{BatchOptions, Workers};
use scale::{Address, Cluster};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::failure::usage;

/// What carries the tasks of a batch run out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Engine {
    /// This process.
    Local,
    /// The executors of a scheduler.
    Ballista(Address),
}

impl Engine {
    /// The engine that is asked for.
    ///
    /// # Errors
    /// Another text than `local` or `ballista://HOST:PORT`.
    pub(crate) fn of(text: &str) -> anyhow::Result<Self> {
        if text == "local" {
            return Ok(Self::Local);
        }
        let Some(address) = text.strip_prefix("ballista://") else {
            return Err(usage(format!(
                "--engine {text}: there is no such engine; write local, or ballista://HOST:PORT"
            )));
        };
        let address = address.trim_end_matches('/').parse::<Address>();
        let address = address.map_err(|error| usage(format!("--engine {text}: {error}")))?;
        Ok(Self::Ballista(address))
    }

    /// The executors, if they are elsewhere; nobody is asked yet.
    pub(crate) fn executors(&self, options: &BatchOptions) -> Option<Arc<Executors>> {
        match self {
            Self::Local => None,
            Self::Ballista(address) => Some(Arc::new(Executors {
                address: address.clone(),
                try_max: Duration::from_secs(options.task_seconds_max),
                cluster: Mutex::default(),
            })),
        }
    }
}

/// The executors of a scheduler, for the batch layer.
#[derive(Debug)]
pub(crate) struct Executors {
    address: Address,
    try_max: Duration,
    /// The connection of the runs that are under way; each time it is another one, so that none is kept that broke.
    cluster: Mutex<Option<Arc<Cluster>>>,
}

impl Executors {
    /// Connects before runs begin that would have to wait for it.
    ///
    /// # Errors
    /// A scheduler that can't be reached, or has no executor.
    pub(crate) async fn connect(&self, stop: &CancellationToken) -> scale::Result<Arc<Cluster>> {
        let mut cluster = self.cluster.lock().await;
        if let Some(cluster) = &*cluster {
            return Ok(Arc::clone(cluster));
        }
        let connected = Cluster::connect(self.address.clone(), self.try_max, stop).await?;
        Ok(Arc::clone(cluster.insert(Arc::new(connected))))
    }
}

#[async_trait]
impl Workers for Executors {
    fn at_once(&self) -> usize {
        Cluster::AT_ONCE
    }

    async fn carry_out(&self, errand: &str, stop: &CancellationToken) -> batch::Result<String> {
        let answer = match self.connect(stop).await {
            Ok(cluster) => cluster.carry_out(errand, stop).await,
            Err(error) => Err(error),
        };
        answer.map_err(|error| match error {
            scale::Error::Stopped => batch::Error::Stopped,
            error => batch::Error::Workers(error.to_string()),
        })
    }

    async fn call_off(&self) {
        let cluster = self.cluster.lock().await.take();
        if let Some(cluster) = cluster {
            cluster.call_off().await;
        }
    }
}

/// A worker of the batch layer, for an executor.
#[derive(Debug)]
pub(crate) struct BatchWorker(pub(crate) batch::Worker);

#[async_trait]
impl scale::Worker for BatchWorker {
    async fn carry_out(&self, errand: &str) -> String {
        self.0.carry_out(errand).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_local_or_the_address_of_a_scheduler() {
        assert_eq!(Engine::of("local").unwrap(), Engine::Local);
        let address = "h:50050".parse().unwrap();
        for text in ["ballista://h:50050", "ballista://h:50050/"] {
            let Engine::Ballista(found) = Engine::of(text).unwrap() else {
                panic!("{text}");
            };
            assert_eq!(found, address);
        }
        for text in [
            "",
            "Local",
            "ballista",
            "ballista://",
            "ballista://h",
            "spark://h:1",
        ] {
            let error = Engine::of(text).unwrap_err().to_string();
            assert!(error.contains("write"), "{error}");
        }
    }
}
