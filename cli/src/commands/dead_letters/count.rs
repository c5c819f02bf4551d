//! `dead-letters count`: how many letters there are of each kind of reason.

use schemas::shown::moment;
use serde::Serialize;
use stores::dead_letters::{self, Asked, Counts, KindCount};

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
    counts: Vec<KindCount>,
}

impl From<Counts> for Counted {
    fn from(counts: Counts) -> Self {
        Self {
            letters: counts.letters,
            looked_at: counts.looked_at,
            complete: counts.is_complete,
            counts: counts.kinds,
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
        let mut text: String = self.counts.iter().map(line).collect();
        text.push_str(&format!("{} dead letters\n", self.letters));
        text
    }
}

fn line(of: &KindCount) -> String {
    format!(
        "{:>8}  {}  {}\n          {} to {}, such as {}\n",
        of.letters,
        of.source,
        of.kind,
        moment(of.first_at_ms),
        moment(of.last_at_ms),
        of.example
    )
}
