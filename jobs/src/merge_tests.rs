use std::collections::BTreeMap;

use proptest::prelude::*;
use schemas::seam::{Cut, Run, RunState};

use super::*;

const VIEW: &str = "v@1";

fn cut(next_offset: i64) -> Cut {
    Cut {
        next_offset,
        last: None,
    }
}

fn run(epoch: Epoch, state: RunState, offsets: &[i64]) -> Run {
    Run {
        epoch,
        state,
        cuts: offsets.iter().copied().map(cut).collect(),
        stamp_us: 1,
        token: String::new(),
    }
}

fn partition_state(position: i64, oldest: Epoch, bounds: &[(Epoch, i64)]) -> PartitionState {
    PartitionState {
        generation: 1,
        position: cut(position),
        epoch: bounds.last().map_or(oldest, |(epoch, _)| epoch + 1),
        oldest,
        bounds: bounds
            .iter()
            .map(|(e, offset)| (*e, cut(*offset)))
            .collect(),
        since: BTreeMap::from([(VIEW.to_owned(), 0)]),
        replay_until: 0,
        misrouted_epoch: None,
    }
}

fn row(key: &[u8], count: Option<i64>, epoch: Epoch) -> BatchRow<'_> {
    BatchRow { key, count, epoch }
}

fn delta(key: &[u8], epoch: Epoch, count: i64) -> LiveDelta<'_> {
    LiveDelta { key, epoch, count }
}

/// Run 1 is complete at offset 5, run 2 is sealed at 8, and the partition state is at 10.
fn during_publishing() -> (Runs, [Option<PartitionState>; 1]) {
    let runs = Runs::from_iter([
        run(1, RunState::Complete, &[5]),
        run(2, RunState::Sealed, &[8]),
    ]);
    (
        runs,
        [Some(partition_state(10, 2, &[(0, 0), (1, 5), (2, 8)]))],
    )
}

fn snapshot<'a>(runs: &'a Runs, states: &'a [Option<PartitionState>]) -> SeamSnapshot<'a> {
    SeamSnapshot {
        view: VIEW,
        live_view: VIEW,
        newest_epoch: 1,
        runs,
        partition_states: states,
        only_partition: None,
    }
}

#[test]
fn deltas_count_only_after_the_base_of_their_own_row() {
    let (runs, states) = during_publishing();
    let rows = [
        row(b"a", Some(4), 1),
        row(b"b", Some(7), 2),
        row(b"c", None, 2),
    ];
    let deltas = [
        delta(b"a", 2, 3),
        delta(b"a", 3, 1),
        delta(b"b", 2, 3),
        delta(b"b", 3, 1),
        delta(b"c", 2, 9),
        delta(b"d", 2, -2),
        delta(b"d", 3, 2),
        delta(b"d", 1, 50),
    ];
    let merged = merge(&snapshot(&runs, &states), rows, deltas).unwrap();
    let summary = |value: &MergedRow<'_>| {
        let key = std::str::from_utf8(value.key).unwrap().to_owned();
        let MergedRow {
            count, batch_count, ..
        } = *value;
        (
            key,
            (count, batch_count),
            (value.has_batch, value.has_live, value.is_ahead),
        )
    };
    let summaries: Vec<_> = merged.iter().map(summary).collect();
    assert_eq!(
        summaries,
        [
            ("a".to_owned(), (8, 4), (true, true, false)),
            ("b".to_owned(), (8, 7), (true, true, true)),
            ("d".to_owned(), (0, 0), (false, true, false)),
        ]
    );
}

#[test]
fn drift_counts_with_the_row_of_its_run() {
    let (runs, states) = during_publishing();
    let drift = |key, epoch, count| EpochDrift { key, epoch, count };
    let rows = [row(b"a", Some(4), 1), row(b"b", Some(7), 2)];
    let deltas = [delta(b"a", 2, 3), delta(b"b", 3, 1)];
    let drifts = [
        drift(&b"a"[..], 1, 10),
        // Recorded by a run whose row is not there yet.
        drift(b"a", 2, 100),
        drift(b"b", 1, 10),
        drift(b"b", 2, -3),
        drift(b"c", 1, 2),
    ];
    let merged = merge_with_drift(&snapshot(&runs, &states), rows, deltas, drifts).unwrap();
    let values: Vec<_> = merged
        .iter()
        .map(|value| (value.count, value.drift))
        .collect();
    assert_eq!(values, [(7, 10), (8, 7), (0, 2)]);
}

#[test]
fn sums_do_not_overflow() {
    let (runs, states) = during_publishing();
    let merged = merge(
        &snapshot(&runs, &states),
        [row(b"a", Some(i64::MAX), 1)],
        [delta(b"a", 2, i64::MAX)],
    )
    .unwrap();
    assert_eq!(merged[0].count, 2 * i128::from(i64::MAX));
}

