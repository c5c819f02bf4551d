//! The metrics of this process: their descriptions, their recorder and their HTTP endpoint.

use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Context;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use schemas::source::Source;
use serving::MetricsText;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::failure::usage_error;

/// Interval of the recorder's maintenance.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);
/// Upper bounds of the duration histograms' buckets, in seconds.
const DURATION_BUCKETS_S: [f64; 13] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 30.0,
];

/// Counters: name and help text on each line.
const COUNTERS: &str = "\
backstitch_batch_drifted_events_total Events whose live count differed from a batch run, by cause
backstitch_batch_rows_written_total Changed rows that batch runs of this process wrote
backstitch_batch_runs_total Published batch runs of this process, by source
backstitch_http_connections_closed_total Connections closed by the server: idle ones (quiet), and new ones over the limit of their address (room)
backstitch_http_requests_total HTTP requests of the API by method, route and status, without pages
backstitch_kafka_client_errors_total Errors that the Kafka client reported and recovered from
backstitch_kafka_consumers_opened_total Kafka consumers created; more than one per partition means reconnects
backstitch_kafka_partitions_assigned_total Partitions assigned to this process
backstitch_kafka_queue_full_total Times that a record waited because the send queue of the Kafka client was full
backstitch_pages_reads_total API requests that pages made within this process, by method, route and status
backstitch_pages_requests_total HTTP requests of pages, by method, route and status
backstitch_reconcile_alert_failures_total Failed attempts to deliver a reconciliation alert
backstitch_reconcile_alerts_delivered_total Delivered reconciliation alerts, by channel
backstitch_reconcile_alerts_given_up_total Reconciliation alerts that could not be delivered
backstitch_reconcile_alerts_total Alerts of scheduled reconciliations
backstitch_reconcile_comparisons_total Comparisons of served with expected values, by view and outcome
backstitch_serving_answers_total Answers by provenance: batch, realtime or merged
backstitch_serving_board_cache_hits_total Board requests answered by the Redis cache
backstitch_serving_board_cache_misses_total Board requests that missed the Redis cache
backstitch_serving_cached_rows_total Reads of batch rows, by memory cache hit or miss
backstitch_serving_joined_reads_total Requests that shared the read of an identical concurrent request
backstitch_serving_kept_answers_total Stale answers served because a store did not respond
backstitch_serving_not_whole_total Requests that found incomplete live state
backstitch_serving_read_bytes_total Bytes read for answers, by store
backstitch_speed_board_evictions_total Boards evicted from the Redis cache
backstitch_ingest_dead_letters_total Rejected lines written to the dead-letter log, by source
backstitch_speed_board_fills_total Boards loaded into the Redis cache
backstitch_speed_cached_boards_wrong_total Cached boards dropped because they failed verification
backstitch_speed_dead_letters_total Rejected records written to the dead-letter log, by source
backstitch_speed_duplicates_total Duplicate events, by source
backstitch_speed_events_total Counted events, by source
backstitch_speed_forwarded_total Misrouted notifications forwarded to their partition
backstitch_speed_heals_total Rebuilds of the live state of a partition
backstitch_speed_micro_batches_total Micro-batches processed, by source
backstitch_speed_notice_failures_total Failed attempts to deliver a capacity notice
backstitch_speed_notices_given_up_total Capacity notices that could not be delivered
backstitch_speed_notices_total Delivered capacity notices, by channel
backstitch_speed_recount_errors_total Failed recounts of applications
backstitch_speed_recount_noops_total Recounts of applications that changed nothing
backstitch_speed_recounts_total Recounts of applications
backstitch_speed_refusals_total Micro-batches rejected by live state because another worker had advanced the checkpoint";

/// Gauges: name and help text on each line.
const GAUGES: &str = "\
backstitch_batch_drift_events Events whose live count differed from the last run of this process, by source
backstitch_batch_seconds Duration of the last batch run of this process, by source
backstitch_batch_stage_seconds Duration of each stage of the last batch run of this process
backstitch_build_info Always 1; the version is a label
backstitch_kafka_lag_records Records of a partition that a reader of this process has not read yet
backstitch_reconcile_alerts_waiting Reconciliation alerts waiting for delivery
backstitch_reconcile_last_seconds Unix time of the last comparison of a view
backstitch_reconcile_mismatches Differing keys in the last comparison of a view, by cause
backstitch_reconcile_schedule_last_seconds Unix time of the last scheduled reconciliation
backstitch_reconcile_schedule_outcome 1 for the outcome of the last scheduled reconciliation
backstitch_source_differing_keys Unrepaired differing keys in the newest comparison of a view, as seen by the API
backstitch_source_drift_events Events whose live count differed from the newest complete run of a source, as seen by the API
backstitch_source_lag_events Records of a log partition not counted live yet, as seen by the API
backstitch_source_last_run_seconds Unix time at which the newest batch run of a source completed, as seen by the API
backstitch_source_next_offset Next offset of the live state of a log partition, as seen by the API
backstitch_source_replaying 1 while the rebuilt live state of a partition is catching up, as seen by the API
backstitch_source_seen_seconds Unix time at which the API last read the progress of a source
backstitch_speed_cached_boards Boards in the Redis cache, by partition state
backstitch_speed_cached_boards_bytes Size of the boards in the Redis cache, in bytes
backstitch_speed_lag_events Records of a partition that this process has not counted yet
backstitch_speed_notices_waiting Capacity notices waiting for delivery
backstitch_speed_outbox_entries Achievements and board changes waiting for publication
backstitch_speed_outbox_notifications Row changes waiting for publication to the log";

