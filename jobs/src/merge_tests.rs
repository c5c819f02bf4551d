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

fn slot(position: i64, oldest: Epoch, bounds: &[(Epoch, i64)]) -> Slot {
    Slot {
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
        strays: None,
    }
}

fn row(key: &[u8], count: Option<i64>, epoch: Epoch) -> BatchRow<'_> {
    BatchRow { key, count, epoch }
}

fn part(key: &[u8], epoch: Epoch, count: i64) -> LivePart<'_> {
    LivePart { key, epoch, count }
}

/// Run 1 is complete at offset 5, run 2 is sealed at 8, the slot stands at 10.
fn in_mid_load() -> (Runs, [Option<Slot>; 1]) {
    let runs = Runs::from_iter([
        run(1, RunState::Complete, &[5]),
        run(2, RunState::Sealed, &[8]),
    ]);
    (runs, [Some(slot(10, 2, &[(0, 0), (1, 5), (2, 8)]))])
}

fn seam<'a>(runs: &'a Runs, slots: &'a [Option<Slot>]) -> Seam<'a> {
    Seam {
        view: VIEW,
        live: VIEW,
        newest: 1,
        runs,
        slots,
        only: None,
    }
}

#[test]
fn parts_count_only_after_the_base_of_their_own_row() {
    let (runs, slots) = in_mid_load();
    let rows = [
        row(b"a", Some(4), 1),
        row(b"b", Some(7), 2),
        row(b"c", None, 2),
    ];
    let parts = [
        part(b"a", 2, 3),
        part(b"a", 3, 1),
        part(b"b", 2, 3),
        part(b"b", 3, 1),
        part(b"c", 2, 9),
        part(b"d", 2, -2),
        part(b"d", 3, 2),
        part(b"d", 1, 50),
    ];
    let merged = merge(&seam(&runs, &slots), rows, parts).unwrap();
    let told = |value: &Merged<'_>| {
        let key = std::str::from_utf8(value.key).unwrap().to_owned();
        let Merged { count, stored, .. } = *value;
        (
            key,
            (count, stored),
            (value.batch, value.live, value.is_ahead),
        )
    };
    let told: Vec<_> = merged.iter().map(told).collect();
    assert_eq!(
        told,
        [
            ("a".to_owned(), (8, 4), (true, true, false)),
            ("b".to_owned(), (8, 7), (true, true, true)),
            ("d".to_owned(), (0, 0), (false, true, false)),
        ]
    );
}

#[test]
fn what_was_kept_goes_with_the_row_of_its_run() {
    let (runs, slots) = in_mid_load();
    let kept = |key, epoch, count| Kept { key, epoch, count };
    let rows = [row(b"a", Some(4), 1), row(b"b", Some(7), 2)];
    let parts = [part(b"a", 2, 3), part(b"b", 3, 1)];
    let all = [
        kept(&b"a"[..], 1, 10),
        // Found by a run whose row is not there yet.
        kept(b"a", 2, 100),
        kept(b"b", 1, 10),
        kept(b"b", 2, -3),
        kept(b"c", 1, 2),
    ];
    let merged = merge_kept(&seam(&runs, &slots), rows, parts, all).unwrap();
    let told: Vec<_> = merged
        .iter()
        .map(|value| (value.count, value.kept))
        .collect();
    assert_eq!(told, [(7, 10), (8, 7), (0, 2)]);
}

#[test]
fn a_sum_does_not_wrap() {
    let (runs, slots) = in_mid_load();
    let merged = merge(
        &seam(&runs, &slots),
        [row(b"a", Some(i64::MAX), 1)],
        [part(b"a", 2, i64::MAX)],
    )
    .unwrap();
    assert_eq!(merged[0].count, 2 * i128::from(i64::MAX));
}

