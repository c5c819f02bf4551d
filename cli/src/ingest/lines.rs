//! Reads lines in chunks. Only the beginning of a line that is too long is kept in memory.

use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use schemas::plays::LINE_BYTES_MAX;
use schemas::source::Source;

use super::chunk::Chunk;

/// Maximum time that lines of a slow input wait for more lines.
const MORE_LINES_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum queued blocks of a slow input.
const BLOCKS_QUEUED_MAX: usize = 8;
const BLOCK_BYTES: usize = 256 * 1024;

/// An input that may block.
pub(super) trait LineInput: Read {
    /// Waits for more bytes or the end. Returns false after the timeout.
    fn wait_for_input(&mut self, _timeout: Duration) -> bool {
        true
    }
}

impl LineInput for File {}

#[cfg(test)]
impl LineInput for &[u8] {}

/// An input that is read on its own thread, so that a pause can be detected.
pub(super) struct ThreadedInput {
    blocks: Receiver<std::io::Result<Vec<u8>>>,
    block: Cursor<Vec<u8>>,
    has_ended: bool,
    error: Option<std::io::Error>,
}

impl ThreadedInput {
    /// Starts the thread.
    pub(super) fn new(mut input: impl Read + Send + 'static) -> Self {
        let (sender, blocks) = std::sync::mpsc::sync_channel(BLOCKS_QUEUED_MAX);
        std::thread::spawn(move || {
            loop {
                let mut block = vec![0; BLOCK_BYTES];
                let result = input.read(&mut block).map(|length| {
                    block.truncate(length);
                    block
                });
                let is_last = result.as_ref().map_or(true, Vec::is_empty);
                if sender.send(result).is_err() || is_last {
                    break;
                }
            }
        });
        Self {
            blocks,
            block: Cursor::default(),
            has_ended: false,
            error: None,
        }
    }

    fn has_block(&self) -> bool {
        self.has_ended
            || self.error.is_some()
            || self.block.position() < self.block.get_ref().len() as u64
    }

    fn set_block(&mut self, block: Vec<u8>) {
        self.has_ended = block.is_empty();
        self.block = Cursor::new(block);
    }
}

impl Read for ThreadedInput {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if !self.has_block() {
            let block = self.blocks.recv().unwrap_or_else(|_| Ok(Vec::new()))?;
            self.set_block(block);
        }
        self.block.read(buffer)
    }
}

impl LineInput for ThreadedInput {
    fn wait_for_input(&mut self, timeout: Duration) -> bool {
        if self.has_block() {
            return true;
        }
        match self.blocks.recv_timeout(timeout) {
            Ok(Ok(block)) => {
                self.set_block(block);
                true
            }
            Ok(Err(error)) => {
                self.error = Some(error);
                true
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => {
                self.has_ended = true;
                true
            }
        }
    }
}

/// Reader of lines.
pub(super) struct LineReader<R: LineInput> {
    input: BufReader<R>,
    chunk: Chunk,
    line_number: u64,
    bytes_read: u64,
}

impl<R: LineInput> LineReader<R> {
    /// A reader for lines of `source`.
    pub(super) fn new(input: R, source: Source) -> Self {
        Self {
            input: BufReader::with_capacity(1 << 20, input),
            chunk: Chunk::new(source),
            line_number: 0,
            bytes_read: 0,
        }
    }

    /// Reads all lines and passes chunks to `send`, until `send` returns false.
    pub(super) fn read(mut self, send: &mut impl FnMut(Chunk) -> bool) -> anyhow::Result<()> {
        while self.read_line()? {
            let is_paused = !self.chunk.is_empty()
                && self.input.buffer().is_empty()
                && !self.input.get_mut().wait_for_input(MORE_LINES_TIMEOUT);
            if (self.chunk.is_full() || is_paused)
                && !send(self.chunk.take().with_bytes_read(self.bytes_read))
            {
                return Ok(());
            }
        }
        if !self.chunk.is_empty() {
            send(self.chunk.with_bytes_read(self.bytes_read));
        }
        Ok(())
    }

