//! What this process measures, for whoever watches it: what each number means, and where it can be read.

use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Context;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use schemas::source::Source;
use serving::MetricsText;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::failure::usage;

/// How often the recorder tidies up.
const UPKEEP: Duration = Duration::from_secs(5);
/// What durations are counted by, in seconds.
const SECONDS: [f64; 13] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 30.0,
];

/// What only rises.
const COUNTERS: &[(&str, &str)] = &[
    (
        "backstitch_batch_drifted_events_total",
        "Events that live state had counted otherwise than a batch run, by cause",
    ),
    (
        "backstitch_batch_rows_written_total",
        "Rows that batch runs of this process have written, since they changed",
    ),
    (
        "backstitch_batch_runs_total",
        "Batch runs of this process that came to their end, by source",
    ),
    (
        "backstitch_http_connections_closed_total",
        "Connections that the server closed: idle ones (quiet), and new ones of an address that has its share (room)",
    ),
    (
        "backstitch_http_requests_total",
        "Requests of the API over HTTP, by method, route and status; pages are counted apart",
    ),
    (
        "backstitch_kafka_client_errors_total",
        "Errors that the client of Kafka told of and got over",
    ),
    (
        "backstitch_kafka_consumers_opened_total",
        "Consumers of Kafka that were made; one a partition unless something goes wrong",
    ),
    (
        "backstitch_kafka_partitions_assigned_total",
        "Partitions that this process was given to count",
    ),
    (
        "backstitch_kafka_queue_full_total",
        "Times that records waited since what is to be sent to Kafka was too much",
    ),
    (
        "backstitch_pages_reads_total",
        "Requests of the API that pages made within this process, by method, route and status",
    ),
    (
        "backstitch_pages_requests_total",
        "Requests of pages over HTTP, by method, route and status",
    ),
    (
        "backstitch_reconcile_alert_failures_total",
        "Tries to deliver an alert of a reconciliation that failed",
    ),
    (
        "backstitch_reconcile_alerts_delivered_total",
        "Alerts of reconciliations that were delivered, by channel",
    ),
    (
        "backstitch_reconcile_alerts_given_up_total",
        "Alerts of reconciliations that could not be delivered at all",
    ),
    (
        "backstitch_reconcile_alerts_total",
        "Alerts of scheduled reconciliations",
    ),
    (
        "backstitch_reconcile_comparisons_total",
        "Comparisons of what is served with what is expected, by view and outcome",
    ),
    (
        "backstitch_serving_answers_total",
        "Answers, by the layers that they come from: batch, realtime or merged",
    ),
    (
        "backstitch_serving_board_cache_hits_total",
        "Questions about boards that the cache in Redis answered",
    ),
    (
        "backstitch_serving_board_cache_misses_total",
        "Questions about boards that were not in the cache",
    ),
    (
        "backstitch_serving_cached_rows_total",
        "Reads of batch rows, by whether they were in memory",
    ),
    (
        "backstitch_serving_joined_reads_total",
        "Questions that were answered by a read of another one who asked the same",
    ),
    (
        "backstitch_serving_kept_answers_total",
        "Answers of before that were given again, since a store did not answer",
    ),
    (
        "backstitch_serving_not_whole_total",
        "Questions that found live state not whole",
    ),
    (
        "backstitch_serving_read_bytes_total",
        "Bytes that answers were made of, by where they were read",
    ),
    (
        "backstitch_speed_board_evictions_total",
        "Boards that left the cache in Redis",
    ),
    (
        "backstitch_ingest_dead_letters_total",
        "Lines that could not be taken and were set aside, by source",
    ),
    (
        "backstitch_speed_board_fills_total",
        "Boards that were brought into the cache in Redis",
    ),
    (
        "backstitch_speed_cached_boards_wrong_total",
        "Cached boards that were not as they should be, and were dropped",
    ),
    (
        "backstitch_speed_dead_letters_total",
        "Records that could not be counted and were set aside, by source",
    ),
    (
        "backstitch_speed_duplicates_total",
        "Events that had been counted before, by source",
    ),
    (
        "backstitch_speed_events_total",
        "Events that were counted, by source",
    ),
    (
        "backstitch_speed_forwarded_total",
        "Notifications that were sent on to the partition that they belong to",
    ),
    (
        "backstitch_speed_heals_total",
        "Times that live state of a partition was begun anew",
    ),
    (
        "backstitch_speed_micro_batches_total",
        "Micro-batches that were counted, by source",
    ),
    (
        "backstitch_speed_notice_failures_total",
        "Tries to deliver a notice of a capacity that failed",
    ),
    (
        "backstitch_speed_notices_given_up_total",
        "Notices of capacities that could not be delivered at all",
    ),
    (
        "backstitch_speed_notices_total",
        "Notices of capacities that were delivered, by channel",
    ),
    (
        "backstitch_speed_recount_errors_total",
        "Recounts of applications that failed",
    ),
    (
        "backstitch_speed_recount_noops_total",
        "Recounts of applications that changed nothing",
    ),
    (
        "backstitch_speed_recounts_total",
        "Recounts of applications",
    ),
    (
        "backstitch_speed_refusals_total",
        "Micro-batches that live state refused, since another worker had counted",
    ),
];

