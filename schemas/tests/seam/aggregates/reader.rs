//! A reader: it reads the run records, then the partition states with their deltas, then the row.
//! It compares its answer with the log.

use rand::Rng;
use rand::rngs::SmallRng;
use schemas::seam::{self, Offset};

use super::rows::Row;
use super::stores::{Aggregates, KEYS, SharedWorld, StateWithDeltas, World};
use crate::simulation::{Event, Invariant, Progress, RunRecords, ViewKind, cut_at, end_step};

/// A key of a view.
#[derive(Debug, Clone, Copy)]
pub(super) struct Query {
    pub(super) view: usize,
    pub(super) key: usize,
}

impl Query {
    fn random(rng: &mut SmallRng) -> Self {
        Self {
            view: rng.random_range(0..Aggregates::VIEWS.len()),
            key: rng.random_range(0..KEYS),
        }
    }
}

/// A reader, with the run records of an earlier read, which later reads may use, too.
#[derive(Default)]
pub(super) struct Reader {
    log_partitions: usize,
    /// The run records, and the number of log partitions when they were read.
    cached: Option<(usize, RunRecords)>,
}

/// All that a read has read, in this order.
struct Read {
    query: Query,
    /// The progress of each partition, which only invariants use.
    progress: Vec<Progress>,
    run_records: RunRecords,
    states: Vec<Option<StateWithDeltas>>,
    /// The row of the key; the outer `None` if the view has no table.
    row: Option<Option<Row>>,
}

impl Reader {
    /// Performs a query, or a random one if it is `None`. Returns whether it was answered.
    pub(super) async fn read(&mut self, world: &SharedWorld, query: Option<Query>) -> bool {
        let random_query = Query::random(&mut world.borrow_mut().rng);
        let query = query.unwrap_or(random_query);
        let progress = world.borrow().progress();
        if self.cached.is_none() || world.borrow_mut().rng.random() {
            self.log_partitions = world.borrow().partitions();
        }
        let cached = self.cached.take();
        let cached = cached.filter(|_| world.borrow_mut().rng.random_ratio(3, 10));
        end_step().await;
        let (log_partitions, run_records) = match cached {
            Some(cached) => cached,
            None => {
                let run_records = world.borrow().run_records();
                end_step().await;
                (self.log_partitions, run_records)
            }
        };
        self.cached = Some((log_partitions, run_records.clone()));
        let partitions_to_read = world.borrow().stores.rules.partitions_to_read;
        let mut states = Vec::new();
        for partition in 0..partitions_to_read(log_partitions, &run_records.runs) {
            states.push(world.borrow().read_deltas(partition, query));
            end_step().await;
        }
        let row = world.borrow().table(query.view).map(|rows| rows[query.key]);
        end_step().await;
        let read = Read {
            query,
            progress,
            run_records,
            states,
            row,
        };
        let world = &mut *world.borrow_mut();
        let answer = read.merge(world);
        read.check(world, answer);
        answer.is_some()
    }
}

impl Read {
    /// Merges the row and the deltas; `None` if the sum could be wrong.
    fn merge(&self, world: &mut World) -> Option<i64> {
        let view = self.query.view;
        let latest = world.run_records();
        let run_records = if world.protocol.reads_runs_first {
            &self.run_records
        } else {
            &latest
        };
        let newest = run_records.newest[view];
        if newest > 0 && self.row.is_none() && world.stores.rules.requires_table {
            return None;
        }
        let row = self.row.flatten();
        let base = seam::base_epoch(row.map_or(0, |row| row.epoch), newest);
        let mut sum = row.and_then(|row| row.count).unwrap_or(0);
        let (is_readable, name) = (world.protocol.is_readable, Aggregates::VIEWS[view]);
        for (partition, state) in self.states.iter().enumerate() {
            let (state, deltas) = state.as_ref()?;
            if !is_readable(state, partition, base, &run_records.runs, name) {
                return None;
            }
            let deltas = deltas.iter().filter(|(epoch, _)| *epoch > base);
            sum += deltas.map(|(_, count)| count).sum::<i64>();
        }
        if base > newest {
            world.count_event(Event::AnsweredDuringRun);
        }
        Some(sum)
    }

    fn check(&self, world: &mut World, answer: Option<i64>) {
        let Some(sum) = answer else {
            return world.count_event(Event::Refused);
        };
        world.count_event(Event::Answered);
        let states = self.states.iter().flatten();
        let positions: Vec<_> = states.map(|(state, _)| state.position).collect();
        if positions.iter().any(|cut| *cut != cut_at(cut.next_offset)) {
            let description = format!("a position does not match the log: {positions:?}");
            world.report_violation(Invariant::Exact, description);
        }
        let offsets: Vec<Offset> = positions.iter().map(|cut| cut.next_offset).collect();
        self.check_freshness(world, &offsets);
        let Query { view, key } = self.query;
        let expected = world.sum_log(view, key, &offsets).unwrap_or(0);
        if sum != expected {
            let name = Aggregates::VIEWS[view];
            let description =
                format!("key {key} of {name} is {sum} at {offsets:?}, not {expected}");
            world.report_violation(Invariant::Exact, description);
        }
    }

    /// Checks that the answer includes everything that was counted when the read began. A replay or
    /// a reversion meanwhile excuses it.
    fn check_freshness(&self, world: &mut World, offsets: &[Offset]) {
        let mut states = self.states.iter().flatten();
        if states.any(|(state, _)| state.is_replaying()) {
            return world.count_event(Event::AnsweredDuringReplay);
        }
        let current = world.progress();
        for (partition, offset) in offsets.iter().enumerate() {
            let Some(earlier) = self.progress.get(partition) else {
                continue;
            };
            let has_reverted = earlier.reversions != current[partition].reversions;
            if !has_reverted && *offset < earlier.offset {
                let description =
                    format!("{offsets:?}, although partition {partition} was at {earlier:?}");
                return world.report_violation(Invariant::Fresh, description);
            }
        }
    }
}
