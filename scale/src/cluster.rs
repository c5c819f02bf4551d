//! The client: has errands carried out by the executors of a scheduler, and waits for nobody without end.

mod ready;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ballista_core::client::BallistaClient;
use ballista_core::serde::protobuf::execute_query_failure_result::Failure;
use ballista_core::serde::protobuf::execute_query_params::Query;
use ballista_core::serde::protobuf::execute_query_result;
use ballista_core::serde::protobuf::job_status::Status as State;
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
use crate::plan::{encoded, join};
use crate::{Address, Error, MESSAGE_BYTES_MAX, Result};

/// How often an errand is sent out whose executor is lost.
const TIMES_MAX: u32 = 4;
const CONNECT_FOR: Duration = Duration::from_secs(5);
const CALL_FOR: Duration = Duration::from_secs(20);
const ALIVE_EVERY: Duration = Duration::from_secs(5);
/// A scheduler that does not answer may be started again meanwhile.
const AWAY_MAX: Duration = Duration::from_secs(30);
/// How long an executor is waited for.
const NO_EXECUTOR_MAX: Duration = Duration::from_secs(30);
/// A scheduler that was started again does not know what it was sent before.
const UNKNOWN_MAX: Duration = Duration::from_secs(10);
const FETCH_FOR: Duration = Duration::from_secs(60);
const CALL_OFF_FOR: Duration = Duration::from_secs(5);
const CALLED_OFF_AT_ONCE: usize = 16;
/// How often it is asked whether an errand has ended: soon at first.
const LOOK_FIRST: Duration = Duration::from_millis(10);
const LOOK_LAST: Duration = Duration::from_millis(200);
/// The pause before an errand is sent out again, which grows.
const PAUSE: Duration = Duration::from_millis(500);

/// A scheduler with its executors.
pub struct Cluster {
    address: Address,
    scheduler: SchedulerGrpcClient<Channel>,
    /// Fetches answers.
    answers: OnceCell<BallistaClient>,
    session: String,
    /// How long one try of an errand may take.
    try_max: Duration,
    readiness: Readiness,
    /// The jobs that are under way.
    open: Mutex<BTreeSet<String>>,
}

/// Why one try of an errand gave no answer.
#[derive(Debug)]
enum Broken {
    /// Another try may give one.
    Lost(String),
    /// None will.
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
    /// How many errands may be under way at the same time: as many as any number of executors that pays, and what
    /// waits costs little.
    pub const AT_ONCE: usize = 128;

    /// The executors of a scheduler, of which one is waited for. An errand that has no end after `try_max` is called
    /// off and sent out again: what an executor said of it may never have come to the scheduler.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::NoExecutor`].
    pub async fn connect(
        address: Address,
        try_max: Duration,
        stop: &CancellationToken,
    ) -> Result<Self> {
        let unreachable = |why: String| Error::Unreachable {
            address: address.clone(),
            why,
        };
        let endpoint = Endpoint::from_shared(address.url())
            .map_err(|error| unreachable(error.to_string()))?
            .connect_timeout(CONNECT_FOR)
            .timeout(CALL_FOR)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(ALIVE_EVERY)
            .keep_alive_timeout(CALL_FOR)
            .keep_alive_while_idle(true);
        let readiness = Readiness::new(address.clone(), NO_EXECUTOR_MAX)?;
        readiness.wait(stop).await?;
        let channel = endpoint.connect().await;
        let channel = channel.map_err(|error| unreachable(told(&error.to_string(), &error)))?;
        let bytes_max = MESSAGE_BYTES_MAX as usize;
        Ok(Self {
            scheduler: SchedulerGrpcClient::new(channel)
                .max_encoding_message_size(bytes_max)
                .max_decoding_message_size(bytes_max),
            answers: OnceCell::new(),
            session: Uuid::new_v4().to_string(),
            try_max,
            readiness,
            open: Mutex::default(),
            address,
        })
    }

