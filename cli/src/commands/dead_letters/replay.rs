//! `dead-letters replay`: what could not be taken is checked again, and what is good now is taken.

use anyhow::Context as _;
use schemas::dead_letter::{LetterId, Place};
use schemas::source::{Source, SourceKind};
use serde::Serialize;
use stores::dead_letters::{Asked, Letter, Oldest, find};
use stores::intake::{Again, Intake, Retaken, Taken};

use super::unknown;
use crate::args::ReplayArgs;
use crate::commands::Context;
use crate::installation::Installation;

/// What `replay` prints.
#[derive(Debug, Default, Serialize)]
struct Replayed {
    /// Whether this is only what would become of them.
    dry_run: bool,
    /// Letters that are good now, and were taken.
    accepted: u64,
    /// Letters that are good now, and were left out: a row with the same version is stored.
    superseded: u64,
    /// Letters that are good now, and were left out: they are of athletes who were erased.
    erased: u64,
    /// Letters that still can't be taken.
    still_bad: u64,
    /// Records among the letters that are none.
    broken: u64,
    /// The first of those that still can't be taken: where it came from and why.
    first: Option<String>,
    /// The id of that one.
    first_id: Option<LetterId>,
}

/// Takes letters once more.
pub(super) async fn replay(
    context: &Context,
    installation: &Installation,
    args: &ReplayArgs,
) -> anyhow::Result<()> {
    let mut replay = Replay::new(installation, args.dry_run);
    if args.ids.is_empty() {
        replay.all(Asked::from(&args.wanted)).await?;
    } else {
        replay.these(&args.ids).await?;
    }
    context.output().result(&replay.replayed, Replayed::text)
}

/// A replay under way.
struct Replay<'a> {
    installation: &'a Installation,
    is_dry: bool,
    /// The way in for the source whose letters come now, with what was taken there.
    way: Option<(Source, Intake, Retaken)>,
    replayed: Replayed,
}

impl<'a> Replay<'a> {
    fn new(installation: &'a Installation, is_dry: bool) -> Self {
        Self {
            installation,
            is_dry,
            way: None,
            replayed: Replayed {
                dry_run: is_dry,
                ..Replayed::default()
            },
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

    /// Takes those letters of a source that are good now. What is still bad is only counted: it is kept
    /// already.
    async fn take(&mut self, source: Source, letters: &[Letter]) -> anyhow::Result<()> {
        let (broken, letters): (Vec<&Letter>, Vec<&Letter>) =
            letters.iter().partition(|letter| letter.is_broken);
        self.replayed.broken += broken.len() as u64;
        let is_notification = |letter: &&Letter| {
            let place = Place::of(&letter.content.origin);
            source.kind() == SourceKind::Entities
                && place.is_some_and(|place| place.topic == source.topic())
        };
        let (told, lines): (Vec<&Letter>, Vec<&Letter>) =
            letters.into_iter().partition(is_notification);
        if self.way.as_ref().is_none_or(|(of, ..)| *of != source) {
            let intake = self.installation.intake(source).await?;
            self.way = Some((source, intake, Retaken::default()));
        }
        let Some((_, intake, retaken)) = &mut self.way else {
            return Ok(());
        };
        let schemas = &*self.installation.stores().schemas;
        if !lines.is_empty() {
            let again = intake.look_again(numbered(&lines), retaken, schemas);
            let taken = outcome(intake, again.await?, self.is_dry).await?;
            self.replayed.add(&taken, &lines);
        }
        if !told.is_empty() {
            let again = intake.look_at_notifications(numbered(&told), schemas);
            let taken = outcome(intake, again.await?, self.is_dry).await?;
            self.replayed.add(&taken, &told);
        }
        Ok(())
    }
}

/// What becomes of them, or what would.
async fn outcome(intake: &Intake, again: Again, is_dry: bool) -> stores::Result<Taken> {
    match is_dry {
        true => Ok(again.outlook()),
        false => intake.take_again(again).await,
    }
}

fn numbered<'a>(letters: &[&'a Letter]) -> impl Iterator<Item = (u64, &'a [u8])> {
    (0..).zip(letters.iter().map(|letter| letter.content.raw.as_slice()))
}

impl Replayed {
    /// Adds what became of some letters.
    fn add(&mut self, taken: &Taken, letters: &[&Letter]) {
        self.accepted += taken.accepted;
        self.superseded += taken.superseded;
        self.erased += taken.erased;
        // Blank ones are passed over: there is nothing in them to take.
        let good = taken.accepted + taken.superseded + taken.erased;
        self.still_bad += (letters.len() as u64).saturating_sub(good);
        if let Some(rejected) = taken.rejected.first()
            && self.first.is_none()
        {
            let letter = usize::try_from(rejected.line).ok();
            let letter = letter.and_then(|index| letters.get(index));
            let origin = letter.map_or("", |letter| letter.content.origin.as_str());
            self.first = Some(format!("{origin}: {}", rejected.reason));
            self.first_id = letter.map(|letter| letter.id);
        }
    }

    fn text(&self) -> String {
        let mut text = match self.dry_run {
            true => format!(
                "{} would be taken, {} still can't be\nnothing was written: this was a dry run\n",
                self.accepted, self.still_bad
            ),
            false => format!(
                "{} taken, {} still can't be\n",
                self.accepted, self.still_bad
            ),
        };
        if self.accepted > 0 && !self.dry_run {
            text.push_str("what had been taken before changes nothing\n");
        }
        if self.superseded > 0 {
            text.push_str(&format!(
                "{} left out, since a row with the same id and version is stored by now; ingest what is to count all the same\n",
                self.superseded
            ));
        }
        if self.erased > 0 {
            text.push_str(&format!(
                "{} left out: they are of athletes who were erased\n",
                self.erased
            ));
        }
        if self.broken > 0 {
            text.push_str(&format!(
                "{} records of the topic are no dead letters: `backstitch dead-letters list --reason \"no dead letter\"` shows them\n",
                self.broken
            ));
        }
        if let Some(first) = &self.first {
            text.push_str(&format!("first of the others: {first}\n"));
        }
        text
    }
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
