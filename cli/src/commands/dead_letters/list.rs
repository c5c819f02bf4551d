//! `dead-letters list`: lists the newest dead letters.

use schemas::json_value::format_timestamp_ms;
use serde::Serialize;
use stores::dead_letters::{DeadLetterFilter, NewestDeadLetters};

use super::Shown;
use crate::commands::Context;
use crate::installation::Installation;

/// Bytes of a raw line that the text output shows.
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
    dead_letters: Vec<Shown>,
}

/// Lists dead letters, newest first.
pub(super) async fn list(
    context: &Context,
    installation: &Installation,
    filter: DeadLetterFilter,
    limit: usize,
) -> anyhow::Result<()> {
    let mut newest = NewestDeadLetters::open(&*installation.stores().log, filter, None).await?;
    let mut listed = ListOutput::default();
    let mut bytes = 0;
    while listed.dead_letters.len() < limit && bytes < LIST_BYTES_MAX {
        let Some(letter) = newest.next(u64::MAX).await? else {
            break;
        };
        bytes += letter.bytes();
        listed.dead_letters.push(letter.into());
    }
    listed.total = listed.dead_letters.len() as u64;
    while newest.next(SCANNED_MAX).await?.is_some() {
        listed.total += 1;
    }
    listed.complete = newest.is_exhausted();
    context.output().result(&listed, ListOutput::text)
}

impl ListOutput {
    fn text(&self) -> String {
        let shown = self.dead_letters.len();
        match (self.total, self.complete) {
            (0, _) => "no dead letters\n".to_owned(),
            (total, true) => {
                self.lines() + &format!("{shown} of {total} dead letters, newest first\n")
            }
            (total, false) => {
                self.lines() + &format!("{shown} of at least {total} dead letters, newest first\n")
            }
        }
    }

    fn lines(&self) -> String {
        self.dead_letters.iter().map(Shown::lines).collect()
    }
}

impl Shown {
    fn lines(&self) -> String {
        let content = &self.content;
        let beginning = content.raw_prefix(RAW_BYTES_SHOWN);
        let mut raw = String::from_utf8_lossy(beginning).into_owned();
        if beginning.len() < content.raw.len() {
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
