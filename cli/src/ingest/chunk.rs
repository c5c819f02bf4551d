//! Some lines that travel together.

use std::ops::Range;

use schemas::source::{Source, SourceKind};

/// Lines with their numbers.
#[derive(Debug)]
pub(super) struct Chunk {
    lines_max: usize,
    bytes: Vec<u8>,
    lines: Vec<(u64, Range<usize>)>,
    /// Lines that cannot be checked, each with the reason.
    unreadable: Vec<(u64, Range<usize>, String)>,
    /// The number of the last line that was added.
    last_line: u64,
    bytes_read: u64,
}

impl Chunk {
    /// Most lines of a chunk of events.
    const EVENTS_MAX: usize = 10_000;
    /// Most lines of a chunk of rows. The more rows are written in one step, the more of them share a
    /// page of the indexes.
    const ROWS_MAX: usize = 50_000;
    /// Most lines of a chunk of athletes. Each may touch as many groups as the athlete has segments,
    /// and what is told of them is written in the same step.
    const ATHLETES_MAX: usize = 2_000;
    /// A chunk that holds so many bytes is full.
    pub(super) const BYTES_FULL: usize = 16 * 1024 * 1024;

    pub(super) const fn new(source: Source) -> Self {
        Self::of_at_most(match (source, source.kind()) {
            (_, SourceKind::Facts) => Self::EVENTS_MAX,
            (Source::Athletes, _) => Self::ATHLETES_MAX,
            (_, SourceKind::Entities) => Self::ROWS_MAX,
        })
    }

    const fn of_at_most(lines_max: usize) -> Self {
        Self {
            lines_max,
            bytes: Vec::new(),
            lines: Vec::new(),
            unreadable: Vec::new(),
            last_line: 0,
            bytes_read: 0,
        }
    }

    /// Takes what there is and leaves an empty chunk.
    pub(super) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::of_at_most(self.lines_max))
    }

    pub(super) fn is_full(&self) -> bool {
        self.lines.len() + self.unreadable.len() >= self.lines_max
            || self.bytes.len() >= Self::BYTES_FULL
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.unreadable.is_empty()
    }

    /// Appends a line that `write` appends to the bytes. A line of no bytes is left out.
    pub(super) fn push<T>(&mut self, number: u64, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let begin = self.bytes.len();
        let written = write(&mut self.bytes);
        if self.bytes.len() > begin {
            self.lines.push((number, begin..self.bytes.len()));
            self.last_line = number;
        }
        written
    }

    /// Makes the last line that was appended a dead letter for this reason.
    pub(super) fn reject_last(&mut self, reason: String) {
        if let Some((number, range)) = self.lines.pop() {
            self.unreadable.push((number, range, reason));
        }
    }

    /// Notes how much of the input was read by now.
    pub(super) fn at(mut self, bytes_read: u64) -> Self {
        self.bytes_read = bytes_read;
        self
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.lines.iter().map(|(number, range)| {
            let bytes = self.bytes.get(range.clone()).unwrap_or_default();
            (*number, bytes)
        })
    }

    /// The lines that cannot be checked, each with its number, the reason and its bytes.
    pub(super) fn unreadable(&self) -> impl Iterator<Item = (u64, String, Vec<u8>)> {
        self.unreadable.iter().map(|(number, range, reason)| {
            let bytes = self.bytes.get(range.clone()).unwrap_or_default();
            (*number, reason.clone(), bytes.to_vec())
        })
    }

    pub(super) fn last_line(&self) -> u64 {
        self.last_line
    }
}
