//! `dead-letters count`: how many letters there are of each kind of reason.

use schemas::dead_letter::LetterId;
use schemas::source::Source;
use serde::Serialize;
use stores::dead_letters::{self, Asked, Counts, KindCount};

use super::moment;
use crate::commands::Context;
use crate::installation::Installation;

/// What `count` prints.
#[derive(Debug, Serialize)]
struct Counted {
    /// How many there are.
    letters: u64,
    /// How many were looked at.
    looked_at: u64,
    /// Whether these were all.
    complete: bool,
    /// By source, the most frequent kind of each first.
    counts: Vec<OfKind>,
}

#[derive(Debug, Serialize)]
struct OfKind {
    source: Source,
    kind: String,
    letters: u64,
    first_at_ms: i64,
    last_at_ms: i64,
    example: LetterId,
}

impl From<KindCount> for OfKind {
    fn from(counted: KindCount) -> Self {
        Self {
            source: counted.source,
            kind: counted.kind,
            letters: counted.letters,
            first_at_ms: counted.first_at_ms,
            last_at_ms: counted.last_at_ms,
            example: counted.example,
        }
    }
}

impl From<Counts> for Counted {
    fn from(counts: Counts) -> Self {
        Self {
            letters: counts.letters,
            looked_at: counts.looked_at,
            complete: counts.is_complete,
            counts: counts.kinds.into_iter().map(OfKind::from).collect(),
        }
    }
}

/// Counts all letters that are asked for.
pub(super) async fn count(
    context: &Context,
    installation: &Installation,
    asked: Asked,
) -> anyhow::Result<()> {
    let log = &*installation.stores().log;
    let counted = Counted::from(dead_letters::count(log, asked, u64::MAX).await?);
    context.output().result(&counted, Counted::text)
}

impl Counted {
    fn text(&self) -> String {
        if self.letters == 0 {
            return "no dead letters\n".to_owned();
        }
        let mut text: String = self.counts.iter().map(OfKind::line).collect();
        text.push_str(&format!("{} dead letters\n", self.letters));
        text
    }
}

impl OfKind {
    fn line(&self) -> String {
        format!(
            "{:>8}  {}  {}\n          {} to {}, such as {}\n",
            self.letters,
            self.source,
            self.kind,
            moment(self.first_at_ms),
            moment(self.last_at_ms),
            self.example
        )
    }
}
