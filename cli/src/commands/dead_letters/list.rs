//! `dead-letters list`: lists the newest dead letters.

use schemas::json_value::format_timestamp_ms;
use serde::Serialize;
use stores::dead_letters::{DeadLetterFilter, NewestDeadLetters};

use super::DeadLetterEntry;
use crate::commands::Context;
use crate::installation::Installation;

/// Maximum bytes of a raw line that the text output shows.
const RAW_BYTES_SHOWN: usize = 200;
/// The list ends at the dead letter that exceeds this total size.
const LIST_BYTES_MAX: usize = 64 << 20;
/// The total stops counting after this many scanned dead letters.
const SCANNED_MAX: u64 = 200_000;

/// Output of `list`.
#[derive(Debug, Default, Serialize)]
struct ListOutput {
    /// Number of matching dead letters.
    total: u64,
    /// False if `total` is a lower bound.
    complete: bool,
    dead_letters: Vec<DeadLetterEntry>,
}

/// Lists dead letters, newest first.
pub(super) async fn list(
    context: &Context,
    installation: &Installation,
    filter: DeadLetterFilter,
    limit: usize,
) -> anyhow::Result<()> {
    let mut newest = NewestDeadLetters::open(&*installation.stores().log, filter, None).await?;
    let mut output = ListOutput::default();
    let mut bytes = 0;
    while output.dead_letters.len() < limit && bytes < LIST_BYTES_MAX {
        let Some(letter) = newest.next(u64::MAX).await? else {
            break;
        };
        bytes += letter.bytes();
        output.dead_letters.push(letter.into());
    }
    output.total = output.dead_letters.len() as u64;
    while newest.next(SCANNED_MAX).await?.is_some() {
        output.total += 1;
    }
    output.complete = newest.is_exhausted();
    context.output().print_result(&output, ListOutput::to_text)
}

impl ListOutput {
    fn to_text(&self) -> String {
        let listed = self.dead_letters.len();
        match (self.total, self.complete) {
            (0, _) => "no dead letters\n".to_owned(),
            (total, true) => {
                self.format_lines() + &format!("{listed} of {total} dead letters, newest first\n")
            }
            (total, false) => {
                self.format_lines()
                    + &format!("{listed} of at least {total} dead letters, newest first\n")
            }
        }
    }

    fn format_lines(&self) -> String {
        self.dead_letters
            .iter()
            .map(DeadLetterEntry::format_lines)
            .collect()
    }
}

impl DeadLetterEntry {
    fn format_lines(&self) -> String {
        let content = &self.content;
        let prefix = content.raw_prefix(RAW_BYTES_SHOWN);
        let mut raw = String::from_utf8_lossy(prefix).into_owned();
        if prefix.len() < content.raw.len() {
            raw.push('…');
        }
        format!(
            "{}  {}  {}\n    {}\n    {}\n    {}\n",
            format_timestamp_ms(content.at_ms),
            self.id.source,
            content.origin,
            self.id,
            content.reason,
            raw.escape_debug().to_string().replace("\\\"", "\"")
        )
    }
}
