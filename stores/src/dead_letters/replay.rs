//! Dead letters that are taken once more: what is good now is taken, what is still bad is only counted, since it is kept already.

use schemas::dead_letter::{LetterId, Place};
use schemas::source::{Source, SourceKind};
use serde::Serialize;

use super::Letter;
use crate::Result;
use crate::intake::{Again, Intake, Retaken, Taken};
use crate::registry::Schemas;

/// What became of letters that were taken once more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Replayed {
    /// Whether this is only what would become of them.
    pub dry_run: bool,
    /// Letters that are good now, and were taken.
    pub accepted: u64,
    /// Letters that are good now, and were left out: a row with the same version is stored.
    pub superseded: u64,
    /// Letters that are good now, and were left out: they are of athletes who were erased.
    pub erased: u64,
    /// Letters that still can't be taken.
    pub still_bad: u64,
    /// Records among the letters that are none.
    pub broken: u64,
    /// The first of those that still can't be taken: where it came from and why.
    pub first: Option<String>,
    /// The id of that one.
    pub first_id: Option<LetterId>,
}

/// A replay under way.
#[derive(Debug)]
pub struct Replay<'a> {
    schemas: &'a dyn Schemas,
    /// The source whose letters came last, with what was taken there.
    retaken: Option<(Source, Retaken)>,
    replayed: Replayed,
}

impl<'a> Replay<'a> {
    /// Begins; where it is dry, nothing is written.
    #[must_use]
    pub fn new(schemas: &'a dyn Schemas, is_dry: bool) -> Self {
        Self {
            schemas,
            retaken: None,
            replayed: Replayed {
                dry_run: is_dry,
                ..Replayed::default()
            },
        }
    }

    /// What has become of all letters so far.
    #[must_use]
    pub fn end(self) -> Replayed {
        self.replayed
    }

    /// Takes those of some letters of one source that are good now; `intake` is the way in of that source.
    ///
    /// # Errors
    /// As [`Intake::look_again`] and [`Intake::take_again`].
    pub async fn take(
        &mut self,
        (source, intake): (Source, &Intake),
        letters: &[Letter],
    ) -> Result<()> {
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
        let before = self.retaken.take().filter(|(of, _)| *of == source);
        let (_, retaken) = self
            .retaken
            .insert(before.unwrap_or((source, Retaken::default())));
        if !lines.is_empty() {
            let again = intake.look_again(numbered(&lines), retaken, self.schemas);
            let taken = outcome(intake, again.await?, self.replayed.dry_run).await?;
            self.replayed.add(&taken, &lines);
        }
        if !told.is_empty() {
            let again = intake.look_at_notifications(numbered(&told), self.schemas);
            let taken = outcome(intake, again.await?, self.replayed.dry_run).await?;
            self.replayed.add(&taken, &told);
        }
        Ok(())
    }
}

/// What becomes of them, or what would.
async fn outcome(intake: &Intake, again: Again, is_dry: bool) -> Result<Taken> {
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
}
