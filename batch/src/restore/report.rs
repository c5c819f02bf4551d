//! What a comparison found.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jobs::{BUCKET, Job};
use schemas::key::KeyShape;
use schemas::seam::{Epoch, Offset};
use schemas::source::Source;
use serde::Serialize;
use serde_json::Value;

use super::applied::Applied;
use super::cause::Cause;
use super::scope::{named, shown_key};
use super::stray;
use crate::Result;

/// A key that was compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Weighed {
    pub(crate) expected: i64,
    pub(crate) stored: Option<i64>,
    pub(crate) live: Option<i64>,
    pub(crate) served: i64,
    pub(crate) difference: i64,
    /// Why it differs; nothing if it does not.
    pub(crate) cause: Option<Cause>,
    /// What all events give.
    pub(crate) events: i64,
    /// What the row should hold; nothing if no event gives it.
    pub(crate) events_batch: Option<i64>,
    /// Whether what somebody else says is not what all events give.
    pub(crate) is_to_be_corrected: bool,
    /// Whether the row is not what its events give.
    pub(crate) row_is_wrong: bool,
    /// Whether what is live is not what its events give.
    pub(crate) live_is_wrong: bool,
}

/// A key whose served value is not what is expected.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// The columns of the key that are compared, but for the bucket. Of a row that lies in the partition of another time
    /// all columns, and when that partition begins; of one whose key can't be read the bytes of its place.
    pub key: BTreeMap<String, Value>,
    /// When its bucket begins, where the view has time and it is compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket: Option<Value>,
    /// What is expected to be served.
    pub expected: i64,
    /// What the batch rows hold; nothing if there is none.
    pub stored: Option<i64>,
    /// What is live besides; nothing if live state was not compared.
    pub live: Option<i64>,
    /// Both together: what is served.
    pub served: i64,
    /// What is expected less what is served: what is to be added.
    pub difference: i64,
    /// Why.
    pub cause: Cause,
    /// Of a board: the row that the canonical store gives, by its columns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_row: Option<Value>,
    /// Of a board: the row that is served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served_row: Option<Value>,
}

/// How many keys have a cause, and how much they differ.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct OfCause {
    /// Keys.
    pub keys: u64,
    /// The sum of their absolute differences.
    pub total: u64,
}

/// What a comparison found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReconcileReport {
    /// The source.
    pub source: Source,
    /// The view, by the name of its job.
    pub view: String,
    /// What was expected: `archive`, or the file.
    pub expected: String,
    /// The run whose rows were compared.
    pub epoch: Epoch,
    /// By partition: what is expected holds everything below this offset.
    pub position: Vec<Offset>,
    /// Keys that any side names.
    pub keys: u64,
    /// Keys that differ.
    pub differ: u64,
    /// The sum of the absolute differences.
    pub total: u64,
    /// By cause.
    pub causes: BTreeMap<Cause, OfCause>,
    /// Those that differ most, largest first.
    pub differences: Vec<Difference>,
    /// Why live state was not compared.
    pub live_unknown: Option<String>,
    /// Keys that were passed over, since a run that is not complete has written them.
    pub ahead: u64,
    /// What was put right; nothing if it was not asked for, or was held back.
    pub applied: Option<Applied>,
    /// Why what differs was not put right though it was asked for.
    pub held_back: Option<String>,
    /// What a person should know.
    pub warnings: Vec<String>,
    /// What the comparison took on the disk, in bytes.
    pub disk_bytes: u64,
    /// The number that it is recorded under.
    pub record: Option<u64>,
    /// How long it took, in seconds.
    pub seconds: f64,
}

impl ReconcileReport {
    /// Nothing yet.
    pub(crate) const fn of(source: Source) -> Self {
        Self {
            source,
            view: String::new(),
            expected: String::new(),
            epoch: 0,
            position: Vec::new(),
            keys: 0,
            differ: 0,
            total: 0,
            causes: BTreeMap::new(),
            differences: Vec::new(),
            live_unknown: None,
            ahead: 0,
            applied: None,
            held_back: None,
            warnings: Vec::new(),
            disk_bytes: 0,
            record: None,
            seconds: 0.0,
        }
    }
}

/// What is found, as it is found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) keys: u64,
    pub(crate) differ: u64,
    pub(crate) total: u64,
    pub(crate) ahead: u64,
    pub(crate) live_wrong: u64,
    /// Keys whose served value is not what their events give.
    pub(crate) damaged: u64,
    pub(crate) causes: BTreeMap<Cause, OfCause>,
    /// The largest so far.
    worst: BTreeMap<Rank, (Weighed, Cause)>,
}

/// The rank of a key among those that differ most: by size, then the first key.
type Rank = (u64, Reverse<Vec<u8>>);

impl Found {
    /// Notes a key that was weighed.
    pub(crate) fn note(&mut self, key: &[u8], weighed: &Weighed, limit: usize) {
        self.keys += 1;
        let Some(cause) = weighed.cause else {
            return;
        };
        let size = weighed.difference.unsigned_abs();
        self.differ += 1;
        self.total = self.total.saturating_add(size);
        self.live_wrong += u64::from(weighed.live_is_wrong);
        self.damaged += u64::from(weighed.live_is_wrong || weighed.row_is_wrong);
        let of_cause = self.causes.entry(cause).or_default();
        of_cause.keys += 1;
        of_cause.total = of_cause.total.saturating_add(size);
        let least = self.worst.first_key_value().map(|(rank, _)| rank);
        let rank = (size, Reverse(key.to_vec()));
        if self.worst.len() >= limit && least.is_none_or(|least| rank <= *least) {
            return;
        }
        self.worst.insert(rank, (*weighed, cause));
        if self.worst.len() > limit {
            self.worst.pop_first();
        }
    }

    /// Says it in a report: those that differ most come largest first, then by key.
    pub(crate) fn tell(
        self,
        (job, grain): (&Job, &KeyShape),
        report: &mut ReconcileReport,
    ) -> Result<()> {
        let worst = self.worst.into_iter().rev();
        let told = worst.map(|((_, key), one)| difference((job, grain), &key.0, one));
        report.differences = told.collect::<Result<_>>()?;
        report.keys = self.keys;
        report.differ = self.differ;
        report.total = self.total;
        report.causes = self.causes;
        report.ahead = self.ahead;
        Ok(())
    }
}

/// A difference as it is told.
fn difference(
    (job, grain): (&Job, &KeyShape),
    key: &[u8],
    (weighed, cause): (Weighed, Cause),
) -> Result<Difference> {
    let shown = match cause.is_of_stray() {
        true => stray::named((job, cause), key)?,
        false => shown_key(&named(grain, key)?),
    };
    let mut key: BTreeMap<String, Value> = shown.into_iter().collect();
    let bucket = key.remove(BUCKET);
    Ok(Difference {
        key,
        bucket,
        expected: weighed.expected,
        stored: weighed.stored,
        live: weighed.live,
        served: weighed.served,
        difference: weighed.difference,
        cause,
        expected_row: None,
        served_row: None,
    })
}
