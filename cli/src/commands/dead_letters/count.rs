//! `dead-letters count`: counts dead letters by source and kind of reason.

use schemas::json_value::format_timestamp_ms;
use serde::Serialize;
use stores::dead_letters::{self, DeadLetterCounts, DeadLetterFilter, KindCount};

use crate::commands::Context;
use crate::installation::Installation;

/// Output of `count`.
#[derive(Debug, Serialize)]
struct CountOutput {
    /// Number of matching dead letters.
    #[serde(rename = "letters")]
    dead_letters: u64,
    /// Number of scanned dead letters.
    #[serde(rename = "looked_at")]
    scanned: u64,
    /// True if all dead letters were scanned.
    complete: bool,
    /// Counts by source, most frequent kinds first.
    counts: Vec<KindCount>,
}

impl From<DeadLetterCounts> for CountOutput {
    fn from(counts: DeadLetterCounts) -> Self {
        Self {
            dead_letters: counts.dead_letters,
            scanned: counts.examined,
            complete: counts.is_complete,
            counts: counts.kinds,
        }
    }
}

/// Counts all matching dead letters.
pub(super) async fn count(
    context: &Context,
    installation: &Installation,
    filter: DeadLetterFilter,
) -> anyhow::Result<()> {
    let log = &*installation.stores().log;
    let output = CountOutput::from(dead_letters::count(log, filter, u64::MAX).await?);
    context.output().print_result(&output, CountOutput::to_text)
}

impl CountOutput {
    fn to_text(&self) -> String {
        if self.dead_letters == 0 {
            return "no dead letters\n".to_owned();
        }
        let mut text: String = self.counts.iter().map(format_line).collect();
        text.push_str(&format!("{} dead letters\n", self.dead_letters));
        text
    }
}

fn format_line(count: &KindCount) -> String {
    format!(
        "{:>8}  {}  {}\n          {} to {}, such as {}\n",
        count.letters,
        count.source,
        count.kind,
        format_timestamp_ms(count.first_at_ms),
        format_timestamp_ms(count.last_at_ms),
        count.example
    )
}
