//! The actors of a history. An actor is an `async` function that ends each step explicitly.

use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use rand::Rng;

use super::worker::run_worker;
use super::{Event, ViewKind, World};

const WORKERS_EACH: usize = 2;
const BATCHES: usize = 2;

pub(crate) type SharedWorld<K> = RefCell<World<K>>;

/// Ends a step of the actor that calls it. Other actors may act before the next step.
pub(crate) async fn end_step() {
    let mut has_ended = false;
    std::future::poll_fn(|_| match std::mem::replace(&mut has_ended, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

/// A running actor.
pub(crate) struct Actor<'w, T> {
    future: Pin<Box<dyn Future<Output = T> + 'w>>,
    resume_at: u64,
}

impl<'w, T> Actor<'w, T> {
    pub(crate) fn new(actor: impl Future<Output = T> + 'w) -> Self {
        Self {
            future: Box::pin(actor),
            resume_at: 0,
        }
    }

    /// Runs a step, unless the actor pauses. Returns the output after the last step.
    pub(crate) fn step<K: ViewKind>(&mut self, world: &SharedWorld<K>) -> Option<T> {
        if world.borrow().now < self.resume_at {
            return None;
        }
        let mut context = Context::from_waker(Waker::noop());
        let poll = self.future.as_mut().poll(&mut context);
        self.resume_at = std::mem::take(&mut world.borrow_mut().pause_until);
        match poll {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Worker { partition: usize },
    Batch,
    Reader,
}

/// All actors of a history.
pub(crate) struct Actors<'w, K: ViewKind> {
    shared: &'w SharedWorld<K>,
    actors: Vec<(Role, Actor<'w, ()>)>,
    /// The sum of the speeds of all actors up to each one.
    speed_sums: Vec<f64>,
}

impl<'w, K: ViewKind> Actors<'w, K> {
    /// Starts the workers of all partitions, the batch processes, and some readers.
    pub(crate) fn start(shared: &'w SharedWorld<K>, readers: usize) -> Self {
        let mut actors = Self {
            shared,
            actors: Vec::new(),
            speed_sums: Vec::new(),
        };
        let world = &mut *shared.borrow_mut();
        for partition in 0..world.partitions() {
            actors.add_workers(world, partition);
        }
        actors.add(world, Role::Batch, BATCHES);
        actors.add(world, Role::Reader, readers);
        actors
    }

    pub(crate) fn add_workers(&mut self, world: &mut World<K>, partition: usize) {
        self.add(world, Role::Worker { partition }, WORKERS_EACH);
    }

    fn add(&mut self, world: &mut World<K>, role: Role, count: usize) {
        for _ in 0..count {
            let speed = world.rng.random::<f64>().powi(2) + 0.02;
            let speed = match role {
                Role::Worker { .. } => speed,
                Role::Batch => speed * K::BATCH_SPEED,
                // Much time passes between the first and the last operation of a slow reader.
                Role::Reader if world.rng.random() => speed / 8.0,
                Role::Reader => speed,
            };
            let sum = self.speed_sums.last().copied().unwrap_or_default();
            self.speed_sums.push(sum + speed);
            self.actors.push((role, start(self.shared, world, role)));
        }
    }

    /// Lets one actor take a step. Fast actors are chosen more often.
    pub(crate) fn step(&mut self) {
        let speed_sum = self.speed_sums.last().copied().unwrap_or_default();
        let drawn = self.shared.borrow_mut().rng.random_range(0.0..speed_sum);
        let index = self.speed_sums.partition_point(|sum| *sum <= drawn);
        self.actors[index].1.step(self.shared);
    }

    /// Restarts an actor, which loses its memory.
    pub(crate) fn crash(&mut self, world: &mut World<K>) {
        let index = world.rng.random_range(0..self.actors.len());
        let (role, actor) = &mut self.actors[index];
        *actor = start(self.shared, world, *role);
        world.count_event(Event::Crashed);
    }
}

fn start<'w, K: ViewKind>(
    shared: &'w SharedWorld<K>,
    world: &World<K>,
    role: Role,
) -> Actor<'w, ()> {
    match role {
        Role::Worker { partition } => start_worker(shared, world, partition),
        Role::Batch => start_batch(shared, world),
        Role::Reader => Actor::new(K::run_reader(shared)),
    }
}

pub(super) fn start_worker<'w, K: ViewKind>(
    shared: &'w SharedWorld<K>,
    world: &World<K>,
    partition: usize,
) -> Actor<'w, ()> {
    Actor::new(run_worker(shared, partition, world.deployed_views()))
}

pub(super) fn start_batch<'w, K: ViewKind>(
    shared: &'w SharedWorld<K>,
    world: &World<K>,
) -> Actor<'w, ()> {
    Actor::new(K::run_batch(shared, K::batch_views(world)))
}
