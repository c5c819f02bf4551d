//! Tasks of the batch layer on other machines: what the batch layer asks of workers, and what Ballista asks of them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use batch::{BatchOptions, Workers};
use scale::{Address, Cluster};
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

    /// The workers, if they are elsewhere.
    ///
    /// # Errors
    /// A scheduler that can't be reached, or has no executor.
    pub(crate) async fn workers(
        &self,
        options: &BatchOptions,
        stop: &CancellationToken,
    ) -> anyhow::Result<Option<Arc<dyn Workers>>> {
        match self {
            Self::Local => Ok(None),
            Self::Ballista(address) => {
                let try_max = Duration::from_secs(options.task_seconds_max);
                let cluster = Cluster::connect(address.clone(), try_max, stop).await?;
                Ok(Some(Arc::new(Executors(cluster))))
            }
        }
    }
}

/// The executors of a scheduler, for the batch layer.
#[derive(Debug)]
struct Executors(Cluster);

#[async_trait]
impl Workers for Executors {
    fn at_once(&self) -> usize {
        self.0.at_once()
    }

    async fn carry_out(&self, errand: &str, stop: &CancellationToken) -> batch::Result<String> {
        let answer = self.0.carry_out(errand, stop).await;
        answer.map_err(|error| match error {
            scale::Error::Stopped => batch::Error::Stopped,
            error => batch::Error::Workers(error.to_string()),
        })
    }

    async fn call_off(&self) {
        self.0.call_off().await;
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