/// Histograms: name and help text on each line.
const HISTOGRAMS: &str = "\
backstitch_http_request_duration_seconds Duration of HTTP requests of the API, by method and route
backstitch_pages_read_duration_seconds Duration of API requests that pages make within this process, by method and route
backstitch_pages_request_duration_seconds Duration of HTTP requests of pages, by method and route
backstitch_speed_recount_handler_seconds Duration of recounts of applications";

/// Rare counters with the label `source`. They start at 0, so that an alert sees their first
/// increase.
const ZEROED_COUNTERS_BY_SOURCE: &[&str] = &[
    "backstitch_ingest_dead_letters_total",
    "backstitch_speed_dead_letters_total",
];

/// Rare counters without labels.
const ZEROED_COUNTERS: &[&str] = &[
    "backstitch_reconcile_alerts_given_up_total",
    "backstitch_speed_notices_given_up_total",
];

/// Parses names and help texts of a table.
fn parse_table(table: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    table.lines().filter_map(|line| line.split_once(' '))
}

static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();

/// Installs the recorder of this process, or returns the installed one.
///
/// # Errors
/// Another recorder is installed.
pub(crate) fn install_recorder() -> anyhow::Result<PrometheusHandle> {
    if let Some(handle) = RECORDER.get() {
        return Ok(handle.clone());
    }
    let mut builder = PrometheusBuilder::new();
    for (name, _) in parse_table(HISTOGRAMS) {
        builder =
            builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), &DURATION_BUCKETS_S)?;
    }
    let handle = builder.install_recorder()?;
    for (name, help) in parse_table(COUNTERS) {
        metrics::describe_counter!(name, help);
    }
    for (name, help) in parse_table(GAUGES) {
        metrics::describe_gauge!(name, help);
    }
    for (name, help) in parse_table(HISTOGRAMS) {
        metrics::describe_histogram!(name, metrics::Unit::Seconds, help);
    }
    // An alert on an increase misses a counter that appears with its first event.
    for name in ZEROED_COUNTERS {
        metrics::counter!(*name).increment(0);
    }
    for name in ZEROED_COUNTERS_BY_SOURCE {
        for source in Source::ALL {
            metrics::counter!(*name, "source" => source.name()).increment(0);
        }
    }
    metrics::gauge!("backstitch_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    Ok(RECORDER.get_or_init(|| handle).clone())
}

/// Creates the renderer of `/metrics`, including the resources of the process.
pub(crate) fn create_metrics_text(handle: PrometheusHandle) -> MetricsText {
    let process = metrics_process::Collector::new("backstitch_");
    process.describe();
    MetricsText::new(move || {
        process.collect();
        handle.render()
    })
}

/// Maintains the recorder until `stop`.
pub(crate) async fn run_upkeep(handle: PrometheusHandle, stop: CancellationToken) {
    while crate::shutdown::sleep_unless_cancelled(UPKEEP_INTERVAL, &stop).await {
        handle.run_upkeep();
    }
}

/// Serves `/metrics` and `/livez` on a separate address, without authentication, until `stop`.
///
/// # Errors
/// An invalid address.
pub(crate) async fn serve_metrics(
    address: &str,
    stop: CancellationToken,
) -> anyhow::Result<impl Future<Output = ()> + use<>> {
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|error| {
        usage_error(format!(
            "telemetry.metrics_listen {address:?}: {error}; expected a free address and port, such as 127.0.0.1:9464"
        ))
    })?;
    let handle = install_recorder().context("starting the metrics recorder")?;
    let text = create_metrics_text(handle.clone());
    Ok(async move {
        let server = serving::monitor(listener, text, stop.clone());
        let (result, ()) = tokio::join!(server, run_upkeep(handle, stop));
        if let Err(error) = result {
            tracing::error!(%error, "the metrics endpoint stopped");
        }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn counters_and_only_counters_end_in_total() {
        let metrics = || {
            [COUNTERS, GAUGES, HISTOGRAMS]
                .into_iter()
                .flat_map(parse_table)
        };
        let names: BTreeSet<&str> = metrics().map(|(name, _)| name).collect();
        let lines = [COUNTERS, GAUGES, HISTOGRAMS].map(|table| table.lines().count());
        assert_eq!(names.len(), lines.iter().sum::<usize>());
        for (name, help) in metrics() {
            assert!(
                name.starts_with("backstitch_") && !help.is_empty(),
                "{name}"
            );
        }
        assert!(parse_table(COUNTERS).all(|(name, _)| name.ends_with("_total")));
        assert!(parse_table(GAUGES).all(|(name, _)| !name.ends_with("_total")));
    }
}
