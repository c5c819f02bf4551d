//! The client: runs tasks on the executors of a scheduler. Every wait has a limit.

mod ready;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ballista_core::client::BallistaClient;
use ballista_core::serde::protobuf::execute_query_failure_result::Failure;
use ballista_core::serde::protobuf::execute_query_params::Query;
use ballista_core::serde::protobuf::execute_query_result;
use ballista_core::serde::protobuf::job_status::Status as JobStatus;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use ballista_core::serde::protobuf::{
    CancelJobParams, CleanJobDataParams, ExecuteQueryParams, GetJobStatusParams, PartitionLocation,
    RemoveSessionParams,
};
use ballista_core::version::insert_version_header;
use futures::{StreamExt, TryStreamExt};
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use uuid::Uuid;

use self::ready::Readiness;
use crate::error::error_chain;
use crate::plan::{append_response, encode};
use crate::{Address, Error, MESSAGE_BYTES_MAX, Result};

/// The maximum number of tries of a task.
const TRIES_MAX: u32 = 4;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const CALL_TIMEOUT: Duration = Duration::from_secs(20);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// The time to wait for a scheduler that does not answer; it may be restarting.
const SCHEDULER_WAIT_MAX: Duration = Duration::from_secs(30);
/// The time to wait for an executor.
const EXECUTOR_WAIT_MAX: Duration = Duration::from_secs(30);
/// The time after which an unknown job counts as lost: a restarted scheduler does not know earlier
/// jobs.
const UNKNOWN_JOB_MAX: Duration = Duration::from_secs(10);
const FETCH_TIMEOUT: Duration = Duration::from_secs(60);
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);
const CONCURRENT_CANCELS_MAX: usize = 16;
/// The interval between status requests, which grows from the minimum to the maximum.
const POLL_INTERVAL_MIN: Duration = Duration::from_millis(10);
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(200);
/// The pause before another try of a task, multiplied by the number of tries.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// A scheduler with its executors.
pub struct Cluster {
    address: Address,
    scheduler: SchedulerGrpcClient<Channel>,
    /// Fetches responses.
    executor_client: OnceCell<BallistaClient>,
    session: String,
    /// The maximum duration of one try.
    try_max: Duration,
    readiness: Readiness,
    /// The running jobs.
    running_jobs: Mutex<BTreeSet<String>>,
}

