//! Which letters came before, so that one that was noted twice comes once.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::Letter;

/// So many letters are remembered. What is noted twice, by a worker that died in between or by who sent
/// something again, seldom stands so far apart.
const REMEMBERED_MAX: usize = 100_000;

/// What makes two notes the same dead letter, in few bytes.
type Digest = (u64, u64);

/// The letters that came last.
#[derive(Debug, Default)]
pub(super) struct Seen {
    in_order: VecDeque<Digest>,
    known: HashSet<Digest>,
}

impl Seen {
    /// Whether none with the same origin and bytes came before, of those that are remembered.
    pub(super) fn is_new(&mut self, letter: &Letter) -> bool {
        let digest = digest(letter);
        if !self.known.insert(digest) {
            return false;
        }
        self.in_order.push_back(digest);
        if self.in_order.len() > REMEMBERED_MAX
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }
}

fn digest(letter: &Letter) -> Digest {
    let hash = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        let content = &letter.content;
        (salt, letter.id.source, &content.origin, &content.raw).hash(&mut hasher);
        hasher.finish()
    };
    (hash(1), hash(2))
}