#[test]
fn each_gap_is_refused_and_named() {
    let (runs, slots) = in_mid_load();
    let gap = |slots: &[Option<Slot>], rows: &[BatchRow<'_>]| {
        let merged = merge(&seam(&runs, slots), rows.iter().copied(), []);
        merged.map(|values| values.len()).map_err(|error| error.gap)
    };
    let changed = |change: fn(&mut Slot)| {
        let mut slots = slots.clone();
        change(slots[0].as_mut().unwrap());
        gap(&slots, &[])
    };
    assert_eq!(gap(&[None], &[]), Err(Gap::Missing));
    assert_eq!(gap(&slots, &[row(b"a", None, 3)]), Err(Gap::Unrecorded));
    assert_eq!(changed(|slot| slot.bounds.clear()), Err(Gap::Boundary));
    let elsewhere = changed(|slot| slot.bounds = BTreeMap::from([(1, cut(6))]));
    assert_eq!(elsewhere, Err(Gap::Boundary));
    assert_eq!(changed(|slot| slot.oldest = 3), Err(Gap::Dropped));
    let late = changed(|slot| slot.since = BTreeMap::from([(VIEW.to_owned(), 6)]));
    assert_eq!(late, Err(Gap::Uncounted));
    assert_eq!(changed(|slot| slot.since.clear()), Err(Gap::Uncounted));
    assert_eq!(gap(&slots, &[]), Ok(0));
}

/// Only a run mends that, so a reader must not wait for it as for a newer run.
#[test]
fn a_new_view_is_uncounted_though_earlier_epochs_were_let_go() {
    let (runs, mut slots) = in_mid_load();
    let of_new = |slots: &[Option<Slot>]| {
        let seam = Seam {
            view: "new@1",
            live: "new@1",
            newest: 0,
            ..seam(&runs, slots)
        };
        seam.check(0).map_err(|error| error.gap)
    };
    assert_eq!(of_new(&slots), Err(Gap::Uncounted));
    // An empty partition has counted every view from its beginning on.
    slots[0] = Some(slot(0, 2, &[(1, 0)]));
    assert_eq!(of_new(&slots), Err(Gap::Uncounted));
}

#[test]
fn rows_that_a_run_has_made_must_be_there() {
    let (runs, slots) = in_mid_load();
    let mut seam = seam(&runs, &slots);
    assert_eq!(seam.check_table(true), Ok(()));
    let gone = seam.check_table(false).unwrap_err();
    assert_eq!((gone.gap, gone.base), (Gap::Deleted, 1));
    seam.newest = 0;
    assert_eq!(seam.check_table(false), Ok(()));
}

#[test]
fn another_partition_may_be_missing() {
    let runs = Runs::default();
    let slots = [None, Some(slot(3, 1, &[(0, 0)]))];
    let of = |only| Seam {
        view: VIEW,
        live: VIEW,
        newest: 0,
        runs: &runs,
        slots: &slots,
        only,
    };
    assert_eq!(of(Some(1)).check(0), Ok(()));
    assert_eq!(of(None).check(0).unwrap_err().partition, 0);
    assert_eq!(of(Some(2)).check(0).unwrap_err().gap, Gap::Missing);
    let message = of(Some(0)).check(0).unwrap_err().to_string();
    assert!(
        message.contains("partition 0") && message.contains("`backstitch speed` makes it"),
        "{message}"
    );
}

const KEYS: usize = 4;

/// A log of two partitions with runs at its cuts, the newest of which may be half loaded.
#[derive(Debug, Clone)]
struct History {
    /// By partition: key and amount of each event.
    events: [Vec<(usize, i64)>; 2],
    /// By run, from 1 on: the cut of each partition.
    cuts: Vec<[usize; 2]>,
    /// The newest complete run; the one after it, where there is one, is being loaded.
    newest: usize,
    /// The epochs that the slots have let go of.
    dropped: usize,
    /// Which keys' rows the run after the newest has written.
    loaded: [bool; KEYS],
    /// Which keys' rows keep the epoch of the last run that changed them.
    kept: [bool; KEYS],
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
        .prop_map(|(events, mut cuts, (newest, dropped), loaded, kept)| {
            for partition in 0..2 {
                let mut sorted: Vec<usize> = cuts
                    .iter()
                    .map(|cut| cut[partition].min(events[partition].len()))
                    .collect();
                sorted.sort_unstable();
                for (cut, at) in cuts.iter_mut().zip(sorted) {
                    cut[partition] = at;
                }
            }
            // All runs but the last are over, so the newest complete one is the last or before it.
            let newest = cuts.len() - usize::from(!cuts.is_empty() && newest.index(2) == 1);
            let dropped = dropped.index(newest + 1);
            History {
                events,
                cuts,
                newest,
                dropped,
                loaded,
                kept,
            }
        })
}

