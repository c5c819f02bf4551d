//! The drift: how far what was counted live between two runs differs from what the batch layer
//! found for the same events.
//!
//! Both sides are added into a table of sums by a hash of the key, the batch's with a plus and the
//! live ones with a minus: where they agree every sum is 0, and nothing need be remembered by key.
//! Only for the sums that are not 0 both sides are read once more, to name the keys.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use schemas::key::KeyShape;
use schemas::seam::{Epoch, Runs, whole};
use schemas::source::Source;
use serde::Serialize;
use stores::live::{Deltas, SlotId};
use xxhash_rust::xxh3::Xxh3;

use super::compute::View;
use super::publish::diff_of;
use super::result::ViewManifest;
use crate::{BatchPorts, Error, Result};

/// One for each value of 16 bits of the hash.
const BUCKETS: usize = 1 << 16;
const PAGE_ROWS: usize = 50_000;
/// Keys that are told apart, at most.
const KEYS_MAX: usize = 100_000;
/// Keys that are named in the report.
const KEYS_NAMED: usize = 20;

/// A key whose batch change is not what was counted live.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DriftedKey {
    /// The job.
    pub job: String,
    /// The key, as `column=value` pairs.
    pub key: String,
    /// What the batch layer added since the run before.
    pub batch: i64,
    /// What was counted live for the same stretch of the log.
    pub live: i64,
}

/// The drift of one run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Drift {
    /// The sum of the absolute differences over all keys; nothing if live state began anew within
    /// the run's stretch, so that there is nothing to compare with.
    pub total: Option<u64>,
    /// How many keys differ.
    pub keys: u64,
    /// Whether there are more than could be told apart: `total` and `keys` are the least that they
    /// can be.
    pub is_lower_bound: bool,
    /// The keys that differ most.
    pub worst: Vec<DriftedKey>,
    /// Why it is not known.
    pub unknown: Option<String>,
}

/// Sums of changes by a hash of the key.
#[derive(Debug, Clone)]
pub(crate) struct Fingerprint(Vec<(u64, u64)>);

impl Fingerprint {
    pub(crate) fn new() -> Self {
        Self(vec![(0, 0); BUCKETS])
    }

    /// Notes what the batch layer changed.
    pub(crate) fn batch(&mut self, group: &[u8], row: &[u8], delta: i64) {
        self.add(group, row, delta);
    }

    fn add(&mut self, group: &[u8], row: &[u8], delta: i64) {
        let (bucket, weight) = place(group, row);
        if let Some((sum, weighted)) = self.0.get_mut(bucket) {
            let delta = delta.cast_unsigned();
            *sum = sum.wrapping_add(delta);
            // Differences of two keys in one bucket can cancel out; weighted by their hashes as well
            // they don't.
            *weighted = weighted.wrapping_add(delta.wrapping_mul(weight | 1));
        }
    }

    fn differs(&self, group: &[u8], row: &[u8]) -> bool {
        let (bucket, _) = place(group, row);
        self.0.get(bucket).is_some_and(|sums| *sums != (0, 0))
    }

    fn is_zero(&self) -> bool {
        self.0.iter().all(|sums| *sums == (0, 0))
    }
}

fn place(group: &[u8], row: &[u8]) -> (usize, u64) {
    let mut hasher = Xxh3::new();
    hasher.update(group);
    hasher.update(row);
    let [a, b, rest @ ..] = hasher.digest128().to_le_bytes();
    let mut weight = [0; 8];
    weight.copy_from_slice(&rest[6..]);
    (
        usize::from(u16::from_le_bytes([a, b])),
        u64::from_le_bytes(weight),
    )
}

/// A key whose sides differ: group, row, and how much more was counted live.
pub(crate) type Excess = (Vec<u8>, Vec<u8>, i64);

/// By group and row key: what the batch layer changed, and what was counted live.
#[derive(Debug, Default)]
struct Sides {
    by_key: BTreeMap<(Vec<u8>, Vec<u8>), (i64, i64)>,
    /// Whether a key was left out.
    is_full: bool,
}

impl Sides {
    /// The sides of a key; nothing once there are too many.
    fn of(&mut self, group: &[u8], row: &[u8]) -> Option<&mut (i64, i64)> {
        let has_room = self.by_key.len() < KEYS_MAX;
        let place = self.by_key.entry((group.to_vec(), row.to_vec()));
        if matches!(place, Entry::Vacant(_)) && !has_room {
            self.is_full = true;
            return None;
        }
        Some(place.or_default())
    }
}

/// A run whose drift is asked for.
pub(crate) struct Stretch<'a> {
    pub(crate) ports: &'a BatchPorts,
    pub(crate) source: Source,
    pub(crate) runs: &'a Runs,
    /// After the epoch of the published result before, up to this run's.
    pub(crate) epochs: (Epoch, Epoch),
    pub(crate) partitions: u32,
}

