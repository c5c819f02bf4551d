//! `names`: what owners, tracks and segments are called, for people who look at pages.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use stores::names::{NAME_CHARS_MAX, Named, Names};

use super::Context;
use crate::args::NamesCommand;
use crate::installation::Installation;

/// Names that are given at once.
const AT_ONCE: usize = 10_000;
/// The longest line, in bytes.
const LINE_BYTES_MAX: u64 = 64 * 1024;

/// A line of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: i64,
    name: Option<String>,
}

/// What was given.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Loaded {
    named: u64,
    taken_away: u64,
}

/// What something is called.
#[derive(Debug, Serialize)]
struct Shown {
    id: i64,
    name: Option<String>,
}

/// Runs the command.
pub(super) async fn run(command: NamesCommand, context: &Context) -> anyhow::Result<()> {
    match command {
        NamesCommand::Load { of, file } => {
            // Names may be there before any event is.
            let installation = Installation::open(context.settings()).await?;
            let names = &*installation.stores().canon;
            let loaded = load(names, of, &file).await?;
            context.output().result(&loaded, |loaded| {
                format!(
                    "{} {of}s have a name now, and {} have none any more",
                    loaded.named, loaded.taken_away
                )
            })
        }
        NamesCommand::Show { of, ids } => {
            let installation = Installation::open_existing(context.settings()).await?;
            let found = installation.stores().canon.names(of, &ids).await?;
            let name = |id: &i64| {
                let named = found.iter().find(|(of, _)| of == id);
                named.map(|(_, name)| name.clone())
            };
            let shown: Vec<Shown> = ids
                .iter()
                .map(|id| Shown {
                    id: *id,
                    name: name(id),
                })
                .collect();
            context.output().result(&shown, |shown| {
                let line = |one: &Shown| {
                    let name = one.name.as_deref().unwrap_or("(no name)");
                    format!("{}  {}\n", one.id, name.escape_debug())
                };
                shown.iter().map(line).collect()
            })
        }
    }
}

async fn load<N: Names + ?Sized>(names: &N, of: Named, file: &Path) -> anyhow::Result<Loaded> {
    let called = file.display().to_string();
    let input: Box<dyn Read + Send> = match called.as_str() {
        "-" => Box::new(std::io::stdin()),
        _ => Box::new(File::open(file).map_err(|error| {
            anyhow::anyhow!(
                "{called}: {error}; name a file that can be read, or - for what is piped in"
            )
        })?),
    };
    let mut lines = Lines::new(input, called);
    let mut loaded = Loaded::default();
    loop {
        let given = tokio::task::block_in_place(|| lines.take(AT_ONCE))?;
        if given.is_empty() {
            return Ok(loaded);
        }
        names.set_names(of, &given).await?;
        let named = given.iter().filter(|(_, name)| name.is_some()).count() as u64;
        loaded.named += named;
        loaded.taken_away += given.len() as u64 - named;
    }
}

/// Lines of names. What is wrong names the file and the line: the lines before it may have been taken, and may be given
/// again.
struct Lines {
    input: BufReader<Box<dyn Read + Send>>,
    called: String,
    number: u64,
}

impl Lines {
    fn new(input: Box<dyn Read + Send>, called: String) -> Self {
        Self {
            input: BufReader::new(input),
            called,
            number: 0,
        }
    }

    /// The next names, at most so many; none at the end.
    fn take(&mut self, limit: usize) -> anyhow::Result<Vec<(i64, Option<String>)>> {
        let mut taken = Vec::new();
        let mut text = Vec::new();
        while taken.len() < limit {
            text.clear();
            let mut line = (&mut self.input).take(LINE_BYTES_MAX);
            let read = line.read_until(b'\n', &mut text);
            if read.with_context(|| format!("reading {}", self.called))? == 0 {
                break;
            }
            self.number += 1;
            if text.len() as u64 == LINE_BYTES_MAX && !text.ends_with(b"\n") {
                bail!(
                    "{} line {}: it is longer than {LINE_BYTES_MAX} bytes",
                    self.called,
                    self.number
                );
            }
            if text.trim_ascii().is_empty() {
                continue;
            }
            let named = named(&text);
            taken.push(named.with_context(|| format!("{} line {}", self.called, self.number))?);
        }
        Ok(taken)
    }
}

fn named(text: &[u8]) -> anyhow::Result<(i64, Option<String>)> {
    let line: Line = serde_json::from_slice(text)
        .context("a line is a JSON object with a whole number id and a text name, or null")?;
    if let Some(name) = &line.name {
        let chars = name.chars().count();
        let is_plain = !name.trim().is_empty() && !name.contains(char::is_control);
        if !is_plain || chars > NAME_CHARS_MAX {
            bail!(
                "name: a text of 1 to {NAME_CHARS_MAX} characters without control characters is expected; null takes a name away"
            );
        }
    }
    Ok((line.id, line.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &'static str) -> Lines {
        Lines::new(Box::new(text.as_bytes()), "names.jsonl".to_owned())
    }

    #[test]
    fn names_are_read_line_by_line() {
        let mut lines =
            lines("{\"id\": 1, \"name\": \"Ä\"}\n\n{\"id\": -2, \"name\": null}\n{\"id\": 3}");
        let first = lines.take(2).unwrap();
        assert_eq!(first, [(1, Some("Ä".to_owned())), (-2, None)]);
        assert_eq!(lines.take(2).unwrap(), [(3, None)]);
        assert_eq!(lines.take(2).unwrap(), []);
    }

    #[test]
    fn what_is_no_name_says_where_it_stands() {
        for (text, what) in [
            ("{\"id\": 1.5, \"name\": \"x\"}", "whole number"),
            ("{\"id\": 1, \"nmae\": \"x\"}", "nmae"),
            ("{\"id\": 1, \"name\": \" \"}", "1 to 500"),
            ("{\"id\": 1, \"name\": \"a\\u0000b\"}", "control"),
            ("nonsense", "JSON"),
        ] {
            let error = format!("{:#}", lines(text).take(1).unwrap_err());
            assert!(error.contains("names.jsonl line 1"), "{error}");
            assert!(error.contains(what), "{error}");
        }
        let long = "x"
            .repeat(usize::try_from(LINE_BYTES_MAX).unwrap() + 5)
            .leak();
        let error = lines(long).take(1).unwrap_err().to_string();
        assert!(error.contains("longer than"), "{error}");
    }
}
