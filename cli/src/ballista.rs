//! The executors of a Ballista scheduler, as the workers of a batch run.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use batch::{BatchOptions, Workers};
use scale::{Address, Cluster};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::executors::Executors;

/// The executors of a scheduler, for the batch layer.
#[derive(Debug)]
pub(crate) struct BallistaExecutors {
    address: Address,
    attempt_timeout: Duration,
    /// Connection of the current runs. Each group of runs opens a new one, so that a broken one is
    /// not reused.
    cluster: Mutex<Option<Arc<Cluster>>>,
}

impl BallistaExecutors {
    /// Executors that connect with the first task.
    pub(crate) fn new(address: Address, options: &BatchOptions) -> Self {
        Self {
            address,
            attempt_timeout: Duration::from_secs(options.task_seconds_max),
            cluster: Mutex::default(),
        }
    }

    /// Returns the connection, and opens one if there is none.
    async fn get_or_connect(&self, stop: &CancellationToken) -> scale::Result<Arc<Cluster>> {
        let mut cluster = self.cluster.lock().await;
        if let Some(cluster) = &*cluster {
            return Ok(Arc::clone(cluster));
        }
        let new_cluster =
            Cluster::connect(self.address.clone(), self.attempt_timeout, stop).await?;
        Ok(Arc::clone(cluster.insert(Arc::new(new_cluster))))
    }
}

#[async_trait]
impl Executors for BallistaExecutors {
    async fn connect(&self, stop: &CancellationToken) -> anyhow::Result<()> {
        self.get_or_connect(stop).await?;
        Ok(())
    }
}

#[async_trait]
impl Workers for BallistaExecutors {
    fn concurrency_max(&self) -> usize {
        Cluster::CONCURRENT_TASKS_MAX
    }

    async fn run_task(&self, task: &str, stop: &CancellationToken) -> batch::Result<String> {
        let result = match self.get_or_connect(stop).await {
            Ok(cluster) => cluster.run_task(task, stop).await,
            Err(error) => Err(error),
        };
        result.map_err(|error| match error {
            scale::Error::Stopped => batch::Error::Stopped,
            error => batch::Error::Workers(error.to_string()),
        })
    }

    async fn cancel(&self) {
        let cluster = self.cluster.lock().await.take();
        if let Some(cluster) = cluster {
            cluster.cancel_all().await;
        }
    }
}

/// A worker of the batch layer, for an executor.
#[derive(Debug)]
pub(crate) struct BatchWorker(pub(crate) batch::Worker);

#[async_trait]
impl scale::TaskRunner for BatchWorker {
    async fn run_task(&self, task: &str) -> String {
        self.0.run_task(task).await
    }
}
