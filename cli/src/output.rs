//! Output of commands: results on standard output, errors on standard error.
//!
//! With `--json` a command prints one JSON document and nothing else. A reader that closes the pipe
//! early ends the command without a failure.

use std::io::{self, Write};

use serde::Serialize;

/// The reader of standard output has closed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("standard output was closed")]
pub(crate) struct StdoutClosed;

/// Format of results.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    is_json: bool,
}

impl Output {
    /// Results as JSON or text.
    pub(crate) const fn new(is_json: bool) -> Self {
        Self { is_json }
    }

    /// True if results are JSON.
    pub(crate) const fn is_json(self) -> bool {
        self.is_json
    }

    /// Prints a result as one JSON document, or as the text of `format`.
    pub(crate) fn print_result<T: Serialize>(
        self,
        value: &T,
        format: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        if self.is_json {
            let mut document = serde_json::to_vec(value)?;
            document.push(b'\n');
            write_stdout(&document)
        } else {
            let mut text = format(value);
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            write_stdout(text.as_bytes())
        }
    }

    /// Prints entries as one JSON document, or one line each. Without entries the text is
    /// `empty_text`.
    pub(crate) fn print_list<T: Serialize>(
        self,
        entries: &[T],
        empty_text: &str,
        format_entry: impl Fn(&T) -> String,
    ) -> anyhow::Result<()> {
        self.print_result(&entries, |entries| match entries.is_empty() {
            true => empty_text.to_owned(),
            false => entries
                .iter()
                .map(|entry| format_entry(entry) + "\n")
                .collect(),
        })
    }
}

/// Writes bytes to standard output.
pub(crate) fn write_stdout(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    check_stdout_write(out.write_all(bytes).and_then(|()| out.flush()))
}

/// Converts an error of standard output to the error of a command.
pub(crate) fn check_stdout_write(written: io::Result<()>) -> anyhow::Result<()> {
    written.map_err(|error| {
        if error.kind() == io::ErrorKind::BrokenPipe {
            anyhow::Error::new(StdoutClosed)
        } else {
            anyhow::Error::new(error).context("writing to standard output")
        }
    })
}

/// Writes an error message as one line to standard error.
pub(crate) fn print_error(message: &str) {
    crate::progress::suspend(|| {
        // A failure to write to standard error cannot be reported.
        drop(writeln!(io::stderr().lock(), "error: {message}"));
    });
}
