//! A batch of lines of an input.

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
    /// Number of the last line.
    last_line: u64,
    bytes_read: u64,
}

impl Chunk {
    /// Maximum lines of a chunk of events.
    const EVENTS_MAX: usize = 10_000;
    /// Maximum lines of a chunk of rows. Rows of one write share index pages.
    const ROWS_MAX: usize = 50_000;
    /// Maximum lines of a chunk of athletes. Each may change as many groups as the athlete has
    /// segments, and the same write contains the notifications of all.
    const ATHLETES_MAX: usize = 2_000;
    /// Size at which a chunk is full.
    pub(super) const FULL_BYTES: usize = 16 * 1024 * 1024;

    pub(super) const fn new(source: Source) -> Self {
        Self::with_lines_max(match (source, source.kind()) {
            (_, SourceKind::Events) => Self::EVENTS_MAX,
            (Source::Athletes, _) => Self::ATHLETES_MAX,
            (_, SourceKind::Entities) => Self::ROWS_MAX,
        })
    }

    const fn with_lines_max(lines_max: usize) -> Self {
        Self {
            lines_max,
            bytes: Vec::new(),
            lines: Vec::new(),
            unreadable: Vec::new(),
            last_line: 0,
            bytes_read: 0,
        }
    }

    /// Takes the lines and leaves an empty chunk.
    pub(super) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::with_lines_max(self.lines_max))
    }

    pub(super) fn is_full(&self) -> bool {
        self.lines.len() + self.unreadable.len() >= self.lines_max
            || self.bytes.len() >= Self::FULL_BYTES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.unreadable.is_empty()
    }

    /// Appends the line that `write` writes. An empty line is skipped.
    pub(super) fn push<T>(&mut self, number: u64, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let start = self.bytes.len();
        let written = write(&mut self.bytes);
        if self.bytes.len() > start {
            self.lines.push((number, start..self.bytes.len()));
            self.last_line = number;
        }
        written
    }

    /// Rejects the last line with a reason.
    pub(super) fn reject_last(&mut self, reason: String) {
        if let Some((number, range)) = self.lines.pop() {
            self.unreadable.push((number, range, reason));
        }
    }

    /// Sets the position in the input, in bytes.
    pub(super) fn with_bytes_read(mut self, bytes_read: u64) -> Self {
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

    /// Unreadable lines with number, reason and bytes.
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
