//! Random histories of slots, against the pure rules and a plain map.
//!
//! The rules of the seam are proved elsewhere; here a store must only do exactly what they say, and
//! keep the live parts in step with them.

use std::collections::BTreeMap;

use arrow::array::Int64Array;
use proptest::prelude::*;
use schemas::seam::{Cut, Epoch, Fence, Generation, LastRecord, Moved, NewLife, RollRefused, Slot};
use stores::Result;
use stores::live::{Deltas, LiveQuery, LiveWrite, SlotId};

use super::{OTHER_VIEW, VIEW, binary, bytes, slot};

/// Epochs that are let go leave so many bounds behind them.
const KEEP_BOUNDS: u64 = 8;

/// One call to a store.
#[derive(Debug, Clone)]
pub enum Call {
    /// A micro-batch of so many records.
    Apply {
        /// How far the caller's belief is from the truth.
        belief: Belief,
        /// Records.
        records: i64,
        /// View (the first or the second), group, row, delta.
        deltas: Vec<(bool, u8, u8, i64)>,
        /// Whether the worker keeps the second view.
        both_views: bool,
    },
    /// A recorded cut is put back.
    Impose(Belief),
    /// The epoch so many before the present one is ended; the present one for 0.
    Roll(u64),
    /// A new life.
    Heal(Belief, Generation),
    /// Epochs up to the one so many before the present one are let go, with the right cut or not.
    Drop(u64, bool),
    /// So many parts of garbage at most are deleted.
    Collect(usize),
}

/// What a caller believes of a slot.
#[derive(Debug, Clone, Copy)]
pub enum Belief {
    /// The truth.
    Right,
    /// Another generation, position or epoch.
    Wrong(u8),
}

/// Histories of one slot.
pub fn histories() -> impl Strategy<Value = Vec<Call>> {
    let belief = || {
        prop_oneof![
            6 => Just(Belief::Right),
            1 => (0..3_u8).prop_map(Belief::Wrong),
        ]
    };
    let delta = (any::<bool>(), 0..3_u8, 0..6_u8, -3..9_i64);
    let apply = (
        belief(),
        0..20_i64,
        proptest::collection::vec(delta, 0..12),
        any::<bool>(),
    )
        .prop_map(|(belief, records, deltas, both_views)| Call::Apply {
            belief,
            records,
            deltas,
            both_views,
        });
    let call = prop_oneof![
        8 => apply,
        1 => belief().prop_map(Call::Impose),
        3 => (0..4_u64).prop_map(Call::Roll),
        1 => (belief(), 0..5_u64).prop_map(|(belief, hint)| Call::Heal(belief, hint)),
        2 => (0..4_u64, any::<bool>()).prop_map(|(back, right)| Call::Drop(back, right)),
        1 => (0..20_usize).prop_map(Call::Collect),
    ];
    proptest::collection::vec(call, 1..40).prop_map(|mut calls| {
        // Most histories begin with a slot.
        calls.insert(0, Call::Heal(Belief::Right, 7));
        calls
    })
}

