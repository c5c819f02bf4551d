//! Reading lines in chunks. Of a line that is too long only its beginning is kept in memory.

use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant};

use schemas::plays::LINE_BYTES_MAX;

use super::chunk::Chunk;

/// How long lines of a slow input may wait for more before they are handed on.
const WAIT: Duration = Duration::from_millis(500);

/// Reads lines.
pub(super) struct LineReader<R: Read> {
    input: BufReader<R>,
    slow: bool,
    line: u64,
    bytes_read: u64,
}

impl<R: Read> LineReader<R> {
    /// A reader of `input`; a `slow` one is not waited for until a chunk is full.
    pub(super) fn new(input: R, slow: bool) -> Self {
        Self {
            input: BufReader::with_capacity(1 << 20, input),
            slow,
            line: 0,
            bytes_read: 0,
        }
    }

    /// Reads all lines and hands them on, until `hand_on` no longer takes them.
    pub(super) fn read(
        mut self,
        hand_on: &mut impl FnMut(Chunk) -> bool,
    ) -> anyhow::Result<()> {
        let mut chunk = Chunk::default();
        let mut begun = Instant::now();
        while self.line_into(&mut chunk)? {
            let waits = self.slow && self.input.buffer().is_empty() && begun.elapsed() >= WAIT;
            if chunk.is_full() || waits {
                if !hand_on(std::mem::take(&mut chunk).at(self.bytes_read)) {
                    return Ok(());
                }
                begun = Instant::now();
            }
        }
        if !chunk.is_empty() {
            hand_on(chunk.at(self.bytes_read));
        }
        Ok(())
    }

    /// Reads one line; answers whether there was one.
    fn line_into(&mut self, chunk: &mut Chunk) -> std::io::Result<bool> {
        self.line += 1;
        // One byte more than is taken, and the end of the line.
        let most = u64::try_from(LINE_BYTES_MAX).unwrap_or(u64::MAX) + 2;
        let input = &mut self.input;
        let (read, ended) = chunk.push(self.line, |bytes| {
            let read = input.by_ref().take(most).read_until(b'\n', bytes)?;
            let ended = bytes.last() == Some(&b'\n');
            if ended && read > 0 {
                bytes.pop();
            }
            std::io::Result::Ok((read as u64, ended))
        })?;
        self.bytes_read += read;
        if read == most && !ended {
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
        LineReader::new(input, false)
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
    fn a_line_that_is_too_long_is_cut_and_refused() {
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
    fn chunks_are_bounded() {
        let input = b"1\n".repeat(25_001);
        let mut sizes = Vec::new();
        LineReader::new(&input[..], false)
            .read(&mut |chunk| {
                sizes.push(chunk.lines().count());
                true
            })
            .unwrap();
        assert_eq!(sizes, [10_000, 10_000, 5_001]);
    }
}
