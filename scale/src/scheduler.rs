//! The scheduler: it knows the executors, gives them errands, and gives those of lost ones to others. What it knows is in
//! memory: one that is started again knows nothing, and whoever waits for an errand sends it once more.

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

/// How long an executor that ends has for what it is at.
const DRAIN_SECONDS: u64 = 30;
/// What of an errand is left where its client is gone goes after so long.
const LEFT_DATA_SECONDS: u64 = 60;
const LEFT_STATE_SECONDS: u64 = 120;

/// How a scheduler is to work.
#[derive(Debug)]
pub struct SchedulerOptions {
    /// Where it listens.
    pub listener: TcpListener,
    /// The host by which executors reach it.
    pub host: String,
    /// An executor that has not been heard of for so long is lost.
    pub executor_timeout_seconds: u64,
}

/// Schedules until it is told to stop.
///
/// # Errors
/// [`Error::Scheduler`] if it can't begin or go on.
pub async fn run_scheduler(options: SchedulerOptions, stop: CancellationToken) -> Result<()> {
    let failed = |error: &dyn fmt::Display| Error::Scheduler(error.to_string());
    let at = options.listener.local_addr().map_err(|e| failed(&e))?;
    let timeout = options.executor_timeout_seconds.max(1);
    let config = SchedulerConfig {
        bind_host: at.ip().to_string(),
        bind_port: at.port(),
        external_host: options.host,
        scheduling_policy: TaskSchedulingPolicy::PushStaged,
        task_distribution: TaskDistributionPolicy::RoundRobin,
        finished_job_data_clean_up_interval_seconds: LEFT_DATA_SECONDS,
        finished_job_state_clean_up_interval_seconds: LEFT_STATE_SECONDS,
        // Whoever waits for an errand then needs to reach the scheduler alone.
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
        .map_err(|e| failed(&e))?;
    let scheduler =
        create_scheduler::<LogicalPlanNode, PhysicalPlanNode>(cluster, Arc::new(config))
            .await
            .map_err(|e| failed(&e))?;
    let served = start_grpc_service_with_listener(options.listener, scheduler);
    tokio::select! {
        served = served => served.map_err(|e| failed(&e)),
        () = stop.cancelled() => Ok(()),
    }
}
