//! `dead-letters list`: the newest letters.

use schemas::shown::moment;
use serde::Serialize;
use stores::dead_letters::{Asked, Newest};

use super::Shown;
use crate::commands::Context;
use crate::installation::Installation;

/// Of a raw line that is shown as text: so many bytes.
const SHOWN_BYTES: usize = 200;
/// Bytes of all letters that are shown, at most, but for the last one.
const LIST_BYTES_MAX: usize = 64 << 20;
/// Once so many were looked at, those that are not shown are counted no further.
const COUNTED_MAX: u64 = 200_000;

/// What `list` prints.
#[derive(Debug, Default, Serialize)]
struct Listed {
    /// How many there are.
    total: u64,
    /// Whether `total` is all of them; else there are at least as many.
    complete: bool,
    dead_letters: Vec<Shown>,
}

/// Lists letters, newest first.
pub(super) async fn list(
    context: &Context,
    installation: &Installation,
    asked: Asked,
    limit: usize,
) -> anyhow::Result<()> {
    let mut newest = Newest::open(&*installation.stores().log, asked, None).await?;
    let mut listed = Listed::default();
    let mut bytes = 0;
    while listed.dead_letters.len() < limit && bytes < LIST_BYTES_MAX {
        let Some(letter) = newest.next(u64::MAX).await? else {
            break;
        };
        bytes += letter.bytes();
        listed.dead_letters.push(letter.into());
    }
    listed.total = listed.dead_letters.len() as u64;
    while newest.next(COUNTED_MAX).await?.is_some() {
        listed.total += 1;
    }
    listed.complete = newest.is_over();
    context.output().result(&listed, Listed::text)
}

impl Listed {
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
        let beginning = content.beginning(SHOWN_BYTES);
        let mut raw = String::from_utf8_lossy(beginning).into_owned();
        if beginning.len() < content.raw.len() {
            raw.push('…');
        }
        format!(
            "{}  {}  {}\n    {}\n    {}\n    {}\n",
            moment(content.at_ms),
            self.id.source,
            content.origin,
            self.id,
            content.reason,
            raw.escape_debug().to_string().replace("\\\"", "\"")
        )
    }
}
