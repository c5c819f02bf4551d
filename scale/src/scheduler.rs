//! The scheduler: assigns tasks to executors, and reassigns the tasks of lost executors.
//!
//! Its state is in memory. After a restart, clients submit their tasks again.

use std::fmt;
use std::sync::Arc;

use ballista_core::config::TaskSchedulingPolicy;
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::{SchedulerConfig, TaskDistributionPolicy};
use ballista_scheduler::scheduler_process::{create_scheduler, start_grpc_service_with_listener};
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::plan::Codec;
use crate::{Error, MESSAGE_BYTES_MAX, Result};

/// The time that a stopping executor has for its running tasks.
const DRAIN_SECONDS: u64 = 30;
/// The time to live of results and of job state that no client removed.
const RESULT_TTL_SECONDS: u64 = 60;
const JOB_STATE_TTL_SECONDS: u64 = 120;

/// The options of a scheduler.
#[derive(Debug)]
pub struct SchedulerOptions {
    /// The listener of the scheduler.
    pub listener: TcpListener,
    /// The host name by which executors reach the scheduler.
    pub host: String,
    /// The time without a heartbeat after which an executor is lost.
    pub executor_timeout_seconds: u64,
}

/// Runs the scheduler until `stop` is cancelled.
///
/// # Errors
/// [`Error::Scheduler`] if it cannot start or continue.
pub async fn run_scheduler(options: SchedulerOptions, stop: CancellationToken) -> Result<()> {
    let failed = |error: &dyn fmt::Display| Error::Scheduler(error.to_string());
    let address = options
        .listener
        .local_addr()
        .map_err(|error| failed(&error))?;
    let timeout = options.executor_timeout_seconds.max(1);
    let config = SchedulerConfig {
        bind_host: address.ip().to_string(),
        bind_port: address.port(),
        external_host: options.host,
        scheduling_policy: TaskSchedulingPolicy::PushStaged,
        task_distribution: TaskDistributionPolicy::RoundRobin,
        finished_job_data_clean_up_interval_seconds: RESULT_TTL_SECONDS,
        finished_job_state_clean_up_interval_seconds: JOB_STATE_TTL_SECONDS,
        // Clients then only need to reach the scheduler.
        enable_embedded_flight_proxy: true,
        executor_termination_grace_period: DRAIN_SECONDS,
        executor_timeout_seconds: timeout,
        expire_dead_executor_interval_seconds: (timeout / 8).max(1),
        no_executors_grace_period_seconds: timeout,
        grpc_server_max_decoding_message_size: MESSAGE_BYTES_MAX,
        grpc_server_max_encoding_message_size: MESSAGE_BYTES_MAX,
        grpc_client_max_message_size: MESSAGE_BYTES_MAX,
        override_physical_codec: Some(Arc::new(Codec::default())),
        ..SchedulerConfig::default()
    };
    let cluster = BallistaCluster::new_from_config(&config)
        .await
        .map_err(|error| failed(&error))?;
    let scheduler =
        create_scheduler::<LogicalPlanNode, PhysicalPlanNode>(cluster, Arc::new(config))
            .await
            .map_err(|error| failed(&error))?;
    let served = start_grpc_service_with_listener(options.listener, scheduler);
    tokio::select! {
        served = served => served.map_err(|error| failed(&error)),
        () = stop.cancelled() => Ok(()),
    }
}
