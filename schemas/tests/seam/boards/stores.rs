//! The kind of views of boards, with all stores that only boards have.

use rand::Rng;
use rand::rngs::SmallRng;
use schemas::seam::{Epoch, Generation, Offset};

use super::entity_rows::{ALL_MEMBERS, EntityRows, KEYS, MemberId, Notification};
use super::live_entries::LiveEntries;
use super::reader::Reader;
use super::results::Results;
use super::rules::Rules;
use super::versions::StoredBoards;
use super::{batch, worker};
use crate::simulation::{self, Fold, Invariant, Phase, ViewKind, end_step, read_alone};

const IDLE_STEPS_MAX: usize = 12;
const IDLE_STEPS_WITH_COUNTS_MAX: usize = 24;

pub(super) type World = simulation::World<Boards>;
pub(super) type SharedWorld = simulation::SharedWorld<Boards>;

/// The boards, with the stores that only they have.
pub(super) struct Boards {
    pub(super) rules: Rules,
    /// The number of keys with rows.
    pub(super) used_keys: usize,
    /// Set after the faults have ended.
    pub(super) is_undisturbed: bool,
    pub(super) entities: EntityRows,
    pub(super) results: Results,
    pub(super) versions: [StoredBoards; KEYS],
}

impl Boards {
    pub(super) fn new(rules: Rules, rng: &mut SmallRng) -> Self {
        Self {
            rules,
            used_keys: rng.random_range(1..=KEYS),
            is_undisturbed: false,
            entities: EntityRows::new(),
            results: Results::default(),
            versions: Default::default(),
        }
    }
}

impl ViewKind for Boards {
    type Record = Notification;
    /// By member, the index of the newest scores that a notification announced.
    type LogSummary = [usize; ALL_MEMBERS];
    type LiveData = LiveEntries;

    const VIEWS: &'static [&'static str] = &["board@1"];
    const DEPLOYMENTS: &'static [&'static [usize]] = &[&[0]];
    const MICRO_BATCHES_MAX: u32 = 11;
    /// A batch run has many more operations than other actors.
    const BATCH_SPEED: f64 = 3.0;

    fn add_to_summary(newest: &mut [usize; ALL_MEMBERS], record: Notification) {
        let newest = &mut newest[record.member.0];
        *newest = record.index.max(*newest);
    }

    fn delete_pruned(
        live: &mut LiveEntries,
        generation: Generation,
        oldest: Epoch,
        rng: &mut SmallRng,
    ) {
        live.entries.retain(|entry| {
            let is_retained = entry.generation == generation && entry.epoch >= oldest;
            is_retained || rng.random_ratio(1, 3)
        });
    }

    async fn apply_micro_batch(world: &SharedWorld, fold: &Fold, next: Offset) -> bool {
        worker::apply_micro_batch(world, fold, next).await
    }

    async fn run_batch(world: &SharedWorld, _views: Vec<usize>) {
        batch::run_batch(world).await;
    }

    async fn run_reader(world: &SharedWorld) {
        let mut reader = Reader::default();
        loop {
            reader.read(world, None).await;
            end_step().await;
        }
    }

    fn idle_steps_max(&self) -> usize {
        if self.rules.keeps_live_counts {
            IDLE_STEPS_WITH_COUNTS_MAX
        } else {
            IDLE_STEPS_MAX
        }
    }

    /// Reads every key. After the runs, the answers must have the scores of the entity rows.
    fn read_everything(world: &SharedWorld, phase: Phase) {
        for key in 0..KEYS {
            let mut reader = Reader::default();
            let answer = read_alone(world, reader.read(world, Some(key)));
            let world = &mut *world.borrow_mut();
            let Some(members) = answer else {
                let description = format!("key {key} is refused {phase:?}");
                world.report_violation(Invariant::Complete, description);
                continue;
            };
            for (member, scores) in members.into_iter().enumerate() {
                let current = world.read_scores(MemberId::new(key, member));
                if phase == Phase::AfterRuns && scores != current {
                    let description = format!(
                        "member {member} of key {key} has {scores:?} at the end, not {current:?}"
                    );
                    world.report_violation(Invariant::Complete, description);
                }
            }
        }
    }
}