#[test]
fn each_gap_is_reported() {
    let (runs, states) = during_publishing();
    let gap = |states: &[Option<PartitionState>], rows: &[BatchRow<'_>]| {
        let merged = merge(&snapshot(&runs, states), rows.iter().copied(), []);
        merged.map(|values| values.len()).map_err(|error| error.gap)
    };
    let changed = |change: fn(&mut PartitionState)| {
        let mut states = states.clone();
        change(states[0].as_mut().unwrap());
        gap(&states, &[])
    };
    assert_eq!(gap(&[None], &[]), Err(SeamGap::Missing));
    assert_eq!(
        gap(&states, &[row(b"a", None, 3)]),
        Err(SeamGap::Unrecorded)
    );
    assert_eq!(
        changed(|state| state.bounds.clear()),
        Err(SeamGap::Boundary)
    );
    let another_cut = changed(|state| state.bounds = BTreeMap::from([(1, cut(6))]));
    assert_eq!(another_cut, Err(SeamGap::Boundary));
    assert_eq!(changed(|state| state.oldest = 3), Err(SeamGap::Pruned));
    let counted_later = changed(|state| state.since = BTreeMap::from([(VIEW.to_owned(), 6)]));
    assert_eq!(counted_later, Err(SeamGap::Uncounted));
    assert_eq!(
        changed(|state| state.since.clear()),
        Err(SeamGap::Uncounted)
    );
    assert_eq!(gap(&states, &[]), Ok(0));
}

/// Only a run repairs this, so a reader must not wait for it as for a newer run.
#[test]
fn a_new_view_is_uncounted_although_epochs_were_pruned() {
    let (runs, mut states) = during_publishing();
    let check_new = |states: &[Option<PartitionState>]| {
        let snapshot_of_new_view = SeamSnapshot {
            view: "new@1",
            live_view: "new@1",
            newest_epoch: 0,
            ..snapshot(&runs, states)
        };
        snapshot_of_new_view.check(0).map_err(|error| error.gap)
    };
    assert_eq!(check_new(&states), Err(SeamGap::Uncounted));
    // An empty partition has counted every view from its beginning.
    states[0] = Some(partition_state(0, 2, &[(1, 0)]));
    assert_eq!(check_new(&states), Err(SeamGap::Uncounted));
}

#[test]
fn published_rows_must_exist() {
    let (runs, states) = during_publishing();
    let mut seam = snapshot(&runs, &states);
    assert_eq!(seam.check_table(true), Ok(()));
    let missing = seam.check_table(false).unwrap_err();
    assert_eq!((missing.gap, missing.base), (SeamGap::Deleted, 1));
    seam.newest_epoch = 0;
    assert_eq!(seam.check_table(false), Ok(()));
}

#[test]
fn irrelevant_partitions_may_be_missing() {
    let runs = Runs::default();
    let states = [None, Some(partition_state(3, 1, &[(0, 0)]))];
    let seam = |only_partition| SeamSnapshot {
        view: VIEW,
        live_view: VIEW,
        newest_epoch: 0,
        runs: &runs,
        partition_states: &states,
        only_partition,
    };
    assert_eq!(seam(Some(1)).check(0), Ok(()));
    assert_eq!(seam(None).check(0).unwrap_err().partition, 0);
    assert_eq!(seam(Some(2)).check(0).unwrap_err().gap, SeamGap::Missing);
    let message = seam(Some(0)).check(0).unwrap_err().to_string();
    assert!(
        message.contains("partition 0") && message.contains("`backstitch speed` builds it"),
        "{message}"
    );
}

const KEYS: usize = 4;

/// A log of two partitions with runs at its cuts. The newest run may be published in part.
#[derive(Debug, Clone)]
struct History {
    /// By partition: key and amount of each event.
    events: [Vec<(usize, i64)>; 2],
    /// By run, from 1: the cut of each partition.
    cuts: Vec<[usize; 2]>,
    /// The newest complete run. The following run, if any, is being published.
    newest: usize,
    /// The number of pruned epochs.
    pruned: usize,
    /// The keys whose rows the following run has written.
    loaded: [bool; KEYS],
    /// The keys whose rows keep the epoch of the last run that changed them.
    keeps_epoch: [bool; KEYS],
}