impl Stretch<'_> {
    /// The drift of a view, and all keys that it is made of. `fingerprint` holds the batch's changes.
    pub(crate) async fn drift(
        &self,
        view: &View,
        new: &ViewManifest,
        mut fingerprint: Fingerprint,
    ) -> Result<(Drift, Vec<Excess>)> {
        if let Some(why) = self.unknown(view).await? {
            let drift = Drift {
                unknown: Some(why),
                ..Drift::default()
            };
            return Ok((drift, Vec::new()));
        }
        self.each_live(view, |group, row, count| {
            fingerprint.add(group, row, count.wrapping_neg());
        })
        .await?;
        if fingerprint.is_zero() {
            let drift = Drift {
                total: Some(0),
                ..Drift::default()
            };
            return Ok((drift, Vec::new()));
        }
        self.name_keys(view, new, &fingerprint).await
    }

    /// Why live state can't be compared with.
    async fn unknown(&self, view: &View) -> Result<Option<String>> {
        let (since, _) = self.epochs;
        let slots = self
            .ports
            .live
            .read(self.source, self.partitions, &[])
            .await?
            .slots;
        for (partition, slot) in slots.iter().enumerate() {
            let complete = slot
                .as_ref()
                .is_some_and(|slot| whole(slot, partition, since, self.runs, view.job.view()));
            if !complete {
                return Ok(Some(format!(
                    "live state of partition {partition} does not hold everything since run {since}"
                )));
            }
        }
        Ok(None)
    }

    async fn each_live(&self, view: &View, mut note: impl FnMut(&[u8], &[u8], i64)) -> Result<()> {
        let (since, until) = self.epochs;
        for partition in 0..self.partitions {
            let slot = SlotId {
                source: self.source,
                partition,
            };
            let mut after = None;
            loop {
                let page: Deltas = self
                    .ports
                    .live
                    .scan(slot, view.job.view(), (since + 1, until), after, PAGE_ROWS)
                    .await?;
                let rows = page
                    .groups
                    .iter()
                    .zip(page.rows.iter())
                    .zip(page.counts.values());
                for ((group, row), count) in rows {
                    note(group.unwrap_or_default(), row.unwrap_or_default(), *count);
                }
                let Some(last) = page.counts.values().len().checked_sub(1) else {
                    break;
                };
                if last + 1 < PAGE_ROWS {
                    break;
                }
                after = Some((
                    page.groups.value(last).to_vec(),
                    page.rows.value(last).to_vec(),
                ));
            }
        }
        Ok(())
    }

    /// Reads both sides once more, only where their sums differ.
    async fn name_keys(
        &self,
        view: &View,
        new: &ViewManifest,
        fingerprint: &Fingerprint,
    ) -> Result<(Drift, Vec<Excess>)> {
        let mut sides = Sides::default();
        let mut diff = diff_of(self.ports, view, new).await?;
        while let Some(change) = diff.next().await? {
            let (_, group, row) = diff.key();
            if fingerprint.differs(group, row)
                && let Some((batch, _)) = sides.of(group, row)
            {
                *batch = batch.wrapping_add(change.delta());
            }
        }
        self.each_live(view, |group, row, count| {
            if fingerprint.differs(group, row)
                && let Some((_, live)) = sides.of(group, row)
            {
                *live = live.wrapping_add(count);
            }
        })
        .await?;
        let is_lower_bound = sides.is_full;
        let mut sides = sides.by_key;
        sides.retain(|_, (batch, live)| batch != live);
        let mut worst: Vec<_> = sides.into_iter().collect();
        worst.sort_by_key(|(_, (batch, live))| std::cmp::Reverse(batch.abs_diff(*live)));
        let total = worst
            .iter()
            .map(|(_, (batch, live))| batch.abs_diff(*live))
            .sum();
        let keys = u64::try_from(worst.len()).unwrap_or(u64::MAX);
        let excess = worst.iter().map(|((group, row), (batch, live))| {
            (group.clone(), row.clone(), live.wrapping_sub(*batch))
        });
        let excess = excess.collect();
        worst.truncate(KEYS_NAMED);
        let worst = worst.into_iter().map(|((group, row), (batch, live))| {
            Ok(DriftedKey {
                job: view.job.name().to_owned(),
                key: [show(view.job.group(), &group)?, show(view.job.row(), &row)?].join(" "),
                batch,
                live,
            })
        });
        let drift = Drift {
            total: Some(total),
            keys,
            is_lower_bound,
            worst: worst.collect::<Result<_>>()?,
            unknown: None,
        };
        Ok((drift, excess))
    }
}

fn show(shape: &KeyShape, key: &[u8]) -> Result<String> {
    let columns = shape
        .decode(std::iter::once(key))
        .map_err(|e| Error::fault("decoding a key", e))?;
    let pairs = shape.0.iter().zip(&columns).map(|(column, array)| {
        let value = arrow::util::display::array_value_to_string(array, 0)
            .unwrap_or_else(|_| "?".to_owned());
        format!("{}={value}", column.name)
    });
    Ok(pairs.collect::<Vec<_>>().join(" "))
}
