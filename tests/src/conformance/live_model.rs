//! Compares random histories of partition states with the pure rules and a plain map.
//!
//! The rules themselves are proved elsewhere. Here a store must follow them exactly and keep live
//! deltas consistent with them.

use std::collections::BTreeMap;

use arrow::array::Int64Array;
use proptest::prelude::*;
use schemas::seam::{
    Checkpoint, CheckpointMismatch, Cut, EndEpochError, Epoch, Generation, GenerationStart,
    LastRecord, PartitionState,
};
use stores::Result;
use stores::live::{DeltaQuery, Deltas, LiveWrite, PartitionId};

use super::{OTHER_VIEW, VIEW, binary, bytes, state_id};

/// Number of epoch bounds that are kept after pruning.
const KEEP_BOUNDS: u64 = 8;

/// One call to a store.
#[derive(Debug, Clone)]
pub enum Call {
    /// Applies a micro-batch.
    Apply {
        /// How the caller's checkpoint differs from the actual one.
        belief: Belief,
        /// Number of records.
        records: i64,
        /// View (first or second), group, row and delta.
        deltas: Vec<(bool, u8, u8, i64)>,
        /// True if the worker maintains the second view.
        both_views: bool,
    },
    /// Closes the epoch at a recorded cut.
    CloseEpoch(Belief),
    /// Ends the epoch this many before the current one; 0 is the current one.
    EndEpoch(u64),
    /// Rebuilds the state in a new generation.
    Rebuild(Belief, Generation),
    /// Prunes epochs up to the one this many before the current one, with the right cut or a wrong
    /// one.
    Prune(u64, bool),
    /// Deletes at most this many garbage deltas.
    Collect(usize),
}

/// The caller's assumption about a partition state.
#[derive(Debug, Clone, Copy)]
pub enum Belief {
    /// The actual checkpoint.
    Right,
    /// Another generation, position or epoch.
    Wrong(u8),
}

/// Generates histories of one partition state.
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
        1 => belief().prop_map(Call::CloseEpoch),
        3 => (0..4_u64).prop_map(Call::EndEpoch),
        1 => (belief(), 0..5_u64).prop_map(|(belief, hint)| Call::Rebuild(belief, hint)),
        2 => (0..4_u64, any::<bool>()).prop_map(|(back, right)| Call::Prune(back, right)),
        1 => (0..20_usize).prop_map(Call::Collect),
    ];
    proptest::collection::vec(call, 1..40).prop_map(|mut calls| {
        // Most histories begin with a partition state.
        calls.insert(0, Call::Rebuild(Belief::Right, 7));
        calls
    })
}

