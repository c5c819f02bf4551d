//! Remembers recent dead letters to skip duplicates.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::StoredDeadLetter;

/// The number of remembered dead letters. Duplicates, from a worker that died or a client that sent
/// a request again, are rarely farther apart.
const RECENT_MAX: usize = 100_000;

/// A short digest of what identifies a dead letter.
type Digest = (u64, u64);

/// The most recent dead letters.
#[derive(Debug, Default)]
pub(super) struct RecentDeadLetters {
    in_order: VecDeque<Digest>,
    known: HashSet<Digest>,
}

impl RecentDeadLetters {
    /// Remembers a dead letter. Returns false if one with the same origin and bytes is remembered
    /// already.
    pub(super) fn remember(&mut self, dead_letter: &StoredDeadLetter) -> bool {
        let digest = compute_digest(dead_letter);
        if !self.known.insert(digest) {
            return false;
        }
        self.in_order.push_back(digest);
        if self.in_order.len() > RECENT_MAX
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }
}

fn compute_digest(dead_letter: &StoredDeadLetter) -> Digest {
    let hash = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        let content = &dead_letter.content;
        (salt, dead_letter.id.source, &content.origin, &content.raw).hash(&mut hasher);
        hasher.finish()
    };
    (hash(1), hash(2))
}
