//! A reader: the newest complete run, then the slots with their parts, then the row; and what it
//! answers compared with a fold of the log.

use rand::Rng;

use super::tally::{Event, Law};
use super::world::{KEYS, Row, RunsSeen, SlotRead, VIEWS, World};
use crate::seam::{self, Cut, Offset};

pub(super) struct Reader {
    /// Where not given, a read is for any view and key.
    only: Option<(usize, usize)>,
    asked: (usize, usize),
    partitions: usize,
    /// What was read before may be used for some time.
    seen: Option<(usize, RunsSeen)>,
    slots: Vec<SlotRead>,
    /// What had been counted when the question came.
    counted: Vec<(Offset, u64)>,
    at: At,
    /// What the last read came to.
    pub(super) answered: Option<bool>,
}

/// What comes next.
enum At {
    ReadLog,
    ReadRuns,
    ReadSlots,
    ReadRow,
    Answer(Option<Option<Row>>),
}

impl Reader {
    pub(super) fn new(only: Option<(usize, usize)>) -> Self {
        Self {
            only,
            asked: (0, 0),
            partitions: 0,
            seen: None,
            slots: Vec::new(),
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
                self.asked = self.only.unwrap_or(anything);
                self.slots.clear();
                self.counted = world.counted().to_vec();
                if self.seen.is_none() || world.rng.random() {
                    self.partitions = world.partitions();
                }
                let cached = self.seen.is_some() && world.rng.random_ratio(3, 10);
                self.at = if cached { At::ReadSlots } else { At::ReadRuns };
            }
            At::ReadRuns => {
                self.seen = Some((self.partitions, world.runs()));
                self.at = At::ReadSlots;
            }
            At::ReadSlots => {
                let (view, key) = self.asked;
                self.slots.push(world.read(self.slots.len(), view, key));
                if self.slots.len() >= self.slots_wanted(world) {
                    self.at = At::ReadRow;
                }
            }
            At::ReadRow => {
                let (view, key) = self.asked;
                self.at = At::Answer(world.row(view, key));
            }
            At::Answer(row) => {
                self.at = At::ReadLog;
                let answer = self.answer(world, row);
                self.compare(world, answer);
            }
        }
    }

    fn slots_wanted(&self, world: &World) -> usize {
        self.seen
            .as_ref()
            .map_or(self.partitions, |(partitions, seen)| {
                (world.rules.partitions)(*partitions, &seen.runs)
            })
    }

    /// The sum, or nothing if it could be wrong.
    fn answer(&self, world: &mut World, row: Option<Option<Row>>) -> Option<i64> {
        let (view, _) = self.asked;
        let (_, seen) = self.seen.as_ref()?;
        let latest = world.runs();
        let seen = if world.rules.newest_first {
            seen
        } else {
            &latest
        };
        if seen.newest[view].is_some() && row.is_none() && world.rules.needs_table {
            return None;
        }
        let row = row.flatten();
        let newest = seen.newest[view].unwrap_or(0);
        let base = seam::base(row.map_or(0, |row| row.epoch), newest);
        let mut sum = row.and_then(|row| row.count).unwrap_or(0);
        for (partition, read) in self.slots.iter().enumerate() {
            let (slot, parts) = read.as_ref()?;
            if !(world.rules.whole)(slot, partition, base, &seen.runs, VIEWS[view]) {
                return None;
            }
            sum += parts
                .iter()
                .filter(|(epoch, _)| *epoch > base)
                .map(|(_, n)| n)
                .sum::<i64>();
        }
        if base > newest {
            world.note(Event::HalfLoaded);
        }
        Some(sum)
    }

    fn compare(&mut self, world: &mut World, answer: Option<i64>) {
        let (view, key) = self.asked;
        self.answered = Some(answer.is_some());
        let Some(sum) = answer else {
            world.note(Event::Refused);
            return;
        };
        world.note(Event::Answered);
        let positions: Vec<Cut> = self
            .slots
            .iter()
            .flatten()
            .map(|(slot, _)| slot.position)
            .collect();
        if positions
            .iter()
            .any(|position| *position != world.cut_at(position.next_offset))
        {
            let what = format!("a position with another last record: {positions:?}");
            world.contradict(Law::Exact, what);
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
            world.contradict(Law::Exact, what);
        }
    }

    fn compare_steady(&self, world: &mut World, offsets: &[Offset]) {
        if self
            .slots
            .iter()
            .flatten()
            .any(|(slot, _)| slot.is_replaying())
        {
            world.note(Event::Replaying);
            return;
        }
        for (partition, (before, now)) in self.counted.iter().zip(world.counted()).enumerate() {
            let fell_back = before.1 != now.1;
            if !fell_back && offsets.get(partition).is_some_and(|at| *at < before.0) {
                let what = format!("{offsets:?}, though partition {partition} stood at {before:?}");
                return world.contradict(Law::Steady, what);
            }
        }
    }
}
