//! A reader: reads the newest complete run, then the partition states with their deltas, then the
//! row. It compares its answer with a fold of the log.

use rand::Rng;

use super::events::{Event, Law};
use super::world::{KEYS, Row, RunRecords, StateRead, VIEWS, World};
use crate::seam::{self, Cut, Offset};

pub(super) struct Reader {
    /// The view and key to read; a random one if `None`.
    only: Option<(usize, usize)>,
    question: (usize, usize),
    partitions: usize,
    /// The partition count and run records of an earlier read, which later reads may reuse.
    run_records: Option<(usize, RunRecords)>,
    partition_states: Vec<StateRead>,
    /// By partition: the counted offset and the number of reversions when the read began.
    counted: Vec<(Offset, u64)>,
    at: At,
    /// The result of the last read: answered or refused.
    pub(super) answered: Option<bool>,
}

/// The next operation.
enum At {
    ReadLog,
    ReadRuns,
    ReadStates,
    ReadRow,
    Answer(Option<Option<Row>>),
}

impl Reader {
    pub(super) fn new(only: Option<(usize, usize)>) -> Self {
        Self {
            only,
            question: (0, 0),
            partitions: 0,
            run_records: None,
            partition_states: Vec::new(),
            counted: Vec::new(),
            at: At::ReadLog,
            answered: None,
        }
    }

    pub(super) fn step(&mut self, world: &mut World) {
        match self.at {
            At::ReadLog => {
                let anything = (
                    world.rng.random_range(0..VIEWS.len()),
                    world.rng.random_range(0..KEYS),
                );
                self.question = self.only.unwrap_or(anything);
                self.partition_states.clear();
                self.counted = world.counted().to_vec();
                if self.run_records.is_none() || world.rng.random() {
                    self.partitions = world.partitions();
                }
                let cached = self.run_records.is_some() && world.rng.random_ratio(3, 10);
                self.at = if cached { At::ReadStates } else { At::ReadRuns };
            }
            At::ReadRuns => {
                self.run_records = Some((self.partitions, world.runs()));
                self.at = At::ReadStates;
            }
            At::ReadStates => {
                let (view, key) = self.question;
                self.partition_states
                    .push(world.read(self.partition_states.len(), view, key));
                if self.partition_states.len() >= self.partitions_to_read(world) {
                    self.at = At::ReadRow;
                }
            }
            At::ReadRow => {
                let (view, key) = self.question;
                self.at = At::Answer(world.row(view, key));
            }
            At::Answer(row) => {
                self.at = At::ReadLog;
                let answer = self.answer(world, row);
                self.compare(world, answer);
            }
        }
    }

    fn partitions_to_read(&self, world: &World) -> usize {
        self.run_records
            .as_ref()
            .map_or(self.partitions, |(partitions, run_records)| {
                (world.rules.partitions)(*partitions, &run_records.runs)
            })
    }

    /// Computes the sum; `None` if it could be wrong.
    fn answer(&self, world: &mut World, row: Option<Option<Row>>) -> Option<i64> {
        let (view, _) = self.question;
        let (_, run_records) = self.run_records.as_ref()?;
        let latest = world.runs();
        let run_records = if world.rules.newest_first {
            run_records
        } else {
            &latest
        };
        if run_records.newest[view].is_some() && row.is_none() && world.rules.needs_table {
            return None;
        }
        let row = row.flatten();
        let newest = run_records.newest[view].unwrap_or(0);
        let base = seam::base(row.map_or(0, |row| row.epoch), newest);
        let mut sum = row.and_then(|row| row.count).unwrap_or(0);
        for (partition, read) in self.partition_states.iter().enumerate() {
            let (partition_state, deltas) = read.as_ref()?;
            if !(world.rules.is_readable)(
                partition_state,
                partition,
                base,
                &run_records.runs,
                VIEWS[view],
            ) {
                return None;
            }
            sum += deltas
                .iter()
                .filter(|(epoch, _)| *epoch > base)
                .map(|(_, n)| n)
                .sum::<i64>();
        }
        if base > newest {
            world.count_event(Event::HalfLoaded);
        }
        Some(sum)
    }

    fn compare(&mut self, world: &mut World, answer: Option<i64>) {
        let (view, key) = self.question;
        self.answered = Some(answer.is_some());
        let Some(sum) = answer else {
            world.count_event(Event::Refused);
            return;
        };
        world.count_event(Event::Answered);
        let positions: Vec<Cut> = self
            .partition_states
            .iter()
            .flatten()
            .map(|(partition_state, _)| partition_state.position)
            .collect();
        if positions
            .iter()
            .any(|position| *position != world.cut_at(position.next_offset))
        {
            let what = format!("a position does not match the log: {positions:?}");
            world.report_violation(Law::Exact, what);
        }
        let offsets: Vec<Offset> = positions
            .iter()
            .map(|position| position.next_offset)
            .collect();
        self.compare_steady(world, &offsets);
        let expected = world.fold(view, key, &offsets).unwrap_or(0);
        if sum != expected {
            let view = VIEWS[view];
            let what = format!("key {key} of {view} is {sum} at {offsets:?}, not {expected}");
            world.report_violation(Law::Exact, what);
        }
    }

    fn compare_steady(&self, world: &mut World, offsets: &[Offset]) {
        if self
            .partition_states
            .iter()
            .flatten()
            .any(|(partition_state, _)| partition_state.is_replaying())
        {
            world.count_event(Event::Replaying);
            return;
        }
        for (partition, (before, now)) in self.counted.iter().zip(world.counted()).enumerate() {
            let reverted = before.1 != now.1;
            if !reverted && offsets.get(partition).is_some_and(|at| *at < before.0) {
                let what = format!("{offsets:?}, although partition {partition} was at {before:?}");
                return world.report_violation(Law::Fresh, what);
            }
        }
    }
}