fn bytes_of(key: usize) -> Vec<u8> {
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

    /// The count of a key after epoch `after` up to the end of epoch `through`, if an event gave it.
    fn fold(&self, key: usize, after: usize, through: usize) -> Option<i64> {
        let mut found = None;
        for (partition, events) in self.events.iter().enumerate() {
            let range = self.cut(after, partition)..self.cut(through, partition);
            for (_, amount) in events[range].iter().filter(|(k, _)| *k == key) {
                *found.get_or_insert(0) += amount;
            }
        }
        found
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

    fn slots(&self) -> Vec<Option<Slot>> {
        (0..2)
            .map(|p| {
                let bounds: Vec<(Epoch, i64)> = (self.dropped..=self.cuts.len())
                    .map(|e| (e as Epoch, self.cut(e, p) as i64))
                    .collect();
                let end = self.events[p].len() as i64;
                Some(slot(end, self.dropped as Epoch + 1, &bounds))
            })
            .collect()
    }

    /// Each key's row as the runs wrote it.
    fn rows(&self) -> Vec<(Vec<u8>, Option<i64>, Epoch)> {
        let row_of = |key: usize| {
            let half = self.newest < self.cuts.len() && self.loaded[key];
            let mut epoch = self.newest + usize::from(half);
            let count = self.fold(key, 0, epoch);
            while self.kept[key] && epoch > 0 && self.fold(key, epoch - 1, epoch).is_none() {
                epoch -= 1;
            }
            let written = count.is_some() || !self.kept[key];
            written.then(|| (bytes_of(key), count, epoch as Epoch))
        };
        (0..KEYS).filter_map(row_of).collect()
    }

    fn parts(&self) -> Vec<(Vec<u8>, Epoch, i64)> {
        (self.dropped + 1..=self.cuts.len() + 1)
            .flat_map(|e| (0..KEYS).map(move |key| (e, key)))
            .filter_map(|(e, key)| Some((bytes_of(key), e as Epoch, self.fold(key, e - 1, e)?)))
            .collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Wherever the runs were cut and however much of the newest is loaded, the merged values are
    /// the fold of all events.
    #[test]
    fn merging_is_the_fold_of_all_events(history in history()) {
        let (runs, slots) = (history.runs(), history.slots());
        let (rows, parts) = (history.rows(), history.parts());
        let seam = Seam {
            view: VIEW,
            live: VIEW,
            newest: history.newest as Epoch,
            runs: &runs,
            slots: &slots,
            only: None,
        };
        let merged = merge(
            &seam,
            rows.iter().map(|(key, count, epoch)| row(key, *count, *epoch)),
            parts.iter().rev().map(|(key, epoch, count)| part(key, *epoch, *count)),
        )
        .unwrap();
        let got: BTreeMap<usize, i128> =
            merged.iter().map(|m| (usize::from(m.key[0]), m.count)).collect();
        let expected: BTreeMap<usize, i128> = (0..KEYS)
            .filter_map(|key| Some((key, i128::from(history.fold(key, 0, history.cuts.len() + 1)?))))
            .collect();
        prop_assert_eq!(got, expected);
    }

    /// A slot that lost its boundary is never summed up.
    #[test]
    fn a_lost_boundary_is_refused(history in history()) {
        let (runs, mut slots) = (history.runs(), history.slots());
        if let Some(slot) = slots[1].as_mut() {
            slot.bounds.remove(&(history.newest as Epoch));
        }
        let seam = Seam {
            view: VIEW,
            live: VIEW,
            newest: history.newest as Epoch,
            runs: &runs,
            slots: &slots,
            only: None,
        };
        let first = Seam { only: Some(0), ..seam };
        prop_assert!(merge(&seam, [], []).is_err());
        prop_assert!(merge(&first, [], []).is_ok());
    }
}