type DeltaKey = (Generation, Epoch, &'static str, Vec<u8>, Vec<u8>);

/// The expected contents of a store for one partition state.
#[derive(Debug, Default)]
struct Model {
    state: Option<PartitionState>,
    deltas: BTreeMap<DeltaKey, i64>,
}

impl Model {
    /// Returns the epoch that is being filled.
    fn current_epoch(&self) -> Epoch {
        self.state.as_ref().map_or(1, |state| state.epoch)
    }

    fn checkpoint(&self, belief: Belief) -> Checkpoint {
        let actual = self.state.as_ref().map_or(
            Checkpoint {
                generation: 3,
                next_offset: 5,
                epoch: 1,
            },
            PartitionState::checkpoint,
        );
        match belief {
            Belief::Right => actual,
            Belief::Wrong(0) => Checkpoint {
                generation: actual.generation + 1,
                ..actual
            },
            Belief::Wrong(1) => Checkpoint {
                next_offset: actual.next_offset + 1,
                ..actual
            },
            Belief::Wrong(_) => Checkpoint {
                epoch: actual.epoch + 1,
                ..actual
            },
        }
    }

    fn add(
        &mut self,
        checkpoint: Checkpoint,
        deltas: &BTreeMap<(&'static str, Vec<u8>, Vec<u8>), i64>,
    ) {
        for ((view, group, row), delta) in deltas {
            let key = (
                checkpoint.generation,
                checkpoint.epoch,
                *view,
                group.clone(),
                row.clone(),
            );
            *self.deltas.entry(key).or_default() += delta;
        }
    }

    /// Returns the deltas of a view and group that a query may see.
    fn visible(&self, view: &str, group: &[u8]) -> Vec<(Epoch, Vec<u8>, i64)> {
        let Some(state) = &self.state else {
            return Vec::new();
        };
        self.deltas
            .iter()
            .filter(|((generation, epoch, v, g, _), _)| {
                *generation == state.generation
                    && *epoch >= state.oldest
                    && *v == view
                    && g == group
            })
            .map(|((_, epoch, _, _, row), count)| (*epoch, row.clone(), *count))
            .collect()
    }
}

/// Runs `calls` on the state of `partition`, which must not exist yet, and compares every result
/// and the contents with the pure rules.
///
/// # Errors
/// Errors of the store.
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
    let id = state_id(partition);
    let current = model.current_epoch();
    match call {
        Call::Apply { .. } => apply(live, id, model, call).await?,
        Call::CloseEpoch(belief) => {
            let checkpoint = model.checkpoint(*belief);
            let expected = match &mut model.state {
                None => Err(CheckpointMismatch { actual: None }),
                Some(state) => state.close_epoch(&checkpoint),
            };
            assert_eq!(
                live.close_epoch(id, checkpoint).await?,
                expected,
                "{call:?}"
            );
        }
        Call::EndEpoch(back) => {
            let epoch = current.saturating_sub(*back);
            let expected = match &mut model.state {
                None => Err(EndEpochError::Missing),
                Some(state) => state.end_epoch(epoch),
            };
            assert_eq!(live.end_epoch(id, epoch).await?, expected, "{call:?}");
        }
        Call::Rebuild(belief, hint) => rebuild(live, id, model, *belief, *hint).await?,
        Call::Prune(back, is_right) => {
            let epoch = current.saturating_sub(*back);
            let bound = model
                .state
                .as_ref()
                .and_then(|state| state.bounds.get(&epoch).copied());
            let mut cut = bound.unwrap_or_else(Cut::start);
            cut.next_offset += i64::from(!*is_right);
            let expected = model
                .state
                .as_mut()
                .is_some_and(|state| state.prune_through(epoch, cut, KEEP_BOUNDS));
            assert_eq!(
                live.prune_through(id, epoch, cut).await?,
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

async fn apply(
    live: &dyn LiveWrite,
    id: PartitionId,
    model: &mut Model,
    call: &Call,
) -> Result<()> {
    let Call::Apply {
        belief,
        records,
        deltas,
        both_views,
    } = call
    else {
        return Ok(());
    };
    let checkpoint = model.checkpoint(*belief);
    let next = Cut {
        next_offset: checkpoint.next_offset + records,
        last: Some(LastRecord {
            offset: checkpoint.next_offset + records - 1,
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
    let expected = match &mut model.state {
        None => Err(CheckpointMismatch { actual: None }),
        Some(state) => state.apply(&checkpoint, next, views),
    };
    if expected.is_ok() {
        model.add(checkpoint, &sums);
    }
    let actual = live
        .apply(id, checkpoint, next, views, &columns(&sums).into())
        .await?;
    assert_eq!(actual, expected, "{call:?}");
    Ok(())
}

async fn rebuild(
    live: &dyn LiveWrite,
    id: PartitionId,
    model: &mut Model,
    belief: Belief,
    hint: Generation,
) -> Result<()> {
    let current = model.current_epoch();
    let checkpoint = match (belief, &model.state) {
        (Belief::Right, state) => state.as_ref().map(PartitionState::checkpoint),
        (Belief::Wrong(0), Some(_)) => None,
        (belief, _) => Some(model.checkpoint(belief)),
    };
    let cut = Cut {
        next_offset: 3 * i64::try_from(hint).unwrap_or(0),
        last: None,
    };
    let generation_start = GenerationStart {
        newest: current / 2,
        cut,
        log_end: 20,
        generation_min: hint,
    };
    let rebuilt = PartitionState::rebuild(model.state.as_ref(), checkpoint, &generation_start);
    let expected = rebuilt.map(|rebuilt| model.state = Some(rebuilt));
    assert_eq!(
        live.rebuild(id, checkpoint, &generation_start).await?,
        expected,
        "rebuild, {belief:?} {hint}"
    );
    Ok(())
}

fn columns(sums: &BTreeMap<(&'static str, Vec<u8>, Vec<u8>), i64>) -> Vec<Deltas> {
    [OTHER_VIEW, VIEW]
        .into_iter()
        .map(|view| {
            // In reverse, because a store must not rely on an order.
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
    let id = state_id(partition);
    let keys: Vec<(&str, Vec<u8>)> = [VIEW, OTHER_VIEW]
        .into_iter()
        .flat_map(|v| (0..3).map(move |g| (v, vec![g])))
        .collect();
    let queries: Vec<DeltaQuery> = keys
        .iter()
        .map(|(view, group)| DeltaQuery {
            view: (*view).to_owned(),
            group: group.clone(),
            ranges: vec![(Vec::new(), Some(vec![0, 2])), (vec![0, 3], None)],
            partition: Some(partition),
        })
        .collect();
    let snapshot = live.read_deltas(id.source, partition + 1, &queries).await?;
    assert_eq!(snapshot.partition_states.len(), partition as usize + 1);
    assert_eq!(snapshot.partition_states[partition as usize], model.state);
    assert_eq!(snapshot.deltas.len(), queries.len());
    for ((view, group), deltas) in keys.iter().zip(&snapshot.deltas) {
        let rows = bytes(&deltas.rows);
        let mut actual: Vec<(Epoch, Vec<u8>, i64)> = (0..deltas.counts.len())
            .map(|n| {
                (
                    deltas.epochs.value(n),
                    rows[n].clone(),
                    deltas.counts.value(n),
                )
            })
            .collect();
        actual.sort();
        let mut expected = model.visible(view, group);
        expected.retain(|(_, row, _)| row[..] != [0, 2]);
        assert_eq!(actual, expected, "{view} {group:?}");
        assert!(
            deltas
                .partitions
                .values()
                .iter()
                .all(|actual| *actual == partition)
        );
    }
    for epochs in [(0, Epoch::MAX), (1, 2), (2, 2)] {
        compare_scan(live, id, model, epochs).await?;
    }
    Ok(())
}

async fn compare_scan(
    live: &dyn LiveWrite,
    id: PartitionId,
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
    let mut actual = Vec::new();
    loop {
        let after = actual
            .last()
            .map(|(key, _): &((Vec<u8>, Vec<u8>), i64)| key.clone());
        let page = live.collect_deltas(id, VIEW, epochs, after, 4).await?;
        assert!(page.counts.len() <= 4);
        if page.counts.is_empty() {
            break;
        }
        let keys = bytes(&page.groups).into_iter().zip(bytes(&page.rows));
        actual.extend(keys.zip(page.counts.values().iter().copied()));
    }
    assert_eq!(
        actual,
        expected.into_iter().collect::<Vec<_>>(),
        "epochs {epochs:?}"
    );
    Ok(())
}