    /// Has an errand carried out, and answers what its worker said. Told to stop, it calls the errand off.
    ///
    /// # Errors
    /// Any, if the errand could not be brought to its end.
    pub async fn carry_out(&self, errand: &str, stop: &CancellationToken) -> Result<String> {
        let refused = |why: String| Error::Refused {
            address: self.address.clone(),
            why,
        };
        let plan = encoded(errand).map_err(|error| refused(error.to_string()))?;
        let mut times = 1;
        loop {
            let why = match self.once(&plan, stop).await {
                Ok(answer) => return Ok(answer),
                Err(Broken::Final(error)) => return Err(error),
                Err(Broken::Lost(why)) => why,
            };
            if times == TIMES_MAX {
                let address = self.address.clone();
                return Err(Error::Lost {
                    address,
                    times,
                    why,
                });
            }
            tracing::warn!(times, why, "a task was lost, and is sent out again");
            tokio::select! {
                () = sleep(PAUSE * times) => {}
                () = stop.cancelled() => return Err(Error::Stopped),
            }
            times += 1;
        }
    }

    /// Calls off what is still under way, and lets go of what the scheduler knows of this client.
    pub async fn call_off(&self) {
        let open: Vec<String> = self.open().iter().cloned().collect();
        let all = async {
            let cancelled = open.into_iter().map(|job_id| self.cancel(job_id));
            futures::stream::iter(cancelled)
                .buffer_unordered(CALLED_OFF_AT_ONCE)
                .collect::<()>()
                .await;
            let session_id = self.session.clone();
            let params = RemoveSessionParams { session_id };
            if let Err(error) = self.scheduler.clone().remove_session(params).await {
                tracing::debug!(%error, "a session stays");
            }
        };
        if timeout(CALL_OFF_FOR, all).await.is_err() {
            tracing::warn!(address = %self.address, "the scheduler did not answer when tasks were called off");
        }
    }

    async fn once(&self, plan: &[u8], stop: &CancellationToken) -> Result<String, Broken> {
        let submitting = self.submitted(plan);
        tokio::pin!(submitting);
        let job = tokio::select! {
            job = &mut submitting => job?,
            () = stop.cancelled() => {
                // One that the scheduler has taken can only be called off by its number.
                if let Ok(Ok(job)) = timeout(CALL_OFF_FOR, submitting).await {
                    self.cancel_soon(job).await;
                }
                return Err(Broken::Final(Error::Stopped));
            }
        };
        self.open().insert(job.clone());
        let answer = tokio::select! {
            answer = self.answered(&job) => answer,
            () = stop.cancelled() => Err(Broken::Final(Error::Stopped)),
            () = sleep(self.try_max) => {
                let seconds = self.try_max.as_secs();
                Err(Broken::Lost(format!("it had no end after {seconds} s (batch.task_seconds_max)")))
            }
        };
        match &answer {
            Ok(_) => {
                let params = CleanJobDataParams {
                    job_id: job.clone(),
                    ..CleanJobDataParams::default()
                };
                if let Err(error) = self.scheduler.clone().clean_job_data(params).await {
                    tracing::debug!(%error, "an answer stays on its executor for a while");
                }
            }
            Err(_) => {
                // Whoever is at it still must not go on for nothing.
                self.cancel_soon(job.clone()).await;
            }
        }
        self.open().remove(&job);
        answer
    }

    /// Sends a plan to the scheduler; the number of its job.
    async fn submitted(&self, plan: &[u8]) -> Result<String, Broken> {
        let mut away = Away::new(&self.address);
        loop {
            let mut request = tonic::Request::new(ExecuteQueryParams {
                query: Some(Query::PhysicalPlan(plan.to_vec())),
                settings: Vec::new(),
                session_id: self.session.clone(),
                operation_id: Uuid::new_v4().to_string(),
            });
            insert_version_header(request.metadata_mut());
            let refused = |why: String| {
                let address = self.address.clone();
                Broken::Final(Error::Refused { address, why })
            };
            match self.scheduler.clone().execute_query(request).await {
                Ok(answer) => match answer.into_inner().result {
                    Some(execute_query_result::Result::Success(taken)) => return Ok(taken.job_id),
                    Some(execute_query_result::Result::Failure(failure)) => {
                        return Err(refused(failure.failure.map_or_else(String::new, said)));
                    }
                    None => return Err(refused("it gave no reason".to_owned())),
                },
                Err(status) => match status.code() {
                    Code::FailedPrecondition | Code::InvalidArgument | Code::Unimplemented => {
                        return Err(refused(status.message().to_owned()));
                    }
                    _ => away.wait(&status).await?,
                },
            }
        }
    }