/// The reason why one try of a task failed.
#[derive(Debug)]
enum TryError {
    /// Another try may succeed.
    Lost(String),
    /// Another try would fail, too.
    Final(Error),
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Cluster {
    /// The maximum number of concurrent tasks. It exceeds any useful number of executors, and
    /// waiting tasks are cheap.
    pub const CONCURRENT_TASKS_MAX: usize = 128;

    /// Connects to a scheduler and waits for its first executor. A task that does not end within
    /// `try_max` is cancelled and submitted again, because the scheduler may not have received the
    /// executor's response.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::NoExecutor`].
    pub async fn connect(
        address: Address,
        try_max: Duration,
        stop: &CancellationToken,
    ) -> Result<Self> {
        let unreachable = |reason: String| Error::Unreachable {
            address: address.clone(),
            reason,
        };
        let endpoint = Endpoint::from_shared(address.url())
            .map_err(|error| unreachable(error.to_string()))?
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(CALL_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(CALL_TIMEOUT)
            .keep_alive_while_idle(true);
        let readiness = Readiness::new(address.clone(), EXECUTOR_WAIT_MAX)?;
        readiness.wait(stop).await?;
        let channel = endpoint.connect().await;
        let channel =
            channel.map_err(|error| unreachable(error_chain(&error.to_string(), &error)))?;
        let bytes_max = MESSAGE_BYTES_MAX as usize;
        Ok(Self {
            scheduler: SchedulerGrpcClient::new(channel)
                .max_encoding_message_size(bytes_max)
                .max_decoding_message_size(bytes_max),
            executor_client: OnceCell::new(),
            session: Uuid::new_v4().to_string(),
            try_max,
            readiness,
            running_jobs: Mutex::default(),
            address,
        })
    }

    /// Runs a task and returns its response. Cancels the task if `stop` is cancelled.
    ///
    /// # Errors
    /// All tries failed, the scheduler rejected the task, or the call was stopped.
    pub async fn run_task(&self, task: &str, stop: &CancellationToken) -> Result<String> {
        let refused = |reason: String| Error::Refused {
            address: self.address.clone(),
            reason,
        };
        let plan = encode(task).map_err(|error| refused(error.to_string()))?;
        let mut tries = 1;
        loop {
            let reason = match self.run_once(&plan, stop).await {
                Ok(response) => return Ok(response),
                Err(TryError::Final(error)) => return Err(error),
                Err(TryError::Lost(reason)) => reason,
            };
            if tries == TRIES_MAX {
                let address = self.address.clone();
                return Err(Error::Lost {
                    address,
                    tries,
                    reason,
                });
            }
            tracing::warn!(
                tries,
                reason,
                "a try of a task failed; the task is submitted again"
            );
            tokio::select! {
                () = sleep(RETRY_PAUSE * tries) => {}
                () = stop.cancelled() => return Err(Error::Stopped),
            }
            tries += 1;
        }
    }

    /// Cancels all running tasks and removes the session from the scheduler.
    pub async fn cancel_all(&self) {
        let jobs: Vec<String> = self.lock_running_jobs().iter().cloned().collect();
        let cancel_jobs = async {
            let cancellations = jobs.into_iter().map(|job_id| self.cancel(job_id));
            futures::stream::iter(cancellations)
                .buffer_unordered(CONCURRENT_CANCELS_MAX)
                .collect::<()>()
                .await;
            let session_id = self.session.clone();
            let params = RemoveSessionParams { session_id };
            if let Err(error) = self.scheduler.clone().remove_session(params).await {
                tracing::debug!(%error, "a session was not removed");
            }
        };
        if timeout(CANCEL_TIMEOUT, cancel_jobs).await.is_err() {
            tracing::warn!(address = %self.address, "the scheduler did not answer the cancellation of tasks");
        }
    }

    async fn run_once(&self, plan: &[u8], stop: &CancellationToken) -> Result<String, TryError> {
        let submitting = self.submit(plan);
        tokio::pin!(submitting);
        let job = tokio::select! {
            job = &mut submitting => job?,
            () = stop.cancelled() => {
                // An accepted job can only be cancelled by its id.
                if let Ok(Ok(job)) = timeout(CANCEL_TIMEOUT, submitting).await {
                    self.cancel_soon(job).await;
                }
                return Err(TryError::Final(Error::Stopped));
            }
        };
        self.lock_running_jobs().insert(job.clone());
        let response = tokio::select! {
            response = self.wait_for_response(&job) => response,
            () = stop.cancelled() => Err(TryError::Final(Error::Stopped)),
            () = sleep(self.try_max) => {
                let seconds = self.try_max.as_secs();
                Err(TryError::Lost(format!("it did not end within {seconds} s (batch.task_seconds_max)")))
            }
        };
        match &response {
            Ok(_) => {
                let params = CleanJobDataParams {
                    job_id: job.clone(),
                    ..CleanJobDataParams::default()
                };
                if let Err(error) = self.scheduler.clone().clean_job_data(params).await {
                    tracing::debug!(%error, "a response was not removed from its executor");
                }
            }
            Err(_) => {
                // An executor that still runs the task must not continue in vain.
                self.cancel_soon(job.clone()).await;
            }
        }
        self.lock_running_jobs().remove(&job);
        response
    }

    /// Submits a plan to the scheduler and returns the id of its job.
    async fn submit(&self, plan: &[u8]) -> Result<String, TryError> {
        let mut outage = Outage::new(&self.address);
        loop {
            let mut request = tonic::Request::new(ExecuteQueryParams {
                query: Some(Query::PhysicalPlan(plan.to_vec())),
                settings: Vec::new(),
                session_id: self.session.clone(),
                operation_id: Uuid::new_v4().to_string(),
            });
            insert_version_header(request.metadata_mut());
            let refused = |reason: String| {
                let address = self.address.clone();
                TryError::Final(Error::Refused { address, reason })
            };
            match self.scheduler.clone().execute_query(request).await {
                Ok(response) => match response.into_inner().result {
                    Some(execute_query_result::Result::Success(job)) => return Ok(job.job_id),
                    Some(execute_query_result::Result::Failure(failure)) => {
                        return Err(refused(
                            failure.failure.map_or_else(String::new, rejection_reason),
                        ));
                    }
                    None => return Err(refused("it gave no reason".to_owned())),
                },
                Err(status) => match status.code() {
                    Code::FailedPrecondition | Code::InvalidArgument | Code::Unimplemented => {
                        return Err(refused(status.message().to_owned()));
                    }
                    _ => outage.wait(&status).await?,
                },
            }
        }
    }

    /// Waits for the end of a job and returns its response.
    async fn wait_for_response(&self, job: &str) -> Result<String, TryError> {
        let mut outage = Outage::new(&self.address);
        let mut interval = POLL_INTERVAL_MIN;
        let mut unknown_since: Option<Instant> = None;
        loop {
            let job_id = job.to_owned();
            let params = GetJobStatusParams { job_id };
            let response = match self.scheduler.clone().get_job_status(params).await {
                Ok(response) => response.into_inner(),
                Err(status) => {
                    outage.wait(&status).await?;
                    continue;
                }
            };
            outage = Outage::new(&self.address);
            match response.status.and_then(|status| status.status) {
                Some(JobStatus::Successful(job)) => {
                    return self.fetch_response(job.partition_location).await;
                }
                Some(JobStatus::Failed(job)) => return Err(TryError::Lost(job.error)),
                Some(_) => unknown_since = None,
                None => {
                    let since = *unknown_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > UNKNOWN_JOB_MAX {
                        let reason =
                            "the scheduler no longer knows the job; it was probably restarted";
                        return Err(TryError::Lost(reason.to_owned()));
                    }
                }
            }
            self.readiness.check().await.map_err(TryError::Final)?;
            sleep(interval).await;
            interval = (interval * 2).min(POLL_INTERVAL_MAX);
        }
    }

    /// Fetches the response from an executor.
    async fn fetch_response(&self, locations: Vec<PartitionLocation>) -> Result<String, TryError> {
        let lost = |reason: String| TryError::Lost(format!("cannot fetch its response: {reason}"));
        let fetched = async {
            let mut response = Vec::new();
            for location in locations {
                self.fetch(location, &mut response).await.map_err(lost)?;
            }
            Ok::<_, TryError>(response)
        };
        let response = timeout(FETCH_TIMEOUT, fetched).await;
        let response = response.map_err(|_| lost("the executor does not send it".to_owned()))??;
        String::from_utf8(response).map_err(|error| lost(error.to_string()))
    }

    async fn fetch(
        &self,
        location: PartitionLocation,
        response: &mut Vec<u8>,
    ) -> Result<(), String> {
        let layout = location.layout();
        let (Some(executor), Some(partition)) = (location.executor_meta, location.partition_id)
        else {
            return Err("the scheduler does not name its location".to_owned());
        };
        let port = u16::try_from(executor.port).map_err(|error| error.to_string())?;
        let partition = partition.into();
        let mut client = self.executor_client().await?.clone();
        let rows = client.fetch_partition_proxied(
            &executor.id,
            &partition,
            location.file_id,
            layout,
            &executor.host,
            port,
            true,
        );
        let mut rows = rows.await.map_err(|error| error.to_string())?;
        while let Some(batch) = rows.try_next().await.map_err(|error| error.to_string())? {
            if !append_response(response, &batch) {
                return Err("it is not the response to a task".to_owned());
            }
        }
        Ok(())
    }

    /// Returns the client of the executors. It connects through the scheduler.
    async fn executor_client(&self) -> Result<&BallistaClient, String> {
        let (host, port) = (self.address.host.as_str(), self.address.port);
        let bytes_max = MESSAGE_BYTES_MAX as usize;
        let connecting = || BallistaClient::try_new(host, port, bytes_max, false, None, 1, 0, 0, 0);
        let client = self.executor_client.get_or_try_init(connecting).await;
        client.map_err(|error| error.to_string())
    }

    /// Cancels a job, with a short timeout.
    async fn cancel_soon(&self, job: String) {
        let cancel = self.cancel(job.clone());
        if timeout(CANCEL_TIMEOUT, cancel).await.is_err() {
            tracing::debug!(
                job,
                "the scheduler did not answer the cancellation of a task"
            );
        }
    }

    async fn cancel(&self, job_id: String) {
        let params = CancelJobParams { job_id };
        if let Err(error) = self.scheduler.clone().cancel_job(params).await {
            tracing::debug!(%error, "a task was not cancelled");
        }
    }

    fn lock_running_jobs(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.running_jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the reason why the scheduler rejected a plan.
fn rejection_reason(failure: Failure) -> String {
    match failure {
        Failure::SessionNotFound(reason)
        | Failure::PlanParsingFailure(reason)
        | Failure::SqlParsingFailure(reason) => reason,
    }
}

/// An outage of the scheduler.
struct Outage<'a> {
    address: &'a Address,
    since: Option<Instant>,
}

impl<'a> Outage<'a> {
    const fn new(address: &'a Address) -> Self {
        Self {
            address,
            since: None,
        }
    }

    /// Waits for a moment. Fails if the outage has lasted too long.
    async fn wait(&mut self, status: &tonic::Status) -> Result<(), TryError> {
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() > SCHEDULER_WAIT_MAX {
            let (address, reason) = (self.address.clone(), error_chain(status.message(), status));
            return Err(TryError::Final(match status.code() {
                Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown => {
                    Error::Unreachable { address, reason }
                }
                // The scheduler answers, but keeps refusing.
                code => Error::Refused {
                    address,
                    reason: format!("{reason} ({code:?})"),
                },
            }));
        }
        sleep(RETRY_PAUSE).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use async_trait::async_trait;
    use tokio::net::TcpListener;
    use tokio::task::JoinSet;

    use super::*;
    use crate::{Executor, ExecutorOptions, SchedulerOptions, TaskRunner, run_scheduler};

    /// A runner that never responds to the first task, as if the response were lost.
    #[derive(Debug, Default)]
    struct Silent(AtomicU32);

    #[async_trait]
    impl TaskRunner for Silent {
        async fn run_task(&self, task: &str) -> String {
            if self.0.fetch_add(1, Ordering::Relaxed) == 0 {
                std::future::pending::<()>().await;
            }
            format!("{task} is done")
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_try_that_never_ends_is_followed_by_another() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let scheduler: Address = address.to_string().parse().expect("an address");
        let folder = std::env::temp_dir().join(format!("backstitch-scale-{}", Uuid::new_v4()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let stop = CancellationToken::new();
        let mut processes = JoinSet::new();
        let options = SchedulerOptions {
            listener,
            host: address.ip().to_string(),
            executor_timeout_seconds: 20,
        };
        processes.spawn(run_scheduler(options, stop.clone()));
        let executor = Executor::new(ExecutorOptions {
            scheduler: scheduler.clone(),
            listen: "127.0.0.1:0".parse().expect("an address"),
            threads: 2,
            folder: folder.clone(),
        });
        let runner = Arc::new(Silent::default());
        let running = executor.expect("ports").run(Arc::clone(&runner) as _, stop);
        processes.spawn(running);
        let stop = CancellationToken::new();
        let try_max = Duration::from_secs(2);
        let deadline = Instant::now() + Duration::from_secs(60);
        let cluster = loop {
            match Cluster::connect(scheduler.clone(), try_max, &stop).await {
                Err(Error::Unreachable { .. }) if Instant::now() < deadline => {
                    sleep(RETRY_PAUSE).await
                }
                connected => break connected.expect("a scheduler"),
            }
        };
        let response = cluster.run_task("it", &stop).await;
        assert_eq!(response.expect("a response"), "it is done");
        assert_eq!(runner.0.load(Ordering::Relaxed), 2);
        processes.shutdown().await;
        std::fs::remove_dir_all(&folder).expect("its folder");
    }
}