fn history() -> impl Strategy<Value = History> {
    let partition = || proptest::collection::vec((0..KEYS, -3_i64..6), 0..24);
    (
        [partition(), partition()],
        proptest::collection::vec([0_usize..25, 0_usize..25], 0..5),
        (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        any::<[bool; KEYS]>(),
        any::<[bool; KEYS]>(),
    )
        .prop_map(
            |(events, mut cuts, (newest, pruned), loaded, keeps_epoch)| {
                for partition in 0..2 {
                    let mut sorted: Vec<usize> = cuts
                        .iter()
                        .map(|cut| cut[partition].min(events[partition].len()))
                        .collect();
                    sorted.sort_unstable();
                    for (cut, offset) in cuts.iter_mut().zip(sorted) {
                        cut[partition] = offset;
                    }
                }
                // All runs but the last are complete or abandoned, so the newest complete run is
                // the last or the one before.
                let newest = cuts.len() - usize::from(!cuts.is_empty() && newest.index(2) == 1);
                let pruned = pruned.index(newest + 1);
                History {
                    events,
                    cuts,
                    newest,
                    pruned,
                    loaded,
                    keeps_epoch,
                }
            },
        )
}

fn encode_key(key: usize) -> Vec<u8> {
    vec![u8::try_from(key).unwrap()]
}

impl History {
    fn cut(&self, epoch: usize, partition: usize) -> usize {
        match epoch {
            0 => 0,
            _ if epoch <= self.cuts.len() => self.cuts[epoch - 1][partition],
            _ => self.events[partition].len(),
        }
    }

    /// The count of a key in the epochs after `after` up to `last`, if it has an event.
    fn count(&self, key: usize, after: usize, last: usize) -> Option<i64> {
        let mut sum = None;
        for (partition, events) in self.events.iter().enumerate() {
            let range = self.cut(after, partition)..self.cut(last, partition);
            for (_, amount) in events[range].iter().filter(|(k, _)| *k == key) {
                *sum.get_or_insert(0) += amount;
            }
        }
        sum
    }

    fn runs(&self) -> Runs {
        let state = |epoch| {
            if epoch <= self.newest {
                RunState::Complete
            } else {
                RunState::Sealed
            }
        };
        (1..=self.cuts.len())
            .map(|e| {
                let offsets = [self.cut(e, 0) as i64, self.cut(e, 1) as i64];
                run(e as Epoch, state(e), &offsets)
            })
            .collect()
    }

    fn partition_states(&self) -> Vec<Option<PartitionState>> {
        (0..2)
            .map(|p| {
                let bounds: Vec<(Epoch, i64)> = (self.pruned..=self.cuts.len())
                    .map(|e| (e as Epoch, self.cut(e, p) as i64))
                    .collect();
                let end = self.events[p].len() as i64;
                Some(partition_state(end, self.pruned as Epoch + 1, &bounds))
            })
            .collect()
    }

    /// The row of each key as the runs wrote it.
    fn rows(&self) -> Vec<(Vec<u8>, Option<i64>, Epoch)> {
        let row_of = |key: usize| {
            let is_ahead = self.newest < self.cuts.len() && self.loaded[key];
            let mut epoch = self.newest + usize::from(is_ahead);
            let count = self.count(key, 0, epoch);
            while self.keeps_epoch[key] && epoch > 0 && self.count(key, epoch - 1, epoch).is_none()
            {
                epoch -= 1;
            }
            let has_row = count.is_some() || !self.keeps_epoch[key];
            has_row.then(|| (encode_key(key), count, epoch as Epoch))
        };
        (0..KEYS).filter_map(row_of).collect()
    }

    fn deltas(&self) -> Vec<(Vec<u8>, Epoch, i64)> {
        (self.pruned + 1..=self.cuts.len() + 1)
            .flat_map(|e| (0..KEYS).map(move |key| (e, key)))
            .filter_map(|(e, key)| Some((encode_key(key), e as Epoch, self.count(key, e - 1, e)?)))
            .collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// For every position of the cuts and every progress of publishing, merged values equal the
    /// counts of all events.
    #[test]
    fn merged_values_equal_the_counts_of_all_events(history in history()) {
        let (runs, states) = (history.runs(), history.partition_states());
        let (rows, deltas) = (history.rows(), history.deltas());
        let seam = SeamSnapshot {
            view: VIEW,
            live_view: VIEW,
            newest_epoch: history.newest as Epoch,
            runs: &runs,
            partition_states: &states,
            only_partition: None,
        };
        let merged = merge(
            &seam,
            rows.iter().map(|(key, count, epoch)| row(key, *count, *epoch)),
            deltas.iter().rev().map(|(key, epoch, count)| delta(key, *epoch, *count)),
        )
        .unwrap();
        let actual: BTreeMap<usize, i128> =
            merged.iter().map(|m| (usize::from(m.key[0]), m.count)).collect();
        let expected: BTreeMap<usize, i128> = (0..KEYS)
            .filter_map(|key| Some((key, i128::from(history.count(key, 0, history.cuts.len() + 1)?))))
            .collect();
        prop_assert_eq!(actual, expected);
    }

    /// A partition state without its boundary is never merged.
    #[test]
    fn a_lost_boundary_is_reported(history in history()) {
        let (runs, mut states) = (history.runs(), history.partition_states());
        if let Some(state) = states[1].as_mut() {
            state.bounds.remove(&(history.newest as Epoch));
        }
        let seam = SeamSnapshot {
            view: VIEW,
            live_view: VIEW,
            newest_epoch: history.newest as Epoch,
            runs: &runs,
            partition_states: &states,
            only_partition: None,
        };
        let first = SeamSnapshot { only_partition: Some(0), ..seam };
        prop_assert!(merge(&seam, [], []).is_err());
        prop_assert!(merge(&first, [], []).is_ok());
    }
}
