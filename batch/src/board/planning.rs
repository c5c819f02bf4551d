//! What a run computes: all keys, or those that were notified since the last published result.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::BinaryArray;
use jobs::{Board, Job};
use schemas::entities::{Group, Notifications};
use schemas::seam::{Cut, Offset, Run};
use schemas::source::Source;
use stores::log::{FetchLimit, LogRead};
use stores::registry::{Schemas, writers_of};

use super::manifest::BoardManifest;
use crate::error::lost_log;
use crate::results::{Held, earlier};
use crate::{Error, Result, RunRequest};

/// More keys than this are not listed: then all are computed.
const KEYS_MAX: usize = 100_000;
pub(super) const FETCH: FetchLimit = FetchLimit {
    records: 50_000,
    bytes: 32 * 1024 * 1024,
};

/// A view that a run computes.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) job: Arc<Job<Board>>,
    /// Rows of all keys that are published, where that is believed: not if a try that died may have changed them, nor
    /// where keys are written anew, of which what is stored may be other than what was published.
    pub(crate) rows: Option<u64>,
    /// Whether a try that died may have written something, and may do so still.
    pub(crate) is_doubtful: bool,
    /// Whether this run computes it.
    pub(crate) wanted: bool,
}

/// What a run computes.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) source: Source,
    pub(crate) run: Run,
    pub(crate) views: Vec<View>,
    /// The keys to compute; all if there is no list.
    pub(crate) keys: Option<BTreeSet<i64>>,
}

impl Plan {
    /// The views that this run computes.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = &View> {
        self.views.iter().filter(|view| view.wanted)
    }

    /// The names of all views.
    pub(crate) fn view_names(&self) -> Vec<String> {
        let views = self.views.iter();
        views.map(|view| view.job.view().to_owned()).collect()
    }
}

/// Plans a run.
pub(crate) async fn plan(
    (log, schemas): (&dyn LogRead, &dyn Schemas),
    source: Source,
    request: &RunRequest,
    run: Run,
    jobs: Vec<Arc<Job<Board>>>,
    held: &mut BTreeMap<String, Held<BoardManifest>>,
) -> Result<Plan> {
    let mut is_full = request.full || !request.jobs.is_empty();
    let mut keys = request.rewrite.clone();
    let mut since: Option<Vec<Cut>> = None;
    let mut views = Vec::new();
    for job in jobs {
        let wanted = request.wants(job.name());
        let held = held.remove(job.view()).unwrap_or_default();
        if wanted {
            is_full |= held.published.is_none();
            for dirty in &held.dirty {
                match &dirty.keys {
                    Some(some) => keys.extend(some),
                    None => is_full = true,
                }
            }
            if let Some(published) = &held.published {
                since = Some(earlier(since, &published.cuts));
            }
        }
        let is_doubtful = held.published.is_none() || !held.dirty.is_empty();
        let published = held.published.filter(|_| !is_doubtful);
        views.push(View {
            job,
            is_doubtful,
            rows: published.and_then(|published| published.view_rows),
            wanted,
        });
    }
    if !is_full {
        let since = since.unwrap_or_default();
        is_full = !notified((log, schemas), source, &since, &run.cuts, &mut keys).await?;
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

/// Adds the keys that were notified between cuts; answers false if that can't be told, or they are
/// too many to be listed.
async fn notified(
    (log, schemas): (&dyn LogRead, &dyn Schemas),
    source: Source,
    since: &[Cut],
    cuts: &[Cut],
    keys: &mut BTreeSet<i64>,
) -> Result<bool> {
    for (partition, cut) in (0_u32..).zip(cuts) {
        let from = usize::try_from(partition).ok();
        let from = from.and_then(|index| since.get(index));
        let mut next: Offset = from.map_or(0, |cut| cut.next_offset);
        let mut last = None;
        while next < cut.next_offset {
            let fetched = match log.fetch(source.topic(), partition, next, FETCH).await {
                Ok(fetched) => fetched,
                // The log does not reach back so far any more.
                Err(stores::Error::OffsetOutOfRange { asked, start, .. }) if asked < start => {
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            };
            if fetched.next_offset == next {
                return Err(lost_log(format!(
                    "{}/{partition} ends at offset {next}, before the cut of the run at {}: records were lost, or the topic was made again",
                    source.topic(),
                    cut.next_offset
                )));
            }
            next = fetched.next_offset;
            let offsets = fetched.records.offsets.values();
            let below = offsets.partition_point(|offset| *offset < cut.next_offset);
            let records = fetched.records.slice(0, below);
            last = records.last().or(last);
            let groups = groups_of(schemas, source, &records.values).await?;
            keys.extend(groups.iter().map(|group| group.key));
            if keys.len() > KEYS_MAX {
                return Ok(false);
            }
        }
        // A log that was lost does not come back: with the last record all before it are its own.
        if let (Some(last), Some(counted)) = (last, cut.last)
            && last != counted
        {
            return Err(lost_log(format!(
                "{}/{partition} holds another record at offset {} than the run's cut was made after: the topic was made again",
                source.topic(),
                last.offset
            )));
        }
    }
    Ok(true)
}

/// The groups that records of a source tell of. What is no notification is a dead letter of the speed layer.
pub(super) async fn groups_of(
    schemas: &dyn Schemas,
    source: Source,
    values: &BinaryArray,
) -> Result<Vec<Group>> {
    let writers = writers_of(schemas, values).await?;
    let bytes = || values.iter().map(Option::unwrap_or_default);
    let notifications = Notifications::read(source, bytes(), &writers)
        .map_err(|error| Error::fault("decoding notifications", error))?;
    let groups = bytes().enumerate();
    Ok(groups
        .filter_map(|(index, value)| notifications.group(index, value).ok())
        .collect())
}
