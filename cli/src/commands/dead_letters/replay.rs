//! `dead-letters replay`: what could not be taken is checked again, and what is good now is taken.

use anyhow::Context as _;
use schemas::dead_letter::LetterId;
use schemas::source::Source;
use stores::dead_letters::{Asked, Letter, Oldest, Replay, Replayed, find};
use stores::intake::Intake;

use super::unknown;
use crate::args::ReplayArgs;
use crate::commands::Context;
use crate::installation::Installation;

/// Takes letters once more.
pub(super) async fn replay(
    context: &Context,
    installation: &Installation,
    args: &ReplayArgs,
) -> anyhow::Result<()> {
    let mut again = Replaying::new(installation, args.dry_run);
    if args.ids.is_empty() {
        again.all(Asked::from(&args.wanted)).await?;
    } else {
        again.these(&args.ids).await?;
    }
    context.output().result(&again.replay.end(), text)
}

/// A replay under way.
struct Replaying<'a> {
    installation: &'a Installation,
    /// The way in for the source whose letters come now.
    way: Option<(Source, Intake)>,
    replay: Replay<'a>,
}

impl<'a> Replaying<'a> {
    fn new(installation: &'a Installation, is_dry: bool) -> Self {
        Self {
            installation,
            way: None,
            replay: Replay::new(&*installation.stores().schemas, is_dry),
        }
    }

    /// Takes the letters that are asked for, each partition's from the oldest on.
    async fn all(&mut self, asked: Asked) -> anyhow::Result<()> {
        let mut letters = Oldest::open(&*self.installation.stores().log, asked).await?;
        loop {
            let more = letters.more().await?;
            let Some(source) = more.first().map(|letter| letter.id.source) else {
                return Ok(());
            };
            self.take(source, &more).await?;
        }
    }

    /// Takes these letters. If one of them is not there, none is taken.
    async fn these(&mut self, ids: &[LetterId]) -> anyhow::Result<()> {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids.dedup();
        let log = &*self.installation.stores().log;
        for id in &ids {
            find(log, *id).await?.with_context(|| unknown(*id))?;
        }
        for id in ids {
            let letter = find(log, id).await?.with_context(|| unknown(id))?;
            self.take(id.source, &[letter]).await?;
        }
        Ok(())
    }

    async fn take(&mut self, source: Source, letters: &[Letter]) -> anyhow::Result<()> {
        let way = match self.way.take().filter(|(of, _)| *of == source) {
            Some(way) => way,
            None => (source, self.installation.intake(source).await?),
        };
        let (_, intake) = self.way.insert(way);
        Ok(self.replay.take((source, intake), letters).await?)
    }
}

fn text(replayed: &Replayed) -> String {
    let mut text = match replayed.dry_run {
        true => format!(
            "{} would be taken, {} still can't be\nnothing was written: this was a dry run\n",
            replayed.accepted, replayed.still_bad
        ),
        false => format!(
            "{} taken, {} still can't be\n",
            replayed.accepted, replayed.still_bad
        ),
    };
    if replayed.accepted > 0 && !replayed.dry_run {
        text.push_str("what had been taken before changes nothing\n");
    }
    if replayed.superseded > 0 {
        text.push_str(&format!(
            "{} left out, since a row with the same id and version is stored by now; ingest what is to count all the same\n",
            replayed.superseded
        ));
    }
    if replayed.erased > 0 {
        text.push_str(&format!(
            "{} left out: they are of athletes who were erased\n",
            replayed.erased
        ));
    }
    if replayed.broken > 0 {
        text.push_str(&format!(
            "{} records of the topic are no dead letters: `backstitch dead-letters list --reason \"no dead letter\"` shows them\n",
            replayed.broken
        ));
    }
    if let Some(first) = &replayed.first {
        text.push_str(&format!("first of the others: {first}\n"));
    }
    text
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