    /// Waits for the end of a job; its answer.
    async fn answered(&self, job: &str) -> Result<String, Broken> {
        let mut away = Away::new(&self.address);
        let mut look = LOOK_FIRST;
        let mut unknown_since: Option<Instant> = None;
        loop {
            let job_id = job.to_owned();
            let params = GetJobStatusParams { job_id };
            let answer = match self.scheduler.clone().get_job_status(params).await {
                Ok(answer) => answer.into_inner(),
                Err(status) => {
                    away.wait(&status).await?;
                    continue;
                }
            };
            away = Away::new(&self.address);
            match answer.status.and_then(|status| status.status) {
                Some(State::Successful(done)) => {
                    return self.fetched(done.partition_location).await;
                }
                Some(State::Failed(failed)) => return Err(Broken::Lost(failed.error)),
                Some(_) => unknown_since = None,
                None => {
                    let since = *unknown_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > UNKNOWN_MAX {
                        let why = "the scheduler does not know of it any more, as if it had been started again";
                        return Err(Broken::Lost(why.to_owned()));
                    }
                }
            }
            self.readiness.look().await.map_err(Broken::Final)?;
            sleep(look).await;
            look = (look * 2).min(LOOK_LAST);
        }
    }

    /// The answer that lies at an executor.
    async fn fetched(&self, places: Vec<PartitionLocation>) -> Result<String, Broken> {
        let lost = |why: String| Broken::Lost(format!("fetching its answer: {why}"));
        let fetched = async {
            let mut answer = Vec::new();
            for place in places {
                self.fetch(place, &mut answer).await.map_err(lost)?;
            }
            Ok::<_, Broken>(answer)
        };
        let answer = timeout(FETCH_FOR, fetched).await;
        let answer = answer.map_err(|_| lost("it does not come".to_owned()))??;
        String::from_utf8(answer).map_err(|error| lost(error.to_string()))
    }

    async fn fetch(&self, place: PartitionLocation, answer: &mut Vec<u8>) -> Result<(), String> {
        let layout = place.layout();
        let (Some(executor), Some(partition)) = (place.executor_meta, place.partition_id) else {
            return Err("the scheduler does not say where it is".to_owned());
        };
        let port = u16::try_from(executor.port).map_err(|error| error.to_string())?;
        let partition = partition.into();
        let mut client = self.answers().await?.clone();
        let rows = client.fetch_partition_proxied(
            &executor.id,
            &partition,
            place.file_id,
            layout,
            &executor.host,
            port,
            true,
        );
        let mut rows = rows.await.map_err(|error| error.to_string())?;
        while let Some(batch) = rows.try_next().await.map_err(|error| error.to_string())? {
            if !join(answer, &batch) {
                return Err("it is no answer to a task".to_owned());
            }
        }
        Ok(())
    }

    /// The way to the executors leads through the scheduler.
    async fn answers(&self) -> Result<&BallistaClient, String> {
        let (host, port) = (self.address.host.as_str(), self.address.port);
        let bytes_max = MESSAGE_BYTES_MAX as usize;
        let connecting = || BallistaClient::try_new(host, port, bytes_max, false, None, 1, 0, 0, 0);
        let client = self.answers.get_or_try_init(connecting).await;
        client.map_err(|error| error.to_string())
    }