type PartKey = (Generation, Epoch, &'static str, Vec<u8>, Vec<u8>);

/// What a store should hold for one slot.
#[derive(Debug, Default)]
struct Model {
    slot: Option<Slot>,
    parts: BTreeMap<PartKey, i64>,
}

impl Model {
    /// The epoch that is being filled.
    fn present(&self) -> Epoch {
        self.slot.as_ref().map_or(1, |slot| slot.epoch)
    }

    fn fence(&self, belief: Belief) -> Fence {
        let truth = self.slot.as_ref().map_or(
            Fence {
                generation: 3,
                next_offset: 5,
                epoch: 1,
            },
            Slot::fence,
        );
        match belief {
            Belief::Right => truth,
            Belief::Wrong(0) => Fence {
                generation: truth.generation + 1,
                ..truth
            },
            Belief::Wrong(1) => Fence {
                next_offset: truth.next_offset + 1,
                ..truth
            },
            Belief::Wrong(_) => Fence {
                epoch: truth.epoch + 1,
                ..truth
            },
        }
    }

    fn add(&mut self, fence: Fence, deltas: &BTreeMap<(&'static str, Vec<u8>, Vec<u8>), i64>) {
        for ((view, group, row), delta) in deltas {
            let key = (
                fence.generation,
                fence.epoch,
                *view,
                group.clone(),
                row.clone(),
            );
            *self.parts.entry(key).or_default() += delta;
        }
    }

    /// The parts of a view and group that a read may see.
    fn visible(&self, view: &str, group: &[u8]) -> Vec<(Epoch, Vec<u8>, i64)> {
        let Some(slot) = &self.slot else {
            return Vec::new();
        };
        self.parts
            .iter()
            .filter(|((generation, epoch, v, g, _), _)| {
                *generation == slot.generation && *epoch >= slot.oldest && *v == view && g == group
            })
            .map(|((_, epoch, _, _, row), count)| (*epoch, row.clone(), *count))
            .collect()
    }
}

/// A store that runs `calls` on the slot of `partition`, which must be missing at first, answers
/// each as the pure rules do and holds what they hold, at every moment.
///
/// # Errors
/// Those of the store.
pub async fn follows_the_model(live: &dyn LiveWrite, partition: u32, calls: &[Call]) -> Result<()> {
    let mut model = Model::default();
    for (number, call) in calls.iter().enumerate() {
        run(live, partition, &mut model, call).await?;
        if number % 4 == 0 || number + 1 == calls.len() {
            compare(live, partition, &model).await?;
        }
    }
    Ok(())
}

async fn run(live: &dyn LiveWrite, partition: u32, model: &mut Model, call: &Call) -> Result<()> {
    let id = slot(partition);
    let present = model.present();
    match call {
        Call::Apply { .. } => apply(live, id, model, call).await?,
        Call::Impose(belief) => {
            let believed = model.fence(*belief);
            let expected = match &mut model.slot {
                None => Err(Moved { at: None }),
                Some(slot) => slot.impose(&believed),
            };
            assert_eq!(live.impose(id, believed).await?, expected, "{call:?}");
        }
        Call::Roll(back) => {
            let epoch = present.saturating_sub(*back);
            let expected = match &mut model.slot {
                None => Err(RollRefused::Missing),
                Some(slot) => slot.roll(epoch),
            };
            assert_eq!(live.roll(id, epoch).await?, expected, "{call:?}");
        }
        Call::Heal(belief, hint) => heal(live, id, model, *belief, *hint).await?,
        Call::Drop(back, right) => {
            let epoch = present.saturating_sub(*back);
            let bound = model
                .slot
                .as_ref()
                .and_then(|slot| slot.bounds.get(&epoch).copied());
            let mut cut = bound.unwrap_or_else(Cut::start);
            cut.next_offset += i64::from(!*right);
            let expected = model
                .slot
                .as_mut()
                .is_some_and(|slot| slot.drop_through(epoch, cut, KEEP_BOUNDS));
            assert_eq!(
                live.drop_through(id, epoch, cut).await?,
                expected,
                "{call:?}"
            );
        }
        Call::Collect(limit) => {
            let deleted = live.collect_garbage(id, *limit).await?;
            assert!(deleted <= *limit, "{call:?}: {deleted}");
        }
    }
    Ok(())
}

async fn apply(live: &dyn LiveWrite, id: SlotId, model: &mut Model, call: &Call) -> Result<()> {
    let Call::Apply {
        belief,
        records,
        deltas,
        both_views,
    } = call
    else {
        return Ok(());
    };
    let believed = model.fence(*belief);
    let next = Cut {
        next_offset: believed.next_offset + records,
        last: Some(LastRecord {
            offset: believed.next_offset + records - 1,
            checksum: 77,
            logged_at_ms: 1000 + records,
        }),
    };
    let views: &[&str] = if *both_views {
        &[VIEW, OTHER_VIEW]
    } else {
        &[VIEW]
    };
    let mut sums = BTreeMap::new();
    for (second, group, row, delta) in deltas {
        let view = if *second && *both_views {
            OTHER_VIEW
        } else {
            VIEW
        };
        *sums.entry((view, vec![*group], vec![0, *row])).or_default() += delta;
    }
    let expected = match &mut model.slot {
        None => Err(Moved { at: None }),
        Some(slot) => slot.apply(&believed, next, views),
    };
    if expected.is_ok() {
        model.add(believed, &sums);
    }
    let told = live
        .apply(id, believed, next, views, &columns(&sums).into())
        .await?;
    assert_eq!(told, expected, "{call:?}");
    Ok(())
}

async fn heal(
    live: &dyn LiveWrite,
    id: SlotId,
    model: &mut Model,
    belief: Belief,
    hint: Generation,
) -> Result<()> {
    let present = model.present();
    let seen = match (belief, &model.slot) {
        (Belief::Right, slot) => slot.as_ref().map(Slot::fence),
        (Belief::Wrong(0), Some(_)) => None,
        (belief, _) => Some(model.fence(belief)),
    };
    let cut = Cut {
        next_offset: 3 * i64::try_from(hint).unwrap_or(0),
        last: None,
    };
    let life = NewLife {
        newest: present / 2,
        cut,
        log_end: 20,
        hint,
    };
    let healed = Slot::heal(model.slot.as_ref(), seen, &life);
    let expected = healed.map(|healed| model.slot = Some(healed));
    assert_eq!(
        live.heal(id, seen, &life).await?,
        expected,
        "healing, {belief:?} {hint}"
    );
    Ok(())
}

fn columns(sums: &BTreeMap<(&'static str, Vec<u8>, Vec<u8>), i64>) -> Vec<Deltas> {
    [OTHER_VIEW, VIEW]
        .into_iter()
        .map(|view| {
            // Backwards, since a store may not rely on an order.
            let rows = || sums.iter().rev().filter(move |((v, _, _), _)| *v == view);
            Deltas {
                view: view.to_owned(),
                grouped_by: "g".to_owned(),
                groups: binary(rows().map(|((_, group, _), _)| group)),
                rows: binary(rows().map(|((_, _, row), _)| row)),
                counts: Int64Array::from_iter_values(rows().map(|(_, delta)| *delta)),
            }
        })
        .collect()
}

async fn compare(live: &dyn LiveWrite, partition: u32, model: &Model) -> Result<()> {
    let id = slot(partition);
    let keys: Vec<(&str, Vec<u8>)> = [VIEW, OTHER_VIEW]
        .into_iter()
        .flat_map(|v| (0..3).map(move |g| (v, vec![g])))
        .collect();
    let queries: Vec<LiveQuery> = keys
        .iter()
        .map(|(view, group)| LiveQuery {
            view: (*view).to_owned(),
            group: group.clone(),
            ranges: vec![(Vec::new(), Some(vec![0, 2])), (vec![0, 3], None)],
            partition: Some(partition),
        })
        .collect();
    let answer = live.read(id.source, partition + 1, &queries).await?;
    assert_eq!(answer.slots.len(), partition as usize + 1);
    assert_eq!(answer.slots[partition as usize], model.slot);
    assert_eq!(answer.parts.len(), queries.len());
    for ((view, group), parts) in keys.iter().zip(&answer.parts) {
        let rows = bytes(&parts.rows);
        let mut found: Vec<(Epoch, Vec<u8>, i64)> = (0..parts.counts.len())
            .map(|n| {
                (
                    parts.epochs.value(n),
                    rows[n].clone(),
                    parts.counts.value(n),
                )
            })
            .collect();
        found.sort();
        let mut expected = model.visible(view, group);
        expected.retain(|(_, row, _)| row[..] != [0, 2]);
        assert_eq!(found, expected, "{view} {group:?}");
        assert!(
            parts
                .partitions
                .values()
                .iter()
                .all(|found| *found == partition)
        );
    }
    for epochs in [(0, Epoch::MAX), (1, 2), (2, 2)] {
        compare_scan(live, id, model, epochs).await?;
    }
    Ok(())
}

async fn compare_scan(
    live: &dyn LiveWrite,
    id: SlotId,
    model: &Model,
    epochs: (Epoch, Epoch),
) -> Result<()> {
    let mut expected: BTreeMap<(Vec<u8>, Vec<u8>), i64> = BTreeMap::new();
    for group in 0..3 {
        for (epoch, row, count) in model.visible(VIEW, &[group]) {
            if (epochs.0..=epochs.1).contains(&epoch) {
                *expected.entry((vec![group], row)).or_default() += count;
            }
        }
    }
    let mut found = Vec::new();
    loop {
        let after = found
            .last()
            .map(|(key, _): &((Vec<u8>, Vec<u8>), i64)| key.clone());
        let page = live.scan(id, VIEW, epochs, after, 4).await?;
        assert!(page.counts.len() <= 4);
        if page.counts.is_empty() {
            break;
        }
        let keys = bytes(&page.groups).into_iter().zip(bytes(&page.rows));
        found.extend(keys.zip(page.counts.values().iter().copied()));
    }
    assert_eq!(
        found,
        expected.into_iter().collect::<Vec<_>>(),
        "epochs {epochs:?}"
    );
    Ok(())
}