/// What rises and falls.
const GAUGES: &[(&str, &str)] = &[
    (
        "backstitch_batch_drift_events",
        "Events that live state had counted otherwise than the last run of this process, by source",
    ),
    (
        "backstitch_batch_seconds",
        "How long the last batch run of this process took, by source",
    ),
    (
        "backstitch_batch_stage_seconds",
        "How long each of its stages took",
    ),
    ("backstitch_build_info", "1, with the version as a label"),
    (
        "backstitch_kafka_lag_records",
        "Records of a partition that a reader of this process has still to read",
    ),
    (
        "backstitch_reconcile_alerts_waiting",
        "Alerts of reconciliations that wait to be delivered",
    ),
    (
        "backstitch_reconcile_last_seconds",
        "When a view was compared last, in seconds since 1970",
    ),
    (
        "backstitch_reconcile_mismatches",
        "Keys that differed in the last comparison of a view, by cause",
    ),
    (
        "backstitch_reconcile_schedule_last_seconds",
        "When a scheduled reconciliation was carried out last, in seconds since 1970",
    ),
    (
        "backstitch_reconcile_schedule_outcome",
        "1 for what came of a scheduled reconciliation the last time",
    ),
    (
        "backstitch_source_differing_keys",
        "Keys that differed in the newest comparison of a view and were not put right, as the API sees it",
    ),
    (
        "backstitch_source_drift_events",
        "Events that live state had counted otherwise than the newest complete run of a source, as the API sees it",
    ),
    (
        "backstitch_source_lag_events",
        "Records of a partition of the log that are not counted live yet, as the API sees it",
    ),
    (
        "backstitch_source_last_run_seconds",
        "When the newest batch run of a source was complete, in seconds since 1970, as the API sees it",
    ),
    (
        "backstitch_source_next_offset",
        "Up to where live state has counted a partition of the log, as the API sees it",
    ),
    (
        "backstitch_source_replaying",
        "1 while live state of a partition that began anew is still catching up, as the API sees it",
    ),
    (
        "backstitch_source_seen_seconds",
        "When the API could see last how a source is getting on, in seconds since 1970",
    ),
    (
        "backstitch_speed_cached_boards",
        "Boards in the cache in Redis, by slot",
    ),
    (
        "backstitch_speed_cached_boards_bytes",
        "What they take, in bytes",
    ),
    (
        "backstitch_speed_lag_events",
        "Records of a partition that this process has still to count",
    ),
    (
        "backstitch_speed_notices_waiting",
        "Notices of capacities that wait to be delivered",
    ),
    (
        "backstitch_speed_outbox_entries",
        "Achievements and changes of boards that wait to be told",
    ),
    (
        "backstitch_speed_outbox_notifications",
        "Changes of rows that wait to be told to the log",
    ),
];

