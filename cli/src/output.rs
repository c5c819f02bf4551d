//! Output of commands: results on standard output, errors on standard error.
//!
//! With `--json` a command prints one JSON document and nothing else. A reader that closes the pipe early ends the command
//! without a failure.

use std::io::{self, Write};

use serde::Serialize;

/// The reader of standard output has closed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("standard output was closed")]
pub(crate) struct Closed;

/// Format of results.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    /// Results as JSON or text.
    pub(crate) const fn new(json: bool) -> Self {
        Self { json }
    }

    /// True if results are JSON.
    pub(crate) const fn is_json(self) -> bool {
        self.json
    }

    /// Prints a result as one JSON document, or as the lines of `text`.
    pub(crate) fn result<T: Serialize>(
        self,
        value: &T,
        text: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        if self.json {
            let mut document = serde_json::to_vec(value)?;
            document.push(b'\n');
            raw(&document)
        } else {
            let mut text = text(value);
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            raw(text.as_bytes())
        }
    }

    /// Prints entries as one JSON document, or one line each. Without entries the text is `none`.
    pub(crate) fn list<T: Serialize>(
        self,
        entries: &[T],
        none: &str,
        line: impl Fn(&T) -> String,
    ) -> anyhow::Result<()> {
        self.result(&entries, |entries| match entries.is_empty() {
            true => none.to_owned(),
            false => entries.iter().map(|entry| line(entry) + "\n").collect(),
        })
    }
}

/// Writes bytes to standard output.
pub(crate) fn raw(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    closed(out.write_all(bytes).and_then(|()| out.flush()))
}

/// Converts an error of standard output to the error of a command.
pub(crate) fn closed(written: io::Result<()>) -> anyhow::Result<()> {
    written.map_err(|error| {
        if error.kind() == io::ErrorKind::BrokenPipe {
            anyhow::Error::new(Closed)
        } else {
            anyhow::Error::new(error).context("writing to standard output")
        }
    })
}

/// Writes an error message as one line to standard error.
pub(crate) fn error(message: &str) {
    crate::progress::suspend(|| {
        // A failure to write to standard error cannot be reported.
        drop(writeln!(io::stderr().lock(), "error: {message}"));
    });
}
