//! The drift of tallies, key by key.
//!
//! Both sides are added into a table of sums by a hash of the key, the batch's with a plus and the
//! live ones with a minus: where they agree every sum is 0, and nothing need be remembered by key.
//! Only for the sums that are not 0 both sides are read once more, to name the keys.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use jobs::Job;
use schemas::key::KeyValue;
use schemas::seam::Generation;
use schemas::source::Source;
use schemas::time::BucketWidth;
use stores::live::{Deltas, PartitionId};

use super::compute::View;
use super::fingerprint::Fingerprint;
use super::publish::diff_of;
use super::result::ViewManifest;
use crate::archive::RepeatFilter;
use crate::drift::{Between, Cause, DriftedKey, KEYS_NAMED, ViewDrift, show};
use crate::{BatchPorts, Result};

const PAGE_ROWS: usize = 50_000;
const DAY_SECONDS: i64 = 86_400;
/// Keys that may differ are told apart up to so many.
const KEYS_MAX: usize = 100_000;

/// A key whose sides differ.
#[derive(Debug, Clone)]
pub(crate) struct Difference {
    pub(crate) group: Vec<u8>,
    pub(crate) row: Vec<u8>,
    /// What the batch layer changed.
    pub(crate) batch: i64,
    /// What was counted live.
    pub(crate) live: i64,
    /// What records add up to that repeat an event.
    pub(crate) repeated: i64,
    /// The same, of those in another partition than the event's first record.
    pub(crate) in_other_partition: i64,
}

impl Difference {
    fn size(&self) -> u64 {
        self.batch.abs_diff(self.live)
    }

    fn cause(&self) -> Cause {
        Cause::of(
            (self.batch, self.live),
            (self.repeated, self.in_other_partition),
        )
    }
}

/// What a comparison found.
#[derive(Debug)]
pub(crate) enum Compared {
    /// Nothing can be told, and why.
    Unknown(String),
    /// All keys that differ, by group and row.
    Keys(Differences),
}

/// The keys whose sides differ.
#[derive(Debug, Default)]
pub(crate) struct Differences {
    /// In the order of group and row.
    pub(crate) all: Vec<Difference>,
    /// Whether there are more.
    pub(crate) is_lower_bound: bool,
}

impl Differences {
    /// The days that the keys are of; nothing, if they may be of any.
    pub(crate) fn days(&self, job: &Job) -> Option<BTreeSet<i64>> {
        if job.bucket() > BucketWidth::Day {
            return None;
        }
        let day = |one: &Difference| match job.row().decode_values(&one.row).ok()?.first()? {
            KeyValue::Time(seconds) => Some(seconds.div_euclid(DAY_SECONDS)),
            _ => None,
        };
        self.all.iter().map(day).collect()
    }

    /// Whether a record that repeats an event counts for one of them.
    pub(crate) fn are_repeated(&self) -> bool {
        self.all.iter().any(|one| one.repeated != 0)
    }

    /// Notes what a record counts that repeats an event.
    pub(crate) fn repeated(
        &mut self,
        which: RepeatFilter,
        (group, row): (&[u8], &[u8]),
        count: i64,
    ) {
        let place = |one: &Difference| (&*one.group, &*one.row).cmp(&(group, row));
        if let Ok(index) = self.all.binary_search_by(place)
            && let Some(one) = self.all.get_mut(index)
        {
            let sum = match which {
                RepeatFilter::All => &mut one.repeated,
                RepeatFilter::InOtherPartition => &mut one.in_other_partition,
            };
            *sum = sum.wrapping_add(count);
        }
    }
}

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
    /// After the epoch of the published result before, up to this run's.
    pub(crate) between: Between<'a>,
    pub(crate) partitions: u32,
}

