//! Live counts, which partition states store beside live entries: an aggregate of the entries of a
//! key, so that readers of the aggregate alone need not read the entries.
//!
//! A store holds at most one live count for each view and key of a generation. Its content is
//! opaque to the store, which enforces the rule of [`schemas::seam::live_count::next_count`] in the
//! step that changes entries. A worker first stores a *started* count, then reads the entries, and
//! replaces it by a *completed* one.

use bytes::Bytes;
use uuid::Uuid;

/// The first byte of a stored count. The Lua scripts use the same values.
const STARTED: u8 = b'b';
const COMPLETED: u8 = b'm';
/// The length of the kind and the id, before the content.
const HEAD_BYTES: usize = 1 + 16;

/// A stored live count. Each has a random id. A server that lost its last writes can't produce the
/// same id again, so equal bytes mean that the count belongs to the same entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLiveCount(Bytes);

impl StoredLiveCount {
    /// A count whose entries are not read yet.
    #[must_use]
    pub fn started() -> Self {
        Self::new(STARTED, &[])
    }

    /// A complete count.
    #[must_use]
    pub fn completed(content: &[u8]) -> Self {
        Self::new(COMPLETED, content)
    }

    fn new(kind: u8, content: &[u8]) -> Self {
        let id = Uuid::new_v4();
        Self([&[kind], id.as_bytes().as_slice(), content].concat().into())
    }

    /// The content; `None` if the count is not completed.
    #[must_use]
    pub fn content(&self) -> Option<&[u8]> {
        match self.0.first() {
            Some(&COMPLETED) => self.0.get(HEAD_BYTES..),
            _ => None,
        }
    }

    /// The stored bytes.
    pub(crate) const fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// Reads stored bytes; `None` for no bytes.
    pub(crate) fn from_bytes(bytes: Bytes) -> Option<Self> {
        (!bytes.is_empty()).then_some(Self(bytes))
    }
}

/// A micro-batch's change of the live count of one key.
#[derive(Debug, Clone)]
pub struct LiveCountChange {
    /// The view, with its version.
    pub view: String,
    /// The encoded key.
    pub key: Vec<u8>,
    /// The count that was stored when the entries were read, if any. If another count is stored
    /// now, it is deleted.
    pub expected: Option<StoredLiveCount>,
    /// The new count; `None` stores no count. A missing count may be replaced only by a started
    /// one, because a completed count relies on entries that were read after it was started.
    pub next: Option<StoredLiveCount>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_count_has_a_unique_id() {
        let (started, completed) = (
            StoredLiveCount::started(),
            StoredLiveCount::completed(b"12"),
        );
        assert_ne!(started, StoredLiveCount::started());
        assert_ne!(completed, StoredLiveCount::completed(b"12"));
        assert_eq!(
            (started.content(), completed.content()),
            (None, Some(&b"12"[..]))
        );
        assert_eq!(
            StoredLiveCount::from_bytes(completed.bytes().clone()),
            Some(completed)
        );
        assert_eq!(StoredLiveCount::from_bytes(Bytes::new()), None);
    }
}
