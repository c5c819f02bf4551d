//! Live state: slots with the states that their workers put there, and how they are lost.

use std::rc::Rc;

use rand::Rng;

use super::canon::{Group, State};
use super::sums::{Kept, SumChange};
use super::tally::{Event, Law};
use super::world::World;
use crate::seam::{Cut, Epoch, Fence, Generation, LastRecord, Offset, Runs, Slot};

pub(super) const VIEW: &str = "board@1";

const PAST_MAX: usize = 12;
const KEEP_BOUNDS: u64 = 1;

/// The live state of a partition: the slot and the states of groups, which change together.
#[derive(Clone, Default)]
pub(super) struct Live {
    slot: Option<Rc<Slot>>,
    entries: Vec<Entry>,
    /// By generation and key.
    sums: Vec<((Generation, usize), Kept)>,
}

/// The state of a group, put there in an epoch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    generation: Generation,
    pub(super) epoch: Epoch,
    pub(super) group: Group,
    pub(super) state: State,
}

/// A slot, the entries of a key and the sum that is kept of it.
pub(super) type SlotRead = Option<(Rc<Slot>, Vec<Entry>, Option<Kept>)>;

/// The position at an offset, with the record before it.
fn cut_at(next_offset: Offset) -> Cut {
    let last = (next_offset > 0).then(|| LastRecord {
        offset: next_offset - 1,
        checksum: 7,
        logged_at_ms: next_offset,
    });
    Cut { next_offset, last }
}

impl World {
    pub(super) fn slot(&self, partition: usize) -> Option<Rc<Slot>> {
        self.live[partition].slot.clone()
    }

    /// A slot and the entries of a key, of the slot's generation and the epochs it keeps.
    pub(super) fn read(&self, partition: usize, key: usize) -> SlotRead {
        let live = &self.live[partition];
        let slot = live.slot.clone()?;
        let kept = |entry: &&Entry| {
            let is_kept = entry.epoch >= slot.oldest || self.rules.reads_dropped;
            entry.generation == slot.generation && is_kept && entry.group.key() == key
        };
        let entries = live.entries.iter().filter(kept).copied().collect();
        let sum = live.sum((slot.generation, key)).cloned();
        Some((slot, entries, sum))
    }

    /// Puts the states of the groups that are named up to `next` in the place of those before.
    pub(super) fn apply(
        &mut self,
        partition: usize,
        believed: Fence,
        next: Offset,
        (states, sums): (&[(Group, State)], &[SumChange]),
    ) -> bool {
        let live = &mut self.live[partition];
        let Some(slot) = live.slot.as_mut().map(Rc::make_mut) else {
            return false;
        };
        if (self.rules.apply)(slot, &believed, cut_at(next), &[VIEW]).is_err() {
            self.note(Event::Fenced);
            return false;
        }
        for (group, state) in states {
            live.put(Entry {
                generation: believed.generation,
                epoch: believed.epoch,
                group: *group,
                state: *state,
            });
        }
        let said: Vec<usize> = sums.iter().map(|change| change.key).collect();
        let mut unsaid: Vec<usize> = states.iter().map(|(group, _)| group.key()).collect();
        unsaid.dedup();
        unsaid.retain(|key| !said.contains(key));
        let generation = believed.generation;
        for change in sums {
            let place = (generation, change.key);
            let there = live.sum(place).cloned();
            let (believed, next) = (change.believed.as_ref(), change.next.clone());
            live.keep(place, (self.rules.kept)(there.as_ref(), believed, next));
        }
        for key in unsaid {
            let there = live.sum((generation, key)).cloned();
            let kept = (self.rules.kept)(there.as_ref(), None, None);
            live.keep((generation, key), kept);
        }
        self.check_sums(partition);
        self.remember(partition);
        true
    }

    /// Every sum is what the states add up to, also while nobody reads it.
    fn check_sums(&mut self, partition: usize) {
        let live = &self.live[partition];
        let Some(slot) = &live.slot else { return };
        let sums = live.sums.iter();
        let of_life = sums.filter(|((generation, _), _)| *generation == slot.generation);
        let mut wrong = None;
        for ((_, key), kept) in of_life {
            // States that it counts have been let go: no reader has its base any more.
            let made = kept.made.as_ref();
            let Some(sum) = made.filter(|sum| slot.oldest <= sum.base + 1) else {
                continue;
            };
            let entries = self.read(partition, *key).map(|(_, entries, _)| entries);
            if !sum.is_of(&entries.unwrap_or_default()) {
                wrong = Some(format!("the sum of key {key} is {sum:?}"));
            }
        }
        if let Some(what) = wrong {
            self.contradict(Law::Summed, what);
        }
    }