impl Stretch<'_> {
    /// Compares a view. `fingerprint` holds the batch's changes.
    pub(crate) async fn compare(
        &self,
        view: &View,
        new: &ViewManifest,
        mut fingerprint: Fingerprint,
    ) -> Result<Compared> {
        let lives = match self.lives(view).await? {
            Ok(lives) => lives,
            Err(why) => return Ok(Compared::Unknown(why)),
        };
        self.each_live(view, |group, row, count| {
            fingerprint.add(group, row, count.wrapping_neg());
        })
        .await?;
        let found = match fingerprint.is_zero() {
            true => Differences::default(),
            false => self.differences(view, new, &fingerprint).await?,
        };
        // What was lost meanwhile was read as if nothing had been there.
        Ok(match self.lives(view).await? {
            Ok(again) if again == lives => Compared::Keys(found),
            Ok(_) => Compared::Unknown("live state was rebuilt during the comparison".to_owned()),
            Err(why) => Compared::Unknown(why),
        })
    }

    /// The lives of the slots, if they hold everything; else why not.
    async fn lives(&self, view: &View) -> Result<std::result::Result<Vec<Generation>, String>> {
        let slots = self
            .ports
            .live
            .partition_states(self.source, 0..self.partitions)
            .await?;
        let mut lives = Vec::with_capacity(slots.len());
        for (partition, slot) in slots.iter().enumerate() {
            let view = view.job.view();
            if let Some(why) = self.between.unknown(view, partition, slot.as_ref()) {
                return Ok(Err(why));
            }
            lives.extend(slot.as_ref().map(|slot| slot.generation));
        }
        Ok(Ok(lives))
    }

    async fn each_live(&self, view: &View, mut note: impl FnMut(&[u8], &[u8], i64)) -> Result<()> {
        let Between { since, until, .. } = self.between;
        for partition in 0..self.partitions {
            let slot = PartitionId {
                source: self.source,
                partition,
            };
            let mut after = None;
            loop {
                let page: Deltas = self
                    .ports
                    .live
                    .collect_deltas(slot, view.job.view(), (since + 1, until), after, PAGE_ROWS)
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
    async fn differences(
        &self,
        view: &View,
        new: &ViewManifest,
        fingerprint: &Fingerprint,
    ) -> Result<Differences> {
        let mut sides = Sides::default();
        let mut diff = diff_of(&self.ports.archive, view, new, &new.touched).await?;
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
        let differs = sides
            .by_key
            .into_iter()
            .filter(|(_, (batch, live))| batch != live);
        let all = differs.map(|((group, row), (batch, live))| Difference {
            group,
            row,
            batch,
            live,
            repeated: 0,
            in_other_partition: 0,
        });
        Ok(Differences {
            all: all.collect(),
            is_lower_bound,
        })
    }
}

impl Compared {
    /// What is told of a view, and the keys that differ most.
    pub(crate) fn told(&self, job: &Job) -> Result<(ViewDrift, Vec<DriftedKey>)> {
        let mut drift = ViewDrift {
            job: job.name().to_owned(),
            ..ViewDrift::default()
        };
        let found = match self {
            Self::Unknown(why) => {
                drift.unknown = Some(why.clone());
                return Ok((drift, Vec::new()));
            }
            Self::Keys(found) => found,
        };
        drift.total = Some(
            found
                .all
                .iter()
                .map(Difference::size)
                .fold(0, u64::saturating_add),
        );
        drift.keys = u64::try_from(found.all.len()).unwrap_or(u64::MAX);
        drift.is_lower_bound = found.is_lower_bound;
        for one in &found.all {
            let part = drift.causes.entry(one.cause()).or_default();
            *part = part.saturating_add(one.size());
        }
        let mut worst: Vec<&Difference> = found.all.iter().collect();
        worst.sort_by_key(|one| std::cmp::Reverse(one.size()));
        worst.truncate(KEYS_NAMED);
        let worst = worst.into_iter().map(|one| {
            Ok(DriftedKey {
                job: job.name().to_owned(),
                key: [show(job.group(), &one.group)?, show(job.row(), &one.row)?].join(" "),
                batch: one.batch,
                live: one.live,
                cause: one.cause(),
            })
        });
        Ok((drift, worst.collect::<Result<_>>()?))
    }
}
