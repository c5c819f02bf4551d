//! The micro-batches of a worker: it reads the notified members from the entity rows, then updates
//! the live counts of their keys.

use rand::Rng;
use schemas::seam::Offset;

use super::count_update::CountUpdate;
use super::entity_rows::{MemberId, Scores};
use super::stores::{SharedWorld, World};
use crate::simulation::{Fold, end_step};

const PAUSE_MAX: u64 = 80;

/// Reads the notified members and applies them, with the changes of live counts. Returns whether
/// the checkpoint matched.
pub(super) async fn apply_micro_batch(world: &SharedWorld, fold: &Fold, next: Offset) -> bool {
    let start = fold.checkpoint.next_offset;
    let mut members = world.borrow().notified(fold.partition, start, next);
    for (member, scores) in &mut members {
        end_step().await;
        if world.borrow().stores.rules.reads_entity_rows {
            *scores = world.borrow().read_scores(*member);
        }
    }
    end_step().await;
    let keys = choose_counted_keys(&mut world.borrow_mut(), &members);
    let mut count_changes = Vec::new();
    for key in keys.into_iter().rev() {
        end_step().await;
        let read = world.borrow().read_key(fold.partition, key);
        end_step().await;
        let world = &mut *world.borrow_mut();
        if !world.stores.is_undisturbed {
            world.pause_randomly(PAUSE_MAX);
        }
        let update = CountUpdate::new(fold, key, &members);
        let head = world.head(key);
        let Some(change) = update.compute_change(world, read, head) else {
            return false;
        };
        count_changes.push(change);
    }
    end_step().await;
    let mut world = world.borrow_mut();
    world.apply_entries(fold, next, &members, &count_changes)
}

/// Returns the keys whose live counts to update: none without live counts, and some keys are
/// skipped at random.
fn choose_counted_keys(world: &mut World, members: &[(MemberId, Scores)]) -> Vec<usize> {
    let mut keys: Vec<usize> = members.iter().map(|(member, _)| member.key()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.retain(|_| world.stores.rules.keeps_live_counts && world.rng.random_ratio(3, 4));
    keys
}