    /// Calls a job off, and does not wait for long.
    async fn cancel_soon(&self, job: String) {
        let cancel = self.cancel(job.clone());
        if timeout(CALL_OFF_FOR, cancel).await.is_err() {
            tracing::debug!(
                job,
                "the scheduler did not answer when a task was called off"
            );
        }
    }

    async fn cancel(&self, job_id: String) {
        let params = CancelJobParams { job_id };
        if let Err(error) = self.scheduler.clone().cancel_job(params).await {
            tracing::debug!(%error, "a task was not called off");
        }
    }

    fn open(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the scheduler says of a plan that it does not take.
fn said(failure: Failure) -> String {
    match failure {
        Failure::SessionNotFound(said)
        | Failure::PlanParsingFailure(said)
        | Failure::SqlParsingFailure(said) => said,
    }
}

/// How long the scheduler has not answered.
struct Away<'a> {
    address: &'a Address,
    since: Option<Instant>,
}

impl<'a> Away<'a> {
    const fn new(address: &'a Address) -> Self {
        Self {
            address,
            since: None,
        }
    }

    /// Waits a moment, unless it has been away for too long.
    async fn wait(&mut self, status: &tonic::Status) -> Result<(), Broken> {
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() > AWAY_MAX {
            let (address, why) = (self.address.clone(), told(status.message(), status));
            return Err(Broken::Final(match status.code() {
                Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown => {
                    Error::Unreachable { address, why }
                }
                // Somebody answers, and goes on saying no.
                code => Error::Refused {
                    address,
                    why: format!("{why} ({code:?})"),
                },
            }));
        }
        sleep(PAUSE).await;
        Ok(())
    }
}

/// What is said of an error, with what caused it: the errors of clients say little themselves.
fn told(said: &str, error: &dyn std::error::Error) -> String {
    let mut text = said.to_owned();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use async_trait::async_trait;
    use tokio::net::TcpListener;
    use tokio::task::JoinSet;

    use super::*;
    use crate::{Executor, ExecutorOptions, SchedulerOptions, Worker, run_scheduler};

    /// Says nothing to the first errand, as one whose answer was lost on its way.
    #[derive(Debug, Default)]
    struct Silent(AtomicU32);

    #[async_trait]
    impl Worker for Silent {
        async fn carry_out(&self, errand: &str) -> String {
            if self.0.fetch_add(1, Ordering::Relaxed) == 0 {
                std::future::pending::<()>().await;
            }
            format!("{errand} is done")
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_try_without_an_end_is_followed_by_another() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("an address");
        let scheduler: Address = at.to_string().parse().expect("an address");
        let folder = std::env::temp_dir().join(format!("backstitch-scale-{}", Uuid::new_v4()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let stop = CancellationToken::new();
        let mut processes = JoinSet::new();
        let options = SchedulerOptions {
            listener,
            host: at.ip().to_string(),
            executor_timeout_seconds: 20,
        };
        processes.spawn(run_scheduler(options, stop.clone()));
        let executor = Executor::new(ExecutorOptions {
            scheduler: scheduler.clone(),
            listen: "127.0.0.1:0".parse().expect("an address"),
            threads: 2,
            folder: folder.clone(),
        });
        let worker = Arc::new(Silent::default());
        let running = executor.expect("ports").run(Arc::clone(&worker) as _, stop);
        processes.spawn(running);
        let stop = CancellationToken::new();
        let try_max = Duration::from_secs(2);
        let deadline = Instant::now() + Duration::from_secs(60);
        let cluster = loop {
            match Cluster::connect(scheduler.clone(), try_max, &stop).await {
                Err(Error::Unreachable { .. }) if Instant::now() < deadline => sleep(PAUSE).await,
                connected => break connected.expect("a scheduler"),
            }
        };
        let answer = cluster.carry_out("it", &stop).await;
        assert_eq!(answer.expect("an answer"), "it is done");
        assert_eq!(worker.0.load(Ordering::Relaxed), 2);
        processes.shutdown().await;
        std::fs::remove_dir_all(&folder).expect("its folder");
    }
}