    /// Reads one line. Returns false at the end.
    fn read_line(&mut self) -> std::io::Result<bool> {
        self.line_number += 1;
        // One byte more than the limit, and the line feed.
        let bytes_max = u64::try_from(LINE_BYTES_MAX).unwrap_or(u64::MAX) + 2;
        let input = &mut self.input;
        let (read, has_ended) = self.chunk.push(self.line_number, |bytes| {
            let read = input.by_ref().take(bytes_max).read_until(b'\n', bytes)?;
            let has_ended = bytes.last() == Some(&b'\n');
            if has_ended && read > 0 {
                bytes.pop();
            }
            std::io::Result::Ok((read as u64, has_ended))
        })?;
        self.bytes_read += read;
        if read == bytes_max && !has_ended {
            self.bytes_read += self.input.skip_until(b'\n')? as u64;
        }
        Ok(read > 0)
    }
}

#[cfg(test)]
mod tests {
    use schemas::plays::check_line;

    use super::*;

    fn read(input: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let mut lines = Vec::new();
        LineReader::new(input, Source::Plays)
            .read(&mut |chunk| {
                lines.extend(chunk.lines().map(|(n, bytes)| (n, bytes.to_vec())));
                true
            })
            .unwrap();
        lines
    }

    #[test]
    fn lines_keep_their_numbers() {
        let expected = vec![(1, b"a".to_vec()), (3, b"b\r".to_vec()), (4, b"c".to_vec())];
        assert_eq!(read(b"a\n\nb\r\nc"), expected);
        assert_eq!(read(b"a\n\nb\r\nc\n"), expected);
        assert!(read(b"").is_empty());
        assert!(read(b"\n\n").is_empty());
    }

    #[test]
    fn a_line_that_is_too_long_is_cut_and_rejected() {
        for extra in [1, 2, 3, 5 * LINE_BYTES_MAX] {
            let mut input = vec![b'x'; LINE_BYTES_MAX + extra];
            input.extend_from_slice(b"\nnext\n");
            let lines = read(&input);
            assert_eq!(lines.len(), 2);
            assert!(lines[0].1.len() <= LINE_BYTES_MAX + 2);
            assert!(check_line(&lines[0].1).unwrap_err().contains("at most"));
            assert_eq!(lines[1], (2, b"next".to_vec()));
        }
        let longest = vec![b'x'; LINE_BYTES_MAX];
        assert_eq!(read(&longest)[0].1.len(), LINE_BYTES_MAX);
    }

    #[test]
    fn lines_of_a_slow_input_do_not_wait_for_more() {
        let (input, mut output) = std::io::pipe().unwrap();
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            LineReader::new(ThreadedInput::new(input), Source::Plays)
                .read(&mut |chunk| sender.send(chunk.lines().count()).is_ok())
        });
        std::io::Write::write_all(&mut output, b"a\nb\n").unwrap();
        assert_eq!(lines.recv(), Ok(2));
        std::io::Write::write_all(&mut output, b"c").unwrap();
        drop(output);
        assert_eq!(lines.recv(), Ok(1));
        assert!(lines.recv().is_err());
    }

    #[test]
    fn chunks_are_bounded() {
        for (source, expected) in [
            (Source::Plays, [10_000, 10_000, 5_001].as_slice()),
            (Source::Athletes, &[2_000; 12][..]),
            (Source::Efforts, &[25_001]),
        ] {
            let input = b"1\n".repeat(25_001);
            let mut sizes = Vec::new();
            LineReader::new(&input[..], source)
                .read(&mut |chunk| {
                    sizes.push(chunk.lines().count());
                    true
                })
                .unwrap();
            assert_eq!(sizes.iter().sum::<usize>(), 25_001);
            assert_eq!(sizes[..expected.len()], *expected, "{source}");
        }
    }
}
