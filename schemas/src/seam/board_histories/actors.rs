//! The actors of a history, with different speeds, and the choice of the next one.

use rand::Rng;

use super::batch::Batch;
use super::events::Event;
use super::reader::Reader;
use super::worker::Worker;
use super::world::World;

#[derive(Clone, Copy)]
pub(super) enum Role {
    Worker(usize),
    Batch,
    Reader,
}

enum Actor {
    Worker(Worker),
    Batch(Box<Batch>),
    Reader(Reader),
}

#[derive(Default)]
pub(super) struct Actors {
    actors: Vec<(Role, Actor)>,
    /// The cumulative rate of each actor.
    rates: Vec<f64>,
}

impl Role {
    fn start(self) -> Actor {
        match self {
            Self::Worker(partition) => Actor::Worker(Worker::new(partition)),
            Self::Batch => Actor::Batch(Box::new(Batch::new())),
            Self::Reader => Actor::Reader(Reader::new(None)),
        }
    }

    /// A batch run has many more operations than other actors.
    fn pace(self) -> f64 {
        match self {
            Self::Batch => 3.0,
            _ => 1.0,
        }
    }
}

impl Actors {
    pub(super) fn add(&mut self, roles: &[Role], world: &mut World) {
        for role in roles {
            let rate = world.rng.random::<f64>().powi(2) + 0.02;
            // Some readers are slow: much time passes between their first and last operation.
            let slow = matches!(role, Role::Reader) && world.rng.random();
            let rate = if slow { rate / 8.0 } else { rate };
            self.actors.push((*role, role.start()));
            let before = self.rates.last().copied().unwrap_or_default();
            self.rates.push(before + rate * role.pace());
        }
    }

    pub(super) fn step(&mut self, world: &mut World) {
        let all = self.rates.last().copied().unwrap_or_default();
        let drawn = world.rng.random_range(0.0..all);
        let next = self.rates.partition_point(|rate| *rate <= drawn);
        match &mut self.actors[next].1 {
            Actor::Worker(worker) => worker.step(world),
            Actor::Batch(batch) => batch.step(world),
            Actor::Reader(reader) => reader.step(world),
        }
    }

    /// Restarts an actor, which loses its memory.
    pub(super) fn crash(&mut self, world: &mut World) {
        let which = world.rng.random_range(0..self.actors.len());
        let (role, actor) = &mut self.actors[which];
        *actor = role.start();
        world.count_event(Event::Crashed);
    }
}
