//! Plans a run of boards: all keys, or those that were notified since the last published result.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::BinaryArray;
use jobs::{Board, Job};
use schemas::entities::{Group, Notifications};
use schemas::seam::{Cut, Offset, Run};
use schemas::source::Source;
use stores::log::FetchLimit;
use stores::registry::{SchemaSource, read_writer_schemas};

use super::manifest::BoardManifest;
use crate::error::lost_log_error;
use crate::results::{PublishedState, earliest_cuts};
use crate::run_steps::RunContext;
use crate::{BatchPorts, Error, Result};

/// Maximum number of listed keys; above it, all keys are computed.
const KEYS_MAX: usize = 100_000;
pub(super) const FETCH_LIMIT: FetchLimit = FetchLimit {
    records: 50_000,
    bytes: 32 * 1024 * 1024,
};

/// A view of a run.
#[derive(Debug)]
pub(crate) struct PlannedView {
    pub(crate) job: Arc<Job<Board>>,
    /// The published rows of all keys, if reliable. They are unknown if a failed attempt may have
    /// changed them, or if keys are rewritten, whose stored rows may differ from the published
    /// ones.
    pub(crate) rows: Option<u64>,
    /// True if a failed attempt may have written something, or may still be writing.
    pub(crate) is_dirty: bool,
    /// True if the run computes the view.
    pub(crate) is_computed: bool,
}

/// The plan of a run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) source: Source,
    pub(crate) run: Run,
    pub(crate) views: Vec<PlannedView>,
    /// The keys to compute; `None` if all.
    pub(crate) keys: Option<BTreeSet<i64>>,
}

impl Plan {
    /// Returns the views that the run computes.
    pub(crate) fn computed_views(&self) -> impl Iterator<Item = &PlannedView> {
        self.views.iter().filter(|view| view.is_computed)
    }

    /// Returns the names of all views.
    pub(crate) fn view_names(&self) -> Vec<String> {
        let views = self.views.iter();
        views.map(|view| view.job.view().to_owned()).collect()
    }
}

/// Plans a run.
pub(crate) async fn plan(
    context: &RunContext<'_>,
    run: Run,
    jobs: Vec<Arc<Job<Board>>>,
    mut states: BTreeMap<String, PublishedState<BoardManifest>>,
) -> Result<Plan> {
    let (request, source) = (context.request, context.results.source);
    let mut is_full = request.full || !request.jobs.is_empty();
    let mut keys = request.rewrite.clone();
    let mut since: Option<Vec<Cut>> = None;
    let mut views = Vec::new();
    for job in jobs {
        let is_computed = request.includes(job.name());
        let state = states.remove(job.view()).unwrap_or_default();
        if is_computed {
            is_full |= state.published.is_none();
            for dirty in &state.dirty {
                match &dirty.keys {
                    Some(dirty_keys) => keys.extend(dirty_keys),
                    None => is_full = true,
                }
            }
            if let Some(published) = &state.published {
                since = Some(earliest_cuts(since, &published.cuts));
            }
        }
        let is_dirty = state.published.is_none() || !state.dirty.is_empty();
        let published = state.published.filter(|_| !is_dirty);
        views.push(PlannedView {
            job,
            is_dirty,
            rows: published.and_then(|published| published.view_rows),
            is_computed,
        });
    }
    if !is_full {
        let since = since.unwrap_or_default();
        let ports = &context.batch.ports;
        is_full = !add_notified_keys(ports, source, &since, &run.cuts, &mut keys).await?;
    }
    if is_full || !request.rewrite.is_empty() {
        views.iter_mut().for_each(|view| view.rows = None);
    }
    Ok(Plan {
        source,
        run,
        views,
        keys: (!is_full).then_some(keys),
    })
}

/// Adds the keys that were notified between cuts. Returns false if the log lacks some
/// notifications, or if there are too many keys.
async fn add_notified_keys(
    ports: &BatchPorts,
    source: Source,
    since: &[Cut],
    cuts: &[Cut],
    keys: &mut BTreeSet<i64>,
) -> Result<bool> {
    for (partition, cut) in (0_u32..).zip(cuts) {
        let index = usize::try_from(partition).ok();
        let previous_cut = index.and_then(|index| since.get(index));
        let mut next: Offset = previous_cut.map_or(0, |cut| cut.next_offset);
        let mut last = None;
        while next < cut.next_offset {
            let log = &ports.log;
            let fetched = match log
                .fetch(source.topic(), partition, next, FETCH_LIMIT)
                .await
            {
                Ok(fetched) => fetched,
                // The log no longer has the earliest notifications.
                Err(stores::Error::OffsetOutOfRange {
                    requested, start, ..
                }) if requested < start => {
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            };
            if fetched.next_offset == next {
                return Err(lost_log_error(format!(
                    "{}/{partition} ends at offset {next}, before the cut of the run at {}: records were lost, or the topic was recreated",
                    source.topic(),
                    cut.next_offset
                )));
            }
            next = fetched.next_offset;
            let offsets = fetched.records.offsets.values();
            let below = offsets.partition_point(|offset| *offset < cut.next_offset);
            let records = fetched.records.slice(0, below);
            last = records.last().or(last);
            let groups = decode_groups(&*ports.schemas, source, &records.values).await?;
            keys.extend(groups.iter().map(|group| group.key));
            if keys.len() > KEYS_MAX {
                return Ok(false);
            }
        }
        // A lost log never returns, so a matching last record proves that all earlier ones belong
        // to the log.
        if let (Some(last), Some(cut_record)) = (last, cut.last)
            && last != cut_record
        {
            return Err(lost_log_error(format!(
                "{}/{partition} has another record at offset {} than the one at the run's cut: the topic was recreated",
                source.topic(),
                last.offset
            )));
        }
    }
    Ok(true)
}

/// Decodes the groups that notifications name. Other records become dead letters in the speed
/// layer.
pub(super) async fn decode_groups(
    schemas: &dyn SchemaSource,
    source: Source,
    values: &BinaryArray,
) -> Result<Vec<Group>> {
    let writers = read_writer_schemas(schemas, values).await?;
    let bytes = || values.iter().map(Option::unwrap_or_default);
    let notifications = Notifications::read(source, bytes(), &writers)
        .map_err(|error| Error::fault("decoding notifications", error))?;
    let groups = bytes().enumerate();
    Ok(groups
        .filter_map(|(index, value)| notifications.group(index, value).ok())
        .collect())
}