/// What is counted by how long it took.
const HISTOGRAMS: &[(&str, &str)] = &[
    (
        "backstitch_http_request_duration_seconds",
        "How long answers of the API over HTTP took, by method and route",
    ),
    (
        "backstitch_pages_read_duration_seconds",
        "How long the API took to answer pages within this process, by method and route",
    ),
    (
        "backstitch_pages_request_duration_seconds",
        "How long pages took, by method and route",
    ),
    (
        "backstitch_speed_recount_handler_seconds",
        "How long recounts of applications took",
    ),
];

/// Counters by source of what hardly ever happens and is alarming.
const RARE_BY_SOURCE: &[&str] = &[
    "backstitch_ingest_dead_letters_total",
    "backstitch_speed_dead_letters_total",
];

/// Others.
const RARE: &[&str] = &[
    "backstitch_reconcile_alerts_given_up_total",
    "backstitch_speed_notices_given_up_total",
];

static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();

/// What this process measures, from now on.
///
/// # Errors
/// Another recorder that was there before.
pub(crate) fn recorder() -> anyhow::Result<PrometheusHandle> {
    if let Some(handle) = RECORDER.get() {
        return Ok(handle.clone());
    }
    let mut builder = PrometheusBuilder::new();
    for (name, _) in HISTOGRAMS {
        builder = builder.set_buckets_for_metric(Matcher::Full((*name).to_owned()), &SECONDS)?;
    }
    let handle = builder.install_recorder()?;
    for (name, meaning) in COUNTERS {
        metrics::describe_counter!(*name, *meaning);
    }
    for (name, meaning) in GAUGES {
        metrics::describe_gauge!(*name, *meaning);
    }
    for (name, meaning) in HISTOGRAMS {
        metrics::describe_histogram!(*name, metrics::Unit::Seconds, *meaning);
    }
    // A counter that appears with its first event has never risen.
    for name in RARE {
        metrics::counter!(*name).increment(0);
    }
    for name in RARE_BY_SOURCE {
        for source in Source::ALL {
            metrics::counter!(*name, "source" => source.name()).increment(0);
        }
    }
    metrics::gauge!("backstitch_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    Ok(RECORDER.get_or_init(|| handle).clone())
}

/// The text that is answered, with what the process itself takes.
pub(crate) fn text(handle: PrometheusHandle) -> MetricsText {
    let process = metrics_process::Collector::new("backstitch_");
    process.describe();
    MetricsText::new(move || {
        process.collect();
        handle.render()
    })
}

/// Tidies up until it is time to stop.
pub(crate) async fn keep_up(handle: PrometheusHandle, stop: CancellationToken) {
    while crate::roles::sleep(UPKEEP, &stop).await {
        handle.run_upkeep();
    }
}

/// Answers `/metrics` and `/livez` on an address of their own, without keys, until it is time to stop.
///
/// # Errors
/// An address that can't be used.
pub(crate) async fn listen(
    address: &str,
    stop: CancellationToken,
) -> anyhow::Result<impl Future<Output = ()> + use<>> {
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|error| {
        usage(format!(
            "telemetry.metrics_listen {address:?}: {error}; write an address and a port that are free, as in 127.0.0.1:9464"
        ))
    })?;
    let handle = recorder().context("beginning to measure")?;
    let text = text(handle.clone());
    Ok(async move {
        let answering = serving::monitor(listener, text, stop.clone());
        let (answered, ()) = tokio::join!(answering, keep_up(handle, stop));
        if let Err(error) = answered {
            tracing::error!(%error, "metrics are not answered any more");
        }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_of_the_kind_that_they_say() {
        let all = || [COUNTERS, GAUGES, HISTOGRAMS].concat();
        let names: BTreeSet<&str> = all().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), all().len());
        for (name, meaning) in all() {
            assert!(
                name.starts_with("backstitch_") && !meaning.is_empty(),
                "{name}"
            );
        }
        assert!(COUNTERS.iter().all(|(name, _)| name.ends_with("_total")));
        assert!(GAUGES.iter().all(|(name, _)| !name.ends_with("_total")));
    }
}