    pub(super) fn impose(&mut self, partition: usize, believed: Fence) {
        let slot = self.live[partition].slot.as_mut().map(Rc::make_mut);
        if slot.is_some_and(|slot| slot.impose(&believed).is_ok()) {
            self.note(Event::Imposed);
            self.remember(partition);
        }
    }

    pub(super) fn roll(&mut self, partition: usize, epoch: Epoch) -> Option<Cut> {
        let slot = Rc::make_mut(self.live[partition].slot.as_mut()?);
        let filling = slot.epoch;
        let cut = slot.roll(epoch).ok()?;
        if slot.epoch != filling {
            self.remember(partition);
        }
        Some(cut)
    }

    /// Starts a new life at the newest complete run of `runs`.
    pub(super) fn heal(&mut self, partition: usize, seen: Option<Fence>, runs: &Runs) {
        let life = runs.new_life(partition, self.end(partition), self.now);
        let live = &mut self.live[partition];
        if let Ok(slot) = Slot::heal(live.slot.as_deref(), seen, &life) {
            live.slot = Some(Rc::new(slot));
            self.note(Event::Healed);
            self.remember(partition);
        }
    }

    /// Lets go of epochs; what is then read by nobody is deleted sooner or later.
    pub(super) fn drop_through(&mut self, partition: usize, epoch: Epoch, cut: Cut) {
        let live = &mut self.live[partition];
        let Some(slot) = live.slot.as_mut().map(Rc::make_mut) else {
            return;
        };
        if slot.drop_through(epoch, cut, KEEP_BOUNDS) {
            let (generation, oldest) = (slot.generation, slot.oldest);
            live.entries.retain(|entry| {
                let read = entry.generation == generation && entry.epoch >= oldest;
                read || self.rng.random_ratio(1, 3)
            });
            self.note(Event::Dropped);
            self.remember(partition);
        }
    }

    fn remember(&mut self, partition: usize) {
        self.changes += 1;
        if self.rng.random_ratio(1, 2) {
            let past = &mut self.past[partition];
            if past.len() >= PAST_MAX {
                past.remove(0);
            }
            past.push(self.live[partition].clone());
        }
    }

    /// A replica that had not seen the last writes takes over.
    pub(super) fn fail_over(&mut self, partition: usize) {
        let past = &mut self.past[partition];
        let live = past.swap_remove(self.rng.random_range(0..past.len()));
        past.clear();
        past.push(live.clone());
        self.live[partition] = live;
        self.note(Event::FailedOver);
    }

    /// The same, where it lacks only a few writes.
    pub(super) fn fall_back(&mut self, partition: usize) {
        let past = &mut self.past[partition];
        let last = past.len() - 1;
        let at = last - self.rng.random_range(0..=last.min(2));
        past.truncate(at + 1);
        self.live[partition] = past[at].clone();
        self.note(Event::FailedOver);
    }

    /// A replica takes over that had seen everything but the end of an epoch, if that was the last
    /// thing that happened.
    pub(super) fn undo_roll(&mut self, partition: usize) {
        let Some(slot) = &mut self.live[partition].slot else {
            return;
        };
        let ended = slot.epoch - 1;
        if ended >= slot.oldest && slot.bounds.get(&ended) == Some(&slot.position) {
            let slot = Rc::make_mut(slot);
            slot.bounds.remove(&ended);
            slot.epoch = ended;
            self.note(Event::FailedOver);
        }
    }

    /// The slot vanishes, its entries with it or not.
    pub(super) fn lose(&mut self, partition: usize) {
        let live = &mut self.live[partition];
        live.slot = None;
        if self.rng.random() {
            live.entries.clear();
            live.sums.clear();
        }
        self.note(Event::Lost);
    }
}

impl Live {
    fn sum(&self, place: (Generation, usize)) -> Option<&Kept> {
        let mut found = self.sums.iter().filter(|(of, _)| *of == place);
        found.next().map(|(_, kept)| kept)
    }

    fn keep(&mut self, place: (Generation, usize), kept: Option<Kept>) {
        self.sums.retain(|(of, _)| *of != place);
        self.sums.extend(kept.map(|kept| (place, kept)));
    }

    fn put(&mut self, new: Entry) {
        let place = |entry: &Entry| (entry.generation, entry.epoch, entry.group);
        match self
            .entries
            .iter_mut()
            .find(|old| place(old) == place(&new))
        {
            Some(old) => old.state = new.state,
            None => self.entries.push(new),
        }
    }
}
