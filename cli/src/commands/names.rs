//! `names`: sets and shows the display names of owners, tracks and segments.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use stores::names::{NAME_CHARS_MAX, NamedKind, Names};

use super::Context;
use crate::args::NamesCommand;
use crate::installation::Installation;

const NAMES_PER_WRITE: usize = 10_000;
/// Maximum size of a line, in bytes.
const LINE_BYTES_MAX: u64 = 64 * 1024;

/// A line of the input.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NameLine {
    id: i64,
    name: Option<String>,
}

/// Result of `load`.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct LoadOutput {
    named: u64,
    #[serde(rename = "taken_away")]
    removed: u64,
}

/// A name in the output.
#[derive(Debug, Serialize)]
struct NameEntry {
    id: i64,
    name: Option<String>,
}

/// Runs the command.
pub(super) async fn run(command: NamesCommand, context: &Context) -> anyhow::Result<()> {
    match command {
        NamesCommand::Load { kind, file } => {
            // Names may be loaded before the first event.
            let installation = Installation::open(context.settings()).await?;
            let names = &*installation.stores().entities;
            let loaded = load(names, kind, &file).await?;
            context.output().print_result(&loaded, |loaded| {
                format!(
                    "{} {kind}s named, {} names removed",
                    loaded.named, loaded.removed
                )
            })
        }
        NamesCommand::Show { kind, ids } => {
            let installation = Installation::open_existing(context.settings()).await?;
            let names = installation
                .stores()
                .entities
                .read_names(kind, &ids)
                .await?;
            let find_name = |id: &i64| {
                let entry = names.iter().find(|(named_id, _)| named_id == id);
                entry.map(|(_, name)| name.clone())
            };
            let entries: Vec<NameEntry> = ids
                .iter()
                .map(|id| NameEntry {
                    id: *id,
                    name: find_name(id),
                })
                .collect();
            context.output().print_result(&entries, |entries| {
                let format_line = |entry: &NameEntry| {
                    let name = entry.name.as_deref().unwrap_or("(no name)");
                    format!("{}  {}\n", entry.id, name.escape_debug())
                };
                entries.iter().map(format_line).collect()
            })
        }
    }
}

async fn load<N: Names + ?Sized>(
    names: &N,
    kind: NamedKind,
    file: &Path,
) -> anyhow::Result<LoadOutput> {
    let origin = file.display().to_string();
    let input: Box<dyn Read + Send> = match origin.as_str() {
        "-" => Box::new(std::io::stdin()),
        _ => Box::new(File::open(file).map_err(|error| {
            anyhow::anyhow!("{origin}: {error}; name a readable file, or - for standard input")
        })?),
    };
    let mut reader = NameReader::new(input, origin);
    let mut loaded = LoadOutput::default();
    loop {
        let batch = tokio::task::block_in_place(|| reader.read_batch(NAMES_PER_WRITE))?;
        if batch.is_empty() {
            return Ok(loaded);
        }
        names.set_names(kind, &batch).await?;
        let named = batch.iter().filter(|(_, name)| name.is_some()).count() as u64;
        loaded.named += named;
        loaded.removed += batch.len() as u64 - named;
    }
}

/// Reads names line by line. An error names file and line; earlier lines may be stored already, and
/// loading them again is safe.
struct NameReader {
    input: BufReader<Box<dyn Read + Send>>,
    origin: String,
    line_number: u64,
}

impl NameReader {
    fn new(input: Box<dyn Read + Send>, origin: String) -> Self {
        Self {
            input: BufReader::new(input),
            origin,
            line_number: 0,
        }
    }

    /// Reads up to `limit` names; an empty result is the end.
    fn read_batch(&mut self, limit: usize) -> anyhow::Result<Vec<(i64, Option<String>)>> {
        let mut names = Vec::new();
        let mut text = Vec::new();
        while names.len() < limit {
            text.clear();
            let mut line = (&mut self.input).take(LINE_BYTES_MAX);
            let read = line.read_until(b'\n', &mut text);
            if read.with_context(|| format!("reading {}", self.origin))? == 0 {
                break;
            }
            self.line_number += 1;
            if text.len() as u64 == LINE_BYTES_MAX && !text.ends_with(b"\n") {
                bail!(
                    "{} line {} is longer than {LINE_BYTES_MAX} bytes",
                    self.origin,
                    self.line_number
                );
            }
            if text.trim_ascii().is_empty() {
                continue;
            }
            let entry = parse_line(&text);
            names
                .push(entry.with_context(|| format!("{} line {}", self.origin, self.line_number))?);
        }
        Ok(names)
    }
}

fn parse_line(text: &[u8]) -> anyhow::Result<(i64, Option<String>)> {
    let line: NameLine = serde_json::from_slice(text)
        .context("expected a JSON object with a whole number id, and a text name or null")?;
    if let Some(name) = &line.name {
        let chars = name.chars().count();
        let is_plain = !name.trim().is_empty() && !name.contains(char::is_control);
        if !is_plain || chars > NAME_CHARS_MAX {
            bail!(
                "name: expected a text of 1 to {NAME_CHARS_MAX} characters without control characters, or null to remove the name"
            );
        }
    }
    Ok((line.id, line.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(text: &'static str) -> NameReader {
        NameReader::new(Box::new(text.as_bytes()), "names.jsonl".to_owned())
    }

    #[test]
    fn names_are_read_line_by_line() {
        let mut reader =
            reader("{\"id\": 1, \"name\": \"Ä\"}\n\n{\"id\": -2, \"name\": null}\n{\"id\": 3}");
        let first = reader.read_batch(2).unwrap();
        assert_eq!(first, [(1, Some("Ä".to_owned())), (-2, None)]);
        assert_eq!(reader.read_batch(2).unwrap(), [(3, None)]);
        assert_eq!(reader.read_batch(2).unwrap(), []);
    }

    #[test]
    fn errors_name_file_and_line() {
        for (text, expected) in [
            ("{\"id\": 1.5, \"name\": \"x\"}", "whole number"),
            ("{\"id\": 1, \"nmae\": \"x\"}", "nmae"),
            ("{\"id\": 1, \"name\": \" \"}", "1 to 500"),
            ("{\"id\": 1, \"name\": \"a\\u0000b\"}", "control"),
            ("nonsense", "JSON"),
        ] {
            let error = format!("{:#}", reader(text).read_batch(1).unwrap_err());
            assert!(error.contains("names.jsonl line 1"), "{error}");
            assert!(error.contains(expected), "{error}");
        }
        let long = "x"
            .repeat(usize::try_from(LINE_BYTES_MAX).unwrap() + 5)
            .leak();
        let error = reader(long).read_batch(1).unwrap_err().to_string();
        assert!(error.contains("longer than"), "{error}");
    }
}
