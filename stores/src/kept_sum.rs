//! Sums that slots keep beside live states: what the states of a key add up to, so that a reader who
//! wants no more need not read them.
//!
//! A store keeps at most one for each view and key of a slot's life. It does not know what is in it; it
//! sees to the rule of [`schemas::seam::sum::kept`] in the step that changes states. A worker puts a sum
//! that is *begun* first, then reads the states, and puts one that is *made* in its place.

use bytes::Bytes;
use uuid::Uuid;

/// What the bytes of a sum begin with. Scripts know these too.
const BEGUN: u8 = b'b';
const MADE: u8 = b'm';
/// The bytes before what is in it.
const HEAD_BYTES: usize = 1 + 16;

/// A sum as it is kept. Each has a name of its own, at random: a server that lost its last writes can't
/// make two the same, so whoever knows one by its bytes knows which states it is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptSum(Bytes);

impl KeptSum {
    /// One that is to be made.
    #[must_use]
    pub fn begun() -> Self {
        Self::new(BEGUN, &[])
    }

    /// One that is made.
    #[must_use]
    pub fn made(content: &[u8]) -> Self {
        Self::new(MADE, content)
    }

    fn new(kind: u8, content: &[u8]) -> Self {
        let name = Uuid::new_v4();
        Self(
            [&[kind], name.as_bytes().as_slice(), content]
                .concat()
                .into(),
        )
    }

    /// What is in it; nothing if it is still to be made.
    #[must_use]
    pub fn content(&self) -> Option<&[u8]> {
        match self.0.first() {
            Some(&MADE) => self.0.get(HEAD_BYTES..),
            _ => None,
        }
    }

    /// As it is stored.
    pub(crate) const fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// As it was stored; nothing for no bytes.
    pub(crate) fn stored(bytes: Bytes) -> Option<Self> {
        (!bytes.is_empty()).then_some(Self(bytes))
    }
}

/// What a micro-batch makes of the sum of one key.
#[derive(Debug, Clone)]
pub struct SumChange {
    /// The view, with its version.
    pub view: String,
    /// The encoded key.
    pub key: Vec<u8>,
    /// The sum that was kept when the states of before were read; nothing if there was none. If another
    /// is kept now, none is from then on.
    pub believed: Option<KeptSum>,
    /// What takes its place; nothing if none is to be kept. In the place of nothing only a sum that is
    /// begun may come: one that is made rests on states that were read while it was begun.
    pub next: Option<KeptSum>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_sums_are_the_same() {
        let (begun, made) = (KeptSum::begun(), KeptSum::made(b"12"));
        assert_ne!(begun, KeptSum::begun());
        assert_ne!(made, KeptSum::made(b"12"));
        assert_eq!((begun.content(), made.content()), (None, Some(&b"12"[..])));
        assert_eq!(KeptSum::stored(made.bytes().clone()), Some(made));
        assert_eq!(KeptSum::stored(Bytes::new()), None);
    }
}
